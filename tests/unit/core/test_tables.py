"""The tables: complete where they must be, drawn as they are, and obeyed."""

from enum import StrEnum
from pathlib import Path

import pytest

from coordinator.core import checkpoint, cleaning, events, restore
from coordinator.core.action import Action, Member
from coordinator.core.attempt import Attempt
from coordinator.core.cleaning import Cleaning, CleaningState
from coordinator.core.diagrams import page
from coordinator.core.errors import BugError, IllegalEvent
from coordinator.core.model import AttemptState, RestoreState
from coordinator.core.policy import Policy
from coordinator.core.returning import Restore
from coordinator.core.table import Ignored, Row, Table, step

DRAWN = Path(__file__).parents[3] / "design" / "state-machines.md"
TROUBLE = (
    events.NodeLost,
    events.NodeLeft,
    events.NodeAttached,
    events.WorkerExited,
    events.AbortRequested,
    events.StoreRefused,
    events.TimePassed,
)


def test_the_diagrams_are_those_of_the_tables() -> None:
    hint = "python -m coordinator.core.diagrams > design/state-machines.md"
    assert DRAWN.read_text() == page(), hint


@pytest.mark.parametrize(
    ("table", "ends", "states"),
    [
        (checkpoint.TRANSITIONS, Attempt.ENDS, AttemptState),
        (restore.TRANSITIONS, Restore.ENDS, RestoreState),
    ],
)
def test_every_state_has_a_row_for_every_trouble_and_a_way_to_its_end(
    table: Table[StrEnum], ends: frozenset[StrEnum], states: type[StrEnum]
) -> None:
    assert set(table) == set(states)
    for state in set(states) - ends:
        missing = [kind.__name__ for kind in TROUBLE if kind not in table[state]]
        assert not missing, state
        time = table[state][events.TimePassed]
        assert isinstance(time, Row), f"{state} has no deadline"
    reached, todo = set(), [next(iter(table))]
    while todo:
        state = todo.pop()
        reached.add(state)
        for row in table[state].values():
            found = row.to if isinstance(row, Row) else ()
            todo += [s for s in found if s not in reached]
    assert reached == set(states)


def test_every_state_of_a_cleaning_has_a_row_for_everything_and_a_way_to_its_end() -> None:
    table = cleaning.TRANSITIONS
    assert set(table) == set(CleaningState)
    kinds = set(table[CleaningState.LISTING])
    assert {events.NodeLost, events.NodeLeft, events.TimePassed, events.StoreRefused} <= kinds
    reached, todo = set(), [CleaningState.MARKING]
    while todo:
        state = todo.pop()
        reached.add(state)
        assert set(table[state]) == (set() if state in Cleaning.ENDS else kinds)
        for row in table[state].values():
            todo += [s for s in getattr(row, "to", ()) if s not in reached]
    assert reached == set(CleaningState)


@pytest.mark.parametrize(
    "table", [checkpoint.TRANSITIONS, restore.TRANSITIONS, cleaning.TRANSITIONS]
)
def test_whatever_is_ignored_has_a_reason(table: Table[StrEnum]) -> None:
    for rows in table.values():
        assert all(row.reason for row in rows.values() if isinstance(row, Ignored))


def attempt(state: AttemptState) -> Attempt:
    return Attempt(
        id="a1",
        job="llm",
        epoch=1,
        incarnation=0,
        policy=Policy(),
        started=0.0,
        deadline_s=10.0,
        unix_s=0.0,
        members={0: Member(0, "node-1")},
        state=state,
        reason="",
    )


@pytest.mark.parametrize("state", list(AttemptState))
def test_an_event_without_a_row_raises_and_changes_nothing(state: AttemptState) -> None:
    a = attempt(state)
    rows = checkpoint.TRANSITIONS[state]
    at = (1, "node-1", "llm", 0, "a1")
    for event in (events.Released(*at), events.GpuUnlocked(*at), events.Fetched(*at)):
        assert type(event) not in rows
        with pytest.raises(IllegalEvent, match=str(state)):
            step(checkpoint.TRANSITIONS, a, event, 1.0)
        assert a == attempt(state)


def test_a_handler_may_not_leave_the_table() -> None:
    def astray(a: Action[AttemptState], event: object, now: float) -> list[events.Event]:
        a.move(AttemptState.COMMITTED, "just like that")
        return []

    row = Row(astray, (AttemptState.HOLDING,))  # type: ignore[arg-type]
    with pytest.raises(BugError, match="from ADMITTING to COMMITTED"):
        step({AttemptState.ADMITTING: {events.TimePassed: row}}, attempt(AttemptState.ADMITTING),
             events.TimePassed(), 1.0)  # fmt: skip
