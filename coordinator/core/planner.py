"""Where a snapshot goes: a pure function of the snapshot and the nodes.

Rules: workers that shared a node stay together; a node that survived keeps its workers; nothing
else is moved than has to be; one worker without a node refuses the whole plan. The assignment is
the cheapest of all possible ones, so a plan is found whenever there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.core import devices
from coordinator.core.connections import leaving
from coordinator.core.costs import RETURNS, cost_of, explained, price_of
from coordinator.core.errors import NoPlan, Where
from coordinator.core.failures import failure_of, listed
from coordinator.core.fit import (
    Candidate,
    Group,
    groups_of,
    kind_reasons,
    room_reasons,
)
from coordinator.core.matching import UNFIT, assign
from coordinator.core.model import AddressMove, Failure, Placement, Plan, Snapshot, WorkerRecord
from coordinator.core.reasons import NodeFit, NodeReasons
from coordinator.core.versions import kernel_series


@dataclass(frozen=True)
class Planned:
    """The planner's answer: a plan, or a failure that has every reason; the reasons either way."""

    plan: Plan | None
    reasons: tuple[NodeReasons, ...]  # for every node and worker that do not fit each other
    failure: Failure | None = None
    fits: tuple[NodeFit, ...] = ()  # where that was asked for: nodes that fit, chosen or not
    restore_refused: tuple[NodeReasons, ...] = ()  # of a start: why no node takes the snapshot


@dataclass
class _Fitting:
    """Reasons for every pair, computed once per kind of node and kind of worker."""

    records: Mapping[int, WorkerRecord]
    cache: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    layouts: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    kinds: dict[object, int] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()  # nodes where a restore has failed just now
    wants: dict[str, int] = field(default_factory=dict)  # kinds of GPUs, by the group's old node
    has: dict[str, int] = field(default_factory=dict)  # the same, by node
    gpus: dict[tuple[int, int], list[str]] = field(default_factory=dict)

    def kind(self, what: object) -> int:
        """A small number per distinct value, so that long tuples are hashed once."""
        return self.kinds.setdefault(what, len(self.kinds))

    def worker_kind(self, r: WorkerRecord) -> int:
        """Number of what a worker asks of a node's kind."""
        asked = (r.architecture, r.cpu_flags, r.criu_version, r.kernel, r.store, r.programs)
        return self.kind(asked)

    def node_kind(self, node: Candidate) -> int:
        """Number of what a node is, and whether it can be asked."""
        f = node.facts
        is_ = (f.architecture, f.cpu_model, f.cpu_flags, f.criu_version, f.kernel, f.store, f.files)
        return self.kind((is_, node.state == "attached"))

    def own_bytes(self, node: Candidate) -> int:
        """Memory that comes back when the job's own workers on a node go."""
        return sum(r.memory_bytes for r in self.own(node))

    def own(self, node: Candidate) -> list[WorkerRecord]:
        """What the snapshot knows of the job's own workers on a node."""
        return [self.records[worker] for worker in node.own if worker in self.records]

    def of_kind(self, record: WorkerRecord, worker: int, node: Candidate, kind: int) -> list[str]:
        """Reasons between a worker's and a node's kind."""
        key = (worker, kind)
        if key not in self.cache:
            asked = node.state == "attached"
            self.cache[key] = kind_reasons(record, node.facts, asked=asked)
        return self.cache[key]

    def gpu_key(self, group: Group, node: Candidate) -> tuple[int, int]:
        """Equal for pairs whose GPUs are of the same kinds, and the same ones or not."""
        want = group.gpus
        if group.node not in self.wants:
            shape = want and want.shape
            # where GPUs are not known, or not all, it is the home that counts, and that is named
            home = group.node if want is not None and (want.unseen or not want.gpus) else ""
            self.wants[group.node] = self.kind(("gpus", shape, home))
        if node.facts.node not in self.has:
            self.has[node.facts.node] = self.kind(("gpus of", node.gpus.shape))
        same = want is not None and devices.same_gpus(want, node.gpus)
        return self.wants[group.node] * 2 + same, self.has[node.facts.node]

    def of_gpus(self, group: Group, node: Candidate) -> list[str]:
        """Reasons that lie in GPUs; nothing for workers without state on one."""
        want = group.gpus
        if want is None:
            return []
        if node.state != "attached" and not node.facts.gpus:
            return []  # who has never told is not blamed for it
        key = self.gpu_key(group, node)
        if key not in self.gpus:
            self.gpus[key] = devices.kind_reasons(want, node.gpus)
        back = devices.coming_back(self.own(node)) if node.own else {}
        return self.gpus[key] + devices.now_reasons(want, node.gpus, back)

    def layout(self, group: Group, node: Candidate) -> list[str]:
        """How the GPUs of a node that fits are laid out otherwise."""
        want = group.gpus
        if want is None:
            return []
        key = self.gpu_key(group, node)
        if key not in self.layouts:
            self.layouts[key] = devices.layout_differs(want, node.gpus)
        return self.layouts[key]


