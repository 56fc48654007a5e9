"""The faults that chaos knows: on whom, how they are made and mended, and whether a worker dies."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.options import COORDINATORS, MEMBERS, NODES
from tests.chaos.world import World

LONG_S = (6.0, 11.0)  # longer than the leader's lease and the nodes'
SHORT_S = (1.0, 4.0)


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        on: coordinators, members, nodes, or "" where the fault needs no target.
        break_, mend: called in a thread, with the world and the target.
        kills: whether it ends the worker that is there.
        lasts_s: how long it is left, at least and at most.
        of: what it makes sense in: checkpoint, restore, or both.
        weight: how often it is chosen.
    """

    on: str
    break_: Callable[[World, str], None]
    mend: Callable[[World, str], None]
    kills: bool = False
    lasts_s: tuple[float, float] = SHORT_S
    of: tuple[str, ...] = ("checkpoint", "restore")
    weight: int = 2


@dataclass(frozen=True)
class Fault:
    """One fault of a run, as the seed decided it.

    Attributes:
        kind: a word of `KINDS`.
        target: a host; "leader" and "follower" are looked up when it happens; several with "+".
        at: the state of the action at which it happens; empty: after so many seconds.
        after_s: from that state, or from the request.
        lasts_s: until it is mended.
        pick: chooses among the nodes that have a worker then.
    """

    kind: str
    target: str
    at: str
    after_s: float
    lasts_s: float
    pick: int = 0

    def __str__(self) -> str:
        when = f"at {self.at} + {self.after_s:.2f} s" if self.at else f"after {self.after_s:.2f} s"
        return f"{self.kind} {self.target} {when}, for {self.lasts_s:.1f} s"


def each(one: Callable[[World, str], None]) -> Callable[[World, str], None]:
    """The same for several hosts, given with "+" between them."""

    def all_of_them(world: World, names: str) -> None:
        for name in names.split("+"):
            one(world, name)

    return all_of_them


@each
def freeze(world: World, name: str) -> None:
    """SIGSTOP: it answers nothing, its connections stay."""
    world.signal(name, signal.SIGSTOP)


@each
def thaw(world: World, name: str) -> None:
    """SIGCONT."""
    world.signal(name, signal.SIGCONT)


@each
def kill(world: World, name: str) -> None:
    """SIGKILL."""
    world.kill(name)


def end(world: World, name: str) -> None:
    """SIGTERM: it lays down what it has begun, and ends."""
    world.end(name)


@each
def start(world: World, name: str) -> None:
    """Start it again, unless another fault's end has done so."""
    there = world.process(name).poll() is None
    if not there and world.host(name).alive and name not in world.ghosts:
        world.start_again(name)


@each
def cut_off(world: World, name: str) -> None:
    """Unplug the host's cable."""
    world.host(name).cut_off()


@each
def reconnect(world: World, name: str) -> None:
    """Plug it in again."""
    world.host(name).reconnect()


def power_off(world: World, name: str) -> None:
    """Every process of the node and its memory are gone, and nobody hears a last word."""
    world.host(name).power_off()


def power_on(world: World, name: str) -> None:
    """It comes back as a spare."""
    if not world.host(name).alive:
        world.power_on(name)


def haunt(world: World, name: str) -> None:
    """An old leader speaks in the place of a coordinator; see ghost.py."""
    world.kill(name)
    world.raise_ghost(name)


def lay_ghost(world: World, name: str) -> None:
    """The coordinator itself is back."""
    world.lay_ghost(name)
    start(world, name)


def pause(world: World, name: str) -> None:
    """The whole node stands still."""
    world.host(name).pause()


def unpause(world: World, name: str) -> None:
    """It goes on."""
    world.host(name).unpause()


def criu(*words: str) -> Callable[[World, str], None]:
    """CRIU fails on that node, as programs/criu.sh knows it."""

    def fails(world: World, name: str) -> None:
        world.tell_criu(name, *words)

    return fails


def nothing(world: World, name: str) -> None:
    """What is done needs the action; see driver.py."""


def criu_works(world: World, name: str) -> None:
    """CRIU works again."""
    world.tell_criu(name)


def fill(world: World, name: str) -> None:
    """No room is left in the node's staging."""
    world.fill_staging(name)


def make_room(world: World, name: str) -> None:
    """There is room again."""
    world.empty_staging(name)


