"""A checkpoint is given up, in each phase for each cause: every other rank runs on at once."""

from __future__ import annotations

import signal
import time

import pytest

from coordinator.core.errors import AttemptFailed
from coordinator.core.model import Phase
from tests.integration.aborts.kit import (
    JOB,
    LET_GO_S,
    NODES,
    SECONDS,
    SLACK_S,
    Clock,
    Patient,
)  # fmt: skip
from tests.integration.badluck.kit import until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.alone,  # deadlines are measured
]

PHASES = [Phase.HOLD, Phase.PARK, Phase.DUMP, Phase.PERSIST]


@pytest.mark.parametrize("phase", PHASES)
async def test_an_operator_gives_it_up(patient: Patient, phase: Phase) -> None:
    before = patient.condition()
    attempt = await patient.checkpoint_in(phase)
    held, clock = patient.steps(), Clock(phase)
    await patient.client.abort(attempt.events[0].action, "not now")
    patient.go()
    await patient.moved(held)
    clock.check()
    failure = await attempt.failed()
    assert isinstance(failure, AttemptFailed)
    assert "aborted on request: not now" in failure.what
    assert failure.where.phase == phase
    await patient.aborted(attempt.events[0].action, "not now")
    await patient.as_before(before)
    await patient.commits()


@pytest.mark.parametrize("phase", PHASES)
async def test_its_time_is_over(patient: Patient, phase: Phase) -> None:
    before = patient.condition()
    attempt = await patient.checkpoint_in(phase)
    held, clock = patient.steps(), Clock(phase)
    failure = await attempt.failed()
    patient.go()
    await patient.moved(held)
    clock.check(SECONDS[Phase.UNDO])  # what waits is told to go only when the attempt has ended
    where = failure.where
    assert (where.job, where.phase) == (JOB, phase), failure.to_fields()
    await patient.aborted(attempt.events[0].action, "worker 1 on n1")
    await patient.as_before(before)
    await patient.commits()


@pytest.mark.parametrize("phase", PHASES)
async def test_a_rank_is_killed(patient: Patient, phase: Phase) -> None:
    taken = await patient.snapshot()
    before, pid = patient.condition(), await patient.pid_of(3)
    attempt = await patient.checkpoint_in(phase)
    held, clock = patient.steps(), Clock(phase)
    patient.host("n1").run(["kill", "-KILL", str(pid)])
    patient.go()
    await patient.moved(held, lost=(3,))
    clock.check()
    if phase is Phase.PERSIST:  # the cut was made before it died
        last = await attempt.ended()
        assert last.snapshot is not None
        taken = last.snapshot
    else:
        failure = await attempt.failed()
        assert "rank 3" in str(failure) or failure.where.rank == 3, failure.to_fields()
        await patient.aborted(attempt.events[0].action)
    await patient.as_before(before, lost=(3,))
    back = await patient.restore(taken.snapshot)
    assert back.restore is not None
    await patient.commits()


async def test_a_rank_stands_still(patient: Patient) -> None:
    """SIGSTOP: it does not reach the target; it is named, and the undo wakes it."""
    before, pid = patient.condition(), await patient.pid_of(3)
    patient.tell(3, "stall")  # a step behind the others, who wait for it
    await patient.stands()
    patient.host("n1").run(["kill", "-STOP", str(pid)])
    patient.untell(3)
    held, clock = patient.steps(), Clock(Phase.PARK)
    failure = await patient.checkpoint().failed()
    assert (failure.where.rank, failure.where.phase) == (3, "PARK"), failure.to_fields()
    await patient.moved(held)
    clock.check()
    await patient.as_before(before)
    await patient.commits()


@pytest.mark.parametrize("phase", PHASES)
async def test_the_shim_of_another_node_is_killed(patient: Patient, phase: Phase) -> None:
    taken = await patient.snapshot()
    before = patient.condition()
    attempt = await patient.checkpoint_in(phase)
    clock = Clock(phase)
    patient.signal("n1", signal.SIGKILL)
    patient.thaw_store()  # or the killed shim does not end
    failure = await attempt.failed()
    assert (failure.where.worker, failure.where.node) == (1, "n1"), failure.to_fields()
    assert "n1 was lost" in failure.what
    await until("that n0 is free", lambda: free(patient, "n0"))
    clock.check()
    patient.go()
    patient.deployment.shims.pop("n1").wait(20)

    patient.start_spare("n1")  # it ends what the dead one left, and n0 sees the end of its peers
    await patient.moved(before.steps, lost=(2, 3))
    assert patient.condition().processes["n0"] == before.processes["n0"]
    await until("n1", patient.attached)
    await patient.restore(taken.snapshot)
    await patient.commits()


@pytest.mark.parametrize("phase", [Phase.HOLD, Phase.PARK, Phase.PERSIST])
async def test_the_shim_of_another_node_stands_still(patient: Patient, phase: Phase) -> None:
    before = patient.condition()
    attempt = await patient.checkpoint_in(phase)
    held, clock = patient.steps(), Clock(phase)
    patient.signal("n1", signal.SIGSTOP)
    try:
        failure = await attempt.failed()
        assert "n1" in failure.what, failure.to_fields()  # lost, or the deadline was shorter
        await until("that n0 is free", lambda: free(patient, "n0"))
        clock.check(SECONDS[Phase.UNDO])
    finally:
        patient.signal("n1", signal.SIGCONT)
    patient.go()
    await patient.moved(held)
    await patient.as_before(before)
    await until("n1", patient.attached)
    await patient.commits()


async def test_a_stopped_job_does_not_wait_for_a_store_that_hangs(patient: Patient) -> None:
    """With --stop the ranks stand while their images are stored; given up, they run at once."""
    before = patient.condition()
    attempt = await patient.checkpoint_in(Phase.PERSIST, stop=True)
    held, given_up = patient.steps(), time.monotonic()
    await patient.client.abort(attempt.events[0].action, "not now")
    await patient.moved(held)
    assert time.monotonic() - given_up < LET_GO_S + SLACK_S
    assert patient.frozen  # nothing of it has been stored or removed yet
    await attempt.failed()
    await patient.as_before(before)
    assert [patient.left_on(node) for node in NODES] == [[], []]
    await patient.commits()


async def test_criu_fails(patient: Patient) -> None:
    before = patient.condition()
    patient.tell_criu("n1", "says")
    attempt = patient.checkpoint()
    await attempt.reached("DUMPING")
    clock = Clock(Phase.DUMP)
    await attempt.failed()
    await patient.as_before(before)
    clock.check()
    await patient.commits()


async def free(patient: Patient, node: str) -> bool:
    """Neither stopped nor locked nor held at a boundary; what it staged is gone."""
    if patient.left_on(node):
        return False
    view = await patient.job()
    ranks = [
        rank
        for worker in (view.workers if view is not None else ())
        for rank in worker.ranks
        if node == NODES[worker.worker]
    ]
    return bool(ranks) and not any(rank.parked for rank in ranks)
