"""What is written beside exported images: names that container tools know, and ours.

`org.criu.checkpoint.*` are those of checkpointctl's `lib/annotations.go`; `io.container.manager`
decides how it reads the rest: as podman's, whose layout this is.
"""

from __future__ import annotations

from coordinator.core.model import Snapshot, WorkerRecord
from worker_shim.reading.worker import WorkerView

MANAGER = {"io.container.manager": "libpod"}
THEIRS, OURS = "org.criu.checkpoint", "allstop"


def annotations_of(view: WorkerView, snapshot: Snapshot | None, version: str) -> dict[str, str]:
    """All that is known; what is not is left out. `version`: of allstop."""
    found = {
        **MANAGER,
        f"{THEIRS}.engine.name": "allstop",
        f"{THEIRS}.engine.version": version,
        f"{THEIRS}.runtime.name": "criu",
        f"{OURS}.worker": str(view.worker),
        f"{OURS}.processes": str(len(view.processes)),
        f"{OURS}.memory.bytes": str(view.dumped_bytes),
    }
    if snapshot is not None:
        found |= _of_snapshot(snapshot)
    if view.record is not None:
        found |= _of_record(view.record)
    return {name: text for name, text in found.items() if text}


def _of_snapshot(snapshot: Snapshot) -> dict[str, str]:
    return {
        f"{OURS}.snapshot": snapshot.snapshot,
        f"{OURS}.job": snapshot.job,
        f"{OURS}.workers": str(len(snapshot.workers)),
        f"{OURS}.world-size": str(snapshot.world_size),
        f"{OURS}.step": str(snapshot.step),
        f"{OURS}.cut": str(snapshot.cut),
        f"{OURS}.epoch": str(snapshot.epoch),
        f"{OURS}.incarnation": str(snapshot.incarnation),
        f"{OURS}.digest": snapshot.digest,
    }


def _of_record(record: WorkerRecord) -> dict[str, str]:
    found = {
        f"{THEIRS}.container.name": f"{record.job}-{record.worker}",
        f"{THEIRS}.runtime.version": record.criu_version,
        f"{THEIRS}.criu.version": record.criu_version,
        f"{THEIRS}.host.arch": record.architecture,
        f"{THEIRS}.host.kernel": record.kernel,
        f"{OURS}.node": record.node,
        f"{OURS}.address": record.address,
        f"{OURS}.manifest-digest": record.manifest_digest,
        f"{OURS}.ranks": ",".join(str(rank.rank) for rank in record.ranks),
        f"{OURS}.gpu.driver": record.gpu_driver,
        f"{OURS}.gpu.cuda": record.cuda_version,
        f"{OURS}.gpu.engine": record.gpu_engine,
        f"{OURS}.gpu.pids": ",".join(str(pid) for pid in record.gpu_pids),
        f"{OURS}.gpu.bytes": str(record.gpu_bytes) if record.gpu_pids else "",
        f"{OURS}.nccl": record.nccl,
        f"{OURS}.versions": ", ".join(record.versions),
    }
    for rank in record.ranks:
        found[f"{OURS}.rank.{rank.rank}"] = f"pid {rank.pid}, step {rank.boundary}"
    for gpu in record.gpus:
        found[f"{OURS}.gpu.{gpu.index}.uuid"] = gpu.uuid
        found[f"{OURS}.gpu.{gpu.index}.model"] = gpu.model
    return found
