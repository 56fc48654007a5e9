"""The words of allstop as plain values: what jobs, nodes, attempts, snapshots and restores are.

Everything here is frozen and knows nothing of clocks, gRPC or etcd. `records.proto` has a message
of the same name and fields for each dataclass that is stored or sent (`test_records.py` looks).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coordinator.core.files import FileBack, FileKept
from coordinator.core.health_records import GpuTrouble
from coordinator.core.kept import Retention


class Phase(StrEnum):
    """What a shim is ordered to do; the order of the words is the order of the work."""

    PREFLIGHT = "PREFLIGHT"
    HOLD = "HOLD"
    PARK = "PARK"
    GPU_LOCK = "GPU_LOCK"
    GPU_SAVE = "GPU_SAVE"
    DUMP = "DUMP"  # FREEZE rides on it: one order
    RESUME = "RESUME"
    PERSIST = "PERSIST"
    COMMIT = "COMMIT"
    STOP = "STOP"
    UNDO = "UNDO"
    PLAN = "PLAN"
    ADMIT = "ADMIT"
    FETCH = "FETCH"
    CLEAR = "CLEAR"
    RESTORE = "RESTORE"
    GPU_RESTORE = "GPU_RESTORE"
    GPU_UNLOCK = "GPU_UNLOCK"
    RELEASE = "RELEASE"
    OPEN = "OPEN"  # before RELEASE


class Cut(StrEnum):
    """How the ranks come to rest: at one step, or wherever they are (TCP carries the rest)."""

    STEP = "step"
    FREEZE = "freeze"


class OldAddresses(StrEnum):
    """What becomes of old hosts' names in a command that is started from scratch elsewhere."""

    REFUSE = "refuse"
    KEEP = "keep"
    MOVE = "move"  # addresses are replaced by those of the nodes that take the workers


class Severity(StrEnum):
    """What a preflight finding does to a checkpoint."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True)
class Finding:
    """One thing the preflight saw in a worker's tree."""

    severity: Severity
    code: str  # stable word for programs: io_uring, infiniband, disk_space, hook_missing …
    text: str  # one sentence for people, with what to do
    rank: int = -1  # -1: not one rank's
    pid: int = 0


@dataclass(frozen=True)
class Failure:
    """An error as it travels and is stored; the fields are those of `errors.AllstopError`."""

    kind: str
    what: str
    job: str = ""
    worker: int = -1
    rank: int = -1
    node: str = ""
    phase: str = ""
    advice: str = ""
    definite: bool = True
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgramFile:
    """A file that the restored processes will map or run, and that must be the same there."""

    path: str
    size_bytes: int
    digest: str = ""  # blake3 of the content; empty where only the size is compared


@dataclass(frozen=True)
class Gpu:
    """One GPU of a node."""

    index: int  # as the kernel driver counts
    uuid: str  # GPU-…
    model: str
    memory_bytes: int
    memory_free_bytes: int
    pci_address: str  # 00000000:17:00.0
    architecture: str = ""  # compute capability, 9.0
    links: tuple[str, ...] = ()  # UUIDs of its NVLink peers, sorted
    mig: bool = False
    sick: str = ""  # why it is not to be used; empty: healthy
    minor: int = -1  # N of /dev/nvidiaN; -1: not known
    persistence: bool = False  # its driver state stays while nobody has it open
    remarks: tuple[str, ...] = ()  # of its health, what keeps nobody from using it


@dataclass(frozen=True)
class GpuMove:
    """One entry of a GPU map."""

    old: str  # UUID at the checkpoint
    new: str  # UUID now


@dataclass(frozen=True)
class GpuHeld:
    """Device memory that a worker's processes held on one GPU."""

    uuid: str
    held_bytes: int


@dataclass(frozen=True)
class NodeFacts:
    """What a node is and has; the planner decides on these alone."""

    node: str
    address: str  # the address the node's workers use among themselves
    architecture: str
    kernel: str
    cpu_model: str
    cpu_flags: tuple[str, ...]
    criu_version: str  # empty: no usable CRIU
    memory_bytes: int
    memory_free_bytes: int
    staging_free_bytes: int
    store: str  # identity of the image store it sees; nodes with one store share it
    shim_version: str
    boot_id: str
    files: tuple[ProgramFile, ...] = ()  # answers to the planner's question about program files
    gpus: tuple[Gpu, ...] = ()  # by index; MIG devices are none
    gpus_unseen: str = ""  # why these are not all that the kernel's driver has; empty: they are
    gpu_driver: str = ""  # version; empty: no NVIDIA driver
    cuda_version: str = ""  # the newest that the driver can do
    gpu_trouble: str = ""  # why the GPUs could not be asked
    gpu_engine: str = ""  # what saves device memory: library, program; empty: nothing can
    gpu_looked: tuple[str, ...] = ()  # at what, for `Gpu.sick`: ecc, remapped_rows, kernel_log …
    gpu_no_map: bool = False  # the engine takes no map: a restore needs the very same GPUs


