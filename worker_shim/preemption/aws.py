"""EC2: spot interruption notices and rebalance recommendations, by IMDSv2.

As the EC2 User Guide has it ("Spot Instance interruption notices", "EC2 instance rebalance
recommendations", "Use the Instance Metadata Service"): `PUT /latest/api/token` gives a session
token for the header `X-aws-ec2-metadata-token`. `meta-data/spot/instance-action` is absent (404)
until the instance is marked, then `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`, about
two minutes before; action is stop, terminate or hibernate, and the latter begins at once.
`meta-data/events/recommendations/rebalance` is absent until there is one, then
`{"noticeTime": "2020-10-27T08:22:00Z"}`, without any promise of when. Looked at every 5 s, as they
recommend.
"""

from __future__ import annotations

import time
from datetime import datetime
from http import HTTPStatus

from coordinator.core.errors import DriverError
from worker_shim.preemption.metadata import Answer, Metadata
from worker_shim.preemption.watching import Going, Heard, read_object

URL = "http://169.254.169.254/latest"
TOKEN_S = 21_600  # the longest that there is
ACTIONS = frozenset({"stop", "terminate", "hibernate"})


class Spot:
    """Both kinds of notices."""

    name = "aws"
    pause_s = 5.0

    def __init__(self, metadata: Metadata, heard: Heard) -> None:
        """Nothing is asked before `look`."""
        self._metadata = metadata
        self._heard = heard
        self._token, self._renew_at = "", 0.0

    async def look(self) -> None:
        """Ask for both; raises DriverError."""
        action = await self._ask("spot/instance-action")
        self._heard.say("aws spot", None if action is None else interruption(action))
        moved = await self._ask("events/recommendations/rebalance")
        self._heard.say("aws rebalance", None if moved is None else recommendation(moved))

    async def _ask(self, path: str) -> str | None:
        answer = await self._get(path)
        if answer.status == HTTPStatus.UNAUTHORIZED:  # the token is over
            self._renew_at = 0.0
            answer = await self._get(path)
        return None if answer.status == HTTPStatus.NOT_FOUND else answer.require(path).text

    async def _get(self, path: str) -> Answer:
        if time.monotonic() >= self._renew_at:
            wanted = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            told = await self._metadata.ask("/api/token", wanted, method="PUT")
            token = told.require("the token").text.strip()
            if not token.isascii() or not token.isprintable() or not token:
                raise DriverError("the metadata service gives no token that can be sent")
            self._token, self._renew_at = token, time.monotonic() + TOKEN_S / 2
        headers = {"X-aws-ec2-metadata-token": self._token}
        return await self._metadata.ask(f"/meta-data/{path}", headers)


def interruption(text: str) -> Going:
    """What `instance-action` says; raises DriverError."""
    fields = read_object(text, "instance-action")
    action = fields.get("action")
    if action not in ACTIONS:
        raise DriverError(f"instance-action has the action {action!r}")
    why = f"spot interruption: {action}"
    if action == "hibernate":
        return Going(f"{why}, which begins at once", within_s=0.0)
    return Going(why, at_unix_s=_unix_s(fields.get("time")))


def recommendation(text: str) -> Going:
    """What `rebalance` says; raises DriverError."""
    _unix_s(read_object(text, "rebalance").get("noticeTime"))
    return Going("the cloud recommends to rebalance: the instance is likely to be interrupted")


def _unix_s(text: object) -> float:
    try:
        when = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise DriverError(f"{text!r} is no time")
    return when.timestamp()
