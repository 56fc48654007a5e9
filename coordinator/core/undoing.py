"""The arrows of whatever is being undone, the same for an attempt and for a restore.

UNDO is an order like any other, with a deadline. Nobody who is out of reach, late or unable holds
the others up: it is named, left to its own timer, and owed the order when it is in reach again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coordinator.core.action import Action, Member, Round
from coordinator.core.commands import Command
from coordinator.core.events import (
    NodeAttached,
    NodeLeft,
    NodeLost,
    OrderFailed,
    TimePassed,
    Undone,
)
from coordinator.core.model import Phase

Orders = Callable[[Any, Round, list[Member], float], list[Command]]
Finish = Callable[[Any, float], list[Command]]


@dataclass(frozen=True)
class Undoing:
    """How one kind of action is undone, in its own words; the methods are its arrows."""

    orders: Orders
    finish: Finish
    unable: str  # "worker 1 on node-2 could not be undone"
    away: Callable[[Any, NodeLost | NodeLeft], str]  # "was lost and lets go by its own timer"

    def begin(self, a: Action[Any], members: list[Member], now: float) -> list[Command]:
        """Order everyone given to undo, and wait for them; the caller moves and announces."""
        sent = a.open_round(Phase.UNDO, a.policy.undo_s, now, capped=False, members=members)
        return self.orders(a, sent, members, now)

    def inherit(self, a: Action[Any], now: float) -> list[Command]:
        """Give up an action of an earlier leader: its nodes are told as they attach.

        Nodes in reach are told at once; the others have `adopt_s` to attach.
        """
        a.close_all(now)
        sent = a.open_round(Phase.UNDO, a.policy.adopt_s, now, capped=False)
        return self._tell(a, sent, a.in_reach(), now)

    def _tell(
        self, a: Action[Any], sent: Round, members: list[Member], now: float
    ) -> list[Command]:
        """Order members to undo, each with the whole time for it; the round waits that long."""
        if not members:
            return []
        for member in members:
            sent.awaited[member.worker] = member
        sent.expected = max(sent.expected, len(sent.awaited))
        latest = sent.sent_at + a.policy.adopt_s + a.policy.undo_s
        sent.deadline = min(max(sent.deadline, now + a.policy.undo_s), latest)
        return self.orders(a, sent, members, now)

    def on_undone(self, a: Action[Any], event: Undone, now: float) -> list[Command]:
        """A worker has nothing left of the action."""
        sent = a.accept(event, Phase.UNDO)
        if sent is None:
            return []
        a.undone.add(event.worker)
        sent.take(event.worker)
        return self.settle(a, now)

    def on_failed(self, a: Action[Any], event: OrderFailed, now: float) -> list[Command]:
        """A worker could not be undone: it is named, and nobody waits for it any longer."""
        if event.phase is not Phase.UNDO:
            a.ignore(f"{event.phase} failed on {event.node}, and is being undone already")
            return []
        sent = a.accept(event, Phase.UNDO)
        if sent is None:
            return []
        a.note(f"{sent.awaited[event.worker]} {self.unable}: {event.failure.what}")
        sent.take(event.worker)
        return self.settle(a, now)

    def on_lost(self, a: Action[Any], event: NodeLost | NodeLeft, now: float) -> list[Command]:
        """An awaited node is gone: it is not waited for."""
        sent = a.rounds[Phase.UNDO]
        for worker in a.lose(event):
            if sent.awaited.pop(worker, None):
                a.note(f"{a.members[worker]} {self.away(a, event)}")
        return self.settle(a, now)

    def on_found(self, a: Action[Any], event: NodeAttached, now: float) -> list[Command]:
        """A node is (again) in reach: whatever members it has are told to undo."""
        members = [a.members[worker] for worker in a.workers_on(event.facts.node)]
        for member in members:
            a.lost.pop(member.worker, None)
            a.undone.discard(member.worker)
        commands = self._tell(a, a.rounds[Phase.UNDO], members, now)
        if members:
            a.move(a.state, f"{event.facts.node} is in reach and told to undo")
        return commands

    def on_late(self, a: Action[Any], event: TimePassed, now: float) -> list[Command]:
        """Whoever has not undone by now is left, by name."""
        for sent in a.overdue(now):
            for member in sent.awaited.values():
                a.note(
                    f"{member} has not said within {now - sent.sent_at:.1f} s that it was undone"
                )
            return self.finish(a, now)
        return []

    def settle(self, a: Action[Any], now: float) -> list[Command]:
        """End the action when nobody is awaited any more."""
        sent = a.rounds[Phase.UNDO]
        return self.finish(a, now) if sent.complete else a.progress(sent, now)
