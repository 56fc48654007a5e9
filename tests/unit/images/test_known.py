"""A file is known again without reading it, unless anything at all was done to it."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.images.kit import a_manifest, fetch, memory, pages, put, same, stage
from worker_shim.images import known
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.known import KnownFiles
from worker_shim.images.objects.memory import MemoryObjects
from worker_shim.images.port import Stored

SIZE = 3 << 20
BIG = "images/pages-1.img"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    time.sleep(known.TICK_S)
    return path


def write_same(path: Path) -> None:
    with path.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(byte)


def write_mapped(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[5] ^= 1
        mapped.flush()


def write_and_set_times_back(path: Path) -> None:
    before = path.stat()
    write_same(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_with_times(path: Path) -> None:
    other = path.with_suffix(".other")
    shutil.copy2(path, other)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


def cut_and_grow(path: Path) -> None:
    os.truncate(path, SIZE - 1)
    os.truncate(path, SIZE)


def grow(path: Path) -> None:
    os.truncate(path, SIZE + 1)


KEEPING: list[Callable[[Path], None]] = [write_same, write_and_set_times_back, replace_with_times]
DAMAGING: list[Callable[[Path], None]] = [write_mapped, cut_and_grow, grow]


@pytest.mark.parametrize("change", [*KEEPING, *DAMAGING], ids=lambda change: change.__name__)
def test_whatever_is_done_to_it_is_seen(file: Path, change: Callable[[Path], None]) -> None:
    files = KnownFiles()
    assert files.digest(file) == ""
    files.remember(file, "d1")
    assert files.digest(file) == "d1"
    file.read_bytes()
    moved = file.rename(file.with_suffix(".moved"))
    moved = moved.rename(file)
    files.remember(moved, "d1")  # some file systems set ctime at a rename
    change(file)
    assert files.digest(file) == ""


def test_a_file_that_changed_just_now_is_not_known(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one tick of the clock a further write would leave the same times."""
    files = KnownFiles()
    changed = file.stat().st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: changed + int(known.TICK_S * 1e9) - 1)
    files.remember(file, "d1")
    assert files.digest(file) == ""
    monkeypatch.setattr(time, "time_ns", lambda: changed + int(known.TICK_S * 1e9))
    files.remember(file, "d1")
    assert files.digest(file) == "d1"


def test_it_is_believed_for_a_while_and_of_so_many(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, now = KnownFiles(), time.monotonic()
    files.remember(file, "d1")
    monkeypatch.setattr(time, "monotonic", lambda: now + known.BELIEVED_S + 1)
    assert files.digest(file) == ""
    files.remember(file, "d1")
    assert files.digest(file) == "d1"
    monkeypatch.setattr(known, "KEPT_MAX", 1)
    other = file.with_suffix(".other")
    shutil.copy(file, other)
    time.sleep(known.TICK_S)
    files.remember(other, "d2")
    assert (files.digest(file), files.digest(other)) == ("", "d2")


# -- images that are in staging still --------------------------------------------------------------


async def read_from_packs(store: ChunkStore, stored: Stored, into: Path) -> tuple[Path, bool]:
    """The file that came, and whether any pack was read for it."""
    objects = store.objects
    assert isinstance(objects, MemoryObjects)
    objects.calls.clear()
    await fetch(store, stored, into)
    return into / BIG, any("/packs/" in name for method, name in objects.calls)


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    place = stage(tmp_path / "staging")
    (place / BIG).write_bytes(os.urandom(SIZE - 1) + b"x")
    return place


async def test_what_a_shim_has_in_staging_still_it_does_not_read_again(
    staged: Path, tmp_path: Path
) -> None:
    store = memory()
    stored = await put(store, staged)
    brought, _ = await read_from_packs(store, stored, tmp_path / "into")
    assert brought.samefile(staged / BIG)
    small = tmp_path / "into/images/core-1.img"
    assert not small.samefile(staged / "images/core-1.img")  # a restore may rewrite small ones
    shutil.rmtree(tmp_path / "into")
    brought, _ = await read_from_packs(store, stored, tmp_path / "into")
    assert brought.samefile(staged / BIG)  # the end of the first has not touched the file

    other = ChunkStore(store.objects)  # as after a restart, or on another node
    brought, read = await read_from_packs(other, stored, tmp_path / "other")
    assert read
    assert not brought.is_symlink()
    same(staged, tmp_path / "other")
    shutil.rmtree(staged)
    brought, read = await read_from_packs(store, stored, tmp_path / "dropped")
    assert read
    same(tmp_path / "other", tmp_path / "dropped")


@pytest.mark.parametrize("change", [*KEEPING, *DAMAGING], ids=lambda change: change.__name__)
async def test_a_changed_image_in_staging_is_not_used(
    staged: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    store = memory()
    stored = await put(store, staged)
    was = (staged / BIG).read_bytes()
    change(staged / BIG)
    brought, read = await read_from_packs(store, stored, tmp_path / "into")
    assert read == (change in (write_mapped, cut_and_grow))  # else hashed, and copied from here
    assert not brought.is_symlink()
    assert brought.read_bytes() == was


async def test_only_what_is_not_here_comes_from_the_store(tmp_path: Path) -> None:
    """An older snapshot, of which the last one's images in staging have most chunks."""
    objects = MemoryObjects()
    old, new = (stage(tmp_path / "staging", action=action) for action in ("a1", "a2"))
    (old / BIG).write_bytes(pages(1, 2000) + pages(2, 100))
    (new / BIG).write_bytes(pages(3, 50) + pages(1, 2000))
    store = ChunkStore(objects)
    first = await put(store, old)
    await put(store, new, a_manifest("a2"), base="a1")
    shutil.rmtree(old / "images")
    objects.calls.clear()
    asked: list[int] = []
    real = objects.get
    objects.get = lambda name, **part: (  # type: ignore[method-assign, assignment]
        asked.append(part.get("length") or 0), real(name, **part)
    )[1]  # fmt: skip
    await fetch(store, first, tmp_path / "into")
    assert (tmp_path / "into" / BIG).read_bytes() == pages(1, 2000) + pages(2, 100)
    assert 0 < sum(asked) < 300 * 4096
