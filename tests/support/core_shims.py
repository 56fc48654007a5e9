"""Shims in miniature for tests of the core: ranks that step, holds that run out, honest answers.

Nothing here reads the core's state; what a shim knows it was told by an order.
"""

from dataclasses import dataclass, field, replace

from coordinator.core import events
from coordinator.core.commands import SendOrder
from coordinator.core.health_records import GpuTrouble
from coordinator.core.model import (
    Endpoint,
    Failure,
    Finding,
    NodeFacts,
    Phase,
    ProgramFile,
    RankState,
    WorkerRecord,
    WorkerState,
)
from coordinator.core.returning import moved

GIB = 1 << 30
PROGRAM = ProgramFile("/usr/bin/python3", 1000, "d1")
NEVER = float("inf")
OF_DEVICES: dict[Phase, type[events.OrderAnswered]] = {
    Phase.GPU_LOCK: events.GpuLocked,
    Phase.GPU_SAVE: events.GpuSaved,
    Phase.GPU_RESTORE: events.GpuRestored,
    Phase.GPU_UNLOCK: events.GpuUnlocked,
}
NEEDS_HOLD = frozenset({Phase.PARK, Phase.GPU_LOCK, Phase.GPU_SAVE, Phase.DUMP})
DEVICE_AFTER = {
    Phase.GPU_LOCK: "locked",
    Phase.GPU_SAVE: "saved",
    Phase.GPU_RESTORE: "locked",
    Phase.GPU_UNLOCK: "used",
}


