"""Whether the image store holds what a snapshot says, seen without allstop's own restore."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from coordinator.core.model import Snapshot, WorkerRecord
from worker_shim.criu.images import read_dump_stats

CHUNK_BYTES = 1 << 22


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
        _check_worker(store / worker.manifest, worker, checked)
    return checked


def _check_worker(place: Path, worker: WorkerRecord, checked: Checked) -> None:
    who = f"worker {worker.worker}"
    try:
        encoded = (place / "manifest.json").read_bytes()
    except OSError as error:
        checked.wrong.append(f"{who} has no manifest: {error}")
        return
    if blake3(encoded).hexdigest() != worker.manifest_digest:
        checked.wrong.append(f"{who} has another manifest than was committed")
        return
    for file in json.loads(encoded)["files"]:
        path = place / file["name"]
        if not path.is_file() or _digest(path) != file["digest"]:
            checked.wrong.append(f"{file['name']} of {who} is not what was committed")
        checked.bytes += int(file["size_bytes"])
    frozen_us, _ = read_dump_stats(place / "images")
    checked.dump_s[worker.worker] = frozen_us / 1e6


def _digest(path: Path) -> str:
    hasher = blake3()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
    return str(hasher.hexdigest())


def state_in(value: bytes) -> str:
    """The state of an attempt or restore as it stands in etcd, without its prefix."""
    text = str(json.loads(value).get("state", ""))
    return text.removeprefix("ATTEMPT_STATE_").removeprefix("RESTORE_STATE_")
