"""A restore is given up, in each phase: what it restored goes, what it had not touched runs on."""

from __future__ import annotations

import re
import signal
import time

import pytest

from coordinator.core.model import Phase
from tests.integration.aborts.kit import JOB, NODES, SECONDS, Clock, Patient, eventually
from tests.integration.badluck.kit import Action, until
from worker_shim.agent.run import HANGING_S

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.alone,  # deadlines are measured
]

END_S = 20.0  # an end without a hanging store, on a busy machine
RESTORING = [Phase.FETCH, Phase.CLEAR, Phase.RESTORE, Phase.RELEASE]


@pytest.mark.parametrize("phase", RESTORING)
@pytest.mark.parametrize("cause", ["operator", "deadline"])
async def test_a_restore_is_given_up(patient: Patient, phase: Phase, cause: str) -> None:
    """What was restored goes, what was not touched runs on; the snapshot is as it was."""
    taken = await patient.snapshot()
    before = patient.condition()
    restore = await patient.restore_in(phase)
    clock = Clock(phase)
    try:
        if cause == "operator":
            await patient.client.abort(restore.events[0].action, "not now")
        failure = await restore.failed()
    finally:
        if phase is Phase.RELEASE:
            patient.signal("n1", signal.SIGCONT)
    patient.go()
    assert failure.where.job == JOB, failure.to_fields()
    if cause == "deadline" and phase is not Phase.RELEASE:
        assert (failure.where.worker, failure.where.node) == (1, "n1"), failure.to_fields()
    if phase is Phase.FETCH:
        await patient.as_before(before)
        clock.check(SECONDS[Phase.UNDO])
    else:

        async def gone() -> bool:
            return not any(patient.ranks_on(node) for node in NODES)

        await until("that what was restored is gone", gone)
        clock.check(SECONDS[Phase.UNDO])
        await eventually("both nodes", patient.attached)
        back = await patient.restore(taken.snapshot)
        assert back.restore is not None
        assert back.restore.snapshot == taken.snapshot
    await patient.commits()


async def test_the_shim_of_another_node_is_killed_while_it_restores(patient: Patient) -> None:
    taken = await patient.snapshot()
    restore = await patient.restore_in(Phase.RESTORE)
    clock = Clock(Phase.RESTORE)
    patient.signal("n1", signal.SIGKILL)
    failure = await restore.failed()
    assert (failure.where.worker, failure.where.node) == (1, "n1"), failure.to_fields()
    await until("that n0 has nothing of it", lambda: nothing_on(patient, "n0"))
    clock.check()
    patient.go()
    patient.deployment.shims.pop("n1").wait(20)
    patient.start_spare("n1")
    await eventually("both nodes", patient.attached)
    await patient.restore(taken.snapshot)
    await patient.commits()


async def nothing_on(patient: Patient, node: str) -> bool:
    return patient.ranks_on(node) == 0 and not patient.left_on(node)


async def test_a_shim_ends_although_its_store_hangs(patient: Patient) -> None:
    await patient.snapshot()
    restore = await patient.restore_in(Phase.FETCH)
    patient.signal("n1", signal.SIGTERM)
    shim = patient.deployment.shims["n1"]
    assert shim.wait(HANGING_S + END_S) in (0, 128 + signal.SIGTERM)  # a spare's, a worker's
    failure = await restore.failed()
    assert "n1" in failure.what, failure.to_fields()  # its deadline was over, or n1 left
    assert patient.ranks_on("n1") == 0
    assert "does not answer; leaving all the same" in patient.deployment.log("n1").read_text()


GAP_S_MAX = 0.9  # TCP's first time-out of a connection that was restored is a second
ROUNDS = 3  # of which one is enough: the machine may be busy


async def test_no_rank_sends_before_every_network_is_open(patient: Patient) -> None:
    """One node's shim stands while the other is through with all that it may do alone."""
    taken = await patient.snapshot()
    gaps: list[float] = []
    while len(gaps) < ROUNDS and min(gaps, default=GAP_S_MAX) >= GAP_S_MAX:
        gaps.append(await gap_of_one_that_is_late(patient))
        await eventually("both nodes", patient.attached)
    assert min(gaps) < GAP_S_MAX, gaps
    await patient.restore(taken.snapshot)
    await patient.commits()


async def gap_of_one_that_is_late(patient: Patient) -> float:
    """Seconds from when n0's shim may go on until every rank has stepped, in a restore.

    The ranks of n1 are the ones that send first.
    """
    patient.tell_criu("n1", "wait-restore")
    restore = Action(patient.client.restore(JOB))
    action = await restore.reached("RESTORING")
    await until("n0", lambda: told(patient, "n0", f"RESTORE done .*{action}"))
    patient.signal("n0", signal.SIGSTOP)
    patient.behave()
    await until("that n1's network is open", lambda: opened(patient, "n1"))
    before, began = patient.steps(), time.monotonic()
    patient.signal("n0", signal.SIGCONT)
    await until("a step", lambda: stepped(patient, before))
    gap_s = time.monotonic() - began
    await restore.ended()
    return gap_s


async def told(patient: Patient, node: str, pattern: str) -> bool:
    return re.search(pattern, patient.deployment.log(node).read_text()) is not None


async def opened(patient: Patient, node: str) -> bool:
    listed = patient.host(node).run(["nft", "list", "tables"], check=False).stdout
    return "allstop" not in listed


async def stepped(patient: Patient, before: dict[int, int]) -> bool:
    return all(step > before[rank] for rank, step in patient.steps().items())
