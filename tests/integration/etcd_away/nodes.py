"""Nodes with the real agent and its real stream over drivers that a test can stop at a gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.core.model import Endpoint, Phase, RankState
from tests.unit.agent.fakes import RANK, FakeHook, FakeImages, FakePage, FakeProcesses
from worker_shim.agent.agent import Agent
from worker_shim.agent.fence import Fence
from worker_shim.agent.options import WorkerSpec
from worker_shim.agent.ports import Drivers, Page
from worker_shim.agent.stream import Stream
from worker_shim.agent.worker import Worker
from worker_shim.criu.port import DumpStats
from worker_shim.cuda.fake import FakeCuda
from worker_shim.facts import NodeProbe
from worker_shim.files.fake import FakeFileDriver
from worker_shim.images.fake import FakeImageStore
from worker_shim.images.port import Manifest, Stored
from worker_shim.images.staging import Staging
from worker_shim.network.fake import FakeNetworkDriver
from worker_shim.network.port import Sockets
from worker_shim.process.port import Tree, unheard

NOTHING = Sockets((), ())
REACHED_S = 20.0


class Gates:
    """A closed gate stops a driver in that phase until it is opened."""

    def __init__(self) -> None:
        self._closed: dict[Phase, asyncio.Event] = {}
        self._reached: dict[Phase, asyncio.Event] = {}

    def close(self, phase: Phase) -> None:
        """Stop whoever comes to this phase from now on."""
        self._closed[phase], self._reached[phase] = asyncio.Event(), asyncio.Event()

    def open(self) -> None:
        """Let everyone go on."""
        for gate in self._closed.values():
            gate.set()

    async def reached(self, phase: Phase) -> None:
        """Wait until somebody stands there."""
        async with asyncio.timeout(REACHED_S):
            await self._reached[phase].wait()

    async def go_through(self, phase: Phase) -> None:
        """Called by the drivers."""
        gate = self._closed.get(phase)
        if gate is not None:
            self._reached[phase].set()
            await gate.wait()


class GatedPage(FakePage):
    """The page of one rank with a number of its own."""

    def __init__(self, gates: Gates, rank: int, world_size: int, boundary: int = 7) -> None:
        super().__init__(boundary)
        self.gates, self.rank, self.world_size = gates, rank, world_size

    def ranks(self, tree: Tree | None = None) -> tuple[RankState, ...]:
        parked = bool(self.hold and self.target) and self.boundary == self.target
        return (RankState(self.rank, 0, RANK, self.boundary, parked),)

    async def raise_hold(self, generation: int) -> None:
        await self.gates.go_through(Phase.HOLD)
        await super().raise_hold(generation)

    async def wait_parked(
        self,
        tree: Tree | None = None,
        *,
        known: tuple[RankState, ...] = (),
        deadline_s: float,
        arrived: Callable[[int], object] = unheard,
    ) -> tuple[RankState, ...]:
        await self.gates.go_through(Phase.PARK)
        return await super().wait_parked(tree, known=known, deadline_s=deadline_s, arrived=arrived)


class GatedHook(FakeHook):
    """Pages with gates, also after a restore."""

    def __init__(self, gates: Gates, rank: int, world_size: int) -> None:
        super().__init__()
        self.gates, self.rank, self.world_size = gates, rank, world_size
        self.page: GatedPage = GatedPage(gates, rank, world_size)

    def renew(
        self, directory: Path, page: Mapping[str, int], slots: tuple[Mapping[str, int], ...]
    ) -> Page:
        self.page = GatedPage(self.gates, self.rank, self.world_size, slots[0]["boundary"])
        self.page.hold, self.page.target = page["hold"], page["target"]
        self.page.incarnation = page["incarnation"]
        return self.page


class GatedProcesses(FakeProcesses):
    """The gate of RELEASE is where the tree is told to go on."""

    def __init__(self, gates: Gates) -> None:
        super().__init__()
        self.gates = gates

    async def go_on(self, root_pid: int) -> None:
        await self.gates.go_through(Phase.RELEASE)
        await super().go_on(root_pid)


class GatedImages(FakeImages):
    """DUMP and RESTORE."""

    def __init__(self, gates: Gates, processes: FakeProcesses) -> None:
        super().__init__(processes, NOTHING)
        self.gates = gates

    async def dump(self, root_pid: int, images: Path, *, deadline_s: float) -> DumpStats:
        await self.gates.go_through(Phase.DUMP)
        return await super().dump(root_pid, images, deadline_s=deadline_s)

    async def restore(self, images: Path, *, deadline_s: float) -> int:
        await self.gates.go_through(Phase.RESTORE)
        return await super().restore(images, deadline_s=deadline_s)


class GatedNetwork(FakeNetworkDriver):
    """CLEAR."""

    def __init__(self, gates: Gates) -> None:
        super().__init__(NOTHING)
        self.gates = gates

    async def clear(
        self,
        connections: Sequence[Endpoint],
        *,
        deadline_s: float,
        ports: Sequence[tuple[str, int]] = (),
    ) -> int:
        await self.gates.go_through(Phase.CLEAR)
        return await super().clear(connections, deadline_s=deadline_s, ports=ports)


class GatedStore(FakeImageStore):
    """PERSIST and FETCH; all nodes see one store."""

    def __init__(self, gates: Gates, published: dict[str, Any]) -> None:
        super().__init__(published=published)
        self.gates = gates

    async def put(
        self,
        staged: Path,
        manifest: Manifest,
        *,
        base: str = "",
        progress: Callable[[int, int], None],
        deadline_s: float,
    ) -> Stored:
        await self.gates.go_through(Phase.PERSIST)
        return await super().put(
            staged, manifest, base=base, progress=progress, deadline_s=deadline_s
        )

    async def fetch(
        self,
        place: str,
        digest: str,
        into: Path,
        *,
        progress: Callable[[int, int], None],
        deadline_s: float,
    ) -> Manifest:
        await self.gates.go_through(Phase.FETCH)
        return await super().fetch(place, digest, into, progress=progress, deadline_s=deadline_s)


@dataclass
class Node:
    """One node with one worker of a job."""

    folder: Path
    job: str
    number: int
    workers: int
    published: dict[str, Any]
    gates: Gates = field(default_factory=Gates)

    def __post_init__(self) -> None:
        name, address = f"{self.job}-{self.number}", f"10.0.0.{self.number + 1}"
        self.process = GatedProcesses(self.gates)
        self.images = GatedImages(self.gates, self.process)
        self.network = GatedNetwork(self.gates)
        self.hook = GatedHook(self.gates, self.number, self.workers)
        self.store = GatedStore(self.gates, self.published)
        self.staging = Staging(self.folder / name / "staging", name, keep=False)
        self.probe = NodeProbe(name, address, self.images, self.store, self.staging)
        drivers = Drivers(
            process=self.process,
            images=self.images,
            network=self.network,
            files=FakeFileDriver(),
            cuda=FakeCuda(),
            hook=self.hook,
            store=self.store,
            staging=self.staging,
            facts=self.probe,
            run_root=self.folder / name / "run",
        )
        self.agent = Agent(drivers, Fence(self.folder / name / "state"), self.probe)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def worker(self) -> Worker:
        """The one worker."""
        return self.agent.worker(self.job, self.number)

    async def start(self, addresses: Sequence[str]) -> None:
        """Launch the worker and dial the coordinators."""
        await self.probe.probe()
        stream = Stream(addresses, self.agent)
        self.agent.start(stream.send)
        command = ["python", "train.py"]
        await self.worker.launch(
            WorkerSpec(self.job, self.number, self.workers, command, {}, self.folder)
        )
        self._tasks = [asyncio.create_task(work) for work in (stream.run(), self.agent.reporting())]

    async def stop(self) -> None:
        """End everything, whatever state it is in."""
        self.gates.open()
        await self.agent.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- what a test looks at ------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """The worker runs and nothing holds it."""
        return (
            self.process.state == "S"
            and not self.network.locks
            and self.hook.page.hold == 0
            and self.worker.state == "running"
            and not self.worker.action
        )

    @property
    def gone(self) -> bool:
        """No process and no lock is left."""
        return not self.process.state and not self.network.locks

    @property
    def let_go_by_itself(self) -> bool:
        """Whether the dead-man timer has undone something since the start."""
        return any(finding.code == "dead_man" for finding in self.worker.findings)

    def staged(self) -> list[str]:
        """What lies in staging."""
        return [str(path) for path in self.staging.root.glob("*/*/*")]

    def stored(self, action: str) -> list[str]:
        """What the store has of an action."""
        return [place for place in self.published if f"/{action}/" in place]
