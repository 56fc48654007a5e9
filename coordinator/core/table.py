"""State machines as tables: (state, event type) gives a row, and a missing row is an error.

The tables are data so that three things read the same one: the code that runs, the diagrams in
`design/`, and the tests that walk every row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from coordinator.core.commands import Command
from coordinator.core.errors import BugError, IllegalEvent, Where
from coordinator.core.events import Event

S = TypeVar("S", bound=StrEnum)


class Stepping(Protocol[S]):
    """Whatever a table moves: an attempt, a restore, a cleaning."""

    id: str
    job: str
    state: S

    def ignore(self, reason: str) -> None:
        """Note that an event changed nothing, and why."""


# The first two parameters are the action and the event of the row; a table cannot say so per key.
Handler = Callable[[Any, Any, float], list[Command]]


@dataclass(frozen=True)
class Row:
    """What an event does in a state: the handler, and every state it may leave the action in."""

    handler: Handler
    to: tuple[StrEnum, ...]


@dataclass(frozen=True)
class Ignored:
    """An event that may come in a state and changes nothing there."""

    reason: str


Table = Mapping[S, Mapping[type[Event], Row | Ignored]]


def step(table: Table[S], action: Stepping[S], event: Event, now: float) -> list[Command]:
    """Take one event through the table.

    Raises IllegalEvent before anything is changed when there is no row, and BugError when a
    handler left the action in a state that its row does not name.
    """
    before = action.state
    row = table[before].get(type(event))
    if row is None:
        raise IllegalEvent(
            f"{type(event).__name__} cannot come in state {before} of {action.id}: {event}",
            where=Where(job=action.job),
            advice="report this with the story of the action",
        )
    if isinstance(row, Ignored):
        action.ignore(row.reason)
        return []
    commands = row.handler(action, event, now)
    if action.state not in row.to:
        raise BugError(
            f"{type(event).__name__} took {action.id} from {before} to {action.state}, "
            "which the table does not allow",
            where=Where(job=action.job),
        )
    return commands
