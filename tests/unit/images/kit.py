"""What tests of image stores share: a worker's staged files, stores, and damage."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from blake3 import blake3

from worker_shim.files.port import OpenFile
from worker_shim.images import manifest
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.objects.directory import DirectoryObjects
from worker_shim.images.objects.memory import MemoryObjects
from worker_shim.images.port import ImageStore, Manifest, Stored, StoredFile
from worker_shim.images.staging import Staging, listed

PAGE = 4096
S = 30.0


def a_manifest(
    action: str = "a1", *, job: str = "llm", worker: int = 0, workers: int = 1
) -> Manifest:
    return Manifest(
        version=manifest.VERSION,
        job=job,
        worker=worker,
        action=action,
        incarnation=1,
        root_pid=1000,
        files=(),
        open_files=(OpenFile("/tmp/log", 10, 0o644, "file-0", "log"),),
        page={"hold": 3, "target": 12},
        slots=({"slot": 0, "pid": 1002},),
        workers=workers,
        command=("python", "train.py"),
        run_directory="/run/allstop/llm/0",
    )


def quiet(done: int, total: int) -> None:
    assert done <= total


def stage(root: Path, *, action: str = "a1", worker: int = 0, job: str = "llm") -> Path:
    """An empty place in staging, with a small image and an empty file."""
    place = Staging(root, "n0").create(job, worker, action, need_bytes=1)
    (place / "images/core-1.img").write_bytes(b"core")
    (place / "files/file-0").write_bytes(b"")
    return place


def directory(root: Path, node: str = "n0", **more: object) -> ChunkStore:
    return ChunkStore(DirectoryObjects(root, node), **more)  # type: ignore[arg-type]


def memory(**more: object) -> ChunkStore:
    return ChunkStore(MemoryObjects(), **more)  # type: ignore[arg-type]


async def put(
    store: ImageStore, staged: Path, about: Manifest | None = None, *, base: str = "", s: float = S
) -> Stored:
    about = about or a_manifest()
    return await store.put(staged, about, base=base, progress=quiet, deadline_s=s)


async def fetch(store: ImageStore, stored: Stored, into: Path, *, s: float = S) -> Manifest:
    await asyncio.to_thread(into.mkdir)
    return await store.fetch(stored.place, stored.digest, into, progress=quiet, deadline_s=s)


def same(staged: Path, into: Path) -> None:
    """Every file, byte for byte."""
    assert listed(staged).keys() == {
        str(path.relative_to(into)) for path in into.rglob("*") if path.is_file()
    }
    for name in listed(staged):
        assert (staged / name).read_bytes() == (into / name).read_bytes(), name


def pages(seed: int, count: int) -> bytes:
    """Pages that do not compress, the same for the same seed."""
    return np.random.default_rng(seed).bytes(count * PAGE)


def put_version_1(root: Path, staged: Path, about: Manifest) -> Stored:
    """What allstop wrote before chunks: whole files and a manifest in JSON."""
    place = f"{about.job}/{about.action}/{about.worker}"
    files = []
    for name, size in listed(staged).items():
        data = (staged / name).read_bytes()
        path = root / place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        files.append(StoredFile(name, size, str(blake3(data).hexdigest())))
    encoded = manifest.encode(replace(about, files=tuple(files)))
    (root / place / manifest.FILE_NAME).write_bytes(encoded)
    total = sum(file.size_bytes for file in files)
    return Stored(place, manifest.digest_of(encoded), total, total, 0)


def flip(path: Path, at: int | None = None) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 if at is None else at)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "flipped": flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "missing": lambda path: path.unlink(),
}
