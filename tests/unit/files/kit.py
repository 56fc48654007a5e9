"""A cut of what this very process holds below one directory."""

from __future__ import annotations

import os
from pathlib import Path

from worker_shim.files.driver import LinuxFileDriver
from worker_shim.files.keeping import Keep, Keeping, Rule
from worker_shim.files.port import OpenFile, Put
from worker_shim.process.port import Tree, TreeProcess

HERE = Tree((TreeProcess(os.getpid(), 0, 0, "S", ("python",), (), 0),))
DRIVER = LinuxFileDriver()
KIB = 1 << 10
TAIL = Keeping((Rule(Keep.TAIL),), tail_bytes=KIB)
NONE = Keeping((Rule(Keep.NONE),))


def cut(tmp_path: Path, keeping: Keeping | None = None) -> dict[str, OpenFile]:
    """By name, those below the test's own directory: the test runner holds files of its own."""
    files = DRIVER.cut(HERE, tmp_path / "copies", keeping=keeping or Keeping())
    below = (file for file in files if file.path.startswith(f"{tmp_path}/"))
    return {Path(file.path).name: file for file in below if file.role != "directory"}


def back(tmp_path: Path, *files: OpenFile, label: str = "s1", by: str = "-0") -> list[Put]:
    """Check, then roll back."""
    DRIVER.check(files, tmp_path / "copies")
    return list(DRIVER.roll_back(files, tmp_path / "copies", label=label, by=by))
