"""Real images as snapshots: in a real store, with records that a fake service gives to the CLI."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

from allstop.v1 import operator_pb2, records_pb2

from coordinator.codec import to_proto
from coordinator.core.model import (
    Cut,
    Gpu,
    GpuHeld,
    ProgramFile,
    RankState,
    Snapshot,
    WorkerRecord,
)
from tests.integration.reading.kit import Dumped
from worker_shim.files.port import OpenFile
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.objects.directory import DirectoryObjects
from worker_shim.images.port import Manifest

GPU = Gpu(0, "GPU-11111111-2222", "NVIDIA H200", 150 << 30, 149 << 30, "00000000:17:00.0")
COMMITTED_UNIX_S = 1_796_000_000.0


def put(store: ChunkStore, dumped: Dumped, identity: str, *, step: int = 7) -> Snapshot:
    """Store a dump as worker 0 of a snapshot of job `llm`; returns the record."""
    staged = dumped.images.parent
    (staged / "files").mkdir(exist_ok=True)
    (staged / "files" / "file-0").write_bytes(b"kept words\n")
    log = OpenFile(str(dumped.directory / "log"), 11, 0o644, "file-0", "log")
    manifest = Manifest(
        version=1, job="llm", worker=0, action=identity, incarnation=1, root_pid=dumped.root,
        files=(), open_files=(log,), page={}, slots=(), workers=1, command=("many.py",),
        run_directory="/run/allstop",
    )  # fmt: skip
    stored = asyncio.run(store.put(staged, manifest, progress=lambda *_: None, deadline_s=60.0))
    worker = record_of(dumped, store.identity, stored.place, stored.digest, step)
    return Snapshot(
        snapshot=identity, job="llm", epoch=9, incarnation=1, world_size=2, step=step,
        cut=Cut.STEP, workers=(worker,), image_bytes=worker.image_bytes, digest="d" * 64,
        committed_unix_s=COMMITTED_UNIX_S,
    )  # fmt: skip


def root_of(store: ChunkStore) -> Path:
    """Where it lies."""
    assert isinstance(store.objects, DirectoryObjects)
    return store.objects.root


def fetched(store: ChunkStore, snapshot: Snapshot, into: Path) -> Path:
    """The images of worker 0, brought into a folder."""
    into.mkdir(parents=True)
    worker = snapshot.workers[0]
    fetching = store.fetch(
        worker.manifest, worker.manifest_digest, into, progress=lambda *_: None, deadline_s=60.0
    )
    asyncio.run(fetching)
    return into


def record_of(dumped: Dumped, store: str, place: str, digest: str, step: int) -> WorkerRecord:
    """What the shim would have said of it; the child has a GPU."""
    return WorkerRecord(
        job="llm", worker=0, node="node-0", address="10.0.0.2", root_pid=dumped.root,
        highest_pid=dumped.child,
        ranks=(RankState(0, 0, dumped.root, step), RankState(1, 1, dumped.child, step)),
        image_bytes=sum(path.stat().st_size for path in dumped.images.iterdir()),
        memory_bytes=1 << 24, manifest=place, manifest_digest=digest, connections=(),
        programs=(ProgramFile("/usr/bin/python3", 17, "ab" * 32),), architecture="x86_64",
        cpu_flags=(), kernel=os.uname().release, criu_version="4.2.1", store=store, held_ms=0,
        dump_ms=80, command=("torchrun", "many.py"), gpus=(GPU,), gpu_pids=(dumped.child,),
        gpu_bytes=5 << 20, gpu_driver="580.95.05", cuda_version="13.0", nccl="rebuild",
        versions=("torch 2.13.0", "nccl 2.30.7"), gpu_held=(GpuHeld(GPU.uuid, 5 << 20),),
    )  # fmt: skip


def shown(snapshot: Snapshot) -> operator_pb2.ShowReply:
    """The service's answer."""
    return operator_pb2.ShowReply(snapshot=to_proto(snapshot, records_pb2.Snapshot))


def later(snapshot: Snapshot) -> Snapshot:
    """The same a while later on another kernel, with another torch and a rebuilt script."""
    [worker] = snapshot.workers
    changed = replace(
        worker,
        kernel="6.99.0",
        versions=("torch 2.14.0", "nccl 2.30.7"),
        programs=(ProgramFile("/usr/bin/python3", 17, "cd" * 32),),
    )
    return replace(snapshot, workers=(changed,))


def left_in(folder: Path) -> list[str]:
    """What a command has left there."""
    return sorted(path.name for path in folder.iterdir())


def until_fetched(folder: Path, deadline_s: float = 20.0) -> None:
    """Wait until a command has begun to fetch into a folder below this one."""
    end = time.monotonic() + deadline_s
    while not any(folder.glob("allstop-*/images/*")):
        assert time.monotonic() < end, "nothing was fetched"
        time.sleep(0.002)
