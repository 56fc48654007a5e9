"""Ending a CRIU that dumps, without harm to the tree it holds.

A CRIU that is killed leaves its work inside the tree: sockets in repair mode (TCP_REPAIR of
`include/uapi/linux/tcp.h`), in which every read and write of the job fails with EPERM; a task on
its way to a breakpoint of CRIU's, which nobody takes then, so that it dies of SIGTRAP; and tasks
that run for some microseconds, as a dying tracer closes its descriptors, which lets CRIU's code in
them go, before it lets go of the tasks. About half of the jobs died when CRIU was just killed.

So CRIU is made to fail instead: its limit on file sizes is set to 0, its next write is refused, and
it undoes everything by itself as on a full disk. Only one that does not write any more is killed:
stopped first, the sockets mended, then killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import Coroutine, Iterable, Sequence

import structlog

from coordinator.core.errors import DriverError
from worker_shim.criu import tasks
from worker_shim.network.held import held_sockets
from worker_shim.process.runner import Finished

log = structlog.get_logger(__name__)

TCP_REPAIR = 19
OFF = 0  # also sends a window probe, which tells both ends where they stand
GENTLE_S = 5.0
STOP_S = 2.0  # a CRIU in the middle of a write does not stop before that has ended
UNTRACED_S = 2.0

# A refused write also sends SIGXFSZ, which would kill CRIU; what is ignored stays so over exec.
# A kernel in want of memory shall end the job's biggest process, as it would without us, and not
# the small CRIU that holds all of them: killed while it lets go it takes the whole tree with it.
REFUSABLE = (
    *("/bin/sh", "-c"),
    'trap "" XFSZ; echo -1000 2>/dev/null >/proc/self/oom_score_adj; exec "$@"',
    "sh",
)


def time_for_criu(deadline_s: float) -> float:
    """What CRIU itself gets of a phase's time: the rest is for ending it, should it hang.

    So whoever waits for the tree has it back by the deadline, not some seconds after it.
    """
    return deadline_s - min(GENTLE_S + 1.0, deadline_s / 4)


async def run_or_give_up(
    run: Coroutine[None, None, Finished], mark: str, pids: Sequence[int], *, deadline_s: float
) -> Finished:
    """Let CRIU (the child of ours with the argument `mark`) dump these processes.

    At the deadline, or when cancelled, it is made to fail, within some seconds more. Raises
    DriverError when it ran out of time, indefinite only when it had to be killed. In every case
    the tree is untraced afterwards and its sockets work.
    """
    running = asyncio.ensure_future(run)
    try:
        await asyncio.wait({running}, timeout=max(0.0, deadline_s))
        if running.done():
            return running.result()
        gently = await _end(running, mark, pids)
        if gently and running.result().exit_code == 0:
            return running.result()  # it was done in that very moment
        raise DriverError(
            f"criu did not end within {deadline_s:.1f} s and was ended",
            advice="give the phase more time, or stage the images on a faster disk",
            definite=gently,
        )
    except asyncio.CancelledError:
        await _end(running, mark, pids)
        raise
    finally:
        try:
            await tasks.wait_untraced(pids, deadline_s=UNTRACED_S)
        finally:  # also when the wait is cancelled or fails: sockets left so are deaf for good
            leave_repair_mode(pids)


async def _end(running: asyncio.Future[Finished], mark: str, pids: Sequence[int]) -> bool:
    """Make CRIU fail, or kill it if it does not; True when it ended by itself."""
    criu = tasks.child_with(mark)
    if criu:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(criu, resource.RLIMIT_FSIZE, (0, 0))
        await asyncio.wait({running}, timeout=GENTLE_S)
        if running.done():
            return True
        log.warning("criu writes nothing any more and is killed", pid=criu)
        with contextlib.suppress(ProcessLookupError):
            os.kill(criu, signal.SIGSTOP)
        await tasks.wait_stopped([criu], deadline_s=STOP_S)
        leave_repair_mode(pids)
    running.cancel()
    await asyncio.wait({running})
    return False


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
