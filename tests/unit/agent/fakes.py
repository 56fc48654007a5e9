"""Processes, images and pages that are only remembered, for tests of the agent's orders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coordinator.core.errors import DeadlinePassed, DriverError
from coordinator.core.model import Finding, RankState
from worker_shim.agent.ports import Page
from worker_shim.criu.port import DumpStats, ImageFacts, NamedFile
from worker_shim.nccl.port import RankCommunicators
from worker_shim.network.port import Sockets
from worker_shim.process.port import LaunchSpec, Tree, TreeProcess, unheard

ROOT = 4_100_000  # above any pid_max, so that no process of this machine has it
RANK = ROOT + 1


class Breakable:
    """The name of a method in `broken` makes it raise; every call is remembered."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.calls: list[str] = []

    def called(self, method: str) -> None:
        self.calls.append(method)
        if method in self.broken:
            raise DriverError(f"told to fail: {method}", details=("its own words",))


class FakeProcesses(Breakable):
    """One worker of two processes; `state` is the letter that all of them have."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ""  # empty: not there
        self.findings: tuple[Finding, ...] = ()
        self.ended: asyncio.Future[int] | None = None
        self.launched: LaunchSpec | None = None
        self.counter = 0
        self.orphans = Tree()  # of a root that has ended
        self.sticky = False  # SIGCONT does nothing
        self.went_on, self.gone = asyncio.Event(), asyncio.Event()

    async def launch(self, spec: LaunchSpec, *, deadline_s: float) -> int:
        self.called("launch")
        self.launched = spec
        return self.appear("S")

    def appear(self, state: str) -> int:
        self.state = state
        self.ended = asyncio.get_running_loop().create_future()
        return ROOT

    def exit(self, code: int) -> None:
        self.state = ""
        self.gone.set()
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(code)

    def left(self, root_pid: int) -> Tree:
        return self.orphans

    async def end_left(self, root_pid: int, *, deadline_s: float) -> None:
        self.called("end_left")

    def reap(self, pids: Iterable[int]) -> None:
        self.called("reap")

    def look(self, root_pid: int) -> Tree:
        if not self.state:
            return Tree()
        root = TreeProcess(ROOT, 1, 1, self.state, ("python",), (ROOT,), 1 << 20)
        return Tree((root, replace(root, pid=RANK, parent=ROOT, threads=(RANK,), rank=0)))

    async def stop(self, root_pid: int, *, deadline_s: float) -> Tree:
        self.called("stop")
        self.state = "T"
        return self.look(root_pid)

    async def settle(self, tree: Tree) -> int:
        self.called("settle")
        assert self.state == "T", "what moves cannot be mended"
        return 0

    async def go_on(self, root_pid: int) -> None:
        self.called("go_on")
        if self.state and not self.sticky:
            self.state = "S"
            self.went_on.set()

    def terminate(self, root_pid: int) -> None:
        self.called("terminate")

    async def kill(self, root_pid: int, *, deadline_s: float) -> None:
        self.called("kill")
        self.exit(-9)

    async def wait(self, root_pid: int) -> int:
        assert self.ended is not None
        return await self.ended

    def preflight(self, tree: Tree) -> tuple[Finding, ...]:
        return self.findings

    def raise_pid_counter(self, above: int) -> None:
        self.called("raise_pid_counter")
        self.counter = above


class FakeImages(Breakable):
    """Images are one file; `gate` makes a dump wait until the test lets it end."""

    def __init__(self, processes: FakeProcesses, of_tree: Sockets) -> None:
        super().__init__()
        self.processes = processes
        self.of_tree = of_tree
        self.pids: tuple[int, ...] = (ROOT, RANK)
        self.pages = 100
        self.gate: asyncio.Event | None = None
        self.begun = asyncio.Event()
        self.moved: list[tuple[dict[str, str], tuple[tuple[str, int], ...]]] = []
        self.restored_state = "T"
        self.names: tuple[NamedFile, ...] = ()

    async def version(self) -> str:
        return "4.2.1"

    def files(self, images: Path) -> tuple[NamedFile, ...]:
        return self.names

    async def dump(self, root_pid: int, images: Path, *, deadline_s: float) -> DumpStats:
        self.called("dump")
        self.begun.set()
        if self.gate is not None:
            await self.gate.wait()
        (images / "pages-1.img").write_bytes(b"p" * 1000)
        return DumpStats(took_ms=12, frozen_ms=10, pages_written=self.pages, image_bytes=1000)

    async def restore(self, images: Path, *, deadline_s: float) -> int:
        self.called("restore")
        assert (images / "pages-1.img").read_bytes() == b"p" * 1000
        return self.processes.appear(self.restored_state)

    def facts(self, images: Path) -> ImageFacts:
        return ImageFacts(ROOT, self.pids, self.pids)

    def sockets(self, images: Path) -> Sockets:
        return self.of_tree

    def move_addresses(
        self, images: Path, moves: Mapping[str, str], *, close: Sequence[tuple[str, int]] = ()
    ) -> int:
        self.moved.append((dict(moves), tuple(close)))
        return len(moves)


class FakePage:
    """A page whose one rank parks at once, unless `lazy`."""

    def __init__(self, boundary: int = 7) -> None:
        self.hold = 0
        self.target = 0
        self.boundary = boundary
        self.lazy = False
        self.world_size = 1
        self.incarnation = 0
        self.raised: list[int] = []
        self.refreshed = False

    async def raise_hold(self, generation: int) -> None:
        assert generation > max(self.raised, default=0)
        self.raised.append(generation)
        self.hold = generation

    def ranks(self, tree: Tree | None = None) -> tuple[RankState, ...]:
        parked = bool(self.hold and self.target) and self.boundary == self.target
        return (RankState(0, 0, RANK, self.boundary, parked),)

    def set_target(self, target: int) -> None:
        self.target = target

    async def wait_parked(
        self,
        tree: Tree | None = None,
        *,
        known: tuple[RankState, ...] = (),
        deadline_s: float,
        arrived: Callable[[int], object] = unheard,
    ) -> tuple[RankState, ...]:
        if self.lazy:
            await asyncio.sleep(deadline_s)
            raise DeadlinePassed(f"rank 0 is awaited at step {self.target}")
        self.boundary = self.target
        arrived(0)
        return self.ranks(tree)

    tearing_down = False

    def communicators(self) -> tuple[RankCommunicators, ...]:
        return ()

    def release(self) -> None:
        self.hold = self.target = 0

    def set_incarnation(self, incarnation: int) -> None:
        self.incarnation = incarnation

    def snapshot(self) -> tuple[dict[str, int], tuple[dict[str, int], ...]]:
        page = {"hold": self.hold, "target": self.target, "incarnation": self.incarnation}
        return page, ({"slot": 0, "boundary": self.boundary},)

    def refresh_starts(self) -> None:
        self.refreshed = True

    def close(self) -> None:
        self.hold = 0


class FakeHook:
    """Gives out the page that the test holds."""

    def __init__(self) -> None:
        self.page = FakePage()
        self.renewed: list[dict[str, int]] = []

    def install(
        self, directory: Path, base: Mapping[str, str], *, worker: int, slots: int
    ) -> tuple[Page, dict[str, str], tuple[str, ...]]:
        return self.page, {"HOOK": str(directory)}, ("a note",)

    def renew(
        self, directory: Path, page: Mapping[str, int], slots: tuple[Mapping[str, int], ...]
    ) -> Page:
        self.renewed.append(dict(page))
        self.page = FakePage(slots[0]["boundary"])
        self.page.hold, self.page.target = page["hold"], page["target"]
        self.page.incarnation = page["incarnation"]
        return self.page
