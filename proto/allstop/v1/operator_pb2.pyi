from allstop.v1 import logs_pb2 as _logs_pb2
from allstop.v1 import records_pb2 as _records_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeleteRequest(_message.Message):
    __slots__ = ("job", "snapshots", "force", "cleaning")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    CLEANING_FIELD_NUMBER: _ClassVar[int]
    job: str
    snapshots: _containers.RepeatedScalarFieldContainer[str]
    force: bool
    cleaning: str
    def __init__(self, job: _Optional[str] = ..., snapshots: _Optional[_Iterable[str]] = ..., force: _Optional[bool] = ..., cleaning: _Optional[str] = ...) -> None: ...

class CollectRequest(_message.Message):
    __slots__ = ("job", "dry_run", "unknown", "cleaning")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    CLEANING_FIELD_NUMBER: _ClassVar[int]
    job: str
    dry_run: bool
    unknown: bool
    cleaning: str
    def __init__(self, job: _Optional[str] = ..., dry_run: _Optional[bool] = ..., unknown: _Optional[bool] = ..., cleaning: _Optional[str] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("snapshot", "unpin", "why")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    UNPIN_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    unpin: bool
    why: str
    def __init__(self, snapshot: _Optional[str] = ..., unpin: _Optional[bool] = ..., why: _Optional[str] = ...) -> None: ...

class PinReply(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: _records_pb2.Snapshot
    def __init__(self, snapshot: _Optional[_Union[_records_pb2.Snapshot, _Mapping]] = ...) -> None: ...

class SetRetentionRequest(_message.Message):
    __slots__ = ("job", "change", "retention")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    job: str
    change: bool
    retention: _records_pb2.Retention
    def __init__(self, job: _Optional[str] = ..., change: _Optional[bool] = ..., retention: _Optional[_Union[_records_pb2.Retention, _Mapping]] = ...) -> None: ...

class SetRetentionReply(_message.Message):
    __slots__ = ("retention", "going")
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    GOING_FIELD_NUMBER: _ClassVar[int]
    retention: _records_pb2.Retention
    going: _containers.RepeatedCompositeFieldContainer[Going]
    def __init__(self, retention: _Optional[_Union[_records_pb2.Retention, _Mapping]] = ..., going: _Optional[_Iterable[_Union[Going, _Mapping]]] = ...) -> None: ...

class Going(_message.Message):
    __slots__ = ("snapshot", "why")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    why: str
    def __init__(self, snapshot: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    def __init__(self, snapshot: _Optional[str] = ...) -> None: ...

class VerifyEvent(_message.Message):
    __slots__ = ("snapshot", "workers", "verified", "done_bytes", "total_bytes", "last", "broken", "unread")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    workers: int
    verified: int
    done_bytes: int
    total_bytes: int
    last: bool
    broken: _containers.RepeatedCompositeFieldContainer[Broken]
    unread: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, snapshot: _Optional[str] = ..., workers: _Optional[int] = ..., verified: _Optional[int] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., last: _Optional[bool] = ..., broken: _Optional[_Iterable[_Union[Broken, _Mapping]]] = ..., unread: _Optional[_Iterable[str]] = ...) -> None: ...

class Broken(_message.Message):
    __slots__ = ("worker", "node", "name", "what", "file", "sharers")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    SHARERS_FIELD_NUMBER: _ClassVar[int]
    worker: int
    node: str
    name: str
    what: str
    file: str
    sharers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, worker: _Optional[int] = ..., node: _Optional[str] = ..., name: _Optional[str] = ..., what: _Optional[str] = ..., file: _Optional[str] = ..., sharers: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("job", "cut", "stop", "deadline_s", "attempt", "phase_deadlines")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PHASE_DEADLINES_FIELD_NUMBER: _ClassVar[int]
    job: str
    cut: _records_pb2.Cut
    stop: bool
    deadline_s: float
    attempt: str
    phase_deadlines: _containers.RepeatedCompositeFieldContainer[PhaseDeadline]
    def __init__(self, job: _Optional[str] = ..., cut: _Optional[_Union[_records_pb2.Cut, str]] = ..., stop: _Optional[bool] = ..., deadline_s: _Optional[float] = ..., attempt: _Optional[str] = ..., phase_deadlines: _Optional[_Iterable[_Union[PhaseDeadline, _Mapping]]] = ...) -> None: ...

class PhaseDeadline(_message.Message):
    __slots__ = ("phase", "deadline_s")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    phase: _records_pb2.Phase
    deadline_s: float
    def __init__(self, phase: _Optional[_Union[_records_pb2.Phase, str]] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("job", "snapshot", "deadline_s", "restore", "old_run_ended", "cold_start", "old_addresses")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    OLD_RUN_ENDED_FIELD_NUMBER: _ClassVar[int]
    COLD_START_FIELD_NUMBER: _ClassVar[int]
    OLD_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    job: str
    snapshot: str
    deadline_s: float
    restore: str
    old_run_ended: bool
    cold_start: bool
    old_addresses: _records_pb2.OldAddresses
    def __init__(self, job: _Optional[str] = ..., snapshot: _Optional[str] = ..., deadline_s: _Optional[float] = ..., restore: _Optional[str] = ..., old_run_ended: _Optional[bool] = ..., cold_start: _Optional[bool] = ..., old_addresses: _Optional[_Union[_records_pb2.OldAddresses, str]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("action",)
    ACTION_FIELD_NUMBER: _ClassVar[int]
    action: str
    def __init__(self, action: _Optional[str] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("action", "reason")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    action: str
    reason: str
    def __init__(self, action: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class AbortReply(_message.Message):
    __slots__ = ("note",)
    NOTE_FIELD_NUMBER: _ClassVar[int]
    note: str
    def __init__(self, note: _Optional[str] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("job", "snapshot", "explain", "cold_start", "old_addresses")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    COLD_START_FIELD_NUMBER: _ClassVar[int]
    OLD_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    job: str
    snapshot: str
    explain: bool
    cold_start: bool
    old_addresses: _records_pb2.OldAddresses
    def __init__(self, job: _Optional[str] = ..., snapshot: _Optional[str] = ..., explain: _Optional[bool] = ..., cold_start: _Optional[bool] = ..., old_addresses: _Optional[_Union[_records_pb2.OldAddresses, str]] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ("plan", "refused", "failure", "unseen", "fits", "restore_refused")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_REFUSED_FIELD_NUMBER: _ClassVar[int]
    plan: _records_pb2.Plan
    refused: _containers.RepeatedCompositeFieldContainer[_records_pb2.NodeReasons]
    failure: _records_pb2.Failure
    unseen: str
    fits: _containers.RepeatedCompositeFieldContainer[_records_pb2.NodeFit]
    restore_refused: _containers.RepeatedCompositeFieldContainer[_records_pb2.NodeReasons]
    def __init__(self, plan: _Optional[_Union[_records_pb2.Plan, _Mapping]] = ..., refused: _Optional[_Iterable[_Union[_records_pb2.NodeReasons, _Mapping]]] = ..., failure: _Optional[_Union[_records_pb2.Failure, _Mapping]] = ..., unseen: _Optional[str] = ..., fits: _Optional[_Iterable[_Union[_records_pb2.NodeFit, _Mapping]]] = ..., restore_refused: _Optional[_Iterable[_Union[_records_pb2.NodeReasons, _Mapping]]] = ...) -> None: ...

class ActionEvent(_message.Message):
    __slots__ = ("action", "elapsed_ms", "state", "reason", "awaited", "expected", "done_bytes", "total_bytes", "last", "failure", "attempt", "snapshot", "restore", "unnamed", "cleaned")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    UNNAMED_FIELD_NUMBER: _ClassVar[int]
    CLEANED_FIELD_NUMBER: _ClassVar[int]
    action: str
    elapsed_ms: int
    state: str
    reason: str
    awaited: _containers.RepeatedCompositeFieldContainer[Awaited]
    expected: int
    done_bytes: int
    total_bytes: int
    last: bool
    failure: _records_pb2.Failure
    attempt: _records_pb2.AttemptRecord
    snapshot: _records_pb2.Snapshot
    restore: _records_pb2.RestoreRecord
    unnamed: int
    cleaned: _records_pb2.Cleaned
    def __init__(self, action: _Optional[str] = ..., elapsed_ms: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., awaited: _Optional[_Iterable[_Union[Awaited, _Mapping]]] = ..., expected: _Optional[int] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., last: _Optional[bool] = ..., failure: _Optional[_Union[_records_pb2.Failure, _Mapping]] = ..., attempt: _Optional[_Union[_records_pb2.AttemptRecord, _Mapping]] = ..., snapshot: _Optional[_Union[_records_pb2.Snapshot, _Mapping]] = ..., restore: _Optional[_Union[_records_pb2.RestoreRecord, _Mapping]] = ..., unnamed: _Optional[int] = ..., cleaned: _Optional[_Union[_records_pb2.Cleaned, _Mapping]] = ...) -> None: ...

class Awaited(_message.Message):
    __slots__ = ("worker", "node", "ranks", "age_ms")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    worker: int
    node: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    age_ms: int
    def __init__(self, worker: _Optional[int] = ..., node: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., age_ms: _Optional[int] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobView(_message.Message):
    __slots__ = ("job", "workers", "nodes", "state", "action", "step", "latest_unix_s", "waiting", "problems", "recovery")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LATEST_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    job: _records_pb2.JobRecord
    workers: _containers.RepeatedCompositeFieldContainer[_records_pb2.WorkerState]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    state: str
    action: str
    step: int
    latest_unix_s: float
    waiting: str
    problems: _containers.RepeatedScalarFieldContainer[str]
    recovery: str
    def __init__(self, job: _Optional[_Union[_records_pb2.JobRecord, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[_records_pb2.WorkerState, _Mapping]]] = ..., nodes: _Optional[_Iterable[str]] = ..., state: _Optional[str] = ..., action: _Optional[str] = ..., step: _Optional[int] = ..., latest_unix_s: _Optional[float] = ..., waiting: _Optional[str] = ..., problems: _Optional[_Iterable[str]] = ..., recovery: _Optional[str] = ...) -> None: ...

class ListJobsReply(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobView]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobView, _Mapping]]] = ...) -> None: ...

class ListNodesRequest(_message.Message):
    __slots__ = ("settled",)
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    settled: bool
    def __init__(self, settled: _Optional[bool] = ...) -> None: ...

class NodeView(_message.Message):
    __slots__ = ("facts", "state", "workers", "reason", "drain", "health")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    facts: _records_pb2.NodeFacts
    state: str
    workers: _containers.RepeatedCompositeFieldContainer[_records_pb2.WorkerState]
    reason: str
    drain: _records_pb2.DrainRecord
    health: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, facts: _Optional[_Union[_records_pb2.NodeFacts, _Mapping]] = ..., state: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[_records_pb2.WorkerState, _Mapping]]] = ..., reason: _Optional[str] = ..., drain: _Optional[_Union[_records_pb2.DrainRecord, _Mapping]] = ..., health: _Optional[_Iterable[str]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node", "deadline_s", "why", "notice")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    node: str
    deadline_s: float
    why: str
    notice: bool
    def __init__(self, node: _Optional[str] = ..., deadline_s: _Optional[float] = ..., why: _Optional[str] = ..., notice: _Optional[bool] = ...) -> None: ...

class UndrainRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("drain",)
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    drain: _records_pb2.DrainRecord
    def __init__(self, drain: _Optional[_Union[_records_pb2.DrainRecord, _Mapping]] = ...) -> None: ...

class ListNodesReply(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeView]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeView, _Mapping]]] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ListSnapshotsReply(_message.Message):
    __slots__ = ("snapshots", "latest", "problems")
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[_records_pb2.Snapshot]
    latest: str
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[_records_pb2.Snapshot, _Mapping]]] = ..., latest: _Optional[str] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class ShowRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ShowReply(_message.Message):
    __slots__ = ("snapshot", "attempt", "restore", "timeline")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    snapshot: _records_pb2.Snapshot
    attempt: _records_pb2.AttemptRecord
    restore: _records_pb2.RestoreRecord
    timeline: _records_pb2.Timeline
    def __init__(self, snapshot: _Optional[_Union[_records_pb2.Snapshot, _Mapping]] = ..., attempt: _Optional[_Union[_records_pb2.AttemptRecord, _Mapping]] = ..., restore: _Optional[_Union[_records_pb2.RestoreRecord, _Mapping]] = ..., timeline: _Optional[_Union[_records_pb2.Timeline, _Mapping]] = ...) -> None: ...

