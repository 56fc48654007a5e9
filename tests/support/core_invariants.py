"""What must always be true, checked from outside: orders and records against what shims really are.

Nothing here asks the core what it thinks; a check that was taken out of the core is found missing
by these. Numbers are those of `design/design.md`.
"""

from coordinator.core import commands
from coordinator.core.model import (
    AttemptState,
    Cut,
    Phase,
    RestoreState,
    Snapshot,
)
from tests.support.core_shims import DEVICE_AFTER, Worker
from tests.support.core_world import World

AFTER_CUT = (Phase.RESUME, Phase.PERSIST)
BEFORE_CUT = (Phase.HOLD, Phase.PARK, Phase.GPU_LOCK, Phase.GPU_SAVE, Phase.DUMP)

DEVICES_BEFORE = {
    Phase.GPU_LOCK: "used",
    Phase.GPU_SAVE: "locked",
    Phase.DUMP: "saved",
    Phase.GPU_RESTORE: "saved",
    Phase.GPU_UNLOCK: "locked",
    Phase.RELEASE: "used",
}


class Invariants:
    """Watches every command of a world before it is carried out."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cuts: dict[str, int] = {}  # by attempt, the epoch that declared the cut
        self.opened: set[tuple[str, int]] = set()  # restores, with the epoch that ordered OPEN
        self.releases: dict[str, int] = {}  # by restore, the epoch that ordered the first release
        world.watchers.append(self.see)

    def see(self, command: commands.Command) -> None:
        """Check one command."""
        if isinstance(command, commands.SendOrder):
            self.see_order(command)
        elif isinstance(command, commands.CommitSnapshot):
            self.see_commit(command)
        elif isinstance(command, commands.Announce):
            for _, node, _, age_s in command.awaited:
                assert node, "7: whoever is waited for is named"
                assert age_s >= 0

    # -- orders --------------------------------------------------------------------------------

    def see_order(self, order: commands.SendOrder) -> None:
        """Check one order."""
        phase, action = order.phase, order.action
        assert order.epoch == self.world.epoch, "5: no order of an old leader"
        assert order.deadline_s > 0, "7: nothing waits without a deadline"
        if phase in DEVICES_BEFORE:
            self.see_devices(order)
        if phase in BEFORE_CUT:
            assert action in self.world.attempts, f"{phase} before the attempt is recorded"
            assert action not in self.cuts, f"{phase} after the cut"
        elif phase in AFTER_CUT and action not in self.cuts:
            self.cuts[action] = order.epoch
            self.see_cut(order)
        elif phase is Phase.CLEAR:
            stored = self.world.restores[action].state
            assert stored is RestoreState.CLEARING, f"CLEAR while {stored} is recorded"
        elif phase is Phase.OPEN:
            self.opened.add((action, order.epoch))
        elif phase is Phase.RELEASE:
            self.see_release(order)
        elif phase is Phase.STOP:
            assert action in self.world.snapshots, "STOP before the snapshot is committed"
        elif phase is Phase.UNDO and not order.kill:
            kept = order.keep or action not in self.world.snapshots
            assert kept, "1: the images of a snapshot are deleted"

    def see_devices(self, order: commands.SendOrder) -> None:
        """What all workers with devices must have behind them before one of them is ordered this.

        A lock drains what was submitted: with one rank of a collective locked, and another that has
        not come to rest, neither would end.
        """
        wanted = DEVICES_BEFORE[order.phase]
        for worker in self._members(order):
            if not worker.gpu:
                continue
            at_rest = worker.parked or order.cut is Cut.FREEZE
            assert at_rest, f"{order.phase} while worker {worker.worker} is not at rest"
            # a barrier lets nobody ahead, and whoever has done it already is of the same round
            ahead = DEVICE_AFTER.get(order.phase, wanted)
            assert worker.device in (wanted, ahead), (
                f"{order.phase} while worker {worker.worker} is {worker.device}"
            )

    def _members(self, order: commands.SendOrder) -> list[Worker]:
        attempt = self.world.attempts.get(order.action)
        if attempt is not None:
            places = list(enumerate(attempt.nodes))
        else:
            plan = self.world.restores[order.action].plan
            places = [(place.worker, place.to_node) for place in plan.placements]
        found = (self.world.nodes[n].workers.get((order.job, w)) for w, n in places)
        return [worker for worker in found if worker is not None]

    def see_cut(self, order: commands.SendOrder) -> None:
        """With the first order after the cut every member is held, unmoved since its dump."""
        record = self.world.control.attempt(order.action)
        assert record is not None
        assert record.nodes
        for number, node in enumerate(record.nodes):
            worker = self.world.nodes[node].workers.get((order.job, number))
            assert worker is not None, f"2: cut without worker {number}"
            dumped = worker.dumped.get(order.action)
            assert dumped is not None, f"2: cut, and worker {number} has not dumped"
            assert worker.held_by == order.action, "2: a hold had run out before the cut"
            assert dumped[0] == worker.moves, "2: a rank moved between its dump and the cut"

    def see_release(self, order: commands.SendOrder) -> None:
        """Before the first release every tree is back, and that is recorded."""
        record = self.world.restores[order.action]
        assert record.state is RestoreState.RELEASING, f"RELEASE while {record.state} is recorded"
        if self.releases.setdefault(order.action, order.epoch) != order.epoch:
            return
        for place in record.plan.placements:
            worker = self.world.nodes[place.to_node].workers.get((order.job, place.worker))
            assert worker is not None, f"6: release without worker {place.worker}"
            assert worker.incarnation == record.incarnation, "6: release beside an old incarnation"
            heir = (order.action, order.epoch) not in self.opened  # RELEASE opens it too, then
            assert worker.network_open or heir, f"worker {place.worker} cannot be sent to yet"

    # -- commits -------------------------------------------------------------------------------

    def see_commit(self, command: commands.CommitSnapshot) -> None:
        """A snapshot is whole (invariant 1) and of this epoch and incarnation (3, 6)."""
        made, record = command.snapshot, command.record
        assert (made.epoch, record.epoch) == (self.world.epoch,) * 2, "3: of another epoch"
        assert made.snapshot in self.cuts, "1: committed without a cut"
        check_whole(made, len(record.nodes))
        assert made.snapshot not in self.world.snapshots, "3: committed twice"


def check_whole(made: Snapshot, workers: int) -> None:
    """Every rank of the job once, all at one step, all stored and hashed."""
    ranks = [r for w in made.workers for r in w.ranks]
    assert sorted(w.worker for w in made.workers) == list(range(workers)), "1: not every worker"
    assert sorted(r.rank for r in ranks) == list(range(made.world_size)), "1: not every rank"
    assert all(w.manifest and w.manifest_digest for w in made.workers), "1: not all stored"
    if made.cut is Cut.STEP:
        assert {r.boundary for r in ranks} == {made.step}, "1: not one step"


def check_ends(world: World) -> None:
    """When all is quiet: everything has ended, nobody is held, nothing is left that is not owed."""
    control = world.control
    for record in (*control.attempts(), *control.restores()):
        ended = AttemptState.COMMITTED, AttemptState.ABORTED, RestoreState.RUNNING
        assert record.state in (*ended, RestoreState.FAILED), f"7: {record} never ended"
    for node in world.nodes.values():
        for worker in node.workers.values():
            assert worker.held_by == "", f"4: {worker} on {node.name} is still held"
            assert worker.state in ("running", "exited"), f"4: {worker} on {node.name}"
            for action in worker.dumped:
                committed = world.attempts[action].state is AttemptState.COMMITTED
                kept = committed or action in world.snapshots  # whatever its last record says
                owed = worker.worker in world.attempts[action].owed  # its undo has failed there
                left = f"{action} left its images on {node.name}"
                assert kept or owed or not node.attached, left
    for view in control.jobs():
        known = world.jobs.get(view.job.job)
        assert view.job.latest == (known.latest if known else ""), "3: latest"
        if known and known.latest:
            assert known.latest in world.snapshots
