"""What the core wants done: imperative, carried out by `coordinator/server`.

Every command that can be answered is answered by an event; none of them is repeated by the server.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.drain_events import NoticeKind
from coordinator.core.drain_records import DrainRecord
from coordinator.core.job_policy import JobHistory, JobRecovery
from coordinator.core.kept import Cleaned, KeptImages
from coordinator.core.model import (
    AddressMove,
    AttemptRecord,
    Cut,
    Endpoint,
    Failure,
    GpuMove,
    JobRecord,
    Phase,
    RestoreRecord,
    Snapshot,
    WorkerRecord,
    WorkerState,
)


@dataclass(frozen=True)
class Command:
    """Base of all commands."""


@dataclass(frozen=True)
class SendOrder(Command):
    """Send one order to the shim of `node`; answered by an `OrderAnswered`, or never.

    `hold_s` is the shim's dead-man timer from receipt; 0 where the order holds nothing. `kill`,
    `keep` and `tear_down` are for UNDO: kill what was restored; leave what is stored, it may be a
    snapshot's; destroy communicators before parked ranks are let go, as other workers do.
    """

    node: str
    epoch: int
    job: str
    worker: int
    action: str
    phase: Phase
    deadline_s: float
    hold_s: float = 0.0
    cut: Cut = Cut.STEP
    target: int = 0
    world_size: int = 0
    stand_still_s: float = 0.0  # HOLD: how long ranks may stand still by all that is to come
    workers: int = 0
    incarnation: int = 0
    reason: str = ""
    base: str = ""
    kill: bool = False
    keep: bool = False
    tear_down: bool = False
    record: WorkerRecord | None = None
    addresses: tuple[AddressMove, ...] = ()
    connections: tuple[Endpoint, ...] = ()
    devices: tuple[GpuMove, ...] = ()
    cold: bool = False  # start the command from scratch instead of putting images back
    stay: bool = False  # STOP: the job is to be restored at once


@dataclass(frozen=True)
class FenceWorkers(Command):
    """Tell a shim that these workers of its are not the job any more; it kills them."""

    node: str
    reason: str
    workers: tuple[WorkerState, ...]


@dataclass(frozen=True)
class AdmitWorker(Command):
    """Tell a shim that its worker is the job's in this incarnation; it reports it from then on."""

    node: str
    job: str
    worker: int
    incarnation: int


@dataclass(frozen=True)
class DeferWorker(Command):
    """Tell a shim that its worker is not taken into the job yet, and why; nothing depends on it."""

    node: str
    job: str
    worker: int
    reason: str


@dataclass(frozen=True)
class BeginRun(Command):
    """Raise the job's incarnation in etcd above all earlier ones, and note the new run's size.

    Answered by RunBegun or RunRefused. Asking again after a lost answer raises it once more,
    which does no harm.
    """

    record: JobRecord
    old_incarnation: int


@dataclass(frozen=True)
class PutAttempt(Command):
    """Write the attempt's record under the epoch; answered by AttemptStored or StoreRefused."""

    record: AttemptRecord


@dataclass(frozen=True)
class CommitSnapshot(Command):
    """One transaction: snapshot, latest, attempt COMMITTED; compares epoch and attempt revision.

    Answered by SnapshotCommitted or CommitRefused. When the answer of etcd is lost the server
    reads until it knows; it never repeats blindly.
    """

    snapshot: Snapshot
    record: AttemptRecord


@dataclass(frozen=True)
class AdmitRestore(Command):
    """Write the restore's record and raise the job's incarnation, comparing the old one.

    Answered by RestoreAdmitted or StoreRefused.
    """

    record: RestoreRecord
    old_incarnation: int


@dataclass(frozen=True)
class PutRestore(Command):
    """Write a later state of the restore; answered by RestoreStored or StoreRefused."""

    record: RestoreRecord


@dataclass(frozen=True)
class MarkSnapshots(Command):
    """Record that these snapshots are being deleted, each in one transaction.

    It compares the epoch, the snapshot (and so its pin), the job (and so every restore that has
    been admitted) and `latest`. Answered by SnapshotsMarked; done twice it changes nothing.
    """

    job: str
    cleaning: str
    snapshots: tuple[str, ...]
    why: str
    latest_too: bool = False  # one of them may be the newest: `latest` goes with it
    users: tuple[str, ...] = ()  # actions that used one of them: they must have ended in etcd too


