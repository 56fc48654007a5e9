"""The features that rows can ask for; what each means stands in the table itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class NodeFeature(StrEnum):
    """Something of a node, seen without looking at a worker."""

    NO_ENGINE = "no_engine"
    ENGINE_IS_PROGRAM = "engine_is_program"
    DRIVER_UNKNOWN = "driver_unknown"
    MIG = "mig"
    VGPU = "vgpu"
    MPS_DAEMON = "mps_daemon"
    CONFIDENTIAL = "confidential"
    CONFIDENTIAL_UNKNOWN = "confidential_unknown"
    GPUS_HIDDEN = "gpus_hidden"
    DEVICE_ALIAS = "device_alias"
    PERSISTENCE_OFF = "persistence_off"
    REMOVE_IPC = "remove_ipc"


class TreeFeature(StrEnum):
    """Something of a worker's processes."""

    GPU = "gpu"
    INHERITED_DEVICE = "inherited_device"
    STOPPED = "stopped"
    FROZEN_CGROUP = "frozen_cgroup"
    MIG_DEVICE = "mig_device"
    MPS_CLIENT = "mps_client"
    MANAGED_MEMORY = "managed_memory"
    GPU_DIRECT_STORAGE = "gpu_direct_storage"
    IMEX_CHANNEL = "imex_channel"
    INFINIBAND = "infiniband"
    CUDA_JOB = "cuda_job"
    USER_SHM = "user_shm"
    TORCH = "torch"
    NCCL = "nccl"
    NCCL_LIVE = "nccl_live"
    NCCL_PEERS = "nccl_peers"
    MODE_REBUILD = "mode_rebuild"
    MODE_KEEP = "mode_keep"
    MODE_NONE = "mode_none"
    NCCL_REBUILD = "nccl_rebuild"
    NCCL_NO_RANK = "nccl_no_rank"
    NCCL_SHIM_SKEW = "nccl_shim_skew"
    NCCL_STATIC = "nccl_static"
    NCCL_UNKNOWN = "nccl_unknown"
    NCCL_NET = "nccl_net"
    NCCL_IB = "nccl_ib"
    NCCL_CUMEM = "nccl_cumem"
    NCCL_P2P = "nccl_p2p"
    NCCL_SHM = "nccl_shm"
    NCCL_CUMEM_HOST = "nccl_cumem_host"
    NCCL_NVLS = "nccl_nvls"
    NCCL_RAS = "nccl_ras"
    NCCL_HEARTBEAT = "nccl_heartbeat"
    NCCL_RETHROW = "nccl_rethrow"


Feature = NodeFeature | TreeFeature


@dataclass(frozen=True)
class Seen:
    """Where a feature was seen. `what` completes a sentence: "… maps /dev/infiniband/uverbs0"."""

    what: str
    pid: int = 0  # 0: it is the node's
    rank: int = -1
    name: str = ""  # of the process


Features = Mapping[Feature, Sequence[Seen]]
