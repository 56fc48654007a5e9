"""What is inside a worker's images, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordinator.api.words import bytes_text
from coordinator.cli.records import devices_view, fields
from coordinator.cli.tables import or_nothing, table
from coordinator.core.model import WorkerRecord
from worker_shim.criu.descriptors import HeldFile
from worker_shim.criu.processes import children_of
from worker_shim.reading.worker import ProcessView, WorkerView, totals

CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
COMMAND_CHARS = 100  # of a longer one beginning and end


def worker_view(view: WorkerView, *, areas: bool = False) -> Group:
    """A worker: what it is, its tree, memory, sockets, files and GPUs."""
    parts: list[RenderableType] = [_head(view), _tree(view), _memory(view)]
    if areas:
        parts += [_areas(each) for each in view.processes if each.memory.areas]
    parts += [_sockets(view), _files(view), *_kept(view)]
    if view.record is not None:
        parts += [*devices_view([view.record]), *_gpu_lines(view.record)]
    return Group(*(each for part in parts for each in (part, Text())))


def exported_view(written: Iterable[Mapping[str, object]]) -> Table:
    """The tars that were written."""
    rows = table("WORKER", "SIZE", "TAR", right=("WORKER", "SIZE"))
    for one in written:
        rows.add_row(str(one["worker"]), bytes_text(float(str(one["bytes"]))), str(one["path"]))
    return rows


def printed(text: str) -> str:
    """A text of the job's own, which must not steer a terminal."""
    return text.translate(CONTROL)


def shortened(command: str) -> str:
    """The program and the last arguments tell processes apart best."""
    if len(command) <= COMMAND_CHARS:
        return command
    return f"{command[: COMMAND_CHARS // 3]} … {command[-(COMMAND_CHARS * 2 // 3 - 3) :]}"


def _head(view: WorkerView) -> Table:
    record = view.record
    shared = sum(segment.dumped_bytes for segment in view.segments)
    return fields(
        ("worker", str(view.worker)),
        ("node", f"{record.node} ({record.address})" if record else ""),
        ("images", bytes_text(view.image_bytes)),
        ("memory in them", bytes_text(view.dumped_bytes)),
        ("of it shared", bytes_text(shared) if shared else ""),
        ("frozen by criu", f"{view.frozen_us / 1000:.0f} ms" if view.frozen_us else ""),
        ("kernel, criu", f"{record.kernel}, {record.criu_version}" if record else ""),
    )


def _tree(view: WorkerView) -> Table:
    right = ("PID", "RANK", "STEP", "THREADS", "MEMORY", "IN IMAGES", "OPEN")
    rows = table(
        "PID", "COMMAND", "RANK", "STEP", "THREADS", "MEMORY", "IN IMAGES", "OPEN", "GPU",
        right=right,
    )  # fmt: skip
    for depth, each in _by_depth(view):
        process, rank = each.process, each.rank
        command = printed(_called(each))
        rows.add_row(
            str(process.pid),
            "  " * depth + shortened(command),
            str(rank.rank) if rank else "-",
            str(rank.boundary) if rank and rank.boundary >= 0 else "-",
            str(len(process.threads)),
            bytes_text(sum(area.size_bytes for area in each.memory.areas)),
            bytes_text(sum(area.dumped_bytes for area in each.memory.areas)),
            str(len(each.descriptors)),
            "yes" if each.gpu else "-",
        )
    return rows


def _called(view: ProcessView) -> str:
    """The command; before it the name that a process gave itself, such as `[pt_data_worker]`."""
    name, command = view.process.name, view.memory.command
    if not command:
        return name if view.process.alive else f"{name} ({view.process.state})"
    own = "" if command[0].rpartition("/")[2].startswith(name) else f"[{name}] "
    return own + " ".join(command)


def _by_depth(view: WorkerView) -> list[tuple[int, ProcessView]]:
    views = {each.process.pid: each for each in view.processes}
    processes = [each.process for each in view.processes]
    found: list[tuple[int, ProcessView]] = []
    waiting = [(0, process.pid) for process in children_of(processes, 0)]
    while waiting:
        depth, pid = waiting.pop(0)
        found.append((depth, views[pid]))
        below = [(depth + 1, process.pid) for process in children_of(processes, pid)]
        waiting = below + waiting
    return found