@dataclass(frozen=True)
class WeighAttempts(Command):
    """Look up which of these attempts are over and no snapshot, and the images that stay.

    `deleting` are snapshots that count as over. Answered by AttemptsWeighed or StoreRefused.
    """

    job: str
    cleaning: str
    attempts: tuple[str, ...]
    deleting: tuple[str, ...]


@dataclass(frozen=True)
class ForgetSnapshots(Command):
    """Remove the records of snapshots whose images are gone, those of their workers too.

    Answered by SnapshotsForgotten or StoreRefused; done twice it changes nothing.
    """

    job: str
    cleaning: str
    snapshots: tuple[str, ...]


@dataclass(frozen=True)
class SendTask(Command):
    """Have a node look at or clean the image store it sees; answered by TaskAnswered, or never.

    Without `dead` it lists the attempts of the job of which anything is there.
    """

    node: str
    epoch: int
    task: str
    job: str
    deadline_s: float
    dead: tuple[str, ...] = ()
    keep: tuple[KeptImages, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class Announce(Command):
    """Tell whoever watches the action what was decided and why; nothing depends on it."""

    action: str
    state: str
    reason: str
    elapsed_s: float
    awaited: tuple[tuple[int, str, tuple[int, ...], float], ...] = ()  # worker, node, ranks, age_s
    expected: int = 0
    last: bool = False
    failure: Failure | None = None
    attempt: AttemptRecord | None = None
    snapshot: Snapshot | None = None
    restore: RestoreRecord | None = None
    cleaned: Cleaned | None = None
    unnamed: int = 0  # awaited beside those in `awaited`


@dataclass(frozen=True)
class Refuse(Command):
    """A request is refused at once; nothing was changed, no record exists."""

    action: str
    failure: Failure


@dataclass(frozen=True)
class AskCheckpoint(Command):
    """A checkpoint is due: hand in a request for one, with an id and the time; or it is refused."""

    job: str
    cut: Cut
    reason: str
    stop: bool = False  # end the job after COMMIT
    deadline_s: float = 0.0  # 0: the policy's
    drain: str = ""  # the node whose drain needs it
    notice: str = ""  # the node whose shim was told something that asks for it


@dataclass(frozen=True)
class KeepHistory(Command):
    """Write what was seen of a job's failures; nothing depends on it, the newest wins."""

    record: JobHistory


@dataclass(frozen=True)
class AskRestore(Command):
    """A job is to be put back: hand in a request for it, with its snapshot, an id and the time.

    The snapshot is the newest that is not among `skip`. Answered by RestoreRequested, or by
    RestoreUnready where what it needs cannot be had.
    """

    job: str
    skip: tuple[str, ...]
    cause: str
    scratch: bool = False  # start the job's commands from scratch
    snapshot: str = ""  # this one, instead of the newest
    drain: str = ""  # the node whose drain needs it
    anywhere: bool = False  # nodes that are drained may take it too
    failed_on: tuple[str, ...] = ()  # nodes that are taken last


@dataclass(frozen=True)
class StayOn(Command):
    """Tell a shim that the job of its ended worker is to be restored: it does not leave so long."""

    node: str
    job: str
    for_s: float


@dataclass(frozen=True)
class KeepRecovery(Command):
    """Write where the recovery of a job stands; the newest wins."""

    record: JobRecovery


@dataclass(frozen=True)
class PutDrain(Command):
    """Write where the drain of a node stands; of one that is called off the record goes.

    Answered by DrainStored or DrainUnstored; done twice it changes nothing.
    """

    record: DrainRecord


@dataclass(frozen=True)
class AskDrain(Command):
    """A node is about to go: hand in a request that it be drained, with what that needs.

    Answered by DrainRequested, or by DrainUnready where what it needs cannot be had.
    """

    node: str
    deadline_s: float
    why: str
    session: str = ""  # of the shim that was told so; empty: the leader wants it by itself


@dataclass(frozen=True)
class RefuseNotice(Command):
    """Tell a shim that what it was told asks for more than can be done, and why."""

    node: str
    kind: NoticeKind
    reason: str
    again: bool = False  # as things stand: it may be taken when it is told again
