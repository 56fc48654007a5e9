"""The cluster of chaos with a job that comes to its end, at a pace that can be lifted."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from lab import Lab
from lab.errors import LabError
from tests.chaos.history import History
from tests.chaos.options import NODES
from tests.chaos.training import read, torchrun
from tests.chaos.world import World
from tests.soak.options import SoakOptions

TREE = re.compile(r"^\S+ \S*/torchrun .*--node-rank (\d+) ", re.MULTILINE)
COMMANDS = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null"


class SoakWorld(World):
    """Where each rank pauses for as long as a file says, and rank 0 writes a result."""

    def __init__(self, lab: Lab, root: Path, criu: str, options: SoakOptions, history: History):
        super().__init__(lab, root, criu, options, history)
        self.pace = root / "pace"
        self.result = root / "result.json"
        self.set_pace(options.pause_s)

    def set_pace(self, pause_s: float) -> None:
        """How long each rank pauses after its next steps."""
        new = self.pace.with_suffix(".new")
        new.write_text(str(pause_s))
        new.replace(self.pace)

    def argv(self, worker: int) -> list[str]:
        """The job's own command on the node of that worker."""
        directory = self.diaries.directory
        return torchrun(self.options, self.lab, worker, directory, str(self.pace), self.result)

    def ended_with(self) -> dict[str, Any]:
        """What the job has written at its end; empty before."""
        return read(self.result)

    def power_on_empty(self, name: str) -> None:
        """A node comes back as a new machine: nothing is on its disk."""
        for path in self.host(name).disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.power_on(name)

    def copies(self) -> dict[int, list[str]]:
        """On which nodes each worker of the job has a tree; one that stands still counts too."""
        found: dict[int, list[str]] = {}
        for name in NODES:
            try:
                told = self.host(name).run(["sh", "-c", COMMANDS], check=False).stdout
            except LabError:  # it is off
                continue
            for worker, count in Counter(TREE.findall(told)).items():
                found.setdefault(int(worker), []).extend([name] * count)
        return found
