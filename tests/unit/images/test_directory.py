"""The image store on real files: what is put comes back, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator.core.errors import AllstopError, BadRequest, DriverError, SetupError
from worker_shim.files.port import OpenFile
from worker_shim.images import copying, manifest, priority
from worker_shim.images.directory import DirectoryStore
from worker_shim.images.fake import FakeImageStore
from worker_shim.images.opening import open_store
from worker_shim.images.port import ImageStore, Manifest
from worker_shim.images.staging import Staging

Stores = dict[str, ImageStore]


def a_manifest(action: str = "a1") -> Manifest:
    return Manifest(
        version=manifest.VERSION,
        job="llm",
        worker=0,
        action=action,
        incarnation=1,
        root_pid=1000,
        files=(),
        open_files=(OpenFile("/tmp/log", 10, 0o644, "file-0", "log"),),
        page={"hold": 3, "target": 12},
        slots=({"slot": 0, "pid": 1002},),
        workers=2,
        command=("python", "train.py"),
        run_directory="/run/allstop/llm/0",
    )


def quiet(done: int, total: int) -> None:
    assert done <= total


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    staging = Staging(tmp_path / "staging", "n0")
    place = staging.create("llm", 0, "a1", need_bytes=1)
    (place / "images/pages-1.img").write_bytes(os.urandom(9 << 20))
    (place / "images/core-1.img").write_bytes(b"core")
    (place / "files/file-0").write_bytes(b"")
    return place


@pytest.fixture(params=["directory", "fake"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ImageStore:
    if request.param == "fake":
        return FakeImageStore()
    return DirectoryStore(tmp_path / "store")


async def put(store: ImageStore, staged: Path, action: str = "a1") -> tuple[str, str]:
    stored = await store.put(staged, a_manifest(action), progress=quiet, deadline_s=30.0)
    return stored.place, stored.digest


async def fetch(store: ImageStore, place: str, digest: str, into: Path) -> Manifest:
    await asyncio.to_thread(into.mkdir)
    return await store.fetch(place, digest, into, progress=quiet, deadline_s=30.0)


async def test_what_is_put_comes_back(store: ImageStore, staged: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    stored = await store.put(
        staged, a_manifest(), progress=lambda *each: told.append(each), deadline_s=30.0
    )
    place, digest = stored.place, stored.digest
    assert told[-1] == (told[-1][1], told[-1][1])
    into = tmp_path / "into"
    back = await fetch(store, place, digest, into)
    assert [file.name for file in back.files] == [
        "files/file-0", "images/core-1.img", "images/pages-1.img",
    ]  # fmt: skip
    for file in back.files:
        assert (into / file.name).read_bytes() == (staged / file.name).read_bytes()
    assert back.open_files == a_manifest().open_files
    assert (back.page, back.slots) == (a_manifest().page, a_manifest().slots)


async def test_a_place_is_written_once(store: ImageStore, staged: Path) -> None:
    await put(store, staged)
    with pytest.raises(DriverError, match="exists already"):
        await put(store, staged)
    place, _ = await put(store, staged, "a2")
    assert place == "llm/a2/0"


async def test_deleted_is_gone(store: ImageStore, staged: Path, tmp_path: Path) -> None:
    place, digest = await put(store, staged)
    await store.delete(place)
    await store.delete(place)
    with pytest.raises(DriverError, match="has no"):
        await fetch(store, place, digest, tmp_path / "into")
    await put(store, staged)


async def test_another_manifest_is_refused(store: ImageStore, staged: Path, tmp_path: Path) -> None:
    place, _ = await put(store, staged)
    with pytest.raises(DriverError, match="not the one that was committed"):
        await fetch(store, place, "0" * 64, tmp_path / "into")


@pytest.fixture
def real(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


DAMAGE = {
    "flipped": flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_names_the_file(
    real: DirectoryStore, staged: Path, tmp_path: Path, damage: str
) -> None:
    place, digest = await put(real, staged)
    DAMAGE[damage](real.root / place / "images/pages-1.img")
    with pytest.raises(DriverError, match=r"images/pages-1\.img"):
        await fetch(real, place, digest, tmp_path / "into")


async def test_a_damaged_manifest_is_noticed(
    real: DirectoryStore, staged: Path, tmp_path: Path
) -> None:
    place, digest = await put(real, staged)
    flip(real.root / place / "manifest.json")
    with pytest.raises(DriverError, match=r"manifest\.json"):
        await fetch(real, place, digest, tmp_path / "into")


async def test_only_the_owner_may_read(real: DirectoryStore, staged: Path) -> None:
    place, _ = await put(real, staged)
    published = real.root / place
    for path in (published, *published.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert not list((real.root / "partial").iterdir())


async def test_a_store_keeps_its_identity(real: DirectoryStore, tmp_path: Path) -> None:
    assert DirectoryStore(real.root).identity == real.identity
    assert DirectoryStore(tmp_path / "other").identity != real.identity
    assert len(real.identity) == 32


async def test_nothing_is_seen_before_it_is_whole(
    real: DirectoryStore, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that fails half-way, and one that takes too long, leave nothing."""
    monkeypatch.setattr(copying, "CHUNK_BYTES", 1 << 10)
    with pytest.raises(DriverError, match="did not end within"):
        await real.put(staged, a_manifest(), progress=quiet, deadline_s=0.0)
    (staged / "images/pages-2.img").symlink_to("/proc/self/mem")
    with pytest.raises(DriverError, match="cannot be used"):
        await put(real, staged)
    assert sorted(path.name for path in real.root.iterdir()) == ["partial", "store.id"]
    assert not list((real.root / "partial").iterdir())


