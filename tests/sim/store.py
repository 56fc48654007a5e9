"""The store as a process: the in-memory twin of etcd behind links that fail like etcd's own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from coordinator.core.errors import StoreError
from coordinator.store.kv import Compacted, Compare, Delete, Event, Lease, Put, Range, View, Written
from coordinator.store.memory import MemoryKeyValue
from tests.sim.loop import DEAD, FROZEN, Process

if TYPE_CHECKING:
    from tests.sim.wire import Network

CALL_S = 3.0  # as the real client's deadline of one call
LOOK_S = 0.1

T = TypeVar("T")
Applied = Callable[[str, Sequence["Put | Delete"], int], None]


def _is_commit(ops: Sequence[Put | Delete]) -> bool:
    keys = [op.key for op in ops if isinstance(op, Put)]
    return all(any(shelf in key for key in keys) for shelf in ("/snapshots/", "/attempts/"))


class StoreProcess:
    """One etcd: its data outlives its process."""

    def __init__(self, network: Network, process: Process, applied: Applied) -> None:
        """`applied(client, ops, revision)` is called for every transaction that goes through."""
        self.network, self.process = network, process
        self.kv = MemoryKeyValue()
        self.applied = applied
        self.refusing = False  # no room: writes are refused, leases are kept
        self.mute = 0  # so many answers to writes are lost though the write was applied
        self.held: deque[Callable[[], float]] = deque()  # commits that arrive late, and how late
        self.stuck: deque[tuple[str, Callable[[], None]]] = deque()  # requests on cut links

    def restart(self, process: Process) -> None:
        """A new process over the old data; leases begin anew, as with a new leader of etcd."""
        self.process = process
        for lease, (ttl_s, timer) in list(self.kv._leases.items()):
            if timer is not None:
                timer.cancel()
            process.run(self._begin_lease, lease, ttl_s)

    def _begin_lease(self, lease: int, ttl_s: float) -> None:
        if lease in self.kv._leases:
            self.kv._leases[lease] = (ttl_s, self.kv._end_after(lease, ttl_s))

    def flush(self) -> None:
        """What was kept back on links that are whole again arrives, or was lost with them."""
        waiting, self.stuck = self.stuck, deque()
        for host, arrive in waiting:
            if not self.network.up(host, self.process.host):
                self.stuck.append((host, arrive))
            elif self.network.rng.random() < 0.7:
                arrive()


class SimKeyValue:
    """One coordinator's client of the store; `KeyValue` as the real client behaves."""

    def __init__(self, store: StoreProcess, owner: Process) -> None:
        self._store, self._owner = store, owner
        self._loop = owner.loop

    # -- the port ---------------------------------------------------------------------------------

    async def read(self, *ranges: Range) -> View:
        """Read at one revision."""
        return await self._call("read", lambda kv: kv.read(*ranges), writes=False)

    async def write(self, compares: Sequence[Compare], ops: Sequence[Put | Delete]) -> Written:
        """One transaction."""

        async def apply(kv: MemoryKeyValue) -> Written:
            if self._store.refusing and any(isinstance(op, Put) for op in ops):
                raise StoreError("etcd: database space exceeded")
            written = await kv.write(compares, ops)
            if written.done:
                self._store.applied(self._owner.name, ops, written.revision)
            return written

        held, late_s = self._store.held, 0.0
        if held and _is_commit(ops):
            late_s = held.popleft()()
        return await self._call("write", apply, writes=True, late_s=late_s)

    async def grant(self, ttl_s: float) -> Lease:
        """Open a lease."""
        return await self._call("grant", lambda kv: kv.grant(ttl_s), writes=False)

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease."""
        return await self._call("keep_alive", lambda kv: kv.keep_alive(lease), writes=False)

    async def revoke(self, lease: int) -> None:
        """End a lease."""
        await self._call("revoke", lambda kv: kv.revoke(lease), writes=False)

    async def watch(self, prefix: str, revision: int) -> AsyncGenerator[Event | Compacted]:
        """Every change, late where the link is cut or the store stands still."""
        async for change in self._store.kv.watch(prefix, revision):
            while not self._reachable():  # noqa: ASYNC110 - links have no events
                await asyncio.sleep(LOOK_S)
            await asyncio.sleep(self._latency_s(back=True))
            yield change

    async def close(self) -> None:
        """Nothing is open."""

    # -- on the way -------------------------------------------------------------------------------

    def _reachable(self) -> bool:
        network, store = self._store.network, self._store.process
        here, there = self._owner.host, store.host
        return (
            store.state not in (DEAD, FROZEN)
            and network.up(here, there)
            and network.up(there, here)
        )

    def _latency_s(self, *, back: bool = False) -> float:
        here, there = self._owner.host, self._store.process.host
        return self._store.network.latency_s(*((there, here) if back else (here, there)))

    async def _call(
        self,
        what: str,
        work: Callable[[MemoryKeyValue], Coroutine[Any, Any, T]],
        *,
        writes: bool,
        late_s: float = 0.0,
    ) -> T:
        """Send, wait for the answer; a write that is not answered may have happened."""
        answer: asyncio.Future[T] = self._loop.create_future()
        if self._store.process.state == DEAD:
            await asyncio.sleep(0.01)
            raise StoreError(f"{what}: no connection to etcd")
        self._travel(lambda: self._serve(what, work, answer, writes), late_s)
        try:
            async with asyncio.timeout(CALL_S):
                return await answer
        except TimeoutError:
            raise StoreError(
                f"{what}: etcd did not answer within {CALL_S:g} s", definite=False
            ) from None

    def _travel(self, arrive: Callable[[], None], late_s: float) -> None:
        """The request's way; the kernel of the store's machine takes it also from a frozen etcd."""
        store = self._store

        def send() -> None:
            context = store.process.context.copy()
            when = self._loop.now + self._latency_s() + late_s
            self._loop.at(when, arrive, context=context)

        if store.network.up(self._owner.host, store.process.host):
            send()
        else:
            store.stuck.append((self._owner.host, send))

    def _serve(
        self,
        what: str,
        work: Callable[[MemoryKeyValue], Coroutine[Any, Any, T]],
        answer: asyncio.Future[T],
        writes: bool,
    ) -> None:
        """In the store's process."""
        result: Any = None
        error: Exception | None = None
        try:
            work(self._store.kv).send(None)
        except StopIteration as done:
            result = done.value
        except StoreError as refused:
            error = refused
        if writes and self._store.mute > 0:
            self._store.mute -= 1
            return
        if not self._store.network.up(self._store.process.host, self._owner.host):
            return

        def take() -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        when = self._loop.now + self._latency_s(back=True)
        self._loop.at(when, take, context=self._owner.context.copy())
