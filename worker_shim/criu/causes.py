"""What CRIU's error lines mean, as data: pattern, cause in one sentence, what to do.

The lines were met on real runs (tests/integration/criu makes most of them) or read in CRIU's
sources of 4.2; where the field reported them: github.com/checkpoint-restore/criu issues.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

LOG_LINES_MAX = 30

# Printed by every run without CAP_SYS_RESOURCE in the initial user namespace; CRIU carries on.
HARMLESS = re.compile(r"rlimit: Can't setup RLIMIT_NOFILE")
ERROR_LINE = re.compile(r"Error \(")


@dataclass(frozen=True)
class Cause:
    """One recognised failure; `{0}`, `{1}` in the texts are the groups of the pattern."""

    code: str  # stable word for programs and tests
    pattern: re.Pattern[str]
    sentence: str
    advice: str


def _cause(code: str, pattern: str, sentence: str, advice: str) -> Cause:
    return Cause(code, re.compile(pattern), sentence, advice)


# The first row that matches any line wins, so the narrow ones come first.
CAUSES: tuple[Cause, ...] = (
    _cause(
        "io_uring",
        # Newer kernels (6.18 here) refuse to pass the descriptor to CRIU at all: EINVAL.
        r"Unknown shit \S+ \(anon_inode:\[io_uring\]|send_fds failed \(-22\)",
        "a process has an io_uring open, which CRIU cannot save",
        "start the worker by `allstop shim run`, whose seccomp filter makes libuv and others use "
        "epoll instead, or set UV_USE_IO_URING=0",
    ),
    _cause(
        "descriptor",
        r"Unknown shit \S+ \((.+?)\)",
        "a process has {0} open, a kind of descriptor that CRIU cannot save",
        "close it before the checkpoint, or start the program without that feature",
    ),
    _cause(
        "infiniband",
        r"/dev/infiniband|handle_device_vma plugin failed|Can't handle non-regular mapping",
        "a process has an RDMA device or another device mapped, which CRIU cannot save",
        "let the job use TCP (NCCL_IB_DISABLE=1, UCX_TLS=tcp) or close the device first",
    ),
    _cause(
        "nvidia",
        r"\(chr 195:(\d+)\)|/dev/nvidia",
        "a process still has an NVIDIA device open",
        "its GPU state must be saved first; processes forked after CUDA was used keep such "
        "descriptors too",
    ),
    _cause(
        "foreign_mount",
        r"Can't lookup mount=\S+ for fd=(\S+) path=(\S+)",
        "descriptor {0} ({1}) was opened in another mount namespace",
        "start the worker with no inherited descriptors and in the node's own mount namespace",
    ),
    _cause(
        "unix_socket",
        r"Can't dump half of stream unix connection|External socket is used",
        "a process holds one end of a unix socket whose other end is outside the worker",
        "close it before the checkpoint (logging daemons, X11, agents)",
    ),
    _cause(
        "epoll",
        r"Dump eventpoll \(pid: (\d+)\) failed",
        "process {0} watches by epoll a file that only another process still has open",
        "the preflight names the descriptor; make the epoll in the process that uses it",
    ),
    _cause(
        "accept_queue",
        r"In-flight connection",
        "a connection was being made to a listening socket at that instant",
        "try again: the connection is accepted or refused within moments",
    ),
    _cause(
        "terminal",
        r"(?:[Ff]ound dangling tty|Can't dump a pty|session leader of \S+ is outside|"
        r"shell job|tty: .*(?:not a leader|Unable to find))",
        "a process has a terminal of another session",
        "start the worker by `allstop shim run`, which gives it a session of its own",
    ),
    _cause(
        "file_watch",
        r"fsnotify.*Can't dump that handle|Can't find path for .*(?:inotify|handle)",
        "a process watches a file (inotify, fanotify) whose path CRIU cannot find",
        "stop the file watcher, or keep the watched files off overlayfs",
    ),
    _cause(
        "ghost_limit",
        r"Can't dump ghost file (\S+) of (\d+) size",
        "the deleted file {0} of {1} bytes is larger than CRIU was told to keep",
        "keep large data in named files, or raise the ghost limit",
    ),
    _cause(
        "sysv_shm",
        r"SysVIPC shmem map|SysV (?:IPC|shm)",
        "a process uses System V shared memory outside an IPC namespace of its own",
        "run the node in an IPC namespace of its own (a container has one)",
    ),
    _cause(
        "unseizable",
        r"Unseizable non-zombie (\d+)|SEIZE (\d+)|Can't attach to (\d+)",
        "CRIU cannot trace a process of the worker",
        "detach debuggers and profilers; the shim needs CAP_SYS_PTRACE",
    ),
    _cause(
        "no_process",
        r"Unable to detach from (\d+): No such process|Can't find task (\d+)|No such process",
        "a process of the worker ended during the dump",
        "look at the worker's own log",
    ),
    _cause(
        "no_space",
        r"No space left on device|Can't write .*img.*: (?:No space|Disk quota)",
        "the disk is full",
        "make room where the images are staged, or stage them elsewhere",
    ),
    _cause(
        "self_test_blocked",
        r"kerndat_tcp_repair failed",
        "CRIU's self-test of TCP failed: something drops packets on the loopback interface",
        "no firewall rule may drop loopback traffic in general; mount a tmpfs on /run so that "
        "CRIU keeps its results",
    ),
    _cause(
        "criu_too_old",
        r"Unexpected rt vDSO area bounds|Can't get 1:16 opt",
        "this CRIU is too old for this kernel",
        "use CRIU 4.2 or newer: `make tools`",
    ),
    _cause(
        "pid_taken",
        r"Can't fork for (\d+): File exists",
        "pid {0} is taken by another process of this node",
        "end what is left of the job on this node, or restore on a node that is a PID namespace "
        "of its own",
    ),
    _cause(
        "address_missing",
        r"(?:Can't connect inet socket back|Can't bind inet socket.*): "
        r"Cannot assign requested address",
        "an address of the saved sockets is not on this node, or an old socket still holds the "
        "connection",
        "give the node the address, move the snapshot's addresses to this node's, or clear the "
        "old connections",
    ),
    _cause(
        "port_taken",
        r"(?:Can't connect inet socket back|Can't bind inet socket.*|Can't listen.*): "
        r"Address already in use",
        "a port of the saved sockets is in use on this node",
        "end the program that has it (ss -tlnp), or clear what the killed job left",
    ),
    _cause(
        "file_size",
        r"File (\S+) has bad size (\d+) \(expect (\d+)\)",
        "{0} is {1} bytes long and was {2} at the checkpoint",
        "put the file back to what it was: cut it, or restore its copy",
    ),
    _cause(
        "file_mode",
        r"File (\S+) has bad mode",
        "{0} has other permissions than at the checkpoint",
        "set the permissions as they were",
    ),
    _cause(
        "file_differs",
        r"File (\S+) has bad build-ID",
        "{0} is another build than the one the job had loaded",
        "install the same version of the program on this node",
    ),
    _cause(
        "link_remap",
        r"Can't link (\S*link_remap\S*)|link_remap\.(\d+)",
        "the file behind a deleted name (a semaphore or shared memory segment) is missing",
        "use a snapshot whose remaps were saved; remove old link_remap.* files from /dev/shm",
    ),
    _cause(
        "file_missing",
        r"Can't open file (\S+?) on restore: No such file or directory",
        "/{0} is missing on this node",
        "the node needs the same files at the same paths as the one where the job was saved",
    ),
    _cause(
        "file_missing",
        r"Can't open (\S+?).*: No such file or directory",
        "{0} is missing on this node",
        "the node needs the same files at the same paths as the one where the job was saved",
    ),
    _cause(
        "clock",
        r"Unable to set a monotonic clock offset|Can't set timens offset",
        "the clock of the restored processes cannot be set",
        "give the shim CAP_SYS_TIME",
    ),
    _cause(
        "capabilities",
        r"Unable to restore capabilities",
        "the saved processes had capabilities that this node's shim lacks",
        "give the shim those of the shim that started the worker (CapabilityBoundingSet= of its "
        "unit, or of its container)",
    ),
    _cause(
        "cpu",
        r"CPU (?:instruction|feature).*(?:do not match|not supported|mismatch)|cpuinfo",
        "this node's CPU lacks something that the saved processes use",
        "restore on a node with the same or a newer CPU",
    ),
    _cause(
        "images_incomplete",
        r"Unexpected EOF on|Can't open image \S+|Magic doesn't match for (\S+)",
        "the images are incomplete or damaged",
        "fetch them again, or use another snapshot",
    ),
    _cause(
        "permission",
        r"Operation not permitted",
        "CRIU lacks a privilege",
        "run the shim as root with CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_NET_ADMIN, CAP_SYS_TIME and "
        "without a seccomp profile",
    ),
)


@dataclass(frozen=True)
class Recognised:
    """A cause with the words of this very failure filled in."""

    code: str
    sentence: str
    advice: str
    line: str  # CRIU's own line


def recognise(log: str) -> Recognised | None:
    """The cause of the failure that the log tells of; None when no row matches."""
    lines = error_lines(log)
    for cause in CAUSES:
        for line in lines:
            found = cause.pattern.search(line)
            if found:
                groups = [group for group in found.groups() if group is not None]
                sentence = cause.sentence.format(*groups, *["?"] * 3)
                return Recognised(cause.code, sentence, cause.advice, line)
    return None


def error_lines(log: str) -> tuple[str, ...]:
    """CRIU's error lines in their order, without the harmless ones."""
    return tuple(
        line.strip()
        for line in log.splitlines()
        if ERROR_LINE.search(line) and not HARMLESS.search(line)
    )


def details(log: str, stderr: str = "") -> tuple[str, ...]:
    """What goes into an error's details: the error lines, else the end of whatever was said."""
    errors = error_lines(log)
    if errors:
        return errors[:LOG_LINES_MAX]
    said: Iterable[str] = (*log.splitlines(), *stderr.splitlines())
    return tuple(line.strip() for line in said if line.strip())[-LOG_LINES_MAX:]


def as_markdown() -> str:
    """All rows as a table for people: `python -m worker_shim.criu.causes`."""
    rows = ["| CRIU says | which means | what to do |", "|---|---|---|"]
    for cause in CAUSES:
        pattern = cause.pattern.pattern.replace("|", "\\|")
        sentence = re.sub(r"\{\d\}", "…", cause.sentence)
        advice = re.sub(r"\{\d\}", "…", cause.advice)
        rows.append(f"| `{pattern}` | {sentence} | {advice} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
