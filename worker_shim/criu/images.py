"""What the images say about the tree that is in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.criu.image_file import (
    FILES_MAGIC,
    PSTREE_MAGIC,
    REMAP_MAGIC,
    STATS_MAGIC,
    read_image,
)
from worker_shim.criu.port import ImageFacts
from worker_shim.criu.wire import (
    BYTES,
    Field,
    WireError,
    read_message,
)

PSTREE, FILES, REMAPS, STATS_DUMP = "pstree.img", "files.img", "remap-fpath.img", "stats-dump"

# Field numbers of CRIU's messages (its images/*.proto).
PSTREE_PID, PSTREE_PGID, PSTREE_SID, PSTREE_THREADS = 1, 3, 4, 5
FILE_ID, FILE_REG = 2, 3
REG_NAME = 6
REMAP_ORIG, REMAP_REMAP, REMAP_TYPE = 1, 2, 3
REMAP_LINKED = 0
STATS_OF_DUMP = 1
DUMP_FROZEN_US, DUMP_PAGES_WRITTEN, DUMP_SHARED_PAGES_WRITTEN = 2, 7, 14


@dataclass(frozen=True)
class LinkRemap:
    """A deleted name that CRIU gave to a file which still has another name."""

    deleted: str  # what the tree knows the file as
    link: str  # the name that CRIU expects at the restore


def read_facts(images: Path) -> ImageFacts:
    """Process and task ids; also process groups and sessions, whose numbers CRIU needs free too.

    Raises DriverError when pstree.img is missing (the dump did not end) or damaged.
    """
    pids: list[int] = []
    tasks: set[int] = set()
    for entry in messages(images / PSTREE, PSTREE_MAGIC):
        pids.append(first(entry, PSTREE_PID))
        for field in entry:
            if field.number in (PSTREE_PID, PSTREE_PGID, PSTREE_SID, PSTREE_THREADS):
                tasks.update(field.numbers())
    if not pids:
        raise DriverError(
            f"{PSTREE} names no process",
            advice="the dump is incomplete: use another snapshot",
            details=(str(images),),
        )
    tasks.discard(0)
    return ImageFacts(root_pid=pids[0], pids=tuple(pids), task_ids=tuple(sorted(tasks)))


def read_dump_stats(images: Path) -> tuple[int, int]:
    """Microseconds that the tree was frozen by CRIU itself, and pages written."""
    entry = next(iter(messages(images / STATS_DUMP, STATS_MAGIC)), ())
    of_dump = next((field.raw for field in entry if field.number == STATS_OF_DUMP), b"")
    counters = {field.number: field.value for field in read_message(of_dump)}
    pages = counters.get(DUMP_PAGES_WRITTEN, 0) + counters.get(DUMP_SHARED_PAGES_WRITTEN, 0)
    return counters.get(DUMP_FROZEN_US, 0), pages


def link_remaps(images: Path) -> tuple[LinkRemap, ...]:
    """The `link_remap.N` names that a restore expects to find."""
    if not (images / REMAPS).exists():
        return ()
    wanted = [
        (first(entry, REMAP_ORIG), first(entry, REMAP_REMAP))
        for entry in messages(images / REMAPS, REMAP_MAGIC)
        if first(entry, REMAP_TYPE) == REMAP_LINKED
    ]
    names: dict[int, str] = {}
    for entry in messages(images / FILES, FILES_MAGIC):
        for field in entry:
            if field.number == FILE_REG and field.kind == BYTES:
                name = next(f.raw for f in read_message(field.raw) if f.number == REG_NAME)
                names[first(entry, FILE_ID)] = os.fsdecode(name)
    return tuple(LinkRemap(names[orig], names[remap]) for orig, remap in wanted)


def messages(path: Path, magic: int) -> list[tuple[Field, ...]]:
    """Every entry of an image file, taken apart; raises DriverError when it is damaged."""
    try:
        return [tuple(read_message(entry)) for entry in read_image(path, magic).entries]
    except WireError as error:
        raise DriverError(
            f"{path.name} is damaged: {error}",
            advice="check the digests of the images",
            details=(str(path),),
        ) from error


def first(entry: Sequence[Field], number: int) -> int:
    """The first value of a number field, 0 when it is absent (the default of protobuf)."""
    return next((field.value for field in entry if field.number == number), 0)