def _memory(view: WorkerView) -> Table:
    rows = table(
        "MEMORY", "AREAS", "SIZE", "IN IMAGES", "FROM FILES", "ZERO",
        right=("AREAS", "SIZE", "IN IMAGES", "FROM FILES", "ZERO"),
    )  # fmt: skip
    for total in totals(area for each in view.processes for area in each.memory.areas):
        rows.add_row(
            total.kind,
            str(total.areas),
            bytes_text(total.size_bytes),
            bytes_text(total.dumped_bytes),
            bytes_text(total.file_bytes),
            bytes_text(total.zero_bytes),
        )
    return rows


def _areas(view: ProcessView) -> Table:
    rows = table(
        f"AREAS OF {view.process.pid}", "ACCESS", "KIND", "SIZE", "IN IMAGES", "NAME",
        right=("SIZE", "IN IMAGES"),
    )  # fmt: skip
    for area in view.memory.areas:
        rows.add_row(
            f"{area.start:x}-{area.end:x}",
            area.access,
            area.kind,
            bytes_text(area.size_bytes),
            bytes_text(area.dumped_bytes),
            printed(area.name),
        )
    return rows


def _holders(view: WorkerView) -> dict[int, tuple[HeldFile, str]]:
    """Every open file once, with the processes and descriptors that have it."""
    files: dict[int, HeldFile] = {}
    holders: dict[int, list[str]] = {}
    for each in view.processes:
        for one in each.descriptors:
            files[one.file.number] = one.file
            holders.setdefault(one.file.number, []).append(f"{each.process.pid}:{one.number}")
    return {number: (files[number], " ".join(holders[number])) for number in files}


def _sockets(view: WorkerView) -> RenderableType:
    rows = table(
        "SOCKET", "STATE", "LOCAL", "REMOTE", "RECEIVED", "UNSENT", "PID:FD",
        right=("RECEIVED", "UNSENT"),
    )  # fmt: skip
    for file, holders in _holders(view).values():
        socket = file.socket
        if socket is not None:
            rows.add_row(
                socket.protocol,
                socket.state or "-",
                printed(socket.local) or "-",
                printed(socket.remote) or (f"socket {socket.peer}" if socket.peer else "-"),
                str(socket.received_bytes or "-"),
                str(socket.unsent_bytes or "-"),
                holders,
            )
    return or_nothing(rows, "no sockets")


def _files(view: WorkerView) -> RenderableType:
    rows = table("OPEN", "ACCESS", "NAME", "AT", "SIZE", "PID:FD", right=("AT", "SIZE"))
    for file, holders in _holders(view).values():
        if file.socket is None:
            rows.add_row(
                file.kind,
                file.access or "-",
                printed(file.name) + (" (deleted)" if file.deleted else ""),
                str(file.position or "-"),
                bytes_text(file.size_bytes) if file.size_bytes >= 0 else "-",
                holders,
            )
    return or_nothing(rows, "no open files")


def _kept(view: WorkerView) -> list[RenderableType]:
    """Files whose state belongs to the cut, and what became of their contents."""
    rows = table("OF THE CUT", "SIZE", "CONTENT", "PATH", right=("SIZE",))
    for file in view.kept:
        rows.add_row(
            file.role,
            bytes_text(file.size_bytes),
            "kept" if file.copy else "-",
            printed(file.path),
        )
    return [rows] if rows.row_count else []


def _gpu_lines(record: WorkerRecord) -> list[RenderableType]:
    """Which processes had GPU state, and how much of each GPU was theirs."""
    if not record.gpu_pids:
        return []
    models = {gpu.uuid: f"GPU {gpu.index} {gpu.model}" for gpu in record.gpus}
    pids = Counter(record.gpu_pids)
    lines = [Text(f"GPU state of processes {', '.join(str(pid) for pid in pids)}")]
    lines += [
        Text(f"{models.get(each.uuid, 'GPU')} {each.uuid}: {bytes_text(each.held_bytes)} held")
        for each in record.gpu_held
    ]
    return [Group(*lines)]
