"""The invariants of design/design.md over the history of a run: pure functions, sentences out.

Each takes what was `Seen` and yields one sentence for each thing that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from coordinator.codec import decode
from coordinator.core.errors import StoreError
from coordinator.core.job_policy import JobRecovery
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Cut,
    RestoreRecord,
    RestoreState,
    Snapshot,
    WorkerRecord,
)
from coordinator.core.snapshot import digest_of
from coordinator.store.keys import Keys, Kind
from tests.chaos.seen import Seen
from worker_shim.network.ruleset import table_of

KEYS = Keys()
CLASSES: dict[Kind, Any] = {
    Kind.ATTEMPT: AttemptRecord,
    Kind.RESTORE: RestoreRecord,
    Kind.SNAPSHOT: Snapshot,
    Kind.WORKER: WorkerRecord,
    Kind.RECOVERY: JobRecovery,
}
LOCK_LATE_NS = 300_000_000  # nft's monitor tells a moment later than it happens
ENDED_ATTEMPT = (AttemptState.COMMITTED, AttemptState.ABORTED)
ENDED_RESTORE = (RestoreState.RUNNING, RestoreState.FAILED)


@dataclass(frozen=True)
class Stored:
    """One record as it was put at a revision."""

    revision: int
    key: str
    record: Any


def stored(seen: Seen) -> list[Stored]:
    """Every record that was ever put, in order; raises StoreError for one that cannot be read."""
    found = []
    for event in seen.etcd:
        kind = KEYS.place(event.key).kind
        if event.item is not None and kind in CLASSES:
            record = decode(CLASSES[kind], event.item.value, event.key)
            found.append(Stored(event.revision, event.key, record))
    return found


def finals(seen: Seen, kind: type[Any]) -> dict[str, Any]:
    """The last record of that kind under each key."""
    return {one.key: one.record for one in stored(seen) if isinstance(one.record, kind)}


def snapshots_are_whole(seen: Seen) -> Iterator[str]:
    """Invariant 1, as far as etcd: every rank, one step, one attempt, committed in one go."""
    workers: dict[str, dict[int, WorkerRecord]] = {}
    states: dict[tuple[int, str], AttemptRecord] = {}
    latest = {
        (event.revision, event.item.value.decode())
        for event in seen.etcd
        if event.item is not None and KEYS.place(event.key).kind is Kind.LATEST
    }
    records, first = stored(seen), dict[str, Snapshot]()
    for one in records:
        if isinstance(one.record, AttemptRecord):
            states[one.revision, one.record.attempt] = one.record
    for one in records:
        if isinstance(one.record, WorkerRecord):
            workers.setdefault(KEYS.place(one.key).identity, {})[one.record.worker] = one.record
        if isinstance(one.record, Snapshot):
            snapshot, name = one.record, f"snapshot {one.record.snapshot}"
            before = first.setdefault(one.key, snapshot)
            if before is not snapshot:
                if not snapshot.deleting or replace(snapshot, deleting="") != before:
                    yield f"{name} was changed, and not to be deleted"
                continue
            attempt = states.get((one.revision, snapshot.snapshot))
            if attempt is None or attempt.state is not AttemptState.COMMITTED:
                yield f"{name} was put without its attempt becoming COMMITTED at the same revision"
            if (one.revision, snapshot.snapshot) not in latest:
                yield f"{name} was put without becoming latest at the same revision"
            own = list(workers.get(snapshot.snapshot, {}).values())
            yield from _whole(name, snapshot, own, sorted(seen.steps))


def _whole(
    name: str, snapshot: Snapshot, workers: list[WorkerRecord], world: list[int]
) -> Iterator[str]:
    if digest_of(workers) != snapshot.digest:
        yield f"{name} has workers {sorted(w.worker for w in workers)} that are not its digest's"
    ranks = {rank.rank: rank.boundary for worker in workers for rank in worker.ranks}
    if sorted(ranks) != world:
        yield f"{name} has ranks {sorted(ranks)}, the job has {world}"
    if snapshot.cut is Cut.STEP and set(ranks.values()) - {snapshot.step}:
        yield f"{name} is of step {snapshot.step}, its ranks are at {ranks}"


def snapshots_stay(seen: Seen) -> Iterator[str]:
    """Only what was marked for it first is deleted."""
    deleting: set[str] = set()
    for event in seen.etcd:
        place = KEYS.place(event.key)
        if place.kind is not Kind.SNAPSHOT:
            continue
        if event.item is None:
            if place.identity not in deleting:
                yield f"snapshot {place.identity} was deleted from etcd"
        elif decode(Snapshot, event.item.value, event.key).deleting:
            deleting.add(place.identity)


def latest_moves_forward(seen: Seen) -> Iterator[str]:
    """Invariant 3: only to a snapshot that is newer than the one before."""
    created: dict[str, int] = {}
    at: dict[str, int] = {}
    for one in stored(seen):
        if isinstance(one.record, Snapshot):
            created.setdefault(one.record.snapshot, one.revision)
    for event in seen.etcd:
        place = KEYS.place(event.key)
        if place.kind is not Kind.LATEST:
            continue
        if event.item is None:
            yield f"latest of {place.job} was deleted"
            continue
        name = event.item.value.decode()
        if name not in created or created[name] > event.revision:
            yield f"latest of {place.job} names {name}, which is no snapshot"
        elif created[name] <= at.get(place.job, 0):
            yield f"latest of {place.job} went back to {name}"
        at[place.job] = max(at.get(place.job, 0), created.get(name, 0))


def written_by_the_leader(seen: Seen) -> Iterator[str]:
    """Invariant 3, the epoch: whoever wrote a record led at that revision."""
    lives: dict[str, list[int]] = {}  # leader key -> born, died
    for event in seen.etcd:
        if event.key.startswith(KEYS.leaders):
            if event.item is None:
                lives[event.key][1] = event.revision
            else:
                lives.setdefault(event.key, [event.item.create_revision, 1 << 62])
    before: dict[str, Any] = {}
    for one in stored(seen):
        epoch, earlier = getattr(one.record, "epoch", None), before.get(one.key)
        before[one.key] = one.record
        if epoch is None or (earlier is not None and _only_paid(earlier, one.record)):
            continue
        if isinstance(one.record, Snapshot) and one.record.deleting:
            continue  # it keeps the epoch in which it was committed
        alive = sorted(born for born, died in lives.values() if born <= one.revision < died)
        if not alive or alive[0] != epoch:
            yield (
                f"{one.key} was written at revision {one.revision} in epoch {epoch}; "
                f"the leader was {alive[0] if alive else 'nobody'}"
            )


def _only_paid(before: Any, now: Any) -> bool:
    """A later leader writes down that what an ended action owed is done; the rest stays."""
    ended = getattr(before, "state", None) in (*ENDED_ATTEMPT, *ENDED_RESTORE)
    return ended and set(now.owed) <= set(before.owed) and replace(now, owed=before.owed) == before


def everything_ended_well(seen: Seen) -> Iterator[str]:
    """Invariant 7: nothing is left half-way, and whatever failed says why and names who."""
    committed = {key.rpartition("/")[2] for key in finals(seen, Snapshot)}
    for record in finals(seen, AttemptRecord).values():
        name = f"attempt {record.attempt}"
        if record.state not in ENDED_ATTEMPT:
            yield f"{name} was left {record.state}: {record.reason}"
        if (record.state is AttemptState.COMMITTED) != (record.attempt in committed):
            there = "is" if record.attempt in committed else "is not"
            yield f"{name} is {record.state}, but its snapshot {there} there"
        if record.state is AttemptState.ABORTED:
            yield from _named(name, record)
    for record in finals(seen, RestoreRecord).values():
        name = f"restore {record.restore}"
        if record.state not in ENDED_RESTORE:
            yield f"{name} was left {record.state}: {record.reason}"
        if record.state is RestoreState.FAILED:
            yield from _named(name, record)


def _named(name: str, record: AttemptRecord | RestoreRecord) -> Iterator[str]:
    failure = record.failure
    if not record.reason or failure is None or not failure.what:
        yield f"{name} failed and does not say why"
    elif failure.kind == "DeadlinePassed" and not (failure.node or failure.worker >= 0):
        yield f"{name} waited in vain and does not name for whom: {failure.what}"


def one_incarnation_runs(seen: Seen) -> Iterator[str]:
    """Invariant 6: each rank's steps follow each other, but where a restore has put it back."""
    began = {
        restore.incarnation: restore.snapshot for restore in finals(seen, RestoreRecord).values()
    }
    step_of = {
        one.record.snapshot: one.record.step
        for one in stored(seen)
        if isinstance(one.record, Snapshot)
    }
    for rank, steps in seen.steps.items():
        for before, now in pairwise(steps):
            if now.step == before.step + 1 and now.incarnation >= before.incarnation:
                continue
            name = f"rank {rank} made step {now.step} (incarnation {now.incarnation}, {now.host})"
            after = f"after step {before.step} (incarnation {before.incarnation}, {before.host})"
            if now.incarnation <= before.incarnation:
                yield f"{name} {after}"
            elif now.step != step_of.get(began.get(now.incarnation, "")):
                yield f"{name} {after}; restored was {began.get(now.incarnation, 'nothing')}"


