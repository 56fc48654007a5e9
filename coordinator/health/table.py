"""Reading the table of GPU trouble: every row is held against the vocabulary before it is used."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from coordinator.core.errors import BadRequest, BugError
from coordinator.core.health_records import GpuTrouble, TroubleKind
from coordinator.core.health_rules import HealthRule, HealthRules, Verdict

SEEN = {kind.lower(): kind for kind in TroubleKind if kind is not TroubleKind.XID}
CODE_MAX = 1 << 20


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row as the file has it; see the table's own head."""

    code: str
    verdict: Verdict
    words: str
    source: tuple[str, ...]
    applies: tuple[int, ...] = ()
    spares: tuple[int, ...] = ()
    xid: str = ""
    seen: str = ""
    action: str = ""
    uncorrected: bool = False
    deadline_s: float = 0.0

    @property
    def kind(self) -> TroubleKind:
        """What it speaks of."""
        return SEEN[self.seen] if self.seen else TroubleKind.XID

    @property
    def numbers(self) -> str:
        """Of which Xids or actions; empty: of all."""
        return self.xid or self.action

    def rule(self) -> HealthRule:
        """As the core looks it up."""
        return HealthRule(
            self.code,
            self.kind,
            self.verdict,
            self.words,
            ranges_of(self.numbers),
            self.uncorrected,
            self.deadline_s,
        )


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    row: tuple[Row, ...] = ()


@cache
def table() -> Table:
    """The table that is shipped; raises BugError."""
    text = (resources.files("coordinator.health") / "table.toml").read_text(encoding="utf-8")
    try:
        made = read(text)
    except BadRequest as error:
        raise BugError(str(error.what)) from error
    if untried := [row.code for row in made.row if not row.applies]:
        raise BugError(f"rows {untried} of the table of GPU trouble have no examples")
    return made


def rules(own: Path | None = None) -> HealthRules:
    """The shipped rules, after those of a deployment's own file; raises BadRequest naming a row."""
    rows: Sequence[Row] = table().row
    if own is not None:
        try:
            text = own.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"{own} cannot be read: {error}") from None
        rows = (*read(text, str(own)).row, *rows)
    return HealthRules(tuple(row.rule() for row in rows))


def read(text: str, name: str = "the table of GPU trouble") -> Table:
    """Read a table; raises BadRequest that names the row and what is wrong with it."""
    try:
        found = msgspec.convert(tomllib.loads(text), Table)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadRequest(f"{name} cannot be read: {error}") from error
    codes = [row.code for row in found.row]
    for row in found.row:
        wrong = _wrong(row)
        if codes.count(row.code) > 1:
            wrong.append("its code is another row's too")
        wrong = wrong or _untrue(row)
        if wrong:
            raise BadRequest(f"row {row.code!r} of {name}: {'; '.join(wrong)}")
    return found


def ranges_of(text: str) -> tuple[tuple[int, int], ...]:
    """`13, 31, 43-45` as pairs of first and last; raises ValueError."""
    found = []
    for part in (part.strip() for part in text.split(",") if text):
        first, dash, last = part.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high <= CODE_MAX:
            raise ValueError(f"{part!r} is no range of numbers")
        found.append((low, high))
    return tuple(found)


def _wrong(row: Row) -> list[str]:
    wrong = []
    if bool(row.xid) == bool(row.seen):
        wrong.append("give either xid or seen")
    if row.seen and row.seen not in SEEN:
        wrong.append(f"nothing is seen as {row.seen!r}; there are {', '.join(SEEN)}")
    if bool(row.action) != (row.seen == "recovery"):
        wrong.append('action belongs to seen = "recovery", and to nothing else')
    try:
        ranges_of(row.numbers)
    except ValueError as error:
        wrong.append(str(error))
    if not (row.code and row.words and row.source and all(row.source)):
        wrong.append("code, words and source must say something")
    if (row.deadline_s > 0) != (row.verdict is Verdict.DRAIN) or row.deadline_s > 86400:
        wrong.append("a row that drains has a deadline_s of up to a day, and no other row")
    return wrong


def _untrue(row: Row) -> list[str]:
    """Examples that the row itself does not bear out."""
    rule = row.rule()
    seen = [GpuTrouble("", -1, rule.kind, code) for code in (*row.applies, *row.spares)]
    here, spared = seen[: len(row.applies)], seen[len(row.applies) :]
    wrong = [f"it does not apply to {t.code}" for t in here if not rule.applies(t)]
    return wrong + [f"it does not spare {t.code}" for t in spared if rule.applies(t)]
