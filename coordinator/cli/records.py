"""Snapshots, attempts and restores whole, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordinator.api.words import bytes_text, duration_text
from coordinator.cli.tables import placements_view, step_text, table
from coordinator.core.failures import error_of, listed
from coordinator.core.model import (
    AttemptRecord,
    Failure,
    PhaseTiming,
    RankState,
    RestoreRecord,
    Snapshot,
    WorkerRecord,
)

RANKS_A_LINE = 8


def whole_view(
    snapshot: Snapshot | None, attempt: AttemptRecord | None, restore: RestoreRecord | None
) -> RenderableType:
    """Whatever there is of the three, one below the other."""
    parts: list[RenderableType] = []
    if snapshot is not None:
        parts.append(snapshot_view(snapshot))
    if attempt is not None:
        parts.append(attempt_view(attempt))
    if restore is not None:
        parts.append(restore_view(restore))
    return Group(*parts)


def snapshot_view(snapshot: Snapshot) -> Group:
    """A snapshot: what it is, then each worker and its ranks."""
    head = fields(
        ("snapshot", snapshot.snapshot),
        ("job", snapshot.job),
        ("step", step_text(snapshot)),
        ("ranks", str(snapshot.world_size or "-")),
        ("cut", snapshot.cut),
        ("size", bytes_text(snapshot.image_bytes)),
        ("stored", bytes_text(snapshot.stored_bytes)),
        ("shared", bytes_text(snapshot.shared_bytes)),
        ("committed", moment(snapshot.committed_unix_s)),
        ("epoch", f"{snapshot.epoch}, incarnation {snapshot.incarnation}"),
        ("root digest", snapshot.digest),
        ("stored", stored_text(snapshot)),
        ("pinned", f"{snapshot.pinned} ({moment(snapshot.pinned_unix_s)})" * bool(snapshot.pinned)),
        ("being deleted", snapshot.deleting),
        ("damaged", snapshot.damaged),
        ("suspect", snapshot.suspect),
        ("read again", moment(snapshot.verified_unix_s)),
    )
    rows = table(
        "WORKER", "NODE", "ADDRESS", "RANKS AT STEP", "SIZE", "STORED", "MEMORY", "DUMP", "HELD",
        "CONNECTIONS", right=("WORKER", "SIZE", "STORED", "MEMORY", "DUMP", "HELD", "CONNECTIONS"),
    )  # fmt: skip
    for worker in snapshot.workers:
        rows.add_row(
            str(worker.worker),
            worker.node,
            worker.address,
            ranks_text(worker.ranks),
            bytes_text(worker.image_bytes),
            bytes_text(worker.stored_bytes),
            bytes_text(worker.memory_bytes),
            duration_text(worker.dump_ms / 1000),
            duration_text(worker.held_ms / 1000) if worker.held_ms else "-",
            str(len(worker.connections)),
        )
    return Group(head, rows, *devices_view(snapshot.workers), *partial_view(snapshot.workers))


def partial_view(workers: Iterable[WorkerRecord]) -> list[RenderableType]:
    """Files that the snapshot does not have whole: one row each, and none when it has all."""
    rows = table("WORKER", "NOT WHOLE", "SIZE", "KEPT", "WHY", right=("WORKER", "SIZE"))
    for worker in workers:
        for file in worker.partial_files:
            kept = f"its last {bytes_text(file.kept_bytes)}" if file.kept_bytes else "its size"
            size = bytes_text(file.size_bytes)
            rows.add_row(str(worker.worker), file.path, size, kept, file.why)
    return [rows] if rows.row_count else []


def stored_text(snapshot: Snapshot) -> str:
    """What was written for it, and what needed no writing."""
    if not snapshot.stored_bytes and not snapshot.shared_bytes:
        return ""
    shared = bytes_text(snapshot.shared_bytes)
    return f"{bytes_text(snapshot.stored_bytes)} written, {shared} were there already"


def devices_view(workers: Iterable[WorkerRecord]) -> list[RenderableType]:
    """What GPUs and libraries the workers ran on; one row for all that are alike."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for worker in workers:
        models = Counter(gpu.model for gpu in worker.gpus)
        gpus = ", ".join(f"{count} {model}" for model, count in models.items())
        gpus += f" (not all: {worker.gpus_unseen})" if worker.gpus_unseen else ""
        saved = bytes_text(worker.gpu_bytes) if worker.gpu_pids else "-"
        driver = " ".join((worker.gpu_driver, worker.cuda_version and f"({worker.cuda_version})"))
        ran = (gpus or "-", driver.strip() or "-", worker.gpu_engine or "-", worker.nccl or "-")
        versions = ", ".join(worker.versions) or "-"
        alike.setdefault((*ran, saved, versions), []).append(worker.worker)
    columns = ("GPUS OF ITS NODE", "DRIVER (CUDA)", "ENGINE", "NCCL", "SAVED", "VERSIONS")
    rows = table("WORKERS", *columns)
    for words, numbers in alike.items():
        rows.add_row(listed([str(number) for number in numbers]), *words)
    told = any(worker.gpus or worker.versions for worker in workers)
    return [rows] if told else []


