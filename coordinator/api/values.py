"""What a client of the operator service gets: plain values with the fields of operator.proto."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.job_policy import JobHistory, JobPolicy, JobRecovery, StoryLine
from coordinator.core.kept import Cleaned, Retention
from coordinator.core.model import AttemptRecord, Failure, Plan, RestoreRecord, Snapshot
from coordinator.core.reasons import NodeFit, NodeReasons
from coordinator.core.retention import Going


@dataclass(frozen=True)
class Awaited:
    """Somebody who has not answered yet."""

    worker: int
    node: str
    ranks: tuple[int, ...]
    age_ms: int


@dataclass(frozen=True)
class ActionEvent:
    """One thing that happened to an attempt or a restore."""

    action: str
    elapsed_ms: int  # since the request
    state: str
    reason: str
    awaited: tuple[Awaited, ...]
    expected: int
    done_bytes: int
    total_bytes: int
    last: bool
    failure: Failure | None
    attempt: AttemptRecord | None
    snapshot: Snapshot | None
    restore: RestoreRecord | None
    unnamed: int = 0  # awaited beside those in `awaited`
    cleaned: Cleaned | None = None


@dataclass(frozen=True)
class Planned:
    """Where a restore would put each worker, or why it cannot be; reasons come in both cases."""

    plan: Plan | None
    refused: tuple[NodeReasons, ...]
    failure: Failure | None
    unseen: str = ""  # why the restore would need `old_run_ended`, if it would
    fits: tuple[NodeFit, ...] = ()  # where that was asked for: nodes that fit, chosen or not
    restore_refused: tuple[NodeReasons, ...] = ()  # of a start: why no node takes the snapshot


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of one job, oldest first, without their workers."""

    snapshots: tuple[Snapshot, ...]
    latest: str
    problems: tuple[str, ...] = ()  # those that cannot be read


@dataclass(frozen=True)
class PolicyAnswer:
    """A job's policy and the numbers behind it; in seconds where nothing else is said."""

    policy: JobPolicy
    history: JobHistory
    interval_s: float  # at present; 0: none in seconds
    mtbf_s: float  # auto: estimated, for the nodes it is on
    young_s: float
    daly_s: float
    bound: str  # auto: least, most, budget, attempt, first; empty: none of them was reached
    lost_s_per_day: float
    checkpoint_s: float  # by how much one checkpoint makes the job later
    latency_s: float  # from the cut until it can be restored
    restart_s: float
    attempt_s: float
    due_in_s: float  # below 0: not due by time
    waits: str  # what the next one waits for, one sentence
    note: str = ""  # what of the policy does not hold yet


@dataclass(frozen=True)
class Story:
    """What was done for a job by itself, and why."""

    recovery: JobRecovery
    lines: tuple[StoryLine, ...]  # oldest first


@dataclass(frozen=True)
class Retained:
    """Which snapshots of a job stay, and what goes by that now."""

    retention: Retention | None
    going: tuple[Going, ...] = ()


@dataclass(frozen=True)
class Broken:
    """Something of a snapshot that is not what was committed."""

    worker: int
    node: str  # that read it
    name: str  # of the object or chunk
    what: str  # missing, truncated, other bytes …
    file: str = ""  # the first image file that needs it
    sharers: tuple[str, ...] = ()  # other snapshots that need the same bytes


@dataclass(frozen=True)
class VerifyEvent:
    """How far the reading of a snapshot is; the last one has what was found."""

    snapshot: str
    workers: int
    verified: int  # of the workers, read to the end
    done_bytes: int
    total_bytes: int
    last: bool = False
    broken: tuple[Broken, ...] = ()
    unread: tuple[str, ...] = ()  # workers that nobody could read, and why
