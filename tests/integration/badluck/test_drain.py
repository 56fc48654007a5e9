"""A real job leaves a node that is to be emptied, and no step of it is repeated."""

from __future__ import annotations

import asyncio
import signal

import pytest

from coordinator.core.drain_records import DrainRecord, DrainState, DrainStep
from coordinator.core.errors import NoPlan
from tests.integration.badluck.conftest import Start
from tests.integration.badluck.kit import POLICY, Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

LOOK_S = 0.002  # a step takes longer


async def test_a_node_is_emptied_and_no_step_is_repeated(
    start_pair: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLSTOP_ON_TERM", "drain")
    pair = await start_pair("n2")
    with pytest.raises(NoPlan):
        await pair.client.drain("n1")
    await pair.moves()  # nothing was stopped

    pair.start_spare("n2")
    await until("n2", lambda: is_attached(pair, "n2"))
    walked: dict[int, list[int]] = {}
    watching = asyncio.create_task(watch(pair, walked))
    await pair.client.drain("n1", why="a new kernel")
    moved = await drained(pair, "n1")
    assert await where(pair) == ("n0", "n2")
    assert pair.ranks_on("n1") == 0

    await pair.client.undrain("n1")
    pair.signal("n2", signal.SIGTERM)
    back = await drained(pair, "n2")
    assert await where(pair) == ("n0", "n1")
    await until("the end of n2's shim", lambda: has_ended(pair, "n2"))
    watching.cancel()

    for record in (moved, back):
        (job,) = record.jobs
        shown = await pair.client.show(job.snapshot)
        assert shown.snapshot is not None
        for rank, steps in walked.items():
            assert steps == sorted(steps), f"rank {rank} went back: {steps}"
            assert shown.snapshot.step in steps, f"rank {rank} did not go on where it was stopped"
            assert max(steps) > shown.snapshot.step
    assert back.why == "its shim was told SIGTERM"


async def test_a_leader_killed_in_the_middle_leaves_it_to_the_next(start_pair: Start) -> None:
    pair = await start_pair("n2", spares=("n2",))
    await until("n2", lambda: is_attached(pair, "n2"))
    walked: dict[int, list[int]] = {}
    watching = asyncio.create_task(watch(pair, walked))
    await pair.client.drain("n1")
    await until("that the job is stopped", lambda: is_at(pair, "n1", DrainStep.MOVING))
    pair.signal("control", signal.SIGKILL)
    assert pair.deployment.plane is not None
    pair.deployment.plane.wait(10)
    pair.deployment.start_control_plane(*POLICY)
    await drained(pair, "n1")
    watching.cancel()
    assert await where(pair) == ("n0", "n2")
    for rank, steps in walked.items():
        assert steps == sorted(steps), f"rank {rank} went back: {steps}"


async def is_at(pair: Pair, node: str, step: DrainStep) -> bool:
    view = await pair.node(node)
    jobs = view.drain.jobs if view is not None and view.drain is not None else ()
    return any(job.step is step for job in jobs)


async def watch(pair: Pair, walked: dict[int, list[int]]) -> None:
    """Note each step of each rank as it is written, with those that are written again."""
    while True:
        for rank, step in pair.steps().items():
            told = walked.setdefault(rank, [])
            if not told or told[-1] != step:
                told.append(step)
        await asyncio.sleep(LOOK_S)


async def drained(pair: Pair, node: str) -> DrainRecord:
    """Wait for the end of a drain, and for further steps."""

    async def over() -> DrainRecord | None:
        view = await pair.node(node)
        record = view.drain if view is not None else None
        return record if record is not None and record.state is not DrainState.DRAINING else None

    record: DrainRecord = await until(f"the drain of {node}", over)
    assert record.state is DrainState.DRAINED, record
    await pair.moves()
    return record


async def where(pair: Pair) -> tuple[str, ...]:
    job = await pair.job()
    assert job is not None
    return job.nodes


async def is_attached(pair: Pair, node: str) -> bool:
    view = await pair.node(node)
    return view is not None and view.state == "attached"


async def has_ended(pair: Pair, node: str) -> bool:
    return pair.deployment.shims[node].poll() is not None