def every_step_is_the_same(seen: Seen) -> Iterator[str]:
    """Restored or not, every step of every rank has the bits of the undisturbed run."""
    for rank, steps in seen.steps.items():
        wrong = [s for s in steps if seen.undisturbed.get((rank, s.step)) != s.digest]
        if wrong:
            yield (
                f"rank {rank}: {len(wrong)} of {len(steps)} steps have other bits than the "
                f"undisturbed run, first step {wrong[0].step} of incarnation {wrong[0].incarnation}"
            )


def nobody_moved_in_a_cut(seen: Seen) -> Iterator[str]:
    """Invariant 2: from the first dump of a cut to the end of the last one all stood, locked."""
    workers = finals(seen, WorkerRecord)
    for snapshot in finals(seen, Snapshot).values():
        name = f"snapshot {snapshot.snapshot}"
        begun = {
            dump.place[1]: dump
            for dump in seen.dumps
            if dump.word == "begins" and dump.verb == "dump" and dump.place[0] == snapshot.snapshot
        }
        members = {
            record.worker
            for key, record in workers.items()
            if KEYS.place(key).identity == snapshot.snapshot
        }
        if set(begun) != members:
            yield f"{name} was committed with dumps of workers {sorted(begun)}"
            continue
        took_s = {worker: seen.dump_s.get((snapshot.snapshot, worker), 0.0) for worker in begun}
        if min(took_s.values()) <= 0:
            yield f"{name}: how long its dumps took is not known: {took_s}"
        first = min(dump.unix_ns for dump in begun.values())
        last = max(d.unix_ns + int(took_s[worker] * 1e9) for worker, d in begun.items())
        for rank, steps in seen.steps.items():
            if moved := [step.step for step in steps if first < step.unix_ns < last]:
                yield f"{name}: rank {rank} made steps {moved} between the first and the last dump"
        for worker, dump in begun.items():
            own = f"{snapshot.job}/{worker}"
            yield from _locked(seen, name, own, dump.node, dump.unix_ns, last)


