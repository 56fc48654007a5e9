"""Port of the store: what must survive the coordinator, in the domain's words.

Reading is open to everyone. Each write is one transaction under the leader's epoch: it compares
the leader's key and the revision at which this store last saw the record, then puts. So a leader
that was replaced changes nothing, and nothing is overwritten unseen.

Errors of every method:

    Fenced                      another leader came, or our lease may have run out: step down
    StoreError(definite=True)   it surely did not happen: refused, no connection, record changed
    StoreError(definite=False)  the answer was lost: look (`find_commit`, `show`), then decide

Nothing here is repeated by itself once it may have reached etcd.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.core.drain_records import DrainRecord
from coordinator.core.errors import StoreError
from coordinator.core.job_policy import JobHistory, JobPolicy, JobRecovery
from coordinator.core.kept import KeptImages, Retention
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    JobRecord,
    NodeFacts,
    RestoreRecord,
    RestoreState,
    Snapshot,
    WorkerRecord,
)
from coordinator.core.timelines import Timeline

ENDED_ATTEMPT = frozenset({AttemptState.COMMITTED, AttemptState.ABORTED})
ENDED_RESTORE = frozenset({RestoreState.RUNNING, RestoreState.FAILED})


@dataclass(frozen=True)
class Loaded:
    """Everything a new leader needs, at one revision."""

    revision: int
    jobs: tuple[JobRecord, ...]
    attempts: tuple[AttemptRecord, ...]  # those that have not ended, or are owed something
    restores: tuple[RestoreRecord, ...]  # those that have not ended, or are owed something
    damaged: tuple[StoreError, ...] = ()  # values that cannot be read; each names its key
    latest_unix_s: Mapping[str, float] = field(default_factory=dict)  # by job; only `load` fills it
    recent: tuple[AttemptRecord, ...] = ()  # the last committed ones of each job, oldest first
    replaced: tuple[RestoreRecord, ...] = ()  # the last one of each job, where that has ended
    policies: tuple[JobPolicy, ...] = ()
    histories: tuple[JobHistory, ...] = ()
    recoveries: tuple[JobRecovery, ...] = ()
    drains: tuple[DrainRecord, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()  # all, without workers, in the order of their commits


@dataclass(frozen=True)
class Changed:
    """One record that was put or deleted by whoever leads."""

    revision: int
    key: str
    record: JobRecord | AttemptRecord | RestoreRecord | Snapshot | NodeFacts | None  # None: deleted
    damaged: StoreError | None = None  # the new value cannot be read; `record` is None then


@dataclass(frozen=True)
class Weighed:
    """What becomes of attempts that are in an image store."""

    dead: tuple[str, ...]  # over, and no snapshot
    unknown: tuple[str, ...]  # no record of them is here
    keep: tuple[KeptImages, ...]  # images of every snapshot that stays


@dataclass(frozen=True)
class Shown:
    """What the store has under one id."""

    snapshot: Snapshot | None = None
    attempt: AttemptRecord | None = None
    restore: RestoreRecord | None = None
    timeline: Timeline | None = None  # of an attempt or restore that has ended


class Store(Protocol):
    """What must survive. One contract test runs against memory and against a real etcd."""

    async def load(self) -> Loaded:
        """Read all jobs and all unfinished work at one revision; remembers the revisions seen.

        A damaged value is reported in `damaged` and its record left out: one bad key must not keep
        all jobs without a leader, and writing it is refused since its revision was not seen.
        """

    async def put_job(self, record: JobRecord) -> None:
        """Create or change a job; `latest` and `retention` are left as they are.

        `incarnation` never gets lower.
        """

    async def begin_run(self, record: JobRecord, old_incarnation: int) -> JobRecord:
        """Record a new run of a job, under an incarnation above `old_incarnation` and the stored.

        Makes a job that is not there yet. Returns the record as it is now, `latest` left out.
        Asking again after a lost answer gives a still higher incarnation.
        """

    async def put_attempt(self, record: AttemptRecord) -> None:
        """Write an attempt's record; a committed attempt never goes back to ABORTING or ABORTED."""

    async def put_workers(self, job: str, attempt: str, records: Sequence[WorkerRecord]) -> None:
        """Write what each worker put into the attempt, in batches; `commit` writes what is missing.

        A crash half-way leaves worker records of an attempt that nothing refers to.
        """

    async def commit(self, snapshot: Snapshot, record: AttemptRecord) -> bool:
        """The one transaction: snapshot, `latest`, attempt COMMITTED (or STOPPING).

        Worker records are written before. Committing the same snapshot again is a success.
        `latest` moves only to a snapshot whose attempt began later, by the store's own count:
        clocks may be set back. Returns whether it is this one now. Refused when the job's
        incarnation is not the snapshot's; a job that is not in the store yet is made from the
        snapshot. With `definite=False` ask `find_commit` until it answers.
        """

    async def find_commit(self, job: str, attempt: str) -> Snapshot | None:
        """Settle a commit whose answer was lost: the snapshot, or None when it never will be there.

        Before it says None it moves the attempt's revision on, so that a commit still under
        way in etcd cannot be applied afterwards.
        """

    async def admit_restore(self, record: RestoreRecord, old_incarnation: int) -> None:
        """Write the restore's record and raise the job's incarnation from `old_incarnation`.

        Of two restores at once one gets StoreError(definite=True). NotFound when the job or the
        snapshot is not in the store. With `definite=False` call it again with the same record:
        if it had arrived, that is a success.
        """

    async def put_restore(self, record: RestoreRecord) -> None:
        """Write a later state of a restore."""

    async def snapshots(self, job: str) -> tuple[Snapshot, ...]:
        """All snapshots of a job, oldest first, `workers` left empty (see `snapshot`).

        A damaged one is left out; StoreError when all of them are.
        """

    async def listed(self, job: str) -> tuple[tuple[Snapshot, ...], tuple[StoreError, ...]]:
        """The same, and beside it what cannot be read; each error names its key."""

    async def snapshot(self, snapshot: str, job: str = "") -> Snapshot:
        """One snapshot with its workers; without `job` all jobs are searched. Raises NotFound."""

    async def show(self, identity: str, job: str = "") -> Shown:
        """Snapshot, attempt, restore and timeline of that id; without `job` all are searched.

        Raises NotFound. A timeline that cannot be read is left out: nothing depends on it.
        """

    async def put_policy(self, policy: JobPolicy) -> None:
        """Set when a job is saved by itself; the job need not be there yet."""

    async def put_history(self, history: JobHistory) -> None:
        """Keep what was seen of a job's failures; nothing depends on it, the newest wins."""

    async def put_recovery(self, record: JobRecovery) -> None:
        """Keep where the recovery of a job stands; the newest wins."""

    async def put_drain(self, record: DrainRecord) -> None:
        """Keep where the drain of a node stands; of one that is UNDRAINED the record goes."""

    async def set_retention(self, job: str, retention: Retention | None) -> None:
        """Record which snapshots of a job stay; NotFound where the job is not in the store."""

    async def set_pin(self, job: str, snapshot: str, why: str, unix_s: float) -> Snapshot:
        """Pin a snapshot, or with an empty `why` take the pin away; as it is now, without workers.

        Raises NotFound, and Refused for one that is being deleted.
        """

    async def set_verified(self, job: str, snapshot: str, damaged: str, unix_s: float) -> Snapshot:
        """Record what was found when all of a snapshot was read again; raises as `set_pin`."""

    async def mark_deleting(
        self, job: str, snapshot: str, why: str, *, latest_too: bool, users: Sequence[str] = ()
    ) -> None:
        """Record that a snapshot is being deleted, from when on it is restored no more.

        One transaction: it compares the snapshot, the job (and so each admitted restore) and
        `latest`, which goes too where this is the newest and `latest_too` says so. Raises Refused
        for a pinned or the newest one, and Busy where one of `users` (attempts and restores that
        the leader knows for over) has not ended in the store; NotFound. One that is marked already
        is a success.
        """

    async def weigh(self, job: str, attempts: Sequence[str], deleting: Sequence[str]) -> Weighed:
        """Which of these attempts are over and no snapshot, and what stays, at one revision.

        `deleting` count as over once they are marked; other marked snapshots neither stay nor go.
        """

    async def forget_snapshot(self, job: str, snapshot: str) -> None:
        """Remove a marked snapshot's record and those of its workers; one that is gone: a success.

        A crash half-way leaves it marked, perhaps without some workers.
        """

    async def put_timeline(self, timeline: Timeline) -> None:
        """Keep what an action that has ended spent its time on; nothing depends on it."""

    async def put_nodes(self, facts: Sequence[NodeFacts], gone: Sequence[str] = ()) -> None:
        """Publish what nodes are, and take back those that are gone, in batches.

        Under the leader's lease: all of it goes when the leader goes.
        """

    async def nodes(self) -> tuple[NodeFacts, ...]:
        """The nodes that the present leader has published."""

    def watch(self) -> AsyncGenerator[Loaded | Changed]:
        """First all there is, then each change, over restarts of etcd; may repeat, never skips.

        `Loaded` comes again where the history was compacted away meanwhile.
        """

    async def close(self) -> None:
        """Release the connection; what was written stays."""