def facts(node: str, **changes: object) -> NodeFacts:
    """A node like all others, but for what is named."""
    base = NodeFacts(
        node=node,
        address=f"10.0.0.{node.rpartition('-')[2]}",
        architecture="x86_64",
        kernel="6.18.5",
        cpu_model="any",
        cpu_flags=("avx2", "sse4_2"),
        criu_version="4.2.1",
        memory_bytes=64 * GIB,
        memory_free_bytes=32 * GIB,
        staging_free_bytes=100 * GIB,
        store="store-1",
        shim_version="0.1",
        boot_id=f"boot-{node}",
        files=(PROGRAM,),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def ring(addresses: list[str], worker: int) -> tuple[Endpoint, ...]:
    """Connections of a worker to the next one and from the one before it."""
    count = len(addresses)
    after, before = (worker + 1) % count, (worker - 1) % count
    mine = addresses[worker]
    return (
        Endpoint(mine, 5000 + worker, addresses[after], 6000 + after),
        Endpoint(mine, 6000 + worker, addresses[before], 5000 + before),
    )


@dataclass
class Worker:
    """One worker as its shim has it; without an incarnation until it is told one."""

    job: str
    worker: int
    workers: int
    world_size: int
    boundaries: dict[int, int]
    incarnation: int = 0
    findings: tuple[Finding, ...] = ()
    gpu: bool = False
    device: str = "used"  # used, locked, saved
    nccl: str = ""
    connections: tuple[Endpoint, ...] = ()
    network_open: bool = True
    held_by: str = ""
    held_until: float = NEVER
    state: str = "running"
    parked: bool = False
    no_steps: bool = False
    moves: int = 0  # grows whenever the worker is let go: shows that a cut was not one
    dumped: dict[str, tuple[int, dict[int, int]]] = field(default_factory=dict)
    undone: set[str] = field(default_factory=set)
    restored_by: str = ""  # the restore that made it: only that one's undo kills it

    @property
    def ranks(self) -> tuple[RankState, ...]:
        """Its ranks as they are."""
        return tuple(
            RankState(rank, at, 1001 + at, boundary, self.parked, self.no_steps)
            for at, (rank, boundary) in enumerate(self.boundaries.items())
        )

    def report(self) -> WorkerState:
        """What its shim tells about it."""
        return WorkerState(
            job=self.job,
            worker=self.worker,
            workers=self.workers,
            state=self.state,
            incarnation=self.incarnation,
            root_pid=1000,
            world_size=self.world_size,
            ranks=self.ranks,
            findings=self.findings,
            action=self.held_by,
            gpu=self.gpu,
            nccl=self.nccl,
        )

    def let_go(self) -> None:
        """It runs again."""
        self.held_by, self.held_until, self.parked, self.state = "", NEVER, False, "running"
        self.device = "used"
        self.moves += 1


@dataclass
class Node:
    """One node with its shim."""

    facts: NodeFacts
    session: int = 1
    attached: bool = False
    workers: dict[tuple[str, int], Worker] = field(default_factory=dict)
    holds: dict[tuple[str, int], float] = field(default_factory=dict)  # of trees to be restored
    troubles: tuple[GpuTrouble, ...] = ()  # that its GPUs have

    @property
    def name(self) -> str:
        """Its name."""
        return self.facts.node

    def hello(self) -> events.NodeAttached:
        """The shim opens its stream."""
        reports = tuple(w.report() for w in self.workers.values())
        return events.NodeAttached(self.facts, f"s{self.session}", reports)

    # -- orders --------------------------------------------------------------------------------

    def receive(self, order: SendOrder, now: float) -> None:
        """An order arrives: its dead-man timer starts, whatever is done about it and when."""
        worker = self.workers.get((order.job, order.worker))
        if order.phase is Phase.RESTORE:
            self.holds[(order.job, order.worker)] = now + order.hold_s
        if order.phase is Phase.UNDO and worker is not None:
            worker.undone.add(order.action)
        elif order.hold_s and worker is not None and order.action not in worker.undone:
            worker.held_until = now + order.hold_s
            if worker.held_by == "":
                worker.held_by, worker.state = order.action, "held"

    def carry_out(self, order: SendOrder) -> events.OrderAnswered:
        """Do what was ordered and answer."""
        worker = self.workers.get((order.job, order.worker))
        place = (order.epoch, self.name, order.job, order.worker, order.action)
        if order.phase is Phase.FETCH:
            return events.Fetched(*place)
        if order.phase is Phase.CLEAR:
            return self._clear(order, place)
        if order.phase is Phase.RESTORE:
            return self._restore(order, place)
        if worker is None:
            if order.phase is Phase.UNDO:
                return events.Undone(*place)
            return self.fail(order, "there is no such worker here")
        if order.phase is Phase.UNDO:
            return self._undo(worker, order, place)
        if order.action in worker.undone and order.phase is not Phase.STOP:
            return self.fail(order, "it was undone before")
        return self._of_worker(worker, order, place)

    def fail(self, order: SendOrder, what: str, *, kind: str = "DriverError") -> events.OrderFailed:
        """Answer that it could not be done."""
        place = (order.epoch, self.name, order.job, order.worker, order.action)
        return events.OrderFailed(*place, order.phase, Failure(kind, what))

    def _of_worker(
        self, worker: Worker, order: SendOrder, place: tuple[int, str, str, int, str]
    ) -> events.OrderAnswered:
        phase = order.phase
        if phase in NEEDS_HOLD and worker.held_by != order.action:
            return self.fail(order, "the hold had run out")
        if phase is Phase.PERSIST and order.action not in worker.dumped:
            return self.fail(order, "nothing is staged")
        if phase is Phase.HOLD:
            return events.Held(*place, worker.ranks, worker.findings, worker.gpu)
        if phase is Phase.PARK:
            worker.boundaries = dict.fromkeys(worker.boundaries, order.target)
            worker.parked = True
            return events.Parked(*place, worker.ranks)
        if phase is Phase.DUMP:
            worker.dumped[order.action] = (worker.moves, dict(worker.boundaries))
            return events.Dumped(*place, self.record(worker, order.action, stored=False))
        if phase is Phase.PERSIST:
            return events.Persisted(*place, self.record(worker, order.action, stored=True))
        if phase in OF_DEVICES:
            worker.device = DEVICE_AFTER[phase]
            return OF_DEVICES[phase](*place)
        if phase is Phase.OPEN:
            worker.network_open = True
            return events.Opened(*place)
        return self._let_run(worker, phase, place)

    def _let_run(
        self, worker: Worker, phase: Phase, place: tuple[int, str, str, int, str]
    ) -> events.OrderAnswered:
        worker.let_go()
        worker.network_open = True
        if phase is Phase.STOP:
            worker.state = "exited"
            return events.Stopped(*place)
        return events.Released(*place) if phase is Phase.RELEASE else events.Resumed(*place, 700)

    def _undo(
        self, worker: Worker, order: SendOrder, place: tuple[int, str, str, int, str]
    ) -> events.OrderAnswered:
        worker.dumped.pop(order.action, None)
        held_ms = 0
        if worker.held_by == order.action:
            worker.let_go()
            held_ms = 600
        if order.kill and worker.restored_by == order.action:
            self.workers.pop((order.job, order.worker))
        return events.Undone(*place, held_ms)

    def _clear(
        self, order: SendOrder, place: tuple[int, str, str, int, str]
    ) -> events.OrderAnswered:
        self.workers.pop((order.job, order.worker), None)
        return events.Cleared(*place)

    def _restore(
        self, order: SendOrder, place: tuple[int, str, str, int, str]
    ) -> events.OrderAnswered:
        assert order.record is not None
        made = Worker(
            order.job,
            order.worker,
            order.workers,
            order.world_size,
            {r.rank: r.boundary for r in order.record.ranks},
            order.incarnation,
            held_by=order.action,
            held_until=self.holds[(order.job, order.worker)],
            state="restored",
            parked=True,
            restored_by=order.action,
            gpu=bool(order.record.gpu_pids),
            device="saved" if order.record.gpu_pids else "used",
            network_open=order.cold,
        )
        addresses = {move.old: move.new for move in order.addresses}
        made.connections = tuple(moved(end, addresses) for end in order.record.connections)
        self.workers[(order.job, order.worker)] = made
        return events.Restored(*place, 1000)

    def record(self, worker: Worker, action: str, *, stored: bool) -> WorkerRecord:
        """What the worker puts into a snapshot."""
        boundaries = worker.dumped[action][1]
        ranks = tuple(
            RankState(r, i, 1001 + i, b, True) for i, (r, b) in enumerate(boundaries.items())
        )
        return WorkerRecord(
            job=worker.job,
            worker=worker.worker,
            node=self.name,
            address=self.facts.address,
            root_pid=1000,
            highest_pid=1010,
            ranks=ranks,
            image_bytes=GIB,
            memory_bytes=2 * GIB,
            manifest=f"{action}/{worker.worker}" if stored else "",
            manifest_digest=f"m{worker.worker}" if stored else "",
            connections=worker.connections,
            programs=(PROGRAM,),
            architecture=self.facts.architecture,
            cpu_flags=self.facts.cpu_flags,
            kernel=self.facts.kernel,
            criu_version=self.facts.criu_version,
            store=self.facts.store,
            held_ms=0,
            dump_ms=400,
            gpu_pids=(1001,) if worker.gpu else (),
            gpus=self.facts.gpus if worker.gpu else (),
            gpu_driver=self.facts.gpu_driver if worker.gpu else "",
            cuda_version=self.facts.cuda_version if worker.gpu else "",
            troubles=self.troubles if worker.gpu else (),
        )
