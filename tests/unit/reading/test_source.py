"""Images come from any store behind the port, and go again however the reader ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.core.errors import BadRequest, DriverError
from coordinator.core.model import WorkerRecord
from worker_shim.images.fake import FakeImageStore
from worker_shim.images.port import Manifest
from worker_shim.reading.source import PlainImages, StoredImages


def a_record(store: FakeImageStore, tmp_path: Path) -> WorkerRecord:
    staged = tmp_path / "staged"
    (staged / "images").mkdir(parents=True)
    (staged / "images" / "pstree.img").write_bytes(b"a tree")
    manifest = Manifest(1, "llm", 3, "llm-1", 1, 9, (), (), {}, (), 4, ("train",), "/run/allstop")
    stored = asyncio.run(store.put(staged, manifest, progress=lambda *_: None, deadline_s=5.0))
    return WorkerRecord(
        job="llm", worker=3, node="n0", address="", root_pid=9, highest_pid=9, ranks=(),
        image_bytes=6, memory_bytes=0, manifest=stored.place, manifest_digest=stored.digest,
        connections=(), programs=(), architecture="", cpu_flags=(), kernel="", criu_version="",
        store=store.identity, held_ms=0, dump_ms=0,
    )  # fmt: skip


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def test_what_is_fetched_is_there_and_goes_again(tmp_path: Path, scratch: Path) -> None:
    store = FakeImageStore()
    told: list[tuple[int, int]] = []
    record = a_record(store, tmp_path)
    source = StoredImages(store, [record], deadline_s=5.0, say=lambda *each: told.append(each))
    assert source.workers == (3,)
    with source.worker(3) as held:
        assert held.directory.parent == scratch
        assert held.directory.stat().st_mode & 0o777 == 0o700
        assert (held.directory / "images" / "pstree.img").read_bytes() == b"a tree"
        assert (held.worker, held.record) == (3, record)
        assert held.manifest is not None
        assert held.manifest.command == ("train",)
    assert list(scratch.iterdir()) == []
    assert told == [(3, 6)]


@pytest.mark.parametrize("end", [DriverError("damaged"), KeyboardInterrupt(), OSError("full")])
def test_it_goes_however_the_reader_ends(tmp_path: Path, scratch: Path, end: BaseException) -> None:
    store = FakeImageStore()
    source = StoredImages(store, [a_record(store, tmp_path)], deadline_s=5.0)
    with pytest.raises(type(end)), source.worker(3):
        raise end
    assert list(scratch.iterdir()) == []


def test_a_failed_fetch_names_the_worker_and_the_store(tmp_path: Path, scratch: Path) -> None:
    store = FakeImageStore()
    record = a_record(store, tmp_path)
    other = FakeImageStore(identity="another")
    with (
        pytest.raises(DriverError) as raised,
        StoredImages(other, [record], deadline_s=5.0).worker(3),
    ):
        pytest.fail("there is nothing to read")
    assert raised.value.where.worker == 3
    assert "the images are in another store, fake-store" in raised.value.details
    store.failure = DriverError("unreachable")
    with (
        pytest.raises(DriverError) as raised,
        StoredImages(store, [record], deadline_s=5.0).worker(3),
    ):
        pytest.fail("there is nothing to read")
    assert raised.value.details == ()
    assert list(scratch.iterdir()) == []


def test_only_workers_that_there_are(tmp_path: Path) -> None:
    store = FakeImageStore()
    source = StoredImages(store, [a_record(store, tmp_path)], deadline_s=5.0)
    with pytest.raises(BadRequest, match="there is no worker 0"), source.worker(0):
        pytest.fail("there is nothing to read")
    for name in ("0", "11"):
        (tmp_path / "plain" / name).mkdir(parents=True)
        (tmp_path / "plain" / name / "pstree.img").touch()
    plain = PlainImages(tmp_path / "plain")
    assert plain.workers == (0, 11)
    assert PlainImages(tmp_path / "plain" / "11").workers == (11,)
    with pytest.raises(BadRequest, match="has no images"):
        PlainImages(tmp_path / "nowhere")
