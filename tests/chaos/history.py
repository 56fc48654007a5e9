"""The history of a run: JSON lines on disk, a line for people on the terminal."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO


@dataclass
class History:
    """Everything that was asked, done and seen, in order of time.

    Attributes:
        violations: sentences, each about one broken invariant.
        hurt: sentences, each about a job that did not go on though nobody had killed a worker.
    """

    path: Path
    people: TextIO = field(default_factory=lambda: sys.stderr)
    violations: list[str] = field(default_factory=list)
    hurt: list[str] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def note(self, what: str, text: str = "", **more: Any) -> None:
        """Keep one entry; with a text it is said too."""
        entry = {"unix_ns": time.time_ns(), "what": what, "text": text, **more}
        self.entries.append(entry)
        with self.path.open("a") as file:
            file.write(json.dumps(entry, default=str) + "\n")
        if text:
            at_s = time.monotonic() - self.began
            print(f"{at_s:7.1f} s  {text}", file=self.people, flush=True)

    def violation(self, text: str) -> None:
        """An invariant is broken."""
        if text not in self.violations:
            self.violations.append(text)
            self.note("violation", f"VIOLATION: {text}")

    def hurts(self, text: str) -> None:
        """The job was hurt."""
        self.hurt.append(text)
        self.note("hurt", f"JOB HURT: {text}")
