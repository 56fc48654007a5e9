"""What the shim was told about its node: it is about to go, or its jobs are to be saved.

It passes that on, anew to each leader, and stays until the node is empty or the time is up.
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


@dataclass
class _Given:
    """One notice, until it has come to an end."""

    kind: int
    until: float  # monotonic
    deadline: bool  # whether that is one for the coordinator too
    why: str
    told: int = 0  # the Hello after which it was told last


@dataclass
class Notices:
    """What signals mean to this shim; everything on the running loop."""

    agent: Agent
    drains: bool = False  # SIGTERM: the node is to be emptied first
    grace_s: float = 120.0
    _given: dict[int, _Given] = field(default_factory=dict)

    def take(self, number: int) -> bool:
        """Take a signal; False where it ends the shim at once: a second one always does."""
        if number == signal.SIGUSR1:
            self._give(shim_pb2.NOTICE_KIND_CHECKPOINT, SAVE_S, number, deadline=False)
            return True
        if number != signal.SIGTERM or not self.drains or self.draining or not self.agent.busy:
            return False
        self._give(shim_pb2.NOTICE_KIND_DRAIN, self.grace_s, number, deadline=True)
        return True

    @property
    def draining(self) -> bool:
        """Whether the node is to be emptied."""
        return shim_pb2.NOTICE_KIND_DRAIN in self._given

    @property
    def over(self) -> bool:
        """Whether it is empty, or the time for that is up."""
        given = self._given.get(shim_pb2.NOTICE_KIND_DRAIN)
        return given is not None and (not self.agent.busy or time.monotonic() >= given.until)

    def _give(self, kind: int, within_s: float, number: int, *, deadline: bool) -> None:
        name = signal.Signals(number).name
        log.warning("told", signal=name, stays_s=within_s if deadline else None)
        why = f"its shim was told {name}"
        self._given[kind] = _Given(kind, time.monotonic() + within_s, deadline, why)
        self.tell()

    async def run(self) -> None:
        """Tell each leader, for as long as the shim lives."""
        while True:
            self.tell()
            await self.agent.change(at_most_s=LOOK_S)

    def tell(self) -> None:
        """Tell what this leader has not heard; one checkpoint is asked for once."""
        now = time.monotonic()
        for given in list(self._given.values()):
            left_s = given.until - now
            if left_s > 0 and self.agent.hellos and given.told != self.agent.hellos:
                notice = shim_pb2.NoticeGiven(
                    kind=given.kind,  # type: ignore[arg-type]
                    deadline_ms=round(left_s * 1000) if given.deadline else 0,
                    why=given.why,
                )
                if self.agent.send(shim_pb2.ShimMessage(notice=notice)):
                    given.told = self.agent.hellos
            once = given.kind == shim_pb2.NOTICE_KIND_CHECKPOINT
            if once and (given.told or left_s <= 0):
                del self._given[given.kind]


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
