"""A plan where nothing fits the snapshot: the job's own commands, started from scratch.

Nodes need not be what the snapshot asks for, only be able to run the command. Its arguments and
environment may name hosts by addresses that other nodes have now. That is looked for and said, and
nothing of it is changed unless an operator says so: only the job knows what such a word is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from coordinator.core.costs import explained, price_of
from coordinator.core.devices import able_reasons, wanted
from coordinator.core.errors import NoPlan, Where
from coordinator.core.failures import failure_of, listed
from coordinator.core.fit import Candidate, Group, groups_of
from coordinator.core.matching import UNFIT, assign
from coordinator.core.model import AddressMove, Failure, OldAddresses, Placement, Plan, Snapshot
from coordinator.core.planner import Planned, plan, refusal
from coordinator.core.reasons import NodeReasons

NOTED = 16  # reasons that a plan's notes repeat
TOLD = 3  # those in the one sentence of a record

Chosen = Sequence[tuple[Group, Candidate]]


def plan_or_start(
    snapshot: Snapshot,
    candidates: Iterable[Candidate],
    *,
    cold_start: bool = False,
    old_addresses: OldAddresses = OldAddresses.REFUSE,
    explain: bool = False,
    scratch: bool = False,
) -> tuple[Planned, str]:
    """The plan of a restore, or, with `cold_start` and only where none fits, of a start.

    Returns it with the reason why it is a start; empty for a restore, or a refusal of both.
    `scratch`: a start, whatever fits. `explain`: name the nodes that fit and are not taken, too.
    """
    nodes = list(candidates)
    if scratch:
        why = "no snapshot of it could be brought back"
        refused = Failure("NoPlan", why)
        return plan_start(snapshot, nodes, refused, old_addresses, explain=explain), why
    planned = plan(snapshot, nodes, explain=explain)
    if planned.failure is None or not cold_start:
        return planned, ""
    refused = planned.failure
    why = "; ".join([refused.what, *refused.details[:TOLD]])
    start = plan_start(snapshot, nodes, refused, old_addresses, explain=explain)
    return replace(start, restore_refused=planned.reasons), why


def plan_start(
    snapshot: Snapshot,
    candidates: Iterable[Candidate],
    refused: Failure,
    old_addresses: OldAddresses = OldAddresses.REFUSE,
    *,
    explain: bool = False,
) -> Planned:
    """Find nodes that can run the job's commands, after `refused` has said why none can restore.

    A refusal again has every reason. Workers that shared a node stay together.
    """
    nodes = sorted(candidates, key=lambda c: c.facts.node)
    groups = groups_of(snapshot.workers)
    reasons: list[NodeReasons] = []
    costs: list[list[int]] = []
    for group in groups:
        row: list[int] = []
        for node in nodes:
            why = _reasons(group, node)
            reasons += [NodeReasons(node.facts.node, r.worker, why) for r in group.records if why]
            row.append(UNFIT if why else price_of(group, node))
        costs.append(row)
    placed = assign(costs)
    left = [g for g, column in zip(groups, placed, strict=True) if column is None]
    if left:
        return Planned(None, tuple(reasons), refusal(snapshot, left, nodes, reasons, "run"))
    chosen = [
        (g, nodes[column]) for g, column in zip(groups, placed, strict=True) if column is not None
    ]
    named = _named(chosen)
    if named and old_addresses is OldAddresses.REFUSE:
        return Planned(None, tuple(reasons), _names_others(snapshot, named))
    made = _made(snapshot, chosen, refused, named, old_addresses)
    if not explain:
        return Planned(made, tuple(reasons))
    fits = explained(groups, nodes, placed, costs, lambda group, node: [], made)
    return Planned(made, tuple(reasons), fits=fits)


def _reasons(group: Group, node: Candidate) -> tuple[str, ...]:
    reasons: list[str] = []
    if node.state != "attached":
        reasons.append(f"it {'was lost' if node.state == 'lost' else 'has left'}: {node.reason}")
    if node.drained:
        reasons.append(node.drained)
    if node.others:
        reasons.append(f"it runs {listed(list(node.others), 4)}")
    record = group.records[0]
    if node.facts.architecture != record.architecture:
        reasons.append(
            f"architecture: {node.facts.architecture}, needed {record.architecture}",
        )
    if node.facts.store != record.store:
        has = node.facts.store or "none"
        reasons.append(f"it sees image store {has}, what was started stands in {record.store}")
    want = wanted(group.records)
    if want is not None:
        reasons += able_reasons(want, node.facts)
    return tuple(reasons)


def _named(chosen: Chosen) -> list[str]:
    """Every word of commands and environments that names a host or GPU which is another now."""
    found: list[str] = []
    for group, node in chosen:
        moved = node.facts.node != group.node
        others = {g.uuid for r in group.records for g in r.gpus} - {g.uuid for g in node.facts.gpus}
        hosts = [group.address] if group.address != node.facts.address else []
        hosts += [group.node] if moved else []
        told = f"{group.node}, whose workers start on {node.facts.node} ({node.facts.address})"
        for name in hosts:
            found += [f"{words} names {name} of {told}" for words in _words(chosen, name)]
        for uuid in sorted(others):
            mine = [(group, node)]
            where = f"which {node.facts.node} does not have"
            found += [f"{words} names {uuid}, {where}" for words in _words(mine, uuid)]
    return list(dict.fromkeys(found))


def _words(chosen: Chosen, name: str) -> list[str]:
    """Where a name stands: arguments by their number, variables by their name."""
    pattern = as_a_word(name)
    found = []
    for group, _ in chosen:
        for record in group.records:
            for at, argument in enumerate(record.command):
                if pattern.search(argument):
                    found.append(f"worker {record.worker}: argument {at} ({argument})")
            for words in record.named:
                variable, _, value = words.partition("=")
                if pattern.search(value):
                    found.append(f"worker {record.worker}: {variable} in its environment")
    return found


def as_a_word(name: str) -> re.Pattern[str]:
    """Finds a host's name or address where it stands alone, and not as a part of another one."""
    beside = r"[\w.:-]" if ":" in name else r"[\w-]|\.(?=\w)"
    before = r"[\w.:-]" if ":" in name else r"[\w.-]"
    return re.compile(rf"(?<!{before}){re.escape(name)}(?!{beside})")


