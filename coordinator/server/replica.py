"""One replica between elections: a candidate, the leader for a while, a candidate again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from coordinator.core.errors import AllstopError, BugError, Fenced, StoreError
from coordinator.core.health_rules import HealthRules
from coordinator.core.policy import Policy
from coordinator.link.uplink import LocalUplink
from coordinator.server.reign import Reign
from coordinator.server.serving import Seat
from coordinator.store.election import Election
from coordinator.store.election import Leadership as Right
from coordinator.store.kv import KeyValue
from coordinator.store.records import Records
from coordinator.telemetry.observer import Telemetry

log = structlog.get_logger(__name__)

CAMPAIGN_PAUSE_S = 0.5
LAY_DOWN_S = 15.0  # a worker is let go within seconds, but its criu is waited for


class Replica:
    """Campaigns, reigns, and campaigns again; ends when cancelled or by a defect."""

    def __init__(
        self,
        name: str,
        election: Election,
        kv: KeyValue,
        seat: Seat,
        *,
        policy: Policy,
        health: HealthRules | None = None,
        prefix: str = "/allstop",
        on_leading: Callable[[int], None] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`on_leading` gets the epoch each time this replica leads."""
        self._name = name
        self._election = election
        self._kv = kv
        self._seat = seat
        self._policy = policy
        self._health = health
        self._prefix = prefix
        self._on_leading = on_leading
        self._telemetry = telemetry or Telemetry()

    async def run(self) -> None:
        """Raises BugError when a reign ended by a defect; everything else is tried again."""
        while True:
            self._seat.empty = f"{self._name} is a candidate"
            right = await self._election.campaign()
            try:
                why = await self._reign(right)
            finally:
                self._seat.reign = None
                await right.resign()
            if isinstance(why, BugError):
                raise why
            log.warning("not leading any more", epoch=right.epoch, reason=str(why))
            await asyncio.sleep(CAMPAIGN_PAUSE_S)

    async def lay_down(self) -> None:
        """Before an orderly end: let go whoever is held, since nobody may lead for a long time."""
        reign = self._seat.reign
        if reign is not None:
            self._seat.ending = f"{self._name} was told to end"
            await reign.lay_down(self._seat.ending, deadline_s=LAY_DOWN_S)

    async def _reign(self, right: Right) -> AllstopError:
        structlog.contextvars.bind_contextvars(epoch=right.epoch)
        reign = Reign(
            epoch=right.epoch,
            coordinator=self._name,
            store=Records(self._kv, right, self._prefix),
            policy=self._policy,
            health=self._health,
            check=right.check,
            successor=True,
            telemetry=self._telemetry,
        )
        right.on_lost(lambda reason: reign.stop(Fenced(f"epoch {right.epoch} ended: {reason}")))
        try:
            await reign.begin()
            self._seat.reign = reign
            self._seat.carrier.follow(LocalUplink(self._seat.carrier, reign.hub))
            if self._on_leading is not None:
                self._on_leading(right.epoch)
            return await reign.ended()
        except (StoreError, Fenced) as error:
            return error
        finally:
            self._seat.reign = None
            await reign.close()
