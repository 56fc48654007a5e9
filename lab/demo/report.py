"""What the demo measured: one JSON object for programs, a few lines for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class SnapshotSummary:
    """The committed snapshot that was restored."""

    id: str
    step: int
    rank_steps: dict[str, int]
    bytes: int  # dumped
    stored_bytes: int  # written to the image store
    shared_bytes: int  # of what was dumped, what needed no writing: another rank's, or an earlier


@dataclass(frozen=True)
class Move:
    """One worker that came back on another node."""

    worker: int
    from_node: str
    from_address: str
    to_node: str
    to_address: str


@dataclass(frozen=True)
class DemoReport:
    """Everything was measured in this run; times in milliseconds.

    Attributes:
        connections_kept: established connections between the nodes that were in the snapshot and
            are established again after the restore, at their new addresses.
        steps_repeated: last step any rank had finished when the node was killed, minus the
            snapshot's step.
        pause_ms: how long the job stood still at the checkpoint (the worker that stood longest).
        raw_dump_ms: of which the slowest criu itself took.
        recovery_ms: from the order to restore until every worker ran again.
        lost_after_ms: from the kill until the coordinator named the node as lost.
        verified_workers: of all snapshots, whose every byte was read again and was as committed.
        outage_ms: from the kill until the first step that had not been done before the kill.
    """

    world_size: int
    snapshot: SnapshotSummary
    killed_node: str
    moved: tuple[Move, ...]
    connections_kept: int
    steps_repeated: int
    bit_exact: bool
    final_loss: float
    pause_ms: int
    raw_dump_ms: int
    recovery_ms: int
    lost_after_ms: int
    outage_ms: int
    cut: str
    digest: str
    undisturbed_digest: str
    losses_compared: int
    verified_workers: int

    def to_fields(self) -> dict[str, object]:
        """As the last line of `--json`."""
        return asdict(self)


def show(report: DemoReport, console: Console) -> None:
    """Print the summary for people."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    snapshot = report.snapshot
    table.add_row("snapshot", f"{snapshot.id}, step {snapshot.step}, {snapshot.bytes / 1e6:.0f} MB")
    table.add_row(
        "stored",
        f"{snapshot.stored_bytes / 1e6:.0f} MB of {snapshot.bytes / 1e6:.0f} MB dumped; "
        f"{snapshot.shared_bytes / 1e6:.0f} MB were there already or the same in several places",
    )
    table.add_row("verified", f"{report.verified_workers} workers' images, every byte read again")
    table.add_row("node lost", report.killed_node)
    for move in report.moved:
        table.add_row(
            f"worker {move.worker}",
            f"{move.from_node} ({move.from_address}) → {move.to_node} ({move.to_address})",
        )
    table.add_row("connections kept", str(report.connections_kept))
    table.add_row("steps repeated", str(report.steps_repeated))
    table.add_row(
        "stood still",
        f"{report.pause_ms} ms at the checkpoint, criu itself {report.raw_dump_ms} ms",
    )
    table.add_row("loss noticed", f"{report.lost_after_ms} ms after the kill")
    table.add_row("restored", f"in {report.recovery_ms} ms")
    table.add_row("new ground", f"{report.outage_ms} ms after the kill")
    same = "equal to the last bit" if report.bit_exact else "[bold red]DIFFERENT"
    table.add_row(
        "against an undisturbed run",
        f"{same}: parameters, optimizer state, {report.losses_compared} printed losses",
    )
    console.print(table)
