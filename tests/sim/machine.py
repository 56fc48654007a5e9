"""A machine: what its kernel and disk keep, and the shim process that runs on it."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from allstop.v1 import shim_pb2

from coordinator.core.errors import AllstopError, DriverError
from tests.sim import drivers as sim
from tests.sim.cause import because_of
from tests.sim.cuda import SimCuda, SimInventory
from tests.sim.loop import DEAD, FROZEN, Process
from tests.sim.sick import SimHealth
from tests.sim.tree import Page, Tree
from worker_shim.agent.agent import Agent
from worker_shim.agent.options import ShimOptions, WorkerSpec
from worker_shim.agent.ports import Drivers
from worker_shim.agent.run import run_shim
from worker_shim.images.objects.opening import StoreOptions
from worker_shim.network.port import Sockets
from worker_shim.process.port import TreeProcess

if TYPE_CHECKING:
    from tests.sim.world import World

FIRST_PID = 5_000_000  # above any pid_max: no process of this machine has it
AGAIN_S = (0.3, 2.0)  # until a shim that has ended is started again
TAKES_S = {
    "launch": (0.01, 0.1),
    "stop": (0.001, 0.02),
    "go_on": (0.0, 0.002),
    "kill": (0.001, 0.05),
    "dump": (0.05, 0.8),
    "restore": (0.05, 0.8),
    "lock": (0.002, 0.03),
    "unlock": (0.002, 0.03),
    "put": (0.1, 1.5),
    "fetch": (0.05, 0.8),
    "delete": (0.001, 0.02),
    "list": (0.01, 0.1),
    "collect": (0.02, 0.4),
    "cuda_lock": (0.001, 0.05),
    "cuda_checkpoint": (0.01, 0.3),
    "cuda_restore": (0.01, 0.3),
    "cuda_unlock": (0.0, 0.005),
}
CAN_LIE = 5  # ways in which a dump lies


class Machine:
    """One node. Locks, staging and the fence's file outlive the shim; its processes do not."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.name = f"n{number}"
        self.address = f"10.0.0.{number + 1}"
        self.directory = Path(world.directory) / self.name
        self.last_pid = FIRST_PID + 10_000 * number
        self.locks: dict[str, Sockets] = {}
        self.pages: dict[tuple[str, int], Page] = {}
        self.trees: dict[int, Tree] = {}
        self.starting = ("", 0, 0, 0, "")  # job, worker, ranks, workers, lineage
        self.planned: dict[str, deque[str]] = {}
        self.slow = 1.0  # its drivers take so many times longer
        self.shim: Process | None = None
        self.shims = 0
        self.frozen_s = 0.0  # of shims that are gone
        self.leaving = False  # the shim has been told to end
        self.off = False  # no shim is started here now
        self.processes = sim.SimProcesses(self)
        self.cuda = SimCuda(self)
        self.xids: list[tuple[float, str, int]] = []  # of its GPUs: when, UUID, number
        self.health: SimHealth | None = None  # of the shim's present life
        self.heard = 0  # highest epoch, over all shims of this machine
        self.late: list[shim_pb2.CoordinatorMessage] = []  # what was on the way when a call ended

    # -- faults -----------------------------------------------------------------------------------

    def plan(self, act: str, how: str) -> None:
        """The next act of this name goes wrong so."""
        self.planned.setdefault(act, deque()).append(how)

    def fault(self, act: str) -> str | None:
        """Whether this act goes wrong, and how."""
        waiting = self.planned.get(act)
        return waiting.popleft() if waiting else None

    async def act(self, name: str, deadline_s: float) -> str | None:
        """Take the time that an act takes; returns a lie, raises for a failure."""
        how, rng = self.fault(name), self.world.rng
        if how == sim.HANG:
            self.world.note(f"{name} hangs on {self.name}")
            await asyncio.sleep(min(deadline_s, 8.0))
            raise DriverError(f"{name} had no end within {deadline_s:.1f} s", definite=False)
        least, most = TAKES_S[name]
        seconds = rng.uniform(least, most) * self.slow
        if how is not None and how.startswith("late"):
            seconds, how = float(how.split()[1]), None
        await asyncio.sleep(seconds)
        if how == sim.FAIL:
            self.world.note(f"{name} fails on {self.name}")
            raise DriverError(f"told to fail: {name}")
        return how

    # -- processes --------------------------------------------------------------------------------

    def add(self, tree: Tree) -> None:
        """A tree is there."""
        self.trees[tree.root_pid] = tree
        self.world.truth.trees.append(tree)
        tree.page.on_release = partial(self.world.truth.released, tree)

    def tree(self, root_pid: int) -> Tree | None:
        """The living tree of this root."""
        found = self.trees.get(root_pid)
        return found if found is not None and found.alive else None

    def tree_of(self, pid: int) -> Tree | None:
        """The living tree that has this process."""
        return next((t for t in self.trees.values() if t.alive and pid in t.pids), None)

    def off_devices(self, tree: Tree) -> bool:
        """Whether a rank of a tree cannot use its device."""
        return self.cuda.off(tree.pids)

    def bring_back(self, root_pid: int, pids: tuple[int, ...], page: Page) -> None:
        """Processes with these very pids are there, stopped."""
        ranks = {r.pid: r for r in page.of}
        self.processes.bring_back(
            [
                TreeProcess(
                    pid,
                    1 if pid == root_pid else root_pid,
                    pid,
                    "T",
                    ("rank",),
                    (pid,),
                    1 << 20,
                    ranks[pid].rank if pid in ranks else -1,
                    ranks[pid].local_rank if pid in ranks else -1,
                )
                for pid in pids
            ]
        )

    def sockets(self, tree: Tree) -> Sockets:
        """Its connections to the other workers of its lineage."""
        others = {
            t.worker: self.world.machines[t.machine].address
            for t in self.world.truth.living(tree.job)
            if t.lineage == tree.lineage
        }
        return sim.sockets_of(tree, others, self.address)

    # -- the shim ---------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Whether a shim lives here."""
        return self.shim is not None and self.shim.state != DEAD

    def start(self, spec: WorkerSpec | None = None, ranks: int = 0, lineage: str = "") -> None:
        """Start a shim, with a worker or as a spare."""
        assert not self.up, f"{self.name} has a shim"
        if spec is not None:
            self.starting = (spec.job, spec.worker, ranks, spec.workers, lineage)
        self.shims += 1
        self.leaving = self.off = False
        rate = 1.0 + self.world.drift()
        self.shim = Process(self.world.loop, f"{self.name}.{self.shims}", self.name, rate=rate)
        self.processes, self.cuda = sim.SimProcesses(self), SimCuda(self)
        coordinators = [f"{replica}:1" for replica in self.world.replicas]
        self.world.rng.shuffle(coordinators)
        options = ShimOptions(
            node=self.name,
            coordinators=coordinators,
            store=StoreOptions(str(self.directory)),
            run_dir=Path(self.world.directory) / "run",
            staging_dir=self.directory / "staging",
            state_dir=self.directory / "state",
            linger_s=10.0,
        )
        self.shim.spawn(self._live(self.shim, options, spec), f"shim {self.name}")

    async def _live(self, own: Process, options: ShimOptions, spec: WorkerSpec | None) -> None:
        why = "ended"
        try:
            code = await run_shim(options, () if spec is None else (spec,))
            why = f"ended with {code}"
        except AllstopError as error:
            why = str(error)
        self.world.note(f"shim {own.name}: {why}")
        own.run(self._gone, own)

    def _gone(self, own: Process) -> None:
        if own is self.shim and own.state != DEAD:
            self.kill_shim()

    def attend(self, agent: Agent, process: Process) -> None:
        """Hear what a shim hears: whatever an old epoch's message does is known by its context.

        Late messages of an old leader come once a new one has been heard. TCP would not bring
        them, but the promise of the shim does not build on that.
        """
        welcome, take = agent.on_welcome, agent.on_message

        def on_welcome(message: shim_pb2.Welcome) -> None:
            welcome(message)
            self.heard = max(self.heard, message.epoch)
            for late in [m for m in self.late if 0 < _epoch(m) < self.heard]:
                self.late.remove(late)
                pause_s = self.world.rng.choice((0.0, 0.002, 0.02, 2.0)) * self.world.rng.random()
                context = process.context.copy()
                self.world.loop.at(self.world.loop.now + pause_s, on_message, late, context=context)

        def on_message(message: shim_pb2.CoordinatorMessage) -> None:
            epoch = _epoch(message)
            if 0 < epoch < self.heard:
                what = f"{message.WhichOneof('body')} of epoch {epoch} at {self.name}"
                self.world.note(f"{what} comes late, after epoch {self.heard}")
                because_of(what, take, message)
                return
            self.heard = max(self.heard, epoch)
            take(message)

        agent.on_welcome, agent.on_message = on_welcome, on_message  # type: ignore[method-assign]

    def kill_shim(self) -> None:
        """SIGKILL, or its own end; its workers, in its PID namespace, die with it."""
        if self.shim is None or self.shim.state == DEAD:
            return
        shim = self.shim
        if shim.state == FROZEN:
            shim.go_on()
        self.frozen_s += shim.frozen_s
        shim.kill()
        for tree in self.trees.values():
            if tree.alive:
                self.world.truth.died(tree)
        self.trees.clear()
        for claim in self.world.claims.pop(shim, []):
            claim.release()
        if not self.off:
            self.world.loop.later(self.world.rng.uniform(*AGAIN_S), self._start_again)

    def _start_again(self) -> None:
        if not self.up and not self.off:
            self.start()

    def crash(self) -> None:
        """Power fails: the shim, the locks and the ranks are gone, the disk is not."""
        self.kill_shim()
        self.locks.clear()

    def end_shim(self) -> None:
        """SIGTERM."""
        self.leaving = True
        if self.shim is not None:
            self.shim.signal(signal.SIGTERM)

    def staged(self) -> list[str]:
        """What lies in staging."""
        found = (self.directory / "staging").glob("*/*/*/owner")
        return [str(path.parent.relative_to(self.directory / "staging")) for path in found]

    def drivers(self) -> tuple[Drivers, sim.SimProbe]:
        """What `build` gives a shim of this machine."""
        staging = sim.SimStaging(self.directory / "staging", self.name, keep=False)
        staging.machine = self
        probe = sim.SimProbe(self)
        made = Drivers(
            process=self.processes,
            images=sim.SimImages(self),
            network=sim.SimNetwork(self),
            files=sim.SimFiles(self),
            cuda=self.cuda,
            gpus=SimInventory(self.name),
            health=SimHealth(self),
            hook=sim.SimHook(self),
            store=sim.SimImageStore(self),
            staging=staging,
            facts=probe,
            run_root=Path(self.world.directory) / "run",
        )
        return made, probe


def _epoch(message: shim_pb2.CoordinatorMessage) -> int:
    """Of an order, a fence or an admission; 0 for what has none or begins one."""
    kind = message.WhichOneof("body")
    return getattr(message, kind).epoch if kind in ("order", "fenced", "admitted") else 0
