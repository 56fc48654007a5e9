"""One leader at a time, each with a higher epoch, over memory and over a real etcd."""

import asyncio
from contextlib import aclosing

import pytest

from coordinator.core.errors import Fenced, StoreError
from coordinator.store.election import Election, Leader, Leadership, boottime
from coordinator.store.kv import Compacted, Event, Put, Range, View, below
from coordinator.store.records import Records
from tests.contract.material import JOB, WAIT_S, Bench


class Clock:
    """The machine's clock, which a test can move on as a pause would."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return boottime() + self.ahead_s


async def campaign(bench: Bench, name: str, ttl_s: float, clock: Clock) -> Leadership:
    election = Election(bench.kv, name, prefix=bench.prefix, ttl_s=ttl_s, clock=clock)
    bench.rights.append(await election.campaign(WAIT_S))
    return bench.rights[-1]


async def candidates(bench: Bench, number: int) -> None:
    """Wait until so many candidates stand."""
    keys = f"{bench.prefix}/leader/"
    view = await bench.kv.read(Range(keys, below(keys)))
    standing = {each.key for each in view.found[0]}
    async with asyncio.timeout(WAIT_S), aclosing(bench.kv.watch(keys, view.revision + 1)) as news:
        while len(standing) != number:
            event = await anext(news)
            assert isinstance(event, Event)
            standing = standing - {event.key} if event.item is None else standing | {event.key}


async def test_second_candidate_waits_until_the_first_resigns(bench: Bench) -> None:
    first = await bench.lead("one")
    waiting = asyncio.create_task(bench.lead("two"))
    await candidates(bench, 2)
    election = Election(bench.kv, "three", prefix=bench.prefix)
    assert await election.leader() == Leader("one", "", first.epoch)
    assert not waiting.done()
    await first.resign()
    second = await asyncio.wait_for(waiting, WAIT_S)
    assert second.epoch > first.epoch
    assert await election.leader() == Leader("two", "", second.epoch)
    with pytest.raises(Fenced, match="resigned"):
        first.check()
    second.check()
    assert second.remaining_s > 0


async def test_candidate_that_gives_up_leaves_nothing_behind(bench: Bench) -> None:
    first = await bench.lead("one")
    waiting = asyncio.create_task(bench.lead("two"))
    await candidates(bench, 2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await candidates(bench, 1)
    election = Election(bench.kv, "two", prefix=bench.prefix)
    with pytest.raises(TimeoutError):
        await election.campaign(0.2)
    await candidates(bench, 1)
    first.check()


async def test_candidate_whose_lease_ended_stands_again(bench: Bench) -> None:
    first = await bench.lead("one")
    waiting = asyncio.create_task(bench.lead("two", ttl_s=6.0))
    await candidates(bench, 2)
    keys = f"{bench.prefix}/leader/"
    found = (await bench.kv.read(Range(keys, below(keys)))).found[0]
    lost = max(found, key=lambda each: each.create_revision)
    await bench.kv.revoke(lost.lease)  # as when no renewal came through for a lease
    await candidates(bench, 1)
    await candidates(bench, 2)
    first.check()
    await first.resign()
    second = await asyncio.wait_for(waiting, WAIT_S)
    assert second.epoch > lost.create_revision


async def test_right_is_kept_up_longer_than_its_lease(bench: Bench) -> None:
    right = await bench.lead("one", ttl_s=2.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(right.wait_lost(), 2.5)
    right.check()
    await (await bench.store(right)).put_job(JOB)


async def test_paused_leader_finds_itself_expired_before_it_sends_anything(bench: Bench) -> None:
    clock, reasons = Clock(), []
    right = await campaign(bench, "one", 4.0, clock)
    right.on_lost(reasons.append)
    store = Records(bench.kv, right, bench.prefix)
    await store.put_job(JOB)
    clock.ahead_s = 3.3  # less than the lease, more than the lease without its margin
    assert right.remaining_s == 0
    with pytest.raises(Fenced, match="not renewed in time"):
        await store.put_job(JOB)
    assert reasons == ["its lease was not renewed in time"]
    assert await right.wait_lost() == reasons[0]
    late: list[str] = []
    right.on_lost(late.append)
    assert late == reasons


async def test_leader_that_renews_no_more_is_followed_and_its_writes_are_fenced(
    bench: Bench,
) -> None:
    first = await bench.lead("one", ttl_s=1.0)
    store = await bench.store(first)
    await store.put_job(JOB)
    first._task.cancel()  # as if its renewals went astray, while its own clock stood still
    first._until = float("inf")
    second = await asyncio.wait_for(bench.lead("two", ttl_s=2.0), WAIT_S)
    assert second.epoch > first.epoch
    first.check()
    with pytest.raises(Fenced, match=r"its key .* is gone from the store"):
        await store.put_job(JOB)
    with pytest.raises(Fenced):
        first.check()
    await (await bench.store(second)).put_job(JOB)


async def test_lease_ended_by_etcd_is_noticed_at_the_next_renewal(bench: Bench) -> None:
    right = await bench.lead("one", ttl_s=2.0)
    await bench.kv.revoke(right.lease)
    assert await asyncio.wait_for(right.wait_lost(), WAIT_S) == "its lease is gone from the store"


async def test_whoever_asks_hears_of_every_change_of_leader(bench: Bench) -> None:
    observer = Election(bench.kv, "observer", prefix=bench.prefix)
    async with asyncio.timeout(WAIT_S), aclosing(observer.leaders()) as leaders:
        assert await anext(leaders) is None
        one = Election(bench.kv, "one", address="host:1", prefix=bench.prefix)
        first = await one.campaign(WAIT_S)
        assert await anext(leaders) == Leader("one", "host:1", first.epoch)
        waiting = asyncio.create_task(bench.lead("two"))
        await candidates(bench, 2)  # one more candidate is no change of leader
        await first.resign()
        second = await waiting
        assert await anext(leaders) == Leader("two", "", second.epoch)
        await second.resign()
        assert await anext(leaders) is None


async def test_a_leader_of_an_older_version_has_a_name_alone(bench: Bench) -> None:
    for value in (b"old-one", b"7", b'{"name": "x"}', b"\xff"):
        lease = await bench.kv.grant(30.0)
        key = f"{bench.prefix}/leader/{lease.lease:x}"
        revision = (await bench.kv.write([], [Put(key, value, lease.lease)])).revision
        found = await Election(bench.kv, "two", prefix=bench.prefix).leader()
        assert found == Leader(value.decode(errors="replace"), "", revision)
        await bench.kv.revoke(lease.lease)


async def test_leaders_are_told_through_lost_history_errors_and_silent_watches(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trouble alone would hide the next leader."""
    observer = Election(bench.kv, "observer", prefix=bench.prefix, ttl_s=0.2)
    overcome = asyncio.Event()
    troubles = ["compacted", "ended", "error", "silent", "no read"]
    watch, read = bench.kv.watch, bench.kv.read

    async def troubled(prefix: str, revision: int):  # type: ignore[no-untyped-def]
        trouble = troubles.pop(0) if troubles else ""
        if trouble == "compacted":
            yield Compacted(revision + 5)
        elif trouble == "error":
            raise StoreError("the watch broke")
        elif trouble == "silent":
            await asyncio.Event().wait()
        elif not trouble:
            overcome.set()
            async with aclosing(watch(prefix, revision)) as news:
                async for change in news:
                    yield change

    async def failing(*ranges: Range) -> View:
        if troubles[:1] == ["no read"]:
            troubles.pop(0)
            raise StoreError("the member is away")
        return await read(*ranges)

    async with asyncio.timeout(WAIT_S), aclosing(observer.leaders()) as leaders:
        with monkeypatch.context() as patched:
            patched.setattr(bench.kv, "watch", troubled)
            patched.setattr(bench.kv, "read", failing)
            assert await anext(leaders) is None
            following = asyncio.create_task(anext(leaders))  # type: ignore[arg-type]
            await overcome.wait()
            first = await bench.lead("one")
            assert await following == Leader("one", "", first.epoch)


async def test_a_leader_that_takes_over_during_each_trouble_is_seen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch never says a thing: the looks alone must do."""

    async def silent(prefix: str, revision: int):  # type: ignore[no-untyped-def]
        await asyncio.Event().wait()
        yield

    first = await bench.lead("one")
    observer = Election(bench.kv, "observer", prefix=bench.prefix, ttl_s=0.2)
    async with asyncio.timeout(WAIT_S), aclosing(observer.leaders()) as leaders:
        with monkeypatch.context() as patched:
            patched.setattr(bench.kv, "watch", silent)
            assert await anext(leaders) == Leader("one", "", first.epoch)
            await first.resign()
            assert await anext(leaders) is None
