"""What a retention lets go of: by number, age and bytes; whatever clocks have said."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.errors import BadRequest
from coordinator.core.kept import Retention
from coordinator.core.model import Cut, Snapshot
from coordinator.core.retention import check, going, judged_now, told

DAY_S = 86400.0
NOW = 1_000 * DAY_S
LAST_2 = Retention(keep_last=2)
WEEK = Retention(keep_for_s=7 * DAY_S)


def snapshot(name: str, committed_unix_s: float = NOW, **more: object) -> Snapshot:
    made = Snapshot(name, "llm", 1, 1, 2, 10, Cut.STEP, (), 100, "d", committed_unix_s, 100)
    return replace(made, **more)  # type: ignore[arg-type]


def days_ago(*ages: float) -> list[Snapshot]:
    return [snapshot(f"s{at}", NOW - age * DAY_S) for at, age in enumerate(ages)]


def gone(snapshots: list[Snapshot], policy: Retention | None, now: float = NOW) -> list[str]:
    latest = snapshots[-1].snapshot if snapshots else ""
    return [each.snapshot for each in going(snapshots, latest, policy, now)]


def test_without_rules_everything_stays() -> None:
    assert gone(days_ago(900, 800, 1), None) == gone([], LAST_2) == []


def test_each_rule_and_both_together() -> None:
    snapshots = days_ago(30, 20, 8, 6, 1)
    assert gone(snapshots, LAST_2) == ["s0", "s1", "s2"]
    assert gone(snapshots, WEEK) == ["s0", "s1", "s2"]
    assert gone(snapshots, replace(WEEK, keep_last=3)) == ["s0", "s1"]  # either rule keeps
    assert gone(snapshots, replace(LAST_2, keep_for_s=25 * DAY_S)) == ["s0"]


def test_why_is_told() -> None:
    (first, *_) = going(days_ago(30, 8, 1), "s2", replace(WEEK, keep_last=1), NOW)
    assert first.why == (
        "2 newer ones are there and it is older than 7d: the last 1 and those of the last 7d stay"
    )


def test_beyond_the_bytes_the_oldest_go_whatever_keeps_them() -> None:
    snapshots = days_ago(4, 3, 2, 1)
    assert gone(snapshots, Retention(keep_bytes=250)) == ["s0", "s1"]
    assert gone(snapshots, replace(WEEK, keep_bytes=250, keep_last=9)) == ["s0", "s1"]
    assert gone(snapshots, Retention(keep_bytes=1)) == ["s0", "s1", "s2"]
    snapshots[0] = replace(snapshots[0], pinned="the paper")
    assert gone(snapshots, Retention(keep_bytes=250)) == ["s1", "s2"]


def test_latest_is_not_the_last_to_be_committed_always() -> None:
    """An heir commits an older attempt after a newer one."""
    snapshots = days_ago(3, 2, 1)
    assert [g.snapshot for g in going(snapshots, "s1", Retention(keep_last=1), NOW)] == ["s0"]


def test_the_newest_whole_one_stays_beside_damaged_ones() -> None:
    snapshots = days_ago(3, 2, 1)
    snapshots[2] = replace(snapshots[2], damaged="a chunk is missing")
    assert gone(snapshots, Retention(keep_last=1)) == ["s0"]


def suspect(snapshots: list[Snapshot], *at: int) -> list[Snapshot]:
    why = "node-1: GPU 0: Xid 48"
    return [replace(each, suspect=why) if i in at else each for i, each in enumerate(snapshots)]


def test_suspect_ones_do_not_push_out_good_ones() -> None:
    snapshots = suspect(days_ago(6, 5, 4, 3, 2, 1), 2, 4, 5)
    assert gone(snapshots, LAST_2) == ["s0", "s2"]  # of good ones s1 and s3 are the last two
    assert gone(days_ago(6, 5, 4, 3, 2, 1), LAST_2) == ["s0", "s1", "s2", "s3"]


def test_suspect_ones_do_not_pile_up() -> None:
    assert gone(suspect(days_ago(5, 4, 3, 2, 1), 1, 2, 3, 4), LAST_2) == ["s1", "s2"]


def test_the_newest_good_one_stays_beside_suspect_ones() -> None:
    snapshots = suspect(days_ago(9, 8, 2, 1), 2, 3)
    assert gone(snapshots, WEEK) == ["s0"]
    assert gone(snapshots, Retention(keep_bytes=1)) == ["s0", "s2"]
    snapshots[1] = replace(snapshots[1], damaged="a chunk is missing")
    assert gone(snapshots, WEEK) == ["s1"], "the newest that is both whole and good"


def test_a_clock_that_went_back_makes_no_snapshot_older() -> None:
    """The leader that made s2 lived in last year."""
    snapshots = days_ago(3, 2, 365, 1)
    assert gone(snapshots, replace(WEEK)) == []


def test_a_clock_that_is_ahead_lets_go_of_nothing_early() -> None:
    """This leader's clock is a year ahead: stamps that it found and time watched say otherwise."""
    snapshots = days_ago(6, 5, 1)
    wrong = NOW + 365 * DAY_S
    judged = judged_now(wrong, snapshots[-1].committed_unix_s, 3600.0)
    assert gone(snapshots, WEEK, wrong) == ["s0", "s1"]
    assert gone(snapshots, WEEK, judged) == []


