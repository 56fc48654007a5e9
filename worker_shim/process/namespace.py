"""A PID and mount namespace of the shim's own: a restore needs the image's pids free."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from coordinator.core.errors import SetupError

INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO of <linux/proc_ns.h>
PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_REC, MS_PRIVATE = 0x4000, 0x40000
SI_KERNEL = 0x80
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_AWAITED = (*FORWARDED, signal.SIGCHLD)


def in_initial_pid_namespace() -> bool:
    """True when this process shares pids with the whole machine (it is in no container)."""
    return os.stat("/proc/self/ns/pid").st_ino == INITIAL_PID_NAMESPACE


def enter_own_pid_namespace(argv: Sequence[str], *, private_run: bool = False) -> NoReturn:
    """Run `argv` below a reaping PID 1 in new PID and mount namespaces, and end as it ends.

    The new namespaces have their own /proc, and a tmpfs on /run where `private_run` asks for it.
    Signals are passed on. If this process is killed, PID 1 is, and with it everything: nothing
    stays behind. Must be called while the process has one thread. Raises SetupError before
    anything was changed when the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWPID | CLONE_NEWNS) != 0:
        raise SetupError(
            f"cannot make a PID namespace: {os.strerror(ctypes.get_errno())}",
            advice="run the shim as root (CAP_SYS_ADMIN), or inside a container of its own",
        )
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    ready, go = os.pipe2(os.O_CLOEXEC)
    first = os.fork()
    if first == 0:
        os.close(go)
        _be_first(argv, ready, private_run=private_run)
    os.close(ready)
    os.write(go, b"\n")
    os.close(go)
    os._exit(_see_through(first))


def _see_through(shim: int) -> int:
    """Pass signals on and reap everyone until `shim` has ended; return the code to end with.

    What the terminal sends (Ctrl-C) reaches the shim by itself, being in the same process group,
    and is not passed on: a shim takes a second one for impatience.
    """
    while True:
        got = signal.sigwaitinfo(_AWAITED)
        if got.si_signo != signal.SIGCHLD:
            if got.si_code != SI_KERNEL:
                _pass_on(shim, got.si_signo)
            continue
        while (ended := _reap_one()) is not None:
            pid, code = ended
            if pid == shim:
                return code if code >= 0 else 128 - code


def _reap_one() -> tuple[int, int] | None:
    """Pid and exit code of a child that has ended; None when there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def _pass_on(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _be_first(argv: Sequence[str], ready: int, *, private_run: bool) -> NoReturn:
    """PID 1: set up /proc, start the shim, reap what comes, end with the shim's exit code."""
    try:
        _die_with_parent()
        # The parent may have gone before the line above; then nobody writes, and the read ends.
        if os.read(ready, 1) != b"\n":
            os._exit(1)
        _set_up_mounts(private_run)
        shim = os.fork()
        if shim == 0:
            _die_with_parent()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
            os.execvp(argv[0], list(argv))
        os._exit(_see_through(shim))
    except OSError as error:
        sys.stderr.write(f"allstop: cannot start {argv[0]} in its own namespace: {error}\n")
        os._exit(127)


def _set_up_mounts(private_run: bool) -> None:
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if private_run:
        Path("/run").mkdir(exist_ok=True)
        _mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [text.encode() if text else None for text in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
