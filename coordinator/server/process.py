"""What every process of a coordinator sets up for itself: signals, log, open files."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

FILES_MAX = 1 << 20  # some programs make a table of all that may be open


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set, instead of ending the process."""
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stopping.set)
    try:
        yield stopping
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def first_of(*works: Coroutine[Any, Any, Any]) -> int:
    """Run all until one has ended, end the others, and say which it was; raises what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = next(task for task in tasks if task.done())
        await ended
        return tasks.index(ended)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def allow_many_files() -> int:
    """Allow as many open files as this user may have (each shim is one); returns how many."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(now, min(most, FILES_MAX)) if now != resource.RLIM_INFINITY else now
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted


def log_to_stderr() -> None:
    """Data goes to stdout, the log to stderr; whoever has set up structlog keeps their way."""
    if structlog.is_configured():
        return
    people = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(
                [structlog.dev.ConsoleRenderer()]
                if people
                else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
            ),
        ],
        # one write for a line: fronts write to the same place
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
