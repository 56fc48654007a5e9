"""What each rank wrote about its steps; see programs/paced.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """One finished step of one rank."""

    unix_ns: int
    incarnation: int
    host: str
    rank: int
    step: int
    digest: str


def parse(line: str) -> Step:
    """One line of a diary."""
    unix_ns, incarnation, host, rank, step, digest = line.split()
    return Step(int(unix_ns), int(incarnation), host, int(rank), int(step), digest)


class Diaries:
    """Reads what has been added to the diaries of all ranks since the last look."""

    def __init__(self, directory: Path, ranks: Iterable[int]) -> None:
        self.directory = directory
        self.steps: dict[int, list[Step]] = {rank: [] for rank in ranks}
        self._read = dict.fromkeys(self.steps, 0)
        directory.mkdir(parents=True, exist_ok=True)

    def look(self) -> dict[int, list[Step]]:
        """All steps of each rank so far, in the order in which they were written."""
        for rank, steps in self.steps.items():
            path = self.directory / str(rank)
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read[rank])
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[rank] += len(whole)
            steps += map(parse, whole.decode().splitlines())
        return self.steps

    def counts(self) -> dict[int, int]:
        """How many steps each rank has ever finished; only grows while the job runs."""
        return {rank: len(steps) for rank, steps in self.look().items()}

    def last(self) -> dict[int, int]:
        """The number of the last step of each rank; 0 before the first."""
        return {rank: steps[-1].step if steps else 0 for rank, steps in self.look().items()}