def test_a_stamp_that_is_ahead_is_not_believed_by_a_right_clock() -> None:
    snapshots = days_ago(6, 5, -365)
    judged = judged_now(NOW, snapshots[-1].committed_unix_s, 60.0)
    assert gone(snapshots, WEEK, judged) == []


@pytest.mark.parametrize(
    "policy", [Retention(), Retention(-1), Retention(0, -1.0), Retention(1, 0.0, -5)]
)
def test_rules_that_make_no_sense_are_refused(policy: Retention) -> None:
    with pytest.raises(BadRequest):
        check(policy)


def test_rules_are_told_in_words() -> None:
    assert told(None) == "every snapshot stays"
    assert (
        told(Retention(3, 90.0, 5))
        == "the last 3 and those of the last 90s stay, up to 5 stored bytes"
    )
    assert told(Retention(keep_bytes=5)) == "every snapshot stays, up to 5 stored bytes"


SNAPSHOTS = st.lists(
    st.builds(
        lambda stamp, size, pinned, broken, why: snapshot(
            "", stamp, stored_bytes=size, pinned=pinned, damaged=broken, suspect=why
        ),
        st.floats(0, 2 * NOW),
        st.integers(0, 500),
        st.sampled_from(["", "", "the paper"]),
        st.sampled_from(["", "", "torn"]),
        st.sampled_from(["", "", "Xid 48"]),
    ),
    max_size=12,
).map(lambda made: [replace(each, snapshot=f"s{at}") for at, each in enumerate(made)])
POLICIES = st.builds(
    Retention, st.integers(0, 8), st.floats(0, NOW), st.sampled_from([0, 0, 1, 500, 2000])
)


@given(SNAPSHOTS, POLICIES, st.floats(0, 3 * NOW), st.integers(0, 11))
def test_what_must_stay_stays(
    snapshots: list[Snapshot], policy: Retention, now: float, at: int
) -> None:
    latest = snapshots[at % len(snapshots)].snapshot if snapshots else ""
    left = {each.snapshot for each in snapshots} - {
        each.snapshot for each in going(snapshots, latest, policy, now)
    }
    assert {each.snapshot for each in snapshots if each.pinned} <= left
    assert not snapshots or {latest, snapshots[-1].snapshot} <= left
    whole = [each.snapshot for each in snapshots if not each.damaged]
    assert set(whole[-1:]) <= left
    good = [each.snapshot for each in snapshots if not each.suspect]
    assert set([name for name in good if name in whole][-1:]) <= left
    if not policy.keep_bytes:
        last = [each.snapshot for each in snapshots][-policy.keep_last or len(snapshots) :]
        assert not policy.keep_last or set(last) <= left
        assert not policy.keep_last or set(good[-policy.keep_last :]) <= left
        if not (policy.keep_last or policy.keep_for_s):
            assert len(left) == len(snapshots)


@given(SNAPSHOTS, POLICIES, st.floats(0, 3 * NOW), st.integers(0, 11), st.floats(0, NOW))
def test_a_stamp_or_a_clock_put_back_lets_go_of_nothing_more(
    snapshots: list[Snapshot], policy: Retention, now: float, at: int, back_s: float
) -> None:
    if not snapshots:
        return
    latest, policy = snapshots[-1].snapshot, replace(policy, keep_bytes=0)
    before = {each.snapshot for each in going(snapshots, latest, policy, now)}
    earlier = {each.snapshot for each in going(snapshots, latest, policy, now - back_s)}
    assert earlier <= before
    at %= len(snapshots)
    floor = max((each.committed_unix_s for each in snapshots[:at]), default=0.0)
    if snapshots[at].committed_unix_s <= floor:  # its clock had gone back: how far is all the same
        changed = [*snapshots]
        changed[at] = replace(changed[at], committed_unix_s=max(0.0, floor - back_s))
        assert {e.snapshot for e in going(changed, latest, policy, now)} == before
