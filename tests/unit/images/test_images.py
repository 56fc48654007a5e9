"""Staging, priorities, and the manifest of version 1."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator.core.errors import BadRequest, DriverError
from tests.unit.images.kit import a_manifest
from worker_shim.images import manifest, priority
from worker_shim.images.staging import Staging, free_memory, in_memory


def test_a_copy_gives_way_and_a_restore_goes_first() -> None:
    """Each in a thread of its own, as the priority is the thread's."""
    found: dict[str, int] = {}
    before = os.getpriority(os.PRIO_PROCESS, 0)

    def nice_after(change: Callable[[], None]) -> None:
        change()
        found[change.__name__] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    for change in (priority.yield_to_others, priority.go_first):
        thread = threading.Thread(target=nice_after, args=(change,))
        thread.start()
        thread.join(10)
    assert found["yield_to_others"] == max(before, priority.LATER_NICE)
    if os.geteuid() == 0:
        assert found["go_first"] == priority.FIRST_NICE
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_the_session_goes_first_until_the_last_one_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "autogroup"
    group.write_text("/autogroup-7 nice 3\n")
    monkeypatch.setattr(priority, "AUTOGROUP", group)
    with priority.session_goes_first():
        with priority.session_goes_first():
            assert group.read_text() == str(priority.FIRST_NICE)
        assert group.read_text() == str(priority.FIRST_NICE)
    assert group.read_text() == "3"
    monkeypatch.setattr(priority, "AUTOGROUP", tmp_path / "none")
    with priority.session_goes_first():
        pass


def test_a_newer_manifest_is_not_guessed() -> None:
    encoded = manifest.encode(a_manifest()).replace(b'"version":1', b'"version":2')
    with pytest.raises(DriverError, match="version 2"):
        manifest.decode(encoded, manifest.digest_of(encoded))
    with pytest.raises(DriverError, match="cannot be read"):
        manifest.decode(b"{}", manifest.digest_of(b"{}"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.root
def test_staging_counts_its_room_first(small_disk: Path) -> None:
    staging = Staging(small_disk / "staging", "n0")
    with pytest.raises(DriverError, match="MiB free"):
        staging.create("llm", 0, "a1", need_bytes=1 << 30)
    assert not staging.place("llm", 0, "a1").exists()


def test_staging_is_swept_by_its_owner_only(tmp_path: Path) -> None:
    mine, theirs = Staging(tmp_path, "n0"), Staging(tmp_path, "n1")
    place = mine.create("llm", 0, "a1", need_bytes=0)
    other = theirs.create("llm", 1, "a1", need_bytes=0)
    (place / "images/x").write_text("x")
    assert mine.sweep() == ("llm/0/a1",)
    assert not place.exists()
    assert other.exists()
    theirs.drop("llm", 1, "a1")
    theirs.drop("llm", 1, "a1")
    assert not other.exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a" * 200])
def test_names_that_are_no_directories(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadRequest):
        Staging(tmp_path, "n0").place(name, 0, "a1")
    shutil.rmtree(tmp_path)


# -- images that stay in staging ------------------------------------------------------------------


def settled(staging: Staging, action: str, *, worker: int = 0, size: int = 1 << 20) -> Path:
    place = staging.create("llm", worker, action, need_bytes=0)
    (place / "images/pages-1.img").write_bytes(os.urandom(size))
    assert staging.settle("llm", worker, action)
    return place


def test_stored_images_stay_until_the_worker_s_next_are_stored(tmp_path: Path) -> None:
    staging = Staging(tmp_path, "n0")
    first, other = settled(staging, "a1"), settled(staging, "a1", worker=1)
    assert staging.kept() == (("llm", 0, "a1"), ("llm", 1, "a1"))
    second = settled(staging, "a2")
    assert not first.exists()
    assert second.exists()
    assert other.exists()
    staging.drop_kept("llm", 0)
    assert not second.exists()
    assert staging.kept() == (("llm", 1, "a1"),)
    assert staging.sweep() == ("llm/1/a1",)  # at the next start, nothing of it is known any more


def test_nothing_stays_where_that_was_not_wanted(tmp_path: Path) -> None:
    staging = Staging(tmp_path, "n0", keep=False)
    place = staging.create("llm", 0, "a1", need_bytes=0)
    assert not staging.settle("llm", 0, "a1")
    assert not place.exists()


def test_what_a_restore_links_to_is_not_dropped(tmp_path: Path) -> None:
    staging = Staging(tmp_path, "n0")
    kept = settled(staging, "a1")
    restoring = staging.create("llm", 0, "r1", need_bytes=0, using="a1")
    staging.drop_kept()
    assert kept.exists()
    staging.drop("llm", 0, "r1")
    assert not restoring.exists()
    staging.drop_kept()
    assert not kept.exists()


@pytest.mark.root
def test_kept_images_make_room_and_count_as_room(small_disk: Path) -> None:
    staging = Staging(small_disk / "staging", "n0")
    before = staging.free_bytes()
    kept = settled(staging, "a1", size=1 << 20)
    assert abs(staging.free_bytes() - before) < 64 << 10
    again = staging.create("llm", 0, "r1", need_bytes=3 << 20, using="a1")  # a restore from it
    assert kept.exists()
    assert again.exists()
    staging.drop("llm", 0, "r1")
    staging.create("llm", 1, "a2", need_bytes=7 << 19)
    assert not kept.exists()
    big = staging.create("llm", 0, "a3", need_bytes=0)
    (big / "images/pages-1.img").write_bytes(os.urandom(5 << 19))
    assert not staging.settle("llm", 0, "a3")  # the next dump would not fit beside it
    assert not big.exists()


def test_memory_is_told_from_disks(tmp_path: Path) -> None:
    assert in_memory(Path("/dev/shm"))
    assert not in_memory(Path("/proc"))
    assert free_memory() > 1 << 20
