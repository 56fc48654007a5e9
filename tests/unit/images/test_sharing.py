"""Each byte once: among the workers of an attempt, the snapshots of a job, and never among jobs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.unit.images.kit import PAGE, S, a_manifest, fetch, flip, memory, pages, put, same, stage
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.chunks.cutting import cut, hasher
from worker_shim.images.chunks.meeting import Meeting
from worker_shim.images.chunks.table import as_digests
from worker_shim.images.objects.directory import DirectoryObjects
from worker_shim.images.objects.memory import MemoryObjects
from worker_shim.images.port import Kept, Stored
from worker_shim.images.sealing import Open

SAME_PAGES, OWN_PAGES = 3000, 150
SHORT_S = 0.3


def replica(root: Path, worker: int, *, action: str = "a1", same_seed: int = 1) -> Path:
    """A data-parallel replica: most pages as every other's, at another place, and some its own."""
    staged = stage(root, action=action, worker=worker)
    own = pages(1000 + worker, OWN_PAGES)
    begin = own[: worker * 7 * PAGE]
    (staged / "images/pages-1.img").write_bytes(
        begin + pages(same_seed, SAME_PAGES) + own[len(begin) :]
    )
    return staged


def packs(objects: MemoryObjects) -> int:
    """Bytes of all packs."""
    return sum(len(data) for name, data in objects.objects.items() if "/packs/" in name)


@pytest.mark.parametrize("workers", [2, 8])
async def test_replicas_that_put_at_once_store_what_they_have_in_common_once(
    tmp_path: Path, workers: int
) -> None:
    objects = MemoryObjects()
    stores = [ChunkStore(objects) for _ in range(workers)]
    staged = [replica(tmp_path / "staging", worker) for worker in range(workers)]
    stored = await asyncio.gather(
        *(
            put(stores[worker], staged[worker], a_manifest(worker=worker, workers=workers))
            for worker in range(workers)
        )
    )
    distinct = (SAME_PAGES + workers * OWN_PAGES) * PAGE
    ends = workers * 6 * 16 * PAGE  # chunks that have pages of both kinds
    assert distinct <= packs(objects) < distinct * 1.01 + ends
    assert sum(one.stored_bytes for one in stored) >= packs(objects)
    for one in stored:
        assert one.dumped_bytes - one.shared_bytes < 2 * distinct / workers
    for worker in range(workers):
        into = tmp_path / f"into-{worker}"
        await fetch(ChunkStore(objects), stored[worker], into)
        same(staged[worker], into)


async def test_whoever_comes_alone_stores_everything_after_a_while(tmp_path: Path) -> None:
    store = memory(meet_s=SHORT_S)
    staged = replica(tmp_path / "staging", 0)
    stored = await put(store, staged, a_manifest(workers=3))
    assert stored.shared_bytes == 0
    await fetch(ChunkStore(store.objects), stored, tmp_path / "into")
    same(staged, tmp_path / "into")


def publish_list(objects: MemoryObjects, staged: Path, worker: int) -> None:
    """A worker tells what it has, as `put` does first."""
    cuts = cut(staged / "images/pages-1.img", "x", (), hasher(b""), lambda count: None)
    Meeting(objects, Open(), "llm/a1", worker, 2).publish(as_digests(cuts.digests))


async def test_what_was_left_to_a_worker_that_died_is_stored_in_the_end(tmp_path: Path) -> None:
    """The other's list is there, its packs never come."""
    objects = MemoryObjects()
    store = ChunkStore(objects, meet_s=SHORT_S)
    staged = replica(tmp_path / "staging", 0)
    publish_list(objects, staged, 1)
    stored = await put(store, staged, a_manifest(workers=2))
    rounds = {name for method, name in objects.calls if method == "put" and "/packs/" in name}
    assert len(rounds) > 1  # what is its own, and later what the other should have stored
    await fetch(ChunkStore(objects), stored, tmp_path / "into")
    same(staged, tmp_path / "into")


async def test_a_list_of_rubbish_is_no_list(tmp_path: Path) -> None:
    objects = MemoryObjects()
    objects.objects["llm/a1/1/list"] = b"rubbish"
    store = ChunkStore(objects, meet_s=SHORT_S)
    staged = replica(tmp_path / "staging", 0)
    stored = await put(store, staged, a_manifest(workers=2))
    await fetch(ChunkStore(objects), stored, tmp_path / "into")
    same(staged, tmp_path / "into")


async def test_a_pack_of_another_that_is_damaged_is_not_believed(tmp_path: Path) -> None:
    """Worker 1 has stored its share; its packs are then cut off, before worker 0 looks."""
    objects = MemoryObjects()
    staged = [replica(tmp_path / "staging", worker) for worker in range(2)]
    publish_list(objects, staged[0], 0)
    await put(ChunkStore(objects, meet_s=SHORT_S), staged[1], a_manifest(worker=1, workers=2))
    for name in [name for name in objects.objects if "/packs/1." in name]:
        objects.objects[name] = objects.objects[name][:-100]
    del objects.objects["llm/a1/0/list"]
    stored = await put(ChunkStore(objects, meet_s=SHORT_S), staged[0], a_manifest(workers=2))
    await fetch(ChunkStore(objects), stored, tmp_path / "into")
    same(staged[0], tmp_path / "into")


# -- snapshots -------------------------------------------------------------------------------------


async def steps(tmp_path: Path, store: ChunkStore, count: int) -> list[tuple[Path, Stored]]:
    """Snapshots a0, a1 …, each with the one before as its base and a tenth of the pages new."""
    made = []
    data = bytearray(pages(1, SAME_PAGES))
    for step in range(count):
        data[step * 300 * PAGE : (step + 1) * 300 * PAGE] = pages(100 + step, 300)
        staged = stage(tmp_path / "staging", action=f"a{step}")
        (staged / "images/pages-1.img").write_bytes(data)
        base = f"a{step - 1}" if step else ""
        made.append((staged, await put(store, staged, a_manifest(f"a{step}"), base=base)))
    return made


