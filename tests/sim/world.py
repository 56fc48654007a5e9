"""One run: the processes, the network, the truth, and the phases from faults to healing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import grpc.aio
from allstop.v1 import shim_pb2

from coordinator.core.action import CLOCK_DRIFT
from coordinator.core.errors import Busy
from coordinator.core.job_policy import JobPolicy, OnFailure, RecoveryState, When
from coordinator.core.policy import Policy
from coordinator.link.hub import Hub
from coordinator.store.kv import Range, below
from tests.sim import cause, clock
from tests.sim.drainer import Drainer
from tests.sim.loop import DEAD, FROZEN, PROCESS, Process, SimLoop
from tests.sim.machine import Machine
from tests.sim.nemesis import STORE, Nemesis
from tests.sim.replica import ATTACH, Replica
from tests.sim.sick import Sickness
from tests.sim.store import StoreProcess
from tests.sim.tree import Tree
from tests.sim.truth import Truth
from tests.sim.user import JobSpec, User
from tests.sim.wire import Call, Channel, Network
from worker_shim.agent import leftovers, run, worker
from worker_shim.agent.agent import Agent
from worker_shim.agent.leftovers import Claim
from worker_shim.images.fake import FakeImageStore

FAULTY_S = 40.0
QUIET_S = 15.0  # after the healing, before anything is proved, and in the end
TICK_S = 0.3
GPU_JOBS = 0.5  # of all jobs
POLICY_JOBS = 0.35
IDLE_S = 3.0  # between two reports of a shim, and two looks of it at itself
DRIFT = CLOCK_DRIFT / 2  # a clock goes so much faster or slower at most
KEPT_LINES = 400
TEMPORARY = "/dev/shm" if Path("/dev/shm").is_dir() else None

POLICY = Policy(
    attempt_s=25.0, admit_s=4.0, hold_s=2.0, park_s=3.0, dump_s=3.0, resume_s=3.0, persist_s=5.0,
    commit_s=3.0, stop_s=3.0, undo_s=4.0, adopt_s=6.0, margin_s=1.0, restore_s=30.0, fetch_s=4.0,
    clear_s=3.0, rebuild_s=4.0, release_s=3.0, gpu_lock_s=2.0, gpu_save_s=3.0, gpu_restore_s=3.0,
    gpu_unlock_s=2.0, clean_list_s=3.0, clean_collect_s=6.0, clean_again_s=0.5,
    clean_again_max_s=3.0, retain_s=5.0, hung_s=4.0,
)  # fmt: skip


class World:
    """Everything of one run; the seed decides all that chance decides."""

    def __init__(self, seed: int, *, verbose: bool = False, focus: tuple[str, ...] = ()) -> None:
        """`focus` names the kinds of faults to choose from, where not all are wanted."""
        self.seed, self.verbose = seed, verbose
        self.rng = Random(seed)
        self.loop = SimLoop(self.rng)
        self.loop.set_exception_handler(self._unhandled)
        self.policy = POLICY
        self.directory = tempfile.mkdtemp(prefix="allstop-sim-", dir=TEMPORARY)
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.digest = hashlib.blake2b(digest_size=16)
        self.failure = ""
        self.claims: dict[Process, list[Claim]] = {}
        self.claimed: dict[tuple[str, str], Claim] = {}
        self.network = Network(self.loop, self.rng)
        self.truth = Truth(self)
        self.images = FakeImageStore()
        self.store = StoreProcess(
            self.network,
            Process(self.loop, STORE, STORE, rate=1 + self.drift()),
            self.truth.applied,
        )
        self.replicas: dict[str, Replica] = {}
        self.machines: dict[str, Machine] = {}
        self.specs: dict[str, JobSpec] = {}
        self.users: dict[str, User] = {}
        self.gpu_jobs: set[str] = set()
        self.healed = False
        self.devices = Random(f"{seed} devices")  # its own, so that all else stays as it was
        self.policies = Random(f"{seed} policies")
        self.nemesis = Nemesis(self, focus)
        self.network.on_late = self._late

    # -- small things -----------------------------------------------------------------------------

    def drift(self) -> float:
        """How much faster than true time a clock goes."""
        return self.rng.uniform(-DRIFT, DRIFT)

    def note(self, text: str) -> None:
        """A line of the trace, which is part of what a seed must bring back exactly."""
        line = f"{self.loop.now:9.3f} {text}"
        self.digest.update(line.encode())
        self.lines.append(line)
        if self.verbose:
            print(line, flush=True)

    def fail(self, why: str) -> None:
        """The run has shown something that must not be; it ends."""
        if not self.failure:
            self.note(f"VIOLATION {why}")
            self.failure = why
            self.loop.stopped = why

    def _unhandled(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.fail(f"unhandled: {context.get('message')}: {error!r}")

    def locked(self, tree: Tree) -> bool:
        """Whether the network of a tree is locked."""
        return tree.name in self.machines[tree.machine].locks

    def off_devices(self, tree: Tree) -> bool:
        """Whether ranks of a tree cannot use their devices."""
        return self.machines[tree.machine].off_devices(tree)

    def shim_frozen_s(self, name: str) -> float:
        """How long shims of a machine were frozen, in all."""
        machine = self.machines[name]
        shim = machine.shim
        if shim is None or shim.state == DEAD:
            return machine.frozen_s
        now = self.loop.now - shim.frozen_at if shim.state == FROZEN else 0.0
        return machine.frozen_s + shim.frozen_s + now

    def leader_name(self) -> str:
        """Who leads, as the store has it."""
        leaders = self.truth.keys.leaders
        found = self.store.kv._find(Range(leaders, below(leaders)))
        if not found:
            return "nobody"
        oldest = min(found, key=lambda each: each.create_revision)
        return str(json.loads(oldest.value)["name"])

    def given_up(self, job: str) -> bool:
        """Whether some leader has given up the recovery of a job."""
        reigns = [r.reign for r in self.replicas.values() if r.reign is not None]
        return any(r.control.recovery(job).state is RecoveryState.GIVEN_UP for r in reigns)

    def kill_store(self, seconds: float) -> None:
        """The store dies and comes back over its data."""
        if self.store.process.state == DEAD:
            return
        self.store.process.kill()

        def again() -> None:
            self.store.restart(Process(self.loop, STORE, STORE, rate=1 + self.drift()))

        self.loop.later(seconds, again)

    def places(self, spec: JobSpec) -> list[Machine]:
        """Machines for a new run of a job: those that no other job's worker is on."""
        free = [
            m
            for m in self.machines.values()
            if not any(t.alive and t.job != spec.job for t in m.trees.values())
        ]
        own = [m for m in free if any(t.alive for t in m.trees.values())]
        rest = [m for m in free if m not in own]
        return (own + rest)[: spec.workers]

    # -- the run ----------------------------------------------------------------------------------

    def run(self) -> None:
        """From the start to the end of all phases, or to the first violation."""
        with self._patched():
            try:
                self.loop.run(self._phases())
            except Exception as error:
                self.fail(f"the simulation broke: {error!r}")
                raise
            finally:
                shutil.rmtree(self.directory, ignore_errors=True)
        if self.loop.stopped and not self.failure:
            self.fail(self.loop.stopped)

    async def _phases(self) -> None:
        rng = self.rng
        for number in range(rng.choice((1, 2, 2, 3))):
            replica = Replica(self, number)
            self.replicas[replica.name] = replica
        jobs = rng.choice((1, 1, 1, 2))
        workers = [rng.choice((2, 2, 3)) if jobs == 1 else 2 for _ in range(jobs)]
        for number in range(sum(workers) + 1):
            machine = Machine(self, number)
            self.machines[machine.name] = machine
        for number, count in enumerate(workers):
            spec = JobSpec(f"job{number}", count, rng.choice((1, 2)))
            self.specs[spec.job] = spec
            if self.devices.random() < GPU_JOBS:
                self.gpu_jobs.add(spec.job)
            self.users[spec.job] = User(self, spec, self._policy_of(spec))
        for user in self.users.values():
            user.launch()
        for machine in self.machines.values():
            if not machine.up:
                machine.start()
        ticking = asyncio.ensure_future(self._tick())
        asking = [asyncio.ensure_future(user.run()) for user in self.users.values()]
        drainer = Drainer(self)
        asking.append(asyncio.ensure_future(drainer.run()))
        sickness = Sickness(self)
        asking.append(asyncio.ensure_future(sickness.run()))
        await self.nemesis.run(FAULTY_S)
        self.note("everything is healed")
        self.nemesis.heal()
        self.healed = True
        sickness.heal()
        for task in asking:
            task.cancel()
        await asyncio.sleep(QUIET_S)
        drainer.wanted = drainer.wanted or sickness.wanted  # a sick GPU has its node drained
        await drainer.lay_down()
        for user in self.users.values():
            await user.prove_alive()
        await asyncio.sleep(QUIET_S)
        ticking.cancel()
        self.truth.check_end()

    def _policy_of(self, spec: JobSpec) -> JobPolicy | None:
        """Some jobs are saved, and come back, by themselves."""
        if self.policies.random() >= POLICY_JOBS:
            return None
        return JobPolicy(
            spec.job,
            When.SECONDS,
            interval_s=self.policies.uniform(2.0, 8.0),
            on_failure=OnFailure.RESTORE,
            grace_s=self.policies.choice((0.0, 2.0, 5.0)),
            wait_s=self.policies.choice((5.0, 60.0)),
            tries=self.policies.choice((1, 3)),
            hung=self.policies.choice((0.0, 0.0, 5.0)),
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S * self.rng.uniform(0.5, 1.5))
            for job in self.specs:
                self.truth.tick(job, self.rng.random)

    # -- in the place of the kernel ---------------------------------------------------------------

    def _take(self, claim: Claim, path: Path, what: str, advice: str) -> None:
        """`flock`, by machine."""
        process = PROCESS.get()
        assert process is not None
        key = (process.host, str(path))
        if key in self.claimed:
            raise Busy(f"another shim on this machine has {what}", advice=advice)
        self.claimed[key] = claim
        claim._fd, claim.sim_key = -1, key  # type: ignore[attr-defined]
        self.claims.setdefault(process, []).append(claim)

    def _release(self, claim: Claim) -> None:
        key = getattr(claim, "sim_key", None)
        if key is not None and self.claimed.get(key) is claim:
            del self.claimed[key]

    def _late(self, call: Call, data: bytes) -> None:
        """A message for a shim that had given the call up: it may still come, see `Machine`."""
        machine = self.machines.get(call.client.host)
        if machine is not None and call.path == ATTACH:
            machine.late.append(shim_pb2.CoordinatorMessage.FromString(data))

    def _agent(self, *parts: Any) -> Agent:
        """The shim's agent, which the machine listens to."""
        process = PROCESS.get()
        assert process is not None
        made = Agent(*parts)
        self.machines[process.host].attend(made, process)
        return made

    def _channel(self, target: str, *rest: Any, **options: Any) -> Channel:
        return Channel(self.network, target)

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Put the simulation where the kernel, gRPC, chance and the clock are."""
        chance = Random(self.seed)
        world = self

        async def build(options: Any) -> Any:
            return world.machines[options.node].drivers()

        def time_now() -> float:
            process = PROCESS.get()
            return world.loop.now if process is None else process.clock()

        patches = [
            mock.patch.object(grpc.aio, "insecure_channel", self._channel),
            mock.patch.object(
                secrets, "token_hex", lambda size: f"{chance.getrandbits(8 * size):x}"
            ),
            mock.patch("random.uniform", chance.uniform),
            mock.patch.object(run, "build", build),
            mock.patch.object(run, "Agent", self._agent),
            mock.patch.object(run, "LOOK_S", IDLE_S),
            mock.patch.dict(Hub.__init__.__kwdefaults__, report_interval_ms=int(1000 * IDLE_S)),
            mock.patch.object(worker, "kill_strays", return_value=0),
            mock.patch.object(leftovers, "kill_strays", return_value=0),
            mock.patch.object(leftovers, "kill_all", return_value=0),
            mock.patch.object(Claim, "_take", lambda c, *how: world._take(c, *how)),
            mock.patch.object(Claim, "release", lambda c: world._release(c)),
        ]
        clock.use(time_now)
        cause.on_violation[:] = [self.truth.violated]
        try:
            for patch in patches:
                patch.start()
            yield
        finally:
            for patch in reversed(patches):
                patch.stop()
            clock.use(None)
