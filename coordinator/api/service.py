"""The Operator service: requests become events, announcements become streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import structlog
from allstop.v1 import operator_pb2, operator_pb2_grpc, records_pb2

from coordinator.api import drains, keeping, logs, policies, reading, verifying
from coordinator.api.desk import Desk
from coordinator.api.identity import ATTEMPT, RESTORE, attempt_id, chosen_id, restore_id
from coordinator.api.watchers import Watcher, action_event
from coordinator.codec import member_of
from coordinator.core import events
from coordinator.core.errors import AllstopError, BadRequest, BugError, NotFound
from coordinator.core.model import Cut, Phase
from coordinator.link.mapping import abort_with, as_allstop
from coordinator.link.names import check_name
from coordinator.store.port import ENDED_ATTEMPT, ENDED_RESTORE

log = structlog.get_logger(__name__)

DEADLINE_S_MAX = 24 * 3600.0
REASON_CHARS_MAX = 1_000

_CUT = {
    records_pb2.CUT_UNSPECIFIED: Cut.STEP,
    records_pb2.CUT_STEP: Cut.STEP,
    records_pb2.CUT_FREEZE: Cut.FREEZE,
}

Reply = TypeVar("Reply")


def _check_deadline(deadline_s: float) -> float:
    """0 means the policy's default; raises BadRequest for what cannot be a deadline."""
    if not 0.0 <= deadline_s <= DEADLINE_S_MAX:
        raise BadRequest(
            f"a deadline of {deadline_s:g} s is not between 0 and {DEADLINE_S_MAX:g} s"
        )
    return deadline_s


