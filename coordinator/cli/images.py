"""How the verbs that read images come by them: options, and the source that these name."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from coordinator.cli.durations import Duration
from coordinator.cli.options import option
from coordinator.cli.output import Output
from coordinator.cli.stores import store_options, where_of
from coordinator.core.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from coordinator.core.model import Snapshot
    from worker_shim.reading.source import Source

Function = TypeVar("Function", bound=Callable[..., Any])

FETCH_S = 3600.0

fetch_deadline_option = option(
    "--deadline",
    "deadline_s",
    type=Duration(),
    default=FETCH_S,
    metavar="DURATION",
    help="For fetching one worker's images.  [default: 1h]",
)
images_option = option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Images that lie there already, of one worker or in folders 0, 1 …; no store is asked, "
    "and digests are not verified.",
)
worker_option = option(
    "--worker", type=int, metavar="N", help="This worker alone.  [default: every one]"
)


@dataclass(frozen=True)
class Chosen:
    """What a command line names: the snapshot's record, if it is known, and its images."""

    snapshot: Snapshot | None
    source: Source

    def workers(self, only: int | None) -> tuple[int, ...]:
        """All workers, or the one that is asked for; raises BadRequest where that is not there."""
        if only is None:
            return self.source.workers
        if only not in self.source.workers:
            have = ", ".join(str(each) for each in self.source.workers)
            raise BadRequest(f"there is no worker {only}", advice=f"there are {have}")
        return (only,)


def images_options(function: Function) -> Function:
    """Where images come from."""
    for add in (fetch_deadline_option, images_option, store_options):
        function = add(function)
    return function


def choose(
    output: Output, snapshot: str, *, store: dict[str, Any], images: Path | None, deadline_s: float
) -> Chosen:
    """The snapshot of that id, whose images are in the store or where `images` says.

    `store`: the options of `store_options`; of partners only their side is open. Without an id the
    images alone are read and nobody is asked. Raises NotFound, BadRequest and what a coordinator or
    the store has to say.
    """
    from worker_shim.reading.source import PlainImages, StoredImages

    if not snapshot:
        if images is None:
            raise BadRequest("neither a snapshot nor --images is named")
        return Chosen(None, PlainImages(images))
    record = snapshot_of(output, snapshot)
    if images is not None:
        return Chosen(record, PlainImages(images, record.workers))
    from coordinator.api.words import bytes_text
    from worker_shim.images.opening import open_store

    def say(worker: int, size: int) -> None:
        output.note(f"{snapshot}, worker {worker}: fetching {bytes_text(size)}", style="dim")

    where = replace(where_of(output, socket.gethostname(), store), serve=False)
    opened = open_store(where, make=False)
    return Chosen(record, StoredImages(opened, record.workers, deadline_s=deadline_s, say=say))


def snapshot_of(output: Output, identity: str) -> Snapshot:
    """Its record; raises NotFound for an attempt that is none, or was given up."""
    from coordinator.cli.asking import ask

    shown = ask(output, lambda client: client.show(identity))
    if shown.snapshot is None:
        raise NotFound(
            f"{identity} is no committed snapshot", advice="`allstop snapshots JOB` lists them"
        )
    return shown.snapshot


@contextmanager
def tidy() -> Iterator[None]:
    """Let SIGTERM end this block as Ctrl-C does: fetched images do not stay behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
