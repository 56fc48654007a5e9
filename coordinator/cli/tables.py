"""Tables of jobs, nodes, snapshots and plans, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordinator.api.values import Planned
from coordinator.api.words import age_text, bytes_text
from coordinator.core.drain_records import DrainRecord, DrainState
from coordinator.core.model import Cut, GpuMove, NodeFacts, Plan, Snapshot
from coordinator.core.reasons import NodeFit, NodeReasons
from coordinator.core.view import JobView, NodeView

GOOD = ("running", "attached")
BAD = ("lost", "incomplete", "exited", "faulted", "unknown", "damaged")


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An open table with these columns; those in `right` hold numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def state_text(state: str) -> Text:
    """A state in its colour."""
    return Text(state, style="green" if state in GOOD else "red" if state in BAD else "yellow")


def or_nothing(rows: Table, nothing: str) -> RenderableType:
    """The table, or one line when it has no rows."""
    return rows if rows.row_count else Text(nothing, style="dim")


def jobs_view(jobs: Sequence[JobView]) -> RenderableType:
    """One row per job; below, what waits and what is damaged."""
    rows = table(
        "JOB", "STATE", "WORKERS", "RANKS", "STEP", "LATEST SNAPSHOT", "AGE",
        right=("WORKERS", "RANKS", "STEP", "AGE"),
    )  # fmt: skip
    for view in jobs:
        running = sum(worker.state not in ("exited", "faulted") for worker in view.workers)
        state = state_text(view.state)
        if view.action:
            state.append(f" ({view.action})", style="dim")
        rows.add_row(
            view.job.job,
            state,
            f"{running}/{view.job.workers}",
            str(view.job.world_size or "-"),
            str(view.step) if view.step > 0 else "-",
            view.job.latest or "-",
            age_text(view.latest_unix_s),
        )
    nothing = "no job: `allstop shim run --job NAME … -- COMMAND` starts a worker"
    return Group(or_nothing(rows, nothing), *_job_lines(jobs))


def _job_lines(jobs: Iterable[JobView]) -> list[RenderableType]:
    """What a job's workers wait for, why it is not back, what of it cannot be read in the store."""
    lines: list[RenderableType] = []
    for view in jobs:
        if view.waiting:
            lines.append(Text(f"{view.job.job}: a started worker waits: {view.waiting}", "yellow"))
        if view.recovery:
            lines.append(Text(f"{view.job.job}: {view.recovery}", "yellow"))
        lines += [Text(f"{view.job.job}: {problem}", "red") for problem in view.problems]
    return lines


def nodes_view(nodes: Iterable[NodeView]) -> RenderableType:
    """One row per node; the reason of a lost one stands below it."""
    views = list(nodes)
    has_gpus = any(view.facts.gpus or view.facts.gpu_trouble for view in views)
    rows = table(
        "NODE", "ADDRESS", "STATE", "WORKERS", "CRIU", "FREE MEMORY", "FREE STAGING",
        *(("GPUS",) if has_gpus else ()), right=("FREE MEMORY", "FREE STAGING"),
    )  # fmt: skip
    for view in views:
        workers = ", ".join(f"{worker.job}/{worker.worker}" for worker in view.workers)
        state = state_text(view.state)
        if view.reason:
            state.append(f": {view.reason}", style="dim")
        if view.drain is not None:
            state.append(f", {drain_words(view.drain)}", style="yellow")
        rows.add_row(
            view.facts.node,
            view.facts.address or "-",
            state,
            workers or ("spare" if view.state == "attached" else "-"),
            view.facts.criu_version or "none",
            bytes_text(view.facts.memory_free_bytes),
            bytes_text(view.facts.staging_free_bytes),
            *((gpus_text(view.facts),) if has_gpus else ()),
        )
    nothing = "no node: `allstop shim` attaches one"
    return Group(or_nothing(rows, nothing), *_health_lines(views))


def _health_lines(views: Iterable[NodeView]) -> list[RenderableType]:
    """Trouble of GPUs, and what was decided about it."""
    return [
        Text(f"{view.facts.node}: {line}", style="yellow") for view in views for line in view.health
    ]


def drain_words(record: DrainRecord) -> str:
    """How a node's drain stands, for its row in a table."""
    told = {
        DrainState.DRAINING: "draining",
        DrainState.DRAINED: "drained",
        DrainState.FAILED: f"drain failed: {record.reason}",
        DrainState.UNDRAINING: "undraining",
    }.get(record.state, "")
    return f"{told} ({record.why})" if record.why and told else told


