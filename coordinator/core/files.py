"""Files of workers in records: what a snapshot does not have whole, what a restore did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileKept:
    """A file that a job had open for writing and that is not in its snapshot whole."""

    path: str
    size_bytes: int
    kept_bytes: int  # of its end; 0: its size alone is known
    why: str = ""


@dataclass(frozen=True)
class FileBack:
    """A file that a restore found other than it was at the cut, or made anew with a hole."""

    worker: int
    node: str
    path: str
    what: str  # cut (its end), replaced, hole (its head is empty), before (kept by an earlier one)
    aside: str = ""  # where what came after the snapshot is kept on that node; empty for a hole
    size_bytes: int = 0  # of what is kept aside, or how long the hole is
