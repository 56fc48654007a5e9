"""The truth about a job's processes: trees of ranks that take steps, are stopped, and die.

A rank finishes step b+1 only with every rank of its job: one that is stopped, cut off by a network
lock, parked or dead holds all others up, as a collective does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coordinator.core.errors import DeadlinePassed
from coordinator.core.model import RankState
from tests.sim.cause import has_effect
from worker_shim.process.port import Tree as Listing
from worker_shim.process.port import unheard

POLL_S = 0.1


@dataclass
class Rank:
    """One rank, with what it has published in the control page."""

    rank: int
    local_rank: int
    pid: int
    boundary: int = 0
    in_step: bool = True  # it has read the flag at its boundary and gone on
    parked: int = 0  # generation of the hold that it is parked for


class Page:
    """The control page that ranks and shim share; `Page` of the agent's ports."""

    def __init__(self, ranks: list[Rank], world_size: int) -> None:
        self.of, self._world_size = ranks, world_size
        self.hold = 0
        self.target = 0
        self.incarnation = 0
        self.on_release: Callable[[], None] = lambda: None  # the truth wants to know

    @property
    def world_size(self) -> int:
        """As the ranks say."""
        return self._world_size

    async def raise_hold(self, generation: int) -> None:
        """Raise the flag."""
        has_effect("raise_hold")
        self.target = 0
        self.hold = generation

    def ranks(self, tree: Listing | None = None) -> tuple[RankState, ...]:
        """Every rank as published."""
        return tuple(
            RankState(r.rank, r.local_rank, r.pid, r.boundary, bool(r.parked)) for r in self.of
        )

    def set_target(self, target: int) -> None:
        """Say where to park."""
        has_effect("set_target")
        self.target = target

    async def wait_parked(
        self,
        tree: Listing | None = None,
        *,
        known: tuple[RankState, ...] = (),
        deadline_s: float,
        arrived: Callable[[int], object] = unheard,
    ) -> tuple[RankState, ...]:
        """Look now and then until all are parked."""
        import asyncio

        until = asyncio.get_running_loop().time() + deadline_s
        while not all(r.parked == self.hold != 0 for r in self.of):
            if asyncio.get_running_loop().time() >= until:
                late = [r.rank for r in self.of if not r.parked]
                raise DeadlinePassed(f"ranks {late} are awaited at step {self.target}")
            await asyncio.sleep(POLL_S)
        return self.ranks(tree)

    tearing_down = False  # no NCCL here

    def communicators(self) -> tuple[()]:
        """No rank has any."""
        return ()

    def release(self) -> None:
        """Lower the flag."""
        has_effect("release")
        was_held, self.hold = self.hold, 0
        self.target = 0
        if was_held:
            self.on_release()

    def set_incarnation(self, incarnation: int) -> None:
        """Note it."""
        has_effect("set_incarnation")
        self.incarnation = incarnation

    def snapshot(self) -> tuple[dict[str, int], tuple[dict[str, int], ...]]:
        """All fields."""
        page = {
            "hold": self.hold,
            "target": self.target,
            "incarnation": self.incarnation,
            "world_size": self._world_size,
        }
        return page, tuple(
            {"rank": r.rank, "local": r.local_rank, "pid": r.pid, "boundary": r.boundary}
            for r in self.of
        )

    def refresh_starts(self) -> None:
        """Start times are not simulated."""

    def close(self) -> None:
        """Nothing is mapped."""


def page_of(page: Mapping[str, int], slots: tuple[Mapping[str, int], ...]) -> Page:
    """A page written anew for ranks that come back; they wait in the hold they were dumped in."""
    ranks = [
        Rank(s["rank"], s["local"], s["pid"], s["boundary"], not page["hold"], page["hold"])
        for s in slots
    ]
    made = Page(ranks, page["world_size"])
    made.hold, made.target, made.incarnation = page["hold"], page["target"], page["incarnation"]
    return made


@dataclass
class Tree:
    """One worker's processes on one machine, from their start (or restore) to their end."""

    job: str
    worker: int
    workers: int
    machine: str
    lineage: str  # the run or the restore that made it: trees of one lineage belong together
    root_pid: int
    page: Page
    alive: bool = True
    died_at: float = float("inf")
    stopped: bool = False
    went_on: list[float] = field(default_factory=list)  # when it was let go after a stop
    bound_since: float = -1.0  # since when it is not free; -1: it is
    bound_frozen_s: float = 0.0  # what its shim's own freezes amounted to by then
    stuck_until: float = 0.0  # a rank of it stands still for reasons of its own

    @property
    def name(self) -> str:
        """As locks are named."""
        return f"{self.job}/{self.worker}"

    def __str__(self) -> str:
        return f"{self.name} on {self.machine} ({self.lineage})"

    @property
    def pids(self) -> list[int]:
        """Of its ranks."""
        return [r.pid for r in self.page.of]

    @property
    def boundaries(self) -> dict[int, int]:
        """Step of each rank."""
        return {r.rank: r.boundary for r in self.page.of}


def advance(trees: list[Tree], locked: set[str], off: set[str], now: float, chance: object) -> bool:
    """Let the ranks of one lineage go on where they can; whether any of them took a step.

    `locked` are workers without a network, `off` those whose ranks cannot use their devices.
    """
    whole = len({t.worker for t in trees}) == trees[0].workers
    moved = False
    ranks = [(t, r) for t in trees for r in t.page.of]
    for tree, rank in ranks:
        if tree.stopped:
            continue
        if not rank.in_step:
            _read_flag(tree.page, rank)
        if not rank.in_step or not whole or locked or now < tree.stuck_until or tree.name in off:
            continue
        if chance() > 0.8:  # type: ignore[operator]
            continue
        if all(_helps(t, r, rank.boundary) for t, r in ranks):
            rank.boundary += 1
            moved = True
            rank.in_step = False
            _read_flag(tree.page, rank)
    return moved


def _helps(tree: Tree, other: Rank, boundary: int) -> bool:
    """Whether this rank takes part in the step that leads beyond the boundary, or has done so."""
    taking_part = other.boundary == boundary and other.in_step and not tree.stopped
    return other.boundary > boundary or taking_part


def _read_flag(page: Page, rank: Rank) -> None:
    """What a rank does at a boundary: see `worker_shim/hook/rank.py`."""
    rank.parked = 0
    rank.in_step = not page.hold or 0 != page.target > rank.boundary
    if page.hold and 0 != page.target <= rank.boundary:
        rank.parked = page.hold
