"""A job whose snapshot fits nowhere any more is started from scratch, on an operator's word.

The shims, the coordinator and its etcd are real ones in a lab. The mismatch is a real one too: the
training script was edited after the snapshot.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lab import Lab
from lab.deployment import allstop
from tests.integration.runs.kit import JOB, PROGRAMS, Talk, follow, until

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.slow]

STEPS = 120  # so many before the snapshot that a job at fewer has surely begun anew
NO_PLAN = 6


class Training(Talk):
    """The job as a training whose script lies on the shared file system."""

    def __init__(self, lab: Lab, root: Path, criu: str) -> None:
        super().__init__(lab, root, criu)
        folder = root / "program"
        folder.mkdir()
        for name in ("talk.py", "steps.py"):
            shutil.copy(PROGRAMS / name, folder)
        self.program = folder / "steps.py"

    def environment(self, worker: int) -> dict[str, str]:
        """A rank, and something that is its own."""
        return {"RANK": str(worker), "WORLD_SIZE": "2", "COLOUR": "blue"}

    async def asked(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`allstop` with these words."""
        verb, *more = words
        line = [*allstop(verb), *more, "--coordinator", self.deployment.socket]
        return await asyncio.to_thread(
            subprocess.run, line, capture_output=True, text=True, timeout=90
        )

    def starts(self, worker: int) -> list[str]:
        """With what each start of a worker began: hosts, colour, directory."""
        return self.said("starts", worker).splitlines()

    async def step(self) -> int:
        """The highest step that the coordinator knows of."""
        view = await self.job()
        return view.step if view is not None else 0


@pytest_asyncio.fixture
async def training(
    make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path
) -> AsyncIterator[Training]:
    """The job runs on n0 and n1 and has a snapshot; then its script was edited."""
    made = Training(make_lab(["n0", "n1", "n2", "n3"]), tmp_path / "shared", criu_path)
    made.start(("n0", "n1"))
    await made.is_running(1)

    async def far() -> bool:
        return await made.step() >= STEPS

    await until(f"step {STEPS}", far)
    last = await follow(made.client.checkpoint(JOB))
    assert last.snapshot is not None
    assert last.snapshot.step >= STEPS
    made.program.write_text(made.program.read_text() + "\n# edited\n")
    yield made
    await made.client.close()


def story(record: dict[str, Any], snapshot: str) -> None:
    """What every record of such a start says."""
    assert (record["cold"], record["snapshot"], record["incarnation"]) == (True, snapshot, 2)
    assert record["reason"].startswith(f"started from scratch, not from snapshot {snapshot}, ")
    assert "program files differ: " in record["cold_why"]


@pytest.mark.timeout(240)
async def test_on_spare_nodes_with_new_addresses(training: Training) -> None:
    snapshots = await training.client.snapshots(JOB)
    for name in ("n2", "n3"):
        training.deployment.start_spare(training.lab.hosts[name])
    for name in ("n0", "n1"):  # the run ends, and its nodes leave
        training.deployment.shims[name].terminate()
        await asyncio.to_thread(training.deployment.shims[name].wait, 60)

    async def spares() -> bool:
        views = {view.facts.node: view.state for view in await training.client.nodes()}
        return {name for name, state in views.items() if state == "attached"} == {"n2", "n3"}

    await until("the spares alone", spares)

    refused = await training.asked("restore", JOB)
    assert refused.returncode == NO_PLAN, refused
    assert "program files differ" in refused.stderr
    named = await training.asked("restore", JOB, "--on-mismatch", "cold-start")
    assert named.returncode == NO_PLAN, named
    old = training.lab.hosts["n0"].address
    assert f"names {old} of n0" in named.stderr
    assert "--old-addresses move" in named.stderr
    assert len(training.starts(0)) == 1  # nothing was tried

    wish = ("--on-mismatch", "cold-start", "--old-addresses", "move")
    planned = json.loads((await training.asked("plan", JOB, *wish, "-o", "json")).stdout)["plan"]
    assert planned["cold"]
    assert {move["old"] for move in planned["addresses"]} == {
        training.lab.hosts[name].address for name in ("n0", "n1")
    }
    went = await training.asked("restore", JOB, *wish, "-o", "json")
    assert went.returncode == 0, went.stderr
    story(json.loads(went.stdout)["restore"], snapshots.latest)
    view = await training.is_running(2)
    assert view.nodes == ("n2", "n3")
    assert view.step < STEPS
    hosts = ",".join(training.lab.hosts[name].address for name in ("n2", "n3"))
    await training.goes_on()
    for worker in (0, 1):
        first, second = training.starts(worker)
        assert second == f"{hosts} {first.split(' ', 1)[1]}"
        assert second.split()[1] == "blue"

    # It is a job like any other: it can be saved, and comes back from that.
    last = await follow(training.client.checkpoint(JOB))
    assert last.snapshot is not None
    assert last.snapshot.incarnation == 2
    again = await follow(training.client.restore(JOB))
    assert (again.state, again.restore.cold) == ("RUNNING", False)  # type: ignore[union-attr]
    await training.goes_on()
    assert len(training.starts(0)) == 2


@pytest.mark.timeout(240)
async def test_in_place_of_the_run_that_still_goes_on(training: Training) -> None:
    snapshots = await training.client.snapshots(JOB)
    went = await training.asked("restore", JOB, "--on-mismatch", "cold-start")
    assert went.returncode == 0, went.stderr
    assert "started from scratch, not from snapshot" in went.stdout + went.stderr
    view = await training.is_running(2)
    assert view.nodes == ("n0", "n1")
    await training.goes_on()
    for worker in (0, 1):
        first, second = training.starts(worker)
        assert first == second
    identity = re.search(rf"{JOB}-\d+-\d+-r-\w+", went.stdout + went.stderr)
    assert identity is not None
    shown = json.loads((await training.asked("show", identity[0], "-o", "json")).stdout)
    story(shown["restore"], snapshots.latest)
    assert shown["restore"]["plan"]["addresses"] == []
    table = (await training.asked("show", identity[0])).stdout
    assert "not restored" in table
    assert "started from scratch" in table
