"""The shim's drivers on a simulated machine: the fakes that ship, with time, faults and the truth.

Before each of its acts a driver asks the machine whether it is to fail, to hang until its deadline,
or to lie. What really happens is written down in `truth`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.core.errors import DriverError
from coordinator.core.model import Endpoint, Finding, NodeFacts, ProgramFile
from tests.sim.cause import has_effect
from tests.sim.cuda import CUDA, DRIVER, gpus_of
from tests.sim.tree import Page, Rank, Tree, page_of
from tests.sim.truth import Dump
from worker_shim.criu.fake import FILE, FakeImageDriver
from worker_shim.criu.port import DumpStats, ImageFacts
from worker_shim.files.fake import FakeFileDriver
from worker_shim.images.port import Collected, Kept, Manifest, Stored
from worker_shim.images.staging import Staging
from worker_shim.network.fake import FakeNetworkDriver
from worker_shim.network.port import Sockets
from worker_shim.process.fake import FakeProcessDriver
from worker_shim.process.port import LaunchSpec
from worker_shim.process.port import Tree as Listing

if TYPE_CHECKING:
    from tests.sim.machine import Machine

FAIL, HANG = "fail", "hang"


class SimProcesses(FakeProcessDriver):
    """Processes of one machine; those of a dead shim have died with it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.last_pid = machine.last_pid

    async def launch(self, spec: LaunchSpec, *, deadline_s: float) -> int:
        """Start root and ranks; the truth gets a tree of the job's present run."""
        machine = self.machine
        await machine.act("launch", deadline_s)
        root = await super().launch(spec, deadline_s=deadline_s)
        job, worker, ranks, workers, lineage = machine.starting
        page = machine.pages[job, worker]
        for local in range(ranks):
            pid = self.fork(root, rank=worker * ranks + local)
            page.of.append(Rank(worker * ranks + local, local, pid))
        machine.last_pid = self.last_pid
        if job in machine.world.gpu_jobs:
            machine.cuda.start(rank.pid for rank in page.of)
        machine.add(Tree(job, worker, workers, machine.name, lineage, root, page))
        return root

    async def stop(self, root_pid: int, *, deadline_s: float) -> Listing:
        """SIGSTOP."""
        await self.machine.act("stop", deadline_s)
        has_effect("stop")
        tree = self.machine.tree(root_pid)
        if tree is not None:
            tree.stopped = True
        return await super().stop(root_pid, deadline_s=deadline_s)

    async def go_on(self, root_pid: int) -> None:
        """SIGCONT."""
        await self.machine.act("go_on", 1.0)
        has_effect("go_on")
        tree = self.machine.tree(root_pid)
        if tree is not None:
            self.machine.world.truth.went_on(tree)
        await super().go_on(root_pid)

    async def kill(self, root_pid: int, *, deadline_s: float) -> None:
        """SIGKILL: the truth is asked whether the job was to lose it."""
        await self.machine.act("kill", deadline_s)
        has_effect("kill")
        tree = self.machine.tree(root_pid)
        if tree is not None:
            self.machine.world.truth.may_be_killed(tree)
        await super().kill(root_pid, deadline_s=deadline_s)

    async def end(self, root_pid: int, exit_code: int) -> None:
        """The tree is no more."""
        tree = self.machine.tree(root_pid)
        if tree is not None:
            self.machine.world.truth.died(tree)
        await super().end(root_pid, exit_code)

    def preflight(self, tree: Listing) -> tuple[Finding, ...]:
        """Nothing speaks against it."""
        return ()


