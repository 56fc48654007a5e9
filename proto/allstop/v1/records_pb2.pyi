from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_PREFLIGHT: _ClassVar[Phase]
    PHASE_HOLD: _ClassVar[Phase]
    PHASE_PARK: _ClassVar[Phase]
    PHASE_GPU_LOCK: _ClassVar[Phase]
    PHASE_GPU_SAVE: _ClassVar[Phase]
    PHASE_DUMP: _ClassVar[Phase]
    PHASE_RESUME: _ClassVar[Phase]
    PHASE_PERSIST: _ClassVar[Phase]
    PHASE_COMMIT: _ClassVar[Phase]
    PHASE_STOP: _ClassVar[Phase]
    PHASE_UNDO: _ClassVar[Phase]
    PHASE_PLAN: _ClassVar[Phase]
    PHASE_ADMIT: _ClassVar[Phase]
    PHASE_FETCH: _ClassVar[Phase]
    PHASE_CLEAR: _ClassVar[Phase]
    PHASE_RESTORE: _ClassVar[Phase]
    PHASE_GPU_RESTORE: _ClassVar[Phase]
    PHASE_GPU_UNLOCK: _ClassVar[Phase]
    PHASE_RELEASE: _ClassVar[Phase]
    PHASE_OPEN: _ClassVar[Phase]

