"""Shims that are told to end while others live: nothing has failed, nothing need be lost."""

from __future__ import annotations

import json
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator.core.drain_records import DrainState
from coordinator.core.job_policy import JobPolicy, OnFailure, RecoveryState, When
from tests.integration.badluck.conftest import Start
from tests.integration.badluck.kit import JOB, NODES, Pair, until
from tests.support import metadata_service

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

POLICY = JobPolicy(
    JOB,
    When.STEPS,
    interval_steps=1_000_000,
    on_failure=OnFailure.RESTORE,
    grace_s=1.0,
    wait_s=60.0,
)
GRACE_S = 40.0
CODE = 7  # that of a shim which SIGTERM has ended without a loss
PORT = 8169


async def test_a_worker_whose_shim_is_told_to_end_comes_back_elsewhere_and_nothing_failed(
    start_pair: Start,
) -> None:
    pair = await start_pair("n2", spares=("n2",))
    await pair.client.set_policy(POLICY)
    await until("that it is watched", lambda: stands(pair, RecoveryState.WATCHING))
    await pair.snapshot()
    pair.signal("n1", signal.SIGTERM)
    await until("the end of n1's shim", lambda: has_ended(pair, "n1"))
    assert pair.deployment.shims["n1"].returncode == 128 + signal.SIGTERM
    await until("its way back", lambda: tells(pair, "the job runs from"))
    await pair.moves()

    job = await pair.job()
    assert job is not None
    assert job.nodes == ("n0", "n2")
    story = [line.text for line in (await pair.client.story(JOB)).lines]
    (ended,) = [text for text in story if "the run" in text and "ended" in text]
    assert "ended on purpose" in ended
    assert "n1 was taken away, the shim was told SIGTERM" in ended
    history = (await pair.client.policy(JOB)).history
    assert (history.failures, sum(node.failures for node in history.nodes)) == (0, 0)


async def test_a_job_that_is_suspended_is_saved_and_its_shims_end_well_in_time(
    start_pair: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kueue suspends one: SIGTERM to each pod, and SIGKILL once their grace is over."""
    monkeypatch.setenv("ALLSTOP_ON_TERM", "stop")
    monkeypatch.setenv("ALLSTOP_TERM_GRACE", f"{GRACE_S:g}s")
    monkeypatch.setenv("ALLSTOP_TERM_CODE", f"{CODE}")
    pair = await start_pair()
    await pair.client.set_policy(POLICY)
    await until("that it is watched", lambda: stands(pair, RecoveryState.WATCHING))
    began = time.monotonic()
    for node in NODES:
        pair.signal(node, signal.SIGTERM)
    for node in NODES:
        await until(f"the end of {node}'s shim", lambda node=node: has_ended(pair, node))  # type: ignore[misc]
    assert time.monotonic() - began < GRACE_S
    assert [pair.deployment.shims[node].returncode for node in NODES] == [CODE, CODE]
    (saved,) = (await pair.client.snapshots(JOB)).snapshots
    steps = pair.steps()
    (last,) = set(steps.values())
    assert last in (saved.step - 1, saved.step), "a step was lost"
    assert await tells(pair, f"it was stopped by {saved.snapshot}")
    assert await stands(pair, RecoveryState.FINISHED)

    for node in NODES:
        pair.start_spare(node)
    for node in NODES:
        await until(f"that {node} is there", lambda node=node: attached(pair, node))  # type: ignore[misc]
    await pair.restore(saved.snapshot)  # as the next run of it does
    history = (await pair.client.policy(JOB)).history
    assert (history.failures, sum(node.failures for node in history.nodes)) == (0, 0)


async def test_pods_of_a_name_go_one_after_another_and_the_next_takes_workers(
    start_pair: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pods are evicted, and replaced by others of the same name."""
    monkeypatch.setenv("ALLSTOP_ON_TERM", "drain")
    monkeypatch.setenv("ALLSTOP_TERM_GRACE", f"{GRACE_S:g}s")
    monkeypatch.setenv("ALLSTOP_TERM_CODE", f"{CODE}")
    pair = await start_pair("n2", spares=("n2",))
    for name, code, places in (
        ("n1", 128 + signal.SIGTERM, ("n0", "n2")),
        ("n2", CODE, ("n0", "n1")),  # it has started no worker
    ):
        pair.signal(name, signal.SIGTERM)
        await until(f"the end of {name}'s shim", lambda name=name: has_ended(pair, name))  # type: ignore[misc]
        assert pair.deployment.shims[name].returncode == code
        await pair.moves()
        job = await pair.job()
        assert job is not None
        assert job.nodes == places
        await until(f"that {name} is drained", lambda name=name: drained(pair, name))  # type: ignore[misc]
        pair.start_spare(name)
        await until(f"that {name} takes workers", lambda name=name: takes(pair, name))  # type: ignore[misc]


async def test_a_spot_instance_that_is_interrupted_is_emptied_before_it_goes(
    start_pair: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only n1 has a metadata service: to the others it is one that is away."""
    monkeypatch.setenv("ALLSTOP_PREEMPTION", "aws")
    monkeypatch.setenv("ALLSTOP_PREEMPTION_URL", f"http://127.0.0.1:{PORT}/latest")
    pair = await start_pair("n2", spares=("n2",))
    await pair.client.set_policy(POLICY)
    await until("that it is watched", lambda: stands(pair, RecoveryState.WATCHING))
    notice = tmp_path / "notice"
    notice.write_text("{}")
    words = [sys.executable, metadata_service.__file__, "127.0.0.1", str(PORT), "aws", str(notice)]
    pair.host("n1").popen(words)
    await pair.moves()
    assert pair.ranks_on("n1") > 0

    at = datetime.now(UTC) + timedelta(seconds=120)
    told = {"spot/instance-action": {"action": "terminate", "time": f"{at:%Y-%m-%dT%H:%M:%SZ}"}}
    notice.write_text(json.dumps(told))
    await until("that n1 is empty", lambda: drained(pair, "n1"))
    await pair.moves()
    view = await pair.node("n1")
    assert view is not None
    assert view.drain is not None
    assert view.drain.why == "spot interruption: terminate"
    assert abs(view.drain.deadline_unix_s - at.timestamp()) < 5
    assert pair.ranks_on("n1") == 0
    pair.host("n1").power_off()  # as the cloud does then
    await until("that it is gone", lambda: lost(pair, "n1"))
    await pair.moves()
    job = await pair.job()
    assert job is not None
    assert job.nodes == ("n0", "n2")
    history = (await pair.client.policy(JOB)).history
    assert (history.failures, sum(node.failures for node in history.nodes)) == (0, 0)


async def drained(pair: Pair, node: str) -> bool:
    view = await pair.node(node)
    return view is not None and view.drain is not None and view.drain.state is DrainState.DRAINED


async def takes(pair: Pair, node: str) -> bool:
    view = await pair.node(node)
    return view is not None and view.state == "attached" and view.drain is None


async def lost(pair: Pair, node: str) -> bool:
    view = await pair.node(node)
    return view is not None and view.state == "lost"


async def has_ended(pair: Pair, node: str) -> bool:
    return pair.deployment.shims[node].poll() is not None


async def attached(pair: Pair, node: str) -> bool:
    view = await pair.node(node)
    return view is not None and view.state == "attached"


async def stands(pair: Pair, state: RecoveryState) -> bool:
    return (await pair.client.story(JOB)).recovery.state is state


async def tells(pair: Pair, words: str) -> bool:
    return any(words in line.text for line in (await pair.client.story(JOB)).lines)
