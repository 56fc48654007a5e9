"""From the cut to the commit: the job goes on while its images are stored, then one transaction.

After the cut nothing that happens to a node endangers what is stored already; after the commit
nothing is undone. Every function named `on_...` is the arrow of one event.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.core import aborting
from coordinator.core.agreement import check_at
from coordinator.core.attempt import Attempt
from coordinator.core.commands import Command, CommitSnapshot, PutAttempt
from coordinator.core.connections import leaving
from coordinator.core.drain_records import of_drain
from coordinator.core.errors import (
    AllstopError,
    AttemptFailed,
    BugError,
    DeadlinePassed,
    Where,
)
from coordinator.core.events import (
    NodeLeft,
    NodeLost,
    OrderFailed,
    Persisted,
    Resumed,
    SnapshotCommitted,
    Stopped,
    TimePassed,
    WorkerExited,
)
from coordinator.core.failures import listed
from coordinator.core.model import AttemptState, Cut, Phase, WorkerRecord
from coordinator.core.snapshot import assemble

S = AttemptState


def require_cut(a: Attempt, now: float) -> None:
    """Raise BugError unless every member has dumped while no hold can have run out."""
    missing = sorted(a.members.keys() - a.records.keys())
    if missing or not a.members:
        raise BugError(f"{a.id} would be cut without workers {missing}", where=Where(job=a.job))
    if now >= a.held_until:
        raise BugError(f"{a.id} would be cut when a hold may be over", where=Where(job=a.job))


def cut(a: Attempt, now: float) -> list[Command]:
    """CUT: the images are one consistent state, and the job may run whatever happens next."""
    require_cut(a, now)
    a.close_round(Phase.DUMP, now)
    commands: list[Command] = []
    where = f"at step {a.target}" if a.cut is Cut.STEP else "where they were"
    if not a.stop:
        sent = a.open_round(Phase.RESUME, a.policy.resume_s, now, capped=False)
        commands += a.orders(sent, now, cut=a.cut, target=a.target)
    persist = a.open_round(
        Phase.PERSIST, a.policy.persist_s, now, holds=a.stop, hold_extra_s=stop_extra_s(a)
    )
    for note in leaving(a.records.values()):
        a.note(note)
    goes_on = "they stay stopped" if a.stop else "the job goes on"
    a.move(S.PERSISTING, f"cut: all {len(a.members)} workers are dumped {where}; {goes_on}")
    a.cut_recorded = True
    commands.append(PutAttempt(a.record()))
    commands += a.orders(persist, now, cut=a.cut, target=a.target, base=a.base)
    return [*commands, a.announce(now)]


def stop_extra_s(a: Attempt) -> float:
    """How much longer than PERSIST a worker is held that is to stop: until STOP has come."""
    return a.policy.commit_s + a.policy.stop_s if a.stop else 0.0


def on_resumed(a: Attempt, event: Resumed, now: float) -> list[Command]:
    sent = a.accept(event, Phase.RESUME)
    if sent is None:
        return []
    a.held_ms[event.worker] = event.held_ms
    sent.take(event.worker)
    return _toward_commit(a, now) or a.progress(sent, now)


def on_persisted(a: Attempt, event: Persisted, now: float) -> list[Command]:
    sent = a.accept(event, Phase.PERSIST)
    if sent is None:
        return []
    member = sent.awaited[event.worker]
    try:
        check_record(a, event.record, event.worker, member.node, "PERSIST")
        _check_stored(event.record, member.node)
    except AllstopError as error:
        return aborting.abort_for(a, error, now)
    a.records[event.worker] = event.record
    a.persisted.add(event.worker)
    sent.take(event.worker)
    return _toward_commit(a, now) or a.progress(sent, now)


def _toward_commit(a: Attempt, now: float) -> list[Command]:
    """Close what is complete; commit when everything is stored and every resume has been told."""
    for phase in (Phase.RESUME, Phase.PERSIST):
        if phase in a.rounds and a.rounds[phase].complete:
            a.close_round(phase, now)
    if a.rounds:
        return []
    return _commit(a, now)


def require_stored(a: Attempt) -> None:
    """Raise BugError unless there was a cut, and every member's images of it are stored."""
    if not a.cut_recorded or a.persisted != a.members.keys() or a.records.keys() != a.persisted:
        missing = sorted(a.members.keys() - a.persisted)
        raise BugError(
            f"{a.id} would be committed without workers {missing}", where=Where(job=a.job)
        )


