"""What signals mean to a shim: the end, a node to be emptied first, a checkpoint."""

from __future__ import annotations

import signal
import time
from typing import Any, cast

from allstop.v1 import shim_pb2

from worker_shim.agent.agent import Agent
from worker_shim.agent.notices import Notices, Told

DRAIN, CHECKPOINT = shim_pb2.NOTICE_KIND_DRAIN, shim_pb2.NOTICE_KIND_CHECKPOINT


class Busy:
    """As much of an agent as a notice wants to know."""

    def __init__(self) -> None:
        self.busy, self.hellos, self.attached = True, 1, True
        self.sent: list[Any] = []

    def send(self, message: shim_pb2.ShimMessage) -> bool:
        """A stream that is there or not."""
        if self.attached:
            self.sent.append(message.notice)
        return self.attached


def told(agent: Busy, *, drains: bool = True, grace_s: float = 60.0) -> tuple[Notices, Told]:
    notices = Notices(cast(Agent, agent), drains=drains, grace_s=grace_s)
    return notices, Told(notices)


def test_without_on_term_it_ends_at_once() -> None:
    agent = Busy()
    _, signals = told(agent, drains=False)
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
    notices, signals = told(agent, drains=False)
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