class OperatorService(operator_pb2_grpc.OperatorServicer):
    """Answers operators while this coordinator leads; LinkError otherwise."""

    def __init__(self, desk: Callable[[], Desk]) -> None:
        """`desk` raises LinkError while nobody leads here."""
        self._desk = desk

    # -- requests that start something -------------------------------------------------------

    async def Checkpoint(  # noqa: N802 - the names are the proto's
        self, request: operator_pb2.CheckpointRequest, context: Any
    ) -> AsyncIterator[operator_pb2.ActionEvent]:
        """Ask for a checkpoint and follow it; leaving does not stop it."""
        async for event in _guarded(context, self._checkpoint(request)):
            yield event

    async def _checkpoint(
        self, request: operator_pb2.CheckpointRequest
    ) -> AsyncIterator[operator_pb2.ActionEvent]:
        desk = self._desk()
        check_name("job", request.job)
        await desk.gathered(request.job)
        cut = _CUT.get(request.cut)
        if cut is None:
            raise BadRequest(f"unknown cut {request.cut}")
        now = desk.unix()
        attempt = chosen_id(ATTEMPT, request.job, request.attempt) or attempt_id(request.job, now)
        asked = events.CheckpointRequested(
            job=request.job,
            attempt=attempt,
            cut=cut,
            stop=request.stop,
            deadline_s=_check_deadline(request.deadline_s),
            unix_s=now,
            phase_deadlines_s=tuple(
                (member_of(Phase, each.phase, "phase"), each.deadline_s)
                for each in request.phase_deadlines
            ),
        )
        async for event in self._begin(desk, attempt, asked):
            yield event

    async def Restore(  # noqa: N802
        self, request: operator_pb2.RestoreRequest, context: Any
    ) -> AsyncIterator[operator_pb2.ActionEvent]:
        """Ask for a restore and follow it; leaving does not stop it."""
        async for event in _guarded(context, self._restore(request)):
            yield event

    async def _restore(
        self, request: operator_pb2.RestoreRequest
    ) -> AsyncIterator[operator_pb2.ActionEvent]:
        desk = self._desk()
        check_name("job", request.job)
        await desk.gathered(request.job)
        deadline_s = _check_deadline(request.deadline_s)
        chosen = chosen_id(RESTORE, request.job, request.restore)
        snapshot = await reading.snapshot_to_restore(desk, request.job, request.snapshot)
        now = desk.unix()
        asked = events.RestoreRequested(
            job=request.job,
            restore=chosen or restore_id(request.job, now),
            snapshot=snapshot,
            deadline_s=deadline_s,
            unix_s=now,
            files=await reading.ask_program_files(desk, snapshot),
            old_run_ended=request.old_run_ended,
            cold_start=request.cold_start,
            old_addresses=reading.old_addresses_of(request),
        )
        async for event in self._begin(desk, asked.restore, asked):
            yield event

    async def _begin(
        self, desk: Desk, action: str, asked: events.Event
    ) -> AsyncIterator[operator_pb2.ActionEvent]:
        """Begin an action and follow it; one whose id is known was asked for before: join it."""
        if desk.control.last_word(action) is not None:
            async for event in self._watch(action):
                yield event
            return
        watcher: Watcher = desk.watchers.open(action)
        try:
            desk.tell(asked)
            async for event in watcher.events():
                yield event
        finally:
            desk.watchers.close(watcher)

    async def Watch(  # noqa: N802
        self, request: operator_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[operator_pb2.ActionEvent]:
        """Join a running attempt or restore, or replay the end of a finished one."""
        async for event in _guarded(context, self._watch(request.action)):
            yield event

    async def _watch(self, action: str) -> AsyncIterator[operator_pb2.ActionEvent]:
        desk = self._desk()
        newest = desk.control.last_word(action)
        if newest is None:
            yield await _replay(desk, action)
            return
        if newest.last:
            yield action_event(newest)
            return
        watcher = desk.watchers.open(action)
        try:
            yield action_event(newest)
            async for event in watcher.events():
                yield event
        finally:
            desk.watchers.close(watcher)

    async def Abort(self, request: operator_pb2.AbortRequest, context: Any) -> Any:  # noqa: N802
        """Ask that an attempt or restore be given up; too late is an answer, not an error."""
        return await _answered(context, self._abort(request))

    async def _abort(self, request: operator_pb2.AbortRequest) -> operator_pb2.AbortReply:
        desk = self._desk()
        if len(request.reason) > REASON_CHARS_MAX:  # it is stored, and sent to every shim
            raise BadRequest(
                f"a reason of {len(request.reason)} characters, and it may have {REASON_CHARS_MAX}",
                advice="give one sentence",
            )
        newest = desk.control.last_word(request.action)
        if newest is None:
            shown = await reading.find(desk, request.action)
            if shown.attempt is None and shown.restore is None:
                raise NotFound(f"there is no attempt or restore {request.action}")
        if newest is None or newest.last:
            return operator_pb2.AbortReply(note=f"{request.action} has ended already")
        desk.tell(
            events.AbortRequested(request.action, request.reason or "an operator asked for it")
        )
        return operator_pb2.AbortReply(
            note=f"asked {request.action} to stop, it was {newest.state}"
        )

    # -- how snapshots are kept ---------------------------------------------------------------

    async def Delete(  # noqa: N802
        self, request: operator_pb2.DeleteRequest, context: Any
    ) -> AsyncIterator[operator_pb2.ActionEvent]:
        """Delete snapshots and follow it; leaving does not stop it."""

        async def stream() -> AsyncIterator[operator_pb2.ActionEvent]:
            desk = self._desk()
            asked = keeping.deletion(desk, request)
            await desk.gathered(asked.job)
            async for event in self._begin(desk, asked.cleaning, asked):
                yield event

        async for event in _guarded(context, stream()):
            yield event

    async def Collect(  # noqa: N802
        self, request: operator_pb2.CollectRequest, context: Any
    ) -> AsyncIterator[operator_pb2.ActionEvent]:
        """Remove what ended attempts have left, and follow it."""

        async def stream() -> AsyncIterator[operator_pb2.ActionEvent]:
            desk = self._desk()
            asked = keeping.collection(desk, request)
            await desk.gathered(asked.job)
            async for event in self._begin(desk, asked.cleaning, asked):
                yield event

        async for event in _guarded(context, stream()):
            yield event

    async def Verify(  # noqa: N802
        self, request: operator_pb2.VerifyRequest, context: Any
    ) -> AsyncIterator[operator_pb2.VerifyEvent]:
        """Read all of a snapshot again."""

        async def stream() -> AsyncIterator[operator_pb2.VerifyEvent]:
            async for event in verifying.verify(self._desk(), request):
                yield event

        async for event in _guarded(context, stream()):
            yield event

    async def Pin(self, request: operator_pb2.PinRequest, context: Any) -> Any:  # noqa: N802
        """Pin a snapshot, or take the pin away."""
        return await _answered(context, self._with_desk(lambda desk: keeping.pin(desk, request)))

    async def SetRetention(  # noqa: N802
        self, request: operator_pb2.SetRetentionRequest, context: Any
    ) -> Any:
        """Change which snapshots of a job stay, or only tell."""
        return await _answered(
            context, self._with_desk(lambda desk: keeping.set_retention(desk, request))
        )

    # -- requests that change nothing --------------------------------------------------------

    async def PlanRestore(self, request: operator_pb2.PlanRequest, context: Any) -> Any:  # noqa: N802
        """Where a restore would put each worker now."""

        async def planned() -> operator_pb2.PlanReply:
            check_name("job", request.job)
            desk = self._desk()
            await desk.gathered(request.job)
            return await reading.plan(desk, request)

        return await _answered(context, planned())

    async def ListJobs(self, request: operator_pb2.ListJobsRequest, context: Any) -> Any:  # noqa: N802
        """All jobs."""
        return await _answered(context, self._with_desk(reading.list_jobs))

    async def ListNodes(self, request: operator_pb2.ListNodesRequest, context: Any) -> Any:  # noqa: N802
        """All nodes."""

        async def listed(desk: Desk) -> operator_pb2.ListNodesReply:
            return reading.list_nodes(desk, settled=request.settled)

        return await _answered(context, self._with_desk(listed))

    async def ListSnapshots(  # noqa: N802
        self, request: operator_pb2.ListSnapshotsRequest, context: Any
    ) -> Any:
        """The snapshots of one job."""

        async def listed(desk: Desk) -> operator_pb2.ListSnapshotsReply:
            check_name("job", request.job)
            return await reading.list_snapshots(desk, request.job)

        return await _answered(context, self._with_desk(listed))

    async def Show(self, request: operator_pb2.ShowRequest, context: Any) -> Any:  # noqa: N802
        """A snapshot, an attempt or a restore."""
        return await _answered(
            context, self._with_desk(lambda desk: reading.show(desk, request.id))
        )

    async def Drain(self, request: operator_pb2.DrainRequest, context: Any) -> Any:  # noqa: N802
        """Empty a node."""
        return await _answered(context, self._with_desk(lambda desk: drains.drain(desk, request)))

    async def Undrain(self, request: operator_pb2.UndrainRequest, context: Any) -> Any:  # noqa: N802
        """Let a node take workers again."""
        return await _answered(context, self._with_desk(lambda desk: drains.undrain(desk, request)))

    async def SetPolicy(self, request: operator_pb2.SetPolicyRequest, context: Any) -> Any:  # noqa: N802
        """When a job is saved by itself, from now on."""
        return await _answered(
            context, self._with_desk(lambda desk: policies.set_policy(desk, request))
        )

    async def GetPolicy(self, request: operator_pb2.GetPolicyRequest, context: Any) -> Any:  # noqa: N802
        """When a job is saved by itself, and why then."""
        return await _answered(
            context, self._with_desk(lambda desk: policies.get_policy(desk, request))
        )

    async def GetStory(self, request: operator_pb2.GetStoryRequest, context: Any) -> Any:  # noqa: N802
        """What was done for a job by itself, and why."""
        return await _answered(
            context, self._with_desk(lambda desk: policies.get_story(desk, request))
        )

    async def ReadLogs(self, request: operator_pb2.ReadLogsRequest, context: Any) -> Any:  # noqa: N802
        """What workers of one job have put out."""
        return await _answered(context, self._with_desk(lambda desk: logs.read_logs(desk, request)))

    async def _with_desk(self, reader: Callable[[Desk], Awaitable[Reply]]) -> Reply:
        return await reader(self._desk())


async def _replay(desk: Desk, action: str) -> operator_pb2.ActionEvent:
    """The end of an action that only the store remembers."""
    shown = await reading.find(desk, action)
    event = operator_pb2.ActionEvent(action=action, last=True)
    record = shown.attempt or shown.restore
    if record is None:
        raise NotFound(f"there is no attempt or restore {action}")
    event.state, event.reason = record.state, record.reason
    if record.state not in ENDED_ATTEMPT | ENDED_RESTORE:
        raise BugError(f"{action} is {record.state} in the store and unknown to the leader")
    reply = await reading.show(desk, action)
    for name in ("attempt", "restore", "snapshot"):
        if reply.HasField(name):
            getattr(event, name).CopyFrom(getattr(reply, name))
    if record.failure is not None:
        event.failure.CopyFrom((reply.attempt if shown.attempt else reply.restore).failure)
    return event


async def _guarded(context: Any, stream: AsyncIterator[Reply]) -> AsyncIterator[Reply]:
    """Pass a stream on; what it raises ends the call with a status."""
    try:
        async for event in stream:
            yield event
    except asyncio.CancelledError:
        raise
    except Exception as error:
        await abort_with(context, _told(error))


async def _answered(context: Any, answering: Awaitable[Reply]) -> Reply:
    """Await an answer; what it raises ends the call with a status."""
    try:
        return await answering
    except Exception as error:
        await abort_with(context, _told(error))


def _told(error: Exception) -> AllstopError:
    known = as_allstop(error)
    if isinstance(known, BugError):
        log.error("request met a defect", error=str(known), exc_info=error)
    return known
