"""Writes: one of a job after another, each answered; lost answers settled by looking."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core import commands, events
from coordinator.core.errors import AllstopError, Fenced, Overtaken, StoreError
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Cut,
    JobRecord,
    Plan,
    RankState,
    RestoreRecord,
    RestoreState,
    Snapshot,
    WorkerState,
)
from coordinator.core.snapshot import digest_of
from coordinator.server.writer import LANE_MAX, PUT_TRIES, Writer
from coordinator.store.memory import Fault, MemoryStore
from tests.support.fake_node import facts_of, worker_record

JOB = JobRecord("llm", workers=1, world_size=1, incarnation=1)
ATTEMPT = AttemptRecord(
    attempt="llm-20261129-120000-aaaaaa",
    job="llm",
    state=AttemptState.ADMITTING,
    epoch=2,
    incarnation=1,
    cut=Cut.STEP,
    stop=False,
    target=0,
    deadline_s=60,
    requested_unix_s=1000.0,
    reason="asked",
)
RANK = RankState(rank=0, local_rank=0, pid=1001, boundary=7, parked=True)
WORKER = WorkerState("llm", 0, 1, "held", 1, 1000, 1, ranks=(RANK,))
RECORD = replace(
    worker_record(facts_of("node-1"), WORKER), manifest="llm/a/0", manifest_digest="0" * 64
)
SNAPSHOT = Snapshot(
    snapshot=ATTEMPT.attempt,
    job="llm",
    epoch=2,
    incarnation=1,
    world_size=1,
    step=7,
    cut=Cut.STEP,
    workers=(RECORD,),
    image_bytes=RECORD.image_bytes,
    digest=digest_of((RECORD,)),
    committed_unix_s=9.0,
)
RESTORE = RestoreRecord(
    restore="llm-20261129-130000-bbbbbb",
    job="llm",
    snapshot=SNAPSHOT.snapshot,
    state=RestoreState.RUNNING,
    epoch=2,
    incarnation=2,
    plan=Plan("llm", SNAPSHOT.snapshot, (), ()),
    deadline_s=60,
    requested_unix_s=1000.0,
    reason="it runs again",
)
COMMIT = commands.CommitSnapshot(SNAPSHOT, replace(ATTEMPT, state=AttemptState.COMMITTED))


class Desk:
    """A writer over a memory store, and what it told."""

    def __init__(self, store: Any = None) -> None:
        self.store = store or MemoryStore()
        self.told: list[events.Event] = []
        self.stopped: list[AllstopError] = []
        self.writer = Writer(
            self.store,
            self.told.append,
            self.stopped.append,
            lambda job: JOB,
            settle_pause_s=0.0,
            write_deadline_s=0.5,
        )

    async def write(self, *written: commands.Command) -> list[events.Event]:
        for command in written:
            self.writer.write(command)
        await self.writer.drain(5.0)
        return self.told


async def committed(fault: Fault | None, key_part: str = "/snapshots/") -> Desk:
    """A desk whose commit met this fault."""
    desk = Desk()
    await desk.write(commands.PutAttempt(ATTEMPT))
    if fault is not None:
        desk.store.memory.fail_next(fault, key_part)
    await desk.write(COMMIT)
    return desk


async def test_a_job_is_recorded_before_its_first_attempt() -> None:
    desk = Desk()
    assert await desk.write(commands.PutAttempt(ATTEMPT)) == [
        events.AttemptStored(ATTEMPT.attempt, "ADMITTING")
    ]
    loaded = await desk.store.load()
    assert loaded.jobs == (JOB,)
    assert loaded.attempts == (ATTEMPT,)


async def test_a_commit_that_went_through() -> None:
    desk = await committed(None)
    assert desk.told[-1] == events.SnapshotCommitted(ATTEMPT.attempt)
    assert (await desk.store.snapshot(ATTEMPT.attempt)).step == 7


@pytest.mark.parametrize(
    ("fault", "there"),
    [
        (Fault.REFUSED, False),
        (Fault.LOST_NOT_APPLIED, False),
        (Fault.LOST_APPLIED, True),
        (Fault.LOST_APPLIED_LATER, False),
    ],
)
async def test_a_commit_whose_answer_was_lost_is_settled(fault: Fault, there: bool) -> None:
    desk = await committed(fault)
    desk.store.memory.deliver()  # what was still under way arrives now: it must not count
    answer = desk.told[-1]
    found = (await desk.store.show(ATTEMPT.attempt)).snapshot
    assert (found is not None) == there
    if there:
        assert answer == events.SnapshotCommitted(ATTEMPT.attempt)
    else:
        assert isinstance(answer, events.CommitRefused)
        assert answer.failure.definite
    assert len(desk.told) == 2


async def test_settling_goes_on_while_the_store_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    await desk.write(commands.PutAttempt(ATTEMPT))
    desk.store.memory.fail_next(Fault.LOST_APPLIED, "/snapshots/")
    real, failures = desk.store.find_commit, [1, 2, 3]

    async def flaky(job: str, attempt: str) -> Snapshot | None:
        if failures:
            failures.pop()
            raise TimeoutError
        found: Snapshot | None = await real(job, attempt)
        return found

    monkeypatch.setattr(desk.store, "find_commit", flaky)
    await desk.write(COMMIT)
    assert not failures
    assert desk.told[-1] == events.SnapshotCommitted(ATTEMPT.attempt)


@pytest.mark.parametrize("there", [True, False])
async def test_a_commit_that_broke_in_some_other_way_is_settled_too(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    desk = Desk()
    await desk.write(commands.PutAttempt(ATTEMPT))
    real = desk.store.commit

    async def broken(snapshot: Snapshot, record: AttemptRecord) -> None:
        if there:
            await real(snapshot, record)
        raise RuntimeError("the channel was closed")

    monkeypatch.setattr(desk.store, "commit", broken)
    await desk.write(COMMIT)
    answer = desk.told[-1]
    if there:
        assert answer == events.SnapshotCommitted(ATTEMPT.attempt)
    else:
        assert isinstance(answer, events.CommitRefused)
        assert answer.failure.definite
        assert "the channel was closed" in answer.failure.what


async def test_a_commit_that_cannot_be_looked_for_is_not_refused_for_sure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    await desk.write(commands.PutAttempt(ATTEMPT))

    async def broken(*_: object) -> None:
        raise RuntimeError("the channel was closed")

    monkeypatch.setattr(desk.store, "commit", broken)
    monkeypatch.setattr(desk.store, "find_commit", broken)
    await desk.write(COMMIT)
    answer = desk.told[-1]
    assert isinstance(answer, events.CommitRefused)
    assert not answer.failure.definite


@pytest.mark.parametrize(
    ("definite", "failures", "tries"),
    [(False, 1, 2), (False, 99, PUT_TRIES), (True, 1, 1)],
)
async def test_a_record_is_put_again_while_nobody_knows_whether_it_arrived(
    monkeypatch: pytest.MonkeyPatch, definite: bool, failures: int, tries: int
) -> None:
    desk, tried = Desk(), [0]

    async def flaky(record: RestoreRecord) -> None:
        tried[0] += 1
        if tried[0] <= failures:
            raise StoreError("no leader", definite=definite)

    monkeypatch.setattr(desk.store, "put_restore", flaky)
    (told,) = await desk.write(commands.PutRestore(replace(RESTORE, state=RestoreState.CLEARING)))
    assert tried == [tries]
    assert isinstance(told, events.RestoreStored if tries > failures else events.StoreRefused)


@pytest.mark.parametrize(
    ("second", "definite", "tries"),
    [(StoreError, False, PUT_TRIES), (Overtaken, True, 2)],
)
async def test_what_a_later_try_surely_did_not_do_an_earlier_one_may_have_done(
    monkeypatch: pytest.MonkeyPatch, second: type[StoreError], definite: bool, tries: int
) -> None:
    desk, tried = Desk(), [0]

    async def flaky(record: AttemptRecord) -> None:
        tried[0] += 1
        if tried[0] == 1:
            raise StoreError("the answer was lost", definite=False)
        raise second("no connection")

    monkeypatch.setattr(desk.store, "put_attempt", flaky)
    (told,) = await desk.write(commands.PutAttempt(ATTEMPT))
    assert isinstance(told, events.StoreRefused)
    assert (told.failure.definite, tried) == (definite, [tries])


async def test_an_admission_whose_answer_was_lost_is_asked_for_until_it_is_known() -> None:
    desk = await committed(None)
    admitting = replace(RESTORE, state=RestoreState.ADMITTING)
    for fault in (Fault.LOST_NOT_APPLIED, Fault.REFUSED, Fault.REFUSED):
        desk.store.memory.fail_next(fault, "/restores/")
    told = await desk.write(commands.AdmitRestore(admitting, 1))
    assert told[-1] == events.RestoreAdmitted(RESTORE.restore)
    other = replace(admitting, restore="llm-20261129-130000-cccccc")
    told = await desk.write(commands.AdmitRestore(other, 1))
    assert isinstance(told[-1], events.StoreRefused)
    assert told[-1].failure.definite


async def test_a_refused_attempt_says_so() -> None:
    desk = Desk()
    for _ in range(PUT_TRIES):
        desk.store.memory.fail_next(Fault.LOST_NOT_APPLIED, "/attempts/")
    (told,) = await desk.write(commands.PutAttempt(ATTEMPT))
    assert isinstance(told, events.StoreRefused)
    assert (told.action, told.failure.definite) == (ATTEMPT.attempt, False)
    assert told.failure.job == "llm"


async def test_a_replaced_leader_stops_and_says_nothing_to_the_core() -> None:
    desk = Desk()
    desk.store.fence.lose("another came")
    assert await desk.write(commands.PutAttempt(ATTEMPT)) == []
    assert [type(why) for why in desk.stopped] == [Fenced]


async def test_writes_of_a_job_keep_their_order() -> None:
    states = [AttemptState.ADMITTING, AttemptState.HOLDING, AttemptState.PARKING]
    desk = Desk()
    told = await desk.write(
        *(commands.PutAttempt(replace(ATTEMPT, state=state)) for state in states)
    )
    assert [event.state for event in told if isinstance(event, events.AttemptStored)] == states


async def test_a_run_is_begun_above_what_the_store_has() -> None:
    desk = Desk()
    fresh = JobRecord("llm", workers=2, world_size=0, incarnation=1)
    assert await desk.write(commands.BeginRun(fresh, 0)) == [events.RunBegun(fresh)]
    again = await desk.write(commands.BeginRun(fresh, 0))
    assert again[-1] == events.RunBegun(replace(fresh, incarnation=2))
    assert (await desk.store.load()).jobs == (replace(fresh, incarnation=2),)


async def test_a_run_that_is_not_recorded_says_so() -> None:
    desk = Desk()
    desk.store.memory.fail_next(Fault.REFUSED, "/jobs/")
    (told,) = await desk.write(commands.BeginRun(JOB, 0))
    assert isinstance(told, events.RunRefused)
    assert (told.job, told.failure.definite) == ("llm", True)
    desk.store.fence.lose("another came")
    assert await desk.write(commands.BeginRun(JOB, 0)) == [told]
    assert [type(why) for why in desk.stopped] == [Fenced]


class Deaf:
    """A store that never answers."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def never(*_: object) -> None:
            await asyncio.Event().wait()

        return never


