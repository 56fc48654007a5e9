"""The hook's part: when the checkpoint shim is called, and what the slot says meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from worker_shim.hook import rank
from worker_shim.hook.communicators import Communicators, find
from worker_shim.hook.page import (
    COMMUNICATORS_FAILED,
    COMMUNICATORS_GOING_DOWN,
    COMMUNICATORS_NONE,
    COMMUNICATORS_REBUILDING,
    COMMUNICATORS_UP,
    STATE_PARKED,
    STATE_REBUILDING,
    STATE_RUNNING,
)
from worker_shim.hook.slot import HOLD, TARGET, TEAR_DOWN, Slot, claim, open_page
from worker_shim.process.control import ControlPage


class Rank:
    """This process as a rank whose checkpoint shim is the test."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.page = ControlPage.create(path, 1)
        words, fd = open_page(str(path))
        slot = claim(words, fd, stepping=True)
        assert slot is not None
        self.words, self.slot = words, slot
        self.calls: list[tuple[str, int, int]] = []  # call, and what the slot said then
        self.results = {"prepare": 0, "restore": 0}
        self.then: dict[str, dict[int, int]] = {}  # call: header fields that it changes
        made = Communicators(slot, lambda: self._call("prepare"), lambda: self._call("restore"))
        monkeypatch.setattr(rank, "_communicators", made)
        monkeypatch.setattr(rank, "POLL_S", 0.0)
        monkeypatch.setattr(rank.time, "sleep", self._time_passes)
        self.turns: list[dict[int, int]] = []

    def _call(self, name: str) -> int:
        self.calls.append((name, self.slot.get("state"), self.slot.get("communicators")))
        return self.results[name]

    def _time_passes(self, _: float) -> None:
        for at, value in self.turns.pop(0).items():
            self.words[at] = value

    def stops(self, *turns: dict[int, int]) -> None:
        """It comes to boundary 1 and finds the flag up; each turn of its waiting changes fields."""
        self.turns = list(turns)
        self.words[HOLD], self.words[TARGET] = 5, 1
        rank._stop_here(self.slot, 1)
        assert self.turns == []


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setenv("RANK", "0")
    made = Rank(tmp_path / "page", monkeypatch)
    yield made
    made.page.close()


def stands(one: Rank) -> tuple[int, int]:
    return one.slot.get("communicators"), one.slot.get("nccl_result")


def test_they_go_when_all_are_parked_and_come_back_at_release(one: Rank) -> None:
    one.stops({}, {TEAR_DOWN: 5}, {}, {HOLD: 0, TARGET: 0})
    assert one.calls == [
        ("prepare", STATE_PARKED, COMMUNICATORS_GOING_DOWN),
        ("restore", STATE_REBUILDING, COMMUNICATORS_REBUILDING),
    ]
    assert stands(one) == (COMMUNICATORS_UP, 0)
    assert one.slot.get("state") == STATE_RUNNING


def test_a_rank_that_is_let_go_before_keeps_them(one: Rank) -> None:
    one.stops({TEAR_DOWN: 4}, {}, {HOLD: 0, TARGET: 0})
    assert one.calls == []
    assert stands(one) == (COMMUNICATORS_UP, 0)


def test_a_second_hold_that_it_sleeps_into_finds_them_down(one: Rank) -> None:
    """Let go and held again between two looks: they are not destroyed twice."""
    one.stops({TEAR_DOWN: 5}, {HOLD: 6, TARGET: 1, TEAR_DOWN: 6}, {}, {HOLD: 0, TARGET: 0})
    assert [call for call, *_ in one.calls] == ["prepare", "restore"]


def test_a_rank_that_goes_on_to_a_later_target_has_them_again(one: Rank) -> None:
    one.stops({TEAR_DOWN: 5}, {HOLD: 6, TARGET: 2})
    assert [call for call, *_ in one.calls] == ["prepare", "restore"]
    assert stands(one)[0] == COMMUNICATORS_UP


def test_what_fails_is_said_and_the_rank_goes_on(one: Rank) -> None:
    one.results = {"prepare": 2, "restore": 3}
    one.stops({TEAR_DOWN: 5}, {}, {HOLD: 0, TARGET: 0})
    assert [call for call, *_ in one.calls] == ["prepare", "restore"]
    assert stands(one) == (COMMUNICATORS_FAILED, 3)
    assert one.slot.get("state") == STATE_RUNNING


def test_the_shim_sees_how_they_stand(one: Rank) -> None:
    (seen,) = one.page.communicators()
    assert (seen.rank, seen.state) == (0, COMMUNICATORS_UP)
    assert not one.page.tearing_down
    one.words[HOLD] = 5
    one.page.tear_down()
    assert one.page.tearing_down
    one.words[HOLD] = 6
    assert not one.page.tearing_down


def test_without_mode_or_shim_they_are_left_alone(
    one: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = Slot(one.words, 0)
    slot.put("communicators", COMMUNICATORS_NONE)
    monkeypatch.delenv("ALLSTOP_NCCL_MODE", raising=False)
    assert find(slot) is None
    monkeypatch.setenv("ALLSTOP_NCCL_MODE", "rebuild")
    assert find(slot) is None, "the library is not in this process"
    assert slot.get("communicators") == COMMUNICATORS_NONE
