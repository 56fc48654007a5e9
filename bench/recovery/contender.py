"""What the harness asks of each way of living through lost nodes, and the stage it is given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lab.cluster import Lab
from lab.demo.training import clean_environment, environment
from lab.host import Host

NODES = ("n0", "n1")  # carry ranks when the job begins
SPARE = "n2"
RANKS_PER_NODE = 2
RANKS = len(NODES) * RANKS_PER_NODE
REPOSITORY = Path(__file__).resolve().parents[2]
JOBS = Path(__file__).with_name("jobs")
PLAIN = REPOSITORY / "examples" / "digits_ddp.py"


@dataclass
class Stage:
    """Hosts, a directory that all of them see, and the job's measures.

    Attributes:
        root: the shared directory; removed after the run.
        epochs: of 23 steps each.
    """

    lab: Lab
    root: Path
    epochs: int

    @property
    def result(self) -> Path:
        """What the job writes when it is done, by whoever is rank 0 then."""
        return self.root / "result.json"

    @property
    def logs(self) -> Path:
        """Where what was started prints to."""
        return self.root / "logs"

    def host(self, name: str) -> Host:
        return self.lab.hosts[name]

    def add_empty_host(self, name: str) -> None:
        """A lost host as another machine of its name and address: nothing is on its disk."""
        for path in self.host(name).disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.lab.add_host(name)

    def job_options(self) -> list[str]:
        """The same for every script."""
        return ["--epochs", str(self.epochs), "--result", str(self.result)]

    def start(
        self, host: Host, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[Any]:
        """Start a program on a host; it ends with the lab. What it prints goes to a log."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            return host.popen(
                argv,
                env={**clean_environment(), **environment(), **(env or {})},
                cwd=self.root,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def last_words(self, lines: int = 15) -> str:
        """The end of every log, for who asks why a run failed."""
        words = []
        for log in sorted(self.logs.glob("*.log")):
            words += [f"--- {log.stem}", *log.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(words)


class Contender(Protocol):
    """One way of living through lost nodes; one object plays one run."""

    name: str  # in results, a word
    title: str  # in tables
    script: Path  # what is trained
    ranks: str  # regular expression of a rank's command line
    state: str  # what becomes of the dead worker's state, in a few words
    restores_logs: bool  # a restored job's output is put back, and goes on between step and line

    def prepare(self) -> None:
        """Make what it needs to run; raises SetupError with the reason where it cannot."""

    def start(self, stage: Stage) -> None:
        """Control plane, the job on `NODES`, and `SPARE` beside it; returns at once."""

    def lost(self, stage: Stage, node: str) -> None:
        """A node has lost power: what its users' scheduler would do, if they need one."""

    def returned(self, stage: Stage, node: str) -> None:
        """A node is up again and empty; it becomes the spare one."""

    def logs(self, stage: Stage) -> Iterable[Path]:
        """The files in which the job's lines appear."""

    def checkpoints(self, stage: Stage) -> list[int]:
        """Steps of checkpoints that the job itself does not print; asked at the run's end."""


class Basic:
    """What most contenders have in common."""

    restores_logs = False

    def prepare(self) -> None: ...

    def lost(self, stage: Stage, node: str) -> None: ...

    def logs(self, stage: Stage) -> Iterable[Path]:
        return sorted(stage.logs.glob("n*.log"))

    def checkpoints(self, stage: Stage) -> list[int]:
        return []


def python(environment_name: str = "") -> Path:
    """The Python of the project, or of an environment that this bench has made."""
    if not environment_name:
        return Path(sys.executable)
    return environments() / environment_name / "bin" / "python"


def environments() -> Path:
    """Where other people's packages are installed, never beside allstop's own."""
    return Path(os.environ.get("ALLSTOP_BENCH_DIRECTORY") or REPOSITORY / ".tools" / "bench")
