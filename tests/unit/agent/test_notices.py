"""What signals mean to a shim: the end, a node to be emptied first, a checkpoint."""

from __future__ import annotations

import signal
import time
from typing import Any, cast

import pytest
from allstop.v1 import shim_pb2
from structlog.testing import capture_logs

from worker_shim.agent.agent import Agent
from worker_shim.agent.notices import Notices, Told

DRAIN, CHECKPOINT = shim_pb2.NOTICE_KIND_DRAIN, shim_pb2.NOTICE_KIND_CHECKPOINT
STOP, END = shim_pb2.NOTICE_KIND_STOP, shim_pb2.NOTICE_KIND_END


class Busy:
    """As much of an agent as a notice wants to know."""

    def __init__(self) -> None:
        self.busy, self.hellos, self.attached = True, 1, True
        self.sent: list[Any] = []
        self.notice_refused: Any = None

    def send(self, message: shim_pb2.ShimMessage) -> bool:
        """A stream that is there or not."""
        if self.attached:
            self.sent.append(message.notice)
        return self.attached


def told(
    agent: Busy, *, on_term: str = "drain", grace_s: float = 60.0, save_grace_s: float = 0.0
) -> tuple[Notices, Told]:
    notices = Notices(cast(Agent, agent), on_term, grace_s, save_grace_s)
    return notices, Told(notices)


def test_without_on_term_it_ends_at_once() -> None:
    agent = Busy()
    _, signals = told(agent, on_term="end")
    assert signals.ended_by is None
    signals.take(signal.SIGTERM)
    assert signals.ended_by == signal.SIGTERM
    assert not agent.sent


def test_a_drain_is_asked_for_and_the_shim_stays_until_the_node_is_empty() -> None:
    agent = Busy()
    notices, signals = told(agent)
    signals.take(signal.SIGTERM)
    assert signals.ended_by is None
    (notice,) = agent.sent
    assert (notice.kind, notice.why) == (DRAIN, "its shim was told SIGTERM")
    assert 59_000 < notice.deadline_ms <= 60_000
    notices.tell()
    assert len(agent.sent) == 1
    agent.busy = False
    assert signals.ended_by == signal.SIGTERM


def test_it_ends_when_the_time_is_up() -> None:
    agent = Busy()
    _, signals = told(agent, grace_s=0.05)
    signals.take(signal.SIGTERM)
    assert signals.ended_by is None
    time.sleep(0.06)  # the time that it was given
    assert signals.ended_by == signal.SIGTERM


def test_a_second_signal_ends_it_at_once() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        _, signals = told(Busy())
        signals.take(signal.SIGTERM)
        signals.take(number)
        assert signals.ended_by == number


def test_a_node_without_workers_ends_at_once() -> None:
    agent = Busy()
    agent.busy = False
    _, signals = told(agent)
    signals.take(signal.SIGTERM)
    assert signals.ended_by == signal.SIGTERM
    assert not agent.sent


def test_each_leader_hears_of_it_and_one_that_was_away_later() -> None:
    agent = Busy()
    agent.attached = False
    notices, signals = told(agent)
    signals.take(signal.SIGTERM)
    assert not agent.sent
    agent.attached = True
    notices.tell()
    assert len(agent.sent) == 1
    agent.hellos = 2  # another leader
    notices.tell()
    notices.tell()
    assert len(agent.sent) == 2


def test_a_checkpoint_is_asked_for_once_a_signal_and_ends_nothing() -> None:
    agent = Busy()
    agent.attached = False
    notices, signals = told(agent, on_term="end")
    signals.take(signal.SIGUSR1)
    agent.attached = True
    notices.tell()
    agent.hellos = 2
    notices.tell()
    (notice,) = agent.sent
    assert (notice.kind, notice.deadline_ms) == (CHECKPOINT, 0)
    signals.take(signal.SIGUSR1)
    assert len(agent.sent) == 2
    assert signals.ended_by is None


def test_jobs_are_stopped_and_the_end_is_no_loss() -> None:
    agent = Busy()
    notices, signals = told(agent, on_term="stop")
    signals.take(signal.SIGTERM)
    (notice,) = agent.sent
    assert notice.kind == STOP
    assert 59_000 < notice.deadline_ms <= 60_000
    assert signals.ended_by is None
    agent.busy = False
    assert (signals.ended_by, signals.well) == (signal.SIGTERM, True)
    assert not notices.end("told")


