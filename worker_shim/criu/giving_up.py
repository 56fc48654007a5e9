"""Ending a CRIU that dumps, without harm to the tree it holds.

CRIU switches a TCP socket it dumps to repair mode (TCP_REPAIR of `include/uapi/linux/tcp.h`), in
which every read and write of its owner fails with EPERM. And when CRIU is killed, its descriptors
are closed before it lets go of the tree as tracer: CRIU's code inside a task sees the end of its
socket, puts the task's registers back and runs on, at times into a read that was interrupted, some
microseconds before the task is stopped again. So CRIU is stopped first, then the sockets are
mended, and only then is it killed. (Killing it at once made half of the jobs die of EPERM.)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Coroutine, Iterable, Sequence

import structlog

from coordinator.core.errors import DriverError
from worker_shim.criu import tasks
from worker_shim.network.held import held_sockets
from worker_shim.process.runner import Finished

log = structlog.get_logger(__name__)

TCP_REPAIR = 19
OFF = 0  # also sends a window probe, which tells both ends where they stand
STOP_S = 2.0  # a CRIU in the middle of a write does not stop before that has ended
UNTRACED_S = 2.0


async def run_or_give_up(
    run: Coroutine[None, None, Finished], pids: Sequence[int], *, deadline_s: float
) -> Finished:
    """Let CRIU dump these processes; end it gently at the deadline or when cancelled.

    Raises DriverError (indefinite: the images may hold anything) when it ran out of time. The tree
    is then stopped and untraced, its sockets work.
    """
    running = asyncio.ensure_future(run)
    try:
        await asyncio.wait({running}, timeout=max(0.0, deadline_s))
        if running.done():
            return running.result()
        raise DriverError(
            f"criu did not end within {deadline_s:.1f} s and was ended",
            advice="give the phase more time, or stage the images on a faster disk",
            definite=False,
        )
    finally:
        if not running.done():
            await stop_tracers(pids)
            leave_repair_mode(pids)
            running.cancel()
            await asyncio.wait({running})
        await let_go(pids)


async def stop_tracers(pids: Sequence[int]) -> None:
    """SIGSTOP every child of ours that traces one of these processes, and wait until it stands."""
    tracers = {tracer for tracer in map(tasks.tracer_of, pids) if _is_ours(tracer)}
    for tracer in tracers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(tracer, signal.SIGSTOP)
    await tasks.wait_stopped(tracers, deadline_s=STOP_S)


async def let_go(pids: Sequence[int]) -> None:
    """Wait until nobody traces these processes, and mend what is left to mend."""
    until = time.monotonic() + UNTRACED_S
    await tasks.wait_untraced(pids, deadline_s=until - time.monotonic())
    leave_repair_mode(pids)


def leave_repair_mode(pids: Iterable[int]) -> int:
    """Switch it off for every TCP socket of these processes; return for how many it was on.

    Raises DriverError when a socket refuses. Safe to repeat.
    """
    mended = 0
    for held in held_sockets(pids):
        if not held.copy.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR):
            continue
        try:
            held.copy.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, OFF)
        except OSError as error:
            raise DriverError(
                f"socket {held.fd} of process {held.pid} stays in repair mode: {error.strerror}",
                advice="the worker cannot go on; restore the job from its last snapshot",
                definite=False,
            ) from error
        mended += 1
    if mended:
        log.warning("sockets were taken out of repair mode after a dump was ended", sockets=mended)
    return mended


def _is_ours(tracer: int) -> bool:
    return tracer != 0 and tasks.parent_of(tracer) == os.getpid()
