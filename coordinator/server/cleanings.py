"""What the writer does for cleanings: mark, weigh, forget; see `core/cleaning`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from coordinator.core import commands, events
from coordinator.core.errors import AllstopError, Fenced
from coordinator.core.failures import failure_of
from coordinator.core.model import Failure
from coordinator.store.port import Store

Answer = TypeVar("Answer")
CLEANING = commands.MarkSnapshots | commands.WeighAttempts | commands.ForgetSnapshots
FORGET_TRIES = 5  # to forget twice changes nothing


class Puts(Protocol):
    """Puts something, and again where nobody knows whether it arrived."""

    def __call__(
        self, put: Callable[[], Awaitable[None]], job: str, what: str, *, tries: int | None
    ) -> Awaitable[None]:
        """Without a number of `tries` it ends with the leadership."""


async def mark(store: Store, put: Puts, command: commands.MarkSnapshots) -> events.Event:
    """Mark one after another; what may have been marked is asked for until that is known."""
    marked: list[str] = []
    refused: list[Failure] = []
    for name in command.snapshots:
        marking = partial(
            store.mark_deleting,
            *(command.job, name, command.why),
            latest_too=command.latest_too,
            users=command.users,
        )
        try:
            await put(marking, command.job, f"{name} is being deleted", tries=None)
            marked.append(name)
        except Fenced:
            raise
        except AllstopError as error:
            refused.append(failure_of(error.at(job=command.job)))
    return events.SnapshotsMarked(command.cleaning, tuple(marked), tuple(refused))


async def weigh(store: Store, command: commands.WeighAttempts) -> events.Event:
    """Which attempts are over; a read, so it may be cut short."""
    weighed = await store.weigh(command.job, command.attempts, command.deleting)
    return events.AttemptsWeighed(command.cleaning, weighed.dead, weighed.unknown, weighed.keep)


async def forget(store: Store, put: Puts, command: commands.ForgetSnapshots) -> events.Event:
    """Forget one after another."""
    for name in command.snapshots:
        forgetting = partial(store.forget_snapshot, command.job, name)
        await put(forgetting, command.job, f"{name} is deleted", tries=FORGET_TRIES)
    return events.SnapshotsForgotten(command.cleaning)