class SimImages(FakeImageDriver):
    """CRIU: dumps take a while; a lie is a dump that says it is whole and is not."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    async def version(self) -> str:
        """As the fake's, without a call to remember."""
        return "4.2.1"

    async def dump(self, root_pid: int, images: Path, *, deadline_s: float) -> DumpStats:
        """Write what the ranks are; the truth keeps when, and whether it is whole."""
        machine, begun = self.machine, self.machine.world.loop.now
        has_effect("dump")
        tree = machine.tree(root_pid)
        lie = await machine.act("dump", deadline_s)
        if tree is None or not tree.alive:
            raise DriverError(f"there is no process {root_pid}")
        listing = machine.processes.look(root_pid)
        job, worker, action = images.parts[-4], int(images.parts[-3]), images.parts[-2]
        nonce = f"{job}/{worker}/{action}/{begun:.6f}"
        pids = listing.pids if lie != "lie 1" else listing.pids[:-1]
        content = {
            "facts": asdict(ImageFacts(root_pid, pids, pids)),
            "sockets": asdict(machine.sockets(tree)),
            "of": [tree.job, tree.worker, tree.workers],
            "devices": list(machine.cuda.devices(tree.pids).items()),
        }
        _write(images, nonce, content if lie != "lie 0" else None)
        whole = tree.stopped and lie is None and machine.cuda.saved(tree.pids)
        machine.world.truth.dumps[job, worker, action] = Dump(
            tree, begun, machine.world.loop.now, tree.boundaries, nonce, whole
        )
        machine.world.note(f"{tree} is dumped for {action}{'' if whole else ' (torn)'}")
        if lie == "lie 3":
            machine.world.loop.later(0.05, lambda: (images / FILE).unlink(missing_ok=True))
        if lie == "lie 4":
            machine.world.loop.later(0.05, lambda: _cut_short(images / FILE))
        written = 0 if lie == "lie 2" else 100
        return DumpStats(took_ms=10, frozen_ms=8, pages_written=written, image_bytes=4096)

    async def restore(self, images: Path, *, deadline_s: float) -> int:
        """The tree is back, stopped, in the hold that its page was written with."""
        machine = self.machine
        has_effect("restore")
        await machine.act("restore", deadline_s)
        facts = self.facts(images)
        job, worker, workers = self._read(images)["of"]
        page = machine.pages[job, worker]
        machine.bring_back(facts.root_pid, facts.pids, page)
        machine.cuda.bring_back(dict(self._read(images)["devices"]))
        action = images.parts[-2]
        tree = Tree(job, worker, workers, machine.name, action, facts.root_pid, page, stopped=True)
        machine.add(tree)
        machine.world.note(f"{tree} is restored")
        return facts.root_pid


def _write(images: Path, nonce: str, content: dict[str, Any] | None) -> None:
    images.mkdir(parents=True, exist_ok=True)
    (images / "nonce").write_text(nonce)
    if content is not None:
        (images / FILE).write_text(json.dumps(content))


def _cut_short(path: Path) -> None:
    if path.exists():
        path.write_bytes(path.read_bytes()[:-7])


class SimNetwork(FakeNetworkDriver):
    """The lock is the kernel's: it outlives the shim."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.locks = machine.locks

    def sockets(self, tree: Listing) -> Sockets:
        """Those of the job's own connections."""
        found = self.machine.tree(tree.pids[0]) if tree.pids else None
        return self.machine.sockets(found) if found is not None else Sockets((), ())

    async def lock(self, name: str, sockets: Sockets, *, deadline_s: float) -> None:
        """Put it on."""
        await self.machine.act("lock", deadline_s)
        has_effect("lock")
        self.locks[name] = sockets

    async def unlock(self, name: str, *, deadline_s: float) -> None:
        """Take it off; the truth keeps when."""
        await self.machine.act("unlock", deadline_s)
        has_effect("unlock")
        living = any(t.alive and t.name == name for t in self.machine.trees.values())
        if self.locks.pop(name, None) is not None and living:
            truth = self.machine.world.truth
            truth.unlocked.setdefault((self.machine.name, name), []).append(truth.world.loop.now)

    async def locked(self, name: str) -> bool:
        """Look."""
        return name in self.locks


