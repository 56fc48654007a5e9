"""Every coordinator, or etcd, is killed: the job runs on by itself; the next leader tidies up."""

from __future__ import annotations

import signal

import pytest

from coordinator.core.model import Phase
from tests.integration.aborts.kit import (
    ADMIT_S,
    MARGIN_S,
    NODES,
    Clock,
    Patient,
    eventually,
    outcome,
)
from tests.integration.badluck.kit import Action, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.alone,  # deadlines are measured
]

UNDO_S = 1.0


def kill_the_plane(patient: Patient) -> None:
    """SIGKILL: nobody says a word; its etcd ends with it."""
    patient.signal("control", signal.SIGKILL)
    plane = patient.deployment.plane
    assert plane is not None
    plane.wait(20)


async def runs_on(patient: Patient, phase: Phase, held: dict[int, int], clock: Clock) -> None:
    """With nobody to order it, within the hold deadline and what the undo takes."""
    await patient.moved(held)
    clock.check(MARGIN_S + UNDO_S)
    await patient.clean_nodes()


async def a_new_leader(patient: Patient, begun: Action) -> str:
    """How the action ended under the next coordinator."""
    patient.start_plane()
    action = begun.events[0].action
    ends = ("COMMITTED", "ABORTED", "RUNNING", "FAILED")

    async def ended() -> bool:
        return await state_of(patient, action) in ends

    await eventually("the end of what was begun", ended)
    await outcome(begun)  # whoever followed it has lost sight of it, or heard its end
    return await state_of(patient, action)


async def state_of(patient: Patient, action: str) -> str:
    shown = await patient.client.show(action)
    record = shown.restore or shown.attempt
    if record is None:
        assert shown.snapshot is not None
        return "COMMITTED"
    return str(record.state)


@pytest.mark.parametrize("phase", [Phase.HOLD, Phase.PARK, Phase.DUMP, Phase.PERSIST])
async def test_coordinators_are_killed(patient: Patient, phase: Phase) -> None:
    """n0 is through with the phase and n1 is not: both are held, for different orders."""
    before = patient.condition()
    attempt = await patient.checkpoint_in(phase)
    held, clock = patient.steps(), Clock(phase)
    kill_the_plane(patient)
    patient.go()
    await runs_on(patient, phase, held, clock)
    await patient.as_before(before)
    state = await a_new_leader(patient, attempt)
    assert state == "ABORTED" or phase is Phase.PERSIST
    await patient.whole()
    await patient.as_before(before)
    await patient.commits()


async def test_coordinators_are_killed_between_dump_and_cut(patient: Patient) -> None:
    """Everybody has dumped and said so to nobody: no RESUME will come."""
    before = patient.condition()
    attempt = await patient.checkpoint_in(Phase.DUMP)
    held, clock = patient.steps(), Clock(Phase.DUMP)
    patient.signal("control", signal.SIGSTOP)  # it hears no answer any more
    patient.go()
    await until("the dump of n1", lambda: patient.dumped("n1"))
    assert patient.steps() == held
    kill_the_plane(patient)
    await runs_on(patient, Phase.DUMP, held, clock)
    await patient.as_before(before)
    assert await a_new_leader(patient, attempt) == "ABORTED"
    await patient.whole()
    await patient.commits()


@pytest.mark.parametrize("phase", [Phase.PARK, Phase.DUMP])
async def test_etcd_is_killed(patient: Patient, phase: Phase) -> None:
    before = patient.condition()
    attempt = await patient.checkpoint_in(phase)
    held, clock = patient.steps(), Clock(phase)
    etcd = patient.etcd_pid()
    patient.lab.control.run(["kill", "-KILL", etcd])
    patient.go()
    await runs_on(patient, phase, held, clock)
    await patient.as_before(before)
    plane = patient.deployment.plane
    assert plane is not None
    plane.wait(20)  # without its etcd it can decide nothing
    assert await a_new_leader(patient, attempt) == "ABORTED"
    await patient.whole()
    await patient.commits()


@pytest.mark.parametrize("phase", [Phase.FETCH, Phase.CLEAR, Phase.RESTORE])
async def test_coordinators_are_killed_while_it_restores(patient: Patient, phase: Phase) -> None:
    """Before CLEAR the job is untouched; after it nobody runs half of it."""
    taken = await patient.snapshot()
    before = patient.condition()
    restore = await patient.restore_in(phase)
    clock = Clock(phase)
    kill_the_plane(patient)
    patient.go()
    if phase is Phase.FETCH:
        await patient.as_before(before)
    else:

        async def put_away() -> bool:
            return not any(patient.ranks_on(node) for node in NODES)

        await until("that what was restored is gone", put_away)
        clock.check(2 * MARGIN_S + ADMIT_S + UNDO_S)
    state = await a_new_leader(patient, restore)
    assert state == "FAILED"
    if phase is Phase.FETCH:
        await patient.whole()
        await patient.as_before(before)
    else:
        assert [patient.ranks_on(node) for node in NODES] == [0, 0]
        await eventually("both nodes", patient.attached)
        await patient.restore(taken.snapshot)
    await patient.commits()
