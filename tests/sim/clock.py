"""`time.monotonic` and `time.time` that a simulation can take over; import this before all else.

Many modules keep these functions as default arguments, so they are replaced before those modules
are loaded, once, in a process that does nothing but simulate.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EPOCH_UNIX_S = 1_800_000_000.0

_real = time.monotonic
_clock: Callable[[], float] = _real


def _monotonic() -> float:
    return _clock()


def _unix() -> float:
    return EPOCH_UNIX_S + _clock()


def take_over() -> None:
    """Replace both functions for the rest of this process's life."""
    time.monotonic = _monotonic
    time.time = _unix


def use(clock: Callable[[], float] | None) -> None:
    """Let this clock answer from now on; None: the real one."""
    global _clock
    _clock = clock or _real


def real() -> float:
    """Seconds of the real monotonic clock."""
    return _real()
