"""A new leader finds what the old one left: commits are settled, everything else is undone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator.api.client import OperatorClient
from coordinator.core.errors import Fenced, LinkError
from coordinator.core.model import AttemptState, Phase, RestoreState
from coordinator.server.testing import running_coordinator
from coordinator.store.memory import Fault, MemoryKeyValue, MemoryStore
from tests.support.cluster import QUICK, Cluster, cluster, follow
from tests.support.fake_shim import Behaviour, attached


@asynccontextmanager
async def successor(kv: MemoryKeyValue) -> AsyncIterator[Cluster]:
    """A second coordinator on the same store, two fresh shims of the job, and a client."""
    store = MemoryStore(kv)
    async with (
        running_coordinator(store=store, policy=QUICK, name="second") as coordinator,
        attached(coordinator.address, 2) as shims,
        OperatorClient([coordinator.address]) as client,
    ):
        yield Cluster(coordinator, shims, client)


@pytest.mark.parametrize("phase", [Phase.HOLD, Phase.PARK, Phase.DUMP, Phase.PERSIST])
async def test_an_attempt_cut_short_is_aborted_by_the_next_leader(phase: Phase) -> None:
    kv = MemoryKeyValue()
    async with cluster(2, behaviours={1: Behaviour(mute={phase})}, store=MemoryStore(kv)) as case:
        asking = case.client.checkpoint("llm")
        action = (await anext(asking)).action
        await case.shims[1].until(lambda: phase in case.shims[1].phases())
        case.coordinator.reign.stop(Fenced("the test takes the right away"))
        await asking.aclose()
        await case.coordinator.reign.ended()
        with pytest.raises(LinkError, match="takes the right away"):
            await case.client.jobs()
        assert [shim.ended for shim in case.shims] == [None, None]
    async with successor(kv) as case:
        went = await follow(case.client.watch(action))
        assert went.last.state == AttemptState.ABORTED
        shown = (await case.client.show(action)).attempt
        assert shown is not None
        assert shown.state is AttemptState.ABORTED
        again = await follow(case.client.checkpoint("llm"))
        assert again.error is None


@pytest.mark.parametrize(
    ("fault", "committed"),
    [
        (Fault.LOST_APPLIED, True),
        (Fault.LOST_NOT_APPLIED, False),
        (Fault.LOST_APPLIED_LATER, False),
    ],
)
async def test_a_commit_in_the_balance_is_settled_by_the_next_leader(
    fault: Fault, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = MemoryKeyValue()
    store = MemoryStore(kv)
    async with cluster(2, store=store) as case:

        async def away(job: str, attempt: str) -> None:
            raise TimeoutError

        monkeypatch.setattr(store, "find_commit", away)
        kv.fail_next(fault, "/snapshots/")
        asking = case.client.checkpoint("llm")
        action = ""
        async for event in asking:
            action = event.action
            if event.state == AttemptState.COMMITTING:
                break
        await asking.aclose()
    async with successor(kv) as case:
        went = await follow(case.client.watch(action))
        kv.deliver()
        assert (went.last.state == AttemptState.COMMITTED) == committed
        snapshots = await case.client.snapshots("llm")
        assert [each.snapshot for each in snapshots.snapshots] == [action] * committed
        assert snapshots.latest == (action if committed else "")


async def test_a_restore_cut_short_is_failed_by_the_next_leader() -> None:
    kv = MemoryKeyValue()
    behaviours = {0: Behaviour(mute={Phase.CLEAR})}
    async with cluster(2, behaviours=behaviours, store=MemoryStore(kv)) as case:
        assert (await follow(case.client.checkpoint("llm"))).error is None
        asking = case.client.restore("llm")
        action = (await anext(asking)).action
        await case.shims[0].until(lambda: Phase.CLEAR in case.shims[0].phases())
        await asking.aclose()
    async with successor(kv) as case:
        went = await follow(case.client.watch(action))
        assert went.last.state == RestoreState.FAILED
        (job,) = await case.client.jobs()
        assert job.job.incarnation == 2


async def test_the_stale_leader_can_send_nothing() -> None:
    kv = MemoryKeyValue()
    old = MemoryStore(kv)
    async with cluster(2, store=old) as case:
        old.fence.lose("a newer leader is there")  # as our own clock would say after a long sleep
        went = await follow(case.client.checkpoint("llm", deadline_s=5))
        assert went.error is not None
        assert not case.shims[0].orders
        assert isinstance(await case.coordinator.reign.ended(), Fenced)
