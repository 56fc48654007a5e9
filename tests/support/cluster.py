"""A coordinator, fake shims and a client in one `async with`, with real gRPC between them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from coordinator.api.client import OperatorClient
from coordinator.api.values import ActionEvent
from coordinator.core.errors import AllstopError
from coordinator.core.policy import Policy
from coordinator.link.options import Keepalive
from coordinator.server.testing import RunningCoordinator, running_coordinator
from coordinator.store.port import Store
from tests.support.fake_shim import Behaviour, FakeShim, attached

QUICK = Policy(
    attempt_s=20.0,
    admit_s=5.0,
    hold_s=2.0,
    park_s=2.0,
    dump_s=2.0,
    resume_s=2.0,
    persist_s=2.0,
    commit_s=5.0,
    stop_s=2.0,
    undo_s=1.0,
    margin_s=1.0,
    restore_s=20.0,
    fetch_s=2.0,
    clear_s=2.0,
    rebuild_s=2.0,
    release_s=2.0,
)


@dataclass(frozen=True)
class Cluster:
    """What a test acts on."""

    coordinator: RunningCoordinator
    shims: list[FakeShim]
    client: OperatorClient

    @property
    def address(self) -> str:
        """Where the coordinator is."""
        return self.coordinator.address


@asynccontextmanager
async def cluster(
    workers: int = 2,
    *,
    spares: int = 0,
    ranks: int = 1,
    behaviours: dict[int, Behaviour] | None = None,
    policy: Policy = QUICK,
    store: Store | None = None,
    epoch: int = 0,
    keepalive: Keepalive | None = None,
    gpus: int = 0,
    unix: Callable[[], float] = time.time,
) -> AsyncIterator[Cluster]:
    """Job `llm` on node-0 … , then spares; attached and known to the coordinator."""
    async with (
        running_coordinator(
            store=store, epoch=epoch, policy=policy, keepalive=keepalive, unix=unix
        ) as coordinator,
        attached(
            coordinator.address,
            workers,
            spares=spares,
            ranks=ranks,
            behaviours=behaviours,
            gpus=gpus,
        ) as shims,
        OperatorClient([coordinator.address], rejoin_deadline_s=5.0) as client,
    ):
        yield Cluster(coordinator, shims, client)


@dataclass(frozen=True)
class Followed:
    """How an action went: all events, and the error at its end."""

    events: list[ActionEvent]
    error: AllstopError | None

    @property
    def last(self) -> ActionEvent:
        """The last event."""
        return self.events[-1]


async def follow(events: AsyncGenerator[ActionEvent, None]) -> Followed:
    """Hear an action out."""
    heard: list[ActionEvent] = []
    try:
        async for event in events:
            heard.append(event)
    except AllstopError as error:
        return Followed(heard, error)
    return Followed(heard, None)
