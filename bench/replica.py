"""The coordinator of a measurement: a process of its own that also says what it has cost.

`python -m bench.replica '{"etcd": [...], ...}' [PROFILE]` runs what `allstop coordinator` runs;
with PROFILE it writes a profile of its event loop's thread there each time it is asked to.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Self

import structlog

from bench.children import children_of, open_files_max, resident_bytes, serve
from bench.links import PATIENT as KEEPALIVE
from bench.links import own_tls
from coordinator.server.reign import Reign
from coordinator.server.run import CoordinatorOptions, run_coordinator

# Deadlines that no machine is too slow for: what is measured is how long it takes.
PATIENT = {
    **dict.fromkeys(("attempt_s", "persist_s"), 600.0),
    **dict.fromkeys(("admit_s", "hold_s", "park_s", "dump_s", "resume_s", "commit_s"), 120.0),
}
LEASE_S = 60.0


class Watched:
    """The coordinator of this process, seen from inside."""

    def __init__(self, profile: str) -> None:
        self.ready = asyncio.Event()
        self.addresses: tuple[str, ...] = ()
        self._reign: Reign | None = None
        self._profile = cProfile.Profile() if profile else None
        self._profile_file = profile

    def remember(self, reign: Reign) -> None:
        """It leads now."""
        self._reign = reign
        self.ready.set()

    async def leading(self) -> Mapping[str, Any]:
        """Wait until it leads; where it listens."""
        await self.ready.wait()
        return {"addresses": self.addresses}

    async def look(self) -> Mapping[str, Any]:
        """What it and its children have cost so far."""
        pids = [os.getpid(), *children_of(os.getpid())]
        assert self._reign is not None, "asked before it leads"
        return {
            "resident_bytes": sum(resident_bytes(pid) for pid in pids),
            "pids": pids,
            "messages": self._reign.hub.messages_handled,
        }

    async def settle(self) -> Mapping[str, Any]:
        """Everybody is there: collect what attaching has left."""
        gc.collect()
        return {}

    async def profile(self, *, on: bool) -> Mapping[str, Any]:
        """Begin or end a profile."""
        if self._profile is not None and on:
            self._profile.enable()
        elif self._profile is not None:
            self._profile.disable()
            self._profile.dump_stats(self._profile_file)
        return {}


def _remembering(watched: Watched) -> None:
    begin = Reign.begin

    async def begun(self: Reign) -> Self:
        await begin(self)
        watched.remember(self)
        return self  # type: ignore[return-value]

    Reign.begin = begun  # type: ignore[method-assign, assignment]


def _options(given: dict[str, Any], watched: Watched) -> CoordinatorOptions:
    def serving(addresses: Any) -> None:
        watched.addresses = tuple(addresses)

    return CoordinatorOptions(
        listen=(given["listen"],),
        etcd=tuple(given["etcd"]),
        policy=PATIENT,
        lease_s=LEASE_S,
        keepalive=KEEPALIVE,
        node_lease_s=LEASE_S,
        on_serving=serving,
        fronts=given["fronts"],
        tls=own_tls(),
        any_role=True,
    )


async def main() -> None:
    """Run until the input ends."""
    open_files_max()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),  # stdout has the answers
    )
    watched = Watched(sys.argv[2] if len(sys.argv) > 2 else "")
    _remembering(watched)
    options = _options(json.loads(sys.argv[1]), watched)
    asked = {
        "leading": watched.leading,
        "look": watched.look,
        "settle": watched.settle,
        "profile": watched.profile,
    }

    async def answering() -> None:
        await serve(asked)
        os.kill(os.getpid(), signal.SIGTERM)

    task = asyncio.create_task(answering())
    await run_coordinator(options)
    task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
