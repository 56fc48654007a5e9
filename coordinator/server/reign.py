"""All that exists only while this coordinator leads: core, streams, watchers, writes, the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Self

import structlog

from coordinator.api import drains, reading
from coordinator.api.desk import Desk
from coordinator.api.identity import attempt_id
from coordinator.api.watchers import Watchers
from coordinator.core import commands, drain_events, events
from coordinator.core.control import Control
from coordinator.core.errors import AllstopError, BugError, LinkError, NoLeader
from coordinator.core.failures import failure_of
from coordinator.core.health_rules import HealthRules
from coordinator.core.model import JobRecord, NodeFacts
from coordinator.core.policy import Policy
from coordinator.core.view import JobView
from coordinator.link.hub import Hub
from coordinator.server.inbox import Inbox
from coordinator.server.loop import ControlLoop
from coordinator.server.writer import Writer
from coordinator.store.port import Store
from coordinator.telemetry.metrics import JobNow, Now
from coordinator.telemetry.observer import Observer, Telemetry

log = structlog.get_logger(__name__)

POLL_S = 0.02
GATHER_S = 5.0  # for a job's shims to come to a new leader, before a request is refused for them


class Reign:
    """The rule of one coordinator in one epoch, from the election to whatever ends it.

    `begin` takes over what the store holds; `ended` is set when the store, the core or the caller
    ends the epoch; `close` leaves no task behind. Nothing is sent once `check` has refused; what
    was on the wire may still happen: shims refuse it once they have heard a newer epoch, and the
    store compares the epoch. The shims' streams are not the reign's: a carrier has them.
    """

    def __init__(
        self,
        *,
        epoch: int,
        coordinator: str,
        store: Store,
        policy: Policy | None = None,
        health: HealthRules | None = None,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
        successor: bool = False,
        telemetry: Telemetry | None = None,
    ) -> None:
        """Nothing runs before `begin`. `check` raises Fenced once the right to lead has ended.

        `successor`: there may have been a leader before, with jobs that have no record yet.
        """
        self.epoch = epoch
        self.store = store
        self.control = Control(epoch=epoch, coordinator=coordinator, policy=policy, health=health)
        self.inbox = Inbox()
        self.watchers = Watchers()
        self.writer = Writer(store, self.inbox.tell, self.stop, self._job)
        self._observer = Observer(telemetry or Telemetry(), self.writer.keep)
        self.hub = Hub(
            epoch,
            coordinator,
            self.tell,
            progressed=self.watchers.progressed,
            answered=self._observer.answered,
            check=check,
            behind=lambda: self.inbox.behind,
        )
        self.desk = Desk(
            self.control, store, self.hub, self.watchers, self.tell, unix,
            gathered=self.gathered, settled=self.settled,
        )  # fmt: skip
        self._loop = ControlLoop(
            self.control,
            self.inbox,
            self.hub,
            self.writer,
            self,
            check=check,
            clock=clock,
        )
        self._clock = clock
        self._published: dict[str, NodeFacts] = {}
        self._successor = successor
        self._inherited: frozenset[str] = frozenset()  # jobs that an earlier leader has recorded
        self._began_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._why: AllstopError | None = None
        self._stopped = asyncio.Event()

    async def begin(self) -> Self:
        """Read the store, let the core adopt it, start the loop; raises what the store raises."""
        loaded = await self.store.load()
        for damage in loaded.damaged:
            log.error("damaged value in the store", error=str(damage))
        self._loop.carry_out(
            self.control.adopt(
                jobs=loaded.jobs,
                attempts=(*loaded.recent, *loaded.attempts),
                restores=(*loaded.replaced, *loaded.restores),
                latest_unix_s=loaded.latest_unix_s,
                unix_s=self.desk.unix(),
                damaged=loaded.damaged,
                policies=loaded.policies,
                histories=loaded.histories,
                recoveries=loaded.recoveries,
                drains=loaded.drains,
                snapshots=loaded.snapshots,
                now=self._clock(),
            )
        )
        self._inherited = frozenset(job.job for job in loaded.jobs)
        self._began_at = self._clock()
        self._start(self._loop.run, "control loop")
        log.info(
            "leading",
            epoch=self.epoch,
            jobs=len(loaded.jobs),
            unfinished=len(loaded.attempts) + len(loaded.restores),
        )
        return self

    async def gathered(self, job: str) -> None:
        """Wait while this leader is new and an earlier one's job has not all its workers here.

        Its shims may be on their way, by other replicas or anew; a request that came before them
        would be refused for want of workers that are well. Raises NoLeader when the epoch ends.
        """
        while self._within(GATHER_S) and (job in self._inherited or self._successor):
            if self._stopped.is_set():
                raise NoLeader(f"no leader yet: {self._why}", advice="ask another coordinator")
            view = next((view for view in self.control.jobs() if view.job.job == job), None)
            if view is not None and view.state not in ("unknown", "incomplete"):
                break
            await asyncio.sleep(POLL_S)

    def settled(self) -> bool:
        """Whether every node of an earlier leader is here, or was given time to come."""
        first = not self._inherited and not self._successor
        return first or not self._within(self.control.policy.adopt_s)

    def _within(self, wait_s: float) -> bool:
        return self._clock() < self._began_at + wait_s

    def _start(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        task = asyncio.create_task(self._guarded(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """An exception in here is a defect: the epoch ends, the shims' timers undo what is held."""
        try:
            await work()
        except AllstopError as error:
            self.stop(error)
        except Exception as error:
            log.exception("the control loop broke")
            self.stop(BugError(f"the control loop broke: {error!r}", definite=False))

    def _job(self, job: str) -> JobRecord | None:
        return self.control.job(job)

    def now(self) -> Now:
        """How things are, for the metrics."""
        return Now(
            leading=True,
            epoch=self.epoch,
            connected=len(self.hub.nodes),
            carriers=len(self.hub.carriers),
            jobs=tuple(self._job_now(view) for view in self.control.jobs()),
        )

    def _job_now(self, view: JobView) -> JobNow:
        ranks = [rank for worker in view.workers for rank in worker.ranks]
        until = self.control.held_until(view.action) if view.action else None
        return JobNow(
            job=view.job.job,
            state=view.state,
            ranks=len(ranks),
            parked=sum(rank.parked for rank in ranks),
            step=view.step,
            latest_unix_s=view.latest_unix_s,
            hold_left_s=None if until is None else max(0.0, until - self._clock()),
        )

    # -- who is told ------------------------------------------------------------------------

    def announce(self, announce: commands.Announce) -> None:
        """Tell whoever watches, then whoever keeps count."""
        self.watchers.announce(announce)
        self._observer.announced(announce)

    def refuse(self, refuse: commands.Refuse) -> None:
        """Tell the asker, then whoever keeps count."""
        self.watchers.refuse(refuse)
        self._observer.refused(refuse)

    def ask_checkpoint(self, ask: commands.AskCheckpoint) -> None:
        """Ask for a checkpoint that is due, as an operator would."""
        unix_s = self.desk.unix()
        self.tell(
            events.CheckpointRequested(
                job=ask.job,
                attempt=attempt_id(ask.job, unix_s),
                cut=ask.cut,
                stop=ask.stop,
                deadline_s=ask.deadline_s,
                unix_s=unix_s,
                cause=ask.reason,
                drain=ask.drain,
                notice=ask.notice,
            )
        )

    def ask_restore(self, ask: commands.AskRestore) -> None:
        """Ask for a restore that a job needs, as an operator would."""
        task = asyncio.create_task(self._ask_restore(ask), name=f"restore of {ask.job}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_restore(self, ask: commands.AskRestore) -> None:
        try:
            self.tell(await reading.restore_by_itself(self.desk, ask))
        except AllstopError as error:
            unready = failure_of(error.at(job=ask.job))
            self.tell(events.RestoreUnready(ask.job, unready, ask.drain))
        except Exception as error:
            log.exception("a restore could not be asked for", job=ask.job)
            bug = BugError(f"a restore could not be asked for: {error!r}")
            self.tell(events.RestoreUnready(ask.job, failure_of(bug), ask.drain))

    def ask_drain(self, ask: commands.AskDrain) -> None:
        """Ask that a node be drained, as an operator would."""
        task = asyncio.create_task(self._ask_drain(ask), name=f"drain of {ask.node}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_drain(self, ask: commands.AskDrain) -> None:
        try:
            self.tell(await drains.by_notice(self.desk, ask))
        except AllstopError as error:
            log.warning("a drain could not be asked for", node=ask.node, error=str(error))
            unready = failure_of(error.at(node=ask.node))
            self.tell(drain_events.DrainUnready(ask.node, unready, ask.session))
        except Exception as error:
            log.exception("a drain could not be asked for", node=ask.node)
            bug = BugError(f"a drain could not be asked for: {error!r}")
            self.tell(drain_events.DrainUnready(ask.node, failure_of(bug), ask.session))

    # -- events ------------------------------------------------------------------------------

    def tell(self, event: events.Event) -> None:
        """Hand an event to the core; facts of nodes are published in the store on the way."""
        self._publish(event)
        self.inbox.tell(event)

    def _publish(self, event: events.Event) -> None:
        if isinstance(event, events.NodeAttached | events.NodeReported):
            if event.facts is not None:
                self._publish_facts(event.facts)
        elif isinstance(event, events.NodeLost | events.NodeLeft):
            self._published.pop(event.node, None)
            self.writer.forget(event.node)

    def _publish_facts(self, facts: NodeFacts) -> None:
        """Put facts into the store, unless only what changes all the time has changed."""
        lasting = replace(facts, memory_free_bytes=0, staging_free_bytes=0, files=())
        if self._published.get(facts.node) != lasting:
            self._published[facts.node] = lasting
            self.writer.publish(facts)

    # -- the end -----------------------------------------------------------------------------

    def stop(self, why: AllstopError) -> None:
        """End this epoch; the first reason stays. May be called from anywhere on the loop."""
        if self._why is None:
            self._why = why
            self._stopped.set()

    async def lay_down(self, reason: str, *, deadline_s: float) -> None:
        """Give up what is under way and wait until it has ended and is recorded, so long at most.

        Whoever does not answer in time lets go by its own timer, as after a crash.
        """
        under_way = self.control.under_way()
        for action in under_way:
            self.inbox.tell(events.AbortRequested(action, reason))
        until = self._clock() + deadline_s
        while self.control.under_way():
            if self._stopped.is_set() or self._clock() >= until:
                log.warning("ending while something is under way", actions=under_way)
                break
            await asyncio.sleep(POLL_S)
        await self.writer.drain(max(0.0, until - self._clock()))

    async def ended(self) -> AllstopError:
        """Wait until something ends this epoch, and say what."""
        await self._stopped.wait()
        assert self._why is not None
        return self._why

    async def close(self) -> None:
        """Let the carriers go, end watchers, writes and the loop, in this order."""
        why = self._why or LinkError("this coordinator has stopped leading", definite=False)
        away = LinkError(
            f"this coordinator does not lead any more: {why.what}",
            advice="another coordinator takes over; what ran is undone by the shims or by it",
            definite=False,
        )
        self.stop(away)
        self.hub.close(away)
        self.watchers.end(away)
        await self.writer.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
