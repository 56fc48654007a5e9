"""Writes to the store: one of a job after another, each answered by an event.

Only what changes nothing when it is done twice is repeated: reads, and the put of a record. A
commit whose answer was lost is settled by reading until the store says whether it is there; that
ends at the latest when the leadership does, because a leader that cannot reach the store for so
long has lost its lease.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog

from coordinator.core import commands, drain_events, events
from coordinator.core.drain_records import DrainRecord
from coordinator.core.errors import AllstopError, BugError, Fenced, Overtaken, StoreError
from coordinator.core.failures import failure_of
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    JobRecord,
    RestoreRecord,
    Snapshot,
)
from coordinator.server import cleanings
from coordinator.server.cleanings import CLEANING
from coordinator.server.quiet_writer import QuietWriter
from coordinator.store.port import ENDED_ATTEMPT, ENDED_RESTORE, Store

log = structlog.get_logger(__name__)

WRITE_DEADLINE_S = 15.0
SETTLE_PAUSE_S = 0.2
SETTLE_PAUSE_MAX_S = 2.0
LANE_MAX = 256
END_PAUSE_MAX_S = 10.0  # between two tries to put how an action ended
END_TRIES = 360  # about an hour
ENDS_MAX = 256  # that wait for the store
PUT_TRIES = 5  # the same record in the same lane: to put it twice changes nothing

_Answer = TypeVar("_Answer")

_Write = (
    commands.BeginRun
    | commands.PutAttempt
    | commands.CommitSnapshot
    | commands.AdmitRestore
    | commands.PutRestore
    | commands.PutDrain
    | CLEANING
)


class Writer(QuietWriter):
    """One lane per job, and one for the nodes; a lane is a task that lives while it has work."""

    def __init__(
        self,
        store: Store,
        tell: Callable[[events.Event], None],
        stop: Callable[[AllstopError], None],
        job: Callable[[str], JobRecord | None],
        *,
        write_deadline_s: float = WRITE_DEADLINE_S,
        settle_pause_s: float = SETTLE_PAUSE_S,
    ) -> None:
        """`stop` is called when the store says that another leads; `job` is the core's view."""
        super().__init__(store, stop, write_deadline_s)
        self._tell = tell
        self._job = job
        self._settle_pause_s = settle_pause_s
        self._lanes: dict[str, deque[_Write]] = {}
        self._jobs: dict[str, JobRecord] = {}  # as last put
        self._carry_out: dict[type, Callable[..., Awaitable[events.Event]]] = {
            commands.BeginRun: self._begin_run,
            commands.PutAttempt: self._put_attempt,
            commands.CommitSnapshot: self._commit,
            commands.AdmitRestore: self._admit_restore,
            commands.PutRestore: self._put_restore,
            commands.PutDrain: self._put_drain,
            commands.MarkSnapshots: partial(cleanings.mark, store, self._put),
            commands.WeighAttempts: self._weigh,
            commands.ForgetSnapshots: partial(cleanings.forget, store, self._put),
        }

    # -- lanes -------------------------------------------------------------------------------

    def write(self, command: commands.Command) -> None:
        """Start a write of the core; its answer comes as an event, if the core awaits one."""
        if isinstance(command, commands.KeepHistory | commands.KeepRecovery):
            self.keep_newest(command)
            return
        assert isinstance(command, _Write)
        self._enqueue(command)

    def _enqueue(self, command: _Write) -> None:
        job = _lane_of(command)
        waiting = self._lanes.setdefault(job, deque())
        if len(waiting) >= LANE_MAX:
            self._refused(
                command, StoreError(f"{LANE_MAX} writes of this job already wait for the store")
            )
            return
        waiting.append(command)
        self._start(job, lambda: self._write_lane(job))

    async def _write_lane(self, job: str) -> None:
        waiting = self._lanes[job]
        try:
            while waiting:
                await self._answered(waiting.popleft())
        finally:
            del self._tasks[job], self._lanes[job]

    async def close(self) -> None:
        """Stop where it is; what was on the wire may be applied, and the next leader looks."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self, deadline_s: float) -> None:
        """Wait until all lanes are empty, at most so long."""
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=deadline_s)

    # -- one write ---------------------------------------------------------------------------

    async def _answered(self, command: _Write) -> None:
        """Carry a write out and tell the core how it ended, whatever happens in here."""
        try:
            self._tell(await self._carry_out[type(command)](command))
        except Fenced as error:
            log.error("the store says that another leads", error=str(error))
            self._stop(error)
        except AllstopError as error:
            self._refused(command, error)
        except Exception as error:
            log.exception("writing failed")
            self._refused(command, BugError(f"writing failed: {error!r}", definite=False))

    def _refused(self, command: _Write, error: AllstopError) -> None:
        if isinstance(command, commands.BeginRun):
            job = command.record.job
            log.warning("a new run is not recorded", job=job, error=str(error))
            self._tell(events.RunRefused(job, failure_of(error.at(job=job))))
            return
        if isinstance(command, CLEANING):
            log.warning("cleaning", job=command.job, action=command.cleaning, error=str(error))
            self._tell(events.StoreRefused(command.cleaning, failure_of(error.at(job=command.job))))
            return
        if isinstance(command, commands.PutDrain):
            drain = command.record
            log.warning("a drain is not recorded", node=drain.node, error=str(error))
            at = (drain.node, drain.state, drain.requested_unix_s)
            self._tell(drain_events.DrainUnstored(*at, failure_of(error)))
            return
        record, action = command.record, _action_of(command)
        self._put_later(command)
        log.warning(
            "write refused",
            job=record.job,
            action=action,
            epoch=record.epoch,
            state=record.state,
            error=str(error),
        )
        failure = failure_of(error.at(job=record.job))
        self._tell(
            events.CommitRefused(action, failure)
            if isinstance(command, commands.CommitSnapshot)
            else events.StoreRefused(action, failure)
        )

    # -- how an action ended ------------------------------------------------------------------

    def _put_later(self, command: _Write) -> None:
        """An action that has ended while the store was away must not stay unfinished there.

        The next leader would undo it a second time, when the job may have gone on since.
        """
        if not isinstance(command, commands.PutAttempt | commands.PutRestore):
            return
        record = command.record
        if record.state not in ENDED_ATTEMPT | ENDED_RESTORE:
            return
        lane = f"end of {_action_of(command)}"  # no job is called so: its name has no space
        if sum(name.startswith("end of ") for name in self._tasks) < ENDS_MAX:
            self._start(lane, lambda: self._put_end(lane, command))

    async def _put_end(self, lane: str, command: commands.PutAttempt | commands.PutRestore) -> None:
        """Try again until it is there, whatever the store says; ends with the leadership."""
        pause_s = self._settle_pause_s
        try:
            for _ in range(END_TRIES):
                await asyncio.sleep(pause_s)
                pause_s = min(END_PAUSE_MAX_S, pause_s * 2)
                try:
                    if isinstance(command, commands.PutAttempt):
                        await self._bounded(self._store.put_attempt(command.record), lane)
                    else:
                        await self._bounded(self._store.put_restore(command.record), lane)
                    return
                except Fenced as error:
                    self._stop(error)
                    return
                except AllstopError as error:
                    log.warning("how it ended is not recorded yet", lane=lane, error=str(error))
        finally:
            del self._tasks[lane]

    async def _begin_run(self, command: commands.BeginRun) -> events.Event:
        record = command.record
        begun: JobRecord = await self._bounded(
            self._store.begin_run(record, command.old_incarnation), f"a new run of job {record.job}"
        )
        self._jobs.pop(record.job, None)
        return events.RunBegun(begun)

    async def _put_attempt(self, command: commands.PutAttempt) -> events.Event:
        record = command.record

        async def put() -> None:
            if record.state is AttemptState.ADMITTING:
                await self._put_job(record.job)
            await self._store.put_attempt(record)

        await self._put(put, record.job, f"attempt {record.attempt} to {record.state}")
        return events.AttemptStored(record.attempt, record.state)

    async def _weigh(self, command: commands.WeighAttempts) -> events.Event:
        what = f"which attempts of job {command.job} are over"
        return await self._bounded(cleanings.weigh(self._store, command), what)

    async def _put(
        self,
        put: Callable[[], Awaitable[None]],
        job: str,
        what: str,
        *,
        tries: int | None = PUT_TRIES,
    ) -> None:
        """Put a record, and again where nobody knows whether it arrived; a refusal is final.

        Without a number of `tries` it ends with the leadership, which cancels this task.
        """
        pause_s, unsure = self._settle_pause_s, False
        for tried in itertools.count(1):
            try:
                await self._bounded(put(), what)
                return
            except StoreError as error:
                unsure = unsure_after(error, unsure)
                error.definite = not unsure
                if not unsure or tried == tries:
                    raise
                log.warning("a record is put again", job=job, error=str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(SETTLE_PAUSE_MAX_S, pause_s * 2)

    async def _put_job(self, job: str) -> None:
        """The job's record precedes its first attempt: the commit compares its incarnation."""
        known = self._job(job)
        known = replace(known, latest="") if known is not None else None  # not its to write
        if known is not None and self._jobs.get(job) != known:
            await self._store.put_job(known)
            self._jobs[job] = known

    async def _admit_restore(self, command: commands.AdmitRestore) -> events.Event:
        """Admit it, and where the answer was lost ask again, which the store knows for the same.

        Whether the incarnation is raised must be known: a job of another one cannot be saved.
        """
        record = command.record
        await self._put(
            lambda: self._store.admit_restore(record, command.old_incarnation),
            record.job,
            f"restore {record.restore} of job {record.job}",
            tries=None,
        )
        return events.RestoreAdmitted(record.restore)

    async def _put_restore(self, command: commands.PutRestore) -> events.Event:
        record = command.record
        what = f"restore {record.restore} to {record.state}"
        await self._put(lambda: self._store.put_restore(record), record.job, what)
        return events.RestoreStored(record.restore, record.state)

    async def _put_drain(self, command: commands.PutDrain) -> events.Event:
        record = command.record
        what = f"the drain of {record.node} to {record.state}"
        await self._put(lambda: self._store.put_drain(record), "", what)
        return drain_events.DrainStored(record.node, record.state, record.requested_unix_s)

    async def _commit(self, command: commands.CommitSnapshot) -> events.Event:
        snapshot = command.snapshot
        try:
            newest = await self._bounded(
                self._store.commit(snapshot, command.record), f"snapshot {snapshot.snapshot}"
            )
        except Fenced:
            raise
        except Exception as error:
            # Whatever broke may have done so after the transaction was sent.
            if isinstance(error, StoreError) and error.definite:
                raise
            log.warning(
                "the commit's answer was lost; looking",
                job=snapshot.job,
                action=snapshot.snapshot,
                error=repr(error),
            )
            if await self._find_commit(snapshot.job, snapshot.snapshot) is None:
                what = error.what if isinstance(error, AllstopError) else repr(error)
                raise StoreError(
                    f"the commit was tried and is not in the store: {what}",
                    advice="the job runs on; take the checkpoint again",
                ) from error
            newest = await self._is_latest(command)
        return events.SnapshotCommitted(snapshot.snapshot, newest)

    async def _is_latest(self, command: commands.CommitSnapshot) -> bool:
        """Of one that is committed; only an heir's may not be, so that is believed unasked too."""
        try:
            again = self._store.commit(command.snapshot, command.record)  # which only reads
            return await self._bounded(again, f"is {command.snapshot.snapshot} the latest?")
        except Fenced:
            raise
        except Exception as error:
            log.warning("whether it is the latest is not known", error=repr(error))
            return True

    async def _find_commit(self, job: str, attempt: str) -> Snapshot | None:
        """Ask the store until it knows; ends with the leadership, which cancels this task."""
        pause_s = self._settle_pause_s
        while True:
            try:
                return await self._bounded(
                    self._store.find_commit(job, attempt), f"is {attempt} committed?"
                )
            except StoreError as error:
                log.warning(
                    "cannot settle the commit yet", job=job, action=attempt, error=str(error)
                )
            await asyncio.sleep(pause_s)
            pause_s = min(SETTLE_PAUSE_MAX_S, pause_s * 2)


def _lane_of(command: _Write) -> str:
    """Cleanings have lanes of their own: no attempt waits for them. No job's name has a space."""
    if isinstance(command, CLEANING):
        return f"cleaning of {command.job}"
    if isinstance(command, commands.PutDrain):
        return f"drain of {command.record.node}"
    return command.record.job


def _action_of(command: _Write) -> str:
    if isinstance(command, CLEANING):
        return command.cleaning
    record = command.record
    if isinstance(record, DrainRecord):
        return f"drain of {record.node}"
    if isinstance(record, RestoreRecord):
        return record.restore
    return record.attempt if isinstance(record, AttemptRecord) else record.job


def unsure_after(error: StoreError, before: bool) -> bool:
    """Whether a write may have arrived, after this error of its last try; `before`: of the others.

    That the last try surely did not happen says nothing of an earlier one whose answer was lost.
    """
    return not isinstance(error, Overtaken) and (before or not error.definite)
