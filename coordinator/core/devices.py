"""GPUs in a plan: whether a node's can take the place of a snapshot's, and which of which.

GPUs are paired by their index, which is the order of PCI addresses and what CUDA's own numbering
follows among GPUs that are alike. The driver wants a map of every GPU that its kernel part sees,
used or not: so a node has exactly as many, and none of them may be divided or sick. The very GPUs
of the snapshot need no map, and are all that will do where none can be made: where a driver or an
engine takes none, or not all GPUs are known on one side.

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
from coordinator.core.versions import version_of

KEEP = "keep"  # NCCL's communicators are in the images, alive
NAMED_GPUS = 4
LAYOUT_MAX = 3  # what `layout_differs` costs at most
MAPS_SINCE = (580,)  # older drivers restore onto the same GPUs in the same order only
MAPS_WELL_SINCE = (590,)  # of those between, builds are known that refuse every map


class _Gpus:
    """GPUs of a node, by their UUIDs."""

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """All of them, by index."""
        raise NotImplementedError

    @cached_property
    def uuids(self) -> tuple[str, ...]:
        """Of those that have told theirs, by index."""
        return _uuids(self.gpus)

    @cached_property
    def known(self) -> frozenset[str]:
        """The same without an order."""
        return frozenset(self.uuids)


@dataclass(frozen=True)
class Wanted(_Gpus):
    """What the workers that shared a node ask of the GPUs of another one, together."""

    records: tuple[WorkerRecord, ...]  # those with GPU state

    @cached_property
    def _best(self) -> WorkerRecord:
        """Whose shim saw most of the node's GPUs: each worker's record is of a look of its own."""
        return max(self.records, key=lambda r: (bool(r.gpus), not r.gpus_unseen, len(r.gpus)))

    @property
    def home(self) -> str:
        """Name of the old node."""
        return self.records[0].node

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """All of the old node, by index."""
        return by_index(self._best.gpus)

    @cached_property
    def in_order(self) -> bool:
        """Whether the driver takes the same GPUs in the same order only."""
        return _older_than(self.driver, MAPS_SINCE)

    @cached_property
    def unseen(self) -> str:
        """Why `gpus` are not all of the old node's, so that there is no map of them."""
        nameless = [f"GPU {g.index} did not tell its UUID" for g in self.gpus if not g.uuid]
        return self._best.gpus_unseen or "; ".join(nameless)

    @property
    def driver(self) -> str:
        """Version of the old node's."""
        return self._best.gpu_driver

    @property
    def links_count(self) -> bool:
        """Whether NVLink must be the same."""
        return any(r.nccl == KEEP for r in self.records)

    @cached_property
    def held_known(self) -> bool:
        """Whether it is known what the processes held on which GPU."""
        return held_by(self.records) is not None

    @cached_property
    def need_bytes(self) -> tuple[int, ...]:
        """Device memory, by index: what the processes held, or else whatever was in use.

        Never less in all than what was saved of them.
        """
        held = held_by(self.records)
        if held is not None:
            sizes = [held.get(g.uuid, 0) for g in self.gpus]
        else:
            used = [g.memory_bytes - g.memory_free_bytes for g in self.gpus]
            sizes = _at_least(used, sum(r.gpu_bytes for r in self.records))
        return tuple(min(size, g.memory_bytes) for size, g in zip(sizes, self.gpus, strict=True))

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """Equal for those that ask the same of a kind of GPUs."""
        return (shape_of(self.gpus), self.driver, self.links_count, self.unseen)


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
        for uuid, held in _held(record).items():
            found[uuid] = found.get(uuid, 0) + held
    return found


def _held(record: WorkerRecord) -> dict[str, int]:
    """Of one worker; the look at its GPUs may be older than what it had there when it was saved."""
    sizes = _at_least([held.held_bytes for held in record.gpu_held], record.gpu_bytes)
    return {held.uuid: size for held, size in zip(record.gpu_held, sizes, strict=True)}


