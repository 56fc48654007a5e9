"""Where the memory images of a dump have seams: between mappings, which move as one.

Source of the format: criu's `images/pagemap.proto`; `pages-N.img` holds the pages of all entries
whose flags have PE_PRESENT, one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.criu.image_file import read_image
from worker_shim.criu.wire import VARINT_BYTES_MAX, WireError

PAGEMAP_MAGIC = 0x56084025
PAGE_BYTES = 4096
PRESENT = 1 << 2
_VADDR, _PAGES, _IN_PARENT, _FLAGS, _PAGES_64 = 1, 2, 3, 4, 5
RUN_PAGES_MIN = 16  # a smaller mapping is not worth chunks of its own

Run = tuple[int, int]  # first address, pages


def seams(staged: Path) -> dict[str, tuple[int, ...]]:
    """For each file of pages below `staged`, at which of its pages a larger mapping begins or ends.

    An image that cannot be read gives no seams: they only make chunks alike more often.
    """
    found = {}
    for path in sorted(staged.rglob("pagemap-*.img")):
        try:
            pages_id, runs = _read(path)
        except (DriverError, WireError):
            continue
        pages = path.with_name(f"pages-{pages_id}.img")
        found[str(pages.relative_to(staged))] = tuple(_seams(runs))
    return found


def _read(path: Path) -> tuple[int, list[Run]]:
    head, *entries = read_image(path, PAGEMAP_MAGIC).entries
    runs: list[Run] = []
    for entry in entries:
        fields = _numbers(entry)
        flags = fields.get(_FLAGS, PRESENT)
        if not flags & PRESENT or fields.get(_IN_PARENT):
            continue
        address = fields.get(_VADDR, 0)
        count = fields.get(_PAGES_64) or fields.get(_PAGES, 0)
        if runs and runs[-1][0] + runs[-1][1] * PAGE_BYTES == address:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        else:
            runs.append((address, count))
    return _numbers(head).get(1, 0), runs


def _seams(runs: list[Run]) -> Iterator[int]:
    at = before = 0
    for _, count in runs:
        if at and max(before, count) >= RUN_PAGES_MIN:
            yield at
        at, before = at + count, count


def _numbers(message: bytes) -> dict[int, int]:
    """The fields of a message that has only numbers; there can be a million of them."""
    found, at, size = {}, 0, len(message)
    while at < size:
        tag = message[at]
        if tag & 0x87:
            raise WireError(f"field {tag >> 3} is no number")
        at += 1
        number = shift = 0
        while True:
            if at >= size or shift >= 7 * VARINT_BYTES_MAX:
                raise WireError("the message ends inside a number")
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        found[tag >> 3] = number
    return found
