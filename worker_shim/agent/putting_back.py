"""Files of a worker in the words of records: what a snapshot keeps, what a restore did."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coordinator.api.words import bytes_text
from coordinator.core.errors import DriverError
from coordinator.core.failures import listed
from coordinator.core.files import FileBack, FileKept
from coordinator.core.model import Finding, Severity
from worker_shim.agent.worker import Worker
from worker_shim.criu.port import NamedFile
from worker_shim.files.keeping import Keep
from worker_shim.files.places import ROLES
from worker_shim.files.port import Expected, OpenFile, Put
from worker_shim.images.port import Manifest
from worker_shim.images.staging import FILES, IMAGES

PARTIAL_MAX = 4  # in the record of one of perhaps a thousand workers
TOLD_MAX = 64
NAMED_MAX = 3
KERNEL = ("/proc/", "/sys/", "/dev/")  # the node's own; /dev/shm is in the manifest or an image
WHAT = {
    "cut": "its end, {} bytes, is kept as",
    "replaced": "it was rewritten; the newer one, {} bytes, is kept as",
    "before": "of an earlier restore {} bytes are kept as",
    "hole": "made anew with a hole of {} bytes, which were not kept",
}


def findings(expected: Expected) -> list[Finding]:
    """What somebody should know before the job is saved: a file that would not be kept whole."""
    if not expected.partial:
        return []
    names = [
        f"{file.path} ({bytes_text(file.size_bytes)}, {_kept_text(_kept(file))}"
        f"{f': {file.why}' if file.why else ''})"
        for file in expected.partial
    ]
    text = (
        f"not whole in a snapshot: {listed(names, NAMED_MAX)}; a node without such a file gets a "
        "hole for what is missing, or refuses the restore where only the size is known"
    )
    return [Finding(Severity.WARN, "files_partial", text)]


def recorded(files: Iterable[OpenFile]) -> dict[str, Any]:
    """What a worker's record says of the files of its cut."""
    contents = [file for file in files if file.role not in ROLES]
    partial = [file for file in contents if file.keeps is not Keep.COPY and file.size_bytes]
    return {
        "files": len(contents),
        "partial_files": tuple(
            FileKept(file.path, file.size_bytes, _kept(file), file.why)
            for file in partial[:PARTIAL_MAX]
        ),
    }


def check(worker: Worker, manifest: Manifest, place: Path) -> None:
    """Every file that the restore puts back or opens, before anything of the old run is touched.

    Reads files, so it is for a thread. Raises DriverError naming each that is not as it must be.
    """
    try:
        worker.drivers.files.check(manifest.open_files, place / FILES)
        missing = lacking(worker.drivers.images.files(place / IMAGES), manifest.open_files)
    except DriverError as error:
        where = worker.where
        raise error.at(job=where.job, worker=where.worker, node=where.node) from None
    if missing:
        more = f" (and {len(missing) - 1} more files)" if len(missing) > 1 else ""
        raise DriverError(
            f"{missing[0]}{more}",
            where=worker.where,
            advice="the job had it open for reading: put it there as on the node where the job was "
            "saved, or restore on a node that has it",
            details=tuple(missing[:TOLD_MAX]),
        )


def lacking(named: Iterable[NamedFile], put_back: Iterable[OpenFile]) -> list[str]:
    """What is wrong with the files that a restore opens and that nobody puts back, one each."""
    known = {file.path for file in put_back}
    return [
        trouble
        for file in named
        if file.path.startswith("/") and not (file.made or file.path in known)
        if not file.path.startswith(KERNEL) and (trouble := _trouble(file))
    ]


def put_back(worker: Worker, manifest: Manifest, place: Path) -> tuple[Put, ...]:
    """Roll every file back; what a crash leaves, the next call brings to the same end."""
    return worker.drivers.files.roll_back(
        manifest.open_files, place / FILES, label=manifest.action, by=f"-{worker.worker}"
    )


def told(worker: Worker, put: tuple[Put, ...]) -> tuple[tuple[FileBack, ...], int]:
    """What was done to files as the record has it, and how many have no room there."""
    node = worker.where.node
    files = tuple(
        FileBack(worker.worker, node, each.path, each.what, each.aside, each.size_bytes)
        for each in put[:TOLD_MAX]
    )
    return files, len(put[TOLD_MAX:])


def counted(put: tuple[Put, ...]) -> str:
    """One sentence of all of them."""
    aside = sum(each.what in ("cut", "replaced") for each in put)
    holes = [each.path for each in put if each.what == "hole"]
    made = f", made anew with a hole: {listed(holes, NAMED_MAX)}" if holes else ""
    return f"{aside} files kept aside{made}"


def sentence(put: Put) -> str:
    """One of them, for people."""
    return f"{put.path}: {WHAT[put.what].format(put.size_bytes)} {put.aside}".rstrip()


def _kept(file: OpenFile) -> int:
    return 0 if file.keeps is Keep.NONE else file.size_bytes - file.kept_from


def _kept_text(kept_bytes: int) -> str:
    return f"only its last {bytes_text(kept_bytes)}" if kept_bytes else "only its size"


def _trouble(file: NamedFile) -> str:
    """Why a restore could not open a file that the job reads; empty: it can, as far as is seen.

    One that is longer may be another worker's, whose shim cuts it back before the tree returns.
    """
    try:
        status = os.stat(file.path)
    except OSError as error:
        return f"{file.path} is missing on this node: {error.strerror}"
    if status.st_size < file.size_bytes:
        return (
            f"{file.path} is {status.st_size} bytes long on this node and was {file.size_bytes} at "
            "the checkpoint"
        )
    return ""