@dataclass(frozen=True)
class RankState:
    """One rank as its shim last saw it."""

    rank: int
    local_rank: int
    pid: int
    boundary: int  # steps finished; -1: the rank has not loaded the hook
    parked: bool = False
    no_steps: bool = False  # it has said that it takes none for now: it evaluates, or saves


@dataclass(frozen=True)
class WorkerState:
    """One worker as its shim last reported it."""

    job: str
    worker: int
    workers: int  # how many workers the job has
    state: str  # starting, running, held, stopped, restored, exited, faulted
    incarnation: int  # 0: it was launched and no coordinator has taken it into a run yet
    root_pid: int
    world_size: int  # 0: not known (no rank has loaded the hook)
    ranks: tuple[RankState, ...] = ()
    findings: tuple[Finding, ...] = ()
    command: tuple[str, ...] = ()
    exit_code: int = 0  # valid when state is exited; negative: killed by that signal
    action: str = ""  # attempt or restore it is held by
    gpu: bool = False  # a process of it has an NVIDIA device open
    nccl: str = ""  # what becomes of its communicators: rebuild, keep, none; empty: no GPU


@dataclass(frozen=True)
class Endpoint:
    """One TCP connection of a worker."""

    local_address: str
    local_port: int
    remote_address: str
    remote_port: int


@dataclass(frozen=True)
class WorkerRecord:
    """What one worker put into a snapshot: enough to plan a restore and to prove the bytes."""

    job: str
    worker: int
    node: str
    address: str
    root_pid: int
    highest_pid: int
    ranks: tuple[RankState, ...]
    image_bytes: int
    memory_bytes: int  # what the tree had resident; room needed on the node that takes it
    manifest: str  # place of the manifest in the image store
    manifest_digest: str  # blake3 of the manifest, which holds the digest of every image file
    connections: tuple[Endpoint, ...]  # established, the other end not in the worker itself
    programs: tuple[ProgramFile, ...]
    architecture: str
    cpu_flags: tuple[str, ...]
    kernel: str
    criu_version: str
    store: str
    held_ms: int  # from SIGSTOP or park to release, as the shim saw it; 0 until known
    dump_ms: int  # criu's own run
    command: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()  # all of its node at the cut
    gpus_unseen: str = ""  # why these are not all of them; empty: they are
    gpu_pids: tuple[int, ...] = ()  # with GPU state, in the order of lock, save and restore
    gpu_bytes: int = 0  # device memory that was saved with the processes
    gpu_driver: str = ""  # its node's
    gpu_engine: str = ""  # what saved its device memory: library, program
    cuda_version: str = ""  # its node's
    nccl: str = ""  # rebuild, keep, none; empty: no GPU
    versions: tuple[str, ...] = ()  # of what it ran: torch 2.13.0, nccl 2.30.7 …
    gpu_held: tuple[GpuHeld, ...] = ()  # before it was saved; empty: not known
    named: tuple[str, ...] = ()  # hosts and GPUs in its first environment: MASTER_ADDR=10.0.0.1
    stored_bytes: int = 0  # what was written to the image store for it
    shared_bytes: int = 0  # of its images, what the store had or another worker stored
    files: int = 0  # open for writing at the cut
    partial_files: tuple[FileKept, ...] = ()  # those that are not kept whole, the first of them
    troubles: tuple[GpuTrouble, ...] = ()  # that its node's GPUs have had since they were reset


class AttemptState(StrEnum):
    """Where an attempt at a checkpoint stands."""

    ADMITTING = "ADMITTING"
    HOLDING = "HOLDING"
    PARKING = "PARKING"
    LOCKING = "LOCKING"
    SAVING = "SAVING"
    DUMPING = "DUMPING"
    PERSISTING = "PERSISTING"
    COMMITTING = "COMMITTING"
    STOPPING = "STOPPING"
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"


class RestoreState(StrEnum):
    """Where a restore stands."""

    ADMITTING = "ADMITTING"
    FETCHING = "FETCHING"
    CLEARING = "CLEARING"
    RESTORING = "RESTORING"
    GPU_RESTORING = "GPU_RESTORING"
    GPU_UNLOCKING = "GPU_UNLOCKING"
    RELEASING = "RELEASING"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"


