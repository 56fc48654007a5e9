"""What the images say about the tree that is in them."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.criu.image_file import (
    FILES_MAGIC,
    HEADER,
    PSTREE_MAGIC,
    REMAP_MAGIC,
    STATS_MAGIC,
    read_image,
)
from worker_shim.criu.port import ImageFacts, NamedFile
from worker_shim.criu.wire import (
    BYTES,
    Field,
    WireError,
    read_message,
)

PSTREE, FILES, REMAPS, STATS_DUMP = "pstree.img", "files.img", "remap-fpath.img", "stats-dump"

INVENTORY, INVENTORY_MAGIC = "inventory.img", 0x58313116  # the one image without a common magic

# Field numbers of CRIU's messages (its images/*.proto).
PSTREE_PID, PSTREE_PGID, PSTREE_SID, PSTREE_THREADS = 1, 3, 4, 5
FILE_ID, FILE_REG = 2, 3
REG_NAME, REG_SIZE, REG_MODE = 6, 8, 10
REMAP_ORIG, REMAP_REMAP, REMAP_TYPE = 1, 2, 3
REMAP_LINKED = 0
STATS_OF_DUMP = 1
INVENTORY_PLUGINS = 12
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
        pid = first(entry, PSTREE_PID)
        pids.append(pid)
        tasks.update((pid, first(entry, PSTREE_PGID), first(entry, PSTREE_SID)))
        threads = {n for field in entry if field.number == PSTREE_THREADS for n in field.numbers()}
        if pid in threads:  # of a dead process CRIU writes a number that it never set
            tasks |= threads
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


def plugins(images: Path) -> tuple[str, ...]:
    """Names of the plugins that took part in the dump, as they have put themselves down.

    Raises DriverError when inventory.img is missing or damaged. Found by looking at what CRIU 4.2
    writes with a plugin: field 12 of the one entry is a message whose field 12 has the names.
    """
    path = images / INVENTORY
    try:
        data = path.read_bytes()
        magic, size = HEADER.unpack_from(data)
        if magic != INVENTORY_MAGIC or HEADER.size + size > len(data):
            raise WireError("it is no inventory")
        entry = read_message(data[HEADER.size : HEADER.size + size])
        lists = [field.raw for field in entry if field.number == INVENTORY_PLUGINS]
        names = [field.raw for each in lists for field in read_message(each)]
    except (OSError, WireError, struct.error) as error:
        raise DriverError(
            f"{INVENTORY} cannot be read: {error}",
            advice="the dump is incomplete: use another snapshot",
            details=(str(path),),
        ) from error
    return tuple(name.decode(errors="replace") for name in names)


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


def named_files(images: Path) -> tuple[NamedFile, ...]:
    """The regular files that a restore opens by name, each once; raises DriverError on damage.

    Those whose contents CRIU has itself (ghosts), or that a link remap is made for, are `made`.
    """
    made: set[int] = set()
    if (images / REMAPS).exists():
        for entry in messages(images / REMAPS, REMAP_MAGIC):
            made |= {first(entry, REMAP_ORIG), first(entry, REMAP_REMAP)}
    found: dict[str, NamedFile] = {}
    for entry in messages(images / FILES, FILES_MAGIC):
        number = first(entry, FILE_ID)
        for field in entry:
            if field.number == FILE_REG and field.kind == BYTES:
                file = _named(tuple(read_message(field.raw)), number in made)
                found.setdefault(file.path, file)
    return tuple(found.values())


def _named(entry: Sequence[Field], made: bool) -> NamedFile:
    path = next((field.raw for field in entry if field.number == REG_NAME), b"")
    sizes = [field.value for field in entry if field.number == REG_SIZE]
    mode = first(entry, REG_MODE)
    regular = not mode or stat.S_ISREG(mode)
    return NamedFile(os.fsdecode(path), sizes[0] if sizes and regular else -1, made)


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
