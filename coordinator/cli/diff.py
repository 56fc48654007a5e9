"""`allstop diff BEFORE AFTER`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.images import (
    Chosen,
    choose,
    fetch_deadline_option,
    snapshot_of,
    tidy,
    worker_option,
)
from coordinator.cli.options import asking, option
from coordinator.cli.output import Output
from coordinator.cli.stores import store_options
from coordinator.cli.verb import ASKING, verb
from coordinator.core.errors import BadRequest

if TYPE_CHECKING:
    from worker_shim.reading.comparing import WorkerDiff


@verb(
    examples=(
        "allstop diff llm-20261129-214424-579caf llm-20261129-220102-11b0e4",
        "allstop diff llm-20261129-214424-579caf llm-20261129-220102-11b0e4 --records",
        "allstop diff /mnt/copy/before /mnt/copy/after --worker 0 -o json",
    ),
    exits=(*ASKING, 4, 10, 12, 14),
)
@click.argument("before")
@click.argument("after")
@worker_option
@option("--records", is_flag=True, help="What the records tell alone; no images are fetched.")
@option(
    "--pages/--no-pages", default=True, help="Compare the contents of memory.  [default: pages]"
)
@option("--all", "everything", is_flag=True, help="Every mapping and program that differs.")
@store_options
@fetch_deadline_option
@asking
@click.pass_obj
def diff(
    output: Output,
    /,
    before: str,
    after: str,
    worker: int | None,
    records: bool,
    pages: bool,
    everything: bool,
    deadline_s: float,
    **store: Any,
) -> None:
    """Show what changed from one snapshot to another: processes, memory, sockets, files, versions.

    BEFORE and AFTER are snapshots; a name with a slash is a directory of images, which knows
    nothing of versions and GPUs. Workers are compared by their numbers.
    """
    from rich.console import Group

    from coordinator.cli.differences import diff_view

    if records:
        found = _by_records(output, before, after, worker)
    else:
        sides = [
            choose(
                output,
                "" if "/" in name else name,
                store=store,
                images=Path(name) if "/" in name else None,
                deadline_s=deadline_s,
            )
            for name in (before, after)
        ]
        found = _by_images(output, sides[0], sides[1], worker, pages=pages)
    output.emit(found, lambda: Group(*(diff_view(each, everything=everything) for each in found)))


def _by_records(output: Output, before: str, after: str, only: int | None) -> list[WorkerDiff]:
    from worker_shim.reading.comparing import compare_records

    old, new = (
        {each.worker: each for each in snapshot_of(output, name).workers}
        for name in (before, after)
    )
    numbers = _both(output, tuple(old), tuple(new), only)
    return [compare_records(old[number], new[number]) for number in numbers]


def _by_images(
    output: Output, before: Chosen, after: Chosen, only: int | None, *, pages: bool
) -> list[WorkerDiff]:
    from worker_shim.reading.comparing import compare
    from worker_shim.reading.page_count import count_pages

    found = []
    with tidy():
        for number in _both(output, before.source.workers, after.source.workers, only):
            with before.source.worker(number) as old, after.source.worker(number) as new:
                views = old.view(), new.view()
                counted = None
                if pages:
                    counted = count_pages(views[0], old.directory, views[1], new.directory)
                found.append(compare(*views, counted))
    return found


def _both(
    output: Output, before: tuple[int, ...], after: tuple[int, ...], only: int | None
) -> list[int]:
    """The workers that are compared; those of one side alone are told."""
    common = sorted({*before} & {*after})
    if only is not None and only not in common:
        raise BadRequest(f"worker {only} is not in both", advice=f"in both are {common}")
    if not common:
        raise BadRequest("the two have no worker in common")
    if only is not None:
        return [only]
    if alone := sorted({*before} ^ {*after}):
        output.note(f"not compared, as only one of the two has them: workers {alone}", "yellow")
    return common
