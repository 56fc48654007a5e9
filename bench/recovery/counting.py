"""What a run cost, counted from stamped steps: no file, clock or process is touched here."""

from __future__ import annotations

import ast
import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.recovery.watching import Seen

TOGETHER_S = 0.005  # lines closer than this came in one go, through whatever forwards them
AROUND = 1  # a stop for a checkpoint may show before or after the step it is named for
BEGIN, END, LINE = "# fault tolerance: begin", "# fault tolerance: end", "# fault tolerance"
HARNESS = "# for the bench"  # what only this bench asks for, inside of that


@dataclass(frozen=True)
class Recovery:
    """What one kill cost."""

    node: str
    killed_at_s: float  # since the first step of the job
    last_step: int  # the highest that was seen before
    first_step: int  # the first that was seen after; 0: none
    resumed_s: float  # from the kill to that
    new_s: float  # from the kill to the first step that nobody had done before
    repeated: int  # steps that were done again


def recovery(
    seen: Sequence[Seen],
    node: str,
    killed_at: float,
    quiet_at: float,
    until: float,
    *,
    parked: bool = False,
) -> Recovery:
    """What the kill at `killed_at` cost, judged by the steps before the next one at `until`.

    Lines up to `quiet_at` were on their way when it came. With `parked` the first line after it is
    of a step that was done before: the job was saved between a step and its line. All times are
    monotonic. Without a step after it, `resumed_s` and `new_s` are -1.
    """
    steps = [one for one in seen if not one.saved]
    last = max((one.step for one in steps if one.at <= quiet_at), default=0)
    after = [one for one in steps if quiet_at < one.at < until][1 if parked else 0 :]
    new = next((one for one in after if one.step > last), None)
    return Recovery(
        node=node,
        killed_at_s=killed_at - steps[0].at if steps else 0.0,
        last_step=last,
        first_step=after[0].step if after else 0,
        resumed_s=after[0].at - killed_at if after else -1.0,
        new_s=new.at - killed_at if new else -1.0,
        repeated=max(0, last - after[0].step + 1) if after else 0,
    )


def stopped_s(
    seen: Sequence[Seen], checkpoints: Iterable[int], outages: Sequence[tuple[float, float]]
) -> float:
    """For how long the job stood still for checkpoints: gaps beside their steps, less a usual one.

    A gap that reaches into an outage (from a kill to the first step after it) is none of theirs.
    """
    steps = [one for one in seen if not one.saved]
    gaps = [(a.step, a.at, b.at) for a, b in itertools.pairwise(steps)]
    if not gaps:
        return 0.0
    apart = [end - begin for _, begin, end in gaps if end - begin > TOGETHER_S]
    usual = statistics.median(apart) if apart else 0.0
    taken = 0.0
    for step, times in Counter(checkpoints).items():  # twice where it was done again
        near = sorted(
            end - begin
            for at, begin, end in gaps
            if abs(at - step) <= AROUND
            and not any(begin < back and end > lost for lost, back in outages)
        )
        taken += sum(max(0.0, gap - usual) for gap in near[-times:])
    return taken


def statements(source: str) -> int:
    """Statements that stand in a script for fault tolerance alone, by its own marks.

    However they are laid out; docstrings and what the bench itself asks for are none.
    """
    marked, inside = set(), False
    for number, line in enumerate(source.splitlines(), 1):
        if line.strip() in (BEGIN, END):
            inside = line.strip() == BEGIN
        elif (inside or line.endswith(LINE)) and not line.endswith(HARNESS):
            marked.add(number)
    return sum(
        isinstance(each, ast.stmt) and each.lineno in marked and not _is_text(each)
        for each in ast.walk(ast.parse(source))
    )


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@dataclass(frozen=True)
class Spread:
    """A figure over several runs."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None without values."""
        if not values:
            return None
        return cls(statistics.median(values), min(values), max(values))
