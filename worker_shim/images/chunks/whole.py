"""Manifest version 1: whole files with their digests, as allstop stored them before chunks."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from blake3 import blake3

from coordinator.core.errors import DriverError
from worker_shim.images.copying import CopyStopped
from worker_shim.images.names import inside
from worker_shim.images.objects.causes import store_error
from worker_shim.images.objects.port import ObjectMissing, ObjectStore
from worker_shim.images.port import Damage, Manifest, StoredFile
from worker_shim.images.priority import go_first, session_goes_first
from worker_shim.images.transfer import Transfer, run_all

PART_BYTES = 4 << 20
THREADS = 8

Write = Callable[[bytes], object]


def fetch(
    objects: ObjectStore, place: str, manifest: Manifest, into: Path, job: Transfer
) -> Manifest:
    """Copy every file to `into`; raises DriverError naming the one that is missing or differs."""
    job.total_bytes = sum(file.size_bytes for file in manifest.files)
    works = [partial(_bring, objects, place, file, into, job) for file in manifest.files]
    with session_goes_first():
        run_all(works, job, threads=THREADS, begin=go_first)
    return manifest


def verify(
    objects: ObjectStore, place: str, manifest: Manifest, job: Transfer
) -> tuple[Damage, ...]:
    """Hash every file again; no two places share anything of this version."""
    job.total_bytes = sum(file.size_bytes for file in manifest.files)
    damaged = []
    for file in manifest.files:
        name = f"{place}/{file.name}"
        try:
            found = _read(objects, name, file, lambda part: None, job)
        except ObjectMissing:
            damaged.append(Damage(name, "missing", file.name))
            continue
        if found != file:
            truncated = found.size_bytes < file.size_bytes
            what = "truncated" if truncated else "other bytes than were committed"
            damaged.append(Damage(name, what, file.name))
    return tuple(damaged)


def _bring(objects: ObjectStore, place: str, file: StoredFile, into: Path, job: Transfer) -> None:
    target = inside(into, file.name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(target, flags, 0o600), "wb", buffering=0) as writer:
            found = _read(objects, f"{place}/{file.name}", file, _writing(writer.fileno()), job)
            os.ftruncate(writer.fileno(), file.size_bytes)
    except ObjectMissing as error:
        raise DriverError(
            f"{file.name} of the snapshot is missing in the image store",
            advice="the image store is damaged; restore an older snapshot",
        ) from error
    except OSError as error:
        raise store_error(error, into) from error
    if found != file:
        raise DriverError(
            f"{file.name} in the image store is not what was committed",
            advice="the image store is damaged; restore an older snapshot",
            details=(
                f"expected {file.size_bytes} bytes, blake3 {file.digest}",
                f"found {found.size_bytes} bytes, blake3 {found.digest}",
            ),
        )


def _writing(descriptor: int) -> Write:
    def write(part: bytes) -> None:
        if not part.strip(b"\0"):
            os.lseek(descriptor, len(part), os.SEEK_CUR)
            return
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    return write


def _read(
    objects: ObjectStore, name: str, file: StoredFile, write: Write, job: Transfer
) -> StoredFile:
    """The file as it is now; not more than a part longer than it should be."""
    hasher, at = blake3(), 0
    while True:
        if job.stop.is_set():
            raise CopyStopped
        part = objects.get(name, start=at, length=PART_BYTES)
        hasher.update(part)
        write(part)
        at += len(part)
        if at <= file.size_bytes:
            job.advance(len(part))
        if len(part) < PART_BYTES or at > file.size_bytes:
            return StoredFile(file.name, at, str(hasher.hexdigest()))
