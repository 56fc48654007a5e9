"""Files that are not there: `cut` answers as told, what `roll_back` got is remembered."""

from __future__ import annotations

from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.files.port import OpenFile
from worker_shim.process.port import Tree


class FakeFileDriver:
    """`FileDriver` for tests; the name of a method in `broken` makes it raise."""

    def __init__(self, files: tuple[OpenFile, ...] = ()) -> None:
        self.files = files
        self.kept: tuple[str, ...] = ()
        self.broken: set[str] = set()
        self.cuts: list[Tree] = []
        self.rolled_back: list[tuple[tuple[OpenFile, ...], str]] = []

    def cut(self, tree: Tree, into: Path, *, copy_limit_bytes: int) -> tuple[OpenFile, ...]:
        """Answer with the files as told."""
        self._may_fail("cut")
        self.cuts.append(tree)
        return self.files

    def roll_back(
        self, files: tuple[OpenFile, ...], copies: Path, *, label: str
    ) -> tuple[str, ...]:
        """Remember what was asked; answer with `kept`."""
        self._may_fail("roll_back")
        self.rolled_back.append((files, label))
        return self.kept

    def _may_fail(self, method: str) -> None:
        if method in self.broken:
            raise DriverError(f"told to fail: {method}")
