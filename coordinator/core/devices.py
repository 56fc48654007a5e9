"""GPUs in a plan: whether a node's can take the place of a snapshot's, and which of which.

GPUs are paired by their index, which is the order of PCI addresses and what CUDA's own numbering
follows among GPUs that are alike. The driver wants a map of every GPU that its kernel part sees,
used or not: so a node has exactly as many, and none of them may be divided or sick.

NVLink has to be the same only where communicators were saved alive (`keep`): they hold mappings of
their peers' memory. Communicators that are rebuilt find their ways anew; there, and with other PCI
addresses, which a process keeps believing in after a move, another node is only dearer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from coordinator.core.failures import listed
from coordinator.core.model import Gpu, GpuMove, NodeFacts, WorkerRecord

KEEP = "keep"  # NCCL's communicators are in the images, alive
NAMED_GPUS = 4
LAYOUT_MAX = 2  # what `layout_differs` costs at most


@dataclass(frozen=True)
class Wanted:
    """What the workers that shared a node ask of the GPUs of another one, together."""

    records: tuple[WorkerRecord, ...]  # those with GPU state

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """All of the old node, by index."""
        return by_index(self.records[0].gpus) if self.records else ()

    @property
    def driver(self) -> str:
        """Version of the old node's."""
        return self.records[0].gpu_driver

    @property
    def links_count(self) -> bool:
        """Whether NVLink must be the same."""
        return any(r.nccl == KEEP for r in self.records)

    @cached_property
    def need_bytes(self) -> tuple[int, ...]:
        """Device memory, by index: what the processes held, or else whatever was in use."""
        held = held_by(self.records)
        if held is None:
            return tuple(g.memory_bytes - g.memory_free_bytes for g in self.gpus)
        return tuple(held.get(g.uuid, 0) for g in self.gpus)

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """Equal for those that ask the same of a kind of GPUs."""
        return (shape_of(self.gpus), self.driver, self.links_count)


def wanted(records: Iterable[WorkerRecord]) -> Wanted | None:
    """What these workers ask for; None where no process of them had state on a GPU."""
    found = tuple(r for r in records if r.gpu_pids)
    return Wanted(found) if found else None


