"""The operator's side of the wire: several addresses, deadlines, and the coordinator's own errors.

async with OperatorClient(["unix:/run/allstop/sock", "10.0.0.1:7411"]) as client:
    async for event in client.checkpoint("llm"):
        ...

Any replica will do, since each passes on to the leader. What only reads, follows or aborts is asked
again at another address when an answer is lost. A request that begins something is sent once: it
carries an id chosen here, and after a lost answer that id is looked for instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

import grpc.aio
from allstop.v1 import logs_pb2, operator_pb2, operator_pb2_grpc, records_pb2

from coordinator.api.channels import CONNECT_DEADLINE_S, OWN_POOL, Channels
from coordinator.api.client_drains import DrainsClient
from coordinator.api.client_keeping import KeepingClient
from coordinator.api.identity import attempt_id, restore_id
from coordinator.api.patience import PAUSE_MAX_S, PAUSE_S, Patience, Waiting, summed_up
from coordinator.api.streams import events_of
from coordinator.api.values import ActionEvent, Planned, PolicyAnswer, Snapshots, Story
from coordinator.codec import from_proto, number_of, to_proto
from coordinator.core.errors import AllstopError, BadRequest, LinkError, NotFound
from coordinator.core.failures import error_of
from coordinator.core.job_policy import JobPolicy
from coordinator.core.logs import LogPart, LogPlace
from coordinator.core.model import AttemptState, Cut, OldAddresses, Phase, RestoreState
from coordinator.core.view import JobView, NodeView
from coordinator.link.mapping import error_of_call
from coordinator.link.options import Keepalive
from coordinator.link.security import NO_TLS, Dialler, Tls
from coordinator.store.port import Shown

CALL_DEADLINE_S = 20.0
REJOIN_DEADLINE_S = 30.0  # a leader's lease, its successor's start, and a busy machine
BEFORE_THE_RECORD = (AttemptState.ADMITTING, RestoreState.ADMITTING)  # announced, not yet stored
LOOK_DEADLINE_S = 5.0  # for a request whose answer was lost to turn up somewhere

_CUT = {Cut.STEP: records_pb2.CUT_STEP, Cut.FREEZE: records_pb2.CUT_FREEZE}


def target_of(address: str) -> str:
    """A gRPC target: `host:port` and `unix:PATH` as they are, a bare path as a unix socket."""
    return f"unix:{address}" if address.startswith("/") else address


class OperatorClient(KeepingClient, DrainsClient):
    """Talks to the first of several coordinators that answers; raises what the leader raised.

    LinkError when none can be reached, NoLeader when nobody led for `patience_s`; `definite=False`
    when a request may have got through. Channels are made in the running loop, closed by `close`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: Tls = NO_TLS,
        connect_deadline_s: float = CONNECT_DEADLINE_S,
        call_deadline_s: float = CALL_DEADLINE_S,
        patience_s: float = 0.0,
        rejoin_deadline_s: float = REJOIN_DEADLINE_S,
        keepalive: Keepalive | None = None,
        on_waiting: Waiting | None = None,
    ) -> None:
        """`connect_deadline_s` is for each address, `call_deadline_s` for each short request.

        `patience_s` is how long somebody may answer without anybody leading; `on_waiting` hears
        once why it is waited. `rejoin_deadline_s` is how long an action may be out of sight.
        Raises SetupError for a TLS file that cannot be used.
        """
        if not addresses:
            raise BadRequest("no coordinator address was given")
        self._addresses = list(dict.fromkeys(target_of(str(address)) for address in addresses))
        self._call_deadline_s = call_deadline_s
        self._patience_s = patience_s
        self._rejoin_deadline_s = rejoin_deadline_s
        self._on_waiting = on_waiting
        dialler = Dialler(tls, keepalive=keepalive, options=OWN_POOL)
        self._channels = Channels(dialler, connect_deadline_s=connect_deadline_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every channel; running calls end."""
        await self._channels.close()

    # -- starting and following --------------------------------------------------------------

    def checkpoint(
        self,
        job: str,
        *,
        cut: Cut = Cut.STEP,
        stop: bool = False,
        deadline_s: float = 0.0,
        phase_deadlines_s: Mapping[Phase, float] | None = None,
    ) -> AsyncGenerator[ActionEvent, None]:
        """Take a checkpoint and follow it to its end; raises its failure after the last event."""
        attempt = attempt_id(job, time.time())
        request = operator_pb2.CheckpointRequest(
            job=job,
            cut=_CUT[cut],
            stop=stop,
            deadline_s=deadline_s,
            attempt=attempt,
            phase_deadlines=[
                operator_pb2.PhaseDeadline(phase=number_of(phase), deadline_s=seconds)
                for phase, seconds in (phase_deadlines_s or {}).items()
            ],
        )
        return self._begun(attempt, lambda stub: stub.Checkpoint(request))

    def restore(
        self,
        job: str,
        snapshot: str = "",
        *,
        deadline_s: float = 0.0,
        old_run_ended: bool = False,
        cold_start: bool = False,
        old_addresses: OldAddresses = OldAddresses.REFUSE,
    ) -> AsyncGenerator[ActionEvent, None]:
        """Put a snapshot (empty: the latest) back and follow it; raises its failure at the end.

        `old_run_ended`: the caller has made sure that nothing of the job runs out of reach.
        `cold_start`: where no nodes fit the snapshot, start the job's commands from scratch;
        `old_addresses` says what becomes of old hosts' names in them.
        """
        restore = restore_id(job, time.time())
        request = operator_pb2.RestoreRequest(
            job=job,
            snapshot=snapshot,
            deadline_s=deadline_s,
            restore=restore,
            old_run_ended=old_run_ended,
            cold_start=cold_start,
            old_addresses=number_of(old_addresses),
        )
        return self._begun(restore, lambda stub: stub.Restore(request))

    async def watch(self, action: str) -> AsyncGenerator[ActionEvent, None]:
        """Join a running attempt or restore, or hear how a finished one ended."""
        async with aclosing(self._watched(action)) as events:
            async for event in events:
                yield event
        if event.failure is not None:
            raise error_of(event.failure)

    async def abort(self, action: str, reason: str = "") -> str:
        """Ask that an attempt or restore be given up; returns what the coordinator says to it."""
        request = operator_pb2.AbortRequest(action=action, reason=reason)
        reply = await self._ask(lambda stub, timeout: stub.Abort(request, timeout=timeout))
        return str(reply.note)

    # -- reading -----------------------------------------------------------------------------

    async def plan(
        self,
        job: str,
        snapshot: str = "",
        *,
        explain: bool = False,
        cold_start: bool = False,
        old_addresses: OldAddresses = OldAddresses.REFUSE,
    ) -> Planned:
        """Where a restore would put each worker now; options as of a restore.

        `explain`: name the nodes that fit and are not taken, too.
        """
        request = operator_pb2.PlanRequest(
            job=job,
            snapshot=snapshot,
            explain=explain,
            cold_start=cold_start,
            old_addresses=number_of(old_addresses),
        )
        reply = await self._ask(lambda stub, timeout: stub.PlanRestore(request, timeout=timeout))
        return from_proto(reply, Planned)

    async def jobs(self) -> tuple[JobView, ...]:
        """All jobs, by name."""
        request = operator_pb2.ListJobsRequest()
        reply = await self._ask(lambda stub, timeout: stub.ListJobs(request, timeout=timeout))
        return tuple(from_proto(view, JobView) for view in reply.jobs)

    async def nodes(self, *, settled: bool = False) -> tuple[NodeView, ...]:
        """All nodes, by name, those lost and left included.

        `settled`: raises NotReady while the leader is new, and shims may be on their way to it.
        """
        request = operator_pb2.ListNodesRequest(settled=settled)
        reply = await self._ask(lambda stub, timeout: stub.ListNodes(request, timeout=timeout))
        return tuple(from_proto(view, NodeView) for view in reply.nodes)

    async def snapshots(self, job: str) -> Snapshots:
        """The snapshots of a job; raises NotFound when there is no such job."""
        request = operator_pb2.ListSnapshotsRequest(job=job)
        reply = await self._ask(lambda stub, timeout: stub.ListSnapshots(request, timeout=timeout))
        return from_proto(reply, Snapshots)

    async def policy(self, job: str) -> PolicyAnswer:
        """When a job is saved by itself; raises NotFound for a job that is not there."""
        request = operator_pb2.GetPolicyRequest(job=job)
        reply = await self._ask(lambda stub, timeout: stub.GetPolicy(request, timeout=timeout))
        return from_proto(reply, PolicyAnswer)

    async def set_policy(self, policy: JobPolicy) -> PolicyAnswer:
        """Set it, and say what it leads to; asking twice changes nothing."""
        request = operator_pb2.SetPolicyRequest(policy=to_proto(policy))
        reply = await self._ask(lambda stub, timeout: stub.SetPolicy(request, timeout=timeout))
        return from_proto(reply, PolicyAnswer)

    async def story(self, job: str) -> Story:
        """What was done for a job by itself; raises NotFound for a job that is not there."""
        request = operator_pb2.GetStoryRequest(job=job)
        reply = await self._ask(lambda stub, timeout: stub.GetStory(request, timeout=timeout))
        return from_proto(reply, Story)

    async def show(self, identity: str) -> Shown:
        """Everything that has this id; raises NotFound when nothing has."""
        request = operator_pb2.ShowRequest(id=identity)
        reply = await self._ask(lambda stub, timeout: stub.Show(request, timeout=timeout))
        return from_proto(reply, Shown)

    async def read_logs(
        self, job: str, places: Sequence[LogPlace] = (), *, first: int = 0, lines: int = 0
    ) -> tuple[tuple[LogPart, ...], int]:
        """What workers have put out, from these places on; `LogReader` knows how to go on.

        Without places: of all workers from `first` on their last `lines` lines, and where the next
        such request begins (0: that was all).
        """
        wanted = [to_proto(place, logs_pb2.LogPlace) for place in places]
        request = operator_pb2.ReadLogsRequest(job=job, places=wanted, first=first, lines=lines)
        reply = await self._ask(lambda stub, timeout: stub.ReadLogs(request, timeout=timeout))
        return tuple(from_proto(part, LogPart) for part in reply.parts), int(reply.following)

    # -- inside ------------------------------------------------------------------------------

    async def _stub(self, address: str) -> operator_pb2_grpc.OperatorStub:
        channel = await self._channels.connected(address)
        return operator_pb2_grpc.OperatorStub(channel)  # type: ignore[no-untyped-call]

    async def _ask(self, call: Callable[[Any, float], Any]) -> Any:
        """One short request that may be repeated, to each address until one answers."""
        patience = Patience(self._patience_s, self._on_waiting)
        while True:
            errors: list[AllstopError] = []
            for address in self._addresses:
                try:
                    return await call(await self._stub(address), self._call_deadline_s)
                except grpc.aio.AioRpcError as error:
                    errors.append(error_of_call(error, address))
                except LinkError as error:
                    errors.append(error)
                if not isinstance(errors[-1], LinkError):
                    raise summed_up(errors, errors[-1])
            await patience.pause(errors)

    async def _begun(
        self, action: str, call: Callable[[Any], Any]
    ) -> AsyncGenerator[ActionEvent, None]:
        """Begin an action and follow it to its end; then raise its failure, if it has one."""
        failure, broken, seen, state = None, None, False, ""
        async with aclosing(self._events(call, once=True)) as events:
            try:
                async for event in events:
                    action, failure, seen, state = event.action, event.failure, True, event.state
                    yield event
            except LinkError as error:
                if error.definite and not seen:
                    raise
                broken = error
        if broken is not None:
            recorded = state not in BEFORE_THE_RECORD
            watched = self._watched(action, broken, known=seen, recorded=recorded)
            async with aclosing(watched) as events:
                async for event in events:
                    failure = event.failure
                    yield event
        if failure is not None:
            raise error_of(failure)

    async def _watched(
        self,
        action: str,
        broken: LinkError | None = None,
        *,
        known: bool = True,
        recorded: bool = True,
    ) -> AsyncGenerator[ActionEvent, None]:
        """Watch an action to its last event, again and again where the stream breaks.

        `broken` is why a stream of it ended before; without it the first try has `patience_s`
        alone. An action that is not `known` to have begun may turn up for a while; one that was
        announced and not `recorded` has not begun when the next leader does not know it.
        """
        request = operator_pb2.WatchRequest(action=action)
        loop = asyncio.get_running_loop()
        give_up_at, pause_s = loop.time() + self._rejoin_deadline_s, PAUSE_S
        turn_up_until = loop.time() + (0.0 if known else LOOK_DEADLINE_S)
        while True:
            try:
                async with aclosing(self._events(lambda stub: stub.Watch(request))) as events:
                    async for event in events:
                        give_up_at, turn_up_until = loop.time() + self._rejoin_deadline_s, 0.0
                        recorded = recorded or event.state not in BEFORE_THE_RECORD
                        broken = LinkError(f"the last word was {event.state}", definite=False)
                        yield event
                return
            except LinkError as error:
                if broken is None:
                    raise
                if loop.time() >= give_up_at:
                    raise _out_of_sight(action, broken) from error
            except NotFound as error:
                if known or turn_up_until == 0.0:
                    if recorded or broken is None:
                        raise
                    raise _never_recorded(action, broken) from error
                if loop.time() >= turn_up_until:
                    raise _without_trace(action, broken) from error
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, pause_s * 2)

    async def _events(
        self, call: Callable[[Any], Any], *, once: bool = False
    ) -> AsyncGenerator[ActionEvent, None]:
        """The stream of the first coordinator that takes the call.

        `once`: it is not sent to another one when this one may have taken it.
        """
        patience = Patience(self._patience_s, self._on_waiting)
        while True:
            errors: list[AllstopError] = []
            for address in self._addresses:
                begun = False
                try:
                    async with aclosing(self._stream(address, call)) as events:
                        async for event in events:
                            begun = True
                            yield event
                    return
                except AllstopError as error:
                    errors.append(error)
                other_may_try = isinstance(errors[-1], LinkError) and (
                    errors[-1].definite or not once
                )
                if begun or not other_may_try:
                    raise summed_up(errors, errors[-1])
            await patience.pause(errors)

    async def _stream(
        self, address: str, call: Callable[[Any], Any]
    ) -> AsyncGenerator[ActionEvent, None]:
        """The events of one call up to the last; raises AllstopError when that does not come."""
        stream = call(await self._stub(address))
        async with aclosing(events_of(stream, address, ActionEvent)) as events:
            async for event in events:
                yield event


def _out_of_sight(action: str, broken: LinkError) -> LinkError:
    return LinkError(
        f"the connection broke while following {action}: {broken.what}",
        advice=f"it may go on without us: `allstop show {action}`",
        definite=False,
    )


def _never_recorded(action: str, broken: LinkError) -> LinkError:
    """Nothing is ordered before the record stands, and no older leader can write it any more."""
    return LinkError(
        f"the coordinator that led ended before it had recorded {action}, so it has not begun"
        f" ({broken.what})",
        advice="ask again",
    )


def _without_trace(action: str, broken: LinkError | None) -> LinkError:
    return LinkError(
        f"the answer to the request was lost ({broken.what if broken else 'no reason is known'}),"
        f" and nobody knows of {action}",
        advice=f"it has most likely not begun: look once more with `allstop show {action}`, then"
        " ask again",
        definite=False,
    )
