"""The dead-man timer: a worker is never held longer than its shim was told, whoever dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class DeadManTimer:
    """One worker's own deadline for being held, on the monotonic clock of this machine.

    Every order that holds arms it anew from receipt; whatever lets the worker go disarms it.
    """

    def __init__(self, undo: Callable[[str, float], Awaitable[None]]) -> None:
        """`undo(action, held_s)` runs as a task of its own when the time is over."""
        self._undo = undo
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Future[None] | None = None
        self.ran_out = asyncio.Event()
        self._until = 0.0
        self._action = ""

    @property
    def armed(self) -> bool:
        """Whether the timer runs."""
        return self._timer is not None

    @property
    def left_s(self) -> float:
        """Seconds until it fires; 0 when it is not armed."""
        if self._timer is None:
            return 0.0
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def left_for_s(self, action: str) -> float:
        """Seconds until it fires for this action; 0 when it is armed for another one or not."""
        return self.left_s if action == self._action else 0.0

    def arm(self, action: str, hold_s: float) -> None:
        """Count from now; a timer that runs already is set anew (never shortened silently to 0)."""
        if hold_s <= 0:
            return
        self._cancel()
        self.ran_out.clear()
        loop = asyncio.get_running_loop()
        self._action = action
        self._until = loop.time() + hold_s
        self._timer = loop.call_later(hold_s, self._fire, hold_s)

    def disarm(self, action: str = "") -> None:
        """The worker is not held any more (by this action, where one is named)."""
        if action in ("", self._action):
            self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self, hold_s: float) -> None:
        self._timer = None
        self.ran_out.set()
        self._task = asyncio.ensure_future(self._undo(self._action, hold_s))

    async def settled(self, *, deadline_s: float) -> None:
        """Wait for an undo that is on its way; for an orderly end of the shim."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=deadline_s)
