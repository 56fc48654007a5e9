"""The chunk store on real images: what is shared, what comes back, and bad luck with them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from lab import Lab
from lab.host import DISK
from tests.integration.criu.kit import PROGRAMS, Node, until
from tests.unit.images.kit import (
    DAMAGE,
    a_manifest,
    directory,
    fetch,
    memory,
    put,
    put_version_1,
    same,
)  # fmt: skip
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.chunks.pagemap import seams
from worker_shim.images.port import Stored
from worker_shim.images.staging import listed

pytestmark = [pytest.mark.root, pytest.mark.criu]

OUT = DISK / "out"
LOG = DISK / "log"
SECONDS = {"deadline_s": 30.0}


@dataclass
class Dumped:
    """One tree, dumped twice with some steps between; as two workers' staging would have it."""

    node: Node
    root: int
    first: Path
    second: Path


@pytest.fixture(scope="module")
def dumped(criu_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dumped]:
    rooms = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    with (
        Lab(tmp_path_factory.mktemp("lab") / "lab", ["n0"]) as lab,
        closing(Node(lab.hosts["n0"], criu_path)) as node,
    ):
        argv = [sys.executable, str(PROGRAMS / "replicas.py"), str(OUT)]
        root = int(node.call("launch", argv, str(LOG)))
        lines = 0
        for room in rooms:
            lines += 20
            until(lambda lines=lines: _lines(node.here(OUT)) >= lines, "steps")
            node.call("stop", root)
            node.call("criu.dump", root, DISK / room.name, **SECONDS)
            node.call("go_on", root)
            shutil.copytree(node.here(DISK / room.name), room / "images")
        yield Dumped(node, root, *rooms)


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


async def test_each_byte_is_stored_once(dumped: Dumped, tmp_path: Path) -> None:
    store = memory()
    first = await put(store, dumped.first)
    second = await put(store, dumped.second, a_manifest("a2"), base="a1")
    share = first.stored_bytes / first.dumped_bytes
    print(f"dumped {first.dumped_bytes}, stored {first.stored_bytes}, {share:.2f}")
    print(f"dumped {second.dumped_bytes}, stored {second.stored_bytes}")
    assert first.dumped_bytes > 6 * (24 << 20)
    assert share < 0.35  # six processes hold the same 24 MiB
    assert second.stored_bytes < first.stored_bytes / 4
    for stored, room in ((first, dumped.first), (second, dumped.second)):
        into = tmp_path / room.name
        await fetch(ChunkStore(store.objects), stored, into)
        same(room, into)


def test_mappings_of_a_real_pagemap_are_seams(dumped: Dumped) -> None:
    found = seams(dumped.first)
    files = listed(dumped.first)
    assert len(found) >= 6
    for name, pages in found.items():
        assert name in files
        assert len(pages) > 3
        assert list(pages) == sorted(set(pages))
        assert pages[-1] < files[name] // 4096


async def test_what_comes_from_the_store_is_restored(dumped: Dumped) -> None:
    node, out = dumped.node, dumped.node.here(OUT)
    store = memory()
    stored = await put(store, dumped.first)
    into = Path(node.here(DISK / "back"))
    await fetch(ChunkStore(store.objects), stored, into)
    node.call("kill", dumped.root)
    before = _lines(out)
    assert node.call("criu.restore", DISK / "back/images", **SECONDS) == dumped.root
    node.call("go_on", dumped.root)
    await asyncio.to_thread(until, lambda: _lines(out) >= before + 5, "it goes on")


@pytest.mark.parametrize("damage", DAMAGE)
async def test_damage_is_named(dumped: Dumped, tmp_path: Path, damage: str) -> None:
    stored = await put(directory(tmp_path / "store"), dumped.first)
    pack = max((tmp_path / "store/llm/a1/packs").iterdir(), key=lambda path: path.stat().st_size)
    DAMAGE[damage](pack)
    with pytest.raises(
        DriverError, match=rf"images/.*: chunk [0-9a-f]+ in llm/a1/packs/{pack.name}"
    ):
        await fetch(directory(tmp_path / "store"), stored, tmp_path / "into")


async def test_a_full_disk_leaves_nothing(dumped: Dumped, tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    await asyncio.to_thread(subprocess.run, mount, check=True)
    try:
        with pytest.raises(DriverError, match="no room left"):
            await put(directory(place / "store"), dumped.first)
        assert sorted(os.listdir(place / "store")) == ["partial", "store.id"]
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", str(place)], check=True)


async def test_images_of_version_1_come_back(dumped: Dumped, tmp_path: Path) -> None:
    stored: Stored = put_version_1(tmp_path / "store", dumped.first, a_manifest())
    await fetch(directory(tmp_path / "store"), stored, tmp_path / "into")
    same(dumped.first, tmp_path / "into")
