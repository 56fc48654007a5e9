"""What ranks have written into the control page, read from outside by its path alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from worker_shim.hook.page import HEADER_BYTES, MAGIC, SLOT_BYTES
from worker_shim.hook.slot import Slot

PAGE_BYTES_MAX = 1 << 20


def slots(path: str) -> Mapping[int, Slot] | None:
    """The slots that are taken, by pid; None where there is no control page.

    The path is a worker's word: only a file is read, and only so much of it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        content = os.read(fd, PAGE_BYTES_MAX)
    except OSError:
        return None
    finally:
        os.close(fd)
    words = memoryview(content[: len(content) // 8 * 8]).cast("Q")
    if len(content) < HEADER_BYTES or words[0] != MAGIC:
        return None
    count = (len(content) - HEADER_BYTES) // SLOT_BYTES
    taken = (Slot(words, number) for number in range(count))
    return {slot.get("pid"): slot for slot in taken if slot.get("pid")}
