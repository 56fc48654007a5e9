"""What every store of objects keeps, whatever it is made of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from tests.support.s3.server import BUCKET, S3Server, serving, use
from worker_shim.images.objects.opening import StoreOptions, open_objects
from worker_shim.images.objects.partner.store import PartnerStore
from worker_shim.images.objects.port import ObjectMissing, ObjectStore

WRITERS = 8
numbers = count()
Open = Callable[[], ObjectStore]  # opens the same store once more, as another node would


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with serving() as server:
        yield server


def in_a_ring(folder: Path) -> Callable[[], ObjectStore]:
    """Opens the store of one more node each time, whose partner is always the first."""
    numbers, first = count(), list[PartnerStore]()

    def opened() -> ObjectStore:
        node = f"n{next(numbers)}"
        port = first[0].port if first else 0
        options = StoreOptions(
            where=f"partner://keeper@127.0.0.1:{port},none@127.0.0.1:1",
            node=node,
            keep_dir=folder / node,
            listen="127.0.0.1:0",
        )
        if first:
            return open_objects(replace(options, where=f"partner://keeper@127.0.0.1:{port}"))
        keeper = open_objects(replace(options, node="keeper", keep_dir=folder / "keeper"))
        assert isinstance(keeper, PartnerStore)
        first.append(keeper)
        return keeper

    return opened


@pytest.fixture(params=["memory", "s3", "directory", "partner"])
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Opens one store, new in each test, as often as one likes."""
    name, stores = f"t{next(numbers)}", list[ObjectStore]()

    def remember(store: ObjectStore) -> ObjectStore:
        stores.append(store)
        return store

    if request.param == "s3":
        use(monkeypatch, request.getfixturevalue("s3").endpoint)
    where = {
        "s3": f"s3://{BUCKET}/{name}",
        "memory": f"memory://{name}",
        "directory": str(tmp_path / "store"),
    }
    if request.param == "partner":
        of_a_node = in_a_ring(tmp_path)
        remember(of_a_node())  # the keeper
        yield lambda: remember(of_a_node())
    else:
        yield lambda: remember(open_objects(StoreOptions(where[request.param])))
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Open) -> ObjectStore:
    return opened()


def names(store: ObjectStore, prefix: str) -> set[str]:
    return {found.name for found in store.list(prefix)}


def test_what_is_put_comes_back(store: ObjectStore) -> None:
    parts = [b"one ", bytearray(b"two "), memoryview(b"-three-")[1:-1]]
    assert store.put("job/a1/0/manifest", parts)
    assert store.get("job/a1/0/manifest") == b"one two three"
    assert store.size("job/a1/0/manifest") == 13


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    assert store.put("job/empty", [])
    assert (store.get("job/empty"), store.size("job/empty")) == (b"", 0)
    assert store.get("job/empty", start=0, length=10) == b""


@pytest.mark.parametrize(
    ("start", "length", "wanted"),
    [
        (0, None, b"0123456789"),
        (4, None, b"456789"),
        (0, 3, b"012"),
        (4, 3, b"456"),
        (8, 100, b"89"),
        (10, 5, b""),
        (12, None, b""),
        (3, 0, b""),
    ],
)
def test_a_part_is_read(store: ObjectStore, start: int, length: int | None, wanted: bytes) -> None:
    store.put("job/ten", [b"0123456789"])
    assert store.get("job/ten", start=start, length=length) == wanted


def test_large_objects_come_back_whole_and_in_parts(store: ObjectStore) -> None:
    block = bytes(range(256)) * 4096  # 1 MiB
    store.put("job/packs/large", [block] * 17)
    assert store.get("job/packs/large") == block * 17
    assert store.get("job/packs/large", start=16 << 20, length=2 << 20) == block


def test_what_is_missing_is_said_to_be(store: ObjectStore) -> None:
    for ask in (
        lambda: store.get("job/none"),
        lambda: store.get("job/none", start=3, length=4),
        lambda: store.get("job/none", start=3, length=0),
        lambda: store.size("job/none"),
    ):
        with pytest.raises(ObjectMissing, match="job/none"):
            ask()


def test_an_object_is_written_once(store: ObjectStore, opened: Open) -> None:
    assert store.put("job/once", [b"first"])
    assert not store.put("job/once", [b"second"])
    assert not opened().put("job/once", [b"third"])
    assert store.get("job/once") == b"first"


def test_writers_of_one_name_agree_on_one(store: ObjectStore) -> None:
    together = threading.Barrier(WRITERS)

    def write(number: int) -> bool:
        together.wait(10)
        return store.put("job/raced", [b"%d" % number * 100_000])

    with ThreadPoolExecutor(WRITERS) as pool:
        won = list(pool.map(write, range(WRITERS)))
    assert sum(won) == 1
    assert store.get("job/raced") == b"%d" % won.index(True) * 100_000


def test_names_are_listed_by_what_they_begin_with(store: ObjectStore) -> None:
    for name in ("job/a1/0/manifest", "job/a1/packs/1", "job/a11/0/list", "jobs/a1/0/list"):
        store.put(name, [b"12345"])
    assert names(store, "job/a1/") == {"job/a1/0/manifest", "job/a1/packs/1"}
    assert names(store, "job/a1") == {"job/a1/0/manifest", "job/a1/packs/1", "job/a11/0/list"}
    assert names(store, "jo") == names(store, "job/") | {"jobs/a1/0/list"}
    assert names(store, "none/") == set()
    assert {found.size_bytes for found in store.list("job")} == {5}


def test_long_listings_are_whole(store: ObjectStore) -> None:
    wanted = {f"job/many/{number:04}" for number in range(1_100)}  # S3 answers 1,000 at a time
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda name: store.put(name, [b"x"]), wanted))
    assert names(store, "job/many/") == wanted


def test_deleted_is_gone(store: ObjectStore) -> None:
    store.put("job/gone", [b"x"])
    store.delete("job/gone")
    store.delete("job/gone")
    assert names(store, "job/") == set()
    with pytest.raises(ObjectMissing):
        store.get("job/gone")
    assert store.put("job/gone", [b"again"])


def test_identity_is_the_stores(store: ObjectStore, opened: Open) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert {each.identity for each in pool.map(lambda _: opened(), range(4))} == {
            store.identity
        }
    assert store.identity


def test_free_room_is_told(store: ObjectStore) -> None:
    assert store.free_bytes() > 0


def test_names_that_leave_the_store_are_refused(store: ObjectStore) -> None:
    for name in ("../out", "/etc/passwd", "job/../../out", ""):
        with pytest.raises(DriverError):
            store.put(name, [b"x"])