CHECKPOINT = ("checkpoint",)
KINDS: dict[str, Kind] = {
    "coordinator_kill": Kind("coordinators", kill, start, weight=4),
    "coordinator_end": Kind("coordinators", end, start),
    "coordinator_freeze": Kind("coordinators", freeze, thaw, lasts_s=LONG_S, weight=4),
    "coordinator_cut": Kind("coordinators", cut_off, reconnect, lasts_s=LONG_S, weight=3),
    "old_leader": Kind("coordinators", haunt, lay_ghost, lasts_s=LONG_S, weight=3),
    "operator_abort": Kind("", nothing, nothing, lasts_s=(0.0, 0.0)),
    "etcd_kill": Kind("members", kill, start),
    "etcd_freeze": Kind("members", freeze, thaw, lasts_s=LONG_S),
    "etcd_cut": Kind("members", cut_off, reconnect, lasts_s=LONG_S),
    "quorum_kill": Kind("two members", kill, start),
    "quorum_freeze": Kind("two members", freeze, thaw, lasts_s=LONG_S),
    "shim_kill": Kind("nodes", kill, start, kills=True, weight=3),
    "shim_freeze": Kind("nodes", freeze, thaw, lasts_s=LONG_S, weight=3),
    "node_off": Kind("nodes", power_off, power_on, kills=True, weight=3),
    "node_freeze": Kind("nodes", pause, unpause, lasts_s=LONG_S),
    "node_cut": Kind("nodes", cut_off, reconnect, lasts_s=LONG_S, weight=3),
    "criu_says": Kind("nodes", criu("says"), criu_works, of=CHECKPOINT),
    "criu_dies": Kind("nodes", criu("dies"), criu_works, of=CHECKPOINT),
    "criu_killed": Kind("nodes", criu("killed"), criu_works, kills=True, of=CHECKPOINT, weight=1),
    "criu_full": Kind("nodes", criu("full"), criu_works, of=CHECKPOINT),
    "criu_hangs": Kind("nodes", criu("hangs"), criu_works, of=CHECKPOINT, weight=1),
    "criu_slow": Kind("nodes", criu("slow", "2"), criu_works, of=CHECKPOINT, weight=3),
    "criu_missing": Kind("nodes", criu("missing"), criu_works, of=("restore",), weight=3),
    "staging_full": Kind("nodes", fill, make_room, lasts_s=LONG_S, weight=3),
}
# These have to be there before the action comes to its dump.
EARLY = frozenset(name for name in KINDS if name.startswith("criu_"))

STATES = {
    "checkpoint": ("ADMITTING", "HOLDING", "PARKING", "DUMPING", "PERSISTING", "COMMITTING"),
    "restore": ("ADMITTING", "FETCHING", "CLEARING", "RESTORING", "RELEASING"),
}


def choose(chance: random.Random, action: str, only: tuple[str, ...] = ()) -> Fault:
    """One fault for a checkpoint or a restore."""
    names = [
        name for name, kind in KINDS.items() if action in kind.of and (not only or name in only)
    ] or [name for name, kind in KINDS.items() if action in kind.of]
    name = chance.choices(names, [KINDS[each].weight for each in names])[0]
    kind = KINDS[name]
    target = {
        "coordinators": lambda: chance.choice(("leader", "leader", *COORDINATORS)),
        "members": lambda: chance.choice(MEMBERS),
        "two members": lambda: "+".join(chance.sample(MEMBERS, 2)),
        "": lambda: "",
        "nodes": lambda: chance.choice(("busy", "busy", "busy", *NODES)),
    }[kind.on]()
    at = "" if name in EARLY else chance.choice(STATES[action])
    after_s = 0.0 if name in EARLY else chance.choice((0.0, chance.uniform(0, 0.5)))
    lasts_s = chance.uniform(*kind.lasts_s)
    return Fault(name, target, at, after_s, lasts_s, chance.randrange(1000))


async def resolve(world: World, fault: Fault) -> str:
    """Who it is now that leads, or has a worker; any of them where that is not known."""
    if fault.target == "leader":
        return await world.leader() or COORDINATORS[0]
    if fault.target == "busy":
        view = await world.job()
        nodes = [node for node in (view.nodes if view else ()) if node in NODES] or list(NODES)
        return nodes[fault.pick % len(nodes)]
    return fault.target


async def in_thread(do: Callable[[World, str], None], world: World, target: str) -> None:
    """Breaking and mending run programs and wait for them."""
    await asyncio.to_thread(do, world, target)
