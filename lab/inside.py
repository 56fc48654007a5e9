"""What runs inside a lab's namespaces: a host's PID 1, the way in, and the pause.

Run as a script, by path, with `python -EsSP`: standard library only, starts in about 20 ms.

    inside.py init SETTINGS      become PID 1 of a new host; SETTINGS is JSON, see `Settings`
    inside.py enter FD CWD ARG…  run a command in the host whose PID 1 the pidfd FD refers to
    inside.py stop               SIGSTOP every process of this host that runs; print their pids
    inside.py cont PID…          SIGCONT these
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn, TypedDict

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
ALL_NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG = 1
STOP_ROUNDS_MAX = 50
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_libc = ctypes.CDLL(None, use_errno=True)


class Settings(TypedDict):
    """What the owner tells a new PID 1."""

    name: str  # the host name
    report_fd: int  # unix socket: "ready", or why it failed; the kernel adds our pid
    owner_fd: int  # pidfd of the lab's owner: when that process ends, so does this host
    outer_fd: int  # pidfd of the control host's PID 1; -1: this is the control host
    disk: str  # the directory that is this host's own disk
    disk_at: str  # where the host sees it; below /run
    hosts_file: str  # shown as /etc/hosts
    private: list[str]  # further directories that get a tmpfs of the host's own


def checked(result: int, what: str) -> None:
    """Raise OSError with errno and `what` if a libc call returned -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """New namespaces for this process (PID: for its children)."""
    checked(_libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """Join namespaces of the process behind a pidfd (PID: for our children)."""
    checked(_libc.setns(fd, flags), "setns")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    arguments = (source.encode(), target.encode(), kind.encode())
    checked(_libc.mount(*arguments, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def die_with_parent() -> None:
    """SIGKILL for this process when its parent (a process of one thread) ends."""
    checked(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def init(settings: Settings) -> NoReturn:
    """Make the namespaces, become their PID 1, say so, and reap until the owner ends."""
    report = socket.socket(fileno=settings["report_fd"])
    try:
        if settings["outer_fd"] >= 0:
            setns(settings["outer_fd"], ALL_NAMESPACES)
            fork_and_wait()  # setns and unshare of PID namespaces do not go together in one process
        unshare(ALL_NAMESPACES)
        fork_and_wait()
        furnish(settings)
    except OSError as error:
        report.send(str(error).encode())
        os._exit(1)
    owner = os.dup(settings["owner_fd"])
    keep = {owner, report.fileno()}
    for number in (int(name) for name in os.listdir("/proc/self/fd")):
        if number > 2 and number not in keep:
            close_quietly(number)
    report.send(b"ready")
    report.close()
    reap_until_readable(owner)
    os._exit(0)


def fork_and_wait() -> None:
    """Go on in a child; the parent stays only to carry its end outwards."""
    child = os.fork()
    if child == 0:
        die_with_parent()
        return
    os.waitpid(child, 0)
    os._exit(0)


def furnish(settings: Settings) -> None:
    """Mounts, host name: what makes these namespaces feel like a machine of its own."""
    disk = os.open(settings["disk"], os.O_PATH)
    names = os.open(settings["hosts_file"], os.O_PATH)
    mount("none", "/", "none", MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for directory in settings["private"]:
        mount("tmpfs", directory, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    os.makedirs(settings["disk_at"])
    mount(f"/proc/self/fd/{disk}", settings["disk_at"], "none", MS_BIND)
    mount(f"/proc/self/fd/{names}", "/etc/hosts", "none", MS_BIND)
    socket.sethostname(settings["name"])
    os.chdir("/")


def reap_until_readable(fd: int) -> None:
    """Collect every orphan of the host; return when `fd` becomes readable. Forwards nothing."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        collect_the_dead()
        ready = [number for number, _ in poll.poll()]
        if fd in ready:
            return
        os.read(woken, 4096)


def collect_the_dead() -> None:
    """Reap every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def enter(fd: int, cwd: str, argv: list[str]) -> NoReturn:
    """Run `argv` in the host; stay outside as its parent, with its signals and its exit status."""
    try:
        setns(fd, ALL_NAMESPACES)
    except OSError as error:
        print(f"the host is gone ({error})", file=sys.stderr)
        os._exit(126)
    os.close(fd)
    child = 0
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        execute(cwd, argv)
    for number in FORWARDED:
        signal.signal(number, lambda got, _: os.kill(child, got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    null = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if os.WTERMSIG(status) not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def execute(cwd: str, argv: list[str]) -> NoReturn:
    """The child's half of `enter`: its own session in the host, and no trace of this script."""
    die_with_parent()
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; programs expect not
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    try:
        os.chdir(cwd)
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror} (in {cwd})", file=sys.stderr, flush=True)
        os._exit(127)


def stop() -> list[int]:
    """SIGSTOP every process of this PID namespace but PID 1 and this one; return which.

    Those that were stopped already are not ours to continue later, and are left out.
    """
    stopped: list[int] = []
    for _ in range(STOP_ROUNDS_MAX):
        new = [pid for pid in running() if pid not in stopped]
        if not new:
            break
        for pid in new:
            send_quietly(pid, signal.SIGSTOP)
        stopped += new
    return stopped


def running() -> list[int]:
    """Processes of this PID namespace that are neither stopped nor dead, PID 1 and us left out."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if pid not in (1, os.getpid()) and state not in "TtZX":
            found.append(pid)
    return found


def send_quietly(pid: int, number: signal.Signals) -> None:
    """Signal a process that may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def close_quietly(fd: int) -> None:
    """Close a descriptor that may be closed already."""
    with contextlib.suppress(OSError):
        os.close(fd)


def main(argv: list[str]) -> None:
    """Dispatch on the first argument."""
    verb, arguments = argv[0], argv[1:]
    if verb == "init":
        init(json.loads(arguments[0]))
    elif verb == "enter":
        enter(int(arguments[0]), arguments[1], arguments[2:])
    elif verb == "stop":
        sys.stdout.write(" ".join(map(str, stop())))
    elif verb == "cont":
        for pid in arguments:
            send_quietly(int(pid), signal.SIGCONT)


if __name__ == "__main__":
    main(sys.argv[1:])
