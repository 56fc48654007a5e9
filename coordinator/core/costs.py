"""What it costs to have workers on a node, and why one node was taken and not another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.core.fit import Candidate, Group
from coordinator.core.matching import UNFIT
from coordinator.core.model import Plan
from coordinator.core.reasons import NodeFit

STAYS, RETURNS, SPARE, DISPLACES = 0, 1, 2, 3
FAILED = 100  # a node where a restore has failed is taken last, and of these the one that did least
FAILED_MAX = 9

_WORDS = {
    STAYS: "it was there when the snapshot was taken",
    RETURNS: "it runs there now",
    SPARE: "that node is free",
    DISPLACES: "other workers of the job run there now",
}

Layout = Callable[[Group, Candidate], list[str]]


def cost_of(group: Group, node: Candidate) -> int:
    """The less is moved, the less it costs."""
    if node.facts.node == group.node:
        return STAYS
    if not node.own:
        return SPARE
    return RETURNS if set(node.own) <= {r.worker for r in group.records} else DISPLACES


def price_of(group: Group, node: Candidate) -> int:
    """What is moved, and how often it has failed there."""
    return cost_of(group, node) + FAILED * min(node.failed, FAILED_MAX)


def explained(
    groups: Sequence[Group],
    nodes: Sequence[Candidate],
    placed: Sequence[int | None],
    costs: Sequence[Sequence[int]],
    layout: Layout,
    plan: Plan,
) -> tuple[NodeFit, ...]:
    """Every node that fits a worker: the one that was taken, and what speaks against the others.

    `layout`: how the GPUs of a node that fits are laid out otherwise.
    """
    taken_by = {column: group for group, column in zip(groups, placed, strict=True)}
    why = {p.worker: p.why for p in plan.placements}
    told: list[NodeFit] = []
    for group, column, row in zip(groups, placed, costs, strict=True):
        for at, node in enumerate(nodes):
            if column is None or row[at] >= UNFIT:
                continue
            other = taken_by.get(at)
            text = _not_taken(group, node, nodes[column], row[at] - row[column], layout)
            if other is not None:
                text = f"it fits, and worker {other.records[0].worker} gets it"
            for record in group.records:
                chosen = at == column
                words = why[record.worker] if chosen else text
                told.append(NodeFit(node.facts.node, record.worker, chosen, words))
    return tuple(told)


def _not_taken(group: Group, node: Candidate, taken: Candidate, dearer: int, layout: Layout) -> str:
    if dearer == 0:
        return f"it fits as well as {taken.facts.node}, which comes first by name"
    here = [_WORDS[cost_of(group, node)], *layout(group, node)]
    there = [_WORDS[cost_of(group, taken)], *layout(group, taken)]
    against = " and ".join(words for words in here if words not in there)
    instead = " and ".join(words for words in there if words not in here)
    told = f"it fits, and costs more than {taken.facts.node}"
    told += f": {against}" if against else ""
    return told + (f"; {taken.facts.node}: {instead}" if instead else "")
