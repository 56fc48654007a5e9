"""A file is known again without reading it, unless anything at all was done to it."""

from __future__ import annotations

import asyncio
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from tests.unit.images.test_directory import a_manifest, quiet, staged  # noqa: F401
from worker_shim.images import copying, known
from worker_shim.images.directory import DirectoryStore
from worker_shim.images.known import KnownFiles

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


# -- the store -------------------------------------------------------------------------------------


class Read:
    """Names of what is hashed by reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self._hashed = copying._hashed
        self._lock = threading.Lock()
        monkeypatch.setattr(copying, "_hashed", self)

    def __call__(self, source: Path, name: str, *more: object) -> object:
        with self._lock:
            self.names.append(name)
        return self._hashed(source, name, *more)  # type: ignore[arg-type]


async def fetched(store: DirectoryStore, place: str, digest: str, into: Path) -> Path:
    await asyncio.to_thread(into.mkdir)
    await store.fetch(place, digest, into, progress=lambda *_: None, deadline_s=30.0)
    return into / BIG


async def test_what_a_shim_wrote_it_does_not_read_again(
    staged: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = DirectoryStore(tmp_path / "store", "n0")
    stored = await store.put(staged, a_manifest(), progress=quiet, deadline_s=30.0)
    place, digest = stored.place, stored.digest
    read = Read(monkeypatch)
    brought = await fetched(store, place, digest, tmp_path / "into")
    assert BIG not in read.names
    assert "images/core-1.img" in read.names  # small ones are copied, so they are read anyway
    assert brought.samefile(store.root / place / BIG)
    assert brought.read_bytes() == (staged / BIG).read_bytes()
    shutil.rmtree(tmp_path / "into")
    await fetched(store, place, digest, tmp_path / "into")  # its end has not touched the file
    assert BIG not in read.names

    other = DirectoryStore(tmp_path / "store", "n1")  # as after a restart, or on another node
    await fetched(other, place, digest, tmp_path / "other")
    assert BIG in read.names


@pytest.mark.parametrize("change", [*KEEPING, *DAMAGING], ids=lambda change: change.__name__)
async def test_a_changed_image_is_read_again(
    staged: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
) -> None:
    (staged / BIG).write_bytes(os.urandom(SIZE - 1) + b"x")
    store = DirectoryStore(tmp_path / "store", "n0")
    stored = await store.put(staged, a_manifest(), progress=quiet, deadline_s=30.0)
    place, digest = stored.place, stored.digest
    change(store.root / place / BIG)
    read = Read(monkeypatch)
    if change in KEEPING:
        await fetched(store, place, digest, tmp_path / "into")
    else:
        with pytest.raises(DriverError, match=BIG):
            await fetched(store, place, digest, tmp_path / "into")
    assert BIG in read.names
