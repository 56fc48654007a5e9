"""Stores that are full, read-only, gone, slow, damaged, or of an older version; clocks that lie."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError, StoreAway
from tests.unit.images.kit import (
    DAMAGE,
    S,
    a_manifest,
    directory,
    fetch,
    memory,
    pages,
    put,
    put_version_1,
    quiet,
    same,
    stage,
)  # fmt: skip
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.chunks.pace import Budget, Limits, Pace
from worker_shim.images.copying import CopyStopped
from worker_shim.images.objects import directory as directories
from worker_shim.images.objects.directory import DirectoryObjects
from worker_shim.images.objects.memory import MemoryObjects
from worker_shim.images.port import Kept


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    place = stage(tmp_path / "staging")
    (place / "images/pages-1.img").write_bytes(pages(1, 2500))
    (place / "images/pages-2.img").write_bytes(b"text " * 100_000)
    return place


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_names_file_chunk_and_pack(staged: Path, tmp_path: Path, damage: str) -> None:
    root = tmp_path / "store"
    stored = await put(directory(root), staged)
    other = await put(directory(root), staged, a_manifest("a2"), base="a1")
    (pack,) = (root / "llm/a1/packs").iterdir()
    DAMAGE[damage](pack)
    word = {"flipped": "other bytes than were committed"}.get(damage, damage)
    with pytest.raises(DriverError) as caught:
        await fetch(directory(root), stored, tmp_path / "into")
    file, _, rest = caught.value.what.partition(" of the snapshot: chunk ")
    assert file == _first_file(file)  # of the threads that read, the first to say so
    assert f"in llm/a1/packs/{pack.name} of the image store is {word}" in rest
    damaged = await directory(root).verify(
        stored.place, stored.digest, progress=quiet, deadline_s=S,
        others=[Kept(stored.place, stored.digest), Kept(other.place, other.digest)],
    )  # fmt: skip
    first = damaged[0]
    assert first.name.startswith(f"llm/a1/packs/{pack.name}: chunk ")
    assert (first.what, first.file) == (word, _first_file(damaged[0].file))
    assert first.sharers == (other.place,)
    if damage == "flipped":
        assert len(damaged) == 1


def _first_file(name: str) -> str:
    assert name in ("images/core-1.img", "images/pages-1.img", "images/pages-2.img")
    return name


async def test_full_verification_sees_what_the_store_lost_at_once(staged: Path) -> None:
    """The index is as written; a byte before it is not."""
    for full in (False, True):
        objects = MemoryObjects()
        real = objects.put

        def losing(name: str, parts: object, real: object = real) -> bool:
            if "/packs/" in name:
                data = bytearray(b"".join(parts))  # type: ignore[call-overload]
                data[1000] ^= 1
                parts = [bytes(data)]
            return real(name, parts)  # type: ignore[operator, no-any-return]

        objects.put = losing  # type: ignore[method-assign]
        store = ChunkStore(objects, verify_full=full)
        if full:
            with pytest.raises(DriverError, match="just written, is other bytes"):
                await put(store, staged)
            assert objects.objects == {}
        else:
            await put(store, staged)


async def test_a_pack_that_lost_its_end_is_seen_before_the_manifest(staged: Path) -> None:
    objects = MemoryObjects()

    def cut_off(method: str, name: str) -> None:
        if method == "size" and "/packs/" in name:
            objects.objects[name] = objects.objects[name][:-1]

    objects.before = cut_off
    with pytest.raises(DriverError, match="is damaged"):
        await put(ChunkStore(objects), staged)
    assert objects.objects == {}


async def test_staging_that_changes_meanwhile_is_seen(staged: Path) -> None:
    """Between the hash and the pack."""
    objects = MemoryObjects()
    changed = staged / "images/pages-1.img"

    def change(method: str, name: str) -> None:
        if method == "get" and name.endswith("/list"):
            changed.write_bytes(pages(2, 2500))

    objects.before = change
    with pytest.raises(DriverError, match=r"images/pages-1.img in staging was changed"):
        await put(ChunkStore(objects, meet_s=0.01), staged, a_manifest(workers=2))
    assert objects.objects == {}


# -- stores in trouble -----------------------------------------------------------------------------


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
async def test_a_full_store_says_so_and_leaves_nothing(small_disk: Path, staged: Path) -> None:
    store = directory(small_disk / "store")
    with pytest.raises(DriverError, match="no room left") as caught:
        await put(store, staged)
    assert caught.value.definite
    assert sorted(os.listdir(small_disk / "store")) == ["partial", "store.id"]
    assert not os.listdir(small_disk / "store/partial")
    (staged / "images/pages-1.img").unlink()
    await put(store, staged)


def remount_read_only(disk: Path) -> None:
    """The kernel says that it is busy while anybody is about to close what was written there."""
    for _ in range(100):
        done = subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True, text=True)
        if done.returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError(done.stderr)


@pytest.mark.root
async def test_a_store_that_became_read_only_says_so(small_disk: Path, staged: Path) -> None:
    store = directory(small_disk / "store")
    (staged / "images/pages-1.img").unlink()
    stored = await put(store, staged)
    await asyncio.to_thread(remount_read_only, small_disk)
    with pytest.raises(DriverError, match="may not be written"):
        await put(store, staged, a_manifest("a2"))
    await fetch(store, stored, small_disk.parent / "into")
    same(staged, small_disk.parent / "into")


async def test_a_store_that_vanishes_half_way_is_said(staged: Path, tmp_path: Path) -> None:
    """Its directory is renamed away, as where a file system is unmounted below the shim."""
    root = tmp_path / "store"
    stored = await put(directory(root), staged)

    class Vanishing(DirectoryObjects):
        def put(self, name: str, parts: object) -> bool:
            root.rename(tmp_path / "away")
            return super().put(name, parts)  # type: ignore[arg-type]

    with pytest.raises(DriverError, match="cannot be used") as caught:
        await put(ChunkStore(Vanishing(root)), staged, a_manifest("a2"))
    assert "mounted" in caught.value.advice
    (tmp_path / "away").rename(root)
    store = directory(root)
    root.rename(tmp_path / "away")
    with pytest.raises(StoreAway, match="cannot be used"):
        await fetch(store, stored, tmp_path / "into")
    (tmp_path / "away").rename(root)
    assert await store.actions("llm", deadline_s=S) == ("a1",)


async def test_a_slow_store_names_its_deadline(staged: Path) -> None:
    objects = MemoryObjects(bytes_per_s=20e6)
    began = time.monotonic()
    with pytest.raises(
        DriverError, match=r"writing llm/a1/0 .* did not end within 0\.2 s"
    ) as caught:
        await put(ChunkStore(objects), staged, s=0.2)
    assert time.monotonic() - began < 5
    assert "longer" in caught.value.advice
    assert objects.objects == {}
    objects.bytes_per_s = 0.0
    stored = await put(ChunkStore(objects), staged)
    objects.bytes_per_s = 20e6
    with pytest.raises(DriverError, match=r"reading llm/a1/0 .* did not end within 0\.2 s"):
        await fetch(ChunkStore(objects), stored, staged.parent / "into", s=0.2)


# -- an older version ------------------------------------------------------------------------------


async def test_images_of_version_1_come_back(staged: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = directory(root)
    (staged / "images/pages-3.img").write_bytes(bytes(8 << 20) + b"x")
    stored = put_version_1(root, staged, a_manifest())
    back = await fetch(store, stored, tmp_path / "into")
    same(staged, tmp_path / "into")
    assert back.version == 1
    assert (tmp_path / "into/images/pages-3.img").stat().st_blocks * 512 < 8 << 20
    assert await store.manifest(stored.place, stored.digest, deadline_s=S) == back
    assert await store.verify(stored.place, stored.digest, progress=quiet, deadline_s=S) == ()
    newer = await put(store, staged, a_manifest("a2"), base="a1")
    assert newer.shared_bytes < newer.dumped_bytes / 10  # whole files hold no chunks
    keep = [Kept(stored.place, stored.digest)]
    await store.collect("llm", ["a1", "a2"], keep, dry_run=False, deadline_s=S)
    assert await store.verify(stored.place, stored.digest, progress=quiet, deadline_s=S) == ()
    assert await store.actions("llm", deadline_s=S) == ("a1",)
    await store.delete(stored.place)
    assert await store.actions("llm", deadline_s=S) == ()


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_of_version_1_names_the_file(
    staged: Path, tmp_path: Path, damage: str
) -> None:
    store = directory(tmp_path / "store")
    stored = put_version_1(tmp_path / "store", staged, a_manifest())
    DAMAGE[damage](tmp_path / "store" / stored.place / "images/pages-1.img")
    with pytest.raises(DriverError, match=r"images/pages-1\.img"):
        await fetch(store, stored, tmp_path / "into")
    (found,) = await store.verify(stored.place, stored.digest, progress=quiet, deadline_s=S)
    assert found.file == "images/pages-1.img"


# -- clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong_s", [86_400.0 * 1.5, -86_400.0 * 1.5])
async def test_a_clock_that_is_wrong_by_a_day_removes_nothing_of_others(
    staged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong_s: float
) -> None:
    """What another node is writing, and what was committed, stays; whatever time it is here."""
    real = time.time
    root = tmp_path / "store"
    other = directory(root, "n1")
    half = root / "partial/beef@n1"
    half.write_bytes(b"x")
    monkeypatch.setattr(time, "time", lambda: real() + wrong_s)
    store = directory(root, "n0")
    stored = await put(store, staged)
    (root / "partial/dead@n0").write_bytes(b"x")
    assert store.sweep() == ("dead@n0",)
    assert half.exists()
    await fetch(other, stored, tmp_path / "into")
    same(staged, tmp_path / "into")


def test_what_nobody_touched_for_a_day_goes_by_the_store_s_clock(tmp_path: Path) -> None:
    mine, theirs = DirectoryObjects(tmp_path, "n0"), DirectoryObjects(tmp_path, "a/n0")
    for name in ("beef@n0", "beef@a%2Fn0", "beef@"):
        (tmp_path / "partial" / name).write_bytes(b"x")
    (tmp_path / "partial/llm.a1.0.beef@n9/images").mkdir(parents=True)  # of version 1
    assert mine.sweep() == ("beef@n0",)
    assert theirs.sweep() == ("beef@a%2Fn0",)
    assert DirectoryObjects(tmp_path).sweep() == ()
    long_ago = time.time() - directories.DEAD_PARTIAL_S - 60
    for name in ("beef@", "llm.a1.0.beef@n9/images", "llm.a1.0.beef@n9"):
        os.utime(tmp_path / "partial" / name, (long_ago, long_ago))
    assert mine.sweep() == ("beef@", "llm.a1.0.beef@n9")


# -- limits ----------------------------------------------------------------------------------------


async def test_the_rate_to_the_store_is_kept_over_all_puts_of_a_shim(staged: Path) -> None:
    rate = 20e6
    began = time.monotonic()
    store = memory(limits=Limits(bytes_per_s=rate))
    jobs = [put(store, staged, a_manifest(job=job)) for job in ("llm", "llm-2")]
    stored = sum(one.stored_bytes for one in await asyncio.gather(*jobs))
    took_s = time.monotonic() - began
    assert took_s >= stored / rate * 0.9
    assert stored > 20_000_000


class Clock(threading.Event):
    """Time that passes while somebody works or waits, and not otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now = self.worked = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "thread_time", lambda: self.worked)

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return False


