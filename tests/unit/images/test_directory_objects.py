"""Objects in a directory: whole or not there, written once, and nothing else left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from worker_shim.images.objects.directory import DirectoryObjects
from worker_shim.images.objects.memory import MemoryObjects
from worker_shim.images.objects.port import ObjectMissing, ObjectStore


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return MemoryObjects() if request.param == "memory" else DirectoryObjects(tmp_path, "n0")


def names(store: ObjectStore, prefix: str) -> list[str]:
    return sorted(each.name for each in store.list(prefix))


def test_parts_are_read_as_they_were_written(store: ObjectStore) -> None:
    assert store.put("j/a/packs/0.x", [b"abc", bytearray(b"de"), memoryview(b"fgh")])
    assert store.get("j/a/packs/0.x") == b"abcdefgh"
    assert store.get("j/a/packs/0.x", start=3) == b"defgh"
    assert store.get("j/a/packs/0.x", start=3, length=2) == b"de"
    assert store.get("j/a/packs/0.x", start=6, length=100) == b"gh"
    assert store.get("j/a/packs/0.x", start=100, length=1) == b""
    assert store.size("j/a/packs/0.x") == 8
    assert store.free_bytes() > 0


def test_an_object_is_written_once(store: ObjectStore) -> None:
    assert store.put("j/a/0/manifest", [b"first"])
    assert not store.put("j/a/0/manifest", [b"second"])
    assert store.get("j/a/0/manifest") == b"first"


def test_one_of_many_writers_wins(store: ObjectStore) -> None:
    gate = threading.Barrier(8, timeout=20)

    def write(number: int) -> bool:
        gate.wait()
        return store.put("j/a/0/manifest", [bytes([number]) * 1000])

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))
    assert won.count(True) == 1
    assert store.get("j/a/0/manifest") == bytes([won.index(True)]) * 1000


def test_lists_go_by_how_names_begin(store: ObjectStore) -> None:
    for name in ("j/a/packs/1.x", "j/a/packs/11.y", "j/a/1/manifest", "j-2/a/1/manifest"):
        store.put(name, [b"x"])
    assert names(store, "j/a/packs/1.") == ["j/a/packs/1.x"]
    assert names(store, "j/") == ["j/a/1/manifest", "j/a/packs/1.x", "j/a/packs/11.y"]
    assert names(store, "j") == ["j-2/a/1/manifest", *names(store, "j/")]
    assert names(store, "none/") == []
    assert names(store, "") == names(store, "j")
    assert [each.size_bytes for each in store.list("j-2/")] == [1]


def test_what_is_deleted_is_gone_and_may_be_again(store: ObjectStore) -> None:
    store.put("j/a/0/manifest", [b"x"])
    store.delete("j/a/0/manifest")
    store.delete("j/a/0/manifest")
    for ask in (store.get, store.size):
        with pytest.raises(ObjectMissing, match="has no j/a/0/manifest"):
            ask("j/a/0/manifest")
    assert store.put("j/a/0/manifest", [b"y"])


def test_directories_come_and_go(tmp_path: Path) -> None:
    store = DirectoryObjects(tmp_path)
    store.put("j/a/0/manifest", [b"x"])
    store.put("j/b/0/manifest", [b"x"])
    store.delete("j/a/0/manifest")
    assert sorted(os.listdir(tmp_path / "j")) == ["b"]
    store.delete("j/b/0/manifest")
    assert sorted(os.listdir(tmp_path)) == ["partial", "store.id"]
    assert not os.listdir(tmp_path / "partial")


def test_writers_and_removers_of_one_directory_do_not_fail_each_other(tmp_path: Path) -> None:
    store = DirectoryObjects(tmp_path)

    def work(number: int) -> None:
        for step in range(30):
            assert store.put(f"j/a/packs/{number}.{step}", [b"x"])
            store.delete(f"j/a/packs/{number}.{step}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert names(store, "") == []


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", ""])
def test_names_stay_inside(tmp_path: Path, name: str) -> None:
    store = DirectoryObjects(tmp_path / "store")
    calls: list[Callable[[], object]] = [
        lambda: store.put(name, [b"x"]), lambda: store.get(name), lambda: store.delete(name)
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(DriverError, match="not a place inside"):
            call()


def test_a_store_that_is_gone_is_not_an_empty_one(tmp_path: Path) -> None:
    """Else what was committed would look removed where the file system is not mounted."""
    store = DirectoryObjects(tmp_path / "store")
    store.put("j/a/0/manifest", [b"x"])
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").mkdir()
    with pytest.raises(DriverError, match="cannot be used") as caught:
        store.get("j/a/0/manifest")
    assert not isinstance(caught.value, ObjectMissing)
    with pytest.raises(DriverError, match="cannot be used"):
        list(store.list("j/"))
