"""Whole images through chunks over a real S3 server and over a ring of partners, encrypted too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from tests.integration.objects.ring import Nodes, nodes_in
from tests.support.certificates import Certificates
from tests.support.s3.server import BUCKET, S3Server, serving, use
from tests.unit.images.kit import S, a_manifest, fetch, pages, put, quiet, same, stage
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.objects.cloud import CloudStore
from worker_shim.images.port import Kept
from worker_shim.images.sealing import MasterKey, sealing_of

KEY = MasterKey(bytes(range(32)))
Open = Callable[[str], ChunkStore]  # as the shim of a node


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture(params=["s3", "partner"])
def opened(
    request: pytest.FixtureRequest, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    use(monkeypatch, s3.endpoint)
    with nodes_in(tmp_path, Certificates(tmp_path / "certificates")) as nodes:
        yield (
            over_partners(nodes)
            if request.param == "partner"
            else lambda _: sealed(CloudStore(f"s3://{BUCKET}/{tmp_path.name}"))
        )


def sealed(objects: CloudStore) -> ChunkStore:
    return ChunkStore(objects, sealing=sealing_of(objects, KEY))


def over_partners(nodes: Nodes) -> Open:
    keepers = [nodes.keeper(node, key=KEY.secret.hex()) for node in ("b", "c")]

    def open_as(node: str) -> ChunkStore:
        objects = nodes.store(node, keepers)
        return ChunkStore(objects, sealing=sealing_of(objects, KEY))

    return open_as


def staged(tmp_path: Path, action: str, seed: int) -> Path:
    place = stage(tmp_path / "staging", action=action)
    content = pages(1, 1500) + bytes(64 * 4096) + pages(seed, 100)
    (place / "images/pages-1.img").write_bytes(content)
    return place


async def test_images_are_stored_shared_brought_elsewhere_and_cleaned(
    opened: Open, tmp_path: Path
) -> None:
    store, first, second = opened("a"), staged(tmp_path, "a1", 2), staged(tmp_path, "a2", 3)
    one = await put(store, first)
    two = await put(store, second, a_manifest("a2"), base="a1")
    assert two.stored_bytes < one.stored_bytes / 5
    other = opened("other")
    assert await other.actions("llm", deadline_s=S) == ("a1", "a2")
    for taken, files in ((one, first), (two, second)):
        await fetch(other, taken, tmp_path / f"into-{files.name}-{taken.digest[:4]}")
        same(files, tmp_path / f"into-{files.name}-{taken.digest[:4]}")
        assert await other.verify(taken.place, taken.digest, progress=quiet, deadline_s=S) == ()

    kept = Kept(two.place, two.digest)
    gone = await other.collect("llm", ["a1"], [kept], dry_run=False, deadline_s=S)
    assert gone.objects > 0
    await fetch(opened("third"), two, tmp_path / "still")  # its base is gone, what it needs is not
    same(second, tmp_path / "still")
    with pytest.raises(DriverError):
        await other.manifest(one.place, one.digest, deadline_s=S)
    await other.collect("llm", ["a1", "a2"], [], dry_run=False, deadline_s=S)
    assert await other.actions("llm", deadline_s=S) == ()
