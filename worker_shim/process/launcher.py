"""Runs between fork and exec of a worker: `python -I -S launcher.py ERROR_FD`, the spec on stdin.

A program of its own, standard library only, so that nothing runs between the fork and the exec of
a shim full of threads. On failure it writes one JSON object to ERROR_FD and ends; on success
ERROR_FD is closed by the exec. Everything it does is inherited by the whole worker tree.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import struct
import sys
from typing import Any, NoReturn

PR_SET_NO_NEW_PRIVS = 38
PR_SET_CHILD_SUBREAPER = 36
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ERRNO = 0x00050000
SECCOMP_RET_ALLOW = 0x7FFF0000
X32_BIT = 0x40000000
IO_URING_FIRST, IO_URING_LAST = 425, 427  # setup, enter, register: the same on every architecture
FAILED_EXIT_CODE = 127


class StageError(Exception):
    """A step of the start failed: at which stage, on what, and the errno."""

    def __init__(self, stage: str, name: str, number: int) -> None:
        super().__init__(stage, name, number)
        self.stage, self.name, self.number = stage, name, number


def main() -> NoReturn:
    """Become the worker, or say why not."""
    error_fd = int(sys.argv[1])
    try:
        with os.fdopen(0, "rb", closefd=False) as stdin:
            spec = json.load(stdin)
        error_fd = _become(spec, error_fd)
        _exec(spec)
    except StageError as failed:
        report = {"stage": failed.stage, "name": failed.name, "errno": failed.number}
    except BaseException as failed:
        report = {"stage": "launcher", "name": repr(failed), "errno": 0}
    os.write(error_fd, json.dumps(report).encode())
    os._exit(FAILED_EXIT_CODE)


def _become(spec: dict[str, Any], error_fd: int) -> int:
    """Make this process what a worker has to be; return the descriptor of errors, moved to 3."""
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and exec would keep that
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    error_fd = _close_others(error_fd)
    _stage("working directory", spec["cwd"], lambda: os.chdir(spec["cwd"]))
    _stage("log", spec["log"], lambda: _redirect(spec["log"]))
    # Orphans of the tree become children of its root and not of PID 1, so they are dumped too.
    _prctl("child subreaper", PR_SET_CHILD_SUBREAPER, 1)
    _refuse_io_uring()
    return error_fd


def _close_others(error_fd: int) -> int:
    if error_fd != 3:
        os.dup2(error_fd, 3)
    os.set_inheritable(3, False)
    os.closerange(4, os.sysconf("SC_OPEN_MAX") if not _close_range(4) else 4)
    return 3


def _close_range(first: int) -> bool:
    """close_range(2), number 436 everywhere; a limit of a billion descriptors makes loops slow."""
    return bool(ctypes.CDLL(None).syscall(436, first, 0x7FFFFFFF, 0) == 0)


def _redirect(log: str) -> None:
    """Opened here and not inherited: CRIU must find them in the worker's own mount namespace."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    for fd in {null, out} - {0, 1, 2}:
        os.close(fd)


def _refuse_io_uring() -> None:
    """Answer ENOSYS to io_uring, which CRIU cannot dump; libuv and others then use epoll."""
    program = io_uring_filter()
    code = ctypes.create_string_buffer(program, len(program))
    instructions = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    filter_program = ctypes.create_string_buffer(instructions, len(instructions))
    mode = ctypes.c_ulong(SECCOMP_MODE_FILTER)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, mode, filter_program, 0, 0) == 0:
        return
    # Without CAP_SYS_ADMIN a filter needs a promise that nothing setuid is run below it.
    _prctl("no new privileges", PR_SET_NO_NEW_PRIVS, 1)
    if libc.prctl(PR_SET_SECCOMP, mode, filter_program, 0, 0) != 0:
        raise StageError("seccomp filter", "prctl", ctypes.get_errno())


def io_uring_filter() -> bytes:
    """Classic BPF over struct seccomp_data, whose first word is the system call's number.

    The numbers are the same on x86-64, x32 (with its bit set), i386 and arm64, so the architecture
    need not be looked at. Source: <linux/filter.h>, <linux/seccomp.h>, <asm/unistd.h>.
    """
    load, mask, at_least, above, answer = 0x20, 0x54, 0x35, 0x25, 0x06
    return b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (load, 0, 0, 0),
            (mask, 0, 0, 0xFFFFFFFF ^ X32_BIT),
            (at_least, 0, 2, IO_URING_FIRST),
            (above, 1, 0, IO_URING_LAST),
            (answer, 0, 0, SECCOMP_RET_ERRNO | errno.ENOSYS),
            (answer, 0, 0, SECCOMP_RET_ALLOW),
        )
    )


def _prctl(stage: str, option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise StageError(stage, "prctl", ctypes.get_errno())


def _stage(stage: str, name: str, action: Any) -> None:
    try:
        action()
    except OSError as error:
        raise StageError(stage, name, error.errno or 0) from error


def _exec(spec: dict[str, Any]) -> NoReturn:
    argv = spec["argv"]
    try:
        os.execvpe(argv[0], argv, spec["env"])
    except OSError as error:
        raise StageError("program", _missing(argv[0], error), error.errno or 0) from error


def _missing(program: str, error: OSError) -> str:
    """The file that is really missing: a script's interpreter may be, while the script is there."""
    if error.errno == errno.ENOENT and os.path.exists(program):
        with open(program, "rb") as script:
            first = script.readline(256)
        if first.startswith(b"#!"):
            return first[2:].split()[0].decode(errors="replace")
    return program


if __name__ == "__main__":
    main()