def plan(snapshot: Snapshot, candidates: Iterable[Candidate], *, explain: bool = False) -> Planned:
    """Find the node of every worker, or every reason why there is none.

    To `explain` names the nodes that fit and are not taken too, with what speaks against each.
    """
    nodes = sorted(candidates, key=lambda c: c.facts.node)
    groups = groups_of(snapshot.workers)
    failed = frozenset(n.facts.node for n in nodes if n.failed)
    fitting = _Fitting({r.worker: r for r in snapshot.workers}, failed=failed)
    reasons, fits = _judge(groups, nodes, fitting)
    # The layout of GPUs only decides between nodes that are equal otherwise, in all groups together
    step = devices.LAYOUT_MAX * len(groups) + 1
    costs = [
        [
            price_of(group, node) * step + len(fitting.layout(group, node)) if fits[g][n] else UNFIT
            for n, node in enumerate(nodes)
        ]
        for g, group in enumerate(groups)
    ]
    placed = assign(costs)
    if any(column is None for column in placed):
        left = [g for g, column in zip(groups, placed, strict=True) if column is None]
        return Planned(None, reasons, refusal(snapshot, left, nodes, reasons))
    chosen = [
        (g, nodes[column]) for g, column in zip(groups, placed, strict=True) if column is not None
    ]
    clash = _address_clash(chosen)
    if clash:
        error = NoPlan(
            clash,
            where=Where(job=snapshot.job, phase="PLAN"),
            advice="give every node an address of its own with --address",
        )
        return Planned(None, reasons, failure_of(error))
    made = _made(snapshot, chosen, reasons, fitting)
    if not explain:
        return Planned(made, reasons)
    fitted = explained(groups, nodes, placed, costs, fitting.layout, made)
    return Planned(made, reasons, fits=fitted)


def _judge(
    groups: Sequence[Group], nodes: Sequence[Candidate], fitting: _Fitting
) -> tuple[tuple[NodeReasons, ...], list[list[bool]]]:
    node_kinds = [fitting.node_kind(n) for n in nodes]
    own = [fitting.own_bytes(n) for n in nodes]
    told: list[NodeReasons] = []
    fits: list[list[bool]] = []
    for group in groups:
        worker_kinds = [fitting.worker_kind(r) for r in group.records]
        row: list[bool] = []
        for node, kind, own_bytes in zip(nodes, node_kinds, own, strict=True):
            room = room_reasons(group, node, own_bytes) + fitting.of_gpus(group, node)
            fit = True
            for record, worker_kind in zip(group.records, worker_kinds, strict=True):
                why = room + fitting.of_kind(record, worker_kind, node, kind)
                if why:
                    fit = False
                    told.append(NodeReasons(node.facts.node, record.worker, tuple(why)))
            row.append(fit)
        fits.append(row)
    return tuple(told), fits


def refusal(
    snapshot: Snapshot,
    left: Sequence[Group],
    nodes: Sequence[Candidate],
    reasons: Sequence[NodeReasons],
    to: str = "",
) -> Failure:
    """Why these groups have no node, with every reason; `to`: what they were to do there."""
    workers = [r.worker for group in left for r in group.records]
    names = listed([f"worker {w}" for w in workers])
    unfit = {(r.worker, r.node) for r in reasons}
    ordered = sorted(reasons, key=lambda r: r.worker not in set(workers))
    details = [f"{r.node}, worker {r.worker}: {'; '.join(r.reasons)}" for r in ordered]
    details += [
        f"{n.facts.node}, worker {w}: it would fit, but another worker needs the node"
        for w in workers
        for n in nodes
        if (w, n.facts.node) not in unfit
    ]
    error = NoPlan(
        f"no node {f'to {to} ' if to else 'for '}{names} of snapshot {snapshot.snapshot} among "
        f"{len(nodes)} nodes",
        where=Where(job=snapshot.job, worker=workers[0], phase="PLAN"),
        advice="remove the reasons, or attach a spare node with `allstop shim`",
        details=tuple(details) or ("there is no node",),
    )
    return failure_of(error)