def _names_others(snapshot: Snapshot, named: Sequence[str]) -> Failure:
    error = NoPlan(
        f"started from scratch, the commands of {snapshot.job} would name hosts that are others "
        f"now: {listed(list(named), 2)}",
        where=Where(job=snapshot.job, phase="PLAN"),
        advice="--old-addresses move replaces addresses by those of the nodes that take the "
        "workers, --old-addresses keep starts the commands as they are",
        details=tuple(named),
    )
    return failure_of(error)


def _made(
    snapshot: Snapshot,
    chosen: Chosen,
    refused: Failure,
    named: Sequence[str],
    old_addresses: OldAddresses,
) -> Plan:
    moves = {
        group.address: node.facts.address
        for group, node in chosen
        if group.address != node.facts.address and old_addresses is OldAddresses.MOVE
    }
    placements = [
        Placement(
            worker=record.worker,
            from_node=group.node,
            from_address=group.address,
            to_node=node.facts.node,
            to_address=node.facts.address,
            why="its command is started anew: this node can run it",
        )
        for group, node in chosen
        for record in group.records
    ]
    kept = "is replaced where it is an address" if moves else "stays as it is"
    more = len(refused.details) - NOTED
    return Plan(
        job=snapshot.job,
        snapshot=snapshot.snapshot,
        placements=tuple(sorted(placements, key=lambda p: p.worker)),
        addresses=tuple(AddressMove(old, new) for old, new in sorted(moves.items())),
        notes=(
            f"the job is started from scratch, not from snapshot {snapshot.snapshot}, because of "
            f"{refused.what}",
            *refused.details[:NOTED],
            *([f"and {more} more"] if more > 0 else []),
            *(f"{words}; it {kept}" for words in named),
        ),
        cold=True,
    )
