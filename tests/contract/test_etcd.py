"""What only a real etcd can show: pauses, restarts, refused connections, TLS, dead members."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.core.errors import BadRequest, SetupError, StoreError
from coordinator.core.model import AttemptState
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.kv import Event, Put, Range
from coordinator.store.port import Changed, Loaded
from tests.contract.etcd_process import Certificates, OwnEtcd
from tests.contract.material import JOB, WAIT_S, Bench, attempt, begun, commit, snapshot
from tests.support.ports import free_ports

pytestmark = pytest.mark.etcd
KEY = "/own/key"


@pytest.fixture
def make_etcd(tmp_path: Path) -> AsyncIterator[Callable[..., OwnEtcd]]:
    made: list[OwnEtcd] = []

    def make(**options: object) -> OwnEtcd:
        folder = tmp_path / f"etcd-{len(made)}"
        folder.mkdir()
        made.append(OwnEtcd(folder, **options))  # type: ignore[arg-type]
        made[-1].start()
        return made[-1]

    yield make  # type: ignore[misc]
    for each in made:
        each.kill()


@pytest.fixture
async def client() -> AsyncIterator[Callable[..., EtcdKeyValue]]:
    made: list[EtcdKeyValue] = []

    def make(*endpoints: str, **options: object) -> EtcdKeyValue:
        settings: dict[str, object] = {"deadline_s": 1.0, "connect_s": 1.0} | options
        made.append(EtcdKeyValue(EtcdOptions(endpoints, **settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def value(kv: EtcdKeyValue, key: str = KEY) -> bytes | None:
    found = (await kv.read(Range(key))).found[0]
    return found[0].value if found else None


async def test_nobody_there_is_a_definite_error_in_time(
    client: Callable[..., EtcdKeyValue],
) -> None:
    kv = client(f"127.0.0.1:{free_ports(1)[0]}", connect_s=0.5)
    started = time.monotonic()
    for call in (kv.write([], [Put(KEY, b"1")]), kv.grant(5), kv.keep_alive(1)):
        with pytest.raises(StoreError, match="no etcd member could be reached") as caught:
            await call
        assert caught.value.definite
        assert caught.value.advice
    assert time.monotonic() - started < 5


async def test_answer_lost_in_a_pause_is_indefinite_and_settled_by_looking(
    make_etcd: Callable[..., OwnEtcd], client: Callable[..., EtcdKeyValue]
) -> None:
    etcd = make_etcd()
    kv = client(etcd.endpoint, connect_s=5.0)
    bench = Bench(kv, "/paused")
    right = await bench.lead(ttl_s=60)
    store = await bench.store(right)
    await begun(store, "a1")
    await store.put_workers("llm", "a1", snapshot("a1").workers)
    etcd.pause()
    try:
        with pytest.raises(StoreError, match="DEADLINE_EXCEEDED") as lost:
            await store.put_attempt(attempt("a1", AttemptState.HOLDING))
        assert not lost.value.definite
        assert "may have happened" in str(lost.value)
        with pytest.raises(StoreError) as read:
            await kv.read(Range(KEY))
        assert read.value.definite  # a read has no effect that could be lost
    finally:
        etcd.go_on()
    # Whatever became of the lost write, the next one builds on it and is not refused.
    await store.put_attempt(attempt("a1", AttemptState.PARKING))
    assert (await store.load()).attempts == (attempt("a1", AttemptState.PARKING),)
    await commit(store, "a1")
    assert await store.find_commit("llm", "a1") == snapshot("a1")
    await right.resign()


async def test_unknown_commit_is_settled_for_good(
    make_etcd: Callable[..., OwnEtcd], client: Callable[..., EtcdKeyValue]
) -> None:
    etcd = make_etcd()
    kv = client(etcd.endpoint)
    right = await Bench(kv, "/unknown").lead(ttl_s=60)
    store = await Bench(kv, "/unknown").store(right)
    await begun(store, "a1")
    await store.put_workers("llm", "a1", snapshot("a1").workers)
    planned = asyncio.Event()
    real = kv.write

    async def write_into_a_pause(*arguments: object) -> object:
        etcd.pause()
        planned.set()
        return await real(*arguments)  # type: ignore[arg-type]

    kv.write = write_into_a_pause  # type: ignore[assignment, method-assign]
    try:
        with pytest.raises(StoreError) as caught:
            await commit(store, "a1")
        assert planned.is_set()
        assert not caught.value.definite
    finally:
        kv.write = real  # type: ignore[method-assign]
        etcd.go_on()
    settled = await store.find_commit("llm", "a1")
    assert settled in (None, snapshot("a1"))
    assert await store.find_commit("llm", "a1") == settled
    found = await store.snapshots("llm")
    assert found == (() if settled is None else (replace(snapshot("a1"), workers=()),))
    await right.resign()


async def test_killed_and_started_again_it_is_used_again_and_watches_miss_nothing(
    make_etcd: Callable[..., OwnEtcd], client: Callable[..., EtcdKeyValue]
) -> None:
    etcd = make_etcd()
    kv, other = client(etcd.endpoint, connect_s=5.0), client(etcd.endpoint, connect_s=5.0)
    bench = Bench(kv, "/restart")
    right = await bench.lead(ttl_s=60)
    store = await bench.store(right)
    first = await kv.write([], [Put(KEY, b"0")])
    raw = kv.watch("/own/", first.revision)
    async with aclosing(raw) as events, aclosing(store.watch()) as news, asyncio.timeout(30):
        assert isinstance(await anext(news), Loaded)
        await anext(events)
        await store.put_job(JOB)
        changed = await anext(news)
        assert isinstance(changed, Changed)
        assert changed.record == JOB
        etcd.kill()
        with pytest.raises(StoreError):
            await client(etcd.endpoint, connect_s=0.2).write([], [Put(KEY, b"x")])
        etcd.start()
        numbers = [b"1", b"2", b"3"]
        for number in numbers:
            await other.write([], [Put(KEY, number)])
        await begun(store, "a1")  # under the same epoch: the lease outlived the restart
        seen = [await anext(events) for _ in numbers]
        assert [
            each.item.value for each in seen if isinstance(each, Event) and each.item
        ] == numbers
        changed = await anext(news)
        assert isinstance(changed, Changed)
        assert changed.record == attempt("a1", AttemptState.ADMITTING)
    await right.resign()


async def test_watch_gives_up_in_time_when_etcd_stays_away(
    make_etcd: Callable[..., OwnEtcd], client: Callable[..., EtcdKeyValue]
) -> None:
    etcd = make_etcd()
    kv = client(etcd.endpoint, connect_s=0.2, watch_patience_s=0.5)
    first = await kv.write([], [Put(KEY, b"0")])
    async with aclosing(kv.watch("/own/", first.revision)) as events, asyncio.timeout(WAIT_S):
        await anext(events)
        etcd.kill()
        with pytest.raises(StoreError):
            await anext(events)


async def test_dead_member_among_several_is_passed_over(
    make_etcd: Callable[..., OwnEtcd], client: Callable[..., EtcdKeyValue]
) -> None:
    etcd = make_etcd()
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    kv = client(dead, etcd.endpoint)
    await kv.write([], [Put(KEY, b"1")])
    assert await value(kv) == b"1"


async def test_member_that_dies_is_left_for_another(
    make_etcd: Callable[..., OwnEtcd], client: Callable[..., EtcdKeyValue]
) -> None:
    one, two = make_etcd(), make_etcd()  # two clusters: it shows which one answered
    await client(two.endpoint).write([], [Put(KEY, b"two")])
    kv = client(one.endpoint)
    await kv.write([], [Put(KEY, b"one")])
    both = client(one.endpoint, two.endpoint, connect_s=5.0)
    before = await value(both)
    (one if before == b"one" else two).kill()
    assert await value(both) == (b"two" if before == b"one" else b"one")


async def test_paused_member_is_left_for_another(
    make_etcd: Callable[..., OwnEtcd], client: Callable[..., EtcdKeyValue]
) -> None:
    one, two = make_etcd(), make_etcd()
    both = client(one.endpoint, two.endpoint)
    await both.write([], [Put(KEY, b"here")])
    here = one if both._members._current.endpoint == one.endpoint else two  # type: ignore[union-attr]
    both._members._members[0].ready, both._members._members[1].ready
    await asyncio.wait_for(
        asyncio.gather(*(each.channel.channel_ready() for each in both._members._members)), WAIT_S
    )
    here.pause()
    try:
        assert await value(both) is None  # the read was repeated on the other
    finally:
        here.go_on()


async def test_tls_both_ways(
    make_etcd: Callable[..., OwnEtcd], client: Callable[..., EtcdKeyValue], tmp_path: Path
) -> None:
    (tmp_path / "certs").mkdir()
    made = Certificates(tmp_path / "certs")
    etcd = make_etcd(certificates=made)
    own = {"certificate": made["client.crt"], "key": made["client.key"]}
    bare = etcd.endpoint.removeprefix("https://")
    kv = client(etcd.endpoint, ca=made["ca.crt"], **own)
    await kv.write([], [Put(KEY, b"1")])
    by_name = client(bare, ca=made["ca.crt"], server_name="etcd.test", **own)
    assert await value(by_name) == b"1"
    refused = {
        "another authority": client(bare, ca=made["stranger.crt"], **own),
        "another name": client(bare, ca=made["ca.crt"], server_name="other.test", **own),
        "no client certificate": client(bare, ca=made["ca.crt"]),
        "no TLS": client(f"http://{bare}"),
    }
    for why, wrong in refused.items():
        with pytest.raises(StoreError):
            await wrong.write([], [Put(KEY, why.encode())])
    assert await value(kv) == b"1"


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no etcd endpoint"):
        EtcdKeyValue(EtcdOptions(()))
    with pytest.raises(BadRequest, match="needs its key"):
        EtcdKeyValue(EtcdOptions(("h:1",), certificate=tmp_path / "c"))


async def test_missing_certificate_file_is_named(tmp_path: Path) -> None:
    kv = EtcdKeyValue(EtcdOptions(("h:1",), ca=tmp_path / "missing.crt"))
    with pytest.raises(SetupError, match=r"missing\.crt"):
        await kv.read(Range(KEY))