class Cut(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CUT_UNSPECIFIED: _ClassVar[Cut]
    CUT_STEP: _ClassVar[Cut]
    CUT_FREEZE: _ClassVar[Cut]

class OldAddresses(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OLD_ADDRESSES_UNSPECIFIED: _ClassVar[OldAddresses]
    OLD_ADDRESSES_REFUSE: _ClassVar[OldAddresses]
    OLD_ADDRESSES_KEEP: _ClassVar[OldAddresses]
    OLD_ADDRESSES_MOVE: _ClassVar[OldAddresses]

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEVERITY_UNSPECIFIED: _ClassVar[Severity]
    SEVERITY_REFUSE: _ClassVar[Severity]
    SEVERITY_WARN: _ClassVar[Severity]

class AttemptState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTEMPT_STATE_UNSPECIFIED: _ClassVar[AttemptState]
    ATTEMPT_STATE_ADMITTING: _ClassVar[AttemptState]
    ATTEMPT_STATE_HOLDING: _ClassVar[AttemptState]
    ATTEMPT_STATE_PARKING: _ClassVar[AttemptState]
    ATTEMPT_STATE_LOCKING: _ClassVar[AttemptState]
    ATTEMPT_STATE_SAVING: _ClassVar[AttemptState]
    ATTEMPT_STATE_DUMPING: _ClassVar[AttemptState]
    ATTEMPT_STATE_PERSISTING: _ClassVar[AttemptState]
    ATTEMPT_STATE_COMMITTING: _ClassVar[AttemptState]
    ATTEMPT_STATE_STOPPING: _ClassVar[AttemptState]
    ATTEMPT_STATE_COMMITTED: _ClassVar[AttemptState]
    ATTEMPT_STATE_ABORTING: _ClassVar[AttemptState]
    ATTEMPT_STATE_ABORTED: _ClassVar[AttemptState]

class RestoreState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESTORE_STATE_UNSPECIFIED: _ClassVar[RestoreState]
    RESTORE_STATE_ADMITTING: _ClassVar[RestoreState]
    RESTORE_STATE_FETCHING: _ClassVar[RestoreState]
    RESTORE_STATE_CLEARING: _ClassVar[RestoreState]
    RESTORE_STATE_RESTORING: _ClassVar[RestoreState]
    RESTORE_STATE_GPU_RESTORING: _ClassVar[RestoreState]
    RESTORE_STATE_GPU_UNLOCKING: _ClassVar[RestoreState]
    RESTORE_STATE_RELEASING: _ClassVar[RestoreState]
    RESTORE_STATE_RUNNING: _ClassVar[RestoreState]
    RESTORE_STATE_FAILING: _ClassVar[RestoreState]
    RESTORE_STATE_FAILED: _ClassVar[RestoreState]

class TroubleKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TROUBLE_KIND_UNSPECIFIED: _ClassVar[TroubleKind]
    TROUBLE_KIND_XID: _ClassVar[TroubleKind]
    TROUBLE_KIND_ECC: _ClassVar[TroubleKind]
    TROUBLE_KIND_REMAP_PENDING: _ClassVar[TroubleKind]
    TROUBLE_KIND_REMAP_FAILED: _ClassVar[TroubleKind]
    TROUBLE_KIND_LOST: _ClassVar[TroubleKind]
    TROUBLE_KIND_RECOVERY: _ClassVar[TroubleKind]

class OnFailure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_FAILURE_UNSPECIFIED: _ClassVar[OnFailure]
    ON_FAILURE_LEAVE: _ClassVar[OnFailure]
    ON_FAILURE_RESTORE: _ClassVar[OnFailure]

class LastResort(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAST_RESORT_UNSPECIFIED: _ClassVar[LastResort]
    LAST_RESORT_STOP: _ClassVar[LastResort]
    LAST_RESORT_COLD_START: _ClassVar[LastResort]

class RecoveryState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECOVERY_STATE_UNSPECIFIED: _ClassVar[RecoveryState]
    RECOVERY_STATE_UNSEEN: _ClassVar[RecoveryState]
    RECOVERY_STATE_WATCHING: _ClassVar[RecoveryState]
    RECOVERY_STATE_RECOVERING: _ClassVar[RecoveryState]
    RECOVERY_STATE_WAITING: _ClassVar[RecoveryState]
    RECOVERY_STATE_GIVEN_UP: _ClassVar[RecoveryState]
    RECOVERY_STATE_FINISHED: _ClassVar[RecoveryState]

class DrainState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAIN_STATE_UNSPECIFIED: _ClassVar[DrainState]
    DRAIN_STATE_DRAINING: _ClassVar[DrainState]
    DRAIN_STATE_DRAINED: _ClassVar[DrainState]
    DRAIN_STATE_FAILED: _ClassVar[DrainState]
    DRAIN_STATE_UNDRAINING: _ClassVar[DrainState]
    DRAIN_STATE_UNDRAINED: _ClassVar[DrainState]

class DrainStep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAIN_STEP_UNSPECIFIED: _ClassVar[DrainStep]
    DRAIN_STEP_WAITING: _ClassVar[DrainStep]
    DRAIN_STEP_STOPPING: _ClassVar[DrainStep]
    DRAIN_STEP_MOVING: _ClassVar[DrainStep]
    DRAIN_STEP_RETURNING: _ClassVar[DrainStep]
    DRAIN_STEP_MOVED: _ClassVar[DrainStep]
    DRAIN_STEP_STAYED: _ClassVar[DrainStep]
    DRAIN_STEP_STRANDED: _ClassVar[DrainStep]

class When(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WHEN_UNSPECIFIED: _ClassVar[When]
    WHEN_NEVER: _ClassVar[When]
    WHEN_SECONDS: _ClassVar[When]
    WHEN_STEPS: _ClassVar[When]
    WHEN_AUTO: _ClassVar[When]
PHASE_UNSPECIFIED: Phase
PHASE_PREFLIGHT: Phase
PHASE_HOLD: Phase
PHASE_PARK: Phase
PHASE_GPU_LOCK: Phase
PHASE_GPU_SAVE: Phase
PHASE_DUMP: Phase
PHASE_RESUME: Phase
PHASE_PERSIST: Phase
PHASE_COMMIT: Phase
PHASE_STOP: Phase
PHASE_UNDO: Phase
PHASE_PLAN: Phase
PHASE_ADMIT: Phase
PHASE_FETCH: Phase
PHASE_CLEAR: Phase
PHASE_RESTORE: Phase
PHASE_GPU_RESTORE: Phase
PHASE_GPU_UNLOCK: Phase
PHASE_RELEASE: Phase
PHASE_OPEN: Phase
CUT_UNSPECIFIED: Cut
CUT_STEP: Cut
CUT_FREEZE: Cut
OLD_ADDRESSES_UNSPECIFIED: OldAddresses
OLD_ADDRESSES_REFUSE: OldAddresses
OLD_ADDRESSES_KEEP: OldAddresses
OLD_ADDRESSES_MOVE: OldAddresses
SEVERITY_UNSPECIFIED: Severity
SEVERITY_REFUSE: Severity
SEVERITY_WARN: Severity
ATTEMPT_STATE_UNSPECIFIED: AttemptState
ATTEMPT_STATE_ADMITTING: AttemptState
ATTEMPT_STATE_HOLDING: AttemptState
ATTEMPT_STATE_PARKING: AttemptState
ATTEMPT_STATE_LOCKING: AttemptState
ATTEMPT_STATE_SAVING: AttemptState
ATTEMPT_STATE_DUMPING: AttemptState
ATTEMPT_STATE_PERSISTING: AttemptState
ATTEMPT_STATE_COMMITTING: AttemptState
ATTEMPT_STATE_STOPPING: AttemptState
ATTEMPT_STATE_COMMITTED: AttemptState
ATTEMPT_STATE_ABORTING: AttemptState
ATTEMPT_STATE_ABORTED: AttemptState
RESTORE_STATE_UNSPECIFIED: RestoreState
RESTORE_STATE_ADMITTING: RestoreState
RESTORE_STATE_FETCHING: RestoreState
RESTORE_STATE_CLEARING: RestoreState
RESTORE_STATE_RESTORING: RestoreState
RESTORE_STATE_GPU_RESTORING: RestoreState
RESTORE_STATE_GPU_UNLOCKING: RestoreState
RESTORE_STATE_RELEASING: RestoreState
RESTORE_STATE_RUNNING: RestoreState
RESTORE_STATE_FAILING: RestoreState
RESTORE_STATE_FAILED: RestoreState
TROUBLE_KIND_UNSPECIFIED: TroubleKind
TROUBLE_KIND_XID: TroubleKind
TROUBLE_KIND_ECC: TroubleKind
TROUBLE_KIND_REMAP_PENDING: TroubleKind
TROUBLE_KIND_REMAP_FAILED: TroubleKind
TROUBLE_KIND_LOST: TroubleKind
TROUBLE_KIND_RECOVERY: TroubleKind
ON_FAILURE_UNSPECIFIED: OnFailure
ON_FAILURE_LEAVE: OnFailure
ON_FAILURE_RESTORE: OnFailure
LAST_RESORT_UNSPECIFIED: LastResort
LAST_RESORT_STOP: LastResort
LAST_RESORT_COLD_START: LastResort
RECOVERY_STATE_UNSPECIFIED: RecoveryState
RECOVERY_STATE_UNSEEN: RecoveryState
RECOVERY_STATE_WATCHING: RecoveryState
RECOVERY_STATE_RECOVERING: RecoveryState
RECOVERY_STATE_WAITING: RecoveryState
RECOVERY_STATE_GIVEN_UP: RecoveryState
RECOVERY_STATE_FINISHED: RecoveryState
DRAIN_STATE_UNSPECIFIED: DrainState
DRAIN_STATE_DRAINING: DrainState
DRAIN_STATE_DRAINED: DrainState
DRAIN_STATE_FAILED: DrainState
DRAIN_STATE_UNDRAINING: DrainState
DRAIN_STATE_UNDRAINED: DrainState
DRAIN_STEP_UNSPECIFIED: DrainStep
DRAIN_STEP_WAITING: DrainStep
DRAIN_STEP_STOPPING: DrainStep
DRAIN_STEP_MOVING: DrainStep
DRAIN_STEP_RETURNING: DrainStep
DRAIN_STEP_MOVED: DrainStep
DRAIN_STEP_STAYED: DrainStep
DRAIN_STEP_STRANDED: DrainStep
WHEN_UNSPECIFIED: When
WHEN_NEVER: When
WHEN_SECONDS: When
WHEN_STEPS: When
WHEN_AUTO: When

class Finding(_message.Message):
    __slots__ = ("severity", "code", "text", "rank", "pid")
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    severity: Severity
    code: str
    text: str
    rank: int
    pid: int
    def __init__(self, severity: _Optional[_Union[Severity, str]] = ..., code: _Optional[str] = ..., text: _Optional[str] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "what", "job", "worker", "rank", "node", "phase", "advice", "definite", "details")
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    DEFINITE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    what: str
    job: str
    worker: int
    rank: int
    node: str
    phase: str
    advice: str
    definite: bool
    details: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[str] = ..., what: _Optional[str] = ..., job: _Optional[str] = ..., worker: _Optional[int] = ..., rank: _Optional[int] = ..., node: _Optional[str] = ..., phase: _Optional[str] = ..., advice: _Optional[str] = ..., definite: _Optional[bool] = ..., details: _Optional[_Iterable[str]] = ...) -> None: ...

class ProgramFile(_message.Message):
    __slots__ = ("path", "size_bytes", "digest")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    digest: str
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("index", "uuid", "model", "memory_bytes", "memory_free_bytes", "pci_address", "architecture", "links", "mig", "sick", "minor", "persistence", "remarks")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PCI_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    MIG_FIELD_NUMBER: _ClassVar[int]
    SICK_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    PERSISTENCE_FIELD_NUMBER: _ClassVar[int]
    REMARKS_FIELD_NUMBER: _ClassVar[int]
    index: int
    uuid: str
    model: str
    memory_bytes: int
    memory_free_bytes: int
    pci_address: str
    architecture: str
    links: _containers.RepeatedScalarFieldContainer[str]
    mig: bool
    sick: str
    minor: int
    persistence: bool
    remarks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, index: _Optional[int] = ..., uuid: _Optional[str] = ..., model: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., memory_free_bytes: _Optional[int] = ..., pci_address: _Optional[str] = ..., architecture: _Optional[str] = ..., links: _Optional[_Iterable[str]] = ..., mig: _Optional[bool] = ..., sick: _Optional[str] = ..., minor: _Optional[int] = ..., persistence: _Optional[bool] = ..., remarks: _Optional[_Iterable[str]] = ...) -> None: ...

class GpuMove(_message.Message):
    __slots__ = ("old", "new")
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    old: str
    new: str
    def __init__(self, old: _Optional[str] = ..., new: _Optional[str] = ...) -> None: ...

class GpuHeld(_message.Message):
    __slots__ = ("uuid", "held_bytes")
    UUID_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    held_bytes: int
    def __init__(self, uuid: _Optional[str] = ..., held_bytes: _Optional[int] = ...) -> None: ...

class NodeFacts(_message.Message):
    __slots__ = ("node", "address", "architecture", "kernel", "cpu_model", "cpu_flags", "criu_version", "memory_bytes", "memory_free_bytes", "staging_free_bytes", "store", "shim_version", "boot_id", "files", "gpus", "gpus_unseen", "gpu_driver", "cuda_version", "gpu_trouble", "gpu_engine", "gpu_looked", "gpu_no_map")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    CPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    CPU_FLAGS_FIELD_NUMBER: _ClassVar[int]
    CRIU_VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGING_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    SHIM_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPUS_UNSEEN_FIELD_NUMBER: _ClassVar[int]
    GPU_DRIVER_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    GPU_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    GPU_ENGINE_FIELD_NUMBER: _ClassVar[int]
    GPU_LOOKED_FIELD_NUMBER: _ClassVar[int]
    GPU_NO_MAP_FIELD_NUMBER: _ClassVar[int]
    node: str
    address: str
    architecture: str
    kernel: str
    cpu_model: str
    cpu_flags: _containers.RepeatedScalarFieldContainer[str]
    criu_version: str
    memory_bytes: int
    memory_free_bytes: int
    staging_free_bytes: int
    store: str
    shim_version: str
    boot_id: str
    files: _containers.RepeatedCompositeFieldContainer[ProgramFile]
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    gpus_unseen: str
    gpu_driver: str
    cuda_version: str
    gpu_trouble: str
    gpu_engine: str
    gpu_looked: _containers.RepeatedScalarFieldContainer[str]
    gpu_no_map: bool
    def __init__(self, node: _Optional[str] = ..., address: _Optional[str] = ..., architecture: _Optional[str] = ..., kernel: _Optional[str] = ..., cpu_model: _Optional[str] = ..., cpu_flags: _Optional[_Iterable[str]] = ..., criu_version: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., memory_free_bytes: _Optional[int] = ..., staging_free_bytes: _Optional[int] = ..., store: _Optional[str] = ..., shim_version: _Optional[str] = ..., boot_id: _Optional[str] = ..., files: _Optional[_Iterable[_Union[ProgramFile, _Mapping]]] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., gpus_unseen: _Optional[str] = ..., gpu_driver: _Optional[str] = ..., cuda_version: _Optional[str] = ..., gpu_trouble: _Optional[str] = ..., gpu_engine: _Optional[str] = ..., gpu_looked: _Optional[_Iterable[str]] = ..., gpu_no_map: _Optional[bool] = ...) -> None: ...

class RankState(_message.Message):
    __slots__ = ("rank", "local_rank", "pid", "boundary", "parked", "no_steps")
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    NO_STEPS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    local_rank: int
    pid: int
    boundary: int
    parked: bool
    no_steps: bool
    def __init__(self, rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., pid: _Optional[int] = ..., boundary: _Optional[int] = ..., parked: _Optional[bool] = ..., no_steps: _Optional[bool] = ...) -> None: ...

class WorkerState(_message.Message):
    __slots__ = ("job", "worker", "workers", "state", "incarnation", "root_pid", "world_size", "ranks", "findings", "command", "exit_code", "action", "gpu", "nccl")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROOT_PID_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    NCCL_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    workers: int
    state: str
    incarnation: int
    root_pid: int
    world_size: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankState]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    command: _containers.RepeatedScalarFieldContainer[str]
    exit_code: int
    action: str
    gpu: bool
    nccl: str
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., workers: _Optional[int] = ..., state: _Optional[str] = ..., incarnation: _Optional[int] = ..., root_pid: _Optional[int] = ..., world_size: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankState, _Mapping]]] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., command: _Optional[_Iterable[str]] = ..., exit_code: _Optional[int] = ..., action: _Optional[str] = ..., gpu: _Optional[bool] = ..., nccl: _Optional[str] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("local_address", "local_port", "remote_address", "remote_port")
    LOCAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_PORT_FIELD_NUMBER: _ClassVar[int]
    REMOTE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REMOTE_PORT_FIELD_NUMBER: _ClassVar[int]
    local_address: str
    local_port: int
    remote_address: str
    remote_port: int
    def __init__(self, local_address: _Optional[str] = ..., local_port: _Optional[int] = ..., remote_address: _Optional[str] = ..., remote_port: _Optional[int] = ...) -> None: ...

