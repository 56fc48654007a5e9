"""An operator of one job: asks for checkpoints and restores, and starts the job anew if need be."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from allstop.v1 import operator_pb2

from coordinator.api import policies, reading
from coordinator.api.desk import Desk
from coordinator.codec import to_proto
from coordinator.core import events
from coordinator.core.errors import AllstopError, Busy, NotFound, OldRunUnseen
from coordinator.core.failures import failure_of
from coordinator.core.job_policy import JobPolicy
from coordinator.core.model import AttemptState, Cut, RestoreState, Snapshot
from tests.sim.keeping import Keeper
from tests.sim.loop import DEAD
from tests.sim.replica import Replica
from tests.sim.truth import ENDED, OVER
from worker_shim.agent.options import WorkerSpec

if TYPE_CHECKING:
    from tests.sim.world import World

LOOK_S = 0.2
PATIENCE_S = 3.0  # how long a job that lacks a worker is only looked at
PATIENCE_S_WITH_POLICY = 25.0  # it is to come back by itself
RECOVERY_S = 90.0  # after the healing it does
WAIT_S = 60.0  # for an action to end, in the store or by a last word


@dataclass(frozen=True)
class JobSpec:
    """What a job is."""

    job: str
    workers: int
    ranks: int  # of each worker

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.workers * self.ranks


@dataclass
class Asked:
    """One request and what was heard of it."""

    action: str
    states: list[str] = field(default_factory=list)
    outcome: str = ""  # the last word, a refusal, or how the watcher ended
    why: str = ""


class User:
    """The operator; lives outside of all processes and never fails."""

    def __init__(self, world: World, spec: JobSpec, policy: JobPolicy | None = None) -> None:
        """With a policy the operator leaves much to the coordinators, and is patient."""
        self.world, self.spec, self.policy = world, spec, policy
        self.set = policy is None
        self.patience_s = PATIENCE_S if policy is None else PATIENCE_S_WITH_POLICY
        self.asked = 0
        self.runs = 0
        self.now: Asked | None = None
        self.keeper = Keeper(world, spec.job)

    # -- requests ---------------------------------------------------------------------------------

    def leader(self) -> Replica | None:
        """Who seems to lead."""
        leading = [r for r in self.world.replicas.values() if r.leads]
        return max(leading, key=lambda r: r.reign.epoch) if leading else None  # type: ignore[union-attr]

    async def checkpoint(self, *, cut: Cut = Cut.STEP, stop: bool = False) -> Asked:
        """Ask for one and wait for its end."""
        self.asked += 1
        name = f"{self.spec.job}-a{self.asked}"

        async def ask(desk: Desk) -> events.Event:
            now = desk.unix()
            return events.CheckpointRequested(self.spec.job, name, cut, stop, 0.0, now)

        return await self._ask(name, ask)

    async def restore(self, *, old_run_ended: bool = False) -> Asked:
        """Ask for the newest snapshot to be put back, and wait for the end of that."""
        self.asked += 1
        name = f"{self.spec.job}-r{self.asked}"

        async def ask(desk: Desk) -> events.Event:
            snapshot = await self._chosen(desk)
            files = await reading.ask_program_files(desk, snapshot)
            now = desk.unix()
            return events.RestoreRequested(
                self.spec.job, name, snapshot, 0.0, now, files, old_run_ended
            )

        return await self._ask(name, ask)

    async def _chosen(self, desk: Desk) -> Snapshot:
        """The newest good one; where all are suspect, the operator's word for the newest."""
        try:
            return await reading.snapshot_to_restore(desk, self.spec.job, "")
        except NotFound:
            newest = self.world.truth.latest.get(self.spec.job)
            if newest is None:
                raise
            return await reading.snapshot_to_restore(desk, self.spec.job, newest)

    def keep(self) -> None:
        """See to what is kept, beside all else."""
        leader = self.leader()
        if leader is not None and leader.reign is not None and leader.process is not None:
            work = self.keeper.something(leader.reign.desk)
            leader.process.spawn(work, f"keeping of {self.spec.job}")

    def abort(self) -> None:
        """Ask that what runs be given up."""
        leader, asked = self.leader(), self.now
        if leader is not None and leader.reign is not None and asked is not None:
            event = events.AbortRequested(asked.action, "the operator has had enough")
            assert leader.process is not None
            leader.process.run(leader.reign.tell, event)

    async def _ask(self, name: str, ask) -> Asked:
        asked = self.now = Asked(name)
        leader = self.leader()
        if leader is None or leader.process is None or leader.reign is None:
            asked.outcome = "nobody leads"
            await asyncio.sleep(LOOK_S)
            return asked
        self.world.note(f"asked for {name} at {leader.process.name}")
        leader.process.spawn(self._follow(leader.reign.desk, asked, ask), f"follow {name}")
        until = self.world.loop.now + WAIT_S
        while self.world.loop.now < until and not asked.outcome:
            await asyncio.sleep(LOOK_S)
            if leader.process.state == DEAD or leader.reign is None:
                asked.outcome = "its leader is gone"
        await self._settled(asked, until)
        self.world.note(f"{name}: {asked.outcome} {asked.why}")
        self.now = None
        return asked

    async def _settled(self, asked: Asked, until: float) -> None:
        """What the store says counts: a leader that is gone leaves that to the next one."""
        truth = self.world.truth
        while self.world.loop.now < until:
            attempt, restore = truth.attempts.get(asked.action), truth.restores.get(asked.action)
            if attempt is not None and attempt.state in ENDED:
                asked.outcome, asked.why = attempt.state, attempt.reason
                return
            if restore is not None and restore.state in OVER:
                asked.outcome, asked.why = restore.state, restore.reason
                return
            if attempt is None and restore is None:
                return
            await asyncio.sleep(LOOK_S)

    async def _follow(self, desk: Desk, asked: Asked, ask) -> None:
        """In the leader's process: what the operator's service does, without the wire."""
        try:
            await desk.gathered(self.spec.job)
            watcher = desk.watchers.open(asked.action)
            desk.tell(await ask(desk))
            async for event in watcher.events():
                if not asked.states or asked.states[-1] != event.state:
                    asked.states.append(event.state)
                    self.world.note(f"{asked.action} is {event.state}: {event.reason}")
                    self.world.nemesis.on_state(self, event.state)
                if event.last:
                    asked.outcome, asked.why = event.state, event.reason
        except AllstopError as error:
            asked.outcome, asked.why = failure_of(error).kind, str(error)

    # -- the job ----------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start every worker, on the first machines that have no other job's worker."""
        self.runs += 1
        lineage = f"{self.spec.job} run {self.runs}"
        self.world.note(f"{lineage} is started")
        for worker, machine in enumerate(self.world.places(self.spec)):
            argv = ("python", "train.py")
            command = WorkerSpec(
                self.spec.job, worker, self.spec.workers, argv, cwd=machine.directory, follow=False
            )
            if machine.up:
                machine.off = True
                machine.kill_shim()
            machine.start(command, self.spec.ranks, lineage)

    def runs_whole(self) -> bool:
        """Whether every worker of one lineage lives and the coordinators know of it."""
        trees = self.world.truth.whole(self.spec.job)
        return bool(trees) and all(t.page.incarnation for t in trees)

    async def bring_back(self) -> str:
        """The job lacks a worker: restore it from its last snapshot, or start it anew."""
        if self.world.truth.latest.get(self.spec.job) is None:
            self.launch()
            await asyncio.sleep(PATIENCE_S)
            return "launched"
        asked = await self.restore()
        if asked.outcome == OldRunUnseen.__name__ and not self.world.truth.whole(self.spec.job):
            asked = await self.restore(old_run_ended=True)
        return f"{asked.outcome}: {asked.why}"

    async def run(self) -> None:
        """Until cancelled: checkpoints while the job runs, whatever is needed while it does not."""
        rng = self.world.rng
        missing_since: float | None = None
        while True:
            await asyncio.sleep(rng.uniform(0.2, 2.5))
            if not self.set:
                self._set_policy()
            self.keep()
            if self.runs_whole():
                missing_since = None
                await self._something(rng.random())
                continue
            now = self.world.loop.now
            missing_since = now if missing_since is None else missing_since
            if now - missing_since > self.patience_s:
                await self.bring_back()
                missing_since = None

    async def _something(self, chance: float) -> None:
        if self.policy is not None and self.policy.hung and chance < 0.8:
            await asyncio.sleep(PATIENCE_S)  # else ranks that stand still are held all the time
        elif chance < 0.7:
            await self.checkpoint()
        elif chance < 0.8:
            await self.checkpoint(cut=Cut.FREEZE)
        elif chance < 0.9:
            await self.checkpoint(stop=True)
        elif self.world.truth.latest.get(self.spec.job):
            await self.restore()

    async def prove_alive(self) -> None:
        """After the healing: the job runs, a checkpoint commits, a restore runs, in time."""
        await self._running()
        await self._until(self.checkpoint, AttemptState.COMMITTED, "no checkpoint commits")
        await self._running()
        await self._until(self.restore, RestoreState.RUNNING, "no restore succeeds")
        await self._running()

        if self.policy is not None:
            await self._recovers()
            self.policy, self.set = JobPolicy(self.spec.job), False
            await self._until_set()  # what is under way then ends before the end is judged

    def change_policy(self, rng: Random) -> None:
        """Leave it to the coordinators as before, at other times and with other patience."""
        if self.policy is not None and self.policy.acts:
            self.policy = replace(
                self.policy,
                interval_s=rng.uniform(2.0, 8.0),
                tries=rng.choice((1, 2, 5)),
                hung=rng.choice((0.0, 5.0)),
                budget=rng.choice((0.0, 0.2)),
            )
            self.set = False
            self._set_policy()

    def _set_policy(self) -> None:
        """In the leader's process, as often as it takes."""
        leader = self.leader()
        if leader is None or leader.process is None or leader.reign is None:
            return
        request = operator_pb2.SetPolicyRequest(policy=to_proto(self.policy))

        async def set_it(desk: Desk) -> None:
            with suppress(AllstopError):
                await policies.set_policy(desk, request)
                self.set = True

        leader.process.spawn(set_it(leader.reign.desk), f"policy of {self.spec.job}")

    async def _until_set(self) -> None:
        for _ in range(30):
            if self.set:
                return
            self._set_policy()
            await asyncio.sleep(1.0)
        self.world.fail(f"liveness: the policy of {self.spec.job} cannot be set")

    async def _recovers(self) -> None:
        """After the healing a worker that dies is answered without a person."""
        await self._until_set()
        await asyncio.sleep(PATIENCE_S)
        tree = self.world.truth.whole(self.spec.job)[0]
        machine = self.world.machines[tree.machine]
        assert machine.shim is not None
        self.world.note(f"{tree} dies, and nobody is told")
        machine.shim.spawn(machine.processes.end(tree.root_pid, 1), "a rank dies")
        until = self.world.loop.now + RECOVERY_S
        while self.world.loop.now < until:
            await asyncio.sleep(1.0)
            if not tree.alive and self.runs_whole():
                stepped = self.world.truth.stepped.get(self.spec.job, 0.0)
                await asyncio.sleep(3.0)
                if self.world.truth.stepped.get(self.spec.job, 0.0) > stepped:
                    self.world.note(f"{self.spec.job} came back by itself")
                    return
        self.world.fail(f"liveness: {self.spec.job} did not come back by itself")

    async def _running(self) -> None:
        until, said = self.world.loop.now + 120.0, ""
        while self.world.loop.now < until:
            if self.runs_whole():
                stepped = self.world.truth.stepped.get(self.spec.job, 0.0)
                await asyncio.sleep(3.0)
                if self.world.truth.stepped.get(self.spec.job, 0.0) > stepped:
                    return
                continue
            await asyncio.sleep(PATIENCE_S)
            if not self.runs_whole():
                said = await self.bring_back()
        self.world.fail(f"liveness: {self.spec.job} does not run; last: {said}")

    async def _until(self, request, wanted: str, what: str) -> None:
        said: list[str] = []
        for _ in range(6):
            asked = await request()
            for _ in range(60):
                if asked.outcome != Busy.__name__:
                    break
                await asyncio.sleep(self.world.rng.uniform(0.1, 1.0))  # a checkpoint was just due
                asked = await request()
            if asked.outcome == wanted:
                return
            said.append(f"{asked.outcome}: {asked.why}")
            await asyncio.sleep(5.0)
        self.world.fail(f"liveness: {what}: {said}")
