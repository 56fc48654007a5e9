"""Who is taken when, drawn from a seed, and how each is taken and returned."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from lab.errors import LabError
from tests.chaos import faults
from tests.chaos.history import History
from tests.chaos.options import COORDINATORS, NODES
from tests.soak.world import SoakWorld

BUSY_SHARE = 0.75  # of those that hit a node hit one with a worker
LEADER_SHARE = 0.6


@dataclass(frozen=True)
class Kind:
    """One way to take somebody.

    Attributes:
        ends: whether a worker that is there ends at once. That of a killed shim runs on until the
            next shim finds it, or the job is restored without it.
        away_s: how long it is away, at least and at most.
    """

    group: tuple[str, ...]
    take: Callable[[SoakWorld, str], None]
    give_back: Callable[[SoakWorld, str], None]
    ends: bool
    away_s: tuple[float, float]
    weight: int


def power_on_empty(world: SoakWorld, name: str) -> None:
    """Another machine of that name and address."""
    if not world.host(name).alive:
        world.power_on_empty(name)


FREEZES_S = (2.0, 20.0)  # some are over before anybody has missed it
KINDS: dict[str, Kind] = {
    "node_off": Kind(NODES, faults.power_off, faults.power_on, True, (5.0, 25.0), 3),
    "node_lost": Kind(NODES, faults.power_off, power_on_empty, True, (5.0, 25.0), 3),
    "shim_kill": Kind(NODES, faults.kill, faults.start, False, (1.0, 15.0), 4),
    "shim_freeze": Kind(NODES, faults.freeze, faults.thaw, False, FREEZES_S, 4),
    "coordinator_kill": Kind(COORDINATORS, faults.kill, faults.start, False, (1.0, 15.0), 3),
    "coordinator_freeze": Kind(COORDINATORS, faults.freeze, faults.thaw, False, FREEZES_S, 3),
}


@dataclass(frozen=True)
class Kill:
    """One of a run, as the seed decided it.

    Attributes:
        after_s: since the beginning.
        chosen: one that leads, or has a worker, rather than any.
        pick: which of those that it may be.
    """

    kind: str
    after_s: float
    away_s: float
    chosen: bool
    pick: int


def draw(seed: int, seconds: float, mtbf_s: float) -> list[Kill]:
    """All of a run: exponential, the mean is `mtbf_s`."""
    chance, kills, at_s = random.Random(seed), list[Kill](), 0.0
    while (at_s := at_s + chance.expovariate(1 / mtbf_s)) < seconds:
        name = chance.choices(list(KINDS), [kind.weight for kind in KINDS.values()])[0]
        kind = KINDS[name]
        chosen = chance.random() < (BUSY_SHARE if kind.group is NODES else LEADER_SHARE)
        away_s = chance.uniform(*kind.away_s)
        kills.append(Kill(name, at_s, away_s, chosen, chance.randrange(1 << 16)))
    return kills


@dataclass(frozen=True)
class Taken:
    """What has been done to whom, in nanoseconds of the clock that the diaries have too.

    Attributes:
        busy: whether the target may have had a worker of the job.
        until_ns: when it was back.
    """

    kind: str
    target: str
    busy: bool
    unix_ns: int
    until_ns: int


class Killer:
    """Takes and returns; `homes` are the nodes that have, or had last, a worker of the job."""

    def __init__(self, world: SoakWorld, history: History) -> None:
        self.world = world
        self.history = history
        self.taken: list[Taken] = []
        self.away: set[str] = set()
        self.homes: frozenset[str] = frozenset(NODES)
        self.nobody = 0  # kills for which nobody was left to be taken

    async def work(self, kills: list[Kill], seconds: float) -> None:
        """All kills at their times; returns when the last one is back and the time is over."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for kill in kills:
                await asyncio.sleep(max(0.0, began + kill.after_s - time.monotonic()))
                group.create_task(self.take(kill))
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))

    async def take(self, kill: Kill) -> None:
        """Take somebody, and return it when it is time."""
        kind, target = KINDS[kill.kind], await self.target(kill)
        if not target:
            self.nobody += 1
            self.history.note("nobody", f"  ! {kill.kind}: all of them are away")
            return
        self.away.add(target)
        trees = await asyncio.to_thread(self.world.copies)
        busy = target in self.homes or any(target in nodes for nodes in trees.values())
        unix_ns = time.time_ns()
        text = f"  ! {kill.kind} {target}, for {kill.away_s:.1f} s"
        self.history.note("taken", text, kind=kill.kind, target=target, busy=busy)
        await asyncio.to_thread(kind.take, self.world, target)
        await asyncio.sleep(kill.away_s)
        try:
            await asyncio.to_thread(kind.give_back, self.world, target)
        except LabError as error:
            self.history.violation(f"the harness could not return {target}: {error}")
        self.away.discard(target)
        self.taken.append(Taken(kill.kind, target, busy, unix_ns, time.time_ns()))
        self.history.note("returned", f"  . {target} is back", target=target)

    async def target(self, kill: Kill) -> str:
        """The one that is meant, or another of its kind where that one is away; or nobody."""
        group = KINDS[kill.kind].group
        meant = self.homes if group is NODES else {await self.world.leader()}
        there = [name for name in group if name not in self.away]
        best = [name for name in there if kill.chosen and name in meant]
        left = best or there
        return left[kill.pick % len(left)] if left else ""