class WorkerRecord(_message.Message):
    __slots__ = ("job", "worker", "node", "address", "root_pid", "highest_pid", "ranks", "image_bytes", "memory_bytes", "manifest", "manifest_digest", "connections", "programs", "architecture", "cpu_flags", "kernel", "criu_version", "store", "held_ms", "dump_ms", "command", "gpus", "gpus_unseen", "gpu_pids", "gpu_bytes", "gpu_driver", "gpu_engine", "cuda_version", "nccl", "versions", "gpu_held", "named", "stored_bytes", "shared_bytes", "files", "partial_files", "troubles")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROOT_PID_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_PID_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CPU_FLAGS_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    CRIU_VERSION_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    HELD_MS_FIELD_NUMBER: _ClassVar[int]
    DUMP_MS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPUS_UNSEEN_FIELD_NUMBER: _ClassVar[int]
    GPU_PIDS_FIELD_NUMBER: _ClassVar[int]
    GPU_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_DRIVER_FIELD_NUMBER: _ClassVar[int]
    GPU_ENGINE_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    NCCL_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    GPU_HELD_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FILES_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    node: str
    address: str
    root_pid: int
    highest_pid: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankState]
    image_bytes: int
    memory_bytes: int
    manifest: str
    manifest_digest: str
    connections: _containers.RepeatedCompositeFieldContainer[Endpoint]
    programs: _containers.RepeatedCompositeFieldContainer[ProgramFile]
    architecture: str
    cpu_flags: _containers.RepeatedScalarFieldContainer[str]
    kernel: str
    criu_version: str
    store: str
    held_ms: int
    dump_ms: int
    command: _containers.RepeatedScalarFieldContainer[str]
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    gpus_unseen: str
    gpu_pids: _containers.RepeatedScalarFieldContainer[int]
    gpu_bytes: int
    gpu_driver: str
    gpu_engine: str
    cuda_version: str
    nccl: str
    versions: _containers.RepeatedScalarFieldContainer[str]
    gpu_held: _containers.RepeatedCompositeFieldContainer[GpuHeld]
    named: _containers.RepeatedScalarFieldContainer[str]
    stored_bytes: int
    shared_bytes: int
    files: int
    partial_files: _containers.RepeatedCompositeFieldContainer[FileKept]
    troubles: _containers.RepeatedCompositeFieldContainer[GpuTrouble]
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., node: _Optional[str] = ..., address: _Optional[str] = ..., root_pid: _Optional[int] = ..., highest_pid: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankState, _Mapping]]] = ..., image_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., manifest: _Optional[str] = ..., manifest_digest: _Optional[str] = ..., connections: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., programs: _Optional[_Iterable[_Union[ProgramFile, _Mapping]]] = ..., architecture: _Optional[str] = ..., cpu_flags: _Optional[_Iterable[str]] = ..., kernel: _Optional[str] = ..., criu_version: _Optional[str] = ..., store: _Optional[str] = ..., held_ms: _Optional[int] = ..., dump_ms: _Optional[int] = ..., command: _Optional[_Iterable[str]] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., gpus_unseen: _Optional[str] = ..., gpu_pids: _Optional[_Iterable[int]] = ..., gpu_bytes: _Optional[int] = ..., gpu_driver: _Optional[str] = ..., gpu_engine: _Optional[str] = ..., cuda_version: _Optional[str] = ..., nccl: _Optional[str] = ..., versions: _Optional[_Iterable[str]] = ..., gpu_held: _Optional[_Iterable[_Union[GpuHeld, _Mapping]]] = ..., named: _Optional[_Iterable[str]] = ..., stored_bytes: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., files: _Optional[int] = ..., partial_files: _Optional[_Iterable[_Union[FileKept, _Mapping]]] = ..., troubles: _Optional[_Iterable[_Union[GpuTrouble, _Mapping]]] = ...) -> None: ...

