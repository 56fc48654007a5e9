"""The features of a worker's processes, from /proc alone: no driver is asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from worker_shim.compatibility import libraries, mps, nccl
from worker_shim.compatibility.features import Feature, Features, Seen, TreeFeature
from worker_shim.compatibility.node import NodeSight
from worker_shim.compatibility.situation import Situation, Versioned
from worker_shim.cuda.devices import DEVICE_PREFIX
from worker_shim.nccl import live
from worker_shim.process import proc
from worker_shim.process.view import Descriptor, ProcessView, TreeView

INFINIBAND = "/dev/infiniband/"
SHM = "/dev/shm/"
CGROUPS = Path("/sys/fs/cgroup")
MIG_CAPABILITY = re.compile(r"-caps/nvidia-cap(\d+)$")
MIG_SETTINGS = (1, 2)  # minors of MIG's configuration and monitor, which NVML may open in any rank
UVM_AREAS_MAX = 1  # of an ordinary CUDA process; managed memory brings areas of its own
USER_IDS_FROM = 1000  # systemd's own users are below: logind leaves them alone
RDMA_EVENTS = "anon_inode:[infinibandevent]"


@dataclass(frozen=True)
class _Devices:
    """What a process has of one driver's devices."""

    descriptors: tuple[Descriptor, ...]
    mapped: tuple[str, ...]  # a path as often as it is mapped

    @property
    def any(self) -> bool:
        """True when it holds one at all."""
        return bool(self.descriptors or self.mapped)

    def first(self, prefix: str) -> str:
        """How it holds a device whose path begins so; empty when it holds none."""
        for descriptor in self.descriptors:
            if descriptor.target.startswith(prefix):
                return f"has descriptor {descriptor.number} on {descriptor.target}"
        return next((f"maps {path}" for path in self.mapped if path.startswith(prefix)), "")


def concerns(tree: TreeView) -> bool:
    """Whether any process has something that a row could be about."""
    places = (DEVICE_PREFIX, INFINIBAND, SHM, RDMA_EVENTS)
    return any(
        live.has_library(view)
        or live.shim(view)
        or any(d.target.startswith(places) for d in view.descriptors)
        or any(area.path.startswith(places) for area in view.mappings)
        for view in tree.processes
    )


def situation(
    tree: TreeView,
    node: NodeSight,
    nvidia: str = DEVICE_PREFIX,
    infiniband: str = INFINIBAND,
) -> Situation:
    """What this tree's rows are judged on; the paths are what those of device files begin with."""
    held = {view.process.pid: _held(view, nvidia) for view in tree.processes}
    using = [view for view in tree.processes if held[view.process.pid].any]
    heirs = {view.process.pid: what for view, what in _heirs(using, held)}
    ranks = [view for view in using if view.process.pid not in heirs]
    found: dict[Feature, list[Seen]] = {
        feature: list(seen) for feature, seen in node.features.items()
    }
    for view in tree.processes:
        for feature, what in _of_any(view, infiniband):
            found.setdefault(feature, []).append(_seen(view, what))
        if what := heirs.get(view.process.pid, ""):
            found.setdefault(TreeFeature.INHERITED_DEVICE, []).append(_seen(view, what))
    for view in ranks:
        for feature, what in _of_rank(view, held[view.process.pid], nvidia, node.mig_minors):
            found.setdefault(feature, []).append(_seen(view, what))
    with_nccl = []
    for view, feature, what in nccl.features(
        tree, neighbours=len(ranks) > 1, stand_still_s=node.stand_still_s, without=heirs
    ):
        found.setdefault(feature, []).append(_seen(view, what))
        with_nccl.append(view)
    versions: dict[Versioned, tuple[str, ...]] = {
        **node.versions,
        "nccl": _once(v for view in (*ranks, *with_nccl) for v in libraries.nccl_versions(view)),
        "torch": _once(v for view in ranks for v in libraries.torch_versions(view)),
    }
    return Situation(node.architecture, versions, _frozen(found))


def _once(versions: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(versions))


def _frozen(found: dict[Feature, list[Seen]]) -> Features:
    return {feature: tuple(seen) for feature, seen in found.items()}


def _seen(view: ProcessView, what: str) -> Seen:
    name = view.process.argv[0].rpartition("/")[2]
    return Seen(what, view.process.pid, view.process.rank, name)


def _held(view: ProcessView, prefix: str) -> _Devices:
    return _Devices(
        tuple(d for d in view.descriptors if d.target.startswith(prefix)),
        tuple(area.path for area in view.mappings if area.path.startswith(prefix)),
    )


