"""Looking at a cloud's notices for as long as the shim lives, whatever the service does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from coordinator.core.errors import DriverError

log = structlog.get_logger(__name__)

PAUSE_S_MAX = 30.0  # between two looks at a service that is not there


class Ears(Protocol):
    """Who is told; the shim's notices."""

    def node_goes(self, source: str, why: str, left_s: float | None) -> None:
        """The machine goes, in `left_s` where that is known."""

    def called_off(self, source: str) -> None:
        """It stays after all."""

    @property
    def empty(self) -> bool:
        """Whether nothing runs on it."""


@dataclass(frozen=True)
class Going:
    """One thing that a cloud says of the machine's end."""

    why: str
    at_unix_s: float | None = None  # when it goes; None: nobody knows
    within_s: float | None = None  # or in how long, from when that is seen


@dataclass
class Heard:
    """What a cloud says at present, by source: each is passed on once, and when it changes."""

    ears: Ears
    _now: dict[str, Going] = field(default_factory=dict)

    def say(self, source: str, going: Going | None) -> None:
        """At one look the cloud says this of a source; None: nothing."""
        before = self._now.pop(source, None)
        if going is None:
            if before is not None:
                self.ears.called_off(source)
            return
        self._now[source] = going
        if going != before:
            left_s = going.within_s
            if going.at_unix_s is not None:
                left_s = going.at_unix_s - time.time()
            self.ears.node_goes(source, going.why, left_s)

    @property
    def sources(self) -> tuple[str, ...]:
        """Those that say something."""
        return tuple(self._now)


class Source(Protocol):
    """One thing to look at."""

    name: str
    pause_s: float  # between two looks

    async def look(self) -> None:
        """Ask, and pass on what is new; raises DriverError for what cannot be had or read."""


async def watch(source: Source) -> None:
    """Look again and again until cancelled; a service that is away is told of once."""
    pause_s, trouble = source.pause_s, ""
    while True:
        try:
            await source.look()
            if trouble:
                log.info("the metadata service answers", source=source.name)
            pause_s, trouble = source.pause_s, ""
        except DriverError as error:
            if error.what != trouble:
                log.warning("no notices can be read", source=source.name, why=error.what)
            pause_s, trouble = min(PAUSE_S_MAX, pause_s * 2), error.what
        except Exception:  # whatever it is, the worker must not die of it
            log.exception("no notices can be read", source=source.name)
            pause_s = PAUSE_S_MAX
        await asyncio.sleep(pause_s)


def read_object(text: str, what: str) -> Mapping[str, Any]:
    """A JSON object; raises DriverError for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DriverError(f"{what} is no JSON object: {text[:60]!r}")
    return found
