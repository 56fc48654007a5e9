"""Reading the table: every row is held against the vocabulary before any of them is used."""

from __future__ import annotations

import string
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib import resources

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from coordinator.core.errors import BugError
from coordinator.core.model import Severity
from worker_shim.compatibility.features import Feature, NodeFeature, TreeFeature
from worker_shim.compatibility.situation import OF_THE_TREE, VERSIONED

PLACEHOLDERS = frozenset((*VERSIONED, "architecture", "seen"))
FEATURES: Mapping[str, Feature] = {
    feature.value: feature for kind in (NodeFeature, TreeFeature) for feature in kind
}


class Precaution(StrEnum):
    """What a shim does by itself where a row of its node applies."""

    SAVE_BEFORE_KILL = "save_before_kill"  # a process is locked and saved before it is killed


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A situation written down: one version of each kind, and the features that are seen."""

    driver: str = ""
    cuda: str = ""
    nccl: str = ""
    torch: str = ""
    compute: str = ""
    architecture: str = "x86_64"
    seen: tuple[str, ...] = ()


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that is known. All conditions that are given must hold."""

    code: str
    about: str
    verdict: Severity
    words: str
    advice: str
    source: tuple[str, ...]
    applies: Example
    spares: tuple[Example, ...]
    driver: str = ""
    cuda: str = ""
    nccl: str = ""
    torch: str = ""
    compute: str = ""
    architecture: str = ""
    seen: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    precaution: Precaution | None = None

    @property
    def of_node(self) -> bool:
        """True when nothing of a worker is asked for: whoever has a GPU on that node is meant."""
        asked = (*self.seen, *self.unseen)
        return not any(getattr(self, name) for name in OF_THE_TREE) and not any(
            isinstance(FEATURES[name], TreeFeature) for name in asked
        )


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: what the features mean, and the rows."""

    node: Mapping[str, str]
    tree: Mapping[str, str]
    row: tuple[Row, ...]


@cache
def table() -> Table:
    """The table that is shipped."""
    place = resources.files("worker_shim.compatibility") / "table.toml"
    return read(place.read_text(encoding="utf-8"))


def read(text: str) -> Table:
    """Read a table; raises BugError that names the row and what is wrong with it."""
    try:
        found = msgspec.convert(tomllib.loads(text), Table)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BugError(f"the compatibility table cannot be read: {error}") from error
    for said, kind in ((found.node, NodeFeature), (found.tree, TreeFeature)):
        if different := set(said) ^ set(kind):
            raise BugError(f"the compatibility table has other features: {sorted(different)}")
    codes = [row.code for row in found.row]
    for row in found.row:
        wrong = [*_wrong(row)]
        if codes.count(row.code) > 1:
            wrong.append("its code is another row's too")
        if wrong:
            raise BugError(f"row {row.code} of the compatibility table: {'; '.join(wrong)}")
    return found


def _wrong(row: Row) -> list[str]:
    wrong = []
    for name in VERSIONED:
        try:
            SpecifierSet(getattr(row, name))
        except InvalidSpecifier as error:
            wrong.append(f"{name}: {error}")
    asked = (*row.seen, *row.unseen, *row.applies.seen, *(n for s in row.spares for n in s.seen))
    wrong += [f"there is no feature {name}" for name in asked if name not in FEATURES]
    for text in (row.words, row.advice):
        used = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
        wrong += [f"there is no word {{{name}}}" for name in used - PLACEHOLDERS]
        wrong += [f"{name} has no range" for name in used & {*VERSIONED} if not getattr(row, name)]
        if "{seen}" in text.replace(" ({seen})", ""):
            wrong.append("{seen} stands in brackets, so that the sentence is whole without")
    if row.precaution and not row.of_node:
        wrong.append("a precaution is for a node, and it asks for something of a worker")
    if not any(getattr(row, name) for name in (*VERSIONED, "architecture", "seen")):
        wrong.append("it asks for nothing")
    if not all((row.about, row.words, row.advice, *row.source)) or not row.source:
        wrong.append("about, words, advice and source must say something")
    return wrong