def _locked(
    seen: Seen, name: str, worker: str, node: str, since_ns: int, until_ns: int
) -> Iterator[str]:
    """The worker's network was locked all the time."""
    table = table_of(worker)
    own = [lock for lock in seen.locks if (lock.node, lock.table) == (node, table)]
    added = [lock.unix_ns for lock in own if lock.added and lock.unix_ns <= since_ns + LOCK_LATE_NS]
    gone = [lock.unix_ns for lock in own if not lock.added and lock.unix_ns <= since_ns]
    if not added or max(gone, default=0) > max(added):
        yield f"{name}: the network of {worker} was not locked on {node} when its dump began"
    for lock in own:
        if not lock.added and since_ns < lock.unix_ns < until_ns:
            early_ms = (until_ns - lock.unix_ns) // 1_000_000
            yield (
                f"{name}: the network of {worker} was unlocked on {node} {early_ms} ms before "
                "the last dump ended"
            )


def nobody_obeys_the_past(seen: Seen) -> Iterator[str]:
    """Invariant 5: a leader of an older epoch is not spoken to after its Welcome."""
    yield from dict.fromkeys(seen.ghosts)


Check = Callable[[Seen], Iterator[str]]
CHECKS: tuple[Check, ...] = (
    snapshots_are_whole,
    snapshots_stay,
    latest_moves_forward,
    written_by_the_leader,
    everything_ended_well,
    one_incarnation_runs,
    every_step_is_the_same,
    nobody_moved_in_a_cut,
    nobody_obeys_the_past,
)


def check(seen: Seen, checks: Iterable[Check] = CHECKS) -> list[str]:
    """Every sentence of every check."""
    try:
        return [sentence for one in checks for sentence in one(seen)]
    except StoreError as error:
        return [f"a record in etcd cannot be read: {error}"]
