from allstop.v1 import logs_pb2 as _logs_pb2
from allstop.v1 import records_pb2 as _records_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NoticeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOTICE_KIND_UNSPECIFIED: _ClassVar[NoticeKind]
    NOTICE_KIND_DRAIN: _ClassVar[NoticeKind]
    NOTICE_KIND_CHECKPOINT: _ClassVar[NoticeKind]
    NOTICE_KIND_STOP: _ClassVar[NoticeKind]
    NOTICE_KIND_END: _ClassVar[NoticeKind]
NOTICE_KIND_UNSPECIFIED: NoticeKind
NOTICE_KIND_DRAIN: NoticeKind
NOTICE_KIND_CHECKPOINT: NoticeKind
NOTICE_KIND_STOP: NoticeKind
NOTICE_KIND_END: NoticeKind

class ShimMessage(_message.Message):
    __slots__ = ("hello", "report", "result", "exited", "goodbye", "answer", "progress", "results", "log", "meeting", "done", "doing", "notice", "troubles")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    MEETING_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: Report
    result: OrderResult
    exited: WorkerExited
    goodbye: Goodbye
    answer: Answer
    progress: Progress
    results: OrderResults
    log: LogAnswer
    meeting: Meeting
    done: StoreTaskResult
    doing: StoreTaskProgress
    notice: NoticeGiven
    troubles: GpuTroubles
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., result: _Optional[_Union[OrderResult, _Mapping]] = ..., exited: _Optional[_Union[WorkerExited, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., results: _Optional[_Union[OrderResults, _Mapping]] = ..., log: _Optional[_Union[LogAnswer, _Mapping]] = ..., meeting: _Optional[_Union[Meeting, _Mapping]] = ..., done: _Optional[_Union[StoreTaskResult, _Mapping]] = ..., doing: _Optional[_Union[StoreTaskProgress, _Mapping]] = ..., notice: _Optional[_Union[NoticeGiven, _Mapping]] = ..., troubles: _Optional[_Union[GpuTroubles, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("facts", "highest_epoch", "workers", "session", "number")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    facts: _records_pb2.NodeFacts
    highest_epoch: int
    workers: _containers.RepeatedCompositeFieldContainer[_records_pb2.WorkerState]
    session: str
    number: int
    def __init__(self, facts: _Optional[_Union[_records_pb2.NodeFacts, _Mapping]] = ..., highest_epoch: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[_records_pb2.WorkerState, _Mapping]]] = ..., session: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("facts", "workers")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    facts: _records_pb2.NodeFacts
    workers: _containers.RepeatedCompositeFieldContainer[_records_pb2.WorkerState]
    def __init__(self, facts: _Optional[_Union[_records_pb2.NodeFacts, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[_records_pb2.WorkerState, _Mapping]]] = ...) -> None: ...

class NoticeRefused(_message.Message):
    __slots__ = ("kind", "reason", "again")
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    kind: NoticeKind
    reason: str
    again: bool
    def __init__(self, kind: _Optional[_Union[NoticeKind, str]] = ..., reason: _Optional[str] = ..., again: _Optional[bool] = ...) -> None: ...

class NoticeGiven(_message.Message):
    __slots__ = ("kind", "deadline_ms", "why")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    kind: NoticeKind
    deadline_ms: int
    why: str
    def __init__(self, kind: _Optional[_Union[NoticeKind, str]] = ..., deadline_ms: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class GpuTroubles(_message.Message):
    __slots__ = ("troubles",)
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    troubles: _containers.RepeatedCompositeFieldContainer[_records_pb2.GpuTrouble]
    def __init__(self, troubles: _Optional[_Iterable[_Union[_records_pb2.GpuTrouble, _Mapping]]] = ...) -> None: ...

class WorkerExited(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "exit_code", "log_tail", "step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    exit_code: int
    log_tail: str
    step: int
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., exit_code: _Optional[int] = ..., log_tail: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("job", "worker", "action", "phase", "done_bytes", "total_bytes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    action: str
    phase: _records_pb2.Phase
    done_bytes: int
    total_bytes: int
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., action: _Optional[str] = ..., phase: _Optional[_Union[_records_pb2.Phase, str]] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("welcome", "order", "fenced", "question", "admitted", "waiting", "orders", "log", "meeting", "task", "refused", "stay")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    MEETING_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    STAY_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    order: Order
    fenced: Fenced
    question: Question
    admitted: Admitted
    waiting: Waiting
    orders: Orders
    log: LogQuestion
    meeting: Meeting
    task: StoreTask
    refused: NoticeRefused
    stay: Stay
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., order: _Optional[_Union[Order, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., question: _Optional[_Union[Question, _Mapping]] = ..., admitted: _Optional[_Union[Admitted, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., orders: _Optional[_Union[Orders, _Mapping]] = ..., log: _Optional[_Union[LogQuestion, _Mapping]] = ..., meeting: _Optional[_Union[Meeting, _Mapping]] = ..., task: _Optional[_Union[StoreTask, _Mapping]] = ..., refused: _Optional[_Union[NoticeRefused, _Mapping]] = ..., stay: _Optional[_Union[Stay, _Mapping]] = ...) -> None: ...

class StoreTask(_message.Message):
    __slots__ = ("epoch", "task", "job", "deadline_ms", "list", "collect", "verify", "cancel")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    COLLECT_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    task: str
    job: str
    deadline_ms: int
    list: ListAttempts
    collect: CollectAttempts
    verify: VerifyImages
    cancel: CancelTask
    def __init__(self, epoch: _Optional[int] = ..., task: _Optional[str] = ..., job: _Optional[str] = ..., deadline_ms: _Optional[int] = ..., list: _Optional[_Union[ListAttempts, _Mapping]] = ..., collect: _Optional[_Union[CollectAttempts, _Mapping]] = ..., verify: _Optional[_Union[VerifyImages, _Mapping]] = ..., cancel: _Optional[_Union[CancelTask, _Mapping]] = ...) -> None: ...

class ListAttempts(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CollectAttempts(_message.Message):
    __slots__ = ("dead", "keep", "dry_run")
    DEAD_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    dead: _containers.RepeatedScalarFieldContainer[str]
    keep: _containers.RepeatedCompositeFieldContainer[_records_pb2.KeptImages]
    dry_run: bool
    def __init__(self, dead: _Optional[_Iterable[str]] = ..., keep: _Optional[_Iterable[_Union[_records_pb2.KeptImages, _Mapping]]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class VerifyImages(_message.Message):
    __slots__ = ("images", "others")
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    images: _records_pb2.KeptImages
    others: _containers.RepeatedCompositeFieldContainer[_records_pb2.KeptImages]
    def __init__(self, images: _Optional[_Union[_records_pb2.KeptImages, _Mapping]] = ..., others: _Optional[_Iterable[_Union[_records_pb2.KeptImages, _Mapping]]] = ...) -> None: ...

class CancelTask(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StoreTaskResult(_message.Message):
    __slots__ = ("epoch", "task", "failure", "attempts", "objects", "freed_bytes", "damage")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    task: str
    failure: _records_pb2.Failure
    attempts: _containers.RepeatedScalarFieldContainer[str]
    objects: int
    freed_bytes: int
    damage: _containers.RepeatedCompositeFieldContainer[ImageDamage]
    def __init__(self, epoch: _Optional[int] = ..., task: _Optional[str] = ..., failure: _Optional[_Union[_records_pb2.Failure, _Mapping]] = ..., attempts: _Optional[_Iterable[str]] = ..., objects: _Optional[int] = ..., freed_bytes: _Optional[int] = ..., damage: _Optional[_Iterable[_Union[ImageDamage, _Mapping]]] = ...) -> None: ...

class StoreTaskProgress(_message.Message):
    __slots__ = ("task", "done_bytes", "total_bytes")
    TASK_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    task: str
    done_bytes: int
    total_bytes: int
    def __init__(self, task: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class ImageDamage(_message.Message):
    __slots__ = ("name", "what", "file", "sharers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    SHARERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    what: str
    file: str
    sharers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., what: _Optional[str] = ..., file: _Optional[str] = ..., sharers: _Optional[_Iterable[str]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("epoch", "coordinator", "report_interval_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    coordinator: str
    report_interval_ms: int
    def __init__(self, epoch: _Optional[int] = ..., coordinator: _Optional[str] = ..., report_interval_ms: _Optional[int] = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("epoch", "reason", "workers")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    reason: str
    workers: _containers.RepeatedCompositeFieldContainer[_records_pb2.WorkerState]
    def __init__(self, epoch: _Optional[int] = ..., reason: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[_records_pb2.WorkerState, _Mapping]]] = ...) -> None: ...

class Admitted(_message.Message):
    __slots__ = ("epoch", "job", "worker", "incarnation")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    job: str
    worker: int
    incarnation: int
    def __init__(self, epoch: _Optional[int] = ..., job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("epoch", "job", "worker", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    job: str
    worker: int
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., job: _Optional[str] = ..., worker: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Stay(_message.Message):
    __slots__ = ("epoch", "job", "for_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    FOR_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    job: str
    for_ms: int
    def __init__(self, epoch: _Optional[int] = ..., job: _Optional[str] = ..., for_ms: _Optional[int] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("question", "files")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    question: int
    files: _containers.RepeatedCompositeFieldContainer[_records_pb2.ProgramFile]
    def __init__(self, question: _Optional[int] = ..., files: _Optional[_Iterable[_Union[_records_pb2.ProgramFile, _Mapping]]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("question", "facts")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    question: int
    facts: _records_pb2.NodeFacts
    def __init__(self, question: _Optional[int] = ..., facts: _Optional[_Union[_records_pb2.NodeFacts, _Mapping]] = ...) -> None: ...

class LogQuestion(_message.Message):
    __slots__ = ("question", "job", "places")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    question: int
    job: str
    places: _containers.RepeatedCompositeFieldContainer[_logs_pb2.LogPlace]
    def __init__(self, question: _Optional[int] = ..., job: _Optional[str] = ..., places: _Optional[_Iterable[_Union[_logs_pb2.LogPlace, _Mapping]]] = ...) -> None: ...

class LogAnswer(_message.Message):
    __slots__ = ("question", "parts")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    question: int
    parts: _containers.RepeatedCompositeFieldContainer[_logs_pb2.LogPart]
    def __init__(self, question: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[_logs_pb2.LogPart, _Mapping]]] = ...) -> None: ...

class Meeting(_message.Message):
    __slots__ = ("epoch", "job", "action", "keys", "came", "ask", "leave")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    CAME_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    job: str
    action: str
    keys: _containers.RepeatedCompositeFieldContainer[Key]
    came: _containers.RepeatedScalarFieldContainer[int]
    ask: bool
    leave: bool
    def __init__(self, epoch: _Optional[int] = ..., job: _Optional[str] = ..., action: _Optional[str] = ..., keys: _Optional[_Iterable[_Union[Key, _Mapping]]] = ..., came: _Optional[_Iterable[int]] = ..., ask: _Optional[bool] = ..., leave: _Optional[bool] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("name", "value", "deleted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    value: bytes
    deleted: bool
    def __init__(self, name: _Optional[bytes] = ..., value: _Optional[bytes] = ..., deleted: _Optional[bool] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("orders",)
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    def __init__(self, orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ...) -> None: ...

class OrderResults(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[OrderResult]
    def __init__(self, results: _Optional[_Iterable[_Union[OrderResult, _Mapping]]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("epoch", "job", "worker", "action", "phase", "deadline_ms", "hold_ms", "traceparent", "hold", "park", "dump", "resume", "persist", "stop", "undo", "fetch", "clear", "restore", "release", "gpu_restore", "gpu_lock")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    PARK_FIELD_NUMBER: _ClassVar[int]
    DUMP_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    PERSIST_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    GPU_RESTORE_FIELD_NUMBER: _ClassVar[int]
    GPU_LOCK_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    job: str
    worker: int
    action: str
    phase: _records_pb2.Phase
    deadline_ms: int
    hold_ms: int
    traceparent: str
    hold: HoldOrder
    park: ParkOrder
    dump: DumpOrder
    resume: ResumeOrder
    persist: PersistOrder
    stop: StopOrder
    undo: UndoOrder
    fetch: FetchOrder
    clear: ClearOrder
    restore: RestoreOrder
    release: ReleaseOrder
    gpu_restore: GpuRestoreOrder
    gpu_lock: GpuLockOrder
    def __init__(self, epoch: _Optional[int] = ..., job: _Optional[str] = ..., worker: _Optional[int] = ..., action: _Optional[str] = ..., phase: _Optional[_Union[_records_pb2.Phase, str]] = ..., deadline_ms: _Optional[int] = ..., hold_ms: _Optional[int] = ..., traceparent: _Optional[str] = ..., hold: _Optional[_Union[HoldOrder, _Mapping]] = ..., park: _Optional[_Union[ParkOrder, _Mapping]] = ..., dump: _Optional[_Union[DumpOrder, _Mapping]] = ..., resume: _Optional[_Union[ResumeOrder, _Mapping]] = ..., persist: _Optional[_Union[PersistOrder, _Mapping]] = ..., stop: _Optional[_Union[StopOrder, _Mapping]] = ..., undo: _Optional[_Union[UndoOrder, _Mapping]] = ..., fetch: _Optional[_Union[FetchOrder, _Mapping]] = ..., clear: _Optional[_Union[ClearOrder, _Mapping]] = ..., restore: _Optional[_Union[RestoreOrder, _Mapping]] = ..., release: _Optional[_Union[ReleaseOrder, _Mapping]] = ..., gpu_restore: _Optional[_Union[GpuRestoreOrder, _Mapping]] = ..., gpu_lock: _Optional[_Union[GpuLockOrder, _Mapping]] = ...) -> None: ...

class HoldOrder(_message.Message):
    __slots__ = ("cut", "world_size", "stand_still_ms")
    CUT_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    STAND_STILL_MS_FIELD_NUMBER: _ClassVar[int]
    cut: _records_pb2.Cut
    world_size: int
    stand_still_ms: int
    def __init__(self, cut: _Optional[_Union[_records_pb2.Cut, str]] = ..., world_size: _Optional[int] = ..., stand_still_ms: _Optional[int] = ...) -> None: ...

class ParkOrder(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: int
    def __init__(self, target: _Optional[int] = ...) -> None: ...

class DumpOrder(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: _records_pb2.Cut
    def __init__(self, cut: _Optional[_Union[_records_pb2.Cut, str]] = ...) -> None: ...

class ResumeOrder(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PersistOrder(_message.Message):
    __slots__ = ("base",)
    BASE_FIELD_NUMBER: _ClassVar[int]
    base: str
    def __init__(self, base: _Optional[str] = ...) -> None: ...

class StopOrder(_message.Message):
    __slots__ = ("stay",)
    STAY_FIELD_NUMBER: _ClassVar[int]
    stay: bool
    def __init__(self, stay: _Optional[bool] = ...) -> None: ...

class UndoOrder(_message.Message):
    __slots__ = ("reason", "kill", "keep", "tear_down")
    REASON_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    TEAR_DOWN_FIELD_NUMBER: _ClassVar[int]
    reason: str
    kill: bool
    keep: bool
    tear_down: bool
    def __init__(self, reason: _Optional[str] = ..., kill: _Optional[bool] = ..., keep: _Optional[bool] = ..., tear_down: _Optional[bool] = ...) -> None: ...

class FetchOrder(_message.Message):
    __slots__ = ("record", "cold")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    COLD_FIELD_NUMBER: _ClassVar[int]
    record: _records_pb2.WorkerRecord
    cold: bool
    def __init__(self, record: _Optional[_Union[_records_pb2.WorkerRecord, _Mapping]] = ..., cold: _Optional[bool] = ...) -> None: ...

class ClearOrder(_message.Message):
    __slots__ = ("record", "connections")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    record: _records_pb2.WorkerRecord
    connections: _containers.RepeatedCompositeFieldContainer[_records_pb2.Endpoint]
    def __init__(self, record: _Optional[_Union[_records_pb2.WorkerRecord, _Mapping]] = ..., connections: _Optional[_Iterable[_Union[_records_pb2.Endpoint, _Mapping]]] = ...) -> None: ...

class RestoreOrder(_message.Message):
    __slots__ = ("record", "addresses", "incarnation", "workers")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    record: _records_pb2.WorkerRecord
    addresses: _containers.RepeatedCompositeFieldContainer[_records_pb2.AddressMove]
    incarnation: int
    workers: int
    def __init__(self, record: _Optional[_Union[_records_pb2.WorkerRecord, _Mapping]] = ..., addresses: _Optional[_Iterable[_Union[_records_pb2.AddressMove, _Mapping]]] = ..., incarnation: _Optional[int] = ..., workers: _Optional[int] = ...) -> None: ...

class GpuLockOrder(_message.Message):
    __slots__ = ("cut",)
    CUT_FIELD_NUMBER: _ClassVar[int]
    cut: _records_pb2.Cut
    def __init__(self, cut: _Optional[_Union[_records_pb2.Cut, str]] = ...) -> None: ...

class GpuRestoreOrder(_message.Message):
    __slots__ = ("devices",)
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    devices: _containers.RepeatedCompositeFieldContainer[_records_pb2.GpuMove]
    def __init__(self, devices: _Optional[_Iterable[_Union[_records_pb2.GpuMove, _Mapping]]] = ...) -> None: ...

class ReleaseOrder(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OrderResult(_message.Message):
    __slots__ = ("epoch", "job", "worker", "action", "phase", "took_ms", "failure", "ranks", "findings", "record", "held_ms", "root_pid", "note", "laps", "arrivals", "gpu", "files", "files_unnamed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    HELD_MS_FIELD_NUMBER: _ClassVar[int]
    ROOT_PID_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    LAPS_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    FILES_UNNAMED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    job: str
    worker: int
    action: str
    phase: _records_pb2.Phase
    took_ms: int
    failure: _records_pb2.Failure
    ranks: _containers.RepeatedCompositeFieldContainer[_records_pb2.RankState]
    findings: _containers.RepeatedCompositeFieldContainer[_records_pb2.Finding]
    record: _records_pb2.WorkerRecord
    held_ms: int
    root_pid: int
    note: str
    laps: _containers.RepeatedCompositeFieldContainer[_records_pb2.Lap]
    arrivals: _containers.RepeatedCompositeFieldContainer[_records_pb2.Arrival]
    gpu: bool
    files: _containers.RepeatedCompositeFieldContainer[_records_pb2.FileBack]
    files_unnamed: int
    def __init__(self, epoch: _Optional[int] = ..., job: _Optional[str] = ..., worker: _Optional[int] = ..., action: _Optional[str] = ..., phase: _Optional[_Union[_records_pb2.Phase, str]] = ..., took_ms: _Optional[int] = ..., failure: _Optional[_Union[_records_pb2.Failure, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[_records_pb2.RankState, _Mapping]]] = ..., findings: _Optional[_Iterable[_Union[_records_pb2.Finding, _Mapping]]] = ..., record: _Optional[_Union[_records_pb2.WorkerRecord, _Mapping]] = ..., held_ms: _Optional[int] = ..., root_pid: _Optional[int] = ..., note: _Optional[str] = ..., laps: _Optional[_Iterable[_Union[_records_pb2.Lap, _Mapping]]] = ..., arrivals: _Optional[_Iterable[_Union[_records_pb2.Arrival, _Mapping]]] = ..., gpu: _Optional[bool] = ..., files: _Optional[_Iterable[_Union[_records_pb2.FileBack, _Mapping]]] = ..., files_unnamed: _Optional[int] = ...) -> None: ...
