"""One worker of a snapshot as a value: its processes with what they had, and the facts beside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coordinator.core.errors import DriverError
from coordinator.core.model import RankState, WorkerRecord
from worker_shim.criu.descriptors import Descriptor, HeldFile, read_descriptors, read_files
from worker_shim.criu.images import PSTREE, read_dump_stats
from worker_shim.criu.memory import KINDS, Area, Memory, Segment, read_memory, read_segments
from worker_shim.criu.processes import Process, read_processes
from worker_shim.files.port import OpenFile
from worker_shim.images.port import Manifest
from worker_shim.images.staging import IMAGES, listed

NOTHING = Memory((), "", ())  # of a zombie


@dataclass(frozen=True)
class ProcessView:
    """One process and all that it had."""

    process: Process
    memory: Memory
    descriptors: tuple[Descriptor, ...]
    cwd: str
    rank: RankState | None  # None: it is no rank, or the snapshot's record is not at hand
    gpu: bool  # it had state on a device, which is part of its memory here


@dataclass(frozen=True)
class WorkerView:
    """One worker; without the record (images alone) there are no facts of ranks and GPUs."""

    worker: int
    processes: tuple[ProcessView, ...]  # parents before children
    segments: tuple[Segment, ...]  # shared memory, each once
    frozen_us: int  # by CRIU itself
    image_bytes: int
    kept: tuple[OpenFile, ...]  # files that were open for writing, kept beside the images
    record: WorkerRecord | None

    @property
    def dumped_bytes(self) -> int:
        """Memory in the images, what is shared counted once."""
        own = sum(
            area.dumped_bytes
            for view in self.processes
            for area in view.memory.areas
            if not area.segment
        )
        return own + sum(segment.dumped_bytes for segment in self.segments)


@dataclass(frozen=True)
class Total:
    """Areas of one kind together."""

    kind: str
    areas: int
    size_bytes: int
    dumped_bytes: int
    file_bytes: int
    zero_bytes: int


def read_worker(
    directory: Path,
    worker: int = 0,
    *,
    record: WorkerRecord | None = None,
    manifest: Manifest | None = None,
) -> WorkerView:
    """Read the images of one worker, `directory` as a store gives it or CRIU's own directory.

    Raises DriverError naming the image that is missing or damaged.
    """
    images = images_in(directory)
    files = read_files(images)
    processes = read_processes(images)
    ranks = {rank.pid: rank for rank in record.ranks} if record is not None else {}
    with_gpu = record.gpu_pids if record is not None else ()
    views = tuple(
        _process_view(images, process, files, ranks.get(process.pid), process.pid in with_gpu)
        for process in processes
    )
    return WorkerView(
        worker=worker,
        processes=views,
        segments=read_segments(images, [view.memory for view in views], files),
        frozen_us=read_dump_stats(images)[0],
        image_bytes=sum(listed(images).values()),
        kept=manifest.open_files if manifest is not None else (),
        record=record,
    )


def images_in(directory: Path) -> Path:
    """Where CRIU's images are in it; raises DriverError when there are none."""
    for place in (directory / IMAGES, directory):
        if (place / PSTREE).exists():
            return place
    raise DriverError(
        f"{directory} has no images of a worker",
        advice=f"the directory with {PSTREE} is wanted, or the one above it",
    )


def totals(areas: Iterable[Area]) -> tuple[Total, ...]:
    """How much there is of each kind, in the order of `KINDS`; kinds without an area left out."""
    found: list[Total] = []
    known = tuple(areas)
    for kind in KINDS:
        of_kind = [area for area in known if area.kind == kind]
        if of_kind:
            found.append(
                Total(
                    kind=kind,
                    areas=len(of_kind),
                    size_bytes=sum(area.size_bytes for area in of_kind),
                    dumped_bytes=sum(area.dumped_bytes for area in of_kind),
                    file_bytes=sum(area.file_bytes for area in of_kind),
                    zero_bytes=sum(area.zero_bytes for area in of_kind),
                )
            )
    return tuple(found)


def _process_view(
    images: Path,
    process: Process,
    files: dict[int, HeldFile],
    rank: RankState | None,
    gpu: bool,
) -> ProcessView:
    if not process.alive:
        return ProcessView(process, NOTHING, (), "", rank, gpu)
    cwd = files.get(process.cwd)
    return ProcessView(
        process=process,
        memory=read_memory(images, process.pid, files),
        descriptors=read_descriptors(images, process.files, files),
        cwd=cwd.name if cwd else "",
        rank=rank,
        gpu=gpu,
    )
