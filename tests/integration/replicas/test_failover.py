"""The leader is killed or frozen in every phase: each attempt ends, no other replica's stream does.

Three real coordinators over a real etcd, with fake shims over real gRPC on the two that do not
lead. Whatever the leader was at, the attempt ends COMMITTED or ABORTED, whoever follows it sees
that through any replica, and a leader that was frozen longer than its lease sends nothing more.
"""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.api.client import OperatorClient
from coordinator.core.errors import AllstopError
from coordinator.core.model import AttemptState, Phase
from tests.contract.etcd_process import OwnEtcd
from tests.integration.replicas.kit import (
    WAIT_S,
    Replica,
    Replicas,
    Watchful,
    attach,
    cli,
    eventually,
    replicas,
)
from tests.support.cluster import follow
from tests.support.fake_shim import Behaviour

pytestmark = [pytest.mark.etcd, pytest.mark.slow, pytest.mark.timeout(540)]

COMMIT = "COMMIT"
PHASES = (Phase.HOLD, Phase.PARK, Phase.DUMP, Phase.PERSIST, COMMIT)
BEFORE_THE_CUT = (Phase.HOLD, Phase.PARK, Phase.DUMP)
ENDED = (AttemptState.COMMITTED, AttemptState.ABORTED)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[OwnEtcd]:
    (tmp_path / "etcd").mkdir()
    made = OwnEtcd(tmp_path / "etcd")
    made.start()
    yield made
    made.go_on()
    made.kill()


class Asking:
    """Somebody who asked for a checkpoint and follows it."""

    def __init__(self, addresses: list[str], job: str) -> None:
        self.states: list[str] = []
        self.action = ""
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._follow(addresses, job))

    async def _follow(self, addresses: list[str], job: str) -> AllstopError | None:
        try:
            async with OperatorClient(addresses, patience_s=WAIT_S) as client:
                async for event in client.checkpoint(job):
                    self.action = event.action
                    self.states.append(event.state)
                    self._news.set()
        except AllstopError as error:
            return error
        return None

    async def until(self, state: AttemptState) -> None:
        """Wait until this state was told."""
        async with asyncio.timeout(WAIT_S):
            while state not in self.states:
                self._news.clear()
                await self._news.wait()

    async def end(self) -> AllstopError | None:
        """How it ended."""
        async with asyncio.timeout(WAIT_S):
            return await self._task


async def ending(address: str, action: str) -> str:
    """How an attempt ended, asked of one replica alone."""
    async with OperatorClient([address], patience_s=WAIT_S) as client:
        shown = (await client.show(action)).attempt
        assert shown is not None
        return (await follow(client.watch(action))).last.state


class Round:
    """One attempt, one fault, and all that must hold afterwards."""

    def __init__(self, them: Replicas, leader: Replica, phase: Phase | str) -> None:
        self.them = them
        self.leader = leader
        self.phase = phase
        self.job = f"in-{phase.lower()}"
        self.others = [each for each in them.running.values() if each is not leader]
        self.shims: list[Watchful] = []

    async def attach(self) -> None:
        """A worker on each of the others, a spare on the leader."""
        mute = Behaviour() if self.phase is COMMIT else Behaviour(mute={Phase(self.phase)})
        if self.phase is COMMIT:
            mute = Behaviour(late_s={Phase.PERSIST: 0.5})
        for worker, (replica, behaviour) in enumerate(
            zip(self.others, (Behaviour(), mute), strict=True)
        ):
            node = f"{self.job}-{worker}"
            shim = Watchful(
                replica.address, node, job=self.job, worker=worker, workers=2, behaviour=behaviour
            )
            self.shims.append(shim)
        self.shims.append(Watchful(self.leader.address, f"{self.job}-spare"))
        await asyncio.gather(*(attach(shim) for shim in self.shims))

    async def reach(self, etcd: OwnEtcd) -> Asking:
        """Ask for a checkpoint and wait until it is in the phase, and cannot leave it."""
        first, second = self.others
        asking = Asking([first.address, self.leader.address, second.address], self.job)
        last = self.shims[1]
        phase = Phase.PERSIST if self.phase is COMMIT else Phase(self.phase)
        await last.until(lambda: phase in last.phases(), WAIT_S)
        if self.phase is COMMIT:
            etcd.pause()
            await asking.until(AttemptState.COMMITTING)
        return asking

    async def check(self, asking: Asking, new: Replica) -> None:
        """It has ended, everybody sees that, no stream of the others broke, and the job runs."""
        await asking.end()
        state = asking.states[-1]
        assert state in ENDED, asking.states
        if self.phase in BEFORE_THE_CUT:
            assert state == AttemptState.ABORTED
            assert all(shim.phases(asking.action)[-1] is Phase.UNDO for shim in self.shims[:2])
        for replica in self.others:
            assert await ending(replica.address, asking.action) == state
        epoch = int((await new.said(r"leading, epoch (\d+)"))[1])
        for shim in self.shims[:2]:
            heard = lambda shim=shim: shim.ended is not None or shim.epoch >= epoch  # noqa: E731
            await shim.until(heard, WAIT_S)
            assert shim.ended is None, shim.ended
            assert shim.epochs[-1] == shim.epoch >= epoch
        async with OperatorClient([self.others[1].address], patience_s=WAIT_S) as client:
            again = await follow(client.checkpoint(self.job))
        assert again.error is None
        assert again.last.state == AttemptState.COMMITTED

    async def leave(self) -> None:
        """The shims say Goodbye."""
        for shim in self.shims:
            assert not shim.late, f"{shim.node} got {shim.late} of an earlier epoch"
            await shim.leave(goodbye=shim.ended is None)


