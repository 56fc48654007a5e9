"""The loop of a leadership: events go to the core, its commands become effects.

One event at a time, in the order of the inbox; commands are carried out in the order the core gave
them. Nothing here waits for an effect: what an effect leads to comes back as an event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from coordinator.core import commands, drain_events, events
from coordinator.core.control import Control
from coordinator.core.errors import BugError
from coordinator.server.inbox import Inbox

log = structlog.get_logger(__name__)

BATCH_MAX = 256
IDLE_WAKEUP_S = 1.0


class Orders(Protocol):
    """Where orders go: the hub of the shims' streams."""

    def order(self, order: commands.SendOrder) -> bool:
        """Send an order; False when the node has no stream."""

    def fence(self, fence: commands.FenceWorkers) -> bool:
        """Tell a shim which of its workers may not go on."""

    def admit(self, admission: commands.AdmitWorker) -> bool:
        """Tell a shim in which incarnation its worker is the job's."""

    def defer(self, deferral: commands.DeferWorker) -> bool:
        """Tell a shim why its worker is not the job's yet."""

    def stay(self, stay: commands.StayOn) -> bool:
        """Tell a shim not to leave yet."""

    def refuse_notice(self, refusal: commands.RefuseNotice) -> bool:
        """Tell a shim that what it was told asks for more than can be done."""

    def task(self, task: commands.SendTask) -> bool:
        """Have a shim look at or clean the image store that it sees."""


class Writes(Protocol):
    """Where records go: the store, one write of a job after another."""

    def write(self, command: commands.Command) -> None:
        """Start a write; its answer comes as an event."""


class Listeners(Protocol):
    """Who watches attempts and restores."""

    def announce(self, announce: commands.Announce) -> None:
        """Pass an announcement on."""

    def refuse(self, refuse: commands.Refuse) -> None:
        """Tell the asker that its request is refused."""

    def ask_restore(self, ask: commands.AskRestore) -> None:
        """Hand in a request for a restore, with all that it needs, or say what could not be had."""

    def ask_drain(self, ask: commands.AskDrain) -> None:
        """Hand in a request that a node be drained, with all that it needs."""

    def ask_checkpoint(self, ask: commands.AskCheckpoint) -> None:
        """Hand in a request for a checkpoint that is due, with an id and the time."""


class ControlLoop:
    """Runs one Control until it is cancelled or the core breaks one of its own rules."""

    def __init__(
        self,
        control: Control,
        inbox: Inbox,
        orders: Orders,
        writes: Writes,
        listeners: Listeners,
        *,
        check: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`check` raises Fenced once the right to lead has ended, by our own clock.

        `clock` gives monotonic seconds; everything is used on the running loop only.
        """
        self._control = control
        self._inbox = inbox
        self._listeners = listeners
        self._check = check
        self._clock = clock
        self._effects: dict[type[commands.Command], Callable[..., object]] = {
            commands.SendOrder: orders.order,
            commands.FenceWorkers: orders.fence,
            commands.AdmitWorker: orders.admit,
            commands.DeferWorker: orders.defer,
            commands.StayOn: orders.stay,
            commands.RefuseNotice: orders.refuse_notice,
            commands.SendTask: orders.task,
            commands.BeginRun: writes.write,
            commands.PutAttempt: writes.write,
            commands.CommitSnapshot: writes.write,
            commands.AdmitRestore: writes.write,
            commands.PutRestore: writes.write,
            commands.MarkSnapshots: writes.write,
            commands.WeighAttempts: writes.write,
            commands.ForgetSnapshots: writes.write,
            commands.Announce: listeners.announce,
            commands.Refuse: listeners.refuse,
            commands.AskCheckpoint: listeners.ask_checkpoint,
            commands.AskRestore: listeners.ask_restore,
            commands.AskDrain: listeners.ask_drain,
            commands.PutDrain: writes.write,
            commands.KeepHistory: writes.write,
            commands.KeepRecovery: writes.write,
        }

    def carry_out(self, decided: Sequence[commands.Command]) -> None:
        """Start the effects of what the core decided, in order.

        Raises Fenced, with nothing sent, when this leader may have been replaced meanwhile: a
        process that was stopped wakes up here.
        """
        if decided:
            self._check()
        for command in decided:
            self._effects[type(command)](command)

    def _handle(self, event: events.Event) -> None:
        try:
            decided = self._control.handle(event, self._clock())
        except BugError as error:  # the core's state is as it was before the event
            log.error(
                "event refused by the core", event_type=type(event).__name__, error=str(error)
            )
            self._blame(event, error)
            return
        self.carry_out(decided)

    def _blame(self, event: events.Event, error: BugError) -> None:
        """A request that met a bug must not be left waiting for an answer."""
        from coordinator.core.failures import failure_of

        if isinstance(event, events.CheckpointRequested):
            action = event.attempt
        elif isinstance(event, events.RestoreRequested):
            action = event.restore
        elif isinstance(event, events.DeletionRequested | events.CollectionRequested):
            action = event.cleaning
        elif isinstance(event, drain_events.DrainRequested | drain_events.UndrainRequested):
            action = event.request
        else:
            return
        self._listeners.refuse(commands.Refuse(action, failure_of(error)))

    def _patience_s(self) -> float:
        """How long to wait for an event before the clock alone is news."""
        wakeup = self._control.next_wakeup()
        if wakeup is None:
            return IDLE_WAKEUP_S
        return min(IDLE_WAKEUP_S, max(0.0, wakeup - self._clock()))

    async def run(self) -> None:
        """Handle events until cancelled; an exception that leaves here is a defect of the core."""
        while True:
            taken = await self._inbox.take(BATCH_MAX, self._patience_s())
            for event in taken:
                self._handle(event)
            wakeup = self._control.next_wakeup()
            if wakeup is not None and wakeup <= self._clock():
                self._handle(events.TimePassed())
            await asyncio.sleep(0)  # let streams and stores run between two batches