def test_a_stop_is_asked_for_again_since_something_else_may_have_had_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = Busy()
    notices, signals = told(agent, on_term="stop")
    signals.take(signal.SIGTERM)
    notices.tell()
    assert len(agent.sent) == 1
    monkeypatch.setattr("worker_shim.agent.notices.AGAIN_S", 0.0)
    notices.tell()
    assert len(agent.sent) == 2


def test_a_stop_that_is_refused_is_waited_for_no_longer_and_is_a_loss() -> None:
    agent = Busy()
    _, signals = told(agent, on_term="stop")
    signals.take(signal.SIGTERM)
    agent.notice_refused(shim_pb2.NoticeRefused(kind=STOP, reason="no time"))
    assert (signals.ended_by, signals.well) == (signal.SIGTERM, False)


def test_a_drain_that_is_refused_is_waited_for_since_the_jobs_are_saved_at_least() -> None:
    agent = Busy()
    _, signals = told(agent)
    signals.take(signal.SIGTERM)
    agent.notice_refused(shim_pb2.NoticeRefused(kind=DRAIN, reason="no nodes"))
    agent.notice_refused(shim_pb2.NoticeRefused(kind=77, reason="of later"))  # type: ignore[arg-type]
    assert signals.ended_by is None


def test_what_is_refused_as_things_stand_is_told_again_until_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = Busy()
    notices, signals = told(agent)
    signals.take(signal.SIGTERM)
    agent.notice_refused(shim_pb2.NoticeRefused(kind=DRAIN, reason="etcd is away", again=True))
    notices.tell()
    assert len(agent.sent) == 1, "not at once"
    monkeypatch.setattr("worker_shim.agent.notices.AGAIN_S", 0.0)
    notices.tell()
    assert len(agent.sent) == 2
    notices.tell()
    assert len(agent.sent) == 2, "nothing speaks against it"
    agent.notice_refused(shim_pb2.NoticeRefused(kind=DRAIN, reason="no time"))
    notices.tell()
    assert len(agent.sent) == 2, "refused for good"
    agent.hellos = 2
    notices.tell()
    assert len(agent.sent) == 3, "another leader may think otherwise"


def test_the_same_refusal_is_logged_once() -> None:
    agent = Busy()
    _, signals = told(agent)
    signals.take(signal.SIGTERM)
    with capture_logs() as logged:
        for reason in ("no nodes", "no nodes", "no time"):
            agent.notice_refused(shim_pb2.NoticeRefused(kind=DRAIN, reason=reason, again=True))
    assert len([each for each in logged if each["event"] == "notice refused"]) == 2


def test_the_checkpoints_of_a_signal_may_have_a_deadline() -> None:
    agent = Busy()
    _, signals = told(agent, save_grace_s=30.0)
    signals.take(signal.SIGUSR1)
    (notice,) = agent.sent
    assert notice.kind == CHECKPOINT
    assert 29_000 < notice.deadline_ms <= 30_000


def test_a_second_signal_while_jobs_are_stopped_is_a_loss() -> None:
    agent = Busy()
    _, signals = told(agent, on_term="stop")
    signals.take(signal.SIGTERM)
    signals.take(signal.SIGTERM)
    assert (signals.ended_by, signals.well) == (signal.SIGTERM, False)


def test_a_clouds_notice_drains_and_the_shim_stays() -> None:
    agent = Busy()
    notices, signals = told(agent, on_term="end")
    notices.node_goes("aws rebalance", "a recommendation", None)
    notices.node_goes("aws", "spot: terminate", 120.0)
    first, second = agent.sent
    assert (first.kind, first.deadline_ms, first.why) == (DRAIN, 0, "a recommendation")
    assert (second.kind, second.why) == (DRAIN, "spot: terminate")
    assert 119_000 < second.deadline_ms <= 120_000
    agent.hellos = 2
    notices.called_off("aws rebalance")
    notices.tell()
    assert [notice.why for notice in agent.sent[2:]] == ["spot: terminate"]
    agent.busy = False
    assert signals.ended_by is None
    signals.take(signal.SIGTERM)
    assert (signals.ended_by, signals.well) == (signal.SIGTERM, False)


def test_a_notice_that_leaves_no_time_is_refused_at_once() -> None:
    agent = Busy()
    notices, _ = told(agent)
    notices.node_goes("aws", "spot: hibernate", 0.0)
    notices.tell()
    assert not agent.sent


def test_the_end_is_told_where_something_lives() -> None:
    agent = Busy()
    notices, _ = told(agent)
    assert notices.end("the shim was told SIGTERM")
    assert [(sent.kind, sent.why) for sent in agent.sent] == [(END, "the shim was told SIGTERM")]
    agent.attached = False
    assert not notices.end("the shim was told SIGTERM")