def _commit(a: Attempt, now: float) -> list[Command]:
    require_stored(a)
    records = [replace(r, held_ms=a.held_ms.get(r.worker, r.held_ms)) for r in a.records.values()]
    a.snapshot = assemble(
        attempt=a.id,
        job=a.job,
        epoch=a.epoch,
        incarnation=a.incarnation,
        world_size=a.world_size,
        target=a.target,
        cut=a.cut,
        records=records,
        unix_s=a.unix_s + (now - a.started),
        suspect=a.suspicion(records),
    )
    if a.snapshot.suspect:
        a.note(f"the snapshot is suspect: {a.snapshot.suspect}")
    a.open_round(Phase.COMMIT, a.policy.commit_s, now, capped=False, whom="the store")
    a.move(S.COMMITTING, f"{a.snapshot.image_bytes} bytes of {len(records)} workers are stored")
    stored = a.record(S.STOPPING if a.stop else S.COMMITTED)
    stored = replace(stored, reason=_committed(a, "committed"))
    return [CommitSnapshot(a.snapshot, stored), a.announce(now)]


def on_committed(a: Attempt, event: SnapshotCommitted, now: float) -> list[Command]:
    a.close_round(Phase.COMMIT, now)
    if not a.stop:
        return finish(a, "committed", now)
    alive = [member for member in a.in_reach() if member.worker not in a.stopped]
    if not alive:
        return finish(a, "committed, and nobody is left to be stopped", now)
    sent = a.open_round(Phase.STOP, a.policy.stop_s, now, capped=False, members=alive)
    a.move(S.STOPPING, "committed; the workers are told to stop")
    told = a.orders(sent, now, reason=f"stopped with snapshot {a.id}", stay=of_drain(a.cause))
    return [*told, a.announce(now)]


def on_stopped(a: Attempt, event: Stopped, now: float) -> list[Command]:
    sent = a.accept(event, Phase.STOP)
    if sent is None:
        return []
    a.stopped.add(event.worker)
    sent.take(event.worker)
    return settle_stop(a, now)


def settle_stop(a: Attempt, now: float) -> list[Command]:
    """End the attempt when everyone has stopped."""
    sent = a.rounds[Phase.STOP]
    return finish(a, "committed, and the job is stopped", now) if sent.complete else []


def finish(a: Attempt, reason: str, now: float) -> list[Command]:
    """The attempt is over, with its snapshot; who is still to be stopped is recorded."""
    a.close_all(now)
    a.move(S.COMMITTED, a.with_notes(_committed(a, reason)))
    record = a.record()
    told = a.announce(now, last=True, attempt=record, snapshot=a.snapshot)
    return [PutAttempt(record), told] if a.stop else [told]


def _committed(a: Attempt, reason: str) -> str:
    at = f" at step {a.target}" if a.target else ""
    return f"snapshot {a.id}{at} is {reason}"


# -- trouble after the cut ------------------------------------------------------------------------


def on_lost(a: Attempt, event: NodeLost | NodeLeft, now: float) -> list[Command]:
    unstored = [w for w in a.workers_on(event.node) if w not in a.persisted]
    if unstored:
        return aborting.on_lost(a, event, now)
    workers = a.lose(event)
    a.note(f"{event.node} was lost after {listed([f'worker {w}' for w in workers])} was stored")
    for sent in a.rounds.values():
        for worker in workers:
            sent.awaited.pop(worker, None)
    return _toward_commit(a, now)


def on_exited(a: Attempt, event: WorkerExited, now: float) -> list[Command]:
    a.note(f"worker {event.worker} on {event.node} exited with {event.exit_code} after the cut")
    a.stopped.add(event.worker)
    if Phase.RESUME in a.rounds:
        a.rounds[Phase.RESUME].awaited.pop(event.worker, None)
    return _toward_commit(a, now)


