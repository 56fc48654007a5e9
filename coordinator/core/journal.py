"""The core's memory of why: the last decisions with what caused each of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from coordinator.core.events import Event


@dataclass(frozen=True)
class Decision:
    """One decision: what it answered and why it was taken."""

    at: float  # monotonic seconds of the coordinator
    action: str  # attempt or restore; empty where it concerns neither
    cause: str  # the event, in short: "Held of worker 1 on node-1"
    reason: str  # one sentence
    state: str = ""  # state of the action afterwards
    ignored: bool = False  # the event changed nothing


def cause_of(event: Event) -> str:
    """An event in short, with its place."""
    name = type(event).__name__
    worker = getattr(event, "worker", None)
    node = getattr(event, "node", "")
    if worker is not None:
        return f"{name} of worker {worker} on {node}"
    return f"{name} of {node}" if node else name


class Journal:
    """A bounded list of decisions, oldest first; the oldest is forgotten when it is full."""

    def __init__(self, limit: int) -> None:
        self._decisions: deque[Decision] = deque(maxlen=limit)

    def note(self, decision: Decision) -> None:
        """Keep one decision."""
        self._decisions.append(decision)

    def story(self, action: str = "") -> tuple[Decision, ...]:
        """Decisions about one action, or all of them, oldest first."""
        return tuple(d for d in self._decisions if not action or d.action == action)
