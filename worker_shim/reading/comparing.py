"""What changed of a worker from one snapshot to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from coordinator.core.model import WorkerRecord
from worker_shim.criu.descriptors import HeldFile
from worker_shim.criu.memory import KINDS, Area
from worker_shim.criu.sockets import Socket
from worker_shim.reading.page_count import PageCount
from worker_shim.reading.worker import ProcessView, WorkerView, totals

# What of a worker's record is told when it differs; lists have their own parts, or say nothing.
FACTS = (
    "node", "address", "root_pid", "image_bytes", "memory_bytes", "architecture", "kernel",
    "criu_version", "store", "nccl", "gpu_driver", "cuda_version", "gpu_bytes",
)  # fmt: skip
DIGEST_SHOWN = 12


@dataclass(frozen=True)
class Change:
    """One thing that differs; empty `before`: it is new, empty `after`: it is gone."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Growth:
    """The memory of one kind, of all processes together."""

    kind: str
    before_bytes: int
    after_bytes: int
    dumped_before_bytes: int
    dumped_after_bytes: int


@dataclass(frozen=True)
class WorkerDiff:
    """All that differs between two views of one worker; empty parts: nothing does."""

    worker: int
    facts: tuple[Change, ...]
    ranks: tuple[Change, ...]
    gpus: tuple[Change, ...]
    versions: tuple[Change, ...]
    programs: tuple[Change, ...]
    processes: tuple[Change, ...] = ()
    memory: tuple[Growth, ...] = ()
    areas: tuple[Change, ...] = ()
    sockets: tuple[Change, ...] = ()
    files: tuple[Change, ...] = ()
    pages: PageCount | None = None  # None: not counted


def compare_records(before: WorkerRecord | None, after: WorkerRecord | None) -> WorkerDiff:
    """What the records alone tell; without one of them nothing."""
    worker = next((each.worker for each in (before, after) if each is not None), 0)
    if before is None or after is None:
        return WorkerDiff(worker, (), (), (), (), ())
    known = {field.name for field in fields(WorkerRecord)}
    return WorkerDiff(
        worker=worker,
        facts=_changes(
            {name: str(getattr(before, name)) for name in FACTS if name in known},
            {name: str(getattr(after, name)) for name in FACTS if name in known},
        ),
        ranks=_changes(*(_ranks(each) for each in (before, after))),
        gpus=_changes(*(_gpus(each) for each in (before, after))),
        versions=_changes(*(_versions(each.versions) for each in (before, after))),
        programs=_changes(*(_programs(each) for each in (before, after))),
    )


def compare(before: WorkerView, after: WorkerView, pages: PageCount | None = None) -> WorkerDiff:
    """What the records and the images tell. Processes are the same where their pids are."""
    records = compare_records(before.record, after.record)
    return WorkerDiff(
        worker=before.worker,
        facts=records.facts,
        ranks=records.ranks,
        gpus=records.gpus,
        versions=records.versions,
        programs=records.programs,
        processes=_changes(*(_processes(view) for view in (before, after))),
        memory=_growth(before, after),
        areas=_areas(before, after),
        sockets=_counted(*(_sockets(view) for view in (before, after))),
        files=_changes(*(_files(view) for view in (before, after))),
        pages=pages,
    )


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    names = [*before, *(name for name in after if name not in before)]
    pairs = ((name, before.get(name, ""), after.get(name, "")) for name in names)
    return tuple(Change(*pair) for pair in pairs if pair[1] != pair[2])


def _counted(before: Counter[str], after: Counter[str]) -> tuple[Change, ...]:
    """Things that may be there several times: how often before and after."""
    return _changes(
        {name: str(count) for name, count in before.items()},
        {name: str(count) for name, count in after.items()},
    )


def _ranks(record: WorkerRecord) -> dict[str, str]:
    return {
        f"rank {rank.rank}": f"step {rank.boundary}, pid {rank.pid}"
        + (", with GPU state" if rank.pid in record.gpu_pids else "")
        for rank in record.ranks
    }


def _gpus(record: WorkerRecord) -> dict[str, str]:
    held = {each.uuid: each.held_bytes for each in record.gpu_held}
    return {
        f"GPU {gpu.index}": f"{gpu.model} {gpu.uuid}, {held.get(gpu.uuid, 0)} bytes held"
        for gpu in record.gpus
    }


def _versions(versions: Iterable[str]) -> dict[str, str]:
    split = (each.rpartition(" ") for each in versions)
    return {name or version: version for name, _, version in split}


def _programs(record: WorkerRecord) -> dict[str, str]:
    return {
        each.path: f"{each.size_bytes} bytes {each.digest[:DIGEST_SHOWN]}".rstrip()
        for each in record.programs
    }


def _processes(view: WorkerView) -> dict[str, str]:
    return {f"process {each.process.pid}": _process(each) for each in view.processes}


def _process(view: ProcessView) -> str:
    process = view.process
    what = " ".join(view.memory.command) or process.name
    return f"{what} ({len(process.threads)} threads, parent {process.parent}, {process.state})"


def _growth(before: WorkerView, after: WorkerView) -> tuple[Growth, ...]:
    kinds = [{total.kind: total for total in totals(_all_areas(view))} for view in (before, after)]
    found = []
    for kind in KINDS:
        pair = [each.get(kind) for each in kinds]
        sizes = [total.size_bytes if total else 0 for total in pair]
        dumped = [total.dumped_bytes if total else 0 for total in pair]
        if sizes[0] != sizes[1] or dumped[0] != dumped[1]:
            found.append(Growth(kind, sizes[0], sizes[1], dumped[0], dumped[1]))
    return tuple(found)


def _all_areas(view: WorkerView) -> list[Area]:
    return [area for process in view.processes for area in process.memory.areas]


def _areas(before: WorkerView, after: WorkerView) -> tuple[Change, ...]:
    """Areas of processes that are in both, by where they begin."""
    old, new = ({each.process.pid: each for each in view.processes} for view in (before, after))
    found: list[Change] = []
    for pid in (pid for pid in old if pid in new):
        found += _changes(*(_area_sizes(pid, views[pid]) for views in (old, new)))
    return tuple(found)


def _area_sizes(pid: int, view: ProcessView) -> dict[str, str]:
    return {
        f"{pid} {area.start:x} {area.kind} {area.name}".rstrip(): f"{area.size_bytes} bytes"
        for area in view.memory.areas
    }


def _each_file_once(view: WorkerView) -> list[HeldFile]:
    """Files of descriptors; one that several processes share is one."""
    held = (each.file for process in view.processes for each in process.descriptors)
    return list({file.number: file for file in held}.values())


def _sockets(view: WorkerView) -> Counter[str]:
    sockets = (file.socket for file in _each_file_once(view))
    return Counter(_socket(socket) for socket in sockets if socket is not None)


def _socket(socket: Socket) -> str:
    ends = " -> ".join(end for end in (socket.local, socket.remote) if end)
    return " ".join(part for part in (socket.protocol, ends, socket.state) if part)


def _files(view: WorkerView) -> dict[str, str]:
    """What has a name that stays; pipes and the like are told apart by numbers that do not."""
    found: dict[str, str] = {}
    for file in _each_file_once(view):
        if file.kind in ("file", "directory", "device", "fifo", "memfd"):
            told = f"{file.access} at {file.position}"
            told += f" of {file.size_bytes} bytes" if file.size_bytes >= 0 else ""
            name = f"{file.kind} {file.name}" + (" (deleted)" if file.deleted else "")
            found[name] = f"{found[name]}; {told}" if name in found else told
    return found
