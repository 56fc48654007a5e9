"""How many pages of memory differ between two sets of images, by address and by content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from worker_shim.criu.pages import PageTable, read_page_table
from worker_shim.reading.worker import WorkerView, images_in

DIGEST_BYTES = 16


@dataclass
class PageCount:
    """Pages of all processes and shared memories together."""

    before: int = 0
    after: int = 0
    same: int = 0  # of one process at one address, with one content
    changed: int = 0  # there in both, with other contents
    new: int = 0  # there only after
    gone: int = 0  # there only before
    known: int = 0  # of the changed and new: the content was somewhere else before


def count_pages(
    before: WorkerView, images_before: Path, after: WorkerView, images_after: Path
) -> PageCount:
    """Compare the pages of two sets of images of one worker; processes are told by their pids.

    Reads both once and holds 16 bytes a page. Raises DriverError naming an image that is damaged.
    """
    counted = PageCount()
    contents: set[bytes] = set()
    doubtful: list[bytes] = []
    old, new = (_tables(*each) for each in ((before, images_before), (after, images_after)))
    for owner in [*old, *(owner for owner in new if owner not in old)]:
        for was, now in _pairs(old.get(owner), new.get(owner)):
            _count(counted, was, now, contents, doubtful)
    counted.known = sum(digest in contents for digest in doubtful)
    return counted


def _count(
    counted: PageCount,
    was: bytes | None,
    now: bytes | None,
    contents: set[bytes],
    doubtful: list[bytes],
) -> None:
    counted.before += was is not None
    counted.after += now is not None
    if was is not None:
        contents.add(_digest(was))
    if was == now:
        counted.same += 1
        return
    counted.changed += was is not None and now is not None
    counted.gone += now is None
    if now is not None:
        counted.new += was is None
        doubtful.append(_digest(now))


def _digest(page: bytes) -> bytes:
    return blake3(page).digest(length=DIGEST_BYTES)


def _tables(view: WorkerView, directory: Path) -> dict[str, PageTable]:
    images = images_in(directory)
    owners = [str(each.process.pid) for each in view.processes if each.process.alive]
    owners += [f"shmem-{segment.number}" for segment in view.segments]
    return {owner: read_page_table(images, owner) for owner in owners}


def _pairs(
    old: PageTable | None, new: PageTable | None
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """The pages of both by their addresses, those of one alone with None."""
    olds, news = (table.each_page() if table else iter(()) for table in (old, new))
    was, now = next(olds, None), next(news, None)
    while was is not None or now is not None:
        if now is None or (was is not None and was[0] < now[0]):
            assert was is not None
            yield was[1], None
            was = next(olds, None)
        elif was is None or now[0] < was[0]:
            yield None, now[1]
            now = next(news, None)
        else:
            yield was[1], now[1]
            was, now = next(olds, None), next(news, None)
