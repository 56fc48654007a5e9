"""Every check of the soak finds what it is for, and nothing in a sound history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from coordinator.codec import encode
from coordinator.core.job_policy import JobRecovery, RecoveryState, StoryLine
from coordinator.core.model import Plan, RestoreRecord, RestoreState
from tests.chaos.made_up import FIRST, JOB, KEYS, NODES, RANKS, SECOND, Etcd
from tests.chaos.seen import Seen
from tests.chaos.steps import Step
from tests.soak import checks
from tests.soak.checks import check
from tests.soak.killer import KINDS, Kill, Taken, draw
from tests.soak.options import SoakOptions

EPOCH, S = 2, 10**9
FIRST_AT, SECOND_AT, KILLED_AT, LAST = 20, 40, 50, 92
THIRD = "three"


OPTIONS = SoakOptions(minutes=0.2)  # two epochs


def restore(snapshot: str, **more: object) -> RestoreRecord:
    record = RestoreRecord(
        restore="back", job=JOB, snapshot=snapshot, state=RestoreState.RUNNING, epoch=EPOCH,
        incarnation=2, plan=Plan(JOB, snapshot, (), ()), deadline_s=60.0,
        requested_unix_s=0.0, reason="it is so", cause="worker 1: n1 is lost",
    )  # fmt: skip
    return replace(record, **more)  # type: ignore[arg-type]


@dataclass
class Made:
    """A history that is whole: a snapshot at 20 and at 40, a kill at 50, and the job's end."""

    restored: str = SECOND
    began: int = SECOND_AT
    skipped: tuple[str, ...] = ()
    more: dict[str, object] = field(default_factory=dict)  # of the restore
    taken: list[Taken] = field(default_factory=lambda: [kill("node_off", KILLED_AT)])
    last: int = LAST
    digests: dict[int, str] = field(default_factory=dict)  # of rank 1's steps, where they differ

    def seen(self) -> Seen:
        etcd = Etcd()
        etcd.put((KEYS.leader(7), b"c0"))
        etcd.commit(FIRST, FIRST_AT, EPOCH)
        etcd.commit(SECOND, SECOND_AT, EPOCH)
        told = StoryLine(1.0, "the run has ended")
        recovery = JobRecovery(JOB, RecoveryState.RECOVERING, skipped=self.skipped, story=(told,))
        etcd.put((KEYS.recovery(JOB), encode(recovery)))
        record = restore(self.restored, **self.more)
        etcd.put((KEYS.restore(JOB, "back"), encode(record)))
        etcd.commit(THIRD, 60, EPOCH)  # too late to matter
        lives = [(1, step) for step in range(1, KILLED_AT + 1)]
        lives += [(2, step) for step in range(self.began, self.last + 1)]
        return Seen(
            etcd=etcd.events,
            steps={rank: [self.step(at, rank, *life) for at, life in enumerate(lives, 1)]
                   for rank in RANKS},
            undisturbed={(r, step): f"{r}.{step}" for r in RANKS for step in range(1, LAST + 1)},
        )  # fmt: skip

    def step(self, at: int, rank: int, life: int, step: int) -> Step:
        digest = self.digests.get(step, "") if rank else ""
        return Step(at * S, life, NODES[rank], rank, step, digest or f"{rank}.{step}")


def kill(kind: str, at_s: float, target: str = "n1", *, busy: bool = True) -> Taken:
    return Taken(kind, target, busy, int(at_s * S), int((at_s + 5) * S))


def test_a_sound_history_has_no_faults() -> None:
    made = Made()
    seen = made.seen()
    assert check(seen, made.taken, OPTIONS) == []
    assert {(one.rank, one.step, one.repeated) for one in checks.begun(seen)} == {
        (0, SECOND_AT, KILLED_AT - SECOND_AT),
        (1, SECOND_AT, KILLED_AT - SECOND_AT),
    }
    (outage,) = checks.outages(seen.steps[0], made.taken)
    assert (outage.incarnation, outage.kill) == (2, made.taken[0])
    # The first step that is new comes after all that are made again, from the parked one on.
    assert outage.seconds == KILLED_AT - SECOND_AT + 2
    useful, whole = LAST - 1, LAST + KILLED_AT - SECOND_AT
    assert checks.goodput(seen.steps[0], S, (whole + 1) * S) == pytest.approx(useful / whole)
    assert [line.text for line in checks.story(seen)] == ["the run has ended"]


PLANTED: dict[str, Made] = {
    "of step 20; the newest was two of step 40": Made(FIRST, FIRST_AT),
    "at step 20; step 40 was saved before": Made(FIRST, FIRST_AT, skipped=(SECOND,)),
    "snapshot two was left behind": Made(FIRST, FIRST_AT, skipped=(SECOND,)),
    "began incarnation 2 at step 30": Made(began=30),
    "starts the job from scratch": Made(began=1, more={"cold": True}),
    "was asked for by somebody": Made(more={"cause": ""}),
    "no restore has made it": Made(more={"incarnation": 3}),
    "have other bits": Made(digests={70: "x"}),
    "never made steps [92]": Made(last=LAST - 1),
    "though no node and no shim": Made(taken=[kill("coordinator_kill", KILLED_AT, busy=False)]),
    "the job went back for incarnation 2": Made(taken=[kill("node_off", 30)]),
}


@pytest.mark.parametrize("words", PLANTED)
def test_what_is_wrong_is_found(words: str) -> None:
    made = PLANTED[words]
    found = check(made.seen(), made.taken, OPTIONS)
    assert any(words in sentence for sentence in found), found


@pytest.mark.parametrize(
    ("taken", "ends"),
    [
        (kill("shim_kill", KILLED_AT), True),
        (kill("node_off", KILLED_AT - 4), False),  # nobody there can have made a step since
        (kill("shim_freeze", KILLED_AT - 4), True),  # it stands until 51 s
        (kill("shim_freeze", KILLED_AT - 21), False),
        (kill("node_lost", KILLED_AT, busy=False), False),
    ],
)
def test_what_can_have_ended_a_run(taken: Taken, ends: bool) -> None:
    (outage,) = checks.outages(Made().seen().steps[0], [taken])
    assert (outage.kill is not None) == ends


def of_a_day(change: Callable[[int], int]) -> list[Kill]:
    return draw(change(1), 86400, 60.0)


def test_a_seed_decides_all_and_the_mean_is_kept() -> None:
    kills = of_a_day(lambda seed: seed)
    assert kills == of_a_day(lambda seed: seed) != of_a_day(lambda seed: seed + 1)
    assert 1300 < len(kills) < 1600
    assert {kill.kind for kill in kills} == set(KINDS)
    assert [kill.after_s for kill in kills] == sorted(kill.after_s for kill in kills)