def by_index(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """In the order that pairs them."""
    return tuple(sorted(gpus, key=lambda g: g.index))


def held_by(records: Iterable[WorkerRecord]) -> dict[str, int] | None:
    """Device memory by UUID that workers held; None where it is not known of all of them."""
    found: dict[str, int] = {}
    for record in records:
        if record.gpu_pids and not record.gpu_held:
            return None
        for held in record.gpu_held:
            found[held.uuid] = found.get(held.uuid, 0) + held.held_bytes
    return found


def shape_of(gpus: Sequence[Gpu]) -> tuple[object, ...]:
    """What GPUs are, without what they are called and what is on them."""
    places = {g.uuid: at for at, g in enumerate(gpus)}
    return tuple(
        (
            *(g.model, g.memory_bytes, g.architecture, g.mig, g.pci_address, g.minor),
            tuple(sorted(places[uuid] for uuid in g.links if uuid in places)),
        )
        for g in gpus
    )


def shape_of_node(facts: NodeFacts) -> tuple[object, ...]:
    """Equal for nodes that differ in nothing that `kind_reasons` looks at."""
    engine = bool(facts.gpu_engine)
    return (shape_of(by_index(facts.gpus)), facts.gpu_driver, facts.gpu_trouble, engine)


def kind_reasons(want: Wanted, facts: NodeFacts) -> list[str]:
    """Why GPUs of this kind, with this driver, cannot take the place of the old ones."""
    here = by_index(facts.gpus)
    if not want.gpus:
        return _unknown(want, facts)
    if facts.gpu_trouble:
        return [f"its GPUs cannot be relied on: {facts.gpu_trouble}"]
    if not here:
        return [f"it has no GPU, needed {_kinds(want.gpus)}"]
    reasons: list[str] = []
    if len(here) != len(want.gpus):
        reasons.append(
            f"GPUs: it has {_kinds(here)}, needed exactly {_kinds(want.gpus)}, since every GPU of "
            "the node is part of the map"
        )
    else:
        reasons += _pair_reasons(want, here)
    if facts.gpu_driver != want.driver:
        has = facts.gpu_driver or "of unknown version"
        reasons.append(f"NVIDIA driver {has}, needed exactly {want.driver}")
    divided = [g for g in here if g.mig]
    if divided:
        reasons.append(f"{_named(divided)} divided into instances (MIG), which cannot be saved")
    if not facts.gpu_engine:
        reasons.append("nothing there can put device memory back (cuda-checkpoint, cuda-bindings)")
    return reasons


def _unknown(want: Wanted, facts: NodeFacts) -> list[str]:
    """Without an inventory at the checkpoint there is no map; its own node needs none."""
    home = want.records[0].node
    if facts.node == home:
        return []
    return [f"the snapshot does not say which GPUs {home} had, so that only {home} can take it"]


def _pair_reasons(want: Wanted, here: Sequence[Gpu]) -> list[str]:
    reasons: list[str] = []
    for old, new in zip(want.gpus, here, strict=True):
        if new.model != old.model:
            reasons.append(f"GPU {new.index} is {_article(new.model)}, needed {old.model}")
        elif new.architecture != old.architecture:
            found = f"compute capability {new.architecture or 'unknown'}"
            reasons.append(f"GPU {new.index} has {found}, needed {old.architecture}")
        elif new.memory_bytes < old.memory_bytes:
            sizes = f"{_gib(new.memory_bytes)} of memory, needed {_gib(old.memory_bytes)}"
            reasons.append(f"GPU {new.index} has {sizes}")
    if want.links_count and _links(want.gpus) != _links(here):
        reasons.append(
            "NVLink connects its GPUs otherwise, and NCCL's communicators were saved alive"
        )
    more = len(reasons) - NAMED_GPUS
    return [*reasons[:NAMED_GPUS], f"and {more} more GPUs"] if more > 0 else reasons


def now_reasons(want: Wanted, facts: NodeFacts, back: Mapping[int, int] | None) -> list[str]:
    """Reasons of the moment: GPUs that are sick, and device memory that is in use.

    `back`: bytes by index that come back when the job's own workers there go; None: all in use.
    """
    if not want.gpus:
        return []
    here = by_index(facts.gpus)
    reasons = [f"GPU {g.index} ({g.uuid or 'unknown'}) is sick: {g.sick}" for g in here if g.sick]
    if back is None or len(here) != len(want.gpus):
        return reasons
    for gpu, need in zip(here, want.need_bytes, strict=True):
        used = gpu.memory_bytes - gpu.memory_free_bytes
        free = gpu.memory_free_bytes + min(used, back.get(gpu.index, 0))
        if free < need:
            reasons.append(f"GPU {gpu.index}: {_gib(need)} needed, {_gib(free)} free")
    return reasons


def coming_back(own: Sequence[WorkerRecord]) -> dict[int, int] | None:
    """Device memory by index that a job's own workers on a node hold; None: all that is in use.

    As far as the snapshot knows: they may have grown since, but not shrunk in what they need.
    """
    with_state = [r for r in own if r.gpu_pids]
    held = held_by(with_state)
    if held is None:
        return None
    found: dict[int, int] = {}
    for record in with_state:
        for gpu in record.gpus:
            found[gpu.index] = found.get(gpu.index, 0) + next(
                (h.held_bytes for h in record.gpu_held if h.uuid == gpu.uuid), 0
            )
    return found


def device_map(old: Iterable[Gpu], new: Iterable[Gpu]) -> tuple[GpuMove, ...]:
    """Every old GPU with its new one; empty where they are the same ones."""
    before, after = by_index(old), by_index(new)
    if not before or {g.uuid for g in before} == {g.uuid for g in after}:
        return ()
    return tuple(GpuMove(a.uuid, b.uuid) for a, b in zip(before, after, strict=True))


def layout_differs(want: Wanted, facts: NodeFacts) -> list[str]:
    """What differs and is allowed, one sentence each; each costs one, at most LAYOUT_MAX."""
    here = by_index(facts.gpus)
    if not want.gpus or {g.uuid for g in want.gpus} == {g.uuid for g in here}:
        return []
    told: list[str] = []
    if [(g.pci_address, g.minor) for g in want.gpus] != [(g.pci_address, g.minor) for g in here]:
        told.append("its GPUs have other PCI addresses or device files")
    if not want.links_count and _links(want.gpus) != _links(here):
        told.append("NVLink connects its GPUs otherwise")
    return told


def able_reasons(want: Wanted, facts: NodeFacts) -> list[str]:
    """Why a node's GPUs are not enough to start the same command from scratch."""
    sound = [g for g in facts.gpus if not g.sick]
    if len(sound) < len(want.gpus):
        lacking = f": {facts.gpu_trouble}" if facts.gpu_trouble else ""
        return [f"it has {len(sound)} sound GPUs, needed {_kinds(want.gpus)}{lacking}"]
    have = sorted((g.memory_bytes for g in sound), reverse=True)
    need = sorted((g.memory_bytes for g in want.gpus), reverse=True)
    if any(here < old for here, old in zip(have, need, strict=False)):
        sizes = f"{_gib(min(have[: len(need)]))}, needed {_gib(min(need))}"
        return [f"its GPUs have too little memory: {sizes}"]
    return []


def _links(gpus: Sequence[Gpu]) -> list[tuple[int, ...]]:
    """Who is linked to whom, by place."""
    places = {g.uuid: at for at, g in enumerate(gpus)}
    return [tuple(sorted(places[u] for u in g.links if u in places)) for g in gpus]


def _kinds(gpus: Sequence[Gpu]) -> str:
    """`8 NVIDIA H200`."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        counts[gpu.model] = counts.get(gpu.model, 0) + 1
    return " and ".join(f"{count} {model or 'GPU'}" for model, count in counts.items()) or "none"


def _named(gpus: Sequence[Gpu]) -> str:
    names = listed([f"GPU {g.index}" for g in gpus], NAMED_GPUS)
    return f"{names} {'is' if len(gpus) == 1 else 'are'}"


def _article(model: str) -> str:
    return model or "of an unknown model"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
