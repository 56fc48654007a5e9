"""A whole cluster in one thread for tests of the core: shims, a store, a clock that is turned.

Every command of the core is carried out here and every answer is kept until the test lets it out,
so a test decides the order of things and repeats them exactly.
"""

from collections.abc import Callable
from dataclasses import replace

from coordinator.core import commands, drain_events, events
from coordinator.core.control import Control
from coordinator.core.drain_records import DrainRecord, DrainState
from coordinator.core.errors import AllstopError
from coordinator.core.health_rules import HealthRules
from coordinator.core.job_policy import JobHistory, JobPolicy, JobRecovery
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Cut,
    Failure,
    JobRecord,
    Phase,
    RestoreRecord,
    Snapshot,
)
from coordinator.core.policy import Policy
from tests.support.core_keeping import Keeping
from tests.support.core_shims import NEVER, Node, Worker, ring
from tests.support.core_store import loaded

WAKEUPS_MAX = 1000


class World:
    """Control and everything it talks to. `now` is in seconds and moves only by `tick`."""

    def __init__(self, policy: Policy | None = None, health: HealthRules | None = None) -> None:
        self.policy = policy or Policy()
        self.health = health
        self.now = 0.0
        self.epoch = 1
        self.control = Control(epoch=1, coordinator="c1", policy=self.policy, health=health)
        self.nodes: dict[str, Node] = {}
        self.orders: list[commands.SendOrder] = []  # received and not answered
        self.writes: list[commands.Command] = []  # not answered by the store
        self.attempts: dict[str, AttemptRecord] = {}  # what the store holds
        self.restores: dict[str, RestoreRecord] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.jobs: dict[str, JobRecord] = {}
        self.keeping = Keeping(self)
        self.watchers: list[Callable[[commands.Command], None]] = []
        self.last: dict[str, commands.Announce] = {}
        self.refused: dict[str, commands.Refuse] = {}
        self.deferred: dict[tuple[str, int], str] = {}  # why a worker is not taken in yet
        self.policies: dict[str, JobPolicy] = {}
        self.due: list[commands.AskCheckpoint] = []
        self.histories: dict[str, JobHistory] = {}
        self.wanted: list[commands.AskRestore] = []
        self.recoveries: dict[str, JobRecovery] = {}
        self.stays: list[commands.StayOn] = []
        self.notices: list[commands.AskDrain] = []
        self.drains: dict[str, DrainRecord] = {}
        self.notices_refused: list[commands.RefuseNotice] = []
        self.slow_fences = False  # whoever is fenced lives on for now

    # -- events and commands -------------------------------------------------------------------

    def event(self, event: events.Event) -> list[commands.Command]:
        """Hand an event in, check the core's invariants, and carry its commands out."""
        if isinstance(event, events.PolicyChanged):
            self.policies[event.policy.job] = event.policy
        decided = self.control.handle(event, self.now)
        self.control.validate()
        self.carry_out(decided)
        return decided

    def carry_out(self, decided: list[commands.Command]) -> None:
        """What the server would do with commands."""
        for command in decided:
            for watch in self.watchers:
                watch(command)
            self._carry_out(command)

    def _carry_out(self, command: commands.Command) -> None:
        if isinstance(command, commands.SendOrder):
            node = self.nodes[command.node]
            if node.attached:
                node.receive(command, self.now)
                self.orders.append(command)
        elif isinstance(command, commands.FenceWorkers):
            self._fence(command)
        elif isinstance(command, commands.AdmitWorker):
            self._admit(command)
        elif isinstance(command, commands.DeferWorker):
            self.deferred[(command.job, command.worker)] = command.reason
        elif isinstance(command, commands.Announce):
            self.last |= {command.action: command} if command.last else {}
        elif isinstance(command, commands.Refuse):
            self.refused[command.action] = command
        elif isinstance(command, commands.SendTask):
            self.keeping.receive(command)
        else:
            self._keep(command)

    def _keep(self, command: commands.Command) -> None:
        """What is asked of the store, or of the server itself."""
        if isinstance(command, commands.AskCheckpoint):
            self.due.append(command)
        elif isinstance(command, commands.KeepHistory):
            self.histories[command.record.job] = command.record
        elif isinstance(command, commands.AskRestore):
            self.wanted.append(command)
        elif isinstance(command, commands.AskDrain):
            self.notices.append(command)
        elif isinstance(command, commands.RefuseNotice):
            self.notices_refused.append(command)
        elif isinstance(command, commands.StayOn):
            self.stays.append(command)
        elif isinstance(command, commands.KeepRecovery):
            self.recoveries[command.record.job] = command.record
        else:
            self.writes.append(command)

    def _fence(self, command: commands.FenceWorkers) -> None:
        if self.slow_fences:
            return
        for state in command.workers:
            gone = self.nodes[command.node].workers.get((state.job, state.worker))
            if gone is not None and gone.incarnation == state.incarnation:
                self.nodes[command.node].workers.pop((state.job, state.worker))

    def _admit(self, command: commands.AdmitWorker) -> None:
        node = self.nodes[command.node]
        worker = node.workers.get((command.job, command.worker))
        if node.attached and worker is not None:
            worker.incarnation = max(worker.incarnation, command.incarnation)

    # -- the store -----------------------------------------------------------------------------

    def store(self) -> None:
        """The store answers everything it was asked, and what that leads to."""
        for _ in range(WAKEUPS_MAX):
            if not self.writes:
                return
            self.store_one()
        raise AssertionError("the core never stops writing")

    def store_one(self) -> None:
        """The store carries out the oldest write and answers."""
        self.event(self.apply(self.writes.pop(0)))

    def apply(self, write: commands.Command) -> events.Event:
        """The store carries out a write; its answer may get lost."""
        if isinstance(write, Keeping.WRITES):
            return self.keeping.apply(write)
        if isinstance(write, commands.PutDrain | commands.BeginRun):
            return self._put(write)
        if isinstance(write, commands.PutAttempt):
            undone = write.record.state in (AttemptState.ABORTING, AttemptState.ABORTED)
            if undone and write.record.attempt in self.snapshots:
                refused = Failure("StoreError", "it was committed and is not undone")
                return events.StoreRefused(write.record.attempt, refused)
            self.attempts[write.record.attempt] = write.record
            return events.AttemptStored(write.record.attempt, write.record.state)
        if isinstance(write, commands.CommitSnapshot):
            made = write.snapshot
            if self.jobs[made.job].incarnation != made.incarnation:
                moved = Failure("StoreError", "it was restored meanwhile")
                return events.CommitRefused(made.snapshot, moved)
            self.snapshots[made.snapshot] = made
            self.attempts[made.snapshot] = write.record
            self.jobs[made.job] = replace(self.jobs[made.job], latest=made.snapshot)
            self.keeping.stored(made)
            return events.SnapshotCommitted(made.snapshot)
        if isinstance(write, commands.AdmitRestore):
            job = self.jobs[write.record.job]
            if job.incarnation != write.old_incarnation:
                other = Failure("StoreError", "another restore was first")
                return events.StoreRefused(write.record.restore, other)
            self.restores[write.record.restore] = write.record
            self.jobs[job.job] = replace(job, incarnation=write.record.incarnation)
            return events.RestoreAdmitted(write.record.restore)
        assert isinstance(write, commands.PutRestore)
        self.restores[write.record.restore] = write.record
        return events.RestoreStored(write.record.restore, write.record.state)

    def _put(self, write: commands.PutDrain | commands.BeginRun) -> events.Event:
        if isinstance(write, commands.BeginRun):
            self.jobs[write.record.job] = write.record
            return events.RunBegun(write.record)
        self.drains[write.record.node] = write.record
        if write.record.state is DrainState.UNDRAINED:
            self.drains.pop(write.record.node)
        made = write.record
        return drain_events.DrainStored(made.node, made.state, made.requested_unix_s)

    # -- shims ---------------------------------------------------------------------------------

    def node(self, node: Node) -> None:
        """Add a node and let its shim attach."""
        self.nodes[node.name] = node
        self.attach(node.name)

    def attach(self, name: str, *, new_session: bool = False) -> None:
        """A shim opens its stream, anew if it had one."""
        node = self.nodes[name]
        node.session += new_session
        node.attached = True
        self.event(node.hello())

    def lose(self, name: str, reason: str = "its stream broke", *, politely: bool = False) -> None:
        """A shim is out of reach; what it was ordered before may still be done, unheard."""
        node = self.nodes[name]
        node.attached = False
        self.orders = [o for o in self.orders if o.node != name]
        kind = events.NodeLeft if politely else events.NodeLost
        self.event(kind(name, f"s{node.session}", reason))

    def start(
        self, job: str, nodes: list[str], *, ranks: int = 1, at: int = 10, gpu: bool = False
    ) -> None:
        """Workers of a job are launched, one on each node named, and become the job."""
        addresses = [self.nodes[name].facts.address for name in nodes]
        for worker, name in enumerate(nodes):
            own = range(worker * ranks, (worker + 1) * ranks)
            made = Worker(job, worker, len(nodes), len(nodes) * ranks, {r: at + r % 2 for r in own})
            made.connections, made.gpu = ring(addresses, worker), gpu
            self.nodes[name].workers[(job, worker)] = made
            self.report(name)
        self.store()

    def report(self, name: str) -> None:
        """A shim tells how its workers are."""
        node = self.nodes[name]
        states = tuple(w.report() for w in node.workers.values())
        self.event(events.NodeReported(name, f"s{node.session}", states))

    def answer(self, order: commands.SendOrder) -> events.OrderAnswered:
        """The shim does what it was ordered, and its answer arrives."""
        self.orders.remove(order)
        answered = self.nodes[order.node].carry_out(order)
        self.event(answered)
        return answered

    def answer_all(self, phase: Phase | None = None) -> None:
        """All shims answer what they were ordered (in a phase), oldest first."""
        chosen = [o for o in self.orders if phase is None or o.phase is phase]
        for order in chosen:
            if order in self.orders:
                self.answer(order)

    def settle(self) -> None:
        """Store and shims answer until nobody has anything left to say."""
        for _ in range(WAKEUPS_MAX):
            if not self.orders and not self.writes and not self.keeping.tasks:
                return
            self.store()
            self.answer_all()
            self.keeping.answer_all()
        raise AssertionError("the core never comes to rest")

    # -- time ----------------------------------------------------------------------------------

    def tick(self, seconds: float) -> None:
        """Let time pass; every deadline on the way is met at its time, dead-man timers first."""
        until = self.now + seconds
        for _ in range(WAKEUPS_MAX):
            wakeup = self.control.next_wakeup()
            held = [w.held_until for n in self.nodes.values() for w in n.workers.values()]
            nearest = min([t for t in (wakeup, *held) if t is not None], default=NEVER)
            if nearest > until:
                self.now = until
                return
            self.now = max(self.now, nearest)
            self.run_out()
            if wakeup is not None and wakeup <= self.now:
                self.event(events.TimePassed())
        raise AssertionError("the core asks to be woken without end")

    def run_out(self) -> None:
        """Holds whose time has come are undone by the shims themselves."""
        for node in self.nodes.values():
            for key, worker in list(node.workers.items()):
                if worker.held_until <= self.now:
                    restored = worker.state == "restored"
                    worker.undone.add(worker.held_by)
                    worker.dumped.pop(worker.held_by, None)
                    worker.let_go()
                    if restored:
                        node.workers.pop(key)

    # -- requests ------------------------------------------------------------------------------

    def checkpoint(
        self,
        job: str,
        attempt: str,
        *,
        cut: Cut = Cut.STEP,
        stop: bool = False,
        deadline_s: float = 0.0,
    ) -> list[commands.Command]:
        """Ask for a checkpoint."""
        asked = events.CheckpointRequested(job, attempt, cut, stop, deadline_s, 1000.0 + self.now)
        return self.event(asked)

    def restore(self, job: str, restore: str, snapshot: str) -> list[commands.Command]:
        """Ask for a restore; every attached node has answered about program files."""
        files = tuple(n.facts for n in self.nodes.values() if n.attached)
        unix_s = 1000.0 + self.now
        made = self.snapshots[snapshot]
        return self.event(events.RestoreRequested(job, restore, made, 0.0, unix_s, files))

    def new_leader(self, damaged: tuple[AllstopError, ...] = ()) -> None:
        """Another coordinator takes over: it knows what the store holds, and shims attach to it."""
        self.epoch += 1
        name = f"c{self.epoch}"
        self.control = Control(
            epoch=self.epoch, coordinator=name, policy=self.policy, health=self.health
        )
        self.orders, self.writes, self.keeping.tasks = [], [], []
        found = loaded(
            list(self.jobs.values()),
            list(self.attempts.values()),
            list(self.restores.values()),
            list(self.snapshots.values()),
        )
        decided = self.control.adopt(
            jobs=found.jobs,
            attempts=(*found.recent, *found.attempts),
            restores=(*found.replaced, *found.restores),
            now=self.now,
            unix_s=1000.0 + self.now,
            damaged=damaged,
            policies=tuple(self.policies.values()),
            histories=tuple(self.histories.values()),
            recoveries=tuple(self.recoveries.values()),
            drains=tuple(self.drains.values()),
            snapshots=found.snapshots,
        )
        self.control.validate()
        self.carry_out(decided)
        for node in self.nodes.values():
            if node.attached:
                self.attach(node.name)