@dataclass(frozen=True)
class PhaseTiming:
    """How long one phase took, as the coordinator saw it."""

    phase: Phase
    started_ms: int  # after the request
    took_ms: int
    slowest: str = ""  # who came last: "worker 1 on node-1"


@dataclass(frozen=True)
class AttemptRecord:
    """One try at a checkpoint, as etcd keeps it."""

    attempt: str
    job: str
    state: AttemptState
    epoch: int
    incarnation: int
    cut: Cut
    stop: bool  # leave the job stopped after COMMIT
    target: int  # step at which all ranks park; 0: not known yet, or cut = freeze
    deadline_s: float  # for the whole attempt
    requested_unix_s: float
    reason: str  # why it is in this state, one sentence
    failure: Failure | None = None
    timings: tuple[PhaseTiming, ...] = ()
    pause_ms: int = 0  # from all parked (or frozen) to all resumed, as far as known
    nodes: tuple[str, ...] = ()  # of its workers, by their number; settled when it began
    owed: tuple[int, ...] = ()  # workers that have not said that they were undone, or stopped
    keep: bool = False  # it may be a snapshot all the same: what is stored stays
    world_size: int = 0  # ranks; 0: not known yet
    gpu: bool = False  # a worker has state on a device
    cause: str = ""  # why it was due; empty: an operator asked for it
    base: str = ""  # snapshot whose stored bytes it shares, and that stays until it is over


@dataclass(frozen=True)
class Snapshot:
    """A committed attempt: the only thing that can be restored."""

    snapshot: str  # the attempt's id
    job: str
    epoch: int
    incarnation: int
    world_size: int
    step: int
    cut: Cut
    workers: tuple[WorkerRecord, ...]
    image_bytes: int
    digest: str  # over the workers' manifest digests
    committed_unix_s: float
    stored_bytes: int = 0  # what was written to the image store for it
    shared_bytes: int = 0  # of its images, what needed no writing
    stores: tuple[str, ...] = ()  # identities of the image stores that hold it, sorted
    pinned: str = ""  # why it stays whatever the retention says; empty: it is not pinned
    pinned_unix_s: float = 0.0
    deleting: str = ""  # why it is being deleted, which nothing takes back; empty: it is kept
    damaged: str = ""  # what was found broken when it was read again
    verified_unix_s: float = 0.0  # when all of it was last read again
    suspect: str = ""  # why what is in it may be wrong; empty: nothing is known


@dataclass(frozen=True)
class Placement:
    """One worker's place in a plan."""

    worker: int
    from_node: str
    from_address: str
    to_node: str
    to_address: str
    why: str
    devices: tuple[GpuMove, ...] = ()  # every GPU of the node; empty: they are the same ones


@dataclass(frozen=True)
class AddressMove:
    """One entry of the global address map; the images of all workers are rewritten with it."""

    old: str
    new: str


@dataclass(frozen=True)
class Plan:
    """Which node takes which worker, and the one address map for all images."""

    job: str
    snapshot: str
    placements: tuple[Placement, ...]
    addresses: tuple[AddressMove, ...]  # only those that differ
    notes: tuple[str, ...] = ()
    cold: bool = False  # nothing is put back: the job's own commands are started from scratch


@dataclass(frozen=True)
class OldWorker:
    """A worker that a restore replaces."""

    node: str
    worker: int


@dataclass(frozen=True)
class RestoreRecord:
    """One try at putting a snapshot back, as etcd keeps it."""

    restore: str
    job: str
    snapshot: str
    state: RestoreState
    epoch: int
    incarnation: int  # the new one
    plan: Plan
    deadline_s: float
    requested_unix_s: float
    reason: str
    failure: Failure | None = None
    timings: tuple[PhaseTiming, ...] = ()
    owed: tuple[int, ...] = ()  # workers that have not said that they were cleared away
    old: tuple[OldWorker, ...] = ()  # those in reach of the run that it replaces
    old_from: int = 0  # the lowest incarnation of that run; 0: not known
    sure: bool = False  # one worker of that run is gone, so that it takes no more steps
    cold: bool = False  # the job is started from scratch, and `snapshot` is what nothing fitted
    cold_why: str = ""  # why it is not that snapshot
    cause: str = ""  # what ended the run that it replaces; empty: an operator asked for it
    files: tuple[FileBack, ...] = ()  # what its workers told of files, the first of them
    files_unnamed: int = 0  # so many more


@dataclass(frozen=True)
class JobRecord:
    """A job as etcd keeps it."""

    job: str
    workers: int
    world_size: int
    incarnation: int
    latest: str = ""  # id of the newest snapshot
    retention: Retention | None = None  # None: every snapshot stays
