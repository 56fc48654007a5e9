"""The output of workers: who has it, and how it is asked for piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.core.cluster import Cluster
from coordinator.core.errors import NotFound, Where
from coordinator.core.known import ATTACHED, Job
from coordinator.core.model import Failure

PLACES_MAX = 64  # of one request
OUTPUT = "output"  # stdout and stderr of a worker, in one


@dataclass(frozen=True)
class LogPlace:
    """From where on some output is wanted."""

    worker: int
    of_rank: bool = False  # that of one rank, not the whole worker's
    rank: int = 0
    source: str = ""  # as an earlier part named it; empty: all that there are
    file: str = ""  # as an earlier part named it; empty: begin with the last `lines` lines
    offset: int = 0
    lines: int = 0
    room: int = 0  # at most so many bytes


@dataclass(frozen=True)
class LogPart:
    """A piece of some output, or why there is none."""

    worker: int
    source: str = OUTPUT
    file: str = ""  # tells whether it still is the file that was read before
    data: bytes = b""
    next: int = 0
    more: bool = False  # there is more already
    note: str = ""
    failure: Failure | None = None
    node: str = ""


@dataclass(frozen=True)
class Whereabouts:
    """Where one worker of a job is."""

    worker: int
    node: str  # empty: on none
    away: str  # why it cannot be asked now; empty: it can
    ranks: tuple[int, ...]


def whereabouts(cluster: Cluster, name: str) -> tuple[Whereabouts, ...]:
    """Where each worker of a job is, by number; raises NotFound for no such job."""
    job = cluster.jobs.get(name)
    if job is None:
        raise NotFound(f"there is no job {name}", advice="`allstop jobs` lists them")
    return tuple(_whereabouts(cluster, job, worker) for worker in range(job.workers))


def _whereabouts(cluster: Cluster, job: Job, worker: int) -> Whereabouts:
    at = job.places.get(worker) or job.fresh.get(worker, "")
    node = cluster.nodes.get(at)
    if node is None:
        return Whereabouts(worker, at, "no node has it", ())
    state = node.workers.get((job.name, worker))
    ranks = tuple(rank.rank for rank in state.ranks) if state is not None else ()
    if node.state != ATTACHED:
        return Whereabouts(worker, at, f"{at} {_is(node.state)}: {node.reason}", ranks)
    return Whereabouts(worker, at, "" if state else f"{at} does not have it any more", ranks)


def _is(state: str) -> str:
    return "has left" if state == "left" else "is lost"


def worker_of(found: Sequence[Whereabouts], job: str, rank: int) -> int:
    """The worker that a rank is of; raises NotFound when no node has told of it."""
    for each in found:
        if rank in each.ranks:
            return each.worker
    known = sorted(rank for each in found for rank in each.ranks)
    raise NotFound(
        f"no node has told of rank {rank}",
        where=Where(job=job, rank=rank),
        advice=f"there are ranks {known[0]} to {known[-1]}"
        if known
        else "ranks are known once they have loaded the hook; --worker takes all that a worker"
        " has put out",
    )