def gpus_text(facts: NodeFacts) -> str:
    """`8 NVIDIA H200, driver 580.95.05`, and below it what is wrong with them."""
    models = Counter(gpu.model for gpu in facts.gpus)
    lines = [", ".join(f"{count} {model}" for model, count in models.items()) or "-"]
    if facts.gpu_driver:
        lines[0] += f", driver {facts.gpu_driver}"
    lines += [f"GPU {gpu.index} is sick: {gpu.sick}" for gpu in facts.gpus if gpu.sick]
    lines += [f"GPU {gpu.index} is divided (MIG)" for gpu in facts.gpus if gpu.mig]
    lines += [told for told in (facts.gpus_unseen, facts.gpu_trouble) if told]
    return "\n".join(lines)


def snapshots_view(snapshots: Iterable[Snapshot], latest: str) -> RenderableType:
    """One row per snapshot, in the order given."""
    rows = table(
        "SNAPSHOT", "STEP", "RANKS", "SIZE", "STORED", "AGE", "CUT",
        right=("STEP", "RANKS", "SIZE", "STORED", "AGE"),
    )  # fmt: skip
    for snapshot in snapshots:
        name = Text(snapshot.snapshot)
        if snapshot.snapshot == latest:
            name.append(" (latest)", style="green")
        for word, style in kept_words(snapshot):
            name.append(f" ({word})", style=style)
        rows.add_row(
            name,
            step_text(snapshot),
            str(snapshot.world_size or "-"),
            bytes_text(snapshot.image_bytes),
            bytes_text(snapshot.stored_bytes),
            age_text(snapshot.committed_unix_s),
            snapshot.cut,
        )
    return or_nothing(rows, "no snapshot: `allstop checkpoint JOB` makes one")


def kept_words(snapshot: Snapshot) -> list[tuple[str, str]]:
    """How a snapshot is kept, in words with their colours; nothing for an ordinary one."""
    words = [("pinned", "yellow")] if snapshot.pinned else []
    words += [("damaged", "red")] if snapshot.damaged else []
    words += [("suspect", "red")] if snapshot.suspect else []
    return words + ([("deleting", "red")] if snapshot.deleting else [])


def step_text(snapshot: Snapshot) -> str:
    """The step of a snapshot; one that was frozen anywhere has none."""
    return "-" if snapshot.cut is Cut.FREEZE else str(snapshot.step)


def placements_view(plan: Plan) -> RenderableType:
    """Who goes where, and why."""
    rows = table("WORKER", "FROM", "TO", "WHY", right=("WORKER",))
    for place in plan.placements:
        moved = place.from_node != place.to_node
        rows.add_row(
            str(place.worker),
            f"{place.from_node} ({place.from_address})",
            Text(f"{place.to_node} ({place.to_address})", style="yellow" if moved else ""),
            place.why,
        )
    return rows


def plan_view(answer: Planned, plan: Plan) -> Group:
    """A plan whole: places, rewritten addresses, notes, and the nodes that were not taken."""
    head = f"restore {plan.snapshot} of job {plan.job}"
    if plan.cold:
        head = f"start job {plan.job} from scratch, not from {plan.snapshot}"
    parts: list[RenderableType] = [Text(head), placements_view(plan)]
    if plan.addresses:
        moves = ", ".join(f"{move.old} -> {move.new}" for move in plan.addresses)
        where = "arguments and environments" if plan.cold else "all images"
        parts.append(Text(f"addresses rewritten in {where}: {moves}"))
    parts += [Text(line) for line in devices_lines(plan)]
    parts += [Text(f"note: {note}", style="yellow") for note in plan.notes]
    if answer.unseen:
        told = "it will be refused without --old-run-ended, as the job may still run"
        parts.append(Text(f"{told}: {answer.unseen}", style="yellow"))
    parts += [Text(line) for line in fits_lines(answer.fits)]
    parts += [Text(line, style="dim") for line in reasons_lines(answer.refused)]
    parts += [Text(line, style="dim") for line in not_restored_lines(answer.restore_refused)]
    return Group(*parts)


def devices_lines(plan: Plan) -> list[str]:
    """Which GPU takes the place of which, of each node that is another one now."""
    told: dict[tuple[str, str], tuple[GpuMove, ...]] = {
        (place.from_node, place.to_node): place.devices
        for place in plan.placements
        if place.devices
    }
    return [
        f"GPUs of {old} on {new}: " + ", ".join(f"{move.old} -> {move.new}" for move in moves)
        for (old, new), moves in told.items()
    ]


def fits_lines(fits: Iterable[NodeFit]) -> list[str]:
    """Each node that fits a worker: the chosen one, and what speaks against the others."""
    return [
        f"{one.node}, worker {one.worker}: {'chosen: ' if one.chosen else ''}{one.why}"
        for one in fits
    ]


def reasons_lines(refused: Iterable[NodeReasons]) -> list[str]:
    """Each node that does not take a worker, with every reason."""
    return [f"{one.node}, worker {one.worker}: {'; '.join(one.reasons)}" for one in refused]


def not_restored_lines(refused: Iterable[NodeReasons]) -> list[str]:
    """Each node that a worker could not be restored on, where it was to be started instead."""
    return [f"not restored: {line}" for line in reasons_lines(refused)]