class GpuTrouble(_message.Message):
    __slots__ = ("uuid", "index", "kind", "code", "count", "source", "fresh")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    kind: TroubleKind
    code: int
    count: int
    source: str
    fresh: bool
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., kind: _Optional[_Union[TroubleKind, str]] = ..., code: _Optional[int] = ..., count: _Optional[int] = ..., source: _Optional[str] = ..., fresh: _Optional[bool] = ...) -> None: ...

class FileKept(_message.Message):
    __slots__ = ("path", "size_bytes", "kept_bytes", "why")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    kept_bytes: int
    why: str
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., kept_bytes: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class PhaseTiming(_message.Message):
    __slots__ = ("phase", "started_ms", "took_ms", "slowest")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    started_ms: int
    took_ms: int
    slowest: str
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., started_ms: _Optional[int] = ..., took_ms: _Optional[int] = ..., slowest: _Optional[str] = ...) -> None: ...

class AttemptRecord(_message.Message):
    __slots__ = ("attempt", "job", "state", "epoch", "incarnation", "cut", "stop", "target", "deadline_s", "requested_unix_s", "reason", "failure", "timings", "pause_ms", "nodes", "owed", "keep", "world_size", "gpu", "cause", "base")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OWED_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    attempt: str
    job: str
    state: AttemptState
    epoch: int
    incarnation: int
    cut: Cut
    stop: bool
    target: int
    deadline_s: float
    requested_unix_s: float
    reason: str
    failure: Failure
    timings: _containers.RepeatedCompositeFieldContainer[PhaseTiming]
    pause_ms: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    owed: _containers.RepeatedScalarFieldContainer[int]
    keep: bool
    world_size: int
    gpu: bool
    cause: str
    base: str
    def __init__(self, attempt: _Optional[str] = ..., job: _Optional[str] = ..., state: _Optional[_Union[AttemptState, str]] = ..., epoch: _Optional[int] = ..., incarnation: _Optional[int] = ..., cut: _Optional[_Union[Cut, str]] = ..., stop: _Optional[bool] = ..., target: _Optional[int] = ..., deadline_s: _Optional[float] = ..., requested_unix_s: _Optional[float] = ..., reason: _Optional[str] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., timings: _Optional[_Iterable[_Union[PhaseTiming, _Mapping]]] = ..., pause_ms: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ..., owed: _Optional[_Iterable[int]] = ..., keep: _Optional[bool] = ..., world_size: _Optional[int] = ..., gpu: _Optional[bool] = ..., cause: _Optional[str] = ..., base: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("snapshot", "job", "epoch", "incarnation", "world_size", "step", "cut", "workers", "image_bytes", "digest", "committed_unix_s", "stored_bytes", "shared_bytes", "stores", "pinned", "pinned_unix_s", "deleting", "damaged", "verified_unix_s", "suspect")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    PINNED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    DELETING_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    job: str
    epoch: int
    incarnation: int
    world_size: int
    step: int
    cut: Cut
    workers: _containers.RepeatedCompositeFieldContainer[WorkerRecord]
    image_bytes: int
    digest: str
    committed_unix_s: float
    stored_bytes: int
    shared_bytes: int
    stores: _containers.RepeatedScalarFieldContainer[str]
    pinned: str
    pinned_unix_s: float
    deleting: str
    damaged: str
    verified_unix_s: float
    suspect: str
    def __init__(self, snapshot: _Optional[str] = ..., job: _Optional[str] = ..., epoch: _Optional[int] = ..., incarnation: _Optional[int] = ..., world_size: _Optional[int] = ..., step: _Optional[int] = ..., cut: _Optional[_Union[Cut, str]] = ..., workers: _Optional[_Iterable[_Union[WorkerRecord, _Mapping]]] = ..., image_bytes: _Optional[int] = ..., digest: _Optional[str] = ..., committed_unix_s: _Optional[float] = ..., stored_bytes: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., stores: _Optional[_Iterable[str]] = ..., pinned: _Optional[str] = ..., pinned_unix_s: _Optional[float] = ..., deleting: _Optional[str] = ..., damaged: _Optional[str] = ..., verified_unix_s: _Optional[float] = ..., suspect: _Optional[str] = ...) -> None: ...

class Retention(_message.Message):
    __slots__ = ("keep_last", "keep_for_s", "keep_bytes")
    KEEP_LAST_FIELD_NUMBER: _ClassVar[int]
    KEEP_FOR_S_FIELD_NUMBER: _ClassVar[int]
    KEEP_BYTES_FIELD_NUMBER: _ClassVar[int]
    keep_last: int
    keep_for_s: float
    keep_bytes: int
    def __init__(self, keep_last: _Optional[int] = ..., keep_for_s: _Optional[float] = ..., keep_bytes: _Optional[int] = ...) -> None: ...

class KeptImages(_message.Message):
    __slots__ = ("place", "digest")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    place: str
    digest: str
    def __init__(self, place: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class Cleaned(_message.Message):
    __slots__ = ("objects", "freed_bytes", "snapshots", "attempts", "unknown", "dry_run")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    objects: int
    freed_bytes: int
    snapshots: _containers.RepeatedScalarFieldContainer[str]
    attempts: _containers.RepeatedScalarFieldContainer[str]
    unknown: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    def __init__(self, objects: _Optional[int] = ..., freed_bytes: _Optional[int] = ..., snapshots: _Optional[_Iterable[str]] = ..., attempts: _Optional[_Iterable[str]] = ..., unknown: _Optional[_Iterable[str]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("worker", "from_node", "from_address", "to_node", "to_address", "why", "devices")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FROM_NODE_FIELD_NUMBER: _ClassVar[int]
    FROM_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    TO_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    worker: int
    from_node: str
    from_address: str
    to_node: str
    to_address: str
    why: str
    devices: _containers.RepeatedCompositeFieldContainer[GpuMove]
    def __init__(self, worker: _Optional[int] = ..., from_node: _Optional[str] = ..., from_address: _Optional[str] = ..., to_node: _Optional[str] = ..., to_address: _Optional[str] = ..., why: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[GpuMove, _Mapping]]] = ...) -> None: ...

class AddressMove(_message.Message):
    __slots__ = ("old", "new")
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    old: str
    new: str
    def __init__(self, old: _Optional[str] = ..., new: _Optional[str] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("job", "snapshot", "placements", "addresses", "notes", "cold")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    COLD_FIELD_NUMBER: _ClassVar[int]
    job: str
    snapshot: str
    placements: _containers.RepeatedCompositeFieldContainer[Placement]
    addresses: _containers.RepeatedCompositeFieldContainer[AddressMove]
    notes: _containers.RepeatedScalarFieldContainer[str]
    cold: bool
    def __init__(self, job: _Optional[str] = ..., snapshot: _Optional[str] = ..., placements: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ..., addresses: _Optional[_Iterable[_Union[AddressMove, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., cold: _Optional[bool] = ...) -> None: ...

class NodeReasons(_message.Message):
    __slots__ = ("node", "worker", "reasons")
    NODE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    node: str
    worker: int
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., worker: _Optional[int] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class NodeFit(_message.Message):
    __slots__ = ("node", "worker", "chosen", "why")
    NODE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    node: str
    worker: int
    chosen: bool
    why: str
    def __init__(self, node: _Optional[str] = ..., worker: _Optional[int] = ..., chosen: _Optional[bool] = ..., why: _Optional[str] = ...) -> None: ...

class RestoreRecord(_message.Message):
    __slots__ = ("restore", "job", "snapshot", "state", "epoch", "incarnation", "plan", "deadline_s", "requested_unix_s", "reason", "failure", "timings", "owed", "old", "old_from", "sure", "cold", "cold_why", "cause", "files", "files_unnamed")
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    OWED_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    OLD_FROM_FIELD_NUMBER: _ClassVar[int]
    SURE_FIELD_NUMBER: _ClassVar[int]
    COLD_FIELD_NUMBER: _ClassVar[int]
    COLD_WHY_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    FILES_UNNAMED_FIELD_NUMBER: _ClassVar[int]
    restore: str
    job: str
    snapshot: str
    state: RestoreState
    epoch: int
    incarnation: int
    plan: Plan
    deadline_s: float
    requested_unix_s: float
    reason: str
    failure: Failure
    timings: _containers.RepeatedCompositeFieldContainer[PhaseTiming]
    owed: _containers.RepeatedScalarFieldContainer[int]
    old: _containers.RepeatedCompositeFieldContainer[OldWorker]
    old_from: int
    sure: bool
    cold: bool
    cold_why: str
    cause: str
    files: _containers.RepeatedCompositeFieldContainer[FileBack]
    files_unnamed: int
    def __init__(self, restore: _Optional[str] = ..., job: _Optional[str] = ..., snapshot: _Optional[str] = ..., state: _Optional[_Union[RestoreState, str]] = ..., epoch: _Optional[int] = ..., incarnation: _Optional[int] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., deadline_s: _Optional[float] = ..., requested_unix_s: _Optional[float] = ..., reason: _Optional[str] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., timings: _Optional[_Iterable[_Union[PhaseTiming, _Mapping]]] = ..., owed: _Optional[_Iterable[int]] = ..., old: _Optional[_Iterable[_Union[OldWorker, _Mapping]]] = ..., old_from: _Optional[int] = ..., sure: _Optional[bool] = ..., cold: _Optional[bool] = ..., cold_why: _Optional[str] = ..., cause: _Optional[str] = ..., files: _Optional[_Iterable[_Union[FileBack, _Mapping]]] = ..., files_unnamed: _Optional[int] = ...) -> None: ...

class FileBack(_message.Message):
    __slots__ = ("worker", "node", "path", "what", "aside", "size_bytes")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    ASIDE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    worker: int
    node: str
    path: str
    what: str
    aside: str
    size_bytes: int
    def __init__(self, worker: _Optional[int] = ..., node: _Optional[str] = ..., path: _Optional[str] = ..., what: _Optional[str] = ..., aside: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class OldWorker(_message.Message):
    __slots__ = ("node", "worker")
    NODE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    node: str
    worker: int
    def __init__(self, node: _Optional[str] = ..., worker: _Optional[int] = ...) -> None: ...

class JobRecord(_message.Message):
    __slots__ = ("job", "workers", "world_size", "incarnation", "latest", "retention")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    job: str
    workers: int
    world_size: int
    incarnation: int
    latest: str
    retention: Retention
    def __init__(self, job: _Optional[str] = ..., workers: _Optional[int] = ..., world_size: _Optional[int] = ..., incarnation: _Optional[int] = ..., latest: _Optional[str] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ...) -> None: ...

class Lap(_message.Message):
    __slots__ = ("part", "took_ms")
    PART_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    part: str
    took_ms: int
    def __init__(self, part: _Optional[str] = ..., took_ms: _Optional[int] = ...) -> None: ...

class Arrival(_message.Message):
    __slots__ = ("rank", "after_ms")
    RANK_FIELD_NUMBER: _ClassVar[int]
    AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    after_ms: int
    def __init__(self, rank: _Optional[int] = ..., after_ms: _Optional[int] = ...) -> None: ...

class WorkerTiming(_message.Message):
    __slots__ = ("phase", "worker", "node", "took_ms", "laps", "arrivals", "failed")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    LAPS_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    worker: int
    node: str
    took_ms: int
    laps: _containers.RepeatedCompositeFieldContainer[Lap]
    arrivals: _containers.RepeatedCompositeFieldContainer[Arrival]
    failed: bool
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., worker: _Optional[int] = ..., node: _Optional[str] = ..., took_ms: _Optional[int] = ..., laps: _Optional[_Iterable[_Union[Lap, _Mapping]]] = ..., arrivals: _Optional[_Iterable[_Union[Arrival, _Mapping]]] = ..., failed: _Optional[bool] = ...) -> None: ...

class StoryLine(_message.Message):
    __slots__ = ("unix_s", "text")
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    unix_s: float
    text: str
    def __init__(self, unix_s: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class JobRecovery(_message.Message):
    __slots__ = ("job", "state", "why", "snapshot", "tries", "crashes", "crash_step", "skipped", "story", "suspects", "left_behind", "scratch", "ended", "ended_in", "failed_on", "waited_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    CRASHES_FIELD_NUMBER: _ClassVar[int]
    CRASH_STEP_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_BEHIND_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ENDED_IN_FIELD_NUMBER: _ClassVar[int]
    FAILED_ON_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    state: RecoveryState
    why: str
    snapshot: str
    tries: int
    crashes: int
    crash_step: int
    skipped: _containers.RepeatedScalarFieldContainer[str]
    story: _containers.RepeatedCompositeFieldContainer[StoryLine]
    suspects: _containers.RepeatedScalarFieldContainer[str]
    left_behind: int
    scratch: int
    ended: _containers.RepeatedScalarFieldContainer[int]
    ended_in: int
    failed_on: _containers.RepeatedScalarFieldContainer[str]
    waited_s: float
    def __init__(self, job: _Optional[str] = ..., state: _Optional[_Union[RecoveryState, str]] = ..., why: _Optional[str] = ..., snapshot: _Optional[str] = ..., tries: _Optional[int] = ..., crashes: _Optional[int] = ..., crash_step: _Optional[int] = ..., skipped: _Optional[_Iterable[str]] = ..., story: _Optional[_Iterable[_Union[StoryLine, _Mapping]]] = ..., suspects: _Optional[_Iterable[str]] = ..., left_behind: _Optional[int] = ..., scratch: _Optional[int] = ..., ended: _Optional[_Iterable[int]] = ..., ended_in: _Optional[int] = ..., failed_on: _Optional[_Iterable[str]] = ..., waited_s: _Optional[float] = ...) -> None: ...

class DrainedJob(_message.Message):
    __slots__ = ("job", "step", "snapshot", "why", "tries")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    job: str
    step: DrainStep
    snapshot: str
    why: str
    tries: int
    def __init__(self, job: _Optional[str] = ..., step: _Optional[_Union[DrainStep, str]] = ..., snapshot: _Optional[str] = ..., why: _Optional[str] = ..., tries: _Optional[int] = ...) -> None: ...

class DrainRecord(_message.Message):
    __slots__ = ("node", "state", "why", "reason", "requested_unix_s", "deadline_unix_s", "jobs", "session")
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    node: str
    state: DrainState
    why: str
    reason: str
    requested_unix_s: float
    deadline_unix_s: float
    jobs: _containers.RepeatedCompositeFieldContainer[DrainedJob]
    session: str
    def __init__(self, node: _Optional[str] = ..., state: _Optional[_Union[DrainState, str]] = ..., why: _Optional[str] = ..., reason: _Optional[str] = ..., requested_unix_s: _Optional[float] = ..., deadline_unix_s: _Optional[float] = ..., jobs: _Optional[_Iterable[_Union[DrainedJob, _Mapping]]] = ..., session: _Optional[str] = ...) -> None: ...

class JobPolicy(_message.Message):
    __slots__ = ("job", "when", "cut", "interval_s", "interval_steps", "mtbf_s", "budget", "least_s", "most_s", "set_unix_s", "on_failure", "tries", "grace_s", "wait_s", "hung", "last_resort")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    MTBF_S_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    LEAST_S_FIELD_NUMBER: _ClassVar[int]
    MOST_S_FIELD_NUMBER: _ClassVar[int]
    SET_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    ON_FAILURE_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    HUNG_FIELD_NUMBER: _ClassVar[int]
    LAST_RESORT_FIELD_NUMBER: _ClassVar[int]
    job: str
    when: When
    cut: Cut
    interval_s: float
    interval_steps: int
    mtbf_s: float
    budget: float
    least_s: float
    most_s: float
    set_unix_s: float
    on_failure: OnFailure
    tries: int
    grace_s: float
    wait_s: float
    hung: float
    last_resort: LastResort
    def __init__(self, job: _Optional[str] = ..., when: _Optional[_Union[When, str]] = ..., cut: _Optional[_Union[Cut, str]] = ..., interval_s: _Optional[float] = ..., interval_steps: _Optional[int] = ..., mtbf_s: _Optional[float] = ..., budget: _Optional[float] = ..., least_s: _Optional[float] = ..., most_s: _Optional[float] = ..., set_unix_s: _Optional[float] = ..., on_failure: _Optional[_Union[OnFailure, str]] = ..., tries: _Optional[int] = ..., grace_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., hung: _Optional[float] = ..., last_resort: _Optional[_Union[LastResort, str]] = ...) -> None: ...

class NodeHistory(_message.Message):
    __slots__ = ("node", "watched_s", "failures")
    NODE_FIELD_NUMBER: _ClassVar[int]
    WATCHED_S_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    node: str
    watched_s: float
    failures: int
    def __init__(self, node: _Optional[str] = ..., watched_s: _Optional[float] = ..., failures: _Optional[int] = ...) -> None: ...

class JobHistory(_message.Message):
    __slots__ = ("job", "watched_s", "failures", "nodes", "step_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WATCHED_S_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    watched_s: float
    failures: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeHistory]
    step_s: float
    def __init__(self, job: _Optional[str] = ..., watched_s: _Optional[float] = ..., failures: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeHistory, _Mapping]]] = ..., step_s: _Optional[float] = ...) -> None: ...

class Timeline(_message.Message):
    __slots__ = ("job", "action", "timings", "left_out")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    job: str
    action: str
    timings: _containers.RepeatedCompositeFieldContainer[WorkerTiming]
    left_out: int
    def __init__(self, job: _Optional[str] = ..., action: _Optional[str] = ..., timings: _Optional[_Iterable[_Union[WorkerTiming, _Mapping]]] = ..., left_out: _Optional[int] = ...) -> None: ...