class SimFiles(FakeFileDriver):
    """Files of the cut, with faults."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def _may_fail(self, method: str) -> None:
        if self.machine.fault(method) is not None:
            raise DriverError(f"told to fail: {method}")


class SimImageStore:
    """One store that all machines see; what it does to a call is each machine's fault."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self._shared = machine, machine.world.images
        self.identity = self._shared.identity

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)

    async def put(
        self,
        staged: Path,
        manifest: Manifest,
        *,
        base: str = "",
        progress: Callable[[int, int], None],
        deadline_s: float,
    ) -> Stored:
        """Publish at once in the end, or not at all."""
        await self.machine.act("put", deadline_s)
        has_effect("put")
        self.machine.world.truth.may_be_shared(manifest.job, base)
        return await self._shared.put(
            staged, manifest, base=base, progress=progress, deadline_s=deadline_s
        )

    async def manifest(self, place: str, digest: str, *, deadline_s: float) -> Manifest:
        """Read one."""
        await self.machine.act("fetch", deadline_s)
        return await self._shared.manifest(place, digest, deadline_s=deadline_s)

    async def fetch(self, place: str, digest: str, into: Path, **how: Any) -> Manifest:
        """Bring images here."""
        await self.machine.act("fetch", how["deadline_s"])
        return await self._shared.fetch(place, digest, into, **how)

    def place(self, job: str, action: str, worker: int) -> str:
        """As the shared one names it."""
        return self._shared.place(job, action, worker)

    async def delete(self, place: str) -> None:
        """The truth is asked whether a snapshot has it."""
        await self.machine.act("delete", 1.0)
        has_effect("delete")
        if place in self._shared.published:
            self.machine.world.truth.may_be_deleted(place)
        await self._shared.delete(place)

    async def actions(self, job: str, *, deadline_s: float) -> tuple[str, ...]:
        """List them."""
        self.machine.world.nemesis.at(job, "LISTING")
        await self.machine.act("list", deadline_s)
        return await self._shared.actions(job, deadline_s=deadline_s)

    async def collect(
        self,
        job: str,
        dead: Sequence[str],
        keep: Sequence[Kept],
        *,
        dry_run: bool,
        deadline_s: float,
    ) -> Collected:
        """One place after another, so that whatever goes wrong does so half-way."""
        self.machine.world.nemesis.at(job, "COLLECTING")
        for kept in keep:
            await self._shared.manifest(kept.place, kept.digest, deadline_s=deadline_s)
        stay = {kept.place for kept in keep}
        gone = [
            place
            for place in sorted(self._shared.published)
            if place.split("/")[0] == job and place.split("/")[1] in dead and place not in stay
        ]
        for place in () if dry_run else gone:
            await self.machine.act("collect", deadline_s)
            has_effect("collect")
            self.machine.world.truth.may_be_deleted(place)
            self._shared.published.pop(place, None)
        return Collected(len(gone), 0)

    def free_bytes(self) -> int:
        """Room enough."""
        return 1 << 40


class SimStaging(Staging):
    """The node's disk, which may be full."""

    machine: Machine

    def create(
        self, job: str, worker: int, action: str, *, need_bytes: int, using: str = ""
    ) -> Path:
        """Make a place."""
        has_effect("create")
        if self.machine.fault("create") is not None:
            raise DriverError("staging has 0 MiB free")
        return super().create(job, worker, action, need_bytes=need_bytes, using=using)

    def free_bytes(self) -> int:
        """Room enough, and always the same."""
        return 1 << 40


class SimHook:
    """Control pages of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def install(
        self, directory: Path, base: Mapping[str, str], *, worker: int, slots: int
    ) -> tuple[Page, dict[str, str], tuple[str, ...]]:
        """A page that ranks fill in as they start."""
        job, worker, ranks, workers, _ = self.machine.starting
        page = self.machine.pages[job, worker] = Page([], ranks * workers)
        return page, {}, ()

    def renew(
        self, directory: Path, page: Mapping[str, int], slots: tuple[Mapping[str, int], ...]
    ) -> Page:
        """The page of ranks that are about to come back."""
        key = (directory.parent.name, int(directory.name))
        made = self.machine.pages[key] = page_of(page, slots)
        return made


class SimProbe:
    """Facts of a machine, which do not change."""

    def __init__(self, machine: Machine) -> None:
        self._facts = NodeFacts(
            node=machine.name,
            address=machine.address,
            architecture="x86_64",
            kernel="6.12.0",
            cpu_model="Simulated CPU",
            cpu_flags=("avx2",),
            criu_version="4.2.1",
            memory_bytes=64 << 30,
            memory_free_bytes=48 << 30,
            staging_free_bytes=100 << 30,
            store="fake-store",
            shim_version="sim",
            boot_id=f"boot-{machine.name}",
            gpus=gpus_of(machine.name),
            gpu_driver=DRIVER,
            cuda_version=CUDA,
            gpu_engine="library",
        )

    def current(self) -> NodeFacts:
        """As always."""
        return self._facts

    def look_at_gpus(self) -> None:
        """They do not change."""

    async def close(self) -> None:
        """Nothing runs."""

    def refresh(self) -> NodeFacts:
        """As always."""
        return self._facts

    async def probe(self) -> str:
        """CRIU is there."""
        return ""

    async def answer(self, files: tuple[ProgramFile, ...]) -> NodeFacts:
        """No program files are simulated."""
        return self._facts


def sockets_of(tree: Tree, addresses: Mapping[int, str], own: str) -> Sockets:
    """One connection to every other worker of the job."""
    ends = tuple(
        Endpoint(own, _port(tree.worker, other), address, _port(other, tree.worker))
        for other, address in addresses.items()
        if other != tree.worker
    )
    return Sockets(ends, ())


def _port(worker: int, other: int) -> int:
    return 4000 + 10 * worker + other
