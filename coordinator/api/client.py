"""The operator's side of the wire: several addresses, deadlines, and the coordinator's own errors.

async with OperatorClient(["unix:/run/allstop/sock", "10.0.0.1:7411"]) as client:
    async for event in client.checkpoint("llm"):
        ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from allstop.v1 import operator_pb2, operator_pb2_grpc, records_pb2

from coordinator.api.values import ActionEvent, Planned, Snapshots
from coordinator.codec import from_proto
from coordinator.core.errors import AllstopError, BadRequest, LinkError
from coordinator.core.failures import error_of
from coordinator.core.model import Cut
from coordinator.core.view import JobView, NodeView
from coordinator.link.mapping import error_of_call
from coordinator.link.options import Keepalive, client_options
from coordinator.store.port import Shown

CONNECT_DEADLINE_S = 3.0
CALL_DEADLINE_S = 20.0
REJOIN_DEADLINE_S = 10.0
BROKEN = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)

_CUT = {Cut.STEP: records_pb2.CUT_STEP, Cut.FREEZE: records_pb2.CUT_FREEZE}


def target_of(address: str) -> str:
    """A gRPC target: `host:port` and `unix:PATH` as they are, a bare path as a unix socket."""
    return f"unix:{address}" if address.startswith("/") else address


class OperatorClient:
    """Talks to the first of several coordinators that leads; raises what the coordinator raised.

    LinkError when none can be reached; `definite=False` when a request may have got through.
    Channels are made inside the running loop and closed by `close`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        connect_deadline_s: float = CONNECT_DEADLINE_S,
        call_deadline_s: float = CALL_DEADLINE_S,
        keepalive: Keepalive | None = None,
    ) -> None:
        """`connect_deadline_s` is for each address, `call_deadline_s` for each short request."""
        if not addresses:
            raise BadRequest("no coordinator address was given")
        self._addresses = list(dict.fromkeys(target_of(str(address)) for address in addresses))
        self._connect_deadline_s = connect_deadline_s
        self._call_deadline_s = call_deadline_s
        # A pool of its own: a new channel must not wait out the back-off of an older one.
        own_pool = ("grpc.use_local_subchannel_pool", 1)
        self._options = [*client_options(keepalive or Keepalive()), own_pool]
        self._channels: dict[str, grpc.aio.Channel] = {}

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
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    # -- starting and following --------------------------------------------------------------

    def checkpoint(
        self, job: str, *, cut: Cut = Cut.STEP, stop: bool = False, deadline_s: float = 0.0
    ) -> AsyncGenerator[ActionEvent, None]:
        """Take a checkpoint and follow it to its end; raises its failure after the last event."""
        request = operator_pb2.CheckpointRequest(
            job=job, cut=_CUT[cut], stop=stop, deadline_s=deadline_s
        )
        return self._followed(lambda stub: stub.Checkpoint(request))

    def restore(
        self, job: str, snapshot: str = "", *, deadline_s: float = 0.0
    ) -> AsyncGenerator[ActionEvent, None]:
        """Put a snapshot (empty: the latest) back and follow it; raises its failure at the end."""
        request = operator_pb2.RestoreRequest(job=job, snapshot=snapshot, deadline_s=deadline_s)
        return self._followed(lambda stub: stub.Restore(request))

    def watch(self, action: str) -> AsyncGenerator[ActionEvent, None]:
        """Join a running attempt or restore, or hear how a finished one ended."""
        request = operator_pb2.WatchRequest(action=action)
        return self._followed(lambda stub: stub.Watch(request))

    async def abort(self, action: str, reason: str = "") -> str:
        """Ask that an attempt or restore be given up; returns what the coordinator says to it."""
        request = operator_pb2.AbortRequest(action=action, reason=reason)
        reply = await self._ask(lambda stub, timeout: stub.Abort(request, timeout=timeout))
        return str(reply.note)

    # -- reading -----------------------------------------------------------------------------

    async def plan(self, job: str, snapshot: str = "") -> Planned:
        """Where a restore would put each worker now."""
        request = operator_pb2.PlanRequest(job=job, snapshot=snapshot)
        reply = await self._ask(lambda stub, timeout: stub.PlanRestore(request, timeout=timeout))
        return from_proto(reply, Planned)

    async def jobs(self) -> tuple[JobView, ...]:
        """All jobs, by name."""
        request = operator_pb2.ListJobsRequest()
        reply = await self._ask(lambda stub, timeout: stub.ListJobs(request, timeout=timeout))
        return tuple(from_proto(view, JobView) for view in reply.jobs)

    async def nodes(self) -> tuple[NodeView, ...]:
        """All nodes, by name, those lost and left included."""
        request = operator_pb2.ListNodesRequest()
        reply = await self._ask(lambda stub, timeout: stub.ListNodes(request, timeout=timeout))
        return tuple(from_proto(view, NodeView) for view in reply.nodes)

    async def snapshots(self, job: str) -> Snapshots:
        """The snapshots of a job; raises NotFound when there is no such job."""
        request = operator_pb2.ListSnapshotsRequest(job=job)
        reply = await self._ask(lambda stub, timeout: stub.ListSnapshots(request, timeout=timeout))
        return from_proto(reply, Snapshots)

    async def show(self, identity: str) -> Shown:
        """Everything that has this id; raises NotFound when nothing has."""
        request = operator_pb2.ShowRequest(id=identity)
        reply = await self._ask(lambda stub, timeout: stub.Show(request, timeout=timeout))
        return from_proto(reply, Shown)

    # -- inside ------------------------------------------------------------------------------

    async def _stub(self, address: str) -> operator_pb2_grpc.OperatorStub:
        """A stub whose channel is connected.

        Raises LinkError at once where nobody listens, else within the connect deadline.
        """
        channel = self._channels.get(address)
        if channel is None or channel.get_state() in BROKEN:
            await self._drop(address)
            channel = grpc.aio.insecure_channel(address, options=self._options)
            self._channels[address] = channel
        try:
            async with asyncio.timeout(self._connect_deadline_s):
                refused = not await _is_connected(channel)
        except TimeoutError:
            refused = False
        else:
            if not refused:
                return operator_pb2_grpc.OperatorStub(channel)  # type: ignore[no-untyped-call]
        await self._drop(address)
        how = "" if refused else f" within {self._connect_deadline_s:g} s"
        raise LinkError(
            f"{'nobody listens' if refused else 'no coordinator answers'} at {address}{how}",
            advice="is it running? `allstop up` starts one; --coordinator names another",
        )

    async def _drop(self, address: str) -> None:
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def _ask(self, call: Callable[[Any, float], Any]) -> Any:
        """One short request, to one address after another until one answers."""
        errors: list[AllstopError] = []
        for address in self._addresses:
            try:
                return await call(await self._stub(address), self._call_deadline_s)
            except grpc.aio.AioRpcError as error:
                errors.append(error_of_call(error, address))
            except LinkError as error:
                errors.append(error)
            if not isinstance(errors[-1], LinkError) or not errors[-1].definite:
                break
        raise _summed_up(errors)

    async def _followed(self, call: Callable[[Any], Any]) -> AsyncGenerator[ActionEvent, None]:
        """Events of one action up to its last; then raise its failure, if it has one.

        A stream that breaks half-way is joined again by Watch, at whichever coordinator leads: the
        request itself is never sent twice.
        """
        action, failure = "", None
        broken: LinkError | None = None
        async with aclosing(self._events(call)) as events:
            try:
                async for event in events:
                    action, failure = event.action, event.failure
                    yield event
            except LinkError as error:
                if not action:
                    raise
                broken = error
        if broken is not None:
            async with aclosing(self._rejoined(action, broken)) as events:
                async for event in events:
                    failure = event.failure
                    yield event
        if failure is not None:
            raise error_of(failure)

    async def _rejoined(self, action: str, broken: LinkError) -> AsyncGenerator[ActionEvent, None]:
        """Watch an action whose stream broke, as soon as some coordinator leads again."""
        request = operator_pb2.WatchRequest(action=action)
        loop = asyncio.get_running_loop()
        give_up_at, pause_s = loop.time() + REJOIN_DEADLINE_S, 0.1
        while True:
            try:
                async with aclosing(self._events(lambda stub: stub.Watch(request))) as events:
                    async for event in events:
                        give_up_at = loop.time() + REJOIN_DEADLINE_S
                        yield event
                return
            except LinkError as error:
                if loop.time() >= give_up_at:
                    raise LinkError(
                        f"the connection broke while following {action}: {broken.what}",
                        advice=f"it may go on without us: `allstop show {action}`",
                        definite=False,
                    ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(1.0, pause_s * 2)

    async def _events(self, call: Callable[[Any], Any]) -> AsyncGenerator[ActionEvent, None]:
        """The stream of the first coordinator that takes the call; never asked for twice."""
        errors: list[AllstopError] = []
        begun = False
        for address in self._addresses:
            try:
                stream = call(await self._stub(address))
                try:
                    async for message in stream:
                        begun = True
                        yield from_proto(message, ActionEvent)
                        if message.last:
                            return
                finally:
                    stream.cancel()
                errors.append(LinkError(f"{address} ended the stream early", definite=False))
            except grpc.aio.AioRpcError as error:
                errors.append(error_of_call(error, address))
            except LinkError as error:
                errors.append(error)
            if begun or not isinstance(errors[-1], LinkError) or not errors[-1].definite:
                break
        raise _summed_up(errors)


async def _is_connected(channel: grpc.aio.Channel) -> bool:
    """Wait until the channel is ready; False as soon as every address of it has refused."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state in BROKEN:
            return False
        await channel.wait_for_state_change(state)
    return True


def _summed_up(errors: list[AllstopError]) -> AllstopError:
    """The error to raise after all addresses were tried: the last, with the others as details."""
    last = errors[-1]
    if len(errors) > 1:
        last.details = (*last.details, *(str(error) for error in errors[:-1]))
    return last
