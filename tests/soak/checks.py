"""What must hold of a soak beside the invariants of chaos: pure functions, sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from coordinator.core.job_policy import JobRecovery, StoryLine
from coordinator.core.model import RestoreRecord, RestoreState, Snapshot
from coordinator.store.keys import Kind
from tests.chaos import checker
from tests.chaos.checker import KEYS, stored
from tests.chaos.seen import Seen
from tests.chaos.steps import Step
from tests.soak.killer import KINDS, Taken
from tests.soak.options import SoakOptions

EARLY_NS = 3 * 10**9  # a step that was under way may end so long after a kill
THAWED_NS = 15 * 10**9  # so long after a shim is back its job may still run on
# Chaos checks cuts by reading every image; here snapshots come and go.
SHARED = tuple(one for one in checker.CHECKS if one is not checker.nobody_moved_in_a_cut)


def the_newest_is_restored(seen: Seen) -> Iterator[str]:
    """Each restore is of the newest snapshot at that time that was not left behind, or deleted."""
    there: dict[str, Snapshot] = {}  # oldest first
    skipped: tuple[str, ...] = ()
    known: set[str] = set()
    records = {(one.revision, one.key): one.record for one in stored(seen)}
    for event in seen.etcd:
        record, place = records.get((event.revision, event.key)), KEYS.place(event.key)
        if isinstance(record, Snapshot) and not record.deleting:
            there[record.snapshot] = record
        elif place.kind is Kind.SNAPSHOT:
            there.pop(place.identity, None)
        elif isinstance(record, JobRecovery):
            skipped = record.skipped
        elif isinstance(record, RestoreRecord) and record.restore not in known:
            known.add(record.restore)
            yield from _newest(record, [one for one in there if one not in skipped], there)


def _newest(record: RestoreRecord, good: list[str], there: dict[str, Snapshot]) -> Iterator[str]:
    if record.cold:
        yield f"{record.restore} starts the job from scratch"
    elif not good or record.snapshot != good[-1]:
        newest = f"{good[-1]} of step {there[good[-1]].step}" if good else "none"
        step = there[record.snapshot].step if record.snapshot in there else "unknown"
        yield f"{record.restore} is of {record.snapshot} of step {step}; the newest was {newest}"
    if not record.cause:
        yield f"{record.restore} was asked for by somebody"


def nothing_is_left_behind(seen: Seen) -> Iterator[str]:
    """No snapshot is bad here, so none may be taken for it."""
    left = {
        name
        for one in stored(seen)
        if isinstance(one.record, JobRecovery)
        for name in one.record.skipped
    }
    for name in sorted(left):
        yield f"snapshot {name} was left behind, and it was good"


@dataclass(frozen=True)
class Begun:
    """Where one rank began a new incarnation, and how far it had been before."""

    rank: int
    incarnation: int
    step: int
    before: int  # the last step of the incarnation before

    @property
    def repeated(self) -> int:
        """Steps that are made again; the parked one itself is only written down again."""
        return max(0, self.before - self.step)


def begun(seen: Seen) -> list[Begun]:
    """Every beginning that a diary shows."""
    found = []
    for rank, steps in seen.steps.items():
        for before, now in pairwise(steps):
            if now.incarnation != before.incarnation:
                found.append(Begun(rank, now.incarnation, now.step, before.step))
    return found


def no_step_is_lost(seen: Seen) -> Iterator[str]:
    """Nobody makes a step again that the newest snapshot before the failure had."""
    newest, first = 0, dict[int, int]()  # incarnation -> step of the newest snapshot before it
    known: set[str] = set()
    for one in stored(seen):
        if isinstance(one.record, Snapshot):
            newest = max(newest, one.record.step)
        elif isinstance(one.record, RestoreRecord) and one.key not in known:
            known.add(one.key)
            first[one.record.incarnation] = newest
    for new in begun(seen):
        saved = first.get(new.incarnation)
        name = f"rank {new.rank} began incarnation {new.incarnation}"
        if saved is None:
            yield f"{name} at step {new.step}, and no restore has made it"
        elif new.step != saved:
            yield f"{name} at step {new.step}; step {saved} was saved before"


def it_came_to_its_end(seen: Seen, options: SoakOptions) -> Iterator[str]:
    """Every rank made every step, up to the last one."""
    for rank, steps in seen.steps.items():
        missing = set(range(1, options.steps + 1)) - {step.step for step in steps}
        if missing:
            yield f"rank {rank} never made steps {sorted(missing)[:5]} of {options.steps}"


# -- outages ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outage:
    """From the kill to the first step that nobody had made before.

    Attributes:
        kill: the first that can have ended the run; None where nobody was taken.
    """

    incarnation: int
    kill: Taken | None
    before_ns: int
    until_ns: int

    @property
    def seconds(self) -> float:
        """How long the job was away, work done again included."""
        since = self.kill.unix_ns if self.kill is not None else self.before_ns
        return (self.until_ns - since) / 1e9


def outages(steps: Sequence[Step], taken: Sequence[Taken]) -> list[Outage]:
    """Every time that the job went on as another incarnation, by one rank's diary."""
    found, last = [], None
    for step in steps:
        if last is not None and step.step <= last.step:
            continue
        if last is not None and step.incarnation != last.incarnation:
            may = [one for one in taken if _can_end(one, last.unix_ns, step.unix_ns)]
            kill = min(may, key=lambda one: one.unix_ns, default=None)
            found.append(Outage(step.incarnation, kill, last.unix_ns, step.unix_ns))
        last = step
    return found