def ranks_text(ranks: Iterable[RankState]) -> str:
    """`0:152 1:152`, a few a line; a rank without the hook shows a dash."""
    texts = [f"{rank.rank}:{rank.boundary if rank.boundary >= 0 else '-'}" for rank in ranks]
    lines = [texts[i : i + RANKS_A_LINE] for i in range(0, len(texts), RANKS_A_LINE)]
    return "\n".join(" ".join(line) for line in lines) or "-"


def attempt_view(attempt: AttemptRecord) -> Group:
    """An attempt: state and why, then the time of each phase."""
    head = fields(
        ("attempt", attempt.attempt),
        ("job", attempt.job),
        ("state", attempt.state),
        ("reason", attempt.reason),
        ("target step", str(attempt.target) if attempt.target else ""),
        ("stood still", duration_text(attempt.pause_ms / 1000) if attempt.pause_ms else ""),
        ("requested", moment(attempt.requested_unix_s)),
        ("deadline", duration_text(attempt.deadline_s)),
        ("still owed by", owed_text(attempt.owed, dict(enumerate(attempt.nodes)))),
    )
    parts: list[RenderableType] = [head, *timings_view(attempt.timings)]
    if attempt.failure is not None:
        parts.append(failure_view(attempt.failure))
    return Group(*parts)


def owed_text(owed: Iterable[int], nodes: Mapping[int, str]) -> str:
    """Who has not said that it did the last order, and is told when its node is in reach."""
    return listed([f"worker {worker} on {nodes.get(worker, '?')}" for worker in owed])


def restore_view(restore: RestoreRecord) -> Group:
    """A restore: state and why, its plan, then the time of each phase."""
    nodes = {place.worker: place.to_node for place in restore.plan.placements}
    head = fields(
        ("restore", restore.restore),
        ("job", restore.job),
        ("not restored" if restore.cold else "snapshot", restore.snapshot),
        ("started from scratch", restore.cold_why if restore.cold else ""),
        ("state", restore.state),
        ("reason", restore.reason),
        ("incarnation", str(restore.incarnation)),
        ("requested", moment(restore.requested_unix_s)),
        ("deadline", duration_text(restore.deadline_s)),
        ("still owed by", owed_text(restore.owed, nodes)),
    )
    parts: list[RenderableType] = [head, placements_view(restore.plan)]
    parts += files_view(restore)
    parts += timings_view(restore.timings)
    if restore.failure is not None:
        parts.append(failure_view(restore.failure))
    return Group(*parts)


FILE_WORDS = {
    "cut": "written after the cut",
    "replaced": "rewritten after the cut",
    "before": "kept by an earlier restore",
    "hole": "not kept: the file begins with a hole",
}


def files_view(restore: RestoreRecord) -> list[RenderableType]:
    """Files that were rolled back, and where what came after the snapshot is kept."""
    rows = table("WORKER", "NODE", "FILE", "WHAT", "SIZE", "NOW AT", right=("WORKER", "SIZE"))
    for file in restore.files:
        rows.add_row(
            str(file.worker),
            file.node,
            file.path,
            FILE_WORDS.get(file.what, file.what),
            bytes_text(file.size_bytes),
            file.aside or "-",
        )
    more = [Text(f"and {restore.files_unnamed} more files")] if restore.files_unnamed else []
    return [rows, *more] if rows.row_count else []


def timings_view(timings: Iterable[PhaseTiming]) -> list[RenderableType]:
    """One row per phase; nothing when there is none."""
    rows = table("PHASE", "BEGAN AFTER", "TOOK", "SLOWEST", right=("BEGAN AFTER", "TOOK"))
    for timing in timings:
        rows.add_row(
            timing.phase,
            duration_text(timing.started_ms / 1000),
            duration_text(timing.took_ms / 1000),
            timing.slowest,
        )
    return [rows] if rows.row_count else []


def failure_view(failure: Failure) -> Text:
    """What went wrong, in the words of the error."""
    error = error_of(failure)
    lines = [f"failed: {error}", *([f"next: {error.advice}"] if error.advice else [])]
    return Text("\n".join([*lines, *(f"  | {line}" for line in error.details)]), style="red")


def fields(*pairs: tuple[str, str]) -> Table:
    """Names and values below each other; empty values are left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value:
            grid.add_row(name, value)
    return grid


def moment(unix_s: float) -> str:
    """A point in time in the local zone."""
    if unix_s <= 0:
        return ""
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
