"""What is worth a report: a thousand shims that say every second that all is well are a load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from allstop.v1 import shim_pb2

from coordinator.core.model import RankState, WorkerState
from tests.unit.agent.rig import Rig
from worker_shim.agent import agent as agents
from worker_shim.agent.news import is_news

RANK = RankState(rank=3, local_rank=0, pid=9, boundary=10)


def worker(workers: int = 2, **more: object) -> WorkerState:
    state = WorkerState("llm", 1, workers, "running", 1, 8, workers, ranks=(RANK,))
    return replace(state, **more)  # type: ignore[arg-type]


STEP = (replace(RANK, boundary=11),)


@pytest.mark.parametrize(
    ("before", "now", "silent_s", "news"),
    [
        (worker(), worker(), 100.0, False),
        (worker(), worker(state="faulted"), 0.0, True),
        (worker(state="restored", action="r"), worker(), 0.0, True),
        (worker(4_096), worker(4_096, exit_code=1, state="exited"), 0.0, True),
        (worker(incarnation=0), worker(incarnation=0), 0.0, True),  # it waits for an answer
        (worker(256), worker(256, ranks=STEP), 0.9, False),
        (worker(256), worker(256, ranks=STEP), 1.1, True),
        (worker(4_096), worker(4_096, ranks=STEP), 4.9, False),
        (worker(4_096), worker(4_096, ranks=STEP), 5.1, True),
        (worker(1_024), worker(1_024, state="held", action="a"), 0.0, False),
        (worker(1_024), worker(1_024, state="held", action="a"), 4.1, True),
        (worker(2), worker(2, state="held", action="a"), 0.01, True),
    ],
)
def test_steps_of_large_jobs_wait_and_trouble_does_not(
    before: WorkerState, now: WorkerState, silent_s: float, news: bool
) -> None:
    assert is_news((now,), (before,), silent_s) is news


async def test_while_nothing_changes_a_sign_of_life_is_sent_now_and_then(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[shim_pb2.ShimMessage] = []
    now = 1_000.0
    monkeypatch.setattr(agents.time, "monotonic", lambda: now)
    rig.agent.start(lambda message: sent.append(message) is None)
    rig.agent._interval_s = 1.0
    for second in range(21):
        now = 1_000.0 + second
        await rig.agent.report()
    told = [message.WhichOneof("body") for message in sent]
    assert told[0] == "report"
    assert 4 <= len(told) <= 6, told
    assert told.count(None) >= 3, told
