"""The shim's side of a start: run the launcher, learn whether the worker's program began."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.process.port import LaunchSpec

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
LAUNCHER = str(Path(__file__).with_name("launcher.py"))
REPORT_BYTES_MAX = 65536

_ADVICE = {
    "program": "install it on this node, or give its full path",
    "working directory": "it must exist on every node; `--cwd` chooses another",
    "log": "the run directory must be writable and not full",
    "seccomp filter": "the kernel must allow seccomp filters (CONFIG_SECCOMP_FILTER)",
}


def start_launcher(spec: LaunchSpec) -> tuple[int, int]:
    """Start the launcher; return its pid and the descriptor that tells how it went.

    posix_spawn, since a fork of a process full of threads is unsafe; Python's own descriptors are
    all close-on-exec, and the launcher closes what else came along.
    """
    words = {
        "argv": list(spec.argv),
        "env": dict(spec.env),
        "cwd": str(spec.cwd),
        "log": str(spec.log),
    }
    stdin = os.memfd_create("allstop-spec", os.MFD_CLOEXEC)
    told, report = os.pipe2(os.O_CLOEXEC)
    try:
        os.write(stdin, json.dumps(words).encode())
        os.lseek(stdin, 0, os.SEEK_SET)
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", LAUNCHER, "3"],
            {"PATH": os.defpath},
            file_actions=[(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, report, 3)],
        )
    except OSError as error:
        os.close(told)
        raise DriverError(
            f"cannot start the launcher with {sys.executable}: {error.strerror}",
            advice="is the shim's own Python still installed?",
        ) from error
    finally:
        os.close(stdin)
        os.close(report)
    return pid, told


async def launch_failure(told: int, spec: LaunchSpec, deadline_s: float) -> DriverError | None:
    """Wait until the worker's program has begun (None) or could not; closes `told`."""
    os.set_blocking(told, False)
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(told, over.set)
    try:
        async with asyncio.timeout(deadline_s):
            await over.wait()
        report = os.read(told, REPORT_BYTES_MAX)
    except TimeoutError:
        return DriverError(
            f"the worker's program {spec.argv[0]} did not begin within {deadline_s:.1f} s",
            advice="is the file system of the program or of the log hanging?",
        )
    finally:
        loop.remove_reader(told)
        os.close(told)
    return _failure(report, spec) if report else None


def _failure(report: bytes, spec: LaunchSpec) -> DriverError:
    fields = {"stage": "launcher", "name": repr(report), "errno": 0}
    with contextlib.suppress(ValueError):
        fields.update(json.loads(report))
    stage, name, number = str(fields["stage"]), str(fields["name"]), int(str(fields["errno"]))
    why = os.strerror(number) if number else "it failed"
    return DriverError(
        f"cannot start the worker: {stage} {name}: {why}",
        advice=_ADVICE.get(stage, "report this with the details"),
        details=(f"argv: {' '.join(spec.argv)}", f"cwd: {spec.cwd}", f"log: {spec.log}"),
    )


def raise_pid_counter(above: int) -> None:
    """Make the next pid of this namespace greater than `above`; never lowers the counter.

    Raises DriverError when the kernel does not let us: CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE and
    a writable /proc/sys are needed.
    """
    try:
        if int(LAST_PID.read_text()) < above:
            LAST_PID.write_text(str(above))
    except (OSError, ValueError) as error:
        raise DriverError(
            f"cannot raise the pid counter above {above}: {error}",
            advice="the shim needs CAP_SYS_ADMIN and a writable /proc/sys (in Docker"
            " `systempaths=unconfined`), and pid_max above that",
        ) from error
