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

    The path is a worker's word: nothing but a file is opened, and only so much of it read.
    """
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            return None
        with open(f"/proc/self/fd/{place}", "rb") as file:
            content = file.read(PAGE_BYTES_MAX)
    except OSError:
        return None
    finally:
        os.close(place)
    words = memoryview(content[: len(content) // 8 * 8]).cast("Q")
    if len(content) < HEADER_BYTES or words[0] != MAGIC:
        return None
    count = (len(content) - HEADER_BYTES) // SLOT_BYTES
    taken = (Slot(words, number) for number in range(count))
    return {slot.get("pid"): slot for slot in taken if slot.get("pid")}
