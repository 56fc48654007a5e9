"""A run's cost is what its stamped steps say."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.recovery.contender import JOBS, PLAIN
from bench.recovery.counting import Spread, recovery, statements, stopped_s
from bench.recovery.playing import thinned
from bench.recovery.schedule import draw
from bench.recovery.watching import Seen, Watch


def steps(*seen: tuple[float, int]) -> list[Seen]:
    return [Seen(at, step) for at, step in seen]


def test_steps_done_again_and_the_way_back() -> None:
    seen = steps((0, 1), (1, 2), (2, 3), (3.1, 4), (20, 3), (21, 4), (22, 5), (40, 2))
    found = recovery(seen, "n0", killed_at=3.0, quiet_at=3.5, until=30.0)
    assert (found.last_step, found.first_step, found.repeated) == (4, 3, 2)
    assert (found.killed_at_s, found.resumed_s, found.new_s) == (3.0, 17.0, 19.0)


def test_the_line_of_a_step_that_was_done_before_is_no_way_back() -> None:
    seen = steps((0, 1), (1, 2), (2, 3), (20, 2), (24, 3), (25, 4))
    found = recovery(seen, "n0", killed_at=3.0, quiet_at=3.5, until=30.0, parked=True)
    assert (found.first_step, found.repeated) == (3, 1)
    assert (found.resumed_s, found.new_s) == (21.0, 22.0)


def test_survivors_that_go_on_repeat_nothing() -> None:
    found = recovery(steps((0, 1), (1, 2), (8, 3)), "n0", killed_at=2.0, quiet_at=2.2, until=9.0)
    assert (found.repeated, found.resumed_s, found.new_s) == (0, 6.0, 6.0)


def test_a_job_that_never_comes_back() -> None:
    found = recovery(steps((0, 1), (1, 2)), "n0", killed_at=2.0, quiet_at=2.2, until=9.0)
    assert (found.first_step, found.resumed_s, found.new_s) == (0, -1.0, -1.0)


def test_stops_are_gaps_beside_checkpoints_and_never_an_outage() -> None:
    seen = steps((0, 1), (1, 2), (2, 3), (7, 4), (8, 5), (30, 6), (31, 7))
    assert stopped_s(seen, [3], []) == pytest.approx(4.0)
    assert stopped_s(seen, [3, 6], [(9.0, 30.0)]) == pytest.approx(4.0), "the gap at 9 is a kill's"
    assert stopped_s(seen, [], []) == 0.0
    assert stopped_s([], [3], []) == 0.0


def test_a_line_in_flight_at_the_kill_makes_no_checkpoint_longer() -> None:
    seen = steps((0, 1), (1, 2), (2, 3), (3.1, 4), (25, 3), (26, 4), (27, 5))
    assert stopped_s(seen, [4], [(3.0, 25.0)]) == 0.0


def test_what_stands_after_a_restore_is_no_checkpoints() -> None:
    """The line of the step that it was saved after comes first, and work only later."""
    seen = steps((0, 1), (1, 2), (2, 3), (20, 3), (24, 4), (25, 5))
    assert stopped_s(seen, [3], [(3.0, 24.0)]) == 0.0


def test_lines_that_come_in_one_go_are_no_usual_step() -> None:
    seen = steps((0, 1), (0.001, 2), (0.002, 3), (1, 4), (1.001, 5), (2, 6), (7, 7))
    assert stopped_s(seen, [6], []) == pytest.approx(4.0, abs=0.01)


def test_statements_are_counted_by_their_marks() -> None:
    source = '''
a = 1
# fault tolerance: begin
# why
b = 2

def save(
    path,
    more,
):
    """What it does."""
    c = [
        3,
    ]
    print("saved")  # for the bench
# fault tolerance: end
d = 4  # fault tolerance
'''
    assert statements(source) == 4, "b, save, c and d, however they are laid out"
    assert statements(PLAIN.read_text()) == 0
    for script in JOBS.glob("[a-z]*.py"):
        text = script.read_text()
        assert 10 < statements(text) < 60, script
        assert text.count("tolerance: begin") == text.count("tolerance: end"), script


@given(st.integers(0, 1 << 32), st.integers(0, 9))
def test_a_schedule_is_its_seed(seed: int, kills: int) -> None:
    drawn = draw(seed, kills)
    assert drawn == draw(seed, kills)
    assert len(drawn) == kills
    assert all(8.0 <= kill.after_s <= 14.0 for kill in drawn)
    assert {kill.victim(["b", "a"]) for kill in drawn} <= {"a", "b"}


def test_seeds_differ_and_both_nodes_are_hit() -> None:
    drawn = [draw(seed, 2) for seed in range(20)]
    assert len({kill.after_s for kills in drawn for kill in kills}) == 40
    assert {kill.victim(["n0", "n1"]) for kills in drawn for kill in kills} == {"n0", "n1"}


def test_spreads() -> None:
    assert Spread.of([3.0, 1.0, 8.0]) == Spread(3.0, 1.0, 8.0)
    assert Spread.of([]) is None


def test_a_course_keeps_both_ends_of_every_jump() -> None:
    course = [(i / 100, i + 1) for i in range(200)] + [(9 + i / 100, 50 + i) for i in range(200)]
    kept = thinned(course)
    assert {course[0], course[199], course[200], course[-1]} <= set(kept)
    assert len(kept) < 20


def test_logs_that_grow_appear_and_are_put_back(tmp_path: Path) -> None:
    first, late = tmp_path / "first", tmp_path / "late"
    first.write_bytes(b"epoch 0 step 1 loss 2.5\nepoch 0 step 2 lo")
    watch = Watch(lambda: [first, late], restored=True)
    assert [one.step for one in watch.poll()] == [1]
    with first.open("ab") as file:
        file.write(b"ss 2.25\nsnapshot saved at step 2\nnothing\n")
    assert [(one.step, one.saved) for one in watch.poll()] == [(2, False), (2, True)]

    late.write_bytes(b"epoch 0 step 1 loss 2.5\n")  # what a restore puts there is not new
    while late not in watch._read:
        assert watch.poll() == []
    with late.open("ab") as file:
        file.write(b"epoch 0 step 2 loss 2.25\n")
    assert [one.step for one in watch.poll()] == [2]

    first.write_bytes(b"epoch 0 step 1 loss 2.5\n")  # cut back
    assert watch.poll() == []
    with first.open("ab") as file:
        file.write(b"epoch 0 step 2 loss 2.25\n")
    assert [one.step for one in watch.poll()] == [2]
