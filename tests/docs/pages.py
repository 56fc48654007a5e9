"""The pages for users as a test reads them: code blocks, and what is to be done with each.

A comment before a block (and blocks that are not for a shell need a language) says what is done:

    <!-- not run: REASON -->        cannot be run here
    <!-- file NAME -->              the block is that file
    <!-- run on=MACHINE… -->        the block is run there to its end
    <!-- run on=M stays=NUMBER -->  it goes on, as in a terminal of that number
    <!-- run on=M,M environment --> its variables count there from now on
    <!-- run … hidden: COMMAND -->  the same without a block
    <!-- wait job=NAME -->          until the job runs and steps; with the others below, see `run`
    <!-- output -->                 what something prints

A block for a shell without any is held against the parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMENT = re.compile(r"^\s*<!--\s*(.*?)\s*-->\s*$")
FENCE = re.compile(r"^\s*```(\w*)\s*$")
SHELL = ("", "sh", "shell", "bash", "console")
ELLIPSIS = "…"


@dataclass(frozen=True)
class Block:
    """A code block, or a comment that stands alone (then without text)."""

    page: Path
    line: int
    language: str
    text: str
    todo: str  # the comment before it; empty: none

    @property
    def where(self) -> str:
        """For messages and ids."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def verb(self) -> str:
        """The comment's first word."""
        return self.todo.split(" ")[0].rstrip(":")

    @property
    def settings(self) -> dict[str, str]:
        """What the comment says as NAME=VALUE."""
        words = self.todo.partition("hidden:")[0].split()
        return {n: v for n, equals, v in (word.partition("=") for word in words) if equals}

    @property
    def shell(self) -> str:
        """The text as a shell is given it: of a transcript the lines after the prompts."""
        lines = self.text.splitlines()
        if any(line.startswith("$ ") for line in lines):
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return "\n".join(lines)


def blocks_of(page: Path) -> Iterator[Block]:
    """Blocks and lone comments of a page, in order."""
    lines = page.read_text().splitlines()
    at, todo = 0, ""
    while at < len(lines):
        line = lines[at]
        if comment := COMMENT.match(line):
            if todo:
                yield Block(page, at, "", "", todo)
            todo = comment.group(1)
        elif fence := FENCE.match(line):
            end = next(n for n in range(at + 1, len(lines)) if FENCE.match(lines[n]))
            yield Block(page, at + 1, fence.group(1), _dedented(lines[at + 1 : end]), todo)
            at, todo = end, ""
        elif line.startswith("    ") and line.strip() and not lines[at - 1].strip():
            end = next((n for n in range(at, len(lines)) if not lines[n].strip()), len(lines))
            yield Block(page, at + 1, "", _dedented(lines[at:end]), todo)
            at, todo = end, ""
        elif todo and line.strip():
            yield Block(page, at, "", "", todo)
            todo = ""
        at += 1
    if todo:
        yield Block(page, at, "", "", todo)


def _dedented(lines: list[str]) -> str:
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] for line in lines)


def all_blocks() -> list[Block]:
    """Those of all pages."""
    return [block for page in PAGES for block in blocks_of(page)]


def inline_code(page: Path) -> Iterator[tuple[int, str]]:
    """Every `…` outside of blocks, with its line."""
    inside = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside and not line.startswith("    "):
            for found in re.findall(r"`([^`]+)`", line):
                yield number, found
