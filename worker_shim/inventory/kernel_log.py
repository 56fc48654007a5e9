"""Xid messages of NVIDIA's driver in the kernel's log, where it may be read.

Other Xids than these are the program's own doing, or the error counters of the GPU tell of them;
counters begin anew when a GPU is reset, and lines in a log do not. A line counts for a day, and
until the driver is loaded anew.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

# after these a GPU has to be reset, or worse (docs.nvidia.com/deploy/xid-errors)
FATAL = {
    62: "internal micro-controller halt",
    74: "NVLink error",
    79: "fallen off the bus",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
}
COUNTS_S = 86400.0
RECORD_BYTES_MAX = 8192
RECORDS_MAX = 200_000  # far more than the kernel's ring holds

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (\d+)")
_LOADED = "NVRM: loading NVIDIA"


def xids(log: Path) -> dict[str, tuple[int, ...]] | None:
    """Fatal Xids by PCI address (`0000:17:00`); None where the log cannot be read."""
    try:
        log_fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found: dict[str, dict[int, None]] = {}
    try:
        for record in _records(log_fd):
            _take(record, found)
    except OSError:
        return None
    finally:
        os.close(log_fd)
    return {address: tuple(codes) for address, codes in found.items()}


def _records(log_fd: int) -> list[str]:
    """/dev/kmsg gives `level,number,microseconds,flags;text` one a read, and then EAGAIN."""
    records: list[str] = []
    rest = ""
    while len(records) < RECORDS_MAX:
        try:
            read = os.read(log_fd, RECORD_BYTES_MAX)
        except BlockingIOError:
            break
        except BrokenPipeError:  # overwritten while we were reading: go on with the next one
            continue
        if not read:
            break
        *whole, rest = (rest + read.decode(errors="replace")).split("\n")
        records += whole
    return [*records, rest]


def _take(record: str, found: dict[str, dict[int, None]]) -> None:
    head, _, text = record.partition(";")
    if _LOADED in text:
        found.clear()
        return
    match = _XID.search(text)
    if match is None or int(match[2]) not in FATAL or _age_s(head) > COUNTS_S:
        return
    found.setdefault(match[1].lower(), {})[int(match[2])] = None


def _age_s(head: str) -> float:
    fields = head.split(",")
    if len(fields) < 3 or not fields[2].isdigit():
        return 0.0
    return time.clock_gettime(time.CLOCK_MONOTONIC) - int(fields[2]) / 1e6
