"""What a shim does because of a message carries that message's epoch: an old one may do nothing.

The tasks that a message starts inherit its context, so every act of a driver knows its cause.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context

OLD: ContextVar[str] = ContextVar("OLD", default="")  # the order of an old epoch that acts here

on_violation: list[Callable[[int, str], None]] = []


def has_effect(act: str) -> None:
    """A driver acts on a worker or a disk."""
    old = OLD.get()
    if old:
        for tell in on_violation:
            tell(5, f"{old} has an effect: {act}")


def because_of(what: str, call: Callable[..., object], *args: object) -> None:
    """Call something whose every effect is due to an old epoch."""
    context = copy_context()
    context.run(OLD.set, what)
    context.run(call, *args)
