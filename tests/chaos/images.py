"""Whether the image store holds what a snapshot says, seen without allstop's own restore."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from blake3 import blake3

from coordinator.core.errors import DriverError
from coordinator.core.model import Snapshot, WorkerRecord
from worker_shim.criu.images import read_dump_stats
from worker_shim.images.chunks.layout import Layout
from worker_shim.images.chunks.packs import NotPacked
from worker_shim.images.chunks.reading import ChunkReader, find_manifest, reads
from worker_shim.images.objects.directory import DirectoryObjects
from worker_shim.images.port import Manifest
from worker_shim.images.sealing import Open

STATS = "images/stats-dump"


@dataclass
class Checked:
    """What was found.

    Attributes:
        wrong: sentences.
        dump_s: by worker, how long its CRIU had the tree, by CRIU's own statistics.
    """

    wrong: list[str] = field(default_factory=list)
    dump_s: dict[int, float] = field(default_factory=dict)
    bytes: int = 0


def check(store: Path, snapshot: Snapshot) -> Checked:
    """Hash every byte of a snapshot. Blocks."""
    checked = Checked()
    for worker in snapshot.workers:
        _check_worker(DirectoryObjects(store), worker, checked)
    return checked


def _check_worker(objects: DirectoryObjects, worker: WorkerRecord, checked: Checked) -> None:
    who = f"worker {worker.worker}"
    try:
        encoded = objects.get(f"{worker.manifest}/manifest")
    except DriverError as error:
        checked.wrong.append(f"{who} has no manifest: {error}")
        return
    if blake3(encoded).hexdigest() != worker.manifest_digest:
        checked.wrong.append(f"{who} has another manifest than was committed")
        return
    place, digest = worker.manifest, worker.manifest_digest
    manifest, layout = find_manifest(objects, place, digest, Open())
    assert layout is not None
    stats = _read(objects, layout, manifest, who, checked)
    checked.bytes += sum(file.size_bytes for file in manifest.files)
    with tempfile.TemporaryDirectory() as room:
        (Path(room) / "stats-dump").write_bytes(stats)
        frozen_us, _ = read_dump_stats(Path(room))
    checked.dump_s[worker.worker] = frozen_us / 1e6


def _read(
    objects: DirectoryObjects, layout: Layout, manifest: Manifest, who: str, checked: Checked
) -> bytes:
    """Read every chunk; returns CRIU's statistics, which are less than one."""
    names = [file.name for file in manifest.files]
    begin, end = layout.spans()[names.index(STATS)]
    assert end - begin == 1, "the statistics are a few bytes"
    wanted, stats = int(layout.chunk[begin]), b""
    reader = ChunkReader(objects, layout, Open())
    for read in reads(layout, np.arange(len(layout.digests))):
        for chunk, data in reader.chunks(read):
            if isinstance(data, NotPacked):
                checked.wrong.append(f"a chunk of {who} in {read.pack} is {data}")
            elif chunk == wanted:
                stats = bytes(data)
    return stats


def state_in(value: bytes) -> str:
    """The state of an attempt or restore as it stands in etcd, without its prefix."""
    text = str(json.loads(value).get("state", ""))
    return text.removeprefix("ATTEMPT_STATE_").removeprefix("RESTORE_STATE_")
