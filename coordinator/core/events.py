"""What the core is told: things that happened, in the past tense.

Each event names its cause by its place (node, job, worker, action). Success, refusal and lost
contact are different events. `handle(event, now)` gets the time beside the event, never in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.files import FileBack
from coordinator.core.job_policy import JobPolicy
from coordinator.core.kept import KeptImages, Retention
from coordinator.core.model import (
    Cut,
    Failure,
    Finding,
    JobRecord,
    NodeFacts,
    OldAddresses,
    Phase,
    RankState,
    Snapshot,
    WorkerRecord,
    WorkerState,
)


@dataclass(frozen=True)
class Event:
    """Base of all events."""


# -- nodes and workers ---------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeAttached(Event):
    """A shim opened its stream and said Hello."""

    facts: NodeFacts
    session: str
    workers: tuple[WorkerState, ...]


@dataclass(frozen=True)
class NodeReported(Event):
    """A shim told how its workers are; facts only when they changed."""

    node: str
    session: str
    workers: tuple[WorkerState, ...]
    facts: NodeFacts | None = None


@dataclass(frozen=True)
class NodeLost(Event):
    """A shim's stream ended without Goodbye, or its lease ran out."""

    node: str
    session: str
    reason: str


@dataclass(frozen=True)
class NodeLeft(Event):
    """A shim said Goodbye."""

    node: str
    session: str
    reason: str


@dataclass(frozen=True)
class WorkerExited(Event):
    """A worker's root process ended."""

    node: str
    job: str
    worker: int
    incarnation: int
    exit_code: int
    log_tail: str = ""
    step: int = 0  # that the furthest of its ranks had finished; 0: not known


# -- requests ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointRequested(Event):
    """An operator (or a policy) asked for a checkpoint; the id is made by the asker's edge."""

    job: str
    attempt: str
    cut: Cut
    stop: bool
    deadline_s: float
    unix_s: float
    phase_deadlines_s: tuple[tuple[Phase, float], ...] = ()  # others have the policy's
    cause: str = ""  # why it is due; empty: an operator asked
    drain: str = ""  # the node whose drain needs it; empty: none
    notice: str = ""  # the node whose shim was told something that asks for it; empty: none


@dataclass(frozen=True)
class RestoreRequested(Event):
    """An operator asked for a restore; program files were already asked from the nodes."""

    job: str
    restore: str
    snapshot: Snapshot
    deadline_s: float
    unix_s: float
    files: tuple[NodeFacts, ...] = ()  # answers of the nodes, facts with `files` filled in
    old_run_ended: bool = False  # the operator has made sure of that, where nobody is in reach
    cold_start: bool = False  # where no nodes fit: start the job's commands from scratch
    old_addresses: OldAddresses = OldAddresses.REFUSE  # in these commands
    cause: str = ""  # what ended the run that it replaces; empty: an operator asked
    scratch: bool = False  # start the job's commands from scratch, whatever fits
    drain: str = ""  # the node whose drain needs it; empty: none
    anywhere: bool = False  # nodes that are drained may take it too
    failed_on: tuple[str, ...] = ()  # nodes where it has failed before, once for each time


@dataclass(frozen=True)
class AbortRequested(Event):
    """An operator asked that an attempt or restore be given up."""

    action: str
    reason: str


@dataclass(frozen=True)
class RestoreUnready(Event):
    """A restore that this leader wanted could not be asked for: what it needs was not to be had."""

    job: str
    failure: Failure
    drain: str = ""  # the node whose drain needs it; empty: the job's recovery does


@dataclass(frozen=True)
class PolicyChanged(Event):
    """A job's policy is in etcd as it is here."""

    policy: JobPolicy


@dataclass(frozen=True)
class DeletionRequested(Event):
    """An operator asked that snapshots be deleted; the id is made by the asker's edge."""

    job: str
    cleaning: str
    snapshots: tuple[str, ...]
    force: bool = False  # also the newest, where none stays
    why: str = "an operator asked for it"


@dataclass(frozen=True)
class CollectionRequested(Event):
    """An operator asked that what ended attempts have left in the image stores be removed."""

    job: str
    cleaning: str
    dry_run: bool = False
    unknown: bool = False  # also of attempts that are not in the store of records


@dataclass(frozen=True)
class RetentionChanged(Event):
    """Which snapshots of a job stay has been recorded anew."""

    job: str
    retention: Retention | None


@dataclass(frozen=True)
class SnapshotChanged(Event):
    """How a snapshot is kept has been recorded anew: pinned, unpinned, found damaged or whole."""

    snapshot: Snapshot


# -- answers of shims ----------------------------------------------------------------------------


@dataclass(frozen=True)
class OrderAnswered(Event):
    """Base of what shims answer; `epoch` is the order's."""

    epoch: int
    node: str
    job: str
    worker: int
    action: str


@dataclass(frozen=True)
class Held(OrderAnswered):
    """The hold flag is up; these are the boundaries each rank has published."""

    ranks: tuple[RankState, ...]
    findings: tuple[Finding, ...] = ()
    gpu: bool = False  # a process of it has a device open


