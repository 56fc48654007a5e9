"""A worker that comes back where it was saved needs nothing of the store but the manifest."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.agent.rig import Rig
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.objects.memory import MemoryObjects


def with_chunks(rig: Rig) -> MemoryObjects:
    objects = MemoryObjects()
    drivers = replace(rig.drivers, store=ChunkStore(objects, meet_s=0.01))
    rig.agent.drivers = rig.worker.drivers = drivers
    return objects


def packs_read(objects: MemoryObjects) -> list[str]:
    return [name for method, name in objects.calls if method == "get" and "/packs/" in name]


async def test_a_restore_in_place_reads_no_pack(rig: Rig) -> None:
    objects = with_chunks(rig)
    saved = await rig.to("PERSIST")
    assert rig.staging.kept() == (("llm", 0, "a1"),)
    assert rig.free()
    objects.calls.clear()
    await rig.back_to("RELEASE", saved)
    assert packs_read(objects) == []
    assert rig.staging.kept() == (("llm", 0, "a1"),)  # for the next time


async def test_images_that_are_gone_come_from_the_store(rig: Rig) -> None:
    objects = with_chunks(rig)
    saved = await rig.to("PERSIST")
    rig.staging.drop_kept()
    objects.calls.clear()
    await rig.back_to("RELEASE", saved)
    assert packs_read(objects)


async def test_undo_leaves_neither_kept_images_nor_objects(rig: Rig) -> None:
    """As where another worker of the attempt failed after this one had stored everything."""
    objects = with_chunks(rig)
    await rig.to("PERSIST")
    assert objects.objects
    await rig.done("UNDO")
    assert objects.objects == {}
    assert rig.staging.kept() == ()
    assert not list(rig.staging.root.glob("*/*/*"))


async def test_the_end_of_the_shim_leaves_nothing_in_staging(rig: Rig) -> None:
    with_chunks(rig)
    await rig.to("PERSIST")
    await rig.agent.stop()
    assert not list(rig.staging.root.glob("*/*/*"))
