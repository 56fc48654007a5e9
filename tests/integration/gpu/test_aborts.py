"""Attempts that end on the way, with ranks on, off and half off their devices: the job goes on.

By the library alone: what the way to the driver changes is in test_round.py and tests/contract.
"""

from __future__ import annotations

import signal
import time

import pytest

from coordinator.core.errors import AllstopError
from coordinator.core.model import Cut, Phase
from tests.integration.badluck.kit import JOB, NODES, RANKS_PER_NODE, Action, until
from tests.integration.gpu.conftest import POLICY
from tests.integration.gpu.kit import GpuPair

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.cc,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.parametrize("_shared", ["library"], indirect=True),
]

LOCK_S = 2.0  # of a lock, where gpu_lock_s is 4 s: see UNLOCK_S of worker_shim/agent/gpus.py
SPARE_S = 1.0


async def all_run(gpus: GpuPair) -> bool:
    """Whether every rank is on its device."""
    return all(gpus.states(node) == ["running"] * RANKS_PER_NODE for node in NODES)


async def went_on(gpus: GpuPair, failure: AllstopError | None, node: str, phase: Phase) -> None:
    """It was this that failed, and the job goes on with its device memory as it was."""
    if failure is not None:
        assert (failure.where.node, failure.where.phase) == (node, phase), failure.to_fields()
    gpus.behave()
    await until("that all are on their devices", lambda: all_run(gpus))
    await gpus.chains_are_right()
    await gpus.went_on(failure)
    await gpus.chains_are_right()


async def test_a_rank_that_does_not_park(gpus: GpuPair) -> None:
    await gpus.stall(3)
    short = gpus.client.checkpoint(JOB, phase_deadlines_s={Phase.PARK: 1.0})
    failure = await Action(short).failed()
    await went_on(gpus, failure, "n1", Phase.PARK)


async def test_a_lock_waits_in_vain_for_what_a_peer_has_not_begun(gpus: GpuPair) -> None:
    """With cut `freeze` nobody is parked: three ranks are inside a collective, one is not."""
    await gpus.stall(3)
    failure = await Action(gpus.client.checkpoint(JOB, cut=Cut.FREEZE)).failed()
    assert "NOT_READY" in "\n".join((failure.what, *failure.details)), failure.to_fields()
    assert failure.where.phase == Phase.GPU_LOCK
    await went_on(gpus, failure, failure.where.node or "", Phase.GPU_LOCK)


async def test_no_device_is_locked_while_a_peer_is_on_its_way(gpus: GpuPair) -> None:
    """Ranks of n0 are parked inside a collective that a rank of n1 comes to late."""
    await gpus.stall(3)
    attempt = gpus.checkpoint()
    shown = (await gpus.client.show(await attempt.reached("PARKING"))).attempt
    assert shown is not None
    gpus.tell(3, "lag", str(shown.target))
    assert await gpus.said(3) == "lag"

    async def parked() -> bool:
        view = await gpus.job()
        ranks = view.workers[0].ranks if view is not None else ()
        return len(ranks) == RANKS_PER_NODE and all(rank.parked for rank in ranks)

    await until("that n0 is parked", parked)
    late = time.monotonic() + LOCK_S + SPARE_S

    async def too_late_for_a_lock() -> bool:
        return time.monotonic() > late

    await until("the end of a lock's time", too_late_for_a_lock)
    gpus.untell(3)
    last = await attempt.ended()
    assert last.snapshot is not None, (last.state, last.reason)
    await gpus.chains_are_right()


@pytest.mark.parametrize(
    ("call", "what", "words"),
    [
        ("lock", "304 after", "OPERATING_SYSTEM"),
        ("lock", "hang after", "answered"),
        ("checkpoint", "304 after", "OPERATING_SYSTEM"),
        ("checkpoint", "hang after", "answered"),
        ("checkpoint", "stale", "still have a GPU open"),
    ],
)
async def test_a_driver_that_fails_when_it_has_done_it(
    gpus: GpuPair, call: str, what: str, words: str
) -> None:
    gpus.tell_driver("n1", call, what)
    failure = await gpus.checkpoint().failed()
    assert words in "\n".join((failure.what, *failure.details)), failure.to_fields()
    await went_on(gpus, failure, "n1", Phase.GPU_LOCK if call == "lock" else Phase.GPU_SAVE)


async def test_criu_fails_when_device_memory_is_saved(gpus: GpuPair) -> None:
    gpus.tell_criu("n1", "says")
    failure = await gpus.checkpoint().failed()
    await went_on(gpus, failure, "n1", Phase.DUMP)


async def test_the_store_goes_when_device_memory_is_saved(gpus: GpuPair) -> None:
    store, host = gpus.deployment.store, gpus.host("n1")
    gpus.tell_criu("n1", "wait")
    attempt = gpus.checkpoint()
    await attempt.reached("DUMPING")
    host.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(store)])
    try:
        gpus.behave()
        failure = await attempt.failed()
        await gpus.moves()
    finally:
        host.run(["umount", str(store)])

    async def clean() -> bool:
        return gpus.left_on("n1") == []

    await until("that n1 is clean", clean)
    await went_on(gpus, failure, "n1", Phase.PERSIST)


async def test_the_leader_is_killed_when_device_memory_is_saved(gpus: GpuPair) -> None:
    """That of n0 is, while n1's driver hangs: each node's timer lets its ranks go."""
    gpus.tell_driver("n1", "checkpoint", "hang")
    attempt = gpus.checkpoint()
    await attempt.reached("SAVING")

    async def off() -> bool:
        return gpus.states("n0") == ["checkpointed"] * RANKS_PER_NODE

    await until("that n0 is off its devices", off)
    gpus.signal("control", signal.SIGKILL)
    assert gpus.deployment.plane is not None
    gpus.deployment.plane.wait(10)
    gpus.tell_driver("n1")
    await until("that all are on their devices", lambda: all_run(gpus))  # nobody orders it
    await gpus.chains_are_right()
    gpus.deployment.start_control_plane(*POLICY)

    async def whole() -> bool:
        view = await gpus.job()
        return view is not None and view.state == "running" and len(view.nodes) == len(NODES)

    await until("the job", whole)
    assert "ended while" in (await attempt.failed()).what, "the leader"
    await went_on(gpus, None, "n1", Phase.UNDO)


@pytest.mark.parametrize("what", ["crash", "failed"])
async def test_a_driver_that_ends_a_rank_for_good(gpus: GpuPair, what: str) -> None:
    """The attempt is lost and the job is, too: it goes back to its snapshot."""
    taken = await gpus.snapshot()
    gpus.tell_driver("n1", "checkpoint", what)
    failure = await gpus.checkpoint().failed()
    assert (failure.where.node, failure.where.phase) == ("n1", Phase.GPU_SAVE), failure.to_fields()
    gpus.behave()
    last = await gpus.restore(taken.snapshot)
    assert last.restore is not None
    await went_on(gpus, None, "n1", Phase.UNDO)
