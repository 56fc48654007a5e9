"""What an epoll watches though whoever asked for it has closed it.

A registration ends with the open file, not with the descriptor (epoll(7)). Where a child has
inherited the file, it goes on under a number that the process has closed, or uses for something
else: Ray's raylet does that for each of its workers. Nobody can use or end it any more, and CRIU
cannot write it down.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from coordinator.core.model import Finding, Severity
from worker_shim.process.port import Tree
from worker_shim.process.proc import KCMP_NUMBER
from worker_shim.process.runner import CommandRunner
from worker_shim.process.view import Descriptor, ProcessView, TreeView, descriptor_targets

EPOLL = "anon_inode:[eventpoll]"
HELPER = str(Path(__file__).with_name("unwatching.py"))
HELPER_S_MAX = 10.0
_KCMP_FILE, _KCMP_EPOLL_TFD = 0, 7  # <linux/kcmp.h>
_WATCHED = re.compile(r"^tfd:\s*(\d+) .* ino:([0-9a-f]+) ", re.MULTILINE)
_NO = (errno.EBADF, errno.ENOENT)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Watch:
    """One such registration; `holder` has the file, as its descriptor `held`; -1: nobody here."""

    pid: int
    epoll: int
    number: int
    holder: int = -1
    held: int = -1
    used: bool = False  # the holder has the epoll, too: it may mean it

    @property
    def ends(self) -> bool:
        """Whether it can be ended, and nobody misses it."""
        return self.holder >= 0 and not self.used


class _Slot(ctypes.Structure):
    """struct kcmp_epoll_slot."""

    _fields_ = (("efd", ctypes.c_uint32), ("tfd", ctypes.c_uint32), ("toff", ctypes.c_uint32))


def left_over(tree: TreeView) -> tuple[Watch, ...]:
    """Every registration of a file that the process with the epoll has not open.

    Of a tree that runs, too: what is closed while it is looked at is no longer registered then.
    """
    return tuple(
        watch
        for process, descriptor in tree.all_descriptors()
        if descriptor.target == EPOLL
        for watch in _of_epoll(tree, process, descriptor)
    )


def check(tree: TreeView) -> Iterator[Finding]:
    """Say which are there: they are taken off before a dump, or cannot be."""
    views = {view.process.pid: view for view in tree.processes}
    for watch in left_over(tree):
        yield _finding(views[watch.pid], watch)


def _finding(process: ProcessView, watch: Watch) -> Finding:
    has = f"watches its descriptor {watch.number} by epoll though it has closed it"
    if watch.ends:
        return process.finding(
            Severity.WARN,
            "epoll",
            f"{has} (pid {watch.holder} has the file)",
            "that is ended before a dump, and nobody misses it",
        )
    if watch.used:
        who = f"pid {watch.holder}, which has that epoll, too, has the file"
        return process.finding(
            Severity.REFUSE,
            "epoll",
            f"{has}, and {who}",
            "make the epoll in the process that uses it",
        )
    return process.finding(
        Severity.REFUSE,
        "epoll",
        f"{has}, and a process outside the tree has the file",
        "end what it was given to, or run it in the worker",
    )


async def end(tree: Tree) -> int:
    """End those of a stopped tree; return how many there were.

    Only a process in which the file has that very number can do it: a helper, by descriptors that
    it borrows. Raises DriverError. A crash half-way leaves fewer of them.
    """
    seen = await asyncio.to_thread(_glance, tree)
    watches = [watch for watch in left_over(seen) if watch.ends]
    if not watches:
        return 0
    told = json.dumps([astuple(watch)[:5] for watch in watches])
    argv = [sys.executable, "-ESs", HELPER, told]
    finished = await CommandRunner().run(argv, deadline_s=HELPER_S_MAX)
    finished.require(
        f"cannot end {len(watches)} registrations of epoll",
        advice="the shim needs root with CAP_SYS_PTRACE, and Linux 5.6 or newer",
    )
    return len(watches)


def _glance(tree: Tree) -> TreeView:
    """Descriptors alone, and what epolls watch: the job stands still meanwhile."""
    return TreeView(
        tuple(
            ProcessView(
                process=process,
                descriptors=tuple(
                    Descriptor(number, target, 0, -1, _info(process.pid, number, target))
                    for number, target in descriptor_targets(process.pid)
                ),
                mappings=(),
                namespaces={},
            )
            for process in tree.processes
        )
    )


def _info(pid: int, number: int, target: str) -> str:
    if target != EPOLL:
        return ""
    try:
        return Path(f"/proc/{pid}/fdinfo/{number}").read_text()
    except OSError:
        return ""


def _of_epoll(tree: TreeView, process: ProcessView, epoll: Descriptor) -> Iterator[Watch]:
    found: list[tuple[Watch, int]] = []
    seen: dict[int, int] = {}
    pid = process.process.pid
    for number, inode in _registered(epoll.info):
        slot = _Slot(epoll.number, number, seen.get(number, 0))
        seen[number] = slot.toff + 1
        if _is(pid, number, pid, slot) or any(
            _inode(process, each) == inode and _is(pid, each.number, pid, slot)
            for each in process.descriptors
        ):
            continue
        watch = Watch(pid, epoll.number, number, *_holder(tree, process, epoll, slot, inode))
        found.append((watch, inode))
    still = _registered(_info(pid, epoll.number, EPOLL)) if found else []
    yield from (watch for watch, inode in found if (watch.number, inode) in still)


def _registered(info: str) -> list[tuple[int, int]]:
    """Number and inode of everything that an epoll watches, in the kernel's order."""
    return [(int(match[1]), int(match[2], 16)) for match in _WATCHED.finditer(info)]


def _holder(
    tree: TreeView, process: ProcessView, epoll: Descriptor, slot: _Slot, inode: int
) -> tuple[int, int, bool]:
    """Who has the file, under which number, and whether it has the epoll, too."""
    found = (-1, -1, False)
    for other in tree.processes:
        pid = other.process.pid
        for held in other.descriptors:
            if _inode(other, held) == inode and _is(pid, held.number, process.process.pid, slot):
                found = (pid, held.number, _has(other, process, epoll))
                if found[2]:
                    return found
    return found


def _has(other: ProcessView, process: ProcessView, epoll: Descriptor) -> bool:
    """Whether the other process has that epoll, too."""
    return any(
        _kcmp(other.process.pid, process.process.pid, _KCMP_FILE, each.number, epoll.number)
        for each in other.descriptors
        if each.target == EPOLL
    )


def _is(pid: int, number: int, of: int, slot: _Slot) -> bool:
    """Whether a descriptor is the file of that registration."""
    return _kcmp(pid, of, _KCMP_EPOLL_TFD, number, ctypes.addressof(slot))


def _kcmp(pid: int, other: int, kind: int, one: int, two: int) -> bool:
    """Whether both are one; what the kernel does not tell is taken to be in order."""
    call = KCMP_NUMBER.get(platform.machine())
    if call is None:
        return True
    arguments = [ctypes.c_long(each) for each in (call, pid, other, kind, one, two)]
    answer = _libc.syscall(*arguments)
    return answer == 0 or (answer < 0 and ctypes.get_errno() not in _NO)


def _inode(process: ProcessView, descriptor: Descriptor) -> int:
    try:
        return os.stat(f"/proc/{process.process.pid}/fd/{descriptor.number}").st_ino
    except OSError:
        return -1
