"""How a job stands at one look: who is there, who has ended and how, who takes no steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.core.cluster import Cluster
from coordinator.core.events import WorkerExited
from coordinator.core.failures import listed
from coordinator.core.known import ATTACHED, LEFT, Job
from coordinator.core.model import RankState, WorkerState
from coordinator.core.running import Running

NEW_WEIGHT = 0.1  # of a step in what one usually takes


class Pace(NamedTuple):
    """The steps of one rank that has taken one."""

    rank: int
    step: int  # the last one
    still_s: float  # since then; an attempt that parks ranks in vain does not count
    usual_s: float  # between two of its own; 0: none was seen yet


@dataclass(frozen=True)
class Standing:
    """How a job stands at one look."""

    busy: bool = False  # an attempt or a restore has it
    whole: bool = False  # every worker lives and is in reach
    workers: int = 0
    crashed: tuple[str, ...] = ()  # workers that ended with another code than 0, in words
    gone: tuple[str, ...] = ()  # workers out of reach, or nowhere, in words
    ended: tuple[int, ...] = ()  # workers that ended with 0
    on_purpose: bool = False  # whoever is not there was ended by whoever runs its shim
    taken_away: str = ""  # how one of them has ended the run by that; empty: none has
    step: int = 0
    crash_step: int = 0  # that workers had finished which ended with another code; 0: not known
    paces: tuple[Pace, ...] = ()  # empty while nobody knows, or no steps are to be expected
    behind: str = ""  # ranks that have finished fewer steps than others, in words
    usual_s: float = 0.0  # of a step; 0: not known
    nodes: int = 0  # that are in reach


@dataclass
class _Clock:
    """The steps of one rank, as they were seen."""

    step: int
    at: float  # when it was seen, later by what was done to the job since
    usual_s: float = 0.0

    def stepped(self, step: int, now: float) -> None:
        """It has taken more steps."""
        took_s = (now - self.at) / (step - self.step)
        self.usual_s += (took_s - self.usual_s) * (NEW_WEIGHT if self.usual_s else 1.0)
        self.step, self.at = step, now


@dataclass
class _Clocks:
    """Those of one run of a job."""

    incarnation: int
    looked_at: float
    ranks: dict[int, _Clock] = field(default_factory=dict)


class Standings:
    """Looks at jobs, and keeps what one look does not show."""

    def __init__(self, cluster: Cluster, running: Running, usual_s: Callable[[str], float]) -> None:
        """`usual_s`: of a step of a job; 0 while not known."""
        self._cluster = cluster
        self._running = running
        self._usual_s = usual_s
        self._clocks: dict[str, _Clocks] = {}
        self._exits: dict[str, tuple[int, int]] = {}  # by job: incarnation, furthest step

    def worker_exited(self, event: WorkerExited) -> None:
        """How far a worker got that ended; `event` has the incarnation that it is known by."""
        if event.exit_code != 0:
            incarnation, step = self._exits.get(event.job, (0, 0))
            before = step if incarnation == event.incarnation else 0
            self._exits[event.job] = (event.incarnation, max(before, event.step))

    def look(self, job: Job, ended_before: tuple[int, ...], now: float) -> Standing:
        """How a job stands; `ended_before`: workers known to have ended with 0."""
        alive = self._cluster.alive(job)
        ranks = [rank for state in alive for rank in state.ranks]
        here = {state.worker for state in alive if state.state != "faulted"}
        crashed, gone, ended, left = self._missing(job, here, ended_before)
        step = max((rank.boundary for rank in ranks), default=0)
        incarnation, exit_step = self._exits.get(job.name, (0, 0))
        moves = not (crashed or gone or any(rank.no_steps for rank in ranks))
        busy = bool(self._running.of_job(job.name)) or job.beginning
        excused = not crashed or bool(job.taken_away)
        return Standing(
            busy=busy,
            whole=bool(here) and len(here) == job.workers,
            workers=job.workers,
            crashed=tuple(crashed),
            gone=tuple(gone),
            ended=tuple(ended),
            on_purpose=not here and excused and 0 < left == len(crashed) + len(gone),
            taken_away=job.taken_away,
            step=step,
            crash_step=exit_step if incarnation == job.incarnation else 0,
            paces=self._paces(job, ranks if moves else (), now, busy=busy),
            behind=self._behind(job, alive, step),
            usual_s=self._usual_s(job.name),
            nodes=sum(node.state == ATTACHED for node in self._cluster.nodes.values()),
        )

    def _missing(
        self, job: Job, here: set[int], ended_before: tuple[int, ...]
    ) -> tuple[list[str], list[str], list[int], int]:
        """Who crashed, who is gone, who ended well; and of how many of the first the shim left."""
        crashed: list[str] = []
        gone: list[str] = []
        ended: list[int] = []
        left = 0
        for worker in range(job.workers):
            if worker in here:
                continue
            at = job.places.get(worker, "")
            node = self._cluster.nodes.get(at)
            state = node.workers.get((job.name, worker)) if node is not None else None
            own = state is not None and state.incarnation == job.incarnation
            exited = own and state is not None and state.state == "exited"
            if worker in ended_before or (exited and state is not None and not state.exit_code):
                ended.append(worker)  # also where its shim has left, as one that started it does
                continue
            left += node is not None and node.state == LEFT
            if exited and state is not None:  # it had ended before its shim left, or was lost
                crashed.append(f"worker {worker} on {at} {_code(state.exit_code)}")
            elif node is not None and node.state != ATTACHED:
                gone.append(f"worker {worker}: {at} is {node.state}, {node.reason}")
            elif own:
                crashed.append(f"worker {worker} on {at} is faulted")
            else:
                gone.append(f"worker {worker} is on no node")
        return crashed, gone, ended, left

    def _behind(self, job: Job, alive: Iterable[WorkerState], step: int) -> str:
        late = [
            f"rank {rank.rank} on {job.places.get(state.worker, 'no node')} at step {rank.boundary}"
            for state in alive
            for rank in state.ranks
            if rank.boundary < step
        ]
        return f"{listed(late)}, others at step {step}" if late else ""

    def _paces(
        self, job: Job, ranks: Iterable[RankState], now: float, *, busy: bool
    ) -> tuple[Pace, ...]:
        """For how long each rank has taken no step; what an attempt or a restore takes is left out.

        A rank that never took one is not known to take any.
        """
        clocks = self._clocks.get(job.name)
        if clocks is None or clocks.incarnation != job.incarnation:
            clocks = self._clocks[job.name] = _Clocks(job.incarnation, now)
        passed_s, clocks.looked_at = now - clocks.looked_at, now
        seen: dict[int, _Clock] = {}
        for rank in ranks:
            clock = clocks.ranks.get(rank.rank)
            if clock is None or rank.boundary < clock.step:
                clock = _Clock(rank.boundary, now)
            elif rank.boundary > clock.step:
                clock.stepped(rank.boundary, now)
            elif busy:
                clock.at += passed_s
            seen[rank.rank] = clock
        clocks.ranks = seen
        return tuple(
            Pace(rank, clock.step, now - clock.at, clock.usual_s)
            for rank, clock in seen.items()
            if clock.step > 0
        )


def _code(exit_code: int) -> str:
    if exit_code < 0:
        return f"was ended by signal {-exit_code}"
    return f"ended with exit code {exit_code}"
