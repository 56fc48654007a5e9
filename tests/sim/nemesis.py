"""What goes wrong: faults by the seed, at any time or just when an action reaches a state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.loop import FROZEN
from tests.sim.machine import CAN_LIE, Machine
from tests.sim.replica import Replica

if TYPE_CHECKING:
    from tests.sim.user import User
    from tests.sim.world import World

STORE = "etcd"
DRIVER_ACTS = (
    "stop", "lock", "unlock", "go_on", "dump", "cut", "put", "fetch", "restore", "create",
    "delete", "list", "collect", "kill", "settle", "check", "roll_back", "cuda_lock",
    "cuda_checkpoint",
    "cuda_restore", "cuda_unlock",
)  # fmt: skip
HANGING_ACTS = (
    "dump", "put", "fetch", "restore", "unlock", "stop", "list", "collect", "cuda_lock",
    "cuda_checkpoint", "cuda_restore",
)  # fmt: skip
STATES = (
    "ADMITTING", "HOLDING", "PARKING", "DUMPING", "PERSISTING", "COMMITTING", "STOPPING",
    "ABORTING", "FETCHING", "CLEARING", "RESTORING", "RELEASING", "FAILING", "LOCKING", "SAVING",
    "GPU_RESTORING", "GPU_UNLOCKING", "MARKING", "LISTING", "COLLECTING", "FORGETTING",
)  # fmt: skip


WHEN = {
    "slow_votes": ("DUMPING",),
    "quiet_death": ("DUMPING",),
    "lie": ("HOLDING", "PARKING"),
    "lose_the_spare": ("FETCHING", "RESTORING"),
    "change_policy": ("HOLDING", "DUMPING", "PERSISTING", "FETCHING", "CLEARING", "RELEASING"),
}  # else it misses its mark


class Nemesis:
    """Plans some faults for a run, and takes them all back in the end."""

    def __init__(self, world: World, focus: tuple[str, ...] = ()) -> None:
        """`focus`: choose among these kinds, and often; else a few kinds of all, by the seed."""
        self.world, self.rng = world, world.rng
        self.active = False
        self.done: list[str] = []
        kinds: list[Callable[[], None]] = [
            self.freeze_replica, self.kill_replica, self.cut_replica_from_store,
            self.freeze_store, self.kill_store, self.lose_answers, self.refuse_writes,
            self.cut_machine, self.slow_machine, self.freeze_shim, self.kill_shim,
            self.crash_machine, self.kill_worker, self.break_driver, self.hang_driver,
            self.lie, self.slow_drivers, self.stick_rank, self.abort, self.end_shim,
            self.slow_votes, self.late_commit, self.move_leader, self.old_orders,
            self.quiet_death, self.lose_two, self.lose_the_spare, self.jump_clock,
            self.change_policy, self.hang_ranks,
        ]  # fmt: skip
        self.kinds = self.rng.sample(kinds, self.rng.randint(2, 8))
        self.left = self.rng.choice((0, 1, 2, 4, 6, 9, 12))
        if focus:
            self.kinds = [kind for kind in kinds if kind.__name__ in focus]
            self.left = 6
        self.waiting: list[tuple[str, Callable[[], None]]] = []

    # -- when -------------------------------------------------------------------------------------

    async def run(self, until: float) -> None:
        """Do all faults of this run before `until`."""
        self.active = True
        for _ in range(self.left):
            fault = self.rng.choice(self.kinds)
            if self.rng.random() < 0.7:
                states = WHEN.get(fault.__name__, STATES)
                self.waiting.append((self.rng.choice(states), fault))
            else:
                when = self.rng.uniform(2.0, max(3.0, until - 10.0))
                loop = self.world.loop
                loop.at(when, self._do, fault, context=loop.outside.context)
        await asyncio.sleep(until - self.world.loop.now)
        self.active = False

    def at(self, job: str, state: str) -> None:
        """A cleaning of a job has come to a state."""
        self.on_state(self.world.users[job], state)

    def on_state(self, user: User, state: str) -> None:
        """An action has come to a state: now is the time for what waits for that."""
        for planned in [each for each in self.waiting if each[0] == state]:
            if self.active and self.rng.random() < 0.5:
                self.waiting.remove(planned)
                delay = self.rng.choice((0.0, 0.01, 0.05, 0.3, 1.0)) * self.rng.random()
                self.world.loop.later(delay, self._do, planned[1])

    def _do(self, fault: Callable[[], None]) -> None:
        if self.active:
            self.done.append(fault.__name__)
            self.world.note(f"fault: {fault.__name__}")
            fault()

    def _then(self, seconds: float, call: Callable[[], None]) -> None:
        """Take a fault back; not counted as one."""
        self.world.loop.later(seconds, call)

    # -- whom -------------------------------------------------------------------------------------

    def _machine(self) -> Machine:
        return self.rng.choice(list(self.world.machines.values()))

    def _replica(self) -> Replica:
        leading = [r for r in self.world.replicas.values() if r.leads]
        if leading and self.rng.random() < 0.7:
            return self.rng.choice(leading)
        return self.rng.choice(list(self.world.replicas.values()))

    # -- coordinators and store -------------------------------------------------------------------

    def freeze_replica(self) -> None:
        """SIGSTOP for a while, often for longer than a lease."""
        replica = self._replica()
        replica.freeze()
        self._then(
            self.rng.choice((0.5, 2.0, 4.0, 8.0, 15.0)) * self.rng.uniform(0.7, 1.3), replica.go_on
        )

    def kill_replica(self) -> None:
        """SIGKILL."""
        self._replica().kill()

    def move_leader(self) -> None:
        """Kill whoever leads, and again a little later."""
        for delay in (0.0, self.rng.uniform(1.0, 9.0)):
            self._then(delay, lambda: [r.kill() for r in self.world.replicas.values() if r.leads])

    def cut_replica_from_store(self) -> None:
        """No way to the store, or no way back."""
        replica, ways = self._replica(), self.rng.choice(("both", "there", "back"))
        self._cut(replica.name, STORE, ways, self.rng.uniform(1.0, 14.0))

    def freeze_store(self) -> None:
        """SIGSTOP of etcd."""
        process = self.world.store.process
        process.freeze()
        self._then(self.rng.uniform(0.5, 9.0), process.go_on)

    def kill_store(self) -> None:
        """SIGKILL of etcd; it comes back over its data."""
        self.world.kill_store(self.rng.uniform(0.5, 8.0))

    def lose_answers(self) -> None:
        """The next answers to writes are lost, though the writes are not."""
        self.world.store.mute += self.rng.randint(1, 3)

    def refuse_writes(self) -> None:
        """No room in etcd."""
        self.world.store.refusing = True
        self._then(self.rng.uniform(1.0, 8.0), self._room)

    def _room(self) -> None:
        self.world.store.refusing = False

    def late_commit(self) -> None:
        """A commit is so long on its way that it arrives in the next epoch."""
        if not self.world.store.held:
            self.world.store.held.append(self._commit_is_late)

    def _commit_is_late(self) -> float:
        """Its leader dies, or is cut off, and the next one has not heard of every node yet."""
        if not self.active:
            return 0.0
        machine, leading = self._machine(), [r for r in self.world.replicas.values() if r.leads]
        for name in self.world.replicas:
            self._cut(machine.name, name, "both", self.rng.uniform(8.0, 13.0))
        for replica in leading:
            if self.rng.random() < 0.5:
                self._then(0.05, replica.kill)
            else:
                self._cut(replica.name, STORE, "both", self.rng.uniform(8.0, 12.0))
        return self.rng.uniform(6.0, 11.0)

    # -- machines ---------------------------------------------------------------------------------

    def _cut(self, one: str, other: str, ways: str, seconds: float) -> None:
        network = self.world.network
        if ways in ("both", "there"):
            network.cut_off(one, other)
        if ways in ("both", "back"):
            network.cut_off(other, one)

        def heal() -> None:
            network.heal(one, other)
            network.heal(other, one)
            self.world.store.flush()

        self._then(seconds, heal)

    def _quick(self, one: str, other: str) -> None:
        self.world.network.slow.pop((one, other), None)
        self.world.network.slow.pop((other, one), None)

    def cut_machine(self) -> None:
        """A node loses some or all coordinators, in one direction or both."""
        machine, ways = self._machine(), self.rng.choice(("both", "there", "back"))
        seconds = self.rng.uniform(0.5, 14.0)
        names = list(self.world.replicas)
        for name in names if self.rng.random() < 0.6 else names[:1]:
            self._cut(machine.name, name, ways, seconds)

    def slow_machine(self) -> None:
        """What a node says or hears takes long."""
        machine = self._machine()
        for name in self.world.replicas:
            for way in ((machine.name, name), (name, machine.name)):
                if self.rng.random() < 0.5:
                    self.world.network.slow[way] = self.rng.choice((0.2, 1.0, 4.0))
            self._then(self.rng.uniform(1.0, 10.0), lambda n=name: self._quick(machine.name, n))

    def freeze_shim(self) -> None:
        """SIGSTOP of a shim."""
        shim = self._machine().shim
        if shim is not None:
            shim.freeze()
            self.world.network.watch_silence()
            self._then(
                self.rng.choice((0.5, 3.0, 8.0, 25.0)) * self.rng.uniform(0.7, 1.3), shim.go_on
            )

    def kill_shim(self) -> None:
        """SIGKILL of a shim, and of its workers with it."""
        self._machine().kill_shim()

    def end_shim(self) -> None:
        """SIGTERM of a shim."""
        self._machine().end_shim()

    def crash_machine(self) -> None:
        """Power fails."""
        self._machine().crash()

    def kill_worker(self) -> None:
        """A rank dies, and its worker with it."""
        self._kill_worker_of(self._machine())

    def _kill_worker_of(self, machine: Machine) -> None:
        living = [t for t in machine.trees.values() if t.alive]
        if living and machine.shim is not None and machine.shim.state != FROZEN:
            root = self.rng.choice(living).root_pid
            machine.shim.spawn(machine.processes.end(root, 1), "a rank dies")

    # -- drivers ----------------------------------------------------------------------------------

    def break_driver(self) -> None:
        """The next act of a driver fails."""
        self._machine().plan(self.rng.choice(DRIVER_ACTS), "fail")

    def hang_driver(self) -> None:
        """The next act of a driver takes all its time and fails."""
        self._machine().plan(self.rng.choice(HANGING_ACTS), "hang")

    def lie(self) -> None:
        """The next dump says that it is whole."""
        self._machine().plan("dump", f"lie {self.rng.randrange(CAN_LIE)}")

    def slow_drivers(self) -> None:
        """A node is overloaded."""
        machine = self._machine()
        machine.slow = self.rng.choice((2.0, 4.0, 8.0))
        self._then(self.rng.uniform(2.0, 15.0), lambda: setattr(machine, "slow", 1.0))

    def stick_rank(self) -> None:
        """A rank takes no step for a while."""
        until = self.world.loop.now + self.rng.uniform(1.0, 6.0)
        for tree in self._machine().trees.values():
            tree.stuck_until = until

    def slow_votes(self) -> None:
        """One node's word comes late, another's dump ends late, and the leader stands still."""
        busy = [m for m in self.world.machines.values() if any(t.alive for t in m.trees.values())]
        if len(busy) < 2:
            return
        one, other = self.rng.sample(busy, 2)
        policy, rng = self.world.policy, self.rng
        over_s = policy.dump_s + policy.margin_s  # a hold of this phase
        late = {(one.name, name): 8.0 for name in self.world.replicas}
        self._then(rng.uniform(0.5, policy.dump_s), lambda: self.world.network.slow.update(late))
        other.plan("dump", f"late {over_s + rng.uniform(-0.5, 1.0):.3f}")
        awake_s = over_s + rng.uniform(0.0, 2.0)
        for replica in self.world.replicas.values():
            self._then(awake_s + 4.0, lambda n=replica.name: self._quick(one.name, n))
            if replica.leads and rng.random() < 0.8:
                self._then(policy.dump_s - rng.uniform(0.05, 0.8), replica.freeze)
                self._then(awake_s, replica.go_on)

    def quiet_death(self) -> None:
        """A worker dies between its dump and the last one, and its shim's word of it comes late."""
        busy = [m for m in self.world.machines.values() if any(t.alive for t in m.trees.values())]
        if len(busy) < 2:
            return
        one, other = self.rng.sample(busy, 2)
        late = {(one.name, name): 6.0 for name in self.world.replicas}
        other.plan("dump", f"late {self.rng.uniform(1.2, 2.5):.3f}")
        dead_s = self.rng.uniform(0.5, 1.2)
        self._then(dead_s, lambda: self.world.network.slow.update(late))
        self._then(dead_s + 0.01, lambda: self._kill_worker_of(one))
        for name in self.world.replicas:
            self._then(8.0, lambda n=name: self._quick(one.name, n))

    def lose_two(self) -> None:
        """Two nodes within a second: dead, or out of everybody's reach for a while."""
        one, other = self.rng.sample(list(self.world.machines.values()), 2)
        for machine in (one, other):
            delay = self.rng.uniform(0.0, 1.0)
            if self.rng.random() < 0.5:
                self._then(delay, machine.crash)
            else:
                self._then(delay, lambda m=machine: self._out_of_reach(m))

    def lose_the_spare(self) -> None:
        """Machines without a living worker: a restore is on its way to one of them."""
        for machine in self.world.machines.values():
            if not any(tree.alive for tree in machine.trees.values()):
                machine.crash()

    def _out_of_reach(self, machine: Machine) -> None:
        """Of every coordinator; what runs there goes on, and may find itself replaced."""
        seconds = self.rng.uniform(4.0, 30.0)
        for name in self.world.replicas:
            self._cut(machine.name, name, "both", seconds)

    def jump_clock(self) -> None:
        """A coordinator's wall clock is set, by an hour or a day, back or forward."""
        jump_s = self.rng.choice((-86_400.0, -3600.0, 3600.0, 86_400.0))
        self._replica().jump_s += jump_s

    def change_policy(self) -> None:
        """An operator changes when a job is saved and how often it is tried, whatever runs."""
        for user in self.world.users.values():
            user.change_policy(self.rng)

    def hang_ranks(self) -> None:
        """A rank takes no step for so long that it counts as hung, where somebody looks for it."""
        until = self.world.loop.now + self.rng.uniform(8.0, 30.0)
        for tree in self._machine().trees.values():
            tree.stuck_until = until

    def old_orders(self) -> None:
        """What is on the way to a node when its stream ends is of the leader before the next."""
        machine = self._machine()
        for name in self.world.replicas:
            if self.rng.random() < 0.7:
                self._cut(name, machine.name, "there", self.rng.uniform(3.0, 9.0))
        self._then(self.rng.uniform(0.0, 2.0), self.move_leader)

    def abort(self) -> None:
        """The operator changes their mind."""
        for user in self.world.users.values():
            user.abort()

    # -- the end ----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything works again from now on."""
        world = self.world
        self.active = False
        world.network.slow.clear()
        for one, other in list(world.network.cut):
            world.network.heal(one, other)
        world.store.flush()
        world.store.refusing, world.store.mute = False, 0
        world.store.held.clear()
        world.store.process.go_on()
        for replica in world.replicas.values():
            replica.go_on()
        for machine in world.machines.values():
            machine.planned.clear()
            machine.slow = 1.0
            for tree in machine.trees.values():
                tree.stuck_until = 0.0
            if machine.shim is not None:
                machine.shim.go_on()
