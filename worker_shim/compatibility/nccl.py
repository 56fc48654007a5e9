"""What a process with a GPU shows of NCCL: threads, shared memory, libraries and environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from worker_shim.compatibility.features import TreeFeature
from worker_shim.compatibility.libraries import nccl_versions
from worker_shim.hook.communicators import MODE_VARIABLE, REBUILD
from worker_shim.nccl import live
from worker_shim.nccl.launching import HEARTBEAT_VARIABLE, RETHROW_VARIABLE
from worker_shim.process import proc
from worker_shim.process.view import ProcessView

# PyTorch names the threads of each NCCL process group; NCCL its own with NCCL_SET_THREAD_NAME.
WATCHDOG = ("pt_nccl_watchdg", "pt_nccl_heartbt")
THREADS = (*WATCHDOG, live.THREADS)
SHIMS = (
    "libnccl-checkpoint",
    "libnccl_checkpoint",
)  # contrib/nccl_checkpoint: tears down, rebuilds
NO = ("0", "n", "no", "f", "false")
HEARTBEAT_S = 480  # PyTorch's own, unless the environment says otherwise
HEARTBEAT_NEEDED_S = 600  # a lock, a save of 80 GB a rank, and a dump

# Set by default; what the variable must be to switch it off.
_SWITCHES = (
    (TreeFeature.NCCL_RAS, "NCCL_RAS_ENABLE", False),
    (TreeFeature.NCCL_CUMEM, "NCCL_CUMEM_ENABLE", True),
    (TreeFeature.NCCL_NVLS, "NCCL_NVLS_ENABLE", True),
)


def features(view: ProcessView, *, neighbours: bool) -> Iterator[tuple[TreeFeature, str]]:
    """Of one process; `neighbours`: another process of the tree has a GPU too.

    The library alone means nothing: PyTorch for CUDA always has it. A group of NCCL has threads.
    """
    threads = frozenset(proc.thread_names(view.process.pid))
    evidence = _evidence(view, threads)
    if not evidence:
        return
    environment = proc.read_environment(view.process.pid)
    yield TreeFeature.NCCL, evidence
    if not nccl_versions(view):
        yield TreeFeature.NCCL_STATIC, "has NCCL and no libnccl.so"
    shim = _shim(view)
    if shim and environment.get(MODE_VARIABLE, REBUILD) == REBUILD:
        yield TreeFeature.NCCL_REBUILD, f"has {shim}"
    yield from _timers(environment, threads)
    if environment.get("WORLD_SIZE") == "1":
        return
    yield TreeFeature.NCCL_PEERS, evidence
    for feature, variable, local in _SWITCHES:
        if environment.get(variable, "") != "0" and (neighbours or not local):
            yield feature, _said(environment, variable)
    if neighbours:
        yield from _local_transports(environment)


def _local_transports(environment: Mapping[str, str]) -> Iterator[tuple[TreeFeature, str]]:
    """How ranks of one node talk: device to device, or through host memory."""
    p2p = environment.get("NCCL_P2P_DISABLE", "0") == "0"
    if p2p and environment.get("NCCL_P2P_LEVEL", "") not in ("LOC", "0"):
        yield TreeFeature.NCCL_P2P, _said(environment, "NCCL_P2P_DISABLE")
    shared = environment.get("NCCL_SHM_DISABLE", "0") == "0"
    if shared and environment.get("NCCL_CUMEM_HOST_ENABLE", "") != "0":
        yield TreeFeature.NCCL_CUMEM_HOST, _said(environment, "NCCL_CUMEM_HOST_ENABLE")


def _timers(
    environment: Mapping[str, str], threads: frozenset[str]
) -> Iterator[tuple[TreeFeature, str]]:
    if not threads.intersection(WATCHDOG):
        return
    said = environment.get(HEARTBEAT_VARIABLE, "")
    timeout_s = int(said) if said.isdecimal() else HEARTBEAT_S
    watched = environment.get("TORCH_NCCL_ENABLE_MONITORING", "1").lower()
    if watched not in NO and timeout_s < HEARTBEAT_NEEDED_S:
        yield TreeFeature.NCCL_HEARTBEAT, f"{timeout_s} s"
    if environment.get(RETHROW_VARIABLE, "1") != "0":
        yield TreeFeature.NCCL_RETHROW, _said(environment, RETHROW_VARIABLE)


def _said(environment: Mapping[str, str], variable: str) -> str:
    value = environment.get(variable)
    return f"{variable} is not set" if value is None else f"{variable}={value}"


def _evidence(view: ProcessView, threads: frozenset[str]) -> str:
    for name in sorted(threads):
        if name.startswith(THREADS):
            return f"has a thread {name.strip()}"
    paths = (*(d.target for d in view.descriptors), *(area.path for area in view.mappings))
    return next((f"maps {path}" for path in paths if path.startswith(live.SHARED_MEMORY)), "")


def _shim(view: ProcessView) -> str:
    names = (area.path.rpartition("/")[2] for area in view.mappings)
    return next((name for name in names if name.startswith(SHIMS)), "")