@pytest.mark.parametrize("share", [0.1, 0.5, 2.0])
def test_processor_time_is_paid_for(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    clock = Clock(monkeypatch)
    pace = Pace(Budget(Limits(cpu_share=share)), clock)
    pace.begin()
    for _ in range(1000):
        clock.work(0.003)
        pace.worked()
    assert (clock.now - 1000.0) == pytest.approx(3.0 / min(share, 1.0), rel=0.03)


def test_a_pace_ends_when_told_to_stop() -> None:
    stop = threading.Event()
    pace = Pace(Budget(Limits(bytes_per_s=1.0)), stop)
    threading.Timer(0.1, stop.set).start()
    began = time.monotonic()
    with pytest.raises(CopyStopped):
        pace.sending(1000)
    assert time.monotonic() - began < 5


BUSY = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    until, began, steps = time.monotonic() + float(line), time.process_time(), 0
    while time.monotonic() < until:
        sum(range(20_000)); steps += 1
    print(steps, time.process_time() - began, flush=True)
"""


@dataclass
class Loop:
    """What the loop has done, and the processor time that it had for that."""

    steps: int = 0
    cpu_s: float = 0.0

    def __add__(self, other: Loop) -> Loop:
        return Loop(self.steps + other.steps, self.cpu_s + other.cpu_s)


@pytest.fixture
def training() -> Iterator[Callable[[float], Loop]]:
    """A loop that wants a whole core, on one that this process is put on too."""
    before = os.sched_getaffinity(0)
    core = min(before)
    line = ["taskset", "-c", str(core), "python3", "-c", BUSY]
    busy = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def steps(seconds: float) -> Loop:
        assert busy.stdin is not None
        assert busy.stdout is not None
        busy.stdin.write(f"{seconds}\n")
        busy.stdin.flush()
        count, cpu_s = busy.stdout.readline().split()
        return Loop(int(count), float(cpu_s))

    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        os.sched_setaffinity(0, {core})  # threads that are made from here on inherit it
        yield steps
    finally:
        os.sched_setaffinity(0, before)
        busy.kill()
        busy.communicate()


async def test_a_training_loop_slows_down_by_no_more_than_the_share(
    training: Callable[[float], Loop], tmp_path: Path
) -> None:
    """By processor time, since others may want this core too."""
    place = stage(tmp_path / "staging")
    (place / "images/pages-1.img").write_bytes(pages(1, 60_000))
    alone, beside, taken_s = Loop(), Loop(), 0.0
    for action in ("a1", "a2", "a3"):
        alone += await asyncio.to_thread(training, 0.4)
        putting = asyncio.ensure_future(
            put(memory(limits=Limits(cpu_share=0.1)), place, a_manifest(action))
        )
        began = time.process_time()
        beside += await asyncio.to_thread(training, 0.4)
        taken_s += time.process_time() - began
        assert not putting.done(), "there was nothing beside it"
        putting.cancel()
        await asyncio.wait({putting})
    share = taken_s / (taken_s + beside.cpu_s)
    print(f"PERSIST with a tenth of the core took {share:.0%} of what both had; {alone}, {beside}")
    assert share <= 0.2
    assert beside.steps / beside.cpu_s >= alone.steps / alone.cpu_s * 0.8
