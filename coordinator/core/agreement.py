"""Step agreement: the one boundary at which every rank of a job parks.

A rank publishes its boundary and then reads the hold flag; a shim raises the flag and then reads
the boundary. So when all shims have answered HOLD, no rank can get past its published boundary
plus one without seeing the flag, and max + 1 is a step that every rank can still stop at and none
has to go back to. No rank waits for one that needs it to move: steps up to the target depend only
on steps up to the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coordinator.core.errors import AttemptFailed, NotReady, Where
from coordinator.core.failures import listed
from coordinator.core.model import Finding, RankState, Severity

NCCL = "nccl"
HOOK_MISSING = "hook_missing"


@dataclass(frozen=True)
class Agreement:
    """Where all ranks park, and how many there are."""

    target: int
    world_size: int
    lowest: int  # boundary of the rank that is furthest behind


def check_loaded(worker: int, node: str, ranks: Iterable[RankState]) -> None:
    """Raise NotReady naming the ranks of a worker that have not loaded the hook."""
    missing = [r.rank for r in ranks if r.boundary < 0]
    if missing:
        names = listed([f"rank {rank}" for rank in missing])
        raise NotReady(
            f"{names} of worker {worker} on {node} has not loaded the hook and reports no steps",
            where=Where(worker=worker, rank=missing[0], node=node, phase="HOLD"),
            advice="wait until training steps are taken, call worker_shim.hook.step() in the loop, "
            "or use --cut freeze where no rank uses NCCL",
        )


def check_findings(
    worker: int, node: str, findings: Iterable[Finding], *, freeze: bool, phase: str
) -> None:
    """Raise NotReady naming every finding of a worker that forbids the checkpoint.

    A freeze needs no hook, and no finding about NCCL of whatever severity allows one: collectives
    in flight do not survive it.
    """
    bad = [f for f in findings if _forbids(f, freeze=freeze)]
    if bad:
        raise NotReady(
            f"worker {worker} on {node} cannot be checkpointed: "
            + "; ".join(f"{f.text} [{f.code}]" for f in bad),
            where=Where(
                worker=worker,
                rank=bad[0].rank if bad[0].rank >= 0 else None,
                node=node,
                phase=phase,
            ),
            advice="remove what is named and try again",
            details=tuple(f"{f.code}: {f.text}" for f in bad),
        )


def _forbids(finding: Finding, *, freeze: bool) -> bool:
    if freeze and finding.code == NCCL:
        return True
    if freeze and finding.code == HOOK_MISSING:
        return False
    return finding.severity is Severity.REFUSE


def agree(
    answers: Mapping[int, tuple[RankState, ...]], nodes: Mapping[int, str], world_size: int
) -> Agreement:
    """Compute the target from what every worker published at HOLD.

    `world_size` 0 means not known: it is then the number of ranks that answered. Raises NotReady
    naming ranks without the hook, missing ranks, and ranks that two workers claim.
    """
    owner: dict[int, int] = {}
    for worker, ranks in answers.items():
        check_loaded(worker, nodes[worker], ranks)
        if not ranks:
            raise NotReady(
                f"worker {worker} on {nodes[worker]} has no rank that loaded the hook",
                where=Where(worker=worker, node=nodes[worker], phase="HOLD"),
                advice="wait until its ranks have started, or use --cut freeze",
            )
        for rank in ranks:
            if rank.rank in owner:
                raise NotReady(
                    f"rank {rank.rank} is claimed by worker {owner[rank.rank]} on "
                    f"{nodes[owner[rank.rank]]} and by worker {worker} on {nodes[worker]}",
                    where=Where(worker=worker, rank=rank.rank, node=nodes[worker], phase="HOLD"),
                    advice="end the older process; two jobs may run under one name, or replica "
                    "groups say no REPLICA_GROUP_ID",
                )
            owner[rank.rank] = worker
    size = world_size or len(owner)
    missing = [rank for rank in range(size) if rank not in owner]
    foreign = [rank for rank in sorted(owner) if rank >= size]
    if missing or foreign:
        raise NotReady(
            f"the job has {size} ranks; nobody answered for {_ranks(missing)}, "
            f"and there is no room for {_ranks(foreign)}",
            where=Where(rank=(missing or foreign)[0], phase="HOLD"),
            advice="wait until every rank has taken a step, or look at the named ranks",
        )
    boundaries = [r.boundary for ranks in answers.values() for r in ranks]
    return Agreement(target=max(boundaries) + 1, world_size=size, lowest=min(boundaries))


def _ranks(numbers: list[int]) -> str:
    return f"rank {listed([str(n) for n in numbers])}" if numbers else "none"


def check_at(
    target: int,
    worker: int,
    node: str,
    held: tuple[RankState, ...],
    now_at: tuple[RankState, ...],
    phase: str,
) -> None:
    """Raise AttemptFailed unless the same ranks as at HOLD are all at exactly the target."""
    before, after = {r.rank for r in held}, {r.rank for r in now_at}
    if before != after or len(now_at) != len(after):
        changed = sorted(before ^ after) or sorted(after)
        raise AttemptFailed(
            f"worker {worker} on {node} held ranks {sorted(before)} and now names {sorted(after)}",
            where=Where(worker=worker, rank=changed[0], node=node, phase=phase),
            advice="a rank ended or was started during the attempt; try again",
        )
    astray = [r for r in now_at if r.boundary != target]
    if astray:
        told = listed([f"rank {r.rank} at step {r.boundary}" for r in astray])
        raise AttemptFailed(
            f"worker {worker} on {node} says it is at step {target}, but has {told}",
            where=Where(worker=worker, rank=astray[0].rank, node=node, phase=phase),
            advice="try again; if it happens again, the loop takes steps in no fixed order",
        )
