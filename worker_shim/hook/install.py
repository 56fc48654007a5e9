"""Shim side: put the hook where a worker's Python processes find it first.

The directory must have the same path on every node: a restored process still has it in its
`sys.path`. Standard library only, like everything in this package.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from worker_shim.hook.page import PATH_VARIABLE
from worker_shim.hook.slot import WORKER_VARIABLE

HOOK_FILES = (
    *("__init__.py", "autoload.py", "communicators.py", "page.py", "rank.py", "replicas.py"),
    *("slot.py", "world.py", "wrappers.py"),
)
AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
DIST_INFO = "allstop_hook-1.dist-info"
METADATA = "Metadata-Version: 2.1\nName: allstop-hook\nVersion: 1\n"
ENTRY_POINTS = "[torch.backends]\nallstop = worker_shim.hook.autoload:load\n"


def install(directory: Path) -> None:
    """Make `directory` anew with the hook in it, readable by every user the worker may become.

    It appears whole or not at all; what was there under that name is replaced. Raises OSError.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        _fill(building)
        shutil.rmtree(directory, ignore_errors=True)
        building.rename(directory)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def environment(
    base: Mapping[str, str], directory: Path, page: Path, *, worker: int
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What to add to the worker's environment `base`, and notes for people on what was changed."""
    theirs = base.get("PYTHONPATH", "")
    additions = {
        "PYTHONPATH": os.pathsep.join(part for part in (str(directory), theirs) if part),
        PATH_VARIABLE: str(page),
        WORKER_VARIABLE: str(worker),
    }
    notes: list[str] = []
    if base.get(AUTOLOAD_VARIABLE, "1") != "1":
        additions[AUTOLOAD_VARIABLE] = "1"
        notes.append(
            f"{AUTOLOAD_VARIABLE}={base[AUTOLOAD_VARIABLE]} would keep torch from loading the hook;"
            f" the worker is started with {AUTOLOAD_VARIABLE}=1"
        )
    return additions, tuple(notes)


def _fill(directory: Path) -> None:
    directory.chmod(0o755)
    package = directory / "worker_shim"
    (package / "hook").mkdir(parents=True)
    (package / "__init__.py").touch()
    here = Path(__file__).parent
    for name in HOOK_FILES:
        shutil.copyfile(here / name, package / "hook" / name)
    info = directory / DIST_INFO
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
