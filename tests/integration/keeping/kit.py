"""Coordinators that may be killed at any moment, and shims behind a carrier that stays.

The shims are fake but for what they do with images: what they persist lies in a real directory
store, and tasks about it are carried out by the agent's own code.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from allstop.v1 import shim_pb2

from coordinator.codec import to_proto
from coordinator.core.errors import Fenced
from coordinator.core.kept import KeptImages
from coordinator.core.model import Phase
from coordinator.link.carrier import Carrier
from coordinator.link.relay import RelayClient
from coordinator.server.serving import Seat, start_serving
from coordinator.store.election import Election
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from tests.integration.replicas.kit import WAIT_S, Replicas, Watchful, attach
from tests.support.replica import dial
from worker_shim.agent.tasks import StoreTasks
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.objects.directory import DirectoryObjects
from worker_shim.images.port import Collected, Launch, Manifest

IMAGE_BYTES = 3 << 20


@dataclass
class Gates:
    """Where tasks are stopped until a test lets them go on."""

    closed: set[str] = field(default_factory=set)
    reached: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def at(self, place: str) -> None:
        """A task has come here."""
        if place in self.closed:
            self.opened.clear()
            self.reached.put_nowait(place)
            await self.opened.wait()

    async def stopped(self, place: str) -> None:
        """Wait until a task has come there."""
        async with asyncio.timeout(WAIT_S):
            while await self.reached.get() != place:
                pass

    def open(self) -> None:
        """Whoever waits goes on, and nobody is stopped any more."""
        self.closed.clear()
        self.opened.set()


class GatedStore(ChunkStore):
    """A real store that stops where a test says."""

    gates = Gates()

    def __init__(self, root: Path, node: str = "") -> None:
        super().__init__(DirectoryObjects(root, node))
        self.root = root

    async def actions(self, job: str, *, deadline_s: float) -> tuple[str, ...]:
        """Before it looks."""
        await self.gates.at("list")
        return await super().actions(job, deadline_s=deadline_s)

    async def collect(self, *rest: Any, **how: Any) -> Collected:
        """Before it removes, and when that is done and not told."""
        await self.gates.at("collect")
        collected = await super().collect(*rest, **how)
        await self.gates.at("collected")
        return collected


class KeepingShim(Watchful):
    """A shim that really stores, lists, collects and verifies."""

    def __init__(self, address: str, node: str, store: ChunkStore, **options: Any) -> None:
        super().__init__(address, node, **options)
        self.store = store
        self.facts = replace(self.facts, store=store.identity)
        self.tasks = StoreTasks(store, lambda: node)
        self.tasks.send = self._say_soon
        self.kept: list[KeptImages] = []

    def _say_soon(self, message: shim_pb2.ShimMessage) -> bool:
        body = message.WhichOneof("body")
        assert body is not None
        task = asyncio.create_task(self.say(**{body: getattr(message, body)}))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def leave(self, *, goodbye: bool = True) -> None:
        """What runs in the store ends too, unheard where the shim dies."""
        if not goodbye:
            self.vanish()
        await self.tasks.stop()
        await super().leave(goodbye=goodbye)

    async def _take(self, message: shim_pb2.CoordinatorMessage) -> None:
        if message.WhichOneof("body") != "task":
            await super()._take(message)
        elif message.task.epoch < self.epoch:
            self.tasks.refuse(message.task, Fenced("an older epoch spoke"))
        else:
            self.tasks.take(message.task)

    async def _fill_in(
        self, order: shim_pb2.Order, phase: Phase, result: shim_pb2.OrderResult
    ) -> None:
        if phase is not Phase.PERSIST:
            await super()._fill_in(order, phase, result)
            return
        staged = self.store.root.parent / f"staged-{order.action}-{self.node}"
        await asyncio.to_thread(_stage, staged)
        stored = await self.store.put(
            staged, _manifest(order), base=order.persist.base,
            progress=lambda done, total: None, deadline_s=WAIT_S,
        )  # fmt: skip
        self.kept.append(KeptImages(stored.place, stored.digest))
        record = replace(
            self.record_of(order),
            manifest=stored.place,
            manifest_digest=stored.digest,
            store=self.store.identity,
        )
        result.record.CopyFrom(to_proto(record))


def _stage(staged: Path) -> None:
    staged.mkdir()
    (staged / "pages-1.img").write_bytes(os.urandom(IMAGE_BYTES))


def _manifest(order: shim_pb2.Order) -> Manifest:
    return Manifest(
        version=1, job=order.job, worker=order.worker, action=order.action, incarnation=1,
        root_pid=1, files=(), open_files=(), page={}, slots=(), workers=2, command=("python",),
        run_directory="/run", launch=Launch(("python",), {}, "/", 1),
    )  # fmt: skip


@dataclass
class Cluster:
    """What a test acts on."""

    coordinators: Replicas
    shims: list[KeepingShim]
    store: GatedStore
    kv: EtcdKeyValue
    address: str  # of the carrier

    @property
    def addresses(self) -> list[str]:
        """Where operators ask."""
        return self.coordinators.addresses

    async def kill_leader(self) -> None:
        """SIGKILL whoever leads, start it again, and wait until one leads."""
        marks = self.coordinators.marks()
        leading = await self.leader_name()
        await self.coordinators.running[leading].close()
        marks.pop(leading)
        await self.coordinators.start(leading)
        await self.coordinators.leader(since=marks)

    async def leader_name(self) -> str:
        """Who leads, as etcd has it."""
        leaders = Election(self.kv, "nobody", prefix=self.coordinators.prefix).leaders()
        async with asyncio.timeout(WAIT_S):
            async for leader in leaders:
                if leader is not None:
                    return leader.name
        raise AssertionError("nobody leads")

    def images(self) -> set[str]:
        """Attempts of which anything is in the image store."""
        root = self.store.root / "llm"
        return {each.name for each in root.iterdir()} if root.is_dir() else set()


@asynccontextmanager
async def cluster(endpoint: str, prefix: str, folder: Path) -> AsyncIterator[Cluster]:
    """Two coordinators, a carrier in this process, two shims with workers and a spare."""
    coordinators = Replicas(endpoint, prefix, folder)
    kv = EtcdKeyValue(EtcdOptions((endpoint,)))
    carrier = Carrier("carrier")
    serving = await start_serving(
        Seat(carrier), unix_socket=folder / "carrier.sock", node_lease_s=3600.0
    )
    election = Election(kv, "carrier", prefix=prefix)
    client = RelayClient(carrier, dial, beat_s=0.2)
    following = asyncio.create_task(client.run(election.leaders()))
    shims: list[KeepingShim] = []
    try:
        for name in ("c1", "c2"):
            await coordinators.start(name)
        await coordinators.leader()
        address = serving.addresses[0]
        GatedStore.gates = Gates()
        for number in range(3):
            store = GatedStore(folder / "store", f"node-{number}")
            with_job = {"job": "llm", "worker": number, "workers": 2} if number < 2 else {}
            shims.append(KeepingShim(address, f"node-{number}", store, **with_job))
            await attach(shims[-1])
        yield Cluster(coordinators, shims, GatedStore(folder / "store"), kv, address)
    finally:
        GatedStore.gates.open()
        for shim in shims:
            await shim.leave(goodbye=False)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await serving.stop(0.2)
        await kv.close()
        await coordinators.close()
