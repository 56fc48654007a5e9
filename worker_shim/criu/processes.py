"""The processes in the images: who is whose child, what each is called, in which state it was.

Field numbers are those of CRIU's `images/pstree.proto`, `core.proto`, `creds.proto` and `fs.proto`,
states those of its `compel/include/uapi/task-state.h`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from worker_shim.criu.entries import Entry, damaged, only_entry, read_entries
from worker_shim.criu.image_file import CORE_MAGIC, FS_MAGIC, IDS_MAGIC, PSTREE_MAGIC
from worker_shim.criu.images import (
    PSTREE,
    PSTREE_PGID,
    PSTREE_PID,
    PSTREE_SID,
    PSTREE_THREADS,
)

PSTREE_PPID = 2
CORE_TASK, CORE_IDS, CORE_THREAD = 3, 4, 5
TASK_STATE, TASK_EXIT_CODE, TASK_COMM = 1, 2, 6
THREAD_CREDS, THREAD_COMM = 10, 13
CREDS_UID, CREDS_GID = 1, 2
IDS_FILES = 2
FS_CWD, FS_ROOT = 1, 2

RUNNING, ZOMBIE, STOPPED = "running", "zombie", "stopped"
STATES = {1: RUNNING, 2: ZOMBIE, 3: STOPPED, 6: ZOMBIE}
OF_A_PROCESS = re.compile(r"mm-(\d+)\.img")


@dataclass(frozen=True)
class Thread:
    """One thread; the first of a process is the process itself."""

    tid: int
    name: str


@dataclass(frozen=True)
class Process:
    """One process as it was when the tree was dumped."""

    pid: int
    parent: int  # 0: the root, whose parent is not in the images
    group: int
    session: int
    name: str
    state: str  # running, stopped, zombie; a tree that a shim dumps is stopped
    exit_status: int  # of a zombie, as wait(2) gives it
    threads: tuple[Thread, ...]  # none of a zombie
    uid: int
    gid: int
    files: int  # number of its table of descriptors; 0: it has none
    cwd: int  # number of the file that is its working directory; 0: it has none
    root: int

    @property
    def alive(self) -> bool:
        """Whether it has memory and files."""
        return self.state != ZOMBIE


def read_processes(images: Path) -> tuple[Process, ...]:
    """Every process, parents before their children.

    Raises DriverError, which names the file, when an image is missing or damaged.
    """
    path = images / PSTREE
    processes = tuple(_process(images, entry) for entry in read_entries(path, PSTREE_MAGIC))
    if not processes:
        raise damaged(path, "it names no process")
    _check(path, processes)
    return processes


def children_of(processes: Iterable[Process], pid: int) -> tuple[Process, ...]:
    """The children of a process by their pids; of 0: the root."""
    return tuple(sorted((one for one in processes if one.parent == pid), key=lambda one: one.pid))


def _check(path: Path, processes: tuple[Process, ...]) -> None:
    seen: set[int] = set()
    for process in processes:
        if process.pid in seen:
            raise damaged(path, f"process {process.pid} is in it twice")
        if process.parent not in seen and (seen or process.parent):
            raise damaged(path, f"process {process.pid} has no parent {process.parent} before it")
        seen.add(process.pid)
    for found in path.parent.glob("mm-*.img"):
        match = OF_A_PROCESS.fullmatch(found.name)
        if match and int(match.group(1)) not in seen:
            raise damaged(path, f"it lacks process {match.group(1)}, whose memory is there")


def _process(images: Path, entry: Entry) -> Process:
    pid = entry.number(PSTREE_PID)
    core = only_entry(images / f"core-{pid}.img", CORE_MAGIC)
    task = core.inner(CORE_TASK)
    if task is None:
        raise damaged(core.path, "it is of a thread, not of a process")
    state = STATES.get(task.number(TASK_STATE))
    if state is None:
        raise damaged(core.path, f"its state is {task.number(TASK_STATE)}")
    name = task.text(TASK_COMM)
    living = state != ZOMBIE
    threads = _threads(images, pid, name, entry.numbers(PSTREE_THREADS)) if living else ()
    uid, gid = _owner(core)
    cwd, root = _places(images, pid) if living else (0, 0)
    return Process(
        pid=pid,
        parent=entry.number(PSTREE_PPID),
        group=entry.number(PSTREE_PGID),
        session=entry.number(PSTREE_SID),
        name=name,
        state=state,
        exit_status=task.number(TASK_EXIT_CODE) if not living else 0,
        threads=threads,
        uid=uid,
        gid=gid,
        files=_files(images, pid, core) if living else 0,
        cwd=cwd,
        root=root,
    )


def _threads(images: Path, pid: int, name: str, tids: tuple[int, ...]) -> tuple[Thread, ...]:
    """The threads of a living process; a dead one's number in pstree.img is rubbish."""
    if pid not in tids:
        raise damaged(images / PSTREE, f"process {pid} is not among its own threads")
    threads = [Thread(pid, name)]
    for tid in tids:
        if tid != pid:
            core = only_entry(images / f"core-{tid}.img", CORE_MAGIC).inner(CORE_THREAD)
            threads.append(Thread(tid, core.text(THREAD_COMM) if core else ""))
    return tuple(threads)


def _owner(core: Entry) -> tuple[int, int]:
    thread = core.inner(CORE_THREAD)
    creds = thread.inner(THREAD_CREDS) if thread else None
    return (creds.number(CREDS_UID), creds.number(CREDS_GID)) if creds else (-1, -1)


def _files(images: Path, pid: int, core: Entry) -> int:
    """The table of descriptors may be shared; older CRIUs tell its number in the core itself."""
    ids = core.inner(CORE_IDS) or only_entry(images / f"ids-{pid}.img", IDS_MAGIC)
    return ids.number(IDS_FILES)


def _places(images: Path, pid: int) -> tuple[int, int]:
    entry = only_entry(images / f"fs-{pid}.img", FS_MAGIC)
    return entry.number(FS_CWD), entry.number(FS_ROOT)
