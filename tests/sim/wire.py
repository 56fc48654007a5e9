"""gRPC without gRPC: calls between simulated processes over links that can be slow and cut.

A call is a connection of its own. Its messages travel as bytes, in order, and none of them is lost
while it stands: what a cut link keeps back arrives when the link is whole again, if the call still
stands then. A call breaks when a process dies, or when keepalive has had no answer for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from tests.sim.loop import DEAD, FROZEN, PROCESS, Process, SimLoop

if TYPE_CHECKING:
    from random import Random

KEEPALIVE_S = 6.0
CLIENT, SERVER = "client", "server"

Code = grpc.StatusCode


class Aborted(Exception):
    """A handler ended its call with a status."""

    def __init__(self, code: Code, details: str, metadata: Any) -> None:
        super().__init__(details)
        self.code, self.details, self.metadata = code, details, metadata


class Network:
    """Hosts, the links between them, and who listens where."""

    def __init__(self, loop: SimLoop, rng: Random) -> None:
        """Everything is linked and quick until told otherwise."""
        self.loop, self.rng = loop, rng
        self.cut: set[tuple[str, str]] = set()
        self.slow: dict[tuple[str, str], float] = {}
        self.listeners: dict[str, tuple[Process, dict[str, Callable[..., Any]]]] = {}
        self.calls: list[Call] = []
        self.on_late: Callable[[Call, bytes], None] | None = None

    def listen(self, address: str, process: Process, services: dict[str, Any]) -> None:
        """`services` maps a path such as /allstop.v1.ShimLink/Attach to its handler."""
        self.listeners[address] = (process, services)
        process.at_death.append(lambda: self._died(process))

    def up(self, source: str, target: str) -> bool:
        """Whether packets go from one host to the other."""
        return (source, target) not in self.cut

    def latency_s(self, source: str, target: str) -> float:
        """How long a message takes now."""
        extra = self.slow.get((source, target), 0.0)
        return self.rng.uniform(0.0002, 0.003) + (self.rng.uniform(0.1, 1.0) * extra)

    # -- faults -----------------------------------------------------------------------------------

    def cut_off(self, source: str, target: str) -> None:
        """Nothing goes from one host to the other any more; the way back is another matter."""
        self.cut.add((source, target))
        self.watch_silence()

    def heal(self, source: str, target: str) -> None:
        """Packets go again, and those that were kept back arrive."""
        self.cut.discard((source, target))
        for call in list(self.calls):
            call.flush()

    def watch_silence(self) -> None:
        """Something stands still: keepalive will notice, unless it goes on in time."""
        for call in list(self.calls):
            call.watch_silence()

    def _died(self, process: Process) -> None:
        for call in list(self.calls):
            call.process_died(process)


class Channel:
    """`grpc.aio.Channel` as far as stream-stream calls go."""

    def __init__(self, network: Network, target: str) -> None:
        self._network = network
        self._address = target.removeprefix("dns:///")
        self._calls: list[Call] = []

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """End every call of this channel."""
        for call in self._calls:
            call.cancel()

    def stream_stream(
        self, path: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Callable[..., Call]:
        """What a stub asks for when it is made."""

        def begin(requests: Any = None, **_: Any) -> Call:
            call = Call(
                self._network,
                self._address,
                path,
                requests,
                request_serializer,
                response_deserializer,
            )
            self._calls = [each for each in self._calls if not each.over[CLIENT]] + [call]
            return call

        return begin

    def _none(self, path: str, **_: Any) -> Callable[..., Any]:
        def begin(*args: Any, **_: Any) -> Any:
            raise NotImplementedError(f"{path} is not simulated")

        return begin

    unary_unary = unary_stream = stream_unary = _none


class Side:
    """What one end of a call has received and not read yet."""

    def __init__(self) -> None:
        self.inbox: deque[Any] = deque()
        self.end: Any = None  # an exception, or StopAsyncIteration's stand-in
        self.waiter: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        if self.end is None:
            self.inbox.append(item)
            self._wake()

    def finish(self, end: Any) -> None:
        if self.end is None:
            self.end = end
            self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def get(self) -> Any:
        """The next item; raises StopAsyncIteration or whatever ended it, after all items."""
        while not self.inbox:
            if self.end is not None:
                raise StopAsyncIteration if self.end is True else self.end
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        return self.inbox.popleft()


class Call:
    """One stream-stream call; the object that the client has, and the server's part of it."""

    def __init__(
        self,
        network: Network,
        address: str,
        path: str,
        requests: Any,
        serialize: Any,
        deserialize: Any,
    ) -> None:
        client = PROCESS.get()
        assert client is not None, "calls are made by processes"
        self.network, self.loop, self.path = network, network.loop, path
        self.client, self.server = client, None
        self.sides = {CLIENT: Side(), SERVER: Side()}
        self.over = {CLIENT: False, SERVER: False}
        self._deserialize, self._serialize = deserialize, serialize
        self._ways: dict[str, deque[Any]] = {CLIENT: deque(), SERVER: deque()}  # kept back, by to
        self._arrived = {CLIENT: 0.0, SERVER: 0.0}
        self._serving: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._code: Code | None = None
        found = network.listeners.get(address)
        host = found[0].host if found else ""
        if found is None or (found[0].state == DEAD and network.up(client.host, host)):
            self.loop.call_later(0.001, self._refused, "connection refused")
            return
        self.server, self._handler = found[0], found[1].get(path)
        network.calls.append(self)
        client.at_death.append(lambda: self.process_died(client))
        self._send(SERVER, ("open", None))
        if requests is not None:
            self._reading = self.loop.create_task(self._read_requests(requests))
        self.watch_silence()

    # -- the client's object ----------------------------------------------------------------------

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Any:
        item = await self.sides[CLIENT].get()
        return self._deserialize(item)

    def cancel(self) -> bool:
        """End the call here; the server hears of it."""
        if self.over[CLIENT]:
            return False
        self._end(CLIENT, asyncio.CancelledError())
        self._send(SERVER, ("gone", None))
        return True

    def done(self) -> bool:
        """Whether it is over for the client."""
        return self.over[CLIENT]

    async def code(self) -> Code:
        """Its status."""
        return self._code or Code.OK

    def _refused(self, why: str) -> None:
        self._end(CLIENT, _error(Code.UNAVAILABLE, f"failed to connect: {why}"))

    async def _read_requests(self, requests: AsyncIterator[Any]) -> None:
        async for request in requests:
            if self.over[CLIENT]:
                return
            self._send(SERVER, ("message", self._serialize(request)))
        self._send(SERVER, ("half", None))

    # -- on the way -------------------------------------------------------------------------------

    def _hosts(self, to: str) -> tuple[str, str]:
        assert self.server is not None
        ends = (self.client.host, self.server.host)
        return ends if to == SERVER else (ends[1], ends[0])

    def _send(self, to: str, item: tuple[str, Any]) -> None:
        if self.server is None or (
            self.over[SERVER if to == CLIENT else CLIENT]
            and item[0]
            in (
                "message",
                "half",
            )
        ):
            return
        self._ways[to].append(item)
        self.flush()

    def flush(self) -> None:
        """Let what waits travel, where the link is whole."""
        for to, waiting in self._ways.items():
            if not waiting or not self.network.up(*self._hosts(to)):
                continue
            receiver = self.server if to == SERVER else self.client
            assert receiver is not None
            while waiting:
                item = waiting.popleft()
                when = self.loop.now + self.network.latency_s(*self._hosts(to))
                self._arrived[to] = when = max(when, self._arrived[to])
                self.loop.at(when, self._arrive, to, item, context=receiver.context.copy())

    def _arrive(self, to: str, item: tuple[str, Any]) -> None:
        kind, value = item
        if self.over[to]:
            if kind == "message" and to == CLIENT and self.network.on_late is not None:
                self.network.on_late(self, value)
        elif kind == "message":
            self.sides[to].put(value)
        elif kind == "open":
            self._serve()
        elif kind == "half":
            self.sides[SERVER].finish(True)
        elif kind == "gone":
            self._end(to, _error(Code.UNAVAILABLE, "the peer is gone"))
        elif kind == "status":
            code, details, metadata = value
            self._code = code
            end = True if code is Code.OK else _error(code, details, metadata)
            self._end(CLIENT, end)

    _arrive.arrival = True  # type: ignore[attr-defined]

    # -- how it ends ------------------------------------------------------------------------------

    def _end(self, side: str, why: Any) -> None:
        """This end is over; what was received before can still be read."""
        if self.over[side]:
            return
        self.over[side] = True
        self.sides[side].finish(why if side == CLIENT else True)
        for kind, value in self._ways[side]:
            if kind == "message" and side == CLIENT and self.network.on_late is not None:
                self.network.on_late(self, value)
        if isinstance(why, asyncio.CancelledError):
            self.sides[side].inbox.clear()
        if side == SERVER and self._serving is not None:
            self._serving.cancel()
        if all(self.over.values()) and self in self.network.calls:
            self.network.calls.remove(self)

    def process_died(self, process: Process) -> None:
        """The kernel closes the connections of a dead process, and tells the peer."""
        if process is self.client and not self.over[CLIENT]:
            self.over[CLIENT] = True
            self._ways[SERVER].append(("gone", None))
        if process is self.server and not self.over[SERVER]:
            self.over[SERVER] = True
            self._ways[CLIENT].append(("gone", None))
        if self.server is not None:
            self.flush()
        if all(self.over.values()) and self in self.network.calls:
            self.network.calls.remove(self)

    def _silent(self, side: str) -> bool:
        """Whether an end gets no answers to its pings now."""
        assert self.server is not None
        peer = self.server if side == CLIENT else self.client
        there, back = self._hosts(SERVER), self._hosts(CLIENT)
        return peer.state == FROZEN or not (self.network.up(*there) and self.network.up(*back))

    def watch_silence(self) -> None:
        """Look again when keepalive would have given up, at each end that is silent now."""
        for side in (CLIENT, SERVER):
            if self.server is not None and not self.over[side] and self._silent(side):
                self._look_later(side, 0)

    def _look_later(self, side: str, looked: int) -> None:
        pause_s = KEEPALIVE_S / 4 * self.network.rng.uniform(1.0, 1.3)
        self.loop.later(pause_s, self._look, side, looked)

    def _look(self, side: str, looked: int) -> None:
        if self.over[side] or not self._silent(side):
            return
        if looked < 3:
            self._look_later(side, looked + 1)
            return
        own = self.client if side == CLIENT else self.server
        assert own is not None
        own.run(self._end, side, _error(Code.UNAVAILABLE, "keepalive: no answer from the peer"))
        self._ways[CLIENT if side == SERVER else SERVER].append(("gone", None))
        self.flush()

    # -- the server's part ------------------------------------------------------------------------

    def _serve(self) -> None:
        if self._handler is None:
            self._send(CLIENT, ("status", (Code.UNIMPLEMENTED, self.path, ())))
            return
        self._serving = self.loop.create_task(self._answer(), name=f"serve {self.path}")

    async def _answer(self) -> None:
        assert self._handler is not None
        handler, deserialize, serialize = self._handler
        status = (Code.OK, "", ())
        try:
            async for answer in handler(_Requests(self.sides[SERVER], deserialize), _Context()):
                self._send(CLIENT, ("message", serialize(answer)))
        except Aborted as aborted:
            status = (aborted.code, aborted.details, aborted.metadata)
        except asyncio.CancelledError:
            if self.over[SERVER]:
                return
            raise
        except Exception as error:
            status = (Code.UNKNOWN, repr(error), ())
            self.loop.call_exception_handler({"message": "a handler failed", "exception": error})
        self._send(CLIENT, ("status", status))
        self._serving = None
        self.over[SERVER] = True


class _Requests:
    def __init__(self, side: Side, deserialize: Any) -> None:
        self._side, self._deserialize = side, deserialize

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> Any:
        return self._deserialize(await self._side.get())


class _Context:
    async def abort(self, code: Code, details: str = "", trailing_metadata: Any = ()) -> None:
        raise Aborted(code, details, trailing_metadata)

    def auth_context(self) -> dict[str, tuple[bytes, ...]]:
        """Connections are plain here."""
        return {}

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"the context's {name} is not simulated")


def _error(code: Code, details: str, metadata: Any = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details=details
    )
