"""Replicas carry shims for whoever leads: a leader may die, hang and change, and streams stay."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from allstop.v1 import shim_pb2

from coordinator.api.client import OperatorClient
from coordinator.core.errors import Fenced
from coordinator.core.model import AttemptState, Phase
from coordinator.link import gathering
from coordinator.server.testing import RunningCoordinator, running_coordinator
from coordinator.store.election import Leader
from coordinator.store.memory import MemoryKeyValue, MemoryStore
from tests.support.cluster import QUICK, follow
from tests.support.fake_shim import Behaviour, FakeShim
from tests.support.leading import leader_process
from tests.support.replica import Replica, replica, until

ROUNDS = 5  # HOLD, PARK, DUMP, RESUME, PERSIST


@dataclass(frozen=True)
class Fleet:
    """Two replicas that do not lead, and the shims behind them."""

    replicas: tuple[Replica, Replica]
    shims: list[FakeShim]

    def lead(self, leader: Leader | None) -> None:
        """Both hear who leads."""
        for one in self.replicas:
            one.leaders.now(leader)

    async def following(self, epoch: int) -> None:
        """Wait until both follow in this epoch."""
        await until(
            lambda: all(
                one.carrier.following is not None and one.carrier.epoch == epoch
                for one in self.replicas
            )
        )


@asynccontextmanager
async def fleet(
    directory: Path,
    leader: Leader,
    *,
    workers: int = 2,
    behaviours: dict[int, Behaviour] | None = None,
) -> AsyncIterator[Fleet]:
    """Worker 0 behind b, worker 1 behind c, worker 2 behind b …; all attached."""
    async with replica("b", directory) as b, replica("c", directory) as c:
        shims: list[FakeShim] = []
        made = Fleet((b, c), shims)
        made.lead(leader)
        await made.following(leader.epoch)
        try:
            for worker in range(workers):
                shim = FakeShim(
                    made.replicas[worker % 2].address,
                    f"node-{worker}",
                    job="llm",
                    worker=worker,
                    workers=workers,
                    behaviour=(behaviours or {}).get(worker),
                )
                shims.append(shim)
                await shim.attach()
            yield made
        finally:
            for shim in shims:
                await shim.leave(goodbye=False)


def as_leader(coordinator: RunningCoordinator, name: str) -> Leader:
    return Leader(name, coordinator.address, coordinator.reign.epoch)


async def nodes_of(coordinator: RunningCoordinator, count: int) -> None:
    """Wait until the leader has so many nodes."""
    await until(lambda: len(coordinator.reign.hub.nodes) == count)


async def test_the_leader_handles_messages_of_carriers_not_of_shims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "RESULTS_WAIT_S", 10.0)  # this machine may be slow
    workers = 12
    async with (
        running_coordinator(policy=QUICK, name="a") as a,
        fleet(tmp_path, as_leader(a, "a"), workers=workers) as case,
    ):
        await nodes_of(a, workers)
        before = a.reign.hub.messages_handled
        async with OperatorClient([a.address]) as client:
            went = await follow(client.checkpoint("llm"))
        assert went.error is None
        assert went.last.state == AttemptState.COMMITTED
        handled = a.reign.hub.messages_handled - before
        assert set(a.reign.hub.carriers) == {"a", "b", "c"}
        phases = [phase for shim in case.shims for phase in shim.phases()]
        assert len(phases) == ROUNDS * workers
        # a round is one message of each carrier; a report in between may add one
        assert 2 * (ROUNDS - 1) <= handled <= 3 * ROUNDS < len(phases) / 2


@pytest.mark.parametrize("phase", [Phase.HOLD, Phase.PARK, Phase.DUMP])
async def test_a_new_leader_takes_over_on_the_streams_that_stand(
    phase: Phase, tmp_path: Path
) -> None:
    kv = MemoryKeyValue()
    async with running_coordinator(store=MemoryStore(kv), policy=QUICK, name="first") as first:
        behaviours = {1: Behaviour(mute={phase})}
        async with fleet(tmp_path, as_leader(first, "first"), behaviours=behaviours) as case:
            await nodes_of(first, 2)
            async with OperatorClient([first.address]) as client:
                asking = client.checkpoint("llm")
                action = (await anext(asking)).action
                await case.shims[1].until(lambda: phase in case.shims[1].phases())
                first.reign.stop(Fenced("the test takes the right away"))
                await asking.aclose()
            streams = [shim._call for shim in case.shims]
            async with running_coordinator(
                store=MemoryStore(kv), policy=QUICK, name="second"
            ) as second:
                case.shims[1].behaviour.mute.clear()
                case.lead(as_leader(second, "second"))
                await case.following(second.reign.epoch)
                async with OperatorClient([second.address]) as client:
                    went = await follow(client.watch(action))
                    assert went.last.state == AttemptState.ABORTED
                    again = await follow(client.checkpoint("llm"))
                    assert again.error is None
                    assert again.last.state == AttemptState.COMMITTED
                for shim, stream in zip(case.shims, streams, strict=True):
                    assert shim.ended is None
                    assert shim._call is stream
                    assert shim.epoch == second.reign.epoch
                    epochs = [order.epoch for order in shim.orders]
                    assert epochs == sorted(epochs)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_leader_that_is_killed_or_frozen_leaves_the_streams_of_others_alone(
    how: signal.Signals, tmp_path: Path
) -> None:
    behaviours = {1: Behaviour(mute={Phase.DUMP})}
    async with (
        leader_process(tmp_path, 12) as old,
        fleet(tmp_path, old.leader, behaviours=behaviours) as case,
        OperatorClient([old.leader.address]) as client,
    ):
        asking = client.checkpoint("llm")
        await anext(asking)
        await case.shims[1].until(lambda: Phase.DUMP in case.shims[1].phases())
        streams = [shim._call for shim in case.shims]
        old.process.send_signal(how)
        case.lead(None)
        await until(lambda: not any(one.carrier.following for one in case.replicas))
        late = asyncio.create_task(case.shims[1].say(result=dumped(case.shims[1])))
        async with leader_process(tmp_path, 14) as new:
            case.shims[1].behaviour.mute.clear()
            case.lead(new.leader)
            await case.following(14)
            await until(lambda: [shim.epoch for shim in case.shims] == [14, 14])
            before = [len(shim.orders) for shim in case.shims]
            if how is signal.SIGSTOP:  # it wakes up and believes that it leads
                old.process.send_signal(signal.SIGCONT)
            async with OperatorClient([new.leader.address]) as successor:
                went = await follow(successor.checkpoint("llm"))
                assert went.error is None
                states = {view.facts.node: view.state for view in await successor.nodes()}
                assert states == {"node-0": "attached", "node-1": "attached"}
            if how is signal.SIGSTOP:
                went = await follow(asking)  # of the old leader: it has lost its carriers
                assert went.error is not None
            await late
            for shim, stream, orders in zip(case.shims, streams, before, strict=True):
                assert (shim.ended, shim._call is stream) == (None, True)
                assert {order.epoch for order in shim.orders[orders:]} == {14}
        await asking.aclose()


def dumped(shim: FakeShim) -> shim_pb2.OrderResult:
    """The answer to the last order, as one that was carried out while the leader died."""
    order = shim.orders[-1]
    return shim_pb2.OrderResult(
        epoch=order.epoch, job="llm", worker=order.worker, action=order.action, phase=order.phase
    )


async def test_a_shim_moves_from_one_carrier_to_another(tmp_path: Path) -> None:
    async with (
        running_coordinator(policy=QUICK, name="a") as a,
        fleet(tmp_path, as_leader(a, "a")) as case,
    ):
        await nodes_of(a, 2)
        moving = case.shims[0]
        second = FakeShim(case.replicas[1].address, "node-0", job="llm", worker=0, workers=2)
        second.session, second.hellos = moving.session, moving.hellos
        await second.attach()
        try:
            await moving.until(lambda: moving.ended is not None)
            assert "another stream" in str(moving.ended)
            async with OperatorClient([a.address]) as client:
                went = await follow(client.checkpoint("llm"))
                assert went.error is None
            assert Phase.DUMP in second.phases()
            assert not moving.orders
        finally:
            await second.leave(goodbye=False)


async def test_a_dead_carrier_is_named_as_the_reason(tmp_path: Path) -> None:
    behaviours = {1: Behaviour(mute={Phase.PARK})}
    async with (
        running_coordinator(policy=QUICK, name="a") as a,
        fleet(tmp_path, as_leader(a, "a"), behaviours=behaviours) as case,
    ):
        await nodes_of(a, 2)
        async with OperatorClient([a.address]) as client:
            asking = client.checkpoint("llm")
            await anext(asking)
            await case.shims[1].until(lambda: Phase.PARK in case.shims[1].phases())
            case.replicas[1].leaders.now(None)
            went = await follow(asking)
        assert went.error is not None
        assert "carrier c was lost" in str(went.error)
        await case.shims[0].until(lambda: Phase.UNDO in case.shims[0].phases())