async def test_a_snapshot_stores_what_is_new_since_its_base(tmp_path: Path) -> None:
    objects = MemoryObjects()
    made = await steps(tmp_path, ChunkStore(objects), 3)
    for _, stored in made[1:]:
        assert stored.stored_bytes < 400 * PAGE
        assert stored.shared_bytes > 2600 * PAGE
    other = ChunkStore(objects)  # as after a restart: it reads the base's manifest
    staged = stage(tmp_path / "staging", action="a9")
    (staged / "images/pages-1.img").write_bytes((made[2][0] / "images/pages-1.img").read_bytes())
    stored = await put(other, staged, a_manifest("a9"), base="a2")
    assert stored.shared_bytes == stored.dumped_bytes
    for number, (staged, stored) in enumerate(made):
        await fetch(ChunkStore(objects), stored, tmp_path / f"into-{number}")
        same(staged, tmp_path / f"into-{number}")


async def test_another_worker_s_base_is_used_too(tmp_path: Path) -> None:
    """After a restore with fewer workers, or where what a rank has moved to another."""
    objects = MemoryObjects()
    staged = replica(tmp_path / "staging", 1)
    await put(ChunkStore(objects, meet_s=0.01), staged, a_manifest(worker=1, workers=2))
    here = replica(tmp_path / "staging", 0, action="a2")
    about = a_manifest("a2", worker=0, workers=2)
    stored = await put(ChunkStore(objects, meet_s=0.01), here, about, base="a1")
    assert stored.dumped_bytes - stored.shared_bytes < (OWN_PAGES + 100) * PAGE


@pytest.mark.parametrize("harm", ["missing", "truncated", "manifest gone", "manifest damaged"])
async def test_a_base_that_is_not_whole_is_not_relied_on(tmp_path: Path, harm: str) -> None:
    root = tmp_path / "store"
    await steps(tmp_path, ChunkStore(DirectoryObjects(root)), 1)
    pack = next((root / "llm/a0/packs").iterdir())
    if harm == "missing":
        pack.unlink()
    elif harm == "truncated":
        pack.write_bytes(pack.read_bytes()[:-1])
    elif harm == "manifest gone":
        (root / "llm/a0/0/manifest").unlink()
    else:
        flip(root / "llm/a0/0/manifest")
    staged = stage(tmp_path / "staging", action="a9")
    (staged / "images/pages-1.img").write_bytes(pages(1, SAME_PAGES))
    store = ChunkStore(DirectoryObjects(root))
    stored = await put(store, staged, a_manifest("a9"), base="a0")
    if harm != "truncated":
        assert stored.shared_bytes == 0
    await fetch(store, stored, tmp_path / "into")
    same(staged, tmp_path / "into")
    assert await store.verify(stored.place, stored.digest, progress=_quiet, deadline_s=S) == ()


def _quiet(done: int, total: int) -> None:
    pass


async def test_what_a_later_snapshot_needs_is_not_collected(tmp_path: Path) -> None:
    store = memory()
    made = await steps(tmp_path, store, 4)
    last = Kept(made[3][1].place, made[3][1].digest)
    await store.collect("llm", ["a0", "a1", "a2"], [last], dry_run=False, deadline_s=S)
    fresh = ChunkStore(store.objects)
    await fetch(fresh, made[3][1], tmp_path / "into")
    same(made[3][0], tmp_path / "into")
    assert await fresh.verify(last.place, last.digest, progress=_quiet, deadline_s=S) == ()
    assert await store.actions("llm", deadline_s=S) == ("a0", "a1", "a2", "a3")  # packs of each
    await store.collect("llm", ["a0", "a1", "a2", "a3"], [], dry_run=False, deadline_s=S)
    assert not [name for name, _ in fresh.objects.objects.items()]  # type: ignore[attr-defined]


async def test_two_jobs_in_one_store_do_not_touch_each_other(tmp_path: Path) -> None:
    objects = MemoryObjects()
    stored = {}
    for job in ("llm", "llm-2"):
        staged = stage(tmp_path / job)
        (staged / "images/pages-1.img").write_bytes(pages(1, SAME_PAGES))
        stored[job] = await put(ChunkStore(objects), staged, a_manifest(job=job))
        assert stored[job].shared_bytes == 0
    store = ChunkStore(objects)
    await store.collect("llm", ["a1"], [], dry_run=False, deadline_s=S)
    assert all(name.startswith("llm-2/") for name in objects.objects)
    await fetch(store, stored["llm-2"], tmp_path / "into")
    same(tmp_path / "llm-2/llm/0/a1", tmp_path / "into")


# -- limits ----------------------------------------------------------------------------------------


async def test_two_puts_of_one_worker_never_both_publish(tmp_path: Path) -> None:
    """A shim that came back, and its earlier life that was thought dead."""
    objects, gate = MemoryObjects(), threading.Barrier(2, timeout=20)

    def together(method: str, name: str) -> None:
        if method == "put" and name.endswith("/manifest"):
            gate.wait()

    objects.before = together
    staged = replica(tmp_path / "staging", 0)
    results = await asyncio.gather(
        *(put(ChunkStore(objects), staged) for _ in range(2)), return_exceptions=True
    )
    (won,) = [each for each in results if isinstance(each, Stored)]
    (lost,) = [each for each in results if isinstance(each, Exception)]
    assert "exists already" in str(lost)
    objects.before = lambda method, name: None
    await fetch(ChunkStore(objects), won, tmp_path / "into")
    same(staged, tmp_path / "into")