class ReadLogsRequest(_message.Message):
    __slots__ = ("job", "places", "first", "lines")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    job: str
    places: _containers.RepeatedCompositeFieldContainer[_logs_pb2.LogPlace]
    first: int
    lines: int
    def __init__(self, job: _Optional[str] = ..., places: _Optional[_Iterable[_Union[_logs_pb2.LogPlace, _Mapping]]] = ..., first: _Optional[int] = ..., lines: _Optional[int] = ...) -> None: ...

class ReadLogsReply(_message.Message):
    __slots__ = ("parts", "following")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[_logs_pb2.LogPart]
    following: int
    def __init__(self, parts: _Optional[_Iterable[_Union[_logs_pb2.LogPart, _Mapping]]] = ..., following: _Optional[int] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: _records_pb2.JobPolicy
    def __init__(self, policy: _Optional[_Union[_records_pb2.JobPolicy, _Mapping]] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class PolicyReply(_message.Message):
    __slots__ = ("policy", "history", "interval_s", "mtbf_s", "young_s", "daly_s", "bound", "lost_s_per_day", "checkpoint_s", "latency_s", "restart_s", "attempt_s", "due_in_s", "waits", "note")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    MTBF_S_FIELD_NUMBER: _ClassVar[int]
    YOUNG_S_FIELD_NUMBER: _ClassVar[int]
    DALY_S_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    LOST_S_PER_DAY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_S_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    RESTART_S_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_S_FIELD_NUMBER: _ClassVar[int]
    DUE_IN_S_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    policy: _records_pb2.JobPolicy
    history: _records_pb2.JobHistory
    interval_s: float
    mtbf_s: float
    young_s: float
    daly_s: float
    bound: str
    lost_s_per_day: float
    checkpoint_s: float
    latency_s: float
    restart_s: float
    attempt_s: float
    due_in_s: float
    waits: str
    note: str
    def __init__(self, policy: _Optional[_Union[_records_pb2.JobPolicy, _Mapping]] = ..., history: _Optional[_Union[_records_pb2.JobHistory, _Mapping]] = ..., interval_s: _Optional[float] = ..., mtbf_s: _Optional[float] = ..., young_s: _Optional[float] = ..., daly_s: _Optional[float] = ..., bound: _Optional[str] = ..., lost_s_per_day: _Optional[float] = ..., checkpoint_s: _Optional[float] = ..., latency_s: _Optional[float] = ..., restart_s: _Optional[float] = ..., attempt_s: _Optional[float] = ..., due_in_s: _Optional[float] = ..., waits: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class GetStoryRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class StoryReply(_message.Message):
    __slots__ = ("recovery", "lines")
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    recovery: _records_pb2.JobRecovery
    lines: _containers.RepeatedCompositeFieldContainer[_records_pb2.StoryLine]
    def __init__(self, recovery: _Optional[_Union[_records_pb2.JobRecovery, _Mapping]] = ..., lines: _Optional[_Iterable[_Union[_records_pb2.StoryLine, _Mapping]]] = ...) -> None: ...