async def play(
    them: Replicas, leader: Replica, phase: Phase | str, etcd: OwnEtcd, fault: int
) -> Replica:
    """One round; who leads after it."""
    this = Round(them, leader, phase)
    await this.attach()
    asking = await this.reach(etcd)
    marks = them.marks()
    leader.kill(fault)
    etcd.go_on()
    this.shims[1].behaviour.mute.clear()
    new = await them.leader(since=marks)
    assert new is not leader
    await this.check(asking, new)
    if fault == signal.SIGKILL:
        await leader.close()
        await them.start(leader.name)
    else:
        leader.kill(signal.SIGCONT)  # it finds itself replaced, and carries on as a follower
        await leader.said("not leading any more", marks[leader.name])
        assert await eventually(lambda: ending(leader.address, asking.action)) == asking.states[-1]
        late = Watchful(leader.address, f"{this.job}-late")
        await attach(late)
        assert late.epoch == this.shims[0].epoch
        await late.leave()
    await this.leave()
    return new


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_leader_lost_in_any_phase(
    etcd: OwnEtcd, tmp_path: Path, fault: signal.Signals
) -> None:
    async with replicas(etcd.endpoint, "/lost", tmp_path, "a", "b", "c") as them:
        leader = await them.leader()
        for phase in PHASES:
            leader = await play(them, leader, phase, etcd, fault)


async def test_two_of_the_same_name_are_two(etcd: OwnEtcd, tmp_path: Path) -> None:
    """Names are for people, and people copy command lines."""
    async with replicas(etcd.endpoint, "/namesakes", tmp_path, "a") as them:
        second = await them.start("b", "--name", "a")
        shim = Watchful(second.address, "n0", job="llm", worker=0, workers=1)
        await attach(shim)
        async with OperatorClient([second.address], patience_s=WAIT_S) as client:
            assert (await follow(client.checkpoint("llm"))).error is None
        marks = them.marks()
        them.running["a"].kill(signal.SIGKILL)
        assert await them.leader(since=marks) is second
        async with OperatorClient([second.address], patience_s=WAIT_S) as client:
            assert (await follow(client.checkpoint("llm"))).error is None
        assert shim.ended is None
        await shim.leave()


async def test_one_that_is_started_anew_does_not_look_for_its_past_life(
    etcd: OwnEtcd, tmp_path: Path
) -> None:
    """The lease of the one that was killed still stands, and names this one's address."""
    async with replicas(etcd.endpoint, "/anew", tmp_path, "a") as them:
        address = them.running["a"].address
        await them.running["a"].close()
        second = await them.start("b", "--listen", address)
        shim = Watchful(second.address, "n0", job="llm", worker=0, workers=1)
        await attach(shim)
        async with OperatorClient([second.address], patience_s=WAIT_S) as client:
            assert (await follow(client.checkpoint("llm"))).error is None
        assert shim.ended is None
        assert not [line for line in second.lines if "no link to the leader" in line]
        await shim.leave()


async def test_a_leader_that_is_told_to_end_lays_down_what_it_was_at(
    etcd: OwnEtcd, tmp_path: Path
) -> None:
    async with replicas(etcd.endpoint, "/told", tmp_path, "a", "b", "c") as them:
        leader = await them.leader()
        this = Round(them, leader, Phase.PARK)
        await this.attach()
        asking = await this.reach(etcd)
        marks = them.marks()
        leader.kill(signal.SIGTERM)
        this.shims[1].behaviour.mute.clear()
        assert await leader.ended() == 0
        new = await them.leader(since=marks)
        error = await asking.end()
        assert "told to end" in str(error)
        await this.check(asking, new)
        await this.leave()


async def test_the_command_line_goes_on_at_another_replica(etcd: OwnEtcd, tmp_path: Path) -> None:
    """The coordinator that it talks to is killed: once a standby, once the leader."""
    async with replicas(etcd.endpoint, "/cli", tmp_path, "a", "b", "c") as them:
        a, b, c = them.running["a"], them.running["b"], them.running["c"]
        shims = [
            Watchful(c.address, f"n{worker}", job="llm", worker=worker, workers=2)
            for worker in range(2)
        ]
        await asyncio.gather(*(attach(shim) for shim in shims))
        everybody = [f"--coordinator={each.address}" for each in (b, a, c)]
        for victim, first, ends in ((b, b, 0), (a, a, 7)):
            shims[1].behaviour.mute.add(Phase.PARK)
            seen = len(shims[1].orders)
            order = sorted(everybody, key=lambda each, first=first: first.address not in each)
            running = asyncio.create_task(cli("checkpoint", "llm", *order))
            await shims[1].until(lambda seen=seen: Phase.PARK in shims[1].phases()[seen:], WAIT_S)
            victim.kill(signal.SIGKILL)
            shims[1].behaviour.mute.clear()
            if victim is b:  # the leader still waits for this answer
                await shims[1]._carry_out(shims[1].orders[-1])
            code, said, told = await running
            assert code == ends, told
            assert said["attempt"]["state"] == ("COMMITTED" if ends == 0 else "ABORTED")
        code, said, told = await cli("jobs", *everybody)
        assert (code, said[0]["job"]["job"]) == (0, "llm")
        assert all(shim.ended is None for shim in shims)
        for shim in shims:
            await shim.leave()
