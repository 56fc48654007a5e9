"""The core against chance: any order of answers, losses, returns, duplicates, leaders and time.

After every single step the core's own invariants are checked (`World.event`), and here those that
span the cluster: design invariants 1 (snapshots are whole), 2 (nothing moved within a cut),
3 (`latest` follows commits), 4 (what ran before an attempt runs after it), 6 (one incarnation
runs), 7 (everything awaited has a deadline, and every attempt and restore ends).
"""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.core import commands, events
from coordinator.core.errors import IllegalEvent
from coordinator.core.model import (
    AttemptState,
    Cut,
    Failure,
    RestoreState,
)
from tests.support.core_invariants import Invariants, check_ends
from tests.support.core_shims import Node, Worker, facts
from tests.support.core_world import World

RARELY = st.integers(0, 3).map(lambda n: n == 0)
ENDED = {
    AttemptState.COMMITTED,
    AttemptState.ABORTED,
    RestoreState.RUNNING,
    RestoreState.FAILED,
}
JOB = "llm"


class Cluster(RuleBasedStateMachine):
    """Three workers of one job, two spares, one coordinator at a time."""

    @initialize(ranks=st.integers(1, 2), shared=st.booleans(), gpu=st.sampled_from((0, 1, 3)))
    def start(self, ranks: int, shared: bool, gpu: int) -> None:
        self.world = World()
        Invariants(self.world)
        self.serial = 0
        self.answered: list[events.OrderAnswered] = []
        self.ranks = ranks
        for number in range(1, 6):
            self.world.node(Node(facts(f"node-{number}")))
        last = "node-2" if shared else "node-3"
        self.world.start(JOB, ["node-1", "node-2", last], ranks=ranks, at=100)
        for worker, node in list(enumerate(("node-1", "node-2", last)))[:gpu]:
            self.world.nodes[node].workers[(JOB, worker)].gpu = True
            self.world.report(node)

    # -- what must always be true, beside what `Invariants` sees ----------------------------

    @invariant()
    def someone_will_wake_us(self) -> None:
        records = (*self.world.control.attempts(), *self.world.control.restores())
        busy = any(r.state not in ENDED for r in records)
        wakeup = self.world.control.next_wakeup()
        assert (wakeup is not None) == busy
        assert wakeup is None or wakeup >= self.world.now - 1e-6

    @invariant()
    def one_incarnation_runs(self) -> None:
        reached = [
            w
            for n in self.world.nodes.values()
            if n.attached
            for w in n.workers.values()
            if w.state == "running" and w.held_by == "" and w.incarnation > 0
        ]
        newest = {w.worker for w in reached}
        running = any(job.state == "running" for job in self.world.control.jobs())
        if running and newest:
            assert len({w.incarnation for w in reached}) == 1, "an old incarnation runs beside"

    # -- what may happen -----------------------------------------------------------------------

    @rule(cut=st.sampled_from([Cut.STEP, Cut.STEP, Cut.FREEZE]), stop=RARELY)
    def ask_checkpoint(self, cut: Cut, stop: bool) -> None:
        self.serial += 1
        self.world.checkpoint(JOB, f"a{self.serial}", cut=cut, stop=stop)

    @precondition(lambda self: self.world.snapshots)
    @rule(data=st.data())
    def ask_restore(self, data: st.DataObject) -> None:
        self.serial += 1
        chosen = data.draw(st.sampled_from(sorted(self.world.snapshots)))
        self.world.restore(JOB, f"r{self.serial}", chosen)

    @precondition(lambda self: self.world.writes)
    @rule()
    def store_answers(self) -> None:
        self.world.store_one()

    @precondition(lambda self: self.world.orders)
    @rule(data=st.data())
    def shim_answers(self, data: st.DataObject) -> None:
        order = self.world.orders[data.draw(st.integers(0, len(self.world.orders) - 1))]
        self.answered.append(self.world.answer(order))

    @precondition(lambda self: self.world.orders)
    @rule()
    def all_answer(self) -> None:
        self.world.answer_all()

    @rule(times=st.integers(1, 6))
    def rounds_go_by(self, times: int) -> None:
        """Store and shims answer what they were asked, phase after phase."""
        for _ in range(times):
            self.world.store()
            self.world.answer_all()

    @rule(really=RARELY)
    def everything_settles(self, really: bool) -> None:
        if really:
            self.world.settle()

    @precondition(lambda self: self.world.orders)
    @rule(data=st.data())
    def shim_fails(self, data: st.DataObject) -> None:
        if data.draw(st.integers(0, 3)):
            return
        order = self.world.orders[data.draw(st.integers(0, len(self.world.orders) - 1))]
        self.world.orders.remove(order)
        self.world.event(self.world.nodes[order.node].fail(order, "it broke"))

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def an_answer_comes_again(self, data: st.DataObject) -> None:
        """From another leader's time, or twice: nothing changes, or it is refused as illegal."""
        again = self.answered[data.draw(st.integers(0, len(self.answered) - 1))]
        control = self.world.control
        before = (control.attempts(), control.restores(), control.next_wakeup())
        try:
            assert self.world.event(again) == []
        except IllegalEvent:
            raise AssertionError("a duplicate is never illegal") from None
        assert (control.attempts(), control.restores(), control.next_wakeup()) == before

    @rule(data=st.data(), really=RARELY, politely=st.booleans())
    def node_lost(self, data: st.DataObject, really: bool, politely: bool) -> None:
        up = [n.name for n in self.world.nodes.values() if n.attached]
        if up and really:
            self.world.lose(data.draw(st.sampled_from(up)), politely=politely)

    @rule(data=st.data(), new_session=st.booleans(), really=st.booleans())
    def node_attaches(self, data: st.DataObject, new_session: bool, really: bool) -> None:
        lost = sorted(n.name for n in self.world.nodes.values() if not n.attached)
        if not lost and not really:
            return
        name = data.draw(st.sampled_from(lost or sorted(self.world.nodes)))
        self.world.orders = [o for o in self.world.orders if o.node != name]
        self.world.attach(name, new_session=new_session)

    @rule(data=st.data())
    def node_reports(self, data: st.DataObject) -> None:
        up = [n.name for n in self.world.nodes.values() if n.attached]
        if up:
            self.world.report(data.draw(st.sampled_from(up)))

    @rule(data=st.data(), steps=st.integers(1, 3))
    def ranks_step(self, data: st.DataObject, steps: int) -> None:
        free = [w for _, w in self.workers() if not w.parked and w.state == "running"]
        if free:
            worker = free[data.draw(st.integers(0, len(free) - 1))]
            worker.boundaries = {r: b + steps for r, b in worker.boundaries.items()}

    @rule(data=st.data(), really=RARELY)
    def somebody_starts_a_worker(self, data: st.DataObject, really: bool) -> None:
        """`shim run` on a node without one, whether or not that worker is running somewhere."""
        idle = sorted(n.name for n in self.world.nodes.values() if not n.workers)
        if not idle or not really:
            return
        node = self.world.nodes[data.draw(st.sampled_from(idle))]
        number = data.draw(st.integers(0, 2))
        own = range(number * self.ranks, (number + 1) * self.ranks)
        node.workers[(JOB, number)] = Worker(JOB, number, 3, 3 * self.ranks, dict.fromkeys(own, 1))
        self.world.orders = [o for o in self.world.orders if o.node != node.name]
        self.world.attach(node.name, new_session=True)

    @rule(data=st.data())
    def worker_exits(self, data: st.DataObject) -> None:
        found = [(n, w) for n, w in self.workers() if n.attached]
        if found and data.draw(st.integers(0, 3)) == 0:
            node, worker = found[data.draw(st.integers(0, len(found) - 1))]
            node.workers.pop((worker.job, worker.worker))
            self.world.event(
                events.WorkerExited(node.name, JOB, worker.worker, worker.incarnation, 1)
            )

    @precondition(lambda self: any(w.held_by for _, w in self.workers()))
    @rule(data=st.data(), really=RARELY)
    def a_shim_lets_go_and_says_so(self, data: st.DataObject, really: bool) -> None:
        held = [(n, w) for n, w in self.workers() if w.held_by and n.attached]
        if held and really:
            node, worker = held[data.draw(st.integers(0, len(held) - 1))]
            worker.held_until, action = self.world.now, worker.held_by
            self.world.run_out()
            at = (self.world.epoch, node.name, JOB, worker.worker, action)
            self.world.event(events.Undone(*at, 1))

    @rule(seconds=st.sampled_from([0.5, 0.5, 1.0, 4.0, 11.0, 70.0, 130.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule(seconds=st.sampled_from([8.0, 66.0, 130.0]), really=RARELY)
    def coordinator_stands_still(self, seconds: float, really: bool) -> None:
        """The clock moves, shims let go, and the core is told nothing."""
        if not really:
            return
        self.world.now += seconds
        self.world.run_out()
        if (self.world.control.next_wakeup() or self.world.now) < self.world.now:
            order = next(iter(self.world.orders), None)
            if order is not None:
                self.answered.append(self.world.answer(order))
            self.world.event(events.TimePassed())

    @rule(really=RARELY, letter=st.sampled_from("ar"))
    def operator_aborts(self, really: bool, letter: str) -> None:
        if really:
            self.world.event(events.AbortRequested(f"{letter}{self.serial}", "on a whim"))

    @precondition(lambda self: self.world.writes)
    @rule(definite=st.booleans(), really=RARELY)
    def store_refuses(self, definite: bool, really: bool) -> None:
        if not really:
            return
        write = self.world.writes.pop(0)
        failure = Failure("StoreError", "etcd said no", definite=definite)
        if isinstance(write, commands.CommitSnapshot):
            self.world.event(events.CommitRefused(write.snapshot.snapshot, failure))
        elif isinstance(write, commands.PutAttempt):
            self.world.event(events.StoreRefused(write.record.attempt, failure))
        elif isinstance(write, commands.AdmitRestore | commands.PutRestore):
            self.world.event(events.StoreRefused(write.record.restore, failure))
        elif isinstance(write, commands.BeginRun):
            self.world.event(events.RunRefused(JOB, failure))

    @rule(really=RARELY)
    def leader_changes(self, really: bool) -> None:
        if really:
            self.world.new_leader()

    # -- and in the end ------------------------------------------------------------------------

    def workers(self) -> list[tuple[Node, Worker]]:
        return [(n, w) for n in self.world.nodes.values() for w in n.workers.values()]

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.settle()
        self.world.tick(5000)
        self.world.settle()
        check_ends(self.world)
        for node in [n for n in self.world.nodes.values() if n.attached]:
            self.world.report(node.name)
        self.world.settle()
        for node, worker in self.workers():
            assert worker.incarnation or not node.attached, f"{worker} waits for ever"


TestCluster = Cluster.TestCase
TestCluster.pytestmark = [pytest.mark.timeout(300)]  # seconds when idle, minutes when not
TestCluster.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
