"""Trouble of a node's GPUs, as shims tell it and records keep it.

`records.proto` has a message of the same name and fields for each dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TroubleKind(StrEnum):
    """What was seen of a GPU."""

    XID = "XID"  # the driver's own number for an error
    ECC = "ECC"  # memory errors that could not be corrected, since the driver was loaded
    REMAP_PENDING = "REMAP_PENDING"  # a row of its memory is replaced at the next reset
    REMAP_FAILED = "REMAP_FAILED"  # a row of its memory could not be replaced
    LOST = "LOST"  # it does not answer the driver any more
    RECOVERY = "RECOVERY"  # what the driver says is to be done with it


@dataclass(frozen=True)
class GpuTrouble:
    """One kind of trouble that a GPU has had since it was reset."""

    uuid: str  # GPU-…; empty: not known
    index: int  # as the kernel driver counts; -1: not known
    kind: TroubleKind
    code: int = 0  # the Xid, or the number of the recovery action
    count: int = 1  # how often it was seen, or what the driver counts
    source: str = ""  # who saw it: nvml, dcgm
    fresh: bool = False  # first told a short while ago: something is to be done about it
