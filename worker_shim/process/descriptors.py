"""Descriptors that CRIU cannot dump or restore."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from coordinator.core.model import Finding, Severity
from worker_shim.cuda.devices import DEVICE_PREFIX
from worker_shim.process.mappings import GHOST_BYTES_MAX
from worker_shim.process.view import Descriptor, ProcessView, TreeView

# Kinds of anonymous inodes that CRIU 4.2 dumps (criu/files.c, dump_one_file).
_KNOWN_ANONYMOUS = ("eventfd", "eventpoll", "signalfd", "timerfd", "inotify", "fanotify", "pidfd")

# Link text without brackets: code, what it is, what to do.
_ANONYMOUS = {
    "io_uring": (
        "io_uring",
        "an io_uring, which CRIU cannot dump",
        "start it below `allstop shim run`, which makes libraries fall back to epoll",
    ),
    "perf_event": ("perf_event", "a perf event counter", "end the profiler"),
    "userfaultfd": ("userfaultfd", "a userfaultfd", "turn off what handles page faults itself"),
}

# What `worker_shim.compatibility` judges: it depends on drivers, and on what tears NCCL down.
_JUDGED_BY_TABLE = (DEVICE_PREFIX, "/dev/infiniband/")
_EVENTS_JUDGED_BY_TABLE = "infinibandevent"

_MEMORY_MAJOR = 1
_MEMORY_MINORS = (3, 5, 7, 8, 9)  # null zero full random urandom
_TERMINAL_MAJORS = (4, 5, *range(136, 144))


def check(tree: TreeView) -> Iterator[Finding]:
    """Look at every descriptor of every process."""
    for process in tree.processes:
        mounts = _mounts(process)
        for descriptor in process.descriptors:
            if descriptor.target.startswith("anon_inode:"):
                yield from _anonymous(process, descriptor)
            elif descriptor.target.startswith("/") and not descriptor.target.startswith("/memfd:"):
                yield from _path(process, descriptor, mounts)


def _anonymous(process: ProcessView, descriptor: Descriptor) -> Iterator[Finding]:
    kind = descriptor.target.removeprefix("anon_inode:").strip("[]")
    has = f"has descriptor {descriptor.number} on"
    if kind in _ANONYMOUS:
        code, what, advice = _ANONYMOUS[kind]
        yield process.finding(Severity.REFUSE, code, f"{has} {what}", advice)
    elif kind in ("inotify", "fanotify"):
        yield process.finding(
            Severity.WARN,
            kind,
            f"watches files by {kind}, which some file systems (overlayfs) do not let CRIU restore",
            "turn the watching off if a dump fails",
        )
    elif kind.startswith("bpf"):
        yield process.finding(
            Severity.REFUSE, "bpf", f"{has} a {kind}", "end the tracer or monitor"
        )
    elif kind not in (*_KNOWN_ANONYMOUS, _EVENTS_JUDGED_BY_TABLE):
        yield process.finding(
            Severity.REFUSE,
            "descriptor",
            f"{has} {descriptor.target}, which CRIU does not know",
            "turn off the feature that opens it",
        )


def _path(
    process: ProcessView, descriptor: Descriptor, mounts: frozenset[int]
) -> Iterator[Finding]:
    has = f"has descriptor {descriptor.number} on {descriptor.target}"
    if descriptor.mount >= 0 and mounts and descriptor.mount not in mounts:
        yield process.finding(
            Severity.REFUSE,
            "mount",
            f"{has}, opened in another mount namespace, so its path means nothing here",
            "close it before the worker starts, or start the worker by `allstop shim run`",
        )
        return
    yield from _nameless(process, descriptor, has)
    device = _device(process.process.pid, descriptor)
    if device is None:
        return
    if descriptor.target.startswith(_JUDGED_BY_TABLE):
        return
    if os.major(device) in _TERMINAL_MAJORS:
        yield process.finding(
            Severity.REFUSE,
            "tty",
            f"{has}, a terminal",
            "start it with stdin from /dev/null and output to a file, as `allstop shim run` does",
        )
    elif os.major(device) != _MEMORY_MAJOR or os.minor(device) not in _MEMORY_MINORS:
        yield process.finding(
            Severity.REFUSE,
            "device",
            f"{has}, a device whose state is in its driver",
            "turn off the feature that opens it",
        )


def _nameless(process: ProcessView, descriptor: Descriptor, has: str) -> Iterator[Finding]:
    """A file without a name is carried inside the images, up to a limit; holes do not count."""
    try:
        status = os.stat(f"/proc/{process.process.pid}/fd/{descriptor.number}")
    except OSError:
        return
    size_bytes = status.st_blocks * 512
    if stat.S_ISREG(status.st_mode) and not status.st_nlink and size_bytes > GHOST_BYTES_MAX:
        yield process.finding(
            Severity.REFUSE,
            "deleted_file",
            f"{has}, {size_bytes >> 20} MiB without a name, more than the {GHOST_BYTES_MAX >> 20}"
            " MiB that are carried",
            "keep the file while it is open",
        )


def _device(pid: int, descriptor: Descriptor) -> int | None:
    """Number of the character device behind the descriptor; None when it is something else."""
    try:
        status = os.stat(f"/proc/{pid}/fd/{descriptor.number}")
    except OSError:
        return None
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None


def _mounts(process: ProcessView) -> frozenset[int]:
    lines = process.read("mountinfo").splitlines()
    return frozenset(int(line.split(" ", 1)[0]) for line in lines)