async def test_a_store_that_never_answers_is_a_bounded_and_indefinite_error() -> None:
    desk = Desk(Deaf())
    (told,) = await desk.write(commands.PutAttempt(replace(ATTEMPT, state=AttemptState.HOLDING)))
    assert isinstance(told, events.StoreRefused)
    assert not told.failure.definite


async def test_a_flood_of_writes_is_refused_not_queued() -> None:
    desk = Desk(Deaf())
    for _ in range(LANE_MAX + 2):
        desk.writer.write(commands.PutAttempt(ATTEMPT))
    refused = [event for event in desk.told if isinstance(event, events.StoreRefused)]
    assert len(refused) == 2
    assert all(event.failure.definite for event in refused)
    await desk.writer.close()


async def test_nodes_are_published_and_forgotten() -> None:
    desk = Desk()
    for index in range(3):
        desk.writer.publish(facts_of(f"node-{index}"))
    desk.writer.forget("node-1")
    await desk.writer.drain(5.0)
    assert {facts.node for facts in await desk.store.nodes()} == {"node-0", "node-2"}


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_NOT_APPLIED, Fault.LOST_APPLIED])
async def test_how_an_action_ended_is_put_until_it_is_stored(fault: Fault) -> None:
    """Else the next leader undoes again what was over, and the job may have gone on since."""
    desk = Desk()
    ended = replace(ATTEMPT, state=AttemptState.ABORTED, reason="it was late")
    await desk.write(commands.PutAttempt(ATTEMPT))
    for _ in range(2 * PUT_TRIES):
        desk.store.memory.fail_next(fault, "/attempts/")
    await desk.write(commands.PutAttempt(ended))
    assert isinstance(desk.told[-1], events.StoreRefused)
    await desk.writer.drain(5.0)
    shown = await desk.store.show(ATTEMPT.attempt)
    assert shown.attempt == ended


async def test_a_state_on_the_way_is_not_put_later() -> None:
    desk = Desk()
    await desk.write(commands.PutAttempt(ATTEMPT))
    desk.store.memory.fail_next(Fault.REFUSED, "/attempts/")
    await desk.write(commands.PutAttempt(replace(ATTEMPT, state=AttemptState.PERSISTING)))
    await desk.writer.drain(5.0)
    shown = await desk.store.show(ATTEMPT.attempt)
    assert shown.attempt == ATTEMPT