@dataclass(frozen=True)
class Parked(OrderAnswered):
    """Every rank of the worker waits at the target with its devices idle."""

    ranks: tuple[RankState, ...]


@dataclass(frozen=True)
class GpuLocked(OrderAnswered):
    """Every CUDA process of the worker is locked."""


@dataclass(frozen=True)
class GpuSaved(OrderAnswered):
    """Every CUDA process of the worker is checkpointed into host memory."""


@dataclass(frozen=True)
class Dumped(OrderAnswered):
    """The stopped tree is in local staging and was checked; `record` lacks only the manifest."""

    record: WorkerRecord


@dataclass(frozen=True)
class Resumed(OrderAnswered):
    """The worker runs again."""

    held_ms: int


@dataclass(frozen=True)
class Persisted(OrderAnswered):
    """Every byte of the worker is in the store, hashed and synced."""

    record: WorkerRecord


@dataclass(frozen=True)
class Stopped(OrderAnswered):
    """The worker was ended on purpose."""


@dataclass(frozen=True)
class Undone(OrderAnswered):
    """The worker runs as before and staging is empty (of a restore: what was restored is gone)."""

    held_ms: int = 0


@dataclass(frozen=True)
class Fetched(OrderAnswered):
    """The images are on the node and their digests match."""


@dataclass(frozen=True)
class Cleared(OrderAnswered):
    """The old incarnation is gone from the node, the network lock is on, files are cut back."""


@dataclass(frozen=True)
class Restored(OrderAnswered):
    """The tree is back, still stopped and under the network lock."""

    root_pid: int
    files: tuple[FileBack, ...] = ()
    files_unnamed: int = 0


@dataclass(frozen=True)
class GpuRestored(OrderAnswered):
    """Device memory is back; the processes are still locked."""


@dataclass(frozen=True)
class GpuUnlocked(OrderAnswered):
    """The CUDA processes run again."""


@dataclass(frozen=True)
class Opened(OrderAnswered):
    """The restored worker may be sent to; it is still stopped."""


@dataclass(frozen=True)
class Released(OrderAnswered):
    """The restored worker runs."""


@dataclass(frozen=True)
class OrderFailed(OrderAnswered):
    """An order was not carried out (or perhaps was: `failure.definite`)."""

    phase: Phase
    failure: Failure


@dataclass(frozen=True)
class TaskAnswered(Event):
    """What came of a task about an image store; `failure`: not, or not all of it was done."""

    epoch: int
    node: str
    task: str
    failure: Failure | None = None
    attempts: tuple[str, ...] = ()
    objects: int = 0
    freed_bytes: int = 0


# -- answers of the store ------------------------------------------------------------------------


@dataclass(frozen=True)
class AttemptStored(Event):
    """The attempt's record is in etcd in the state it was put with."""

    attempt: str
    state: str


@dataclass(frozen=True)
class SnapshotCommitted(Event):
    """The commit transaction went through (or was found done when looked at)."""

    snapshot: str
    newest: bool = True  # the job's latest is this one now


@dataclass(frozen=True)
class CommitRefused(Event):
    """The commit transaction surely did not happen."""

    snapshot: str
    failure: Failure


@dataclass(frozen=True)
class RestoreAdmitted(Event):
    """The restore's record is in etcd and the job's incarnation is raised."""

    restore: str


@dataclass(frozen=True)
class RestoreStored(Event):
    """A later state of the restore is in etcd."""

    restore: str
    state: str


@dataclass(frozen=True)
class StoreRefused(Event):
    """A write for an attempt or restore surely did not happen, or its fate could not be learnt."""

    action: str
    failure: Failure


@dataclass(frozen=True)
class SnapshotsMarked(Event):
    """Which of the snapshots of a cleaning are DELETING in etcd now, and why others are not."""

    cleaning: str
    marked: tuple[str, ...]
    refused: tuple[Failure, ...] = ()


@dataclass(frozen=True)
class AttemptsWeighed(Event):
    """Of attempts that are in an image store: which are over and no snapshot, and what stays."""

    cleaning: str
    dead: tuple[str, ...]
    unknown: tuple[str, ...]
    keep: tuple[KeptImages, ...]


@dataclass(frozen=True)
class SnapshotsForgotten(Event):
    """The records of these snapshots are gone."""

    cleaning: str


@dataclass(frozen=True)
class JobLoaded(Event):
    """A job's record was read from etcd (at the start of a leadership)."""

    record: JobRecord


@dataclass(frozen=True)
class RunBegun(Event):
    """A new run of a job is in etcd with an incarnation of its own, the record's."""

    record: JobRecord


@dataclass(frozen=True)
class RunRefused(Event):
    """The beginning of a run was not recorded, or its fate could not be learnt."""

    job: str
    failure: Failure


@dataclass(frozen=True)
class TimePassed(Event):
    """Nothing but the clock moved; sent when `next_wakeup` has come."""
