"""fetch: the files of a worker are put together on this node from what is here and from packs."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from coordinator.core.errors import DriverError
from worker_shim.images.chunks.cutting import hasher
from worker_shim.images.chunks.layout import Layout
from worker_shim.images.chunks.local import SOURCE_CHUNKS, LocalImages, Source
from worker_shim.images.chunks.packs import NotPacked
from worker_shim.images.chunks.reading import ChunkReader, Read, reads
from worker_shim.images.chunks.table import Places
from worker_shim.images.copying import CopyStopped
from worker_shim.images.names import inside
from worker_shim.images.objects.causes import store_error
from worker_shim.images.objects.port import ObjectStore, Part
from worker_shim.images.port import Manifest
from worker_shim.images.priority import go_first, session_goes_first
from worker_shim.images.sealing import Sealing
from worker_shim.images.transfer import Transfer, run_all

READERS_MAX = 16
READERS_MIN = 4  # a store answers several at once however few cores there are
OPEN_FILES = 16


@dataclass
class Bringing:
    """One fetch; `run` blocks, in a thread."""

    objects: ObjectStore
    sealing: Sealing
    manifest: Manifest
    layout: Layout
    into: Path
    local: LocalImages
    job: Transfer
    # for each piece, sorted by chunk: which piece; and where each chunk's pieces begin there
    by_chunk: Places = field(init=False)
    begins: Places = field(init=False)
    file_of: Places = field(init=False)

    def __post_init__(self) -> None:
        """Turn the layout round: which pieces need a chunk."""
        self.by_chunk = np.argsort(self.layout.chunk, kind="stable")
        sorted_chunks = self.layout.chunk[self.by_chunk]
        self.begins = np.searchsorted(sorted_chunks, np.arange(len(self.layout.digests) + 1))
        self.file_of = self.layout.files()
        sizes = self.layout.raw[self.layout.chunk]
        self.job.total_bytes = int(sizes.sum(dtype=np.int64))

    def run(self) -> Manifest:
        """Bring everything; raises DriverError naming file, chunk and pack of what is damaged."""
        threads = min(READERS_MAX, max(READERS_MIN, os.cpu_count() or 1))
        with session_goes_first():
            try:
                chunks = np.unique(self.layout.chunk[self._make_files()]).astype(np.int64)
                chunks = self._take_from_here(chunks, threads)
                works = [partial(self._bring, read) for read in reads(self.layout, chunks)]
                run_all(works, self.job, threads=threads, begin=go_first)
            except OSError as error:
                raise store_error(error, self.into) from error
        self.job.finish()
        return self.manifest

    def _make_files(self) -> Places:
        """Link what is here, make the others with their sizes; returns the pieces still wanted."""
        wanted = np.ones(len(self.layout.chunk), bool)
        for file, (begin, end) in zip(self.manifest.files, self.layout.spans(), strict=True):
            if self.job.stop.is_set():
                raise CopyStopped
            target = inside(self.into, file.name)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.local.link(file, target):
                wanted[begin:end] = False
                chunks = self.layout.chunk[begin:end]
                self.job.advance(int(self.layout.raw[chunks].sum(dtype=np.int64)))
                continue
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(target, flags, 0o600)
            try:
                os.ftruncate(descriptor, file.size_bytes)
            finally:
                os.close(descriptor)
        self.wanted = wanted
        return np.flatnonzero(wanted)

    def _take_from_here(self, chunks: Places, threads: int) -> Places:
        """Copy what staging has of other images; returns the chunks that must come from packs."""
        works = [
            partial(self._copy, some)
            for some in grouped(self.local.sources(self.layout.digests, chunks))
        ]
        if not works:
            return chunks
        copied = run_all(works, self.job, threads=threads, begin=go_first)
        return chunks[~np.isin(chunks, np.concatenate(copied))]

    def _copy(self, sources: Sequence[Source]) -> Places:
        """Copy chunks out of files here; returns those that were in them as they should be."""
        return np.concatenate([self._copy_one(source) for source in sources])

    def _copy_one(self, source: Source) -> Places:
        named = hasher(self.sealing.hash_key)
        lengths = self.layout.raw[source.chunks].tolist()
        good = np.zeros(len(source.chunks), bool)
        with (
            suppress(FileNotFoundError),  # dropped meanwhile
            self._writers() as writers,
            open(source.path, "rb", buffering=0) as file,
        ):
            for number, chunk in enumerate(source.chunks.tolist()):
                if self.job.stop.is_set():
                    raise CopyStopped
                data = os.pread(file.fileno(), lengths[number], int(source.starts[number]))
                if named(memoryview(data)) == self.layout.digests[chunk].tobytes():
                    self._place(chunk, data, writers)
                    good[number] = True
        return source.chunks[good]

    def _writers(self) -> Writers:
        return Writers(self.into, [file.name for file in self.manifest.files])

    def _bring(self, read: Read) -> None:
        reader = ChunkReader(self.objects, self.layout, self.sealing)
        with self._writers() as writers:
            for chunk, data in reader.chunks(read):
                if self.job.stop.is_set():
                    raise CopyStopped
                if isinstance(data, NotPacked):
                    raise self._damaged(chunk, read.pack, data)
                self._place(chunk, data, writers)

    def _place(self, chunk: int, data: Part, writers: Writers) -> None:
        for piece in self.by_chunk[self.begins[chunk] : self.begins[chunk + 1]].tolist():
            if self.wanted[piece]:
                writers.write(int(self.file_of[piece]), data, int(self.layout.at[piece]))
                self.job.advance(len(data))

    def _damaged(self, chunk: int, pack: str, why: NotPacked) -> DriverError:
        piece = int(self.by_chunk[self.begins[chunk]])
        name = self.manifest.files[int(self.file_of[piece])].name
        digest = self.layout.digests[chunk].tobytes().hex()
        return DriverError(
            f"{name} of the snapshot: chunk {digest[:16]} in {pack} of the image store is {why}",
            advice="the image store is damaged; restore an older snapshot, and see with "
            "`allstop verify` which others need this chunk",
            details=(f"chunk {digest}",),
        )


def grouped(sources: Iterable[Source]) -> Iterator[list[Source]]:
    """Some at a time: most files of an image are a few hundred bytes, and a thread costs more."""
    group, chunks = list[Source](), 0
    for source in sources:
        group.append(source)
        chunks += len(source.chunks)
        if chunks >= SOURCE_CHUNKS:
            yield group
            group, chunks = [], 0
    if group:
        yield group


class Writers:
    """The files that a thread is writing to; few are open at a time."""

    def __init__(self, into: Path, names: Sequence[str]) -> None:
        """None is open."""
        self._into, self._names = into, names
        self._open: OrderedDict[int, int] = OrderedDict()

    def __enter__(self) -> Writers:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all."""
        while self._open:
            os.close(self._open.popitem()[1])

    def write(self, file: int, data: Part, at: int) -> None:
        """Write at a place; raises OSError."""
        if file not in self._open:
            if len(self._open) >= OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            path = inside(self._into, self._names[file])
            self._open[file] = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        rest = memoryview(data)
        while rest:
            count = os.pwrite(self._open[file], rest, at)
            rest, at = rest[count:], at + count
