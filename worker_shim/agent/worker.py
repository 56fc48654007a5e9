"""One worker as its shim sees it: its processes, its page, and what is being done to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from coordinator.core.errors import Busy, DriverError, NotReady, Refused, Where
from coordinator.core.model import Finding, ProgramFile, RankState, WorkerRecord, WorkerState
from worker_shim.agent import elastic
from worker_shim.agent.leftovers import Claim
from worker_shim.agent.ports import HOOK, LOG, PAGE, Drivers, Page
from worker_shim.agent.recent import Recent
from worker_shim.agent.strays import kill_strays
from worker_shim.cuda.killing import take_off
from worker_shim.cuda.port import GpuProcess
from worker_shim.files.keeping import Keeping
from worker_shim.images.names import checked_name
from worker_shim.images.port import Launch, Manifest
from worker_shim.inventory.inventory import Inventory
from worker_shim.nccl.launching import environment as launch_environment
from worker_shim.nccl.modes import mode_of
from worker_shim.nccl.port import Rebuild
from worker_shim.process.port import LaunchSpec, Tree

if TYPE_CHECKING:
    from worker_shim.agent.logs import Source
    from worker_shim.agent.options import WorkerSpec
    from worker_shim.agent.restoring import Restoration

log = structlog.get_logger(__name__)

LOG_TAIL_BYTES = 4096
LAUNCH_S_MAX = 20.0
END_LEFT_S = 10.0
KILL_S = 15.0  # of the time to kill it: the rest is for its processes to leave their devices
OFF_LEFT_S = 60.0  # for those to leave them whose root has ended
FRESH = 0  # incarnation of a launched worker before a coordinator has taken it into a run

Notice = Callable[["Worker"], None]
Others = Callable[[], Sequence["Worker"]]


@dataclass
class Dumped:
    """What a dump left behind, until it is in the store."""

    record: WorkerRecord
    manifest: Manifest
    staged: Mapping[str, int]  # every file in staging and its size, as the dump left them
    living: frozenset[tuple[int, int]]  # pid and start of every process then
    outlived: bool = False  # all of these lived when the worker was let go

    def outlived_by(self, tree: Tree) -> bool:
        """Whether everyone who was dumped still lives in this tree."""
        return self.living <= tree.living


@dataclass
class Worker:
    """The state of one worker; `state` is empty while nothing of it is on this node."""

    job: str
    worker: int
    drivers: Drivers
    exited: Notice
    changed: Notice
    beside: Others = tuple  # other workers of the job that are on this node, ended ones too
    workers: int = 0
    command: tuple[str, ...] = ()
    launched: Launch | None = None  # what it was started with, wherever that was
    keeping: Keeping = field(default_factory=Keeping)  # of files that it has open for writing
    directory: Path = field(default_factory=Path)
    state: str = ""
    incarnation: int = 0
    root_pid: int = 0
    exit_code: int = 0
    ended_at: float = 0.0  # by itself, on the monotonic clock
    action: str = ""
    page: Page | None = None
    generation: int = 0
    held_since: float | None = None
    claimed_s: float = 0.0  # when an action took it, on the monotonic clock
    last_held_ms: int = 0
    stopped: bool = False  # a STOP order ended it
    stays: bool = False  # that said that it is to be restored at once
    fenced: str = ""  # why it was ended: it is not the job, or not any more
    ending: bool = False  # it is being killed on purpose: nobody needs to hear of its exit
    findings: tuple[Finding, ...] = ()
    ranks: tuple[RankState, ...] = ()
    held_ranks: tuple[RankState, ...] = ()  # as HOLD found them: all of these have to park
    undone: Recent = field(default_factory=Recent)
    ended: Recent = field(default_factory=Recent)  # orders, well or not: `Order.done`
    room_bytes: int = 0  # of staging that its images may take, as last looked at
    dumped: dict[str, Dumped] = field(default_factory=dict)
    published: Recent = field(default_factory=Recent)
    restoration: Restoration | None = None
    gpu: bool = False  # a process of it has had a device open since it was started
    gpus: tuple[GpuProcess, ...] = ()  # in the order of lock, save and restore
    gpus_seen: Inventory | None = None  # while it was locked; None: there was no look in time
    gpu_bytes: int = 0  # device memory that GPU_SAVE brought into its processes
    restored_by: str = ""  # the restore that has killed the old tree and made the present one
    log_began: dict[str, int] = field(default_factory=dict)  # sizes of files as it began here
    outputs: dict[int, tuple[Source, ...]] = field(default_factory=dict)  # of ranks, as last seen
    programs: asyncio.Task[tuple[ProgramFile, ...]] | None = None
    watching: asyncio.Task[None] | None = None
    taken: Claim | None = None
    rebuild: Rebuild | None = None  # of communicators, since it was let go last
    _dropping: set[asyncio.Future[None]] = field(default_factory=set)
    _copying: dict[asyncio.Task[None], str] = field(default_factory=dict)  # for which action

    def __post_init__(self) -> None:
        """The run directory has the same path on every node: restored processes have it open."""
        if self.directory == Path():
            name = checked_name(self.job, "job")
            self.directory = self.drivers.run_root / name / str(self.worker)

    @property
    def name(self) -> str:
        """As the network lock and people call it."""
        return f"{self.job}/{self.worker}"

    @property
    def where(self) -> Where:
        """The place of an error about this worker."""
        return Where(self.job, self.worker, node=self.drivers.facts.current().node)

    @property
    def alive(self) -> bool:
        """Whether its root process has not been seen to end."""
        return self.root_pid != 0 and self.state not in ("", "exited")

    @property
    def failed(self) -> bool:
        """Whether it ended by itself and not well."""
        over = self.state == "exited" and self.exit_code != 0
        return over and not (self.ending or self.stopped)

    @property
    def nccl(self) -> str:
        """What becomes of its communicators: the mode it was launched with, wherever that was."""
        return mode_of(self.root_pid)

    @property
    def rebuilding(self) -> str:
        """The action after which its ranks build their communicators anew; empty: they do not."""
        return self.rebuild.action if self.rebuild is not None else ""

    def tree(self) -> Tree:
        """Its processes now; empty when there are none."""
        return self.drivers.process.look(self.root_pid) if self.root_pid else Tree()

    def require_tree(self) -> Tree:
        """Its processes now; raises NotReady when the worker is not there."""
        tree = self.tree()
        if not tree.processes:
            raise NotReady(
                "the worker is not running on this node",
                where=self.where,
                advice="see its log, or restore the job from its last snapshot",
            )
        return tree

    def require_page(self) -> Page:
        """The control page; raises NotReady for a worker that has none."""
        if self.page is None:
            raise NotReady("the worker has no control page", where=self.where)
        return self.page

    def claim(self, action: str) -> None:
        """Let `action` have this worker; raises Busy while another one has it."""
        if self.state == "faulted":
            raise Refused(
                "the worker is faulted: an earlier attempt could not be undone",
                where=self.where,
                advice="restore the job from its last snapshot",
            )
        if self.action not in ("", action):
            raise Busy(f"the worker is held by {self.action}", where=self.where)
        if not self.action:
            self.claimed_s = time.monotonic()
        self.action = action

    def require_claimed(self, action: str) -> None:
        """Raise Refused unless this action holds the worker (its timer may have run out)."""
        if self.action != action:
            raise Refused(f"{action} does not hold this worker", where=self.where)

    async def launch(self, spec: WorkerSpec) -> tuple[str, ...]:
        """Start it clean with the hook on its path; return notes for people.

        Raises DriverError (missing binary, bad cwd) or Busy (another shim of this machine has this
        worker) with nothing left running.
        """
        self.take_directory()
        self.workers, self.command, self.state = spec.workers, tuple(spec.argv), "starting"
        self.gpu, self.gpus = False, ()
        self.keeping = spec.keeping
        self.launched = spec.launch
        self.page, additions, notes = self.drivers.hook.install(
            self.directory, spec.env, worker=self.worker, slots=spec.slots
        )
        log_file = self.directory / LOG
        self.log_began = {str(log_file): log_file.stat().st_size if log_file.exists() else 0}
        nccl = launch_environment(spec.env, self.directory, mode=spec.nccl, library=spec.nccl_shim)
        launch = LaunchSpec(
            argv=spec.argv,
            env={**spec.env, **additions, **nccl.additions},
            cwd=spec.cwd,
            log=log_file,
        )
        try:
            root_pid = await self.drivers.process.launch(launch, deadline_s=LAUNCH_S_MAX)
        except DriverError as error:
            where = self.where
            raise error.at(job=where.job, worker=where.worker, node=where.node) from None
        self.adopt(root_pid, FRESH)
        self.state = "running"
        return (*notes, *nccl.notes, *elastic.notes(spec.argv, spec.env))

    def take_directory(self) -> None:
        """Have the run directory to ourselves; raises Busy while another living shim has it."""
        if self.taken is not None and self.taken.directory != self.directory:
            self.leave_directory()
        if self.taken is None:
            try:
                self.taken = Claim(self.directory)
            except Busy as error:
                raise error.at(job=self.job, worker=self.worker) from None

    def leave_directory(self) -> None:
        """Let another shim have it, now that nothing of the worker is left here."""
        if self.taken is not None:
            self.taken.release()
            self.taken = None

    def adopt(self, root_pid: int, incarnation: int) -> None:
        """Take a child of this process as the worker's root and watch it."""
        self.root_pid, self.incarnation, self.exit_code, self.ending = (
            root_pid,
            incarnation,
            0,
            False,
        )
        self.watching = asyncio.get_running_loop().create_task(
            self._watch(root_pid), name=f"watch {self.name}"
        )

    def admit(self, incarnation: int) -> None:
        """A coordinator says in which incarnation it is the job's; that never goes back."""
        self.incarnation = max(self.incarnation, incarnation)
        if self.page is not None:
            self.page.set_incarnation(self.incarnation)

    async def _watch(self, root_pid: int) -> None:
        code = await self.drivers.process.wait(root_pid)
        if root_pid != self.root_pid:
            return
        self.state, self.exit_code, self.root_pid = "exited", code, 0
        self.ended_at = time.monotonic()
        if not self.ending:
            left = self.drivers.process.left(root_pid)
            await self._take_off(root_pid, left, deadline_s=OFF_LEFT_S)
            try:
                await self.drivers.process.end_left(root_pid, deadline_s=END_LEFT_S)
            except DriverError as error:  # a later restore here says so again
                log.warning("processes outlive their root", worker=self.name, why=str(error))
            await asyncio.to_thread(kill_strays, self.directory / PAGE)
            self.exited(self)

    async def kill(self, *, deadline_s: float) -> None:
        """End every process of it and wait until they are gone; no error when there are none."""
        self.ending = True
        root, watching = self.root_pid, self.watching
        if root:
            until, kill_s = time.monotonic() + deadline_s, min(KILL_S, deadline_s / 2)
            await self._take_off(root, self.tree(), deadline_s=deadline_s - kill_s)
            left_s = max(kill_s, until - time.monotonic())
            await self.drivers.process.kill(root, deadline_s=left_s)
        if watching is not None:
            await asyncio.wait({watching}, timeout=deadline_s)
        await asyncio.to_thread(kill_strays, self.directory / PAGE)
        self.root_pid, self.ranks = 0, ()
        if self.state:
            self.state = "exited"

    async def _take_off(self, root: int, tree: Tree, *, deadline_s: float) -> None:
        """Its processes leave their devices before they are killed, where the driver wants that."""
        drivers = self.drivers
        if self.gpu and tree.processes and drivers.save_before_kill():
            go_on = partial(drivers.process.go_on, root)
            turn = drivers.device_turn
            await take_off(drivers.cuda, tree, turn, go_on, deadline_s=deadline_s)

    def drop_later(self, action: str) -> None:
        """Remove what is staged of `action` beside the other work; a crash leaves it to a sweep."""
        drop = partial(self.drivers.staging.drop, self.job, self.worker, action)
        dropping = asyncio.ensure_future(asyncio.to_thread(drop))
        self._dropping.add(dropping)
        dropping.add_done_callback(self._has_dropped)

    def _has_dropped(self, dropping: asyncio.Future[None]) -> None:
        self._dropping.discard(dropping)
        if not dropping.cancelled() and (error := dropping.exception()) is not None:
            log.warning("staging is not removed", worker=self.name, why=str(error))

    async def dropped(self, *, deadline_s: float) -> None:
        """Wait until `drop_later` is done, so that its room is free again, or so long."""
        if self._dropping:
            await asyncio.wait(set(self._dropping), timeout=deadline_s)

    def copies(self, action: str, task: asyncio.Task[None]) -> None:
        """This task reads or writes the image store for an action until it ends."""
        self._copying[task] = action
        task.add_done_callback(self._copying.pop)

    @property
    def copying(self) -> bool:
        """Whether something reads or writes the image store for it."""
        return bool(self._copying)

    def tell_copies_to_stop(self, action: str = "") -> set[asyncio.Task[None]]:
        """Tell what copies (for an action, or at all) to stop, once; returns what still runs."""
        told = {task for task, name in self._copying.items() if action in ("", name)}
        for task in told:
            if not task.cancelling():  # a second time would cut its own cleaning up short
                task.cancel()
        return told

    async def stop_copies(self, action: str, *, deadline_s: float) -> None:
        """Stop what copies for this action and wait until it has.

        Raises DriverError when the store does not let go of it in time; it then ends, and removes
        what it wrote, as soon as the store answers.
        """
        told = self.tell_copies_to_stop(action)
        if not told:
            return
        _, left = await asyncio.wait(told, timeout=deadline_s)
        if left:
            raise DriverError(
                f"the image store has not answered for {deadline_s:.1f} s",
                where=self.where,
                advice="is the shared file system mounted? What was being written is removed as "
                "soon as it answers",
                definite=False,
            )

    def begin_hold(self) -> None:
        """The worker stands still from now on."""
        if self.held_since is None:
            self.held_since = time.monotonic()

    def end_hold(self) -> int:
        """The worker is let go; return for how many milliseconds it stood still."""
        if self.held_since is not None:
            self.last_held_ms = self.held_ms
        self.held_since, self.action = None, ""
        return self.last_held_ms

    @property
    def held_ms(self) -> int:
        """How long it has been standing still, or stood the last time."""
        if self.held_since is None:
            return self.last_held_ms
        return round((time.monotonic() - self.held_since) * 1000)

    def report(self) -> WorkerState:
        """As it goes to the coordinator."""
        return WorkerState(
            job=self.job,
            worker=self.worker,
            workers=self.workers,
            state=self.state,
            incarnation=self.incarnation,
            root_pid=self.root_pid,
            world_size=self.page.world_size if self.page is not None else 0,
            ranks=self.ranks,
            findings=self.findings,
            command=self.command,
            exit_code=self.exit_code,
            action=self.action,
            gpu=self.gpu,
            nccl=self.nccl,
        )

    @property
    def restorable(self) -> bool:
        """Whether there may be a snapshot that it can come back from."""
        return bool(self.published or self.restored_by)

    def last_step(self) -> int:
        """What the furthest of its ranks had finished, the dead included; 0: nobody knows."""
        slots = self.page.snapshot()[1] if self.page is not None else ()
        return max((slot.get("boundary", 0) for slot in slots), default=0)

    def log_tail(self) -> str:
        """The last lines of its output."""
        try:
            with open(self.directory / LOG, "rb") as log:
                log.seek(max(0, log.seek(0, 2) - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    @property
    def hook_directory(self) -> Path:
        """Where the hook's files are."""
        return self.directory / HOOK
