"""Where a reader gets the images of workers from: an image store, or a directory as it is.

    with source.worker(0) as held:
        view = held.view()

What is fetched from a store lies in a private folder that goes when the block ends, by whatever.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from coordinator.core.errors import BadRequest, DriverError
from coordinator.core.model import WorkerRecord
from worker_shim.criu.images import PSTREE
from worker_shim.images import manifest as manifests
from worker_shim.images.port import ImageStore, Manifest
from worker_shim.images.staging import IMAGES
from worker_shim.reading.worker import WorkerView, read_worker

Saying = Callable[[int, int], None]  # worker, bytes of its images
Found = TypeVar("Found")


@dataclass(frozen=True)
class Held:
    """One worker's images while a reader has them."""

    worker: int
    directory: Path
    manifest: Manifest | None
    record: WorkerRecord | None

    def view(self) -> WorkerView:
        """All that is in them; raises DriverError naming an image that is damaged."""
        return read_worker(self.directory, self.worker, record=self.record, manifest=self.manifest)


class Source(Protocol):
    """The images of one snapshot."""

    @property
    def workers(self) -> tuple[int, ...]:
        """Whose images there are."""

    def worker(self, number: int) -> AbstractContextManager[Held]:
        """The images of one of them; raises DriverError, and BadRequest for no such worker."""


class StoredImages:
    """Those of a committed snapshot, from its store, every digest verified."""

    def __init__(
        self,
        store: ImageStore,
        records: Sequence[WorkerRecord],
        *,
        deadline_s: float,
        say: Saying = lambda worker, size: None,
    ) -> None:
        """`deadline_s` is for one worker; `say` is told before each is fetched."""
        self._store = store
        self._records = {record.worker: record for record in records}
        self._deadline_s = deadline_s
        self._say = say

    @property
    def workers(self) -> tuple[int, ...]:
        """As the snapshot's record has them."""
        return tuple(sorted(self._records))

    @contextmanager
    def worker(self, number: int) -> Iterator[Held]:
        """Fetch one worker's images and remove them at the end; raises DriverError."""
        record = _asked_for(self._records, number)
        # Its place may be chosen by TMPDIR: memory of processes needs room, and links to files of
        # a store that is a directory need the same file system, or they become symbolic.
        with tempfile.TemporaryDirectory(prefix="allstop-") as place:
            self._say(number, record.image_bytes)
            try:
                manifest = asyncio.run(self._fetch(record, Path(place)))
            except DriverError as error:
                if record.store != self._store.identity:
                    error.details += (f"the images are in another store, {record.store}",)
                raise error.at(job=record.job, worker=number) from error
            yield Held(number, Path(place), manifest, record)

    async def _fetch(self, record: WorkerRecord, into: Path) -> Manifest:
        return await self._store.fetch(
            record.manifest,
            record.manifest_digest,
            into,
            progress=lambda done, total: None,
            deadline_s=self._deadline_s,
        )


class PlainImages:
    """Those below a directory, taken as they are: one worker's, or one folder per worker."""

    def __init__(self, root: Path, records: Sequence[WorkerRecord] = ()) -> None:
        """`records`: of the snapshot, where it is known; raises BadRequest for no images."""
        self._places = _workers_below(root)
        self._records = {record.worker: record for record in records}

    @property
    def workers(self) -> tuple[int, ...]:
        """By the names of the folders."""
        return tuple(sorted(self._places))

    @contextmanager
    def worker(self, number: int) -> Iterator[Held]:
        """One worker's images; the digests are not verified."""
        place = _asked_for(self._places, number)
        record = self._records.get(number)
        path = place / manifests.FILE_NAME
        manifest = None
        if path.is_file():
            encoded = path.read_bytes()
            digest = record.manifest_digest if record else manifests.digest_of(encoded)
            manifest = manifests.decode(encoded, digest)
        yield Held(number, place, manifest, record)


def _workers_below(root: Path) -> dict[int, Path]:
    if _has_images(root):
        return {_number_in(root): root}
    found = (
        {
            int(place.name): place
            for place in root.iterdir()
            if place.name.isdecimal() and _has_images(place)
        }
        if root.is_dir()
        else {}
    )
    if not found:
        raise BadRequest(
            f"{root} has no images of workers",
            advice=f"it or folders 0, 1 … in it must have {IMAGES}/{PSTREE} or {PSTREE}",
        )
    return found


def _has_images(place: Path) -> bool:
    return (place / PSTREE).exists() or (place / IMAGES / PSTREE).exists()


def _number_in(place: Path) -> int:
    """A worker's number as its folder in a store says it."""
    return int(place.name) if place.name.isdecimal() else 0


def _asked_for(known: Mapping[int, Found], number: int) -> Found:
    if number not in known:
        have = ", ".join(str(each) for each in sorted(known))
        raise BadRequest(f"there is no worker {number}", advice=f"there are {have}")
    return known[number]
