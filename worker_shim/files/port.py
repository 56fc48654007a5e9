"""Port of the file driver: what the job had open for writing belongs to the cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from worker_shim.files.keeping import Keep, Keeping
from worker_shim.process.port import Tree


@dataclass(frozen=True)
class OpenFile:
    """One file of the cut: open for writing, mapped shared and writable, or a place that is needed.

    Places are directories (working, open, or with a bound unix socket in them) and FIFOs.
    """

    path: str
    size_bytes: int
    mode: int
    copy: str = ""  # name of the copy beside the images; empty: not all is kept
    role: str = "data"  # data, log, page (control page), shm, directory, fifo
    uid: int = -1  # -1: not known, left as it is
    gid: int = -1
    kept: str = ""  # none, tail, copy; empty in manifests before: copy where there is one
    kept_from: int = 0  # offset of the first byte that is kept
    tail: str = ""  # as `copy`, of what begins there (a shim of before must not take it for all)
    why: str = ""  # why no more is kept, or why it was kept against the operator's choice
    same_as: str = ""  # the path of this cut that is another name of the same file

    @property
    def keeps(self) -> Keep:
        """How much of its contents is kept."""
        return Keep(self.kept) if self.kept else Keep.COPY if self.copy else Keep.NONE

    @property
    def content(self) -> str:
        """The name of what is kept beside the images; empty: only the size is known."""
        return self.copy or self.tail


@dataclass(frozen=True)
class Put:
    """What had to be done to one file that is worth telling; what it was is kept or known."""

    path: str
    what: str  # cut (its end), replaced, hole (made anew, its head is empty), before (by an earlier
    # roll back to the same snapshot)
    aside: str = ""  # where what came after the cut is now; empty for a hole
    size_bytes: int = 0  # of what is aside, or how long the hole is


@dataclass(frozen=True)
class Expected:
    """What a cut of these files would take: room, and files that it would not keep whole."""

    bytes: int
    partial: tuple[OpenFile, ...] = ()


class FileDriver(Protocol):
    """Sizes and contents at the cut, and putting them back."""

    def expect(self, tree: Tree, keeping: Keeping) -> Expected:
        """What a cut would take if it were made now; changes nothing, the tree may run."""

    def cut(self, tree: Tree, into: Path, *, keeping: Keeping) -> tuple[OpenFile, ...]:
        """Record (and copy, reflinked where possible) these files while the tree is stopped."""

    def settle(
        self, files: tuple[OpenFile, ...], copies: Path, sizes: Mapping[str, int]
    ) -> tuple[OpenFile, ...]:
        """The files with the sizes that CRIU found a moment later, which it insists on."""

    def check(self, files: tuple[OpenFile, ...], copies: Path) -> None:
        """Raise DriverError naming every file that a roll back here could not put back.

        Changes nothing, and may be asked while the older run still writes: what it says no to
        stays so, what it says yes to may still fail.
        """

    def roll_back(
        self, files: tuple[OpenFile, ...], copies: Path, *, label: str, by: str = ""
    ) -> tuple[Put, ...]:
        """Make every file what it was at the cut; return what is worth telling.

        A file that grew is cut back and its tail kept as `NAME.after-<label>`; one whose kept part
        differs is put back whole and the newer one kept aside under that name; a missing file is
        made from its copy, or from its tail with a hole before it. `by` tells those apart who may
        do this to one shared file at once. Raises DriverError for a file that is missing, shorter
        or different and of which too little is kept.
        """