def on_failed(a: Attempt, event: OrderFailed, now: float) -> list[Command]:
    if event.phase is not Phase.RESUME:
        return aborting.on_failed(a, event, now)
    sent = a.accept(event, Phase.RESUME)
    if sent is None:
        return []
    a.note(f"{sent.awaited[event.worker]} could not be resumed: {event.failure.what}")
    sent.take(event.worker)
    return _toward_commit(a, now)


def on_time(a: Attempt, event: TimePassed, now: float) -> list[Command]:
    for sent in a.overdue(now):
        if sent.phase is Phase.PERSIST:
            return aborting.abort(a, a.late(sent, now, DeadlinePassed), now)
        for member in sent.awaited.values():
            a.note(f"{member} has not said within {now - sent.sent_at:.1f} s that it runs again")
        sent.awaited.clear()
    return _toward_commit(a, now)


def on_commit_late(a: Attempt, event: TimePassed, now: float) -> list[Command]:
    """Nobody may guess: the server reads until it knows, or its lease ends and the next does."""
    if not a.overdue(now):
        return []
    sent = a.rounds[Phase.COMMIT]
    sent.deadline = now + a.policy.commit_s
    a.move(
        S.COMMITTING, f"the store has been silent about the commit for {now - sent.sent_at:.1f} s"
    )
    return [a.announce(now)]


def on_gone_while_committing(a: Attempt, event: NodeLost | NodeLeft, now: float) -> list[Command]:
    """Everything is in the store: the node is only remembered as out of reach."""
    for worker in a.lose(event):
        a.note(f"{a.members[worker]} went out of reach while the snapshot was committed")
    return []


def on_exited_while_committing(a: Attempt, event: WorkerExited, now: float) -> list[Command]:
    """Its images are stored; STOP must not come to whatever is launched under its number."""
    a.stopped.add(event.worker)
    return []


def on_gone_while_stopping(a: Attempt, event: NodeLost | NodeLeft, now: float) -> list[Command]:
    sent = a.rounds[Phase.STOP]
    for worker in a.lose(event):
        if sent.awaited.pop(worker, None):
            a.note(f"{a.members[worker]} went out of reach before it said that it had stopped")
    return settle_stop(a, now)


def on_exited_while_stopping(a: Attempt, event: WorkerExited, now: float) -> list[Command]:
    a.stopped.add(event.worker)
    a.rounds[Phase.STOP].awaited.pop(event.worker, None)
    a.move(S.STOPPING, f"worker {event.worker} on {event.node} has ended")
    return settle_stop(a, now)


def on_stop_failed(a: Attempt, event: OrderFailed, now: float) -> list[Command]:
    sent = a.accept(event, event.phase)
    if sent is None:
        return []
    a.note(f"{sent.awaited[event.worker]} could not be stopped: {event.failure.what}")
    sent.take(event.worker)
    return settle_stop(a, now)


def on_stop_late(a: Attempt, event: TimePassed, now: float) -> list[Command]:
    for sent in a.overdue(now):
        for member in sent.awaited.values():
            a.note(f"{member} has not said within {now - sent.sent_at:.1f} s that it has stopped")
        return finish(a, "committed", now)
    return []


# -- checks ----------------------------------------------------------------------------------------


def check_record(a: Attempt, record: WorkerRecord, worker: int, node: str, phase: str) -> None:
    """Raise AttemptFailed unless a record is that worker's, with every rank at the target."""
    if (record.job, record.worker, record.node) != (a.job, worker, node):
        raise AttemptFailed(
            f"worker {worker} on {node} sent the record of worker {record.worker} of {record.job} "
            f"on {record.node}",
            where=Where(worker=worker, node=node, phase=phase),
            advice="look at the shim of that node; it mixes its workers up",
        )
    if a.cut is Cut.STEP:
        held = record.ranks if a.adopted else a.answers[worker]  # an heir was not told at HOLD
        check_at(a.target, worker, node, held, record.ranks, phase)


def _check_stored(record: WorkerRecord, node: str) -> None:
    if not record.manifest or not record.manifest_digest:
        raise AttemptFailed(
            f"worker {record.worker} on {node} says that it is stored but names no manifest",
            where=Where(worker=record.worker, node=node, phase="PERSIST"),
            advice="look at the image store of that node",
        )