def _address_clash(chosen: Sequence[tuple[Group, Candidate]]) -> str:
    """One address map rewrites all images, so one old address may lead to one new one only."""
    moves: dict[str, tuple[str, str]] = {}
    for group, node in chosen:
        new = node.facts.address
        known = moves.setdefault(group.address, (new, group.node))
        if known[0] != new:
            return (
                f"{known[1]} and {group.node} had the same address {group.address} and would get "
                f"{known[0]} and {new}: their connections cannot be told apart"
            )
    return ""


def _made(
    snapshot: Snapshot,
    chosen: Sequence[tuple[Group, Candidate]],
    reasons: Sequence[NodeReasons],
    fitting: _Fitting,
) -> Plan:
    why_not = {(r.node, r.worker): r.reasons for r in reasons}
    placements: list[Placement] = []
    moves: dict[str, str] = {}
    notes: dict[str, None] = {}
    for group, node in chosen:
        if group.address != node.facts.address:
            moves[group.address] = node.facts.address
        for differs in fitting.layout(group, node):
            notes[f"{node.facts.node}, instead of {group.node}: {differs}"] = None
        for record in group.records:
            if group.node != node.facts.node:
                notes |= dict.fromkeys(_files_lacking(record, node.facts.node))
            home_reasons = why_not.get((group.node, record.worker))
            if not home_reasons and group.node in fitting.failed:
                home_reasons = ("a restore failed there just now",)
            why = _why(group, node, home_reasons)
            placements.append(
                Placement(
                    worker=record.worker,
                    from_node=group.node,
                    from_address=group.address,
                    to_node=node.facts.node,
                    to_address=node.facts.address,
                    why=why,
                    devices=devices.device_map(group.gpus, node.gpus)
                    if group.gpus is not None and record.gpu_pids
                    else (),
                )
            )
            if kernel_series(node.facts.kernel) > kernel_series(record.kernel):
                note = f"{node.facts.node} runs kernel {node.facts.kernel}, "
                notes[note + f"newer than the snapshot's {record.kernel}"] = None
    return Plan(
        job=snapshot.job,
        snapshot=snapshot.snapshot,
        placements=tuple(sorted(placements, key=lambda p: p.worker)),
        addresses=tuple(AddressMove(old, new) for old, new in sorted(moves.items())),
        notes=(*notes, *_held_unknown(chosen), *leaving(snapshot.workers)),
    )


def _held_unknown(chosen: Sequence[tuple[Group, Candidate]]) -> Iterable[str]:
    """By what device memory was judged, where it is not by what the processes held."""
    unknown = [g.node for g, _ in chosen if g.gpus is not None and not g.gpus.held_known]
    if unknown:
        yield (
            f"what the workers held on the GPUs of {listed(unknown)} is not known: all that was in "
            "use there counts as theirs"
        )


def _files_lacking(record: WorkerRecord, node: str) -> Iterable[str]:
    """What the snapshot cannot bring to another node; a shared file system may have it there."""
    for file in record.partial_files:
        kept = f"its last {file.kept_bytes} bytes" if file.kept_bytes else "its size"
        then = "gets a hole for the rest" if file.kept_bytes else "refuses the restore"
        yield (
            f"of {file.path} ({file.size_bytes} bytes) the snapshot has only {kept}: {node} {then} "
            "unless the file is there"
        )


def _why(group: Group, node: Candidate, home_reasons: tuple[str, ...] | None) -> str:
    if node.facts.node == group.node:
        return "it was here when the snapshot was taken"
    home = f"{group.node} is not attached, or another worker needs it"
    if home_reasons:
        home = f"{group.node} cannot take it ({'; '.join(home_reasons)})"
    here = "it runs here now" if cost_of(group, node) == RETURNS else "this node is free and fits"
    return f"{home}; {here}"
