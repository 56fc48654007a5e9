"""Files that are not there: `cut` answers as told, what `roll_back` got is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.files.keeping import Keeping
from worker_shim.files.port import Expected, OpenFile, Put
from worker_shim.process.port import Tree


class FakeFileDriver:
    """`FileDriver` for tests; the name of a method in `broken` makes it raise."""

    def __init__(self, files: tuple[OpenFile, ...] = ()) -> None:
        self.files = files
        self.expected = Expected(0)
        self.told: tuple[Put, ...] = ()
        self.broken: set[str] = set()
        self.cuts: list[Tree] = []
        self.keeping: list[Keeping] = []
        self.checked: list[tuple[OpenFile, ...]] = []
        self.rolled_back: list[tuple[tuple[OpenFile, ...], str]] = []

    def expect(self, tree: Tree, keeping: Keeping) -> Expected:
        """Answer as told."""
        self._may_fail("expect")
        return self.expected

    def cut(self, tree: Tree, into: Path, *, keeping: Keeping) -> tuple[OpenFile, ...]:
        """Answer with the files as told."""
        self._may_fail("cut")
        self.cuts.append(tree)
        self.keeping.append(keeping)
        return self.files

    def settle(
        self, files: tuple[OpenFile, ...], copies: Path, sizes: Mapping[str, int]
    ) -> tuple[OpenFile, ...]:
        """They have not changed."""
        self._may_fail("settle")
        return files

    def check(self, files: tuple[OpenFile, ...], copies: Path) -> None:
        """Remember what was asked."""
        self._may_fail("check")
        self.checked.append(files)

    def roll_back(
        self, files: tuple[OpenFile, ...], copies: Path, *, label: str, by: str = ""
    ) -> tuple[Put, ...]:
        """Remember what was asked; answer with `told`."""
        self._may_fail("roll_back")
        self.rolled_back.append((files, label))
        return self.told

    def _may_fail(self, method: str) -> None:
        if method in self.broken:
            raise DriverError(f"told to fail: {method}")
