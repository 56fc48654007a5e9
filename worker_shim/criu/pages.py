"""The pages of memory in the images: which there are, and their bytes.

pagemap-PID.img says which pages of a process follow each other in pages-N.img, and
pagemap-shmem-N.img the same of shared memory. Field numbers and bits are those of CRIU's
`images/pagemap.proto` and `criu/include/pagemap.h`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from worker_shim.criu.entries import Entry, damaged, read_entries
from worker_shim.criu.image_file import (
    PAGEMAP_MAGIC,
    ImageFile,
    encoded,
    read_image,
    unreadable,
)
from worker_shim.criu.images import first
from worker_shim.criu.wire import WireError, number_field, read_message, write_message

HEAD_PAGES = 1
RUN_ADDRESS, RUN_PAGES_OLD, RUN_IN_PARENT, RUN_FLAGS, RUN_PAGES = 1, 2, 3, 4, 5
IN_PARENT, PRESENT = 1 << 0, 1 << 2
PAGE_BYTES = 4096  # the smallest; others are found out by the size of the file
READ_BYTES = 1 << 20
OLD_PAGES_MAX = (1 << 32) - 1


@dataclass(frozen=True)
class Run:
    """Pages that follow each other, in memory and in the file."""

    address: int  # in the process; in shared memory from its beginning
    size_bytes: int
    offset: int  # in the file of pages

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size_bytes


@dataclass(frozen=True)
class PageTable:
    """All pages of a process, or of one shared memory, that the images hold."""

    path: Path  # of the pagemap
    pages: Path | None  # the file with the bytes; None: there is no page
    page_bytes: int
    runs: tuple[Run, ...]  # by address

    @property
    def size_bytes(self) -> int:
        """Of all pages."""
        return sum(run.size_bytes for run in self.runs)

    def bytes_between(self, start: int, end: int) -> int:
        """How much of this stretch the images hold."""
        first = max(0, bisect_right(self.runs, start, key=lambda run: run.address) - 1)
        found = 0
        for run in self.runs[first:]:
            if run.address >= end:
                break
            found += max(0, min(end, run.end) - max(start, run.address))
        return found

    def read(self, start: int, end: int) -> bytes:
        """The bytes of this stretch; empty when the images hold not all of it in one run."""
        at = bisect_right(self.runs, start, key=lambda run: run.address) - 1
        if at < 0 or self.runs[at].end < end or self.pages is None:
            return b""
        try:
            with open(self.pages, "rb") as file:
                file.seek(self.runs[at].offset + start - self.runs[at].address)
                return file.read(end - start)
        except OSError as error:
            raise unreadable(self.pages, error) from error

    def each_page(self) -> Iterator[tuple[int, bytes]]:
        """Every page with its address, in order; holds one piece of the file at a time."""
        if self.pages is None:
            return
        try:
            with open(self.pages, "rb", buffering=0) as file:
                for run in self.runs:
                    for at in range(0, run.size_bytes, READ_BYTES):
                        file.seek(run.offset + at)
                        piece = file.read(min(READ_BYTES, run.size_bytes - at))
                        for inside in range(0, len(piece), self.page_bytes):
                            yield (
                                run.address + at + inside,
                                piece[inside : inside + self.page_bytes],
                            )
        except OSError as error:
            raise unreadable(self.pages, error) from error


def read_page_table(images: Path, owner: str) -> PageTable:
    """The table of a process (its pid) or of shared memory (`shmem-N`).

    Raises DriverError naming the image when it is missing or damaged, also when the file of pages
    has another size than the table says.
    """
    path = images / f"pagemap-{owner}.img"
    entries = read_entries(path, PAGEMAP_MAGIC)
    if not entries:
        raise damaged(path, "it does not say where its pages are")
    counts = [(entry.number(RUN_ADDRESS), _count(entry)) for entry in entries[1:]]
    total = sum(count for _, count in counts)
    if not total:
        return PageTable(path, None, PAGE_BYTES, ())
    pages = images / f"pages-{entries[0].number(HEAD_PAGES)}.img"
    page_bytes = _page_bytes(pages, total)
    runs: list[Run] = []
    offset = 0
    for address, count in counts:
        size = count * page_bytes
        if address % page_bytes or (runs and address < runs[-1].end):
            raise damaged(path, f"its pages at {address:x} cannot be")
        if count:
            runs.append(Run(address, size, offset))
        offset += size
    return PageTable(path, pages, page_bytes, tuple(runs))


def for_old_readers(path: Path) -> bytes:
    """A pagemap that counts pages in the field of before CRIU 4.2 too, which 4.2 leaves at zero.

    CRIU itself reads that field only where the newer one is not there. Raises DriverError.
    """
    image = read_image(path, PAGEMAP_MAGIC)
    try:
        runs = tuple(_counted_twice(raw) for raw in image.entries[1:])
    except WireError as error:
        raise damaged(path, str(error)) from error
    return encoded(ImageFile(image.magics, (*image.entries[:1], *runs)))


def _counted_twice(raw: bytes) -> bytes:
    fields = tuple(read_message(raw))
    count = first(fields, RUN_PAGES)
    if not count or count > OLD_PAGES_MAX:
        return raw
    return write_message(
        number_field(RUN_PAGES_OLD, count) if field.number == RUN_PAGES_OLD else field
        for field in fields
    )


def _count(entry: Entry) -> int:
    """Pages of an entry that are in the file itself, not in an earlier dump's."""
    flags = entry.number(RUN_FLAGS)
    in_parent = flags & IN_PARENT or entry.number(RUN_IN_PARENT)
    if in_parent or (flags and not flags & PRESENT):
        return 0
    return entry.number(RUN_PAGES) or entry.number(RUN_PAGES_OLD)


def _page_bytes(pages: Path, count: int) -> int:
    """The size of a page on the machine that wrote the images."""
    try:
        size = pages.stat().st_size
    except OSError as error:
        raise unreadable(pages, error) from error
    each = size // count
    if size % count or each < PAGE_BYTES or each & (each - 1):
        raise damaged(pages, f"it has {size} bytes for {count} pages")
    return each
