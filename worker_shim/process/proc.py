"""Reading /proc: one process at a time, None or empty when it has gone."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from worker_shim.hook.world import job_rank
from worker_shim.process.port import Tree, TreeProcess

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STOPPED_STATES = frozenset("TtZX")  # stopped, traced, zombie, dead: none of them moves
KCMP_NUMBER = {"x86_64": 312, "aarch64": 272}
PROCESSES_MAX = 20_000  # of one tree; more is no training job


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that are used here."""

    name: str
    state: str
    parent: int
    start_ticks: int


@dataclass(frozen=True)
class Memory:
    """What a process has in memory and in swap."""

    resident_bytes: int = 0
    anonymous_bytes: int = 0  # of these: of its own, not of files or shared
    swapped_bytes: int = 0

    @property
    def own_bytes(self) -> int:
        """What only its images can keep."""
        return self.anonymous_bytes + self.swapped_bytes


def memory_of(pid: int) -> Memory:
    """As /proc/PID/status tells; nothing for one that has gone."""
    fields = (line.partition(b":") for line in _read(f"/proc/{pid}/status").splitlines())
    told = {name: value for name, _, value in fields}
    names = (b"VmRSS", b"RssAnon", b"VmSwap")
    return Memory(*(int(told[name].split()[0]) * 1024 if name in told else 0 for name in names))


def read_stat(pid: int, tid: int | None = None) -> Stat | None:
    """State of a process, or of one task of it."""
    path = f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat"
    text = _read(path)
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return Stat(
        name=head.partition(b"(")[2].decode(errors="replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        start_ticks=int(fields[19]),
    )


def task_ids(pid: int) -> tuple[int, ...]:
    """Threads of a process."""
    try:
        return tuple(sorted(int(name) for name in os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return ()


def thread_names(pid: int) -> tuple[str, ...]:
    """What the threads of a process are called, at most 15 characters each."""
    stats = (read_stat(pid, tid) for tid in task_ids(pid))
    return tuple(stat.name for stat in stats if stat is not None)


def children(pid: int) -> tuple[int, ...]:
    """Children of every thread of a process. Needs CONFIG_PROC_CHILDREN, as CRIU itself does."""
    return tuple(
        int(word)
        for tid in task_ids(pid)
        for word in _read(f"/proc/{pid}/task/{tid}/children").split()
    )


def walk(root_pid: int) -> Iterator[int]:
    """Pids of the tree, parents before their children."""
    queue, seen = [root_pid], {root_pid}
    for pid in queue:
        if len(seen) > PROCESSES_MAX:
            return
        yield pid
        for child in children(pid):
            if child not in seen:
                seen.add(child)
                queue.append(child)


def look(root_pid: int) -> Tree:
    """Scan the tree below `root_pid`; empty when the root is gone or only waits to be reaped."""
    processes = []
    for pid in walk(root_pid):
        process = read_process(pid)
        if process is not None:
            processes.append(process)
        elif pid == root_pid:
            return Tree()
    if processes and processes[0].state in "ZX":
        return Tree()
    return Tree(tuple(processes))


def read_process(pid: int) -> TreeProcess | None:
    """One process as /proc shows it now; None when it has gone."""
    stat = read_stat(pid)
    if stat is None:
        return None
    environment = read_environment(pid)
    return TreeProcess(
        pid=pid,
        parent=stat.parent,
        start_ticks=stat.start_ticks,
        state=stat.state,
        argv=_words(_read(f"/proc/{pid}/cmdline")) or (f"[{stat.name}]",),
        threads=task_ids(pid),
        rss_bytes=_rss_bytes(pid),
        rank=job_rank(environment),
        local_rank=_number(environment.get("LOCAL_RANK", "")),
    )


def read_environment(pid: int) -> dict[str, str]:
    """The environment the process was started with; empty when it has gone or is another user's."""
    pairs = (word.partition("=") for word in _words(_read(f"/proc/{pid}/environ")))
    return {name: value for name, _, value in pairs}


def first_moving_task(pid: int) -> tuple[int, Stat] | None:
    """A task of the process that is neither stopped nor ended; None when there is none."""
    for tid in task_ids(pid):
        stat = read_stat(pid, tid)
        if stat is not None and stat.state not in STOPPED_STATES:
            return tid, stat
    return None


def moves(process: TreeProcess) -> bool:
    """True when the process ran as it was scanned, or any task of it does now."""
    return process.state not in STOPPED_STATES or first_moving_task(process.pid) is not None


def shares_memory(pid: int, other: int) -> bool:
    """True when both run in one address space, as between vfork and exec; False when not known.

    kcmp(2), KCMP_VM; CRIU needs it too.
    """
    return _same(pid, other, 1, 0)


def shares_file(pid: int, other: int, descriptor: int) -> bool:
    """True when a descriptor of this number is one open file in both; False when not known.

    Only fork and descriptor passing make it so. kcmp(2), KCMP_FILE.
    """
    return _same(pid, other, 0, descriptor)


def _same(pid: int, other: int, kind: int, index: int) -> bool:
    number = KCMP_NUMBER.get(platform.machine())
    if number is None:
        return False
    return bool(ctypes.CDLL(None).syscall(number, pid, other, kind, index, index) == 0)


def send(process: TreeProcess, number: signal.Signals) -> bool:
    """Signal exactly this process, never one that got its pid; False when it has ended."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        stat = read_stat(process.pid)
        if stat is None or stat.start_ticks != process.start_ticks:
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def _rss_bytes(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * PAGE_BYTES if len(fields) > 1 else 0


def _words(content: bytes) -> tuple[str, ...]:
    return (
        tuple(os.fsdecode(word) for word in content.rstrip(b"\0").split(b"\0")) if content else ()
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
