"""What the shim was told about its node: it is about to go, or its jobs are to be saved.

It passes that on, anew to each leader, and stays until the node is empty or the time is up. Of a
cloud's notice it stays too: the machine is ended by the cloud, not by us.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field

import structlog
from allstop.v1 import shim_pb2

from worker_shim.agent.agent import Agent

log = structlog.get_logger(__name__)

LOOK_S = 1.0
SAVE_S = 600.0  # how long a wish for a checkpoint waits for a coordinator
STAND_S = 3600.0  # how long a notice without a deadline is told to new leaders
AGAIN_S = 2.0  # then what was refused as things stand is told again, and what is to be stopped
TIME_S_MAX = 7 * 24 * 3600.0
KINDS = {"drain": shim_pb2.NOTICE_KIND_DRAIN, "stop": shim_pb2.NOTICE_KIND_STOP}


@dataclass
class _Given:
    """One notice, until it has come to an end."""

    kind: int
    until: float  # monotonic
    deadline: bool  # whether that is one for the coordinator too
    why: str
    told: int = 0  # the Hello after which it was told last
    told_at: float = float("-inf")
    refused: bool = False  # by the leader that heard it last
    again: bool = False  # it says so of how things stand: told again it may be taken
    reason: str = ""  # that the leader gave


@dataclass
class Notices:
    """What signals and clouds mean to this shim; everything on the running loop."""

    agent: Agent
    on_term: str = "end"  # or drain, stop: what SIGTERM asks for before the end
    grace_s: float = 120.0
    save_grace_s: float = 0.0  # for the checkpoints that SIGUSR1 asks for; 0: no deadline
    _given: dict[str, _Given] = field(default_factory=dict)  # by who told it
    _leaving: _Given | None = None  # SIGTERM's

    def __post_init__(self) -> None:
        self.agent.notice_refused = self.refused

    def take(self, number: int) -> bool:
        """Take a signal; False where it ends the shim at once: a second one always does."""
        name = signal.Signals(number).name
        if number == signal.SIGUSR1:
            kind = shim_pb2.NOTICE_KIND_CHECKPOINT
            within_s, deadline = self.save_grace_s or SAVE_S, self.save_grace_s > 0
            self._give(name, _told(kind, within_s, f"its shim was told {name}", deadline=deadline))
            return True
        asked = KINDS.get(self.on_term)
        if number != signal.SIGTERM or asked is None or self._leaving or not self.agent.busy:
            return False
        self._leaving = _told(asked, self.grace_s, f"its shim was told {name}", deadline=True)
        self._give(name, self._leaving)
        return True

    def node_goes(self, source: str, why: str, left_s: float | None) -> None:
        """A cloud says that the machine goes, in `left_s` where it says when; the newest counts."""
        if left_s is not None and left_s <= 0:
            log.warning("notice refused", source=source, why=why, reason="there is no time left")
            return
        within_s = STAND_S if left_s is None else min(left_s, TIME_S_MAX)
        kind = shim_pb2.NOTICE_KIND_DRAIN
        self._give(source, _told(kind, within_s, why, deadline=left_s is not None))

    def called_off(self, source: str) -> None:
        """A cloud says that the machine stays; a drain that has begun is for `allstop undrain`."""
        if self._given.pop(source, None) is not None:
            log.warning("notice called off", source=source)

    def refused(self, message: shim_pb2.NoticeRefused) -> None:
        """The leader cannot do what it was told of, and says why."""
        kind = shim_pb2.NoticeKind.Name(message.kind) if message.kind in _KNOWN else message.kind
        about = [given for given in self._given.values() if given.kind == message.kind]
        if not about or any(given.reason != message.reason for given in about):
            log.warning("notice refused", kind=kind, reason=message.reason, again=message.again)
        for given in about:
            given.refused, given.again, given.reason = True, message.again, message.reason

    @property
    def empty(self) -> bool:
        """Whether nothing runs on the node."""
        return not self.agent.busy

    @property
    def draining(self) -> bool:
        """Whether the shim ends once its node is empty."""
        return self._leaving is not None

    @property
    def over(self) -> bool:
        """Whether it is empty, or nothing more comes of waiting for that."""
        given = self._leaving
        if given is None:
            return False
        in_vain = given.refused and not given.again and given.kind == shim_pb2.NOTICE_KIND_STOP
        return in_vain or not self.agent.busy or time.monotonic() >= given.until

    @property
    def stopped(self) -> bool:
        """Whether its jobs were stopped as SIGTERM asked for: nothing is lost by its end."""
        stop = self._leaving is not None and self._leaving.kind == shim_pb2.NOTICE_KIND_STOP
        return stop and not self.agent.busy

    def end(self, why: str) -> bool:
        """The shim ends now; what lives here has not failed. False: there is nobody to tell."""
        if not self.agent.busy:
            return False
        kind = shim_pb2.NOTICE_KIND_END
        return self.agent.send(_message(kind, 0, why))

    async def run(self) -> None:
        """Tell each leader, for as long as the shim lives."""
        while True:
            self.tell()
            await self.agent.change(at_most_s=LOOK_S)

    def tell(self) -> None:
        """Tell what this leader has not heard; one checkpoint is asked for once."""
        now = time.monotonic()
        for source, given in list(self._given.items()):
            left_s = given.until - now
            if left_s > 0 and self.agent.hellos and self._news(given, now):
                deadline_ms = max(1, round(left_s * 1000)) if given.deadline else 0
                if self.agent.send(_message(given.kind, deadline_ms, given.why)):
                    given.told, given.told_at = self.agent.hellos, now
                    given.refused = given.again = False
            once = given.kind == shim_pb2.NOTICE_KIND_CHECKPOINT
            if left_s <= 0 or (once and given.told):
                del self._given[source]

    def _news(self, given: _Given, now: float) -> bool:
        """Whether the leader is to hear of it now."""
        stop = given.kind == shim_pb2.NOTICE_KIND_STOP and not given.refused
        again = (stop or given.again) and now - given.told_at >= AGAIN_S
        return again or given.told != self.agent.hellos

    def _give(self, source: str, given: _Given) -> None:
        log.warning("told", source=source, why=given.why, stays_s=given.until - time.monotonic())
        self._given[source] = given
        self.tell()


_KNOWN = frozenset(shim_pb2.NoticeKind.values())


def _told(kind: int, within_s: float, why: str, *, deadline: bool) -> _Given:
    return _Given(kind, time.monotonic() + within_s, deadline, why)


def _message(kind: int, deadline_ms: int, why: str) -> shim_pb2.ShimMessage:
    notice = shim_pb2.NoticeGiven(kind=kind, deadline_ms=deadline_ms, why=why)  # type: ignore[arg-type]
    return shim_pb2.ShimMessage(notice=notice)


class Told:
    """The first signal that ends the shim; those that do not are notices."""

    def __init__(self, notices: Notices) -> None:
        """`notices` take what does not end the shim at once."""
        self._notices = notices
        self._number: int | None = None

    def take(self, number: int) -> None:
        """A signal came."""
        if not self._notices.take(number) and self._number is None:
            self._number = number

    @property
    def ended_by(self) -> int | None:
        """The signal that ends the shim now; None: nothing does."""
        if self._number is None and self._notices.over:
            return signal.SIGTERM
        return self._number

    @property
    def well(self) -> bool:
        """Whether that is no loss: its jobs were stopped first, as it was started to."""
        return self._number is None and self._notices.stopped
