"""put: a worker's staged files become chunks, each of them in the store once, then a manifest.

What is there already is looked for in this order: the base's manifests, the packs that this put
writes, those that other workers of the attempt write meanwhile.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordinator.core.errors import DriverError
from worker_shim.images import manifest as version_1
from worker_shim.images.chunks import layout as layouts
from worker_shim.images.chunks.bases import Bases
from worker_shim.images.chunks.cutting import DIGEST_BYTES, Cuts, cut, hasher
from worker_shim.images.chunks.layout import Layout, Pack
from worker_shim.images.chunks.meeting import Meeting, Polls
from worker_shim.images.chunks.pace import Budget, Pace
from worker_shim.images.chunks.packs import PACK_BYTES, Index, NotPacked, Packer, read_index
from worker_shim.images.chunks.pagemap import seams
from worker_shim.images.chunks.reading import ChunkReader, reads
from worker_shim.images.chunks.table import Places, as_digests
from worker_shim.images.chunks.wanted import Missing, Wanted, batches_of, chunks_of, joined
from worker_shim.images.objects.causes import store_error
from worker_shim.images.objects.port import ObjectMissing, ObjectStore
from worker_shim.images.port import Manifest, Stored, StoredFile
from worker_shim.images.priority import yield_to_others
from worker_shim.images.sealing import Sealing
from worker_shim.images.staging import listed
from worker_shim.images.transfer import Transfer, run_all

THREADS = 4
TURN_S = 0.2  # between looks whether to stop, while other puts fill their packs
WAIT_SHARE = 0.25  # of the deadline, for others
PATIENCE_S, PATIENCE = 3.0, 4.0


@dataclass(frozen=True)
class Means:
    """What every put of a store uses."""

    objects: ObjectStore
    sealing: Sealing
    budget: Budget
    packers: threading.Semaphore  # a pack of memory each, over all puts at once
    meet_s: float = 30.0
    verify_full: bool = False
    threads: int = THREADS


@dataclass
class Putting:
    """One put; `run` blocks, in a thread."""

    means: Means
    staged: Path
    manifest: Manifest
    place: str
    base: str
    bases: Bases
    job: Transfer
    deadline_s: float
    pace: Pace = field(init=False)
    packs: list[Pack] = field(default_factory=list)  # as the manifest numbers them
    numbers: dict[str, int] = field(default_factory=dict)
    own: dict[str, Index] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)  # also what may have been written
    stored_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    cut_s: float = 0.0  # how long hashing took, which is about what it takes the others

    def __post_init__(self) -> None:
        """The limits count from now."""
        self.pace = Pace(self.means.budget, self.job.stop)
        self.named = hasher(self.means.sealing.hash_key)

    @property
    def attempt(self) -> str:
        """Job and action, as objects' names begin."""
        return f"{self.manifest.job}/{self.manifest.action}"

    def run(self) -> tuple[Stored, Manifest, Layout]:
        """Store everything and publish the manifest.

        Whatever fails, what this put has written is removed as far as the store allows.
        """
        try:
            return self._run()
        except OSError as error:  # of staging: a store's are mapped where they come from
            self.remove_written()
            raise store_error(error, self.staged) from error
        except BaseException:
            self.remove_written()
            raise

    def remove_written(self) -> None:
        """The manifest first; what cannot be removed now is left to `collect`."""
        for name in reversed(self.written):
            with suppress(DriverError):
                self.means.objects.delete(name)

    def _run(self) -> tuple[Stored, Manifest, Layout]:
        self._require_free()
        began = time.monotonic()
        cuts = self._cut()
        self.cut_s = time.monotonic() - began
        wanted, chunk = chunks_of(cuts)
        dumped = sum(int(each.all_lengths.sum(dtype=np.int64)) for each in cuts)
        self._look_in_base(wanted)
        left = self._meet(wanted)
        own_bytes = self._store(wanted, left)
        own_bytes += self._look_at_others(wanted)
        self._check()
        layout = self._layout(cuts, wanted, chunk)
        if self.means.verify_full:
            self._check_every_byte(layout)
        digest = self._publish(cuts, layout)
        self.job.finish()
        stored = Stored(self.place, digest, dumped, self.stored_bytes, dumped - own_bytes)
        return stored, self.manifest, layout

    # -- looking -------------------------------------------------------------------------------

    def _require_free(self) -> None:
        for name in (layouts.NAME, version_1.FILE_NAME):
            with suppress(ObjectMissing):
                self.means.objects.size(f"{self.place}/{name}")
                raise DriverError(f"{self.place} exists already")

    def _cut(self) -> list[Cuts]:
        files = listed(self.staged)
        seam = seams(self.staged)
        works = [
            partial(self._cut_one, name, seam.get(name, ()))
            for name in sorted(files, key=lambda name: -files[name])
        ]
        done = run_all(works, self.job, threads=self.means.threads, begin=self._begin)
        by_name = {cuts.name: cuts for cuts in done}
        return [by_name[name] for name in files]

    def _begin(self) -> None:
        yield_to_others()
        self.pace.begin()

    def _cut_one(self, name: str, seams_of_file: Sequence[int]) -> Cuts:
        def spent(count: int) -> None:
            self.pace.worked()
            self.job.advance(count)

        return cut(self.staged / name, name, seams_of_file, self.named, spent)

    def _look_in_base(self, wanted: Wanted) -> None:
        if not self.base:
            return
        for layout, sizes in self.bases.layouts(
            self.manifest.job, self.base, self.manifest.worker, self.manifest.workers
        ):
            self.pace.worked()
            if not len(wanted.nowhere()):
                return
            wanted.take_from_base(layout, sizes, self._number)

    def _meet(self, wanted: Wanted) -> NDArray[np.bool_]:
        """Which chunks are left to another worker of the attempt."""
        left = np.zeros(len(wanted.digests), bool)
        if self.manifest.workers <= 1:
            return left
        missing = wanted.nowhere()
        meeting = self._meeting()
        self.written.append(meeting.list_name(self.manifest.worker))
        self.stored_bytes += meeting.publish(wanted.digests[missing])
        left[missing] = meeting.left_to_others(
            wanted.digests[missing], wait_s=self._wait_s, stop=self.job.stop
        )
        return left

    def _meeting(self) -> Meeting:
        means, about = self.means, self.manifest
        return Meeting(means.objects, means.sealing, self.attempt, about.worker, about.workers)

    @property
    def _wait_s(self) -> float:
        """For others, who began at the same time: a multiple of what this one has taken so far."""
        patience_s = PATIENCE_S + PATIENCE * self.cut_s
        return min(self.means.meet_s, self.deadline_s * WAIT_SHARE, patience_s)

    def _look_at_others(self, wanted: Wanted) -> int:
        """Find what was left to others in their packs; store what is not there after a while."""
        seen = set(self.own)
        missing = Missing(wanted)
        looks = Polls(self._wait_s, self.job.stop)
        for _ in looks:
            if not len(wanted.nowhere()):
                return 0
            if self._take_from_others(missing, seen):
                looks.again()
        return self._store(wanted, np.zeros(len(wanted.digests), bool))

    def _take_from_others(self, missing: Missing, seen: set[str]) -> bool:
        """Whether there was any pack that was not seen before."""
        new = False
        for found in self.means.objects.list(f"{self.attempt}/packs/"):
            if found.name in seen:
                continue
            seen.add(found.name)
            new = True
            with suppress(DriverError):  # damaged, or gone again: as if it were not there
                index, size = read_index(self.means.objects, found.name, self.means.sealing)
                if missing.any_in(index):
                    missing.take(self._number(found.name, size), index)
        return new

    def _number(self, name: str, size_bytes: int) -> int:
        with self.lock:
            if name not in self.numbers:
                self.numbers[name] = len(self.packs)
                self.packs.append(Pack(name, size_bytes))
            return self.numbers[name]

    # -- writing -------------------------------------------------------------------------------

    def _store(self, wanted: Wanted, left: NDArray[np.bool_]) -> int:
        """Write every chunk that is nowhere and not left to others; returns their bytes."""
        mine = wanted.nowhere()
        mine = mine[~left[mine]]
        if not len(mine):
            return 0
        batches = batches_of(mine, wanted.raw)
        total = int(wanted.raw[mine].sum(dtype=np.int64))
        threads = min(self.means.threads, -(-total // PACK_BYTES))  # a pack each, at least
        works = [partial(self._pack, wanted, batches) for _ in range(threads)]
        run_all(works, self.job, threads=threads, begin=self._begin)
        return total

    def _pack(self, wanted: Wanted, batches: Iterator[Places]) -> None:
        """Take batches until there are none, filling packs of one's own."""
        while not self.means.packers.acquire(timeout=TURN_S):
            self.pace.worked()
        try:
            self._fill_packs(wanted, batches)
        finally:
            self.means.packers.release()

    def _fill_packs(self, wanted: Wanted, batches: Iterator[Places]) -> None:
        packer, taken = Packer(self.means.sealing), list[Places]()
        names = list(listed(self.staged))
        while True:
            with self.lock:
                batch = next(batches, None)
            if batch is None:
                break
            for file in np.unique(wanted.file[batch]).tolist():
                chunks = batch[wanted.file[batch] == file]
                self._pack_of(wanted, chunks, names[file], packer)
                taken.append(chunks)
            if packer.size_bytes >= PACK_BYTES:
                self._close(wanted, packer, taken)
        if taken:
            self._close(wanted, packer, taken)

    def _pack_of(self, wanted: Wanted, chunks: Places, name: str, packer: Packer) -> None:
        starts, lengths = wanted.start[chunks].tolist(), wanted.raw[chunks].tolist()
        with open(self.staged / name, "rb", buffering=0) as file:
            for chunk, start, length in zip(chunks.tolist(), starts, lengths, strict=True):
                data = os.pread(file.fileno(), length, start)
                digest = wanted.digests[chunk].tobytes()
                if self.named(memoryview(data)) != digest:
                    raise DriverError(
                        f"{name} in staging was changed while it was stored",
                        advice="something else writes to the staging directory: take a new "
                        "checkpoint, and give every shim of this machine a --node name of its own",
                    )
                packer.add(digest, data)
                self.pace.worked()
                self.job.advance(length)

    def _close(self, wanted: Wanted, packer: Packer, taken: list[Places]) -> None:
        name = f"{self.attempt}/packs/{self.manifest.worker}.{secrets.token_hex(8)}"
        parts, index = packer.close(name)
        size = sum(map(len, parts))
        self.pace.sending(size)
        with self.lock:
            self.written.append(name)
        if not self.means.objects.put(name, parts):
            raise DriverError(f"{name} exists already", definite=True)
        number = self._number(name, size)
        with self.lock:
            self.own[name] = index
            self.stored_bytes += size
            wanted.are_in(number, np.concatenate(taken), index, np.arange(len(index.raw)))
        taken.clear()

    def _check(self) -> None:
        """Read back what was written: sizes and indexes, or every byte."""
        for name, index in self.own.items():
            self.pace.worked()
            found, size = read_index(self.means.objects, name, self.means.sealing)
            if size != self.packs[self.numbers[name]].size_bytes or not np.array_equal(
                found.digests, index.digests
            ):
                raise DriverError(f"{name} in the image store is not what was written")

    def _check_every_byte(self, layout: Layout) -> None:
        """Of what this put has written; what others and the base have was checked by its writer."""
        numbers = [self.numbers[name] for name in self.own]
        chunks = np.flatnonzero(np.isin(layout.pack, numbers))
        reader = ChunkReader(self.means.objects, layout, self.means.sealing)
        for read in reads(layout, chunks):
            for _, found in reader.chunks(read):
                self.pace.worked()
                if isinstance(found, NotPacked):
                    raise DriverError(f"a chunk in {read.pack}, just written, is {found}")

    def _layout(self, cuts: Sequence[Cuts], wanted: Wanted, chunk: Places) -> Layout:
        return Layout(
            tuple(self.packs),
            wanted.digests,
            wanted.raw,
            wanted.pack.astype(np.uint32),
            wanted.offset,
            wanted.stored,
            wanted.codec,
            np.array([len(each.digests) // DIGEST_BYTES for each in cuts], np.uint32),
            chunk.astype(np.uint32),
            joined([each.all_starts for each in cuts], np.uint64),
        )

    def _publish(self, cuts: Sequence[Cuts], layout: Layout) -> str:
        files = tuple(
            StoredFile(
                each.name,
                each.size_bytes,
                layouts.file_digest(as_digests(each.digests), each.all_starts, each.size_bytes),
            )
            for each in cuts
        )
        self.manifest = replace(self.manifest, version=layouts.VERSION, files=files)
        name = f"{self.place}/{layouts.NAME}"
        encoded = layouts.encode(self.manifest, layout, name, self.means.sealing)
        self.pace.sending(len(encoded))
        self.written.append(name)
        if not self.means.objects.put(name, [encoded]):
            self.written.remove(name)
            raise DriverError(f"{self.place} exists already")
        self.stored_bytes += len(encoded)
        if self.job.stop.is_set():  # nobody waits for it any more, or it was undone meanwhile
            self.pace.worked()
        return version_1.digest_of(encoded)