def _can_end(one: Taken, last_ns: int, next_ns: int) -> bool:
    """Whether that has ended a run whose last new step was made at `last_ns`."""
    if not one.busy or one.unix_ns > next_ns:
        return False
    if KINDS[one.kind].ends:
        return one.unix_ns >= last_ns - EARLY_NS
    return one.until_ns >= last_ns - THAWED_NS


def every_recovery_has_a_cause(seen: Seen, taken: Sequence[Taken]) -> Iterator[str]:
    """No coordinator that dies, and nobody who is away for a moment, costs the job its run."""
    for one in outages(seen.steps[min(seen.steps)], taken):
        if one.kill is None:
            yield (
                f"the job went back for incarnation {one.incarnation}, though no node and no shim "
                "of it had been taken"
            )


def goodput(steps: Sequence[Step], begin_ns: int, end_ns: int) -> float:
    """The share of the time in which steps were made that nobody had to make again.

    A step is worth what it usually takes in this run.
    """
    own = [step for step in steps if begin_ns <= step.unix_ns <= end_ns]
    took = [
        now.unix_ns - before.unix_ns
        for before, now in pairwise(own)
        if now.incarnation == before.incarnation
    ]
    if not took or end_ns <= begin_ns:
        return 0.0
    useful = own[-1].step - own[0].step
    return useful * median(took) / (end_ns - begin_ns)


def story(seen: Seen) -> list[StoryLine]:
    """All lines of the job's story, of which a record keeps only the last."""
    lines = {
        (line.unix_s, line.text): line
        for one in stored(seen)
        if isinstance(one.record, JobRecovery)
        for line in one.record.story
    }
    return sorted(lines.values(), key=lambda line: line.unix_s)


def check(seen: Seen, taken: Sequence[Taken], options: SoakOptions) -> list[str]:
    """Every sentence of every check."""
    found = checker.check(
        seen, (*SHARED, the_newest_is_restored, nothing_is_left_behind, no_step_is_lost)
    )
    if any(seen.steps.values()):
        found += every_recovery_has_a_cause(seen, taken)
    return [*found, *it_came_to_its_end(seen, options)]


__all__ = ["RestoreState", "check", "goodput", "outages", "story"]
