"""A rank's own slot of the control page: mapping the file and claiming the slot.

Standard library only; this module runs inside the user's ranks.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time

from worker_shim.hook.page import (
    HEADER_BYTES,
    HEADER_FIELDS,
    MAGIC,
    SLOT_BYTES,
    SLOT_FIELDS,
    STATE_RUNNING,
)
from worker_shim.hook.world import in_group, job_rank, job_world_size

HOLD = HEADER_FIELDS.index("hold")
TARGET = HEADER_FIELDS.index("target")
INCARNATION = HEADER_FIELDS.index("incarnation")
SLOTS = HEADER_FIELDS.index("slots")
TEAR_DOWN = HEADER_FIELDS.index("tear_down")
WORKER_VARIABLE = "ALLSTOP_WORKER"
START_TOLERANCE_TICKS = 2
LOCK_TRIES_MAX = 1000
LOCK_PAUSE_S = 0.001


class Slot:
    """One slot of a mapped page, its fields by name; `at(name)` gives the index into `words`."""

    def __init__(self, words: memoryview, number: int) -> None:
        self.words = words
        self.number = number
        self._first = (HEADER_BYTES + number * SLOT_BYTES) // 8

    def at(self, field: str) -> int:
        """Where the field is in `words`."""
        return self._first + SLOT_FIELDS.index(field)

    def get(self, field: str) -> int:
        """Read a field."""
        return int(self.words[self.at(field)])

    def put(self, field: str, value: int) -> None:
        """Write a field."""
        self.words[self.at(field)] = value

    def is_mine(self) -> bool:
        """True when this process holds the slot."""
        return self.get("pid") == os.getpid()

    def publish_identity(self) -> None:
        """Say which process this is: a restored one has its old pid but a new start time."""
        self.put("start", start_ticks("self"))
        self.put("pid", os.getpid())


def open_page(path: str) -> tuple[memoryview, int]:
    """Map the page for reading and writing; return its words and a descriptor to lock it by.

    Raises OSError or ValueError when there is no page of ours there.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        words = memoryview(mmap.mmap(fd, 0)).cast("Q")
        if words[0] != MAGIC:
            raise ValueError(f"{path} is not a control page")
    except BaseException:
        os.close(fd)
        raise
    return words, fd


def start_ticks(pid: int | str) -> int:
    """Field 22 of /proc/PID/stat, which tells a reused pid apart; 0 when there is no process.

    The kernel gives it in the *reader's* time namespace, and CRIU restores a tree into one of its
    own: a slot's `start` is what the rank itself reads.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def same_start(one: int, other: int) -> bool:
    """Whether two readings are of one process; shifting between time namespaces rounds."""
    return one != 0 and abs(one - other) <= START_TOLERANCE_TICKS


def claim(words: memoryview, fd: int, *, stepping: bool) -> Slot | None:
    """Claim this process's slot; None when it belongs to a living rank.

    A slot is free when it is empty or its process has ended (a launcher started the rank again).
    `stepping` says that this process is about to finish a step, which makes it the rank for
    certain: it then also takes the slot of a process that never stepped, such as a helper that
    imported torch before it. A process with neither RANK nor a step is no rank.
    """
    if not _lock(fd):
        return None
    try:
        slot = _choose(words, stepping)
        if slot is not None and not slot.is_mine():
            _fill(slot)
        return slot
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _choose(words: memoryview, stepping: bool) -> Slot | None:
    slots = int(words[SLOTS])
    if "RANK" in os.environ:
        local_rank = _number("LOCAL_RANK", 0)
        candidates = range(local_rank, min(local_rank + 1, slots))
    elif stepping:
        candidates = range(min(1, slots))
    else:
        return None
    if in_group(os.environ):
        return _choose_beside_groups(words, range(slots), stepping)
    for number in candidates:
        slot = Slot(words, number)
        if slot.is_mine() or _free(slot) or (stepping and slot.get("boundary") == 0):
            return slot
    return None


def _choose_beside_groups(words: memoryview, slots: range, stepping: bool) -> Slot | None:
    """The slot of this rank's number; where there is none, one that is free.

    Replica groups on one node all have a local rank 0.
    """
    all_slots = [Slot(words, number) for number in slots]
    number = job_rank(os.environ) + 1
    for slot in all_slots:
        if slot.get("pid") and slot.get("rank_plus_1") == number:
            mine = slot.is_mine() or _free(slot) or (stepping and slot.get("boundary") == 0)
            return slot if mine else None
    return next((slot for slot in all_slots if _free(slot)), None)


def _free(slot: Slot) -> bool:
    pid = slot.get("pid")
    return pid == 0 or not same_start(start_ticks(pid), slot.get("start"))


def _fill(slot: Slot) -> None:
    """Write every field; the pid last, since it is what makes the slot count."""
    rank = job_rank(os.environ) if "RANK" in os.environ else _number(WORKER_VARIABLE, 0)
    slot.put("pid", 0)
    for field in ("boundary", "parked", "sync_us", "flags"):
        slot.put(field, 0)
    for field in ("communicators", "nccl_result", "shim_nccl"):
        slot.put(field, 0)
    slot.put("rank_plus_1", max(0, rank) + 1)
    slot.put("local_rank", _number("LOCAL_RANK", 0))
    slot.put("world_size", job_world_size(os.environ))
    slot.put("local_world_size", _number("LOCAL_WORLD_SIZE", 1))
    slot.put("state", STATE_RUNNING)
    slot.publish_identity()


def _number(variable: str, default: int) -> int:
    try:
        return max(0, int(os.environ[variable]))
    except (KeyError, ValueError):
        return default


def _lock(fd: int) -> bool:
    for _ in range(LOCK_TRIES_MAX):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
        else:
            return True
    return False
