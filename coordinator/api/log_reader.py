"""Reading the output of a job's workers from the operator's side: how far each has been read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from coordinator.api.client import REJOIN_DEADLINE_S, OperatorClient
from coordinator.core.errors import AllstopError, LinkError
from coordinator.core.logs import PLACES_MAX, LogPart, LogPlace

POLL_S = 0.5
ONCE_BYTES_MAX = 8 << 20  # of one output; who writes faster than we read would keep us for ever

Key = tuple[int, str]  # worker, source


class LogReader:
    """Asks again and again with the places of the last answers; in one event loop."""

    def __init__(
        self,
        client: OperatorClient,
        job: str,
        *,
        worker: int | None = None,
        rank: int | None = None,
        lines: int,
        poll_s: float = POLL_S,
    ) -> None:
        """All workers, one of them, or one rank; from its last `lines` lines on."""
        self._client = client
        self._job = job
        self._lines = lines
        self._poll_s = poll_s
        self._places: dict[Key, LogPlace] = {}
        if rank is not None:
            # which worker it is of is the coordinator's to say
            self._places[0, ""] = LogPlace(0, of_rank=True, rank=rank, lines=lines)
        elif worker is not None:
            self._places[worker, ""] = LogPlace(worker, lines=lines)

    async def read(self) -> AsyncGenerator[LogPart, None]:
        """All that is there now; raises AllstopError."""
        read_bytes: dict[Key, int] = {}
        due = set(self._places)
        begun = bool(due)
        while due or not begun:
            parts = await (self._ask(due) if begun else self._begin())
            begun = True
            due = set()
            for part in parts:
                key = part.worker, part.source
                read_bytes[key] = read_bytes.get(key, 0) + len(part.data)
                if part.more and read_bytes[key] < ONCE_BYTES_MAX:
                    due.add(key)
                yield part

    async def follow(
        self, waiting: Callable[[AllstopError], None], *, deadline_s: float = REJOIN_DEADLINE_S
    ) -> AsyncGenerator[LogPart, None]:
        """All that is there, and all that comes, until it is closed.

        `waiting` is told when no coordinator answers; raises LinkError when none does for
        `deadline_s`.
        """
        loop = asyncio.get_running_loop()
        give_up_at = 0.0
        while True:
            try:
                async for part in self.read():
                    yield part
                give_up_at = 0.0
            except LinkError as error:
                if not give_up_at:
                    if not self._places:
                        raise  # nothing was read yet
                    give_up_at = loop.time() + deadline_s
                    waiting(error)
                elif loop.time() >= give_up_at:
                    raise
            await asyncio.sleep(self._poll_s * max(1, len(self._places) // PLACES_MAX))

    async def _begin(self) -> list[LogPart]:
        """The last lines of all workers, however many there are."""
        parts: list[LogPart] = []
        first: int | None = 0
        while first is not None:
            found, following = await self._client.read_logs(
                self._job, first=first, lines=self._lines
            )
            parts += [self._taken(part, LogPlace(part.worker, lines=self._lines)) for part in found]
            first = following or None
        return parts

    async def _ask(self, due: set[Key]) -> list[LogPart]:
        """What follows these places."""
        parts: list[LogPart] = []
        keys = [key for key in self._places if key in due]
        for at in range(0, len(keys), PLACES_MAX):
            asked = [self._places[key] for key in keys[at : at + PLACES_MAX]]
            found, _ = await self._client.read_logs(self._job, asked)
            parts += [self._taken(part, _asked_for(part, asked)) for part in found]
        return parts

    def _taken(self, part: LogPart, asked: LogPlace) -> LogPart:
        """Remember where the next piece of this output begins."""
        if not asked.source:
            self._places.pop((asked.worker, ""), None)
        self._places[part.worker, asked.source if part.failure else part.source] = (
            replace(asked, worker=part.worker)
            if part.failure is not None
            else replace(
                asked, worker=part.worker, source=part.source, file=part.file, offset=part.next
            )
        )
        return part


def _asked_for(part: LogPart, asked: list[LogPlace]) -> LogPlace:
    """The place that a part answers; one of a rank was asked for with any worker."""
    for place in asked:
        if (place.of_rank or place.worker == part.worker) and place.source in ("", part.source):
            return place
    return LogPlace(part.worker, source=part.source)
