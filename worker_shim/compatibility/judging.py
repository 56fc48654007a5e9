"""Holding rows against a situation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from coordinator.core.model import Finding
from worker_shim.compatibility.features import Seen, TreeFeature
from worker_shim.compatibility.situation import OF_THE_TREE, VERSIONED, Situation, Versioned
from worker_shim.compatibility.table import FEATURES, Precaution, Row, table


class Answer(StrEnum):
    """Whether a row applies."""

    YES = "yes"
    NO = "no"
    DEPENDS = "depends"  # on the worker, of which nothing is known yet


@dataclass(frozen=True)
class Judgement:
    """A row that applies, and where that was seen (nowhere: the node's versions are enough)."""

    row: Row
    words: str
    seen: tuple[Seen, ...] = ()


def answer(row: Row, situation: Situation) -> Answer:
    """Whether all conditions of the row hold; a version that is not known fulfils none."""
    answers = {_condition(situation, name, getattr(row, name)) for name in VERSIONED}
    if row.architecture and row.architecture != situation.architecture:
        answers.add(Answer.NO)
    answers |= {_feature(situation, name, Answer.YES, Answer.NO) for name in row.seen}
    answers |= {_feature(situation, name, Answer.NO, Answer.YES) for name in row.unseen}
    if row.of_node and situation.has_tree and not situation.uses_gpu:
        answers.add(Answer.NO)
    return min(answers, key=(Answer.NO, Answer.DEPENDS, Answer.YES).index)


def _condition(situation: Situation, name: Versioned, wanted: str) -> Answer:
    if not wanted:
        return Answer.YES
    if name in OF_THE_TREE and not situation.has_tree:
        return Answer.DEPENDS
    found = situation.versions.get(name, ())
    return Answer.YES if any(_inside(version, wanted) for version in found) else Answer.NO


def _inside(version: str, wanted: str) -> bool:
    """Compared field by field as numbers: 575.57.08 is 575.57.8, and older than 575.100."""
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _feature(situation: Situation, name: str, there: Answer, gone: Answer) -> Answer:
    feature = FEATURES[name]
    if isinstance(feature, TreeFeature) and not situation.has_tree:
        return Answer.DEPENDS
    return there if feature in situation.features else gone


def judge(situation: Situation, rows: Iterable[Row] | None = None) -> Iterator[Judgement]:
    """The rows that apply, each once for every different thing that was seen."""
    for row in table().row if rows is None else rows:
        if answer(row, situation) is not Answer.YES:
            continue
        groups: dict[str, list[Seen]] = {}
        for seen in situation.features.get(FEATURES[row.seen[0]], ()) if row.seen else ():
            groups.setdefault(seen.what, []).append(seen)
        for what, where in groups.items() or (("", ()),):
            yield Judgement(row, _filled(row.words, situation, what), tuple(where))


def precautions(situation: Situation) -> frozenset[Precaution]:
    """What a shim of this node does by itself."""
    asked = (row for row in table().row if row.precaution is not None)
    found = (row.precaution for row in asked if answer(row, situation) is Answer.YES)
    return frozenset(each for each in found if each is not None)


def findings(situation: Situation, rows: Iterable[Row] | None = None) -> Iterator[Finding]:
    """What applies, as the preflight says it: who it is, what is wrong, what to do."""
    for judgement in judge(situation, rows):
        row, who = judgement.row, [seen for seen in judgement.seen if seen.pid]
        advice = _filled(row.advice, situation, judgement.seen[0].what if judgement.seen else "")
        yield Finding(
            severity=row.verdict,
            code=row.code,
            text=f"{_names(who)}{judgement.words}; {advice}",
            rank=who[0].rank if len(who) == 1 else -1,
            pid=who[0].pid if who else 0,
        )


def _names(who: Sequence[Seen]) -> str:
    if not who:
        return ""
    pids = ", ".join(str(seen.pid) for seen in who)
    programs = ", ".join(dict.fromkeys(seen.name for seen in who if seen.name))
    ranks = ", ".join(str(seen.rank) for seen in who if seen.rank >= 0)
    about = [programs, f"rank{'s' if ',' in ranks else ''} {ranks}" if ranks else ""]
    return f"pid{'s' if len(who) > 1 else ''} {pids} ({', '.join(filter(None, about))}) "


def _filled(text: str, situation: Situation, what: str) -> str:
    versions = {name: situation.version(name) for name in VERSIONED}
    return text.format(**versions, architecture=situation.architecture, seen=what)
