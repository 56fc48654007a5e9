"""Port of the file driver: what the job had open for writing belongs to the cut."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from worker_shim.process.port import Tree


@dataclass(frozen=True)
class OpenFile:
    """One file of the cut: open for writing, mapped shared and writable, or a place that is needed.

    Places are directories (working, open, or with a bound unix socket in them) and FIFOs.
    """

    path: str
    size_bytes: int
    mode: int
    copy: str = ""  # name of the copy beside the images; empty: too big, only the size is known
    role: str = "data"  # data, log, page (control page), shm, directory, fifo
    uid: int = -1  # -1: not known, left as it is
    gid: int = -1


class FileDriver(Protocol):
    """Sizes and contents at the cut, and putting them back."""

    def cut(self, tree: Tree, into: Path, *, copy_limit_bytes: int) -> tuple[OpenFile, ...]:
        """Record (and copy, reflinked where possible) these files while the tree is stopped."""

    def roll_back(
        self, files: tuple[OpenFile, ...], copies: Path, *, label: str
    ) -> tuple[str, ...]:
        """Make every file what it was at the cut; return the places of what was kept aside.

        A file that grew is cut back and its tail kept as `NAME.after-<label>`; one whose kept part
        differs is put back whole and the newer one kept aside under that name; a missing file is
        made from its copy. Raises DriverError for a file that is missing and has no copy.
        """
