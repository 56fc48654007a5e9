"""What a shim is told when it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from worker_shim.files.keeping import Keeping
from worker_shim.images.port import Launch

if TYPE_CHECKING:
    from grpc import ChannelCredentials

    from worker_shim.images.objects.opening import StoreOptions

RUN_DIRECTORY = Path("/run/allstop")
STAGING_DIRECTORY = Path("/var/lib/allstop/staging")
STATE_DIRECTORY = Path("/var/lib/allstop/node")


@dataclass(frozen=True)
class ShimOptions:
    """The node and where its things are.

    `run_dir` must be the same path on every node: restored processes have files in it open.
    """

    node: str
    coordinators: Sequence[str]  # host:port or unix:path; the first that answers is used
    store: StoreOptions
    credentials: ChannelCredentials | None = None  # for TCP; None: plain
    server_name: str = ""  # in the coordinators' certificates; empty: the address
    address: str = ""  # empty: that of the default interface
    run_dir: Path = RUN_DIRECTORY
    staging_dir: Path = STAGING_DIRECTORY
    state_dir: Path = STATE_DIRECTORY  # highest epoch seen
    criu: Path | None = None  # None: ALLSTOP_CRIU, then PATH
    criu_at_once: int = 0  # trees dumped or restored in parallel; 0: one for each core
    gpu_engine: str = "auto"  # library, program, none: see cuda/choosing
    persist_bytes_per_s: float = 0.0  # to the store; 0: as fast as it goes
    persist_cpu: float = 0.0  # share of one core for hashing and storing; 0: what the job leaves
    persist_verify: str = "index"  # what PERSIST reads back: every pack's index, or every byte
    keep_images: bool = True  # in staging, while there is room, for a restore on this node
    goodbye_s: float = 3.0
    dcgm_url: str = ""  # of DCGM's exporter, read for the health of GPUs; empty: none
    metrics: str = ""  # host:port that answers Prometheus; empty: nobody does
    linger_s: float = 300.0  # for a restore of a failed worker; a leader that wants one keeps it
    on_term: str = "end"  # SIGTERM: drain moves jobs away first, stop saves and ends them
    term_grace_s: float = 120.0  # for that
    term_code: int = 0  # with which a shim ends that SIGTERM has ended without a loss
    save_grace_s: float = 0.0  # for the checkpoints that SIGUSR1 asks for; 0: no deadline
    preemption: str = ""  # the cloud whose notices are watched: aws, azure, gcp; empty: none
    preemption_url: str = ""  # of its metadata service; empty: where that cloud has it
    until_worker_ends: bool = False  # a spare that leaves with the worker a restore brought it


@dataclass(frozen=True)
class WorkerSpec:
    """A worker that `shim run` starts."""

    job: str
    worker: int
    workers: int
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = field(default_factory=Path.cwd)
    slots: int = 64  # ranks that fit into the control page
    nccl: str = "auto"  # what becomes of NCCL's communicators: auto, rebuild, keep, none
    nccl_shim: Path | None = None  # NCCL's checkpoint shim; None: looked for in usual places
    follow: bool = True  # the worker's output goes to the shim's stdout too
    keeping: Keeping = field(default_factory=Keeping)  # of files that it has open for writing

    @property
    def launch(self) -> Launch:
        """What its manifest keeps of this, to start it anew by."""
        return Launch(
            argv=tuple(self.argv),
            env=dict(self.env),
            cwd=str(self.cwd),
            slots=self.slots,
            nccl=self.nccl,
            nccl_shim=str(self.nccl_shim.absolute()) if self.nccl_shim is not None else "",
        )
