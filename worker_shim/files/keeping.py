"""What is kept of the contents of a file that the job has open for writing: the operator's choice.

Shared memory and the control page are kept whole whatever is chosen: they are memory of the job
and exist nowhere else. So are, by CRIU itself, files without a name and files behind another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from coordinator.core.errors import BadRequest

MEMORY_ROLES = ("page", "shm")  # memory, not documents: kept whole, and nothing of it put aside
COPY_LIMIT_BYTES = 8 << 30
TAIL_BYTES = 1 << 20


class Keep(StrEnum):
    """How much of a file is kept beside the images."""

    NONE = "none"  # its size alone
    TAIL = "tail"  # its end
    COPY = "copy"  # all of it


@dataclass(frozen=True)
class Rule:
    """What is kept of files whose whole path matches; `*` matches slashes too."""

    keep: Keep
    pattern: str = "*"


@dataclass(frozen=True)
class Keeping:
    """The choice for one worker: the first rule that matches counts, and without one `copy`."""

    rules: tuple[Rule, ...] = ()
    copy_limit_bytes: int = COPY_LIMIT_BYTES  # what is really copied, all files together
    tail_bytes: int = TAIL_BYTES  # of each file that only its tail is kept of

    def of(self, path: str, role: str) -> Keep:
        """What is to be kept of a file, before any limit."""
        if role in MEMORY_ROLES:
            return Keep.COPY
        return next((r.keep for r in self.rules if fnmatchcase(path, r.pattern)), Keep.COPY)


def parse_rule(text: str) -> Rule:
    """A rule as people write it: `tail`, or `copy:/data/log/*`; raises BadRequest for any other."""
    word, colon, pattern = text.strip().partition(":")
    if word not in [str(keep) for keep in Keep] or (colon and not pattern.startswith(("/", "*"))):
        raise BadRequest(
            f"{text!r} does not say what is kept of files",
            advice="write none, tail or copy, and after a colon the paths: copy:/data/log/*",
        )
    return Rule(Keep(word), pattern or "*")