def _at_least(sizes: Sequence[int], total: int) -> list[int]:
    """Sizes, raised in proportion where they are less than `total` together."""
    known = sum(sizes)
    if known >= total or not sizes:
        return list(sizes)
    if known == 0:
        return [-(-total // len(sizes))] * len(sizes)
    return [-(-size * total // known) for size in sizes]


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


@dataclass(frozen=True)
class There(_Gpus):
    """The GPUs of a node that may take them."""

    facts: NodeFacts

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """By index."""
        return by_index(self.facts.gpus)

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """Equal for nodes that differ in nothing that `kind_reasons` looks at, but for UUIDs."""
        facts = self.facts
        can = (facts.gpu_engine, facts.gpu_no_map)
        return (
            shape_of(self.gpus),
            *(facts.gpu_driver, facts.gpu_trouble, facts.gpus_unseen, can),
        )


def _uuids(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    return tuple(g.uuid for g in gpus if g.uuid)


def same_gpus(want: Wanted, there: There) -> bool:
    """Whether a node has the very GPUs of the snapshot, so that nothing has to be mapped.

    Where not all of the old ones are known: all that are, as they were together in one machine.
    """
    if not want.uuids:
        return there.facts.node == want.home
    if want.unseen:
        return want.known <= there.known
    return want.known == there.known and (want.uuids == there.uuids or not want.in_order)


def _older_than(driver: str, version: tuple[int, ...]) -> bool:
    found = version_of(driver)
    return bool(found) and found < version


def _pairs(want: Wanted, there: There) -> list[tuple[int, Gpu]]:
    """Place of each old GPU, with the one that takes it; empty where they are not as many."""
    here = there.gpus
    if same_gpus(want, there):
        at = {g.uuid: place for place, g in enumerate(want.gpus) if g.uuid}
        return sorted(((at[g.uuid], g) for g in here if g.uuid in at), key=lambda pair: pair[0])
    return list(enumerate(here)) if len(here) == len(want.gpus) else []


def kind_reasons(want: Wanted, there: There) -> list[str]:
    """Why GPUs of this kind, with this driver, cannot take the place of the old ones."""
    facts = there.facts
    if not want.gpus:
        return _unknown(want, facts)
    if facts.gpu_trouble:
        return [_unreliable(facts)]
    if not facts.gpus:
        return [f"it has no GPU, needed {_kinds(want.gpus)}"]
    reasons = _pair_reasons(want, there)
    if facts.gpu_driver != want.driver:
        has = facts.gpu_driver or "of unknown version"
        reasons.append(f"NVIDIA driver {has}, needed exactly {want.driver}")
    reasons += _divided(facts)
    if not facts.gpu_engine:
        reasons.append("nothing there can put device memory back (cuda-checkpoint, cuda-bindings)")
    return reasons


def _unknown(want: Wanted, facts: NodeFacts) -> list[str]:
    """Without an inventory at the checkpoint there is no map; its own node needs none."""
    home = want.home
    if facts.node == home:
        return []
    return [f"the snapshot does not say which GPUs {home} had, so that only {home} can take it"]


def _unreliable(facts: NodeFacts) -> str:
    return f"its GPUs cannot be relied on: {facts.gpu_trouble}"


def _divided(facts: NodeFacts) -> list[str]:
    divided = [g for g in by_index(facts.gpus) if g.mig]
    if not divided:
        return []
    return [f"{_named(divided)} divided into instances (MIG), which cannot be saved"]


def _no_map(want: Wanted, there: There) -> str:
    """Why nothing can be restored onto other GPUs there; empty where it can."""
    facts = there.facts
    if want.unseen:
        what = f"of {want.home}'s GPUs the snapshot does not know all ({want.unseen})"
        return f"{what}: only a node with the same ones can take it"
    if facts.gpus_unseen:
        return (
            f"it has other GPUs, of which a map has to name every one, and {facts.gpus_unseen}: "
            "give its container every GPU"
        )
    if want.in_order:
        return (
            f"it has other GPUs, and driver {want.driver} restores onto the same ones in the same "
            "order only"
        )
    if facts.gpu_no_map:
        return f"it has other GPUs, and its engine ({facts.gpu_engine}) takes no GPU map"
    return ""


def _pair_reasons(want: Wanted, there: There) -> list[str]:
    same, pairs = same_gpus(want, there), _pairs(want, there)
    no_map = "" if same else _no_map(want, there)
    if no_map:
        return [no_map]
    if not same and not pairs:
        return [
            f"GPUs: it has {_kinds(there.gpus)}, needed exactly {_kinds(want.gpus)}, since every "
            "GPU of the node is part of the map"
        ]
    reasons: list[str] = []
    for place, new in pairs:
        old = want.gpus[place]
        if new.model != old.model:
            reasons.append(f"GPU {new.index} is {_article(new.model)}, needed {old.model}")
        elif new.architecture != old.architecture:
            found = f"compute capability {new.architecture or 'unknown'}"
            reasons.append(f"GPU {new.index} has {found}, needed {old.architecture}")
        elif new.memory_bytes < old.memory_bytes:
            sizes = f"{_gib(new.memory_bytes)} of memory, needed {_gib(old.memory_bytes)}"
            reasons.append(f"GPU {new.index} has {sizes}")
    before = [want.gpus[place] for place, _ in pairs]
    if want.links_count and _links(before) != _links([new for _, new in pairs]):
        reasons.append(
            "NVLink connects its GPUs otherwise, and NCCL's communicators were saved alive"
        )
    more = len(reasons) - NAMED_GPUS
    return [*reasons[:NAMED_GPUS], f"and {more} more GPUs"] if more > 0 else reasons


def now_reasons(want: Wanted, there: There, back: Mapping[int, int] | None) -> list[str]:
    """Reasons of the moment: GPUs that are sick, and device memory that is in use.

    `back`: bytes by index that come back when the job's own workers there go; None: all in use.
    """
    if not want.gpus:
        return []
    here = there.gpus
    reasons = [f"GPU {g.index} ({g.uuid or 'unknown'}) is sick: {g.sick}" for g in here if g.sick]
    if back is None:
        return reasons
    for place, gpu in _pairs(want, there):
        need = want.need_bytes[place]
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
    if held_by(with_state) is None:
        return None
    found: dict[int, int] = {}
    for record in with_state:
        held = _held(record)
        for gpu in record.gpus:
            found[gpu.index] = found.get(gpu.index, 0) + held.get(gpu.uuid, 0)
    return found


def device_map(want: Wanted, there: There) -> tuple[GpuMove, ...]:
    """Every old GPU with its new one; empty where they are the same ones."""
    if not want.gpus or same_gpus(want, there):
        return ()
    return tuple(GpuMove(want.gpus[place].uuid, new.uuid) for place, new in _pairs(want, there))


def layout_differs(want: Wanted, there: There) -> list[str]:
    """What differs and is allowed, one sentence each; each costs one, at most LAYOUT_MAX."""
    here = there.gpus
    if not want.gpus or same_gpus(want, there):
        return []
    told: list[str] = []
    if [(g.pci_address, g.minor) for g in want.gpus] != [(g.pci_address, g.minor) for g in here]:
        told.append("its GPUs have other PCI addresses or device files")
    if not want.links_count and _links(want.gpus) != _links(here):
        told.append("NVLink connects its GPUs otherwise")
    if _older_than(want.driver, MAPS_WELL_SINCE):
        told.append(
            f"its GPUs are others, and builds of driver {version_of(want.driver)[0]} are known "
            "that refuse that (`invalid argument`)"
        )
    return told


def able_reasons(want: Wanted, facts: NodeFacts) -> list[str]:
    """Why a node's GPUs are not enough to start the same command from scratch."""
    if not want.gpus and facts.node == want.home:
        return []  # it ran there, and nobody could ask its GPUs then either
    if facts.gpu_trouble:
        return [_unreliable(facts)]
    reasons = _divided(facts)
    sound = [g for g in facts.gpus if not g.sick and not g.mig]
    if len(sound) < (len(want.gpus) or 1):
        needed = _kinds(want.gpus) if want.gpus else "at least one"
        return [*reasons, f"it has {len(sound)} sound GPUs, needed {needed}"]
    have = sorted((g.memory_bytes for g in sound), reverse=True)
    need = sorted((g.memory_bytes for g in want.gpus), reverse=True)
    if any(here < old for here, old in zip(have, need, strict=False)):
        sizes = f"{_gib(min(have[: len(need)]))}, needed {_gib(min(need))}"
        reasons.append(f"its GPUs have too little memory: {sizes}")
    return reasons


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
