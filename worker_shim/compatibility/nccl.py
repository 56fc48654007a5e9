"""What processes show of NCCL: threads, sockets, shared memory, libraries and environment."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from worker_shim.compatibility.features import TreeFeature
from worker_shim.compatibility.libraries import UNKNOWN, nccl_versions
from worker_shim.hook.communicators import MODE_VARIABLE, REBUILD
from worker_shim.hook.page import PATH_VARIABLE
from worker_shim.nccl import live
from worker_shim.nccl.launching import HEARTBEAT_VARIABLE, RETHROW_VARIABLE
from worker_shim.nccl.modes import KEEP
from worker_shim.nccl.slots import slots
from worker_shim.process.proc import read_environment
from worker_shim.process.view import ProcessView, TreeView

WATCHDOG = ("thread pt_nccl_watchdg", "thread pt_nccl_heartbt")
NO = ("0", "n", "no", "f", "false")
HEARTBEAT_S = 480  # PyTorch's own, unless the environment says otherwise
SHOWN_MAX = 3
# How many ranks this node has, as launchers say it: torchrun and `--ranks`, Open MPI, MPICH, Slurm.
LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)

Environment = Mapping[str, str]
Told = Iterator[tuple[TreeFeature, str]]


def features(
    tree: TreeView, *, neighbours: bool, stand_still_s: float, without: Collection[int] = ()
) -> Iterator[tuple[ProcessView, TreeFeature, str]]:
    """Of every process but those `without`; `neighbours`: several of the tree have a GPU."""
    traces = live.evidence(tree)
    for view in tree.processes:
        if view.process.pid not in without:
            for feature, what in (*_of(view, traces, neighbours), *_timers(view, stand_still_s)):
                yield view, feature, what


def _of(view: ProcessView, of_all: Mapping[int, tuple[str, ...]], neighbours: bool) -> Told:
    """The library alone means nothing: PyTorch for CUDA always has it. A group has threads.

    A job that has chosen what becomes of NCCL is told of its settings before there is a group.
    """
    environment = read_environment(view.process.pid)
    traces, groups = of_all.get(view.process.pid, ()), live.groups(view)
    mode = environment.get(MODE_VARIABLE, "")
    alone = environment.get("WORLD_SIZE") == "1"
    if traces or groups:
        yield TreeFeature.NCCL, _shown((*traces, *groups))
        yield from _of_versions(view)
        if traces or not alone:  # a group of one has nobody to wait for
            yield from _of_live(view, environment, _shown((*traces, *groups)))
    elif mode not in (REBUILD, KEEP) or not live.has_library(view):
        return
    yield _mode(mode), f"{MODE_VARIABLE}={mode}" if mode else "it has no mode"
    if mode == REBUILD and (shim := live.shim(view)):
        yield TreeFeature.NCCL_REBUILD, f"has {shim}"
        if own := _of_no_rank(view, environment, of_all):
            yield TreeFeature.NCCL_NO_RANK, _shown(own)
    if not alone:
        if traces or groups:
            yield TreeFeature.NCCL_PEERS, _shown((*traces, *groups))
        yield from _transports(environment, _has_neighbours(environment, neighbours))


def _mode(mode: str) -> TreeFeature:
    known = {REBUILD: TreeFeature.MODE_REBUILD, KEEP: TreeFeature.MODE_KEEP}
    return known.get(mode, TreeFeature.MODE_NONE)


def _of_live(view: ProcessView, environment: Environment, shown: str) -> Told:
    yield TreeFeature.NCCL_LIVE, shown
    skew = _skew(view, environment)
    if skew and environment.get(MODE_VARIABLE) == REBUILD:
        yield TreeFeature.NCCL_SHIM_SKEW, skew


def _of_versions(view: ProcessView) -> Told:
    versions = nccl_versions(view)
    if not versions:
        yield TreeFeature.NCCL_STATIC, "has NCCL and no libnccl.so"
    elif UNKNOWN in versions:
        yield TreeFeature.NCCL_UNKNOWN, "libnccl.so does not say which one it is"


def _skew(view: ProcessView, environment: Environment) -> str:
    """The checkpoint shim's own NCCL where it is none of those here; the rank's hook has asked."""
    slot = (slots(environment.get(PATH_VARIABLE, "")) or {}).get(view.process.pid)
    code = slot.get("shim_nccl") if slot is not None else 0
    versions = nccl_versions(view)
    if not code or not versions or UNKNOWN in versions:
        return ""
    built_for = f"{code // 10000}.{code // 100 % 100}.{code % 100}"
    said = f"the shim is built for {built_for}, and this is {', '.join(versions)}"
    return "" if built_for in versions else said


def _of_no_rank(
    view: ProcessView, environment: Environment, of_all: Mapping[int, tuple[str, ...]]
) -> tuple[str, ...]:
    """Communicators of a process that has no slot of the control page: no hook destroys them.

    What a rank has too is its own, which this one has by fork; threads are never.
    """
    taken = slots(environment.get(PATH_VARIABLE, ""))
    if taken is None or view.process.pid in taken:
        return ()
    of_ranks = {sign for pid in taken for sign in of_all.get(pid, ())}
    mine = of_all.get(view.process.pid, ())
    return tuple(sign for sign in mine if sign.startswith("thread ") or sign not in of_ranks)


def _has_neighbours(environment: Environment, in_tree: bool) -> bool:
    """Whether other ranks are on this node: with `--ranks` each of them is a tree of its own."""
    said = (environment.get(name, "") for name in LOCAL_SIZES)
    return in_tree or any(size.isdecimal() and int(size) > 1 for size in said)


def _transports(environment: Environment, neighbours: bool) -> Told:
    """How ranks talk; what is between those of one node counts where there are several."""
    if environment.get("NCCL_RAS_ENABLE", "") != "0":
        yield TreeFeature.NCCL_RAS, _said(environment, "NCCL_RAS_ENABLE")
    if environment.get("NCCL_NET", "").lower() != "socket":
        yield TreeFeature.NCCL_NET, _said(environment, "NCCL_NET")
    if not _on(environment, "NCCL_IB_DISABLE"):
        yield TreeFeature.NCCL_IB, _said(environment, "NCCL_IB_DISABLE")
    if not neighbours:
        return
    if environment.get("NCCL_NVLS_ENABLE", "") != "0":
        yield TreeFeature.NCCL_NVLS, _said(environment, "NCCL_NVLS_ENABLE")
    if environment.get("NCCL_CUMEM_ENABLE", "") != "0":
        yield TreeFeature.NCCL_CUMEM, _said(environment, "NCCL_CUMEM_ENABLE")
    p2p = not _on(environment, "NCCL_P2P_DISABLE")
    if p2p and environment.get("NCCL_P2P_LEVEL", "") not in ("LOC", "0"):
        yield TreeFeature.NCCL_P2P, _said(environment, "NCCL_P2P_DISABLE")
    if not _on(environment, "NCCL_SHM_DISABLE"):
        yield TreeFeature.NCCL_SHM, _said(environment, "NCCL_SHM_DISABLE")
        if environment.get("NCCL_CUMEM_HOST_ENABLE", "") != "0":
            yield TreeFeature.NCCL_CUMEM_HOST, _said(environment, "NCCL_CUMEM_HOST_ENABLE")


def _timers(view: ProcessView, stand_still_s: float) -> Told:
    """What PyTorch's watchdog of a process group does to a rank that stands still."""
    if not set(live.groups(view)).intersection(WATCHDOG):
        return
    environment = read_environment(view.process.pid)
    said = environment.get(HEARTBEAT_VARIABLE, "")
    timeout_s = int(said) if said.isdecimal() else HEARTBEAT_S
    watched = environment.get("TORCH_NCCL_ENABLE_MONITORING", "1").lower()
    if watched not in NO and timeout_s < stand_still_s:
        yield TreeFeature.NCCL_HEARTBEAT, f"{timeout_s} s, and it may be {stand_still_s:g} s"
    if environment.get(RETHROW_VARIABLE, "1") != "0":
        yield TreeFeature.NCCL_RETHROW, _said(environment, RETHROW_VARIABLE)


def _on(environment: Environment, variable: str) -> bool:
    return environment.get(variable, "").strip() not in ("", "0")


def _said(environment: Environment, variable: str) -> str:
    value = environment.get(variable)
    return f"{variable} is not set" if value is None else f"{variable}={value}"


def _shown(signs: tuple[str, ...]) -> str:
    more = f" and {len(signs) - SHOWN_MAX} more" if len(signs) > SHOWN_MAX else ""
    return ", ".join(signs[:SHOWN_MAX]) + more