async def test_publishing_is_one_rename(
    real: DirectoryStore, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(source: object, target: object) -> None:
        raise OSError(5, "the power went")

    monkeypatch.setattr(os, "rename", stop)
    with pytest.raises(DriverError, match="cannot be used") as caught:
        await put(real, staged)
    assert caught.value.definite
    assert not (real.root / "llm/a1/0").exists()


async def test_a_cancelled_put_leaves_nothing(
    real: DirectoryStore, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "CHUNK_BYTES", 1 << 10)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    putting = asyncio.create_task(
        real.put(
            staged,
            a_manifest(),
            progress=lambda *_: loop.call_soon_threadsafe(begun.set),
            deadline_s=30.0,
        )
    )
    await asyncio.wait_for(begun.wait(), 10)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert not list((real.root / "partial").iterdir())


def test_holes_stay_holes(tmp_path: Path) -> None:
    source = tmp_path / "sparse"
    with source.open("wb") as file:
        file.truncate(3 * copying.CHUNK_BYTES)
        file.seek(2 * copying.CHUNK_BYTES)
        file.write(b"x")
    stored = copying.copy_hashed(
        source, tmp_path / "copy", "sparse",
        stop=threading.Event(), progress=lambda _: None, sync=True,
    )  # fmt: skip
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert (tmp_path / "copy").stat().st_blocks * 512 <= copying.CHUNK_BYTES * 2
    assert stored.size_bytes == 3 * copying.CHUNK_BYTES


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same disk", "another disk"])
async def test_large_files_are_linked_and_verified(
    real: DirectoryStore, staged: Path, tmp_path: Path, elsewhere: bool
) -> None:
    """A hard link on the store's own file system, a symbolic one elsewhere; small files copied."""
    (staged / "images/pages-9.img").write_bytes(os.urandom(3 << 20))
    place, digest = await put(real, staged)
    source = real.root / place / "images/pages-9.img"
    with tempfile.TemporaryDirectory(dir="/dev/shm" if elsewhere else tmp_path) as room:
        into = Path(room) / "into"
        if elsewhere and os.stat(room).st_dev == source.stat().st_dev:
            pytest.skip("there is one file system only")
        await fetch(DirectoryStore(real.root), place, digest, into)  # of a node that wrote it not
        brought = into / "images/pages-9.img"
        assert brought.is_symlink() == elsewhere
        assert brought.samefile(source)
        for small in ("images/core-1.img", "files/file-0"):
            assert not (into / small).samefile(real.root / place / small)
        shutil.rmtree(into)
        assert source.stat().st_size == 3 << 20
        flip(source)
        with pytest.raises(DriverError, match=r"images/pages-9\.img"):
            await fetch(real, place, digest, into)


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


@pytest.mark.parametrize("place", ["../x", "/etc", "llm/../../etc", ""])
async def test_a_place_outside_is_refused(real: DirectoryStore, tmp_path: Path, place: str) -> None:
    with pytest.raises(AllstopError):
        await fetch(real, place, "0" * 64, tmp_path / "into")
    with pytest.raises(AllstopError):
        await real.delete(place)
    assert real.root.exists()


async def test_sweep_removes_only_what_is_dead(real: DirectoryStore, staged: Path) -> None:
    await put(real, staged)
    half = real.root / "partial/llm.a9.0.beef"
    (half / "images").mkdir(parents=True)
    assert real.sweep() == ()
    for path in (half / "images", half):
        os.utime(path, (1, 1))
    assert real.sweep() == ("llm.a9.0.beef",)
    assert (real.root / "llm/a1/0").exists()


def test_a_node_sweeps_its_own_at_once(tmp_path: Path) -> None:
    """A shim that died while it wrote left it; other nodes may be writing still."""
    mine, theirs = DirectoryStore(tmp_path, "n0"), DirectoryStore(tmp_path, "a/n0")
    for name in ("llm.a1.0.beef@n0", "llm.a1.1.beef@a%2Fn0", "llm.a1.2.beef@"):
        (tmp_path / "partial" / name / "images").mkdir(parents=True)
    assert mine.sweep() == ("llm.a1.0.beef@n0",)
    assert theirs.sweep() == ("llm.a1.1.beef@a%2Fn0",)
    assert DirectoryStore(tmp_path).sweep() == ()


async def test_what_a_node_writes_is_marked(
    staged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, made = DirectoryStore(tmp_path / "store", "n0"), list[str]()
    rename = os.rename
    monkeypatch.setattr(
        os, "rename", lambda half, to: (made.append(Path(half).name), rename(half, to))
    )
    await put(store, staged)
    assert made[0].startswith("llm.a1.0.")
    assert made[0].endswith("@n0")


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
async def test_a_full_store_says_so_and_leaves_nothing(small_disk: Path, staged: Path) -> None:
    store = DirectoryStore(small_disk / "store")
    with pytest.raises(DriverError, match="no room left") as caught:
        await put(store, staged)
    assert caught.value.definite
    assert not list((store.root / "partial").iterdir())
    (staged / "images/pages-1.img").unlink()
    await put(store, staged)


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


@pytest.mark.parametrize("away", ["unmounted", "another", "gone"])
async def test_a_store_that_is_not_there_is_not_empty(
    real: DirectoryStore, staged: Path, tmp_path: Path, away: str
) -> None:
    """What is listed there decides what is deleted: nothing mounted must not look like nothing."""
    await put(real, staged)
    assert await real.actions("llm", deadline_s=5.0) == ("a1",)
    real.root.rename(tmp_path / "elsewhere")
    if away == "unmounted":
        real.root.mkdir()
    elif away == "another":
        DirectoryStore(real.root)
    with pytest.raises(DriverError):
        await real.actions("llm", deadline_s=5.0)
    with pytest.raises(DriverError):
        await real.collect("llm", ["a1"], (), dry_run=True, deadline_s=5.0)


def test_a_store_is_opened_by_its_name_and_not_made_by_looking(tmp_path: Path) -> None:
    where = tmp_path / "store"
    with pytest.raises(SetupError, match="is no image store"):
        open_store(str(where), make=False)
    assert not where.exists()
    made = open_store(str(where), "n0")
    assert open_store(str(where), make=False).identity == made.identity
