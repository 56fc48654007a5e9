"""Every row of the table: where it applies, and where it does not though nearly all is the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from packaging.specifiers import SpecifierSet

from coordinator.core.errors import BugError
from coordinator.core.model import Severity
from worker_shim.compatibility.features import Seen, TreeFeature
from worker_shim.compatibility.judging import Answer, answer, findings, precautions
from worker_shim.compatibility.situation import OF_THE_NODE, VERSIONED, Situation
from worker_shim.compatibility.table import FEATURES, Example, Precaution, Row, read, table

ROWS = table().row
HEAD = "[node]\n{node}\n[tree]\n{tree}\n"
NEW = """
[[row]]
code = "driver_700"
about = "driver"
verdict = "refuse"
driver = ">=700"
seen = ["nccl"]
words = "uses it ({{seen}}) with {{driver}}"
advice = "wait"
source = ["nowhere"]
applies = {{ driver = "700.1", seen = ["gpu", "nccl"] }}
spares = [{{ driver = "699.1", seen = ["gpu", "nccl"] }}, {{ driver = "700.1", seen = ["gpu"] }}]
"""


def situation(example: Example) -> Situation:
    """As it would be seen: tree features of pid 7, rank 3."""
    seen = {
        FEATURES[name]: (Seen(f"shows {name}", 7, 3, "python"),)
        if isinstance(FEATURES[name], TreeFeature)
        else (Seen(f"the node shows {name}"),)
        for name in example.seen
    }
    versions = {name: (getattr(example, name),) for name in VERSIONED if getattr(example, name)}
    return Situation(example.architecture, versions, seen)


def relaxed(row: Row) -> Iterator[tuple[str, Row]]:
    """The row with each of its conditions left out in turn; a range has one or several."""
    for name in VERSIONED:
        bounds = [str(bound) for bound in SpecifierSet(getattr(row, name))]
        for bound in bounds:
            left = ",".join(other for other in bounds if other != bound)
            yield f"{name}{bound}", msgspec.structs.replace(row, **{name: left})
    if row.architecture:
        yield row.architecture, msgspec.structs.replace(row, architecture="")
    for kind in ("seen", "unseen"):
        names = getattr(row, kind)
        for name in names:
            left = tuple(other for other in names if other != name)
            yield f"{kind} {name}", msgspec.structs.replace(row, **{kind: left})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.code)
def test_a_row_applies_there_and_not_next_to_it(row: Row) -> None:
    assert row.spares
    there = situation(row.applies)
    assert answer(row, there) is Answer.YES
    (found,) = findings(there, [row])
    assert (found.severity, found.code) == (row.verdict, row.code)
    assert "; " in found.text
    assert "{" not in found.text
    assert "unknown" not in found.text or row.code.endswith("unknown")
    for example in row.spares:
        assert answer(row, situation(example)) is Answer.NO, example
        assert not list(findings(situation(example), [row]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.code)
def test_each_condition_of_a_row_is_what_spares_a_situation(row: Row) -> None:
    spared = [situation(example) for example in row.spares]
    idle = [
        condition
        for condition, without in relaxed(row)
        if not any(answer(without, each) is Answer.YES for each in spared)
        and not (condition == "seen gpu" and without.of_node)  # a row of the node asks for it too
    ]
    assert not idle, "add a situation to `spares` that only this condition keeps out"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.code)
def test_without_a_worker_a_row_is_of_the_node_or_depends(row: Row) -> None:
    there = situation(row.applies)
    versions = {name: v for name, v in there.versions.items() if name in OF_THE_NODE}
    features = {f: s for f, s in there.features.items() if not isinstance(f, TreeFeature)}
    node = Situation(there.architecture, versions, features, has_tree=False)
    assert answer(row, node) is (Answer.YES if row.of_node else Answer.DEPENDS)


def test_what_is_of_the_node_alone_is_not_told_to_workers_without_a_gpu() -> None:
    (row,) = (row for row in ROWS if row.code == "driver_too_old")
    assert row.of_node
    there = situation(row.applies)
    assert answer(row, replace(there, features={})) is Answer.NO


def test_every_feature_is_asked_for_and_explained() -> None:
    asked = {name for row in ROWS for name in (*row.seen, *row.unseen)}
    assert asked == set(FEATURES)
    assert all((*table().node.values(), *table().tree.values()))


def head() -> str:
    """The vocabulary of the table, without rows."""
    return HEAD.format(
        node="\n".join(f'{name} = "x"' for name in table().node),
        tree="\n".join(f'{name} = "x"' for name in table().tree),
    )


def test_a_new_row_needs_no_code() -> None:
    (row,) = read(head() + NEW.format()).row
    (found,) = findings(situation(row.applies), [row])
    assert found.severity is Severity.REFUSE
    assert (found.pid, found.rank) == (7, 3)
    assert found.text == "pid 7 (python, rank 3) uses it (shows nccl) with 700.1; wait"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('seen = ["nccl"]', 'seen = ["ncll"]', "no feature ncll"),
        ('seen = ["nccl"]', 'sees = ["nccl"]', "unknown field `sees`"),
        ('driver = ">=700"', 'driver = ">=seven"', "driver"),
        ("({seen}) with", "({sene}) with", "no word {sene}"),
        ("({seen}) with", "{seen} with", "in brackets"),
        ("with {driver}", "with {torch}", "torch has no range"),
        ('"refuse"', '"maybe"', "maybe"),
        ('source = ["nowhere"]', "source = []", "must say something"),
        ('driver = ">=700"\nseen = ["nccl"]', "", "asks for nothing"),
        ("spares = [{", "spare = [{", "spare"),
    ],
)
def test_a_row_with_a_mistake_is_named(old: str, new: str, says: str) -> None:
    text = NEW.format()
    assert old in text
    with pytest.raises(BugError, match=says):
        read(head() + text.replace(old, new))


def test_a_code_is_one_rows_and_features_are_those_of_the_program() -> None:
    with pytest.raises(BugError, match="another row's"):
        read(head() + NEW.format() * 2)
    with pytest.raises(BugError, match="other features"):
        read(head().replace('\ngpu = "x"', "") + NEW.format())


@pytest.mark.parametrize(
    ("version", "wanted", "inside"),
    [
        ("575.57.08", "==575.57.8", True),
        ("575.57.08", "<575.100", True),
        ("1000.1", "<570", False),
        ("570", ">=570,<580", True),
        ("580.65.06", "==580.65.*", True),
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.14.0.dev20260901+cu130", ">=2.13", True),
        ("none", ">=0", False),
    ],
)
def test_versions_are_compared_by_fields_as_numbers(
    version: str, wanted: str, inside: bool
) -> None:
    (row,) = (row for row in ROWS if row.code == "driver_too_old")
    row = msgspec.structs.replace(row, driver=wanted)
    there = Situation("x86_64", {"driver": (version,)}, has_tree=False)
    assert answer(row, there) is (Answer.YES if inside else Answer.NO)


def test_many_that_show_the_same_are_told_once() -> None:
    (row,) = read(head() + NEW.format()).row
    who = [Seen("shows it", pid, pid - 10, "python") for pid in (10, 11)]
    other = Seen("shows more", 12, -1, "sh")
    there = Situation("x86_64", {"driver": ("700.1",)}, {TreeFeature.NCCL: (*who, other)})
    one, two = findings(there, [row])
    assert one.text.startswith("pids 10, 11 (python, ranks 0, 1) uses it (shows it) with")
    assert (one.pid, one.rank) == (10, -1)
    assert two.text.startswith("pid 12 (sh) uses it (shows more) with")


def test_a_driver_that_hangs_its_machine_is_the_precautions_business() -> None:
    hanging = Situation("x86_64", {"driver": ("595.71.05",)}, has_tree=False)
    well = Situation("x86_64", {"driver": ("595.84",)}, has_tree=False)
    assert precautions(hanging) == {Precaution.SAVE_BEFORE_KILL}
    assert precautions(well) == frozenset()
