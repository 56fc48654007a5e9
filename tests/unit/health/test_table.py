"""The table of GPU trouble: each row by its own examples, what is refused, and the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coordinator.core.errors import BadRequest
from coordinator.core.health_records import GpuTrouble, TroubleKind
from coordinator.core.health_rules import Verdict
from coordinator.health.page import page
from coordinator.health.table import Row, read, rules, table

DRAWN = Path(__file__).parents[3] / "docs" / "gpu-health.md"
V = Verdict


def seen(code: int, kind: TroubleKind = TroubleKind.XID) -> GpuTrouble:
    return GpuTrouble("GPU-1", 0, kind, code)


@pytest.mark.parametrize("row", table().row, ids=lambda row: row.code)
def test_each_row_applies_where_it_says_and_nowhere_beside_it(row: Row) -> None:
    shipped = rules()
    for code in row.applies:
        assert shipped.of(seen(code, row.kind)).code == row.code
    for code in row.spares:
        assert shipped.of(seen(code, row.kind)).code != row.code


@pytest.mark.parametrize(
    ("xid", "verdict", "uncorrected"),
    [
        (13, V.IGNORE, False), (31, V.IGNORE, False), (43, V.IGNORE, False), (45, V.IGNORE, False),
        (46, V.RESTORE, False), (48, V.RESTORE, True), (62, V.RESTORE, False),
        (63, V.IGNORE, False), (64, V.DRAIN, False), (74, V.DRAIN, False), (79, V.RESTORE, False),
        (92, V.IGNORE, False), (94, V.RESTORE, True), (95, V.RESTORE, True),
        (109, V.RESTORE, False), (119, V.RESTORE, False), (120, V.RESTORE, False),
        (137, V.IGNORE, False), (140, V.RESTORE, True), (149, V.DRAIN, False),
        (154, V.IGNORE, False), (172, V.IGNORE, True), (9999, V.IGNORE, False),
    ],
)  # fmt: skip
def test_what_is_done_about_well_known_numbers(
    xid: int, verdict: Verdict, uncorrected: bool
) -> None:
    """Written down once more, by NVIDIA's catalogue: a row that is changed by mistake is seen."""
    rule = rules().of(seen(xid))
    assert (rule.verdict, rule.uncorrected) == (verdict, uncorrected)


def test_a_row_that_drains_has_a_time_for_that() -> None:
    draining = [row for row in table().row if row.verdict is V.DRAIN]
    assert draining
    assert all(row.deadline_s > 0 for row in draining)


def test_rows_of_a_deployment_come_first(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(_row(xid='"63"', verdict='"drain"', deadline_s="300", code='"mine"'))
    found = rules(own)
    assert (found.of(seen(63)).code, found.of(seen(63)).verdict) == ("mine", V.DRAIN)
    assert found.of(seen(79)).code == "off_the_bus"
    assert rules().of(seen(63)).code == "remap_event"


def _row(**changes: str) -> str:
    row = {
        "code": '"a"', "xid": '"1"', "verdict": '"ignore"', "words": '"it"', "source": '["s"]',
        **changes,
    }  # fmt: skip
    return "[[row]]\n" + "".join(f"{name} = {value}\n" for name, value in row.items() if value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("row = 1", "cannot be read"),
        ("][", "cannot be read"),
        (_row(more='"x"'), "cannot be read"),
        (_row(verdict='"reboot"'), "cannot be read"),
        (_row(xid='"9-3"'), "is no range of numbers"),
        (_row(xid='"3,x"'), "invalid literal"),
        (_row(seen='"ecc"'), "give either xid or seen"),
        (_row(xid=""), "give either xid or seen"),
        (_row(xid="", seen='"heat"'), "nothing is seen as 'heat'"),
        (_row(action='"1"'), "action belongs to"),
        (_row(xid="", seen='"recovery"'), "action belongs to"),
        (_row(verdict='"drain"'), "has a deadline_s"),
        (_row(deadline_s="5"), "has a deadline_s"),
        (_row(source="[]"), "must say something"),
        (_row() + _row(), "another row's too"),
        (_row(applies="[2]"), "does not apply to 2"),
        (_row(spares="[1]"), "does not spare 1"),
    ],
)
def test_a_table_with_a_mistake_is_refused_by_its_row(text: str, said: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(said)):
        read(text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"nowhere\.toml cannot be read"):
        rules(tmp_path / "nowhere.toml")


def test_the_page_is_the_tables() -> None:
    told = "python -m coordinator.health.page > docs/gpu-health.md"
    assert DRAWN.read_text() == page(), told