def _heirs(
    using: list[ProcessView], held: dict[int, _Devices]
) -> Iterator[tuple[ProcessView, str]]:
    """Processes all of whose devices are an older process's own open files: fork gave them.

    Whoever sets CUDA up opens devices itself; a fork of a process that has done so cannot use them.
    Where the kernel does not compare descriptors nobody is named here, and the lock finds them.
    """
    by_age = sorted(using, key=lambda view: view.process.start_ticks)
    for number, view in enumerate(by_age):
        mine = held[view.process.pid].descriptors
        for owner in by_age[:number] if mine else ():
            same = {d.number: d.target for d in held[owner.process.pid].descriptors}
            if all(
                same.get(d.number) == d.target
                and proc.shares_file(view.process.pid, owner.process.pid, d.number)
                for d in mine
            ):
                numbers = ", ".join(str(d.number) for d in mine)
                plural = "s" if len(mine) > 1 else ""
                yield view, f"descriptor{plural} {numbers} of pid {owner.process.pid}"
                break


def _of_any(view: ProcessView, infiniband: str) -> Iterator[tuple[TreeFeature, str]]:
    """What counts for processes without a GPU too."""
    rdma = _held(view, infiniband)
    events = (d for d in view.descriptors if d.target == RDMA_EVENTS)
    if what := rdma.first(infiniband) or next(
        (f"has descriptor {d.number} on an RDMA event channel" for d in events), ""
    ):
        yield TreeFeature.INFINIBAND, what
    shared = _held(view, SHM)
    if shared.any and _user_id(view) >= USER_IDS_FROM:
        yield TreeFeature.USER_SHM, shared.first(SHM)


def _of_rank(
    view: ProcessView, held: _Devices, nvidia: str, mig_minors: frozenset[int] | None
) -> Iterator[tuple[TreeFeature, str]]:
    """What counts for a process that has a GPU."""
    environment = proc.read_environment(view.process.pid)
    yield TreeFeature.GPU, held.first(nvidia)
    for feature, rest in (
        (TreeFeature.GPU_DIRECT_STORAGE, "-fs"),
        (TreeFeature.IMEX_CHANNEL, "-caps-imex-channels/"),
    ):
        if what := held.first(nvidia + rest):
            yield feature, what
    if what := _mig_instance(held, nvidia, mig_minors):
        yield TreeFeature.MIG_DEVICE, what
    if (visible := environment.get("CUDA_VISIBLE_DEVICES", "")).startswith("MIG-"):
        yield TreeFeature.MIG_DEVICE, f"was started with CUDA_VISIBLE_DEVICES={visible}"
    if what := _managed(held, environment, nvidia):
        yield TreeFeature.MANAGED_MEMORY, what
    if file := environment.get("CUDA_CHECKPOINT_JOB_FILE", ""):
        yield TreeFeature.CUDA_JOB, f"is of the CUDA job {file}"
    if versions := libraries.torch_versions(view):
        yield TreeFeature.TORCH, f"has PyTorch {', '.join(versions)}"
    yield from _kept_from(view, environment)


def _kept_from(view: ProcessView, environment: dict[str, str]) -> Iterator[tuple[TreeFeature, str]]:
    """What keeps a driver from saving it, or from coming to an end with the lock."""
    pipes = environment.get("CUDA_MPS_PIPE_DIRECTORY") or f"/{mps.DIRECTORY}"
    if mps.listens(Path(f"/proc/{view.process.pid}/root/{pipes}")):
        yield TreeFeature.MPS_CLIENT, f"finds an MPS daemon at {pipes}"
    if view.process.state == "T":
        yield TreeFeature.STOPPED, "is stopped (SIGSTOP, Ctrl-Z)"
    if group := _frozen_cgroup(view):
        yield TreeFeature.FROZEN_CGROUP, group


def _mig_instance(held: _Devices, nvidia: str, minors: frozenset[int] | None) -> str:
    """How it holds a capability of a MIG instance, by the driver's own list where there is one."""
    for path in (*(d.target for d in held.descriptors), *held.mapped):
        match = MIG_CAPABILITY.fullmatch(path.removeprefix(nvidia))
        minor = int(match[1]) if match else -1
        if match and (minor not in MIG_SETTINGS if minors is None else minor in minors):
            return held.first(path)
    return ""


def _managed(held: _Devices, environment: dict[str, str], nvidia: str) -> str:
    areas = held.mapped.count(f"{nvidia}-uvm")
    if areas > UVM_AREAS_MAX:
        return f"maps {areas} areas of {nvidia}-uvm"
    if environment.get("TF_FORCE_UNIFIED_MEMORY", "") not in ("", "0"):
        return "was started with TF_FORCE_UNIFIED_MEMORY"
    return ""


def _user_id(view: ProcessView) -> int:
    match = re.search(r"^Uid:\s+(\d+)", view.read("status"), re.MULTILINE)
    return int(match[1]) if match else 0


def _frozen_cgroup(view: ProcessView) -> str:
    """The control group that stands still, or one above it does; empty when none."""
    match = re.search(r"^0::(/.*)$", view.read("cgroup"), re.MULTILINE)
    if match is None:
        return ""
    try:
        events = (CGROUPS / match[1].lstrip("/") / "cgroup.events").read_text()
    except OSError:
        return ""
    return match[1] if "frozen 1" in events.splitlines() else ""
