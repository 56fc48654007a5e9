"""Whether a node can take workers of a snapshot, and every reason why it cannot.

Kernel rule: a node may run the snapshot's kernel series (major.minor) or a newer one. Images ask
for nothing that a newer kernel lacks; an older one may lack what the image needs, so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from coordinator.core.devices import There, Wanted, wanted
from coordinator.core.failures import listed
from coordinator.core.model import NodeFacts, ProgramFile, WorkerRecord
from coordinator.core.versions import kernel_series, version_of

NAMED_FLAGS = 6
NAMED_FILES = 4


@dataclass(frozen=True)
class Candidate:
    """A node as the planner sees it."""

    facts: NodeFacts
    state: str = "attached"  # attached, lost, left
    reason: str = ""  # why it is lost or left
    own: tuple[int, ...] = ()  # live workers of the job itself, which the restore replaces
    others: tuple[str, ...] = ()  # live workers of other jobs: "worker 0 of job llm"
    drained: str = ""  # why it takes no workers: it is being emptied
    failed: int = 0  # restores that have failed there just now

    @cached_property
    def gpus(self) -> There:
        """Its own."""
        return There(self.facts)


@dataclass(frozen=True)
class Group:
    """Workers that shared a node in the snapshot and stay together."""

    node: str
    address: str
    records: tuple[WorkerRecord, ...]

    @cached_property
    def gpus(self) -> Wanted | None:
        """What they ask of the GPUs there; None: nothing."""
        return wanted(self.records)

    @property
    def memory_bytes(self) -> int:
        """Room they need in memory, together."""
        return sum(r.memory_bytes for r in self.records)

    @property
    def image_bytes(self) -> int:
        """Room their images need in staging, together."""
        return sum(r.image_bytes for r in self.records)


def groups_of(records: Iterable[WorkerRecord]) -> list[Group]:
    """The snapshot's workers by the node they were on, in order of the lowest worker."""
    by_node: dict[str, list[WorkerRecord]] = {}
    for record in sorted(records, key=lambda r: r.worker):
        by_node.setdefault(record.node, []).append(record)
    return [Group(node, found[0].address, tuple(found)) for node, found in by_node.items()]


def room_reasons(group: Group, node: Candidate, own_bytes: int) -> list[str]:
    """Reasons of the moment: the node's state, what runs there, and room.

    `own_bytes` is the memory of the job's own workers there, which comes back when they go.
    """
    reasons: list[str] = []
    if node.state != "attached":
        reasons.append(f"it {'was lost' if node.state == 'lost' else 'has left'}: {node.reason}")
    if node.drained:
        reasons.append(node.drained)
    if node.others:
        reasons.append(f"it runs {listed(list(node.others), 4)}")
    free = node.facts.memory_free_bytes + own_bytes
    if free < group.memory_bytes:
        reasons.append(f"memory: {_gib(group.memory_bytes)} needed, {_gib(free)} free")
    staging = node.facts.staging_free_bytes
    if staging < group.image_bytes:
        reasons.append(f"staging: {_gib(group.image_bytes)} needed, {_gib(staging)} free")
    return reasons


def kind_reasons(record: WorkerRecord, facts: NodeFacts, *, asked: bool = True) -> list[str]:
    """Reasons that lie in what the node is: processor, kernel, CRIU, store, program files.

    A node that was not `asked`, being out of reach, is not blamed for its silence about files.
    """
    reasons: list[str] = []
    if facts.architecture != record.architecture:
        reasons.append(f"architecture: {facts.architecture}, needed {record.architecture}")
    lacking = sorted(set(record.cpu_flags) - set(facts.cpu_flags))
    if lacking:
        reasons.append(f"processor ({facts.cpu_model}) lacks {listed(lacking, NAMED_FLAGS)}")
    if not facts.criu_version:
        reasons.append("no usable CRIU")
    elif version_of(facts.criu_version) < version_of(record.criu_version):
        reasons.append(f"CRIU {facts.criu_version}, needed {record.criu_version} or newer")
    if kernel_series(facts.kernel) < kernel_series(record.kernel):
        reasons.append(f"kernel {facts.kernel} is older than the snapshot's {record.kernel}")
    if facts.store != record.store:
        reasons.append(
            f"it sees image store {facts.store or 'none'}, the images are in {record.store}"
        )
    if not asked and not facts.files:
        return reasons
    return reasons + file_reasons(record.programs, facts)


def file_reasons(programs: tuple[ProgramFile, ...], facts: NodeFacts) -> list[str]:
    """Program files that the node lacks or has otherwise; digests decide where both are known."""
    if programs and not facts.files:
        return ["it has not answered which program files it has"]
    there = {f.path: f for f in facts.files}
    missing = [p.path for p in programs if p.path not in there]
    differing = [p.path for p in programs if p.path in there and _differs(p, there[p.path])]
    reasons = []
    if missing:
        reasons.append(f"program files missing: {listed(missing, NAMED_FILES)}")
    if differing:
        reasons.append(f"program files differ: {listed(differing, NAMED_FILES)}")
    return reasons


def _differs(wanted: ProgramFile, found: ProgramFile) -> bool:
    if wanted.digest and found.digest:
        return wanted.digest != found.digest
    return wanted.size_bytes != found.size_bytes


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.1f} MiB"
