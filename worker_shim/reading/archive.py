"""One worker as the tar that container engines write of a checkpoint, for their tools to read.

    config.dump spec.dump       what the container was; here: the worker
    checkpoint/                 CRIU's images
    stats-dump dump.log         CRIU's account of the dump
    allstop/                    ours: manifest, records, files that were kept beside the images

The layout is that of podman, as `checkpointctl` reads it (its `lib/metadata.go`). It can be looked
at with their tools; a container it is not, and no engine can start it: a worker's root file system
is its node's. Equal snapshots give equal tars. The images are the very bytes of the store but for
the pagemaps, in which the tools of today look for counts in a field that CRIU 4.2 leaves at zero.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from coordinator.core.errors import SetupError
from coordinator.core.model import Snapshot
from worker_shim.criu.pages import for_old_readers
from worker_shim.images import manifest as manifests
from worker_shim.images.staging import FILES, listed
from worker_shim.reading.annotations import annotations_of
from worker_shim.reading.source import Held
from worker_shim.reading.worker import WorkerView, images_in

CONFIG, SPEC, CHECKPOINT, OURS = "config.dump", "spec.dump", "checkpoint", "allstop"
PAGEMAP = "pagemap-"
AT_THE_TOP = ("stats-dump", "dump.log")
OCI_VERSION = "1.0.2"
COPY_BYTES = 1 << 20


def archive_name(view: WorkerView, snapshot: Snapshot | None) -> str:
    """What the tar of a worker is called."""
    return f"{snapshot.snapshot if snapshot else 'images'}-worker-{view.worker}.tar"


def write_archive(
    held: Held, view: WorkerView, snapshot: Snapshot | None, into: Path, *, version: str
) -> Path:
    """Write the tar of one worker into a directory; return where it is.

    `version`: of allstop. The tar takes its name when it is whole; a crash leaves NAME.partial,
    which the next call overwrites. Raises SetupError when it cannot be written.
    """
    whole = into / archive_name(view, snapshot)
    partial = whole.with_name(f"{whole.name}.partial")
    try:
        with (
            open(partial, "wb", opener=_private) as out,
            tarfile.TarFile(
                fileobj=out, mode="w", format=tarfile.PAX_FORMAT, copybufsize=COPY_BYTES
            ) as tar,
        ):
            moment = int(snapshot.committed_unix_s) if snapshot else 0
            for name, content in _written(held, view, snapshot, version):
                _add(tar, name, len(content), io.BytesIO(content), moment)
            _add_directory(tar, CHECKPOINT, moment)
            for name, path in _copied(held):
                if Path(name).name.startswith(PAGEMAP):
                    content = for_old_readers(path)
                    _add(tar, name, len(content), io.BytesIO(content), moment)
                    continue
                with open(path, "rb") as source:
                    _add(tar, name, os.fstat(source.fileno()).st_size, source, moment)
        os.replace(partial, whole)
    except OSError as error:
        raise SetupError(
            f"cannot write {whole}: {error.strerror or error}",
            advice="the tar of a worker is as large as its images",
        ) from error
    finally:
        with suppress(OSError):  # the tar has its own name by now, or the error is told
            partial.unlink()
    return whole


def _written(
    held: Held, view: WorkerView, snapshot: Snapshot | None, version: str
) -> Iterator[tuple[str, bytes]]:
    yield CONFIG, _json(_config(view, snapshot))
    yield SPEC, _json(_spec(view, snapshot, version))
    if snapshot is not None:
        yield f"{OURS}/snapshot.json", _json(asdict(snapshot))
    if held.manifest is not None:
        yield f"{OURS}/{manifests.FILE_NAME}", manifests.encode(held.manifest)


def _copied(held: Held) -> Iterator[tuple[str, Path]]:
    images = images_in(held.directory)
    for name in listed(images):
        yield (name if name in AT_THE_TOP else f"{CHECKPOINT}/{name}"), images / name
    if images != held.directory:
        for name in listed(held.directory / FILES):
            yield f"{OURS}/{FILES}/{name}", held.directory / FILES / name


def _config(view: WorkerView, snapshot: Snapshot | None) -> dict[str, object]:
    """Podman's own fields, those that are told of a container."""
    moment = _moment(snapshot.committed_unix_s if snapshot else 0)
    return {
        "id": _identity(view, snapshot),
        "name": f"{snapshot.job if snapshot else 'images'}-{view.worker}",
        "rootfsImageName": "none",  # its root is its node's
        "runtime": "criu",
        "createdTime": moment,
        "checkpointedTime": moment,
    }


def _spec(view: WorkerView, snapshot: Snapshot | None, version: str) -> dict[str, object]:
    """An OCI runtime specification; the environment is left to the images, where secrets may be."""
    root = view.processes[0]
    record = view.record
    arguments = (record.command if record else ()) or root.memory.command
    return {
        "ociVersion": OCI_VERSION,
        "process": {
            "args": list(arguments),
            "cwd": root.cwd,
            "user": {"uid": root.process.uid, "gid": root.process.gid},
        },
        "root": {"path": "/"},
        "hostname": record.node if record else "",
        "mounts": [],
        "annotations": annotations_of(view, snapshot, version),
    }


def _identity(view: WorkerView, snapshot: Snapshot | None) -> str:
    """As long as a container's id, and the same for the same images."""
    known = view.record.manifest_digest if view.record else str(view.image_bytes)
    text = f"{snapshot.snapshot if snapshot else ''} {view.worker} {known}"
    return hashlib.sha256(text.encode()).hexdigest()


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(int(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=True).encode()


def _add(tar: tarfile.TarFile, name: str, size: int, source: io.BufferedIOBase, at: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, at
    tar.addfile(member, source)


def _add_directory(tar: tarfile.TarFile, name: str, at: int) -> None:
    """Readers look for the entry of the directory itself."""
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o700, at
    tar.addfile(member)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
