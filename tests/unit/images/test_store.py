"""The contract of image stores, held against the fake and against chunks over several stores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordinator.core.errors import AllstopError, DriverError
from tests.unit.images.kit import (
    S,
    a_manifest,
    directory,
    fetch,
    flip,
    memory,
    pages,
    put,
    quiet,
    same,
    stage,
)  # fmt: skip
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.fake import FakeImageStore
from worker_shim.images.objects.memory import MemoryObjects
from worker_shim.images.port import ImageStore, Kept, Stored


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    place = stage(tmp_path / "staging")
    (place / "images/pages-1.img").write_bytes(pages(1, 2000) + bytes(100 * 4096) + pages(2, 16))
    return place


@pytest.fixture(params=["directory", "memory", "fake"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ImageStore:
    if request.param == "fake":
        return FakeImageStore()
    return memory() if request.param == "memory" else directory(tmp_path / "store")


def kept(stored: Stored) -> Kept:
    return Kept(stored.place, stored.digest)


async def test_what_is_put_comes_back(store: ImageStore, staged: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    stored = await store.put(
        staged, a_manifest(), progress=lambda *each: told.append(each), deadline_s=S
    )
    assert told[-1] == (told[-1][1], told[-1][1])
    told.clear()
    into = tmp_path / "into"
    into.mkdir()
    back = await store.fetch(
        stored.place, stored.digest, into, progress=lambda *each: told.append(each), deadline_s=S
    )
    assert told[-1] == (told[-1][1], told[-1][1])
    assert [file.name for file in back.files] == [
        "files/file-0", "images/core-1.img", "images/pages-1.img",
    ]  # fmt: skip
    same(staged, into)
    assert back.open_files == a_manifest().open_files
    assert (back.page, back.slots) == (a_manifest().page, a_manifest().slots)
    assert await store.manifest(stored.place, stored.digest, deadline_s=S) == back


async def test_a_place_is_written_once(store: ImageStore, staged: Path) -> None:
    await put(store, staged)
    with pytest.raises(DriverError, match="exists already"):
        await put(store, staged)
    stored = await put(store, staged, a_manifest("a2"))
    assert stored.place == "llm/a2/0"
    assert store.place("llm", "a2", 0) == "llm/a2/0"


async def test_deleted_is_gone(store: ImageStore, staged: Path, tmp_path: Path) -> None:
    stored = await put(store, staged)
    await store.delete(stored.place)
    await store.delete(stored.place)
    with pytest.raises(DriverError, match="has no"):
        await fetch(store, stored, tmp_path / "into")
    assert await store.actions("llm", deadline_s=S) == ()
    await put(store, staged)


async def test_another_manifest_is_refused(store: ImageStore, staged: Path, tmp_path: Path) -> None:
    stored = await put(store, staged)
    other = Stored(stored.place, "0" * 64, 0, 0, 0)
    with pytest.raises(DriverError, match="not the one that was committed"):
        await fetch(store, other, tmp_path / "into")
    with pytest.raises(DriverError, match="not the one that was committed"):
        await store.manifest(other.place, other.digest, deadline_s=S)


@pytest.mark.parametrize("place", ["../x", "/etc", "llm/../../etc", "", "llm/a1", "llm/a1/0/x"])
async def test_a_place_outside_is_refused(store: ImageStore, tmp_path: Path, place: str) -> None:
    with pytest.raises(AllstopError):
        await fetch(store, Stored(place, "0" * 64, 0, 0, 0), tmp_path / "into")
    if isinstance(store, FakeImageStore):
        return  # nothing is outside of a table
    with pytest.raises(AllstopError):
        await store.delete(place)


async def test_whole_images_verify(store: ImageStore, staged: Path) -> None:
    stored = await put(store, staged)
    told: list[tuple[int, int]] = []
    assert (
        await store.verify(
            stored.place, stored.digest, progress=lambda *each: told.append(each), deadline_s=S
        )
        == ()
    )
    assert told[-1] == (told[-1][1], told[-1][1])


async def test_an_equal_image_costs_nothing_again(store: ImageStore, staged: Path) -> None:
    first = await put(store, staged)
    again = await put(store, staged, a_manifest("a2"), base="a1")
    assert again.dumped_bytes == first.dumped_bytes
    assert again.shared_bytes == again.dumped_bytes
    assert again.stored_bytes < first.stored_bytes / 100


async def test_attempts_are_listed_and_collected(
    store: ImageStore, staged: Path, tmp_path: Path
) -> None:
    first = await put(store, staged)
    second = await put(store, staged, a_manifest("a2"), base="a1")
    other = await put(store, staged, a_manifest(job="llm-2"))
    assert await store.actions("llm", deadline_s=S) == ("a1", "a2")
    assert await store.actions("llm-2", deadline_s=S) == ("a1",)
    assert await store.actions("none", deadline_s=S) == ()
    seen = await store.collect("llm", ["a1"], [kept(second)], dry_run=True, deadline_s=S)
    await fetch(store, first, tmp_path / "before")
    gone = await store.collect("llm", ["a1"], [kept(second)], dry_run=False, deadline_s=S)
    assert gone == seen
    assert gone.objects > 0
    with pytest.raises(DriverError, match="has no"):
        await fetch(store, first, tmp_path / "gone")
    await fetch(store, second, tmp_path / "second")
    same(staged, tmp_path / "second")
    rest = await store.collect("llm", ["a1", "a2"], [], dry_run=False, deadline_s=S)
    assert rest.objects > 0
    assert rest.freed_bytes > 0
    assert await store.actions("llm", deadline_s=S) == ()
    nothing = await store.collect("llm", ["a1", "a2"], [], dry_run=False, deadline_s=S)
    assert (nothing.objects, nothing.freed_bytes) == (0, 0)
    await fetch(store, other, tmp_path / "other")
    same(staged, tmp_path / "other")


async def test_nothing_is_collected_where_what_is_to_stay_cannot_be_read(
    store: ImageStore, staged: Path, tmp_path: Path
) -> None:
    first = await put(store, staged)
    lost = Kept(store.place("llm", "a0", 0), "0" * 64)
    with pytest.raises(DriverError):
        await store.collect("llm", ["a1"], [lost], dry_run=False, deadline_s=S)
    await fetch(store, first, tmp_path / "into")


async def test_an_unsound_manifest_is_noticed(staged: Path, tmp_path: Path) -> None:
    store = directory(tmp_path / "store")
    stored = await put(store, staged)
    flip(tmp_path / "store" / stored.place / "manifest")
    with pytest.raises(DriverError, match="manifest is not the one"):
        await fetch(store, stored, tmp_path / "into")


async def test_only_the_owner_may_read(staged: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    await put(directory(root), staged)
    for path in (root / "llm").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert not list((root / "partial").iterdir())


async def test_a_put_that_fails_leaves_nothing(staged: Path, tmp_path: Path) -> None:
    """One that takes too long, and one that cannot read what was staged."""
    objects = MemoryObjects()
    store = ChunkStore(objects)
    with pytest.raises(DriverError, match="did not end within"):
        await store.put(staged, a_manifest(), progress=quiet, deadline_s=0.0)
    (staged / "images/pages-2.img").symlink_to("/proc/self/mem")
    with pytest.raises(DriverError, match="cannot be used"):
        await put(store, staged)
    assert objects.objects == {}


async def test_a_pack_that_cannot_be_written_leaves_nothing(staged: Path) -> None:
    objects = MemoryObjects()

    def full(method: str, name: str) -> None:
        if method == "put" and name.endswith("/manifest"):
            raise DriverError("no room left", definite=False)

    objects.before = full
    with pytest.raises(DriverError, match="no room left"):
        await put(ChunkStore(objects), staged)
    assert objects.objects == {}
    assert any("/packs/" in name for method, name in objects.calls if method == "put")


def test_a_store_keeps_its_identity(tmp_path: Path) -> None:
    one = directory(tmp_path / "one")
    assert directory(tmp_path / "one").identity == one.identity
    assert directory(tmp_path / "other").identity != one.identity
    assert len(one.identity) == 32
    assert one.free_bytes() > 0
    assert os.listdir(tmp_path / "one/partial") == []
