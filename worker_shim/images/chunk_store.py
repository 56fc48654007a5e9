"""ImageStore over a store of objects: every chunk of a job once, whoever has it.

    <job>/<action>/<worker>/manifest    published last: whole or not there
    <job>/<action>/<worker>/list        what the worker has, for others of the attempt
    <job>/<action>/packs/<worker>.<id>  chunks that the worker stored
    <job>/<action>/<worker>/manifest.json and files: of version 1, read and removed still

A pack is named for the attempt that wrote it; manifests of later snapshots refer to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from worker_shim.images.chunks import checking, clearing, whole
from worker_shim.images.chunks.bases import Bases
from worker_shim.images.chunks.bringing import Bringing
from worker_shim.images.chunks.local import Kept as KeptHere
from worker_shim.images.chunks.local import Local
from worker_shim.images.chunks.pace import Budget, Limits
from worker_shim.images.chunks.reading import find_manifest
from worker_shim.images.chunks.storing import THREADS, Means, Putting
from worker_shim.images.names import checked_name, checked_place
from worker_shim.images.objects.port import ObjectStore
from worker_shim.images.port import Collected, Damage, Kept, Manifest, Stored
from worker_shim.images.sealing import Open, Sealing
from worker_shim.images.staging import listed
from worker_shim.images.transfer import Progress, Transfer, bounded

MEET_S = 30.0

T = TypeVar("T")


class ChunkStore:
    """The image store over any store of objects; `progress` callbacks come from threads."""

    def __init__(
        self,
        objects: ObjectStore,
        *,
        sealing: Sealing | None = None,
        limits: Limits | None = None,
        meet_s: float = MEET_S,
        verify_full: bool = False,
    ) -> None:
        """Keep images in `objects`.

        `meet_s` is how long a put waits for other workers of its attempt at most; `verify_full`
        makes it read back every byte it wrote, not the packs' indexes alone.
        """
        self.objects = objects
        self._sealing = sealing or Open()
        self._means = Means(
            objects,
            self._sealing,
            Budget(limits or Limits()),
            threading.Semaphore(THREADS),
            meet_s=meet_s,
            verify_full=verify_full,
        )
        self._local = Local()

    @property
    def identity(self) -> str:
        """That of the store of objects."""
        return self.objects.identity

    def free_bytes(self) -> int:
        """Room left."""
        return self.objects.free_bytes()

    def place(self, job: str, action: str, worker: int) -> str:
        """Where `put` publishes the images of an action, as the names of its objects begin."""
        return f"{checked_name(job, 'job')}/{checked_name(action, 'action')}/{worker}"

    async def put(
        self,
        staged: Path,
        manifest: Manifest,
        *,
        base: str = "",
        progress: Progress,
        deadline_s: float,
    ) -> Stored:
        """Hash everything, store what is not there, read it back, then publish.

        A crash half-way leaves packs without a manifest, which `delete` and `collect` remove.
        Raises DriverError: store full or unreachable, deadline passed, place taken.
        """
        place = self.place(manifest.job, manifest.action, manifest.worker)
        sizes = await asyncio.to_thread(listed, staged)
        # Every byte counts twice: read and hashed, then stored or found to be there.
        job = Transfer(2 * sum(sizes.values()), lambda done, total: progress(done // 2, total // 2))
        bases = Bases(self.objects, self._sealing, self._local.layout)
        putting = Putting(self._means, staged, manifest, place, base, bases, job, deadline_s)
        work = partial(self._put, putting)
        return await bounded(work, job, deadline_s, f"writing {place} to the image store")

    def _put(self, putting: Putting) -> Stored:
        stored, manifest, layout = putting.run()
        self._local.remember(putting.place, KeptHere(putting.staged, manifest, layout))
        return stored

    async def fetch(
        self, place: str, digest: str, into: Path, *, progress: Progress, deadline_s: float
    ) -> Manifest:
        """Bring the images to the existing directory `into`, verifying every digest.

        Large files that this node's staging has still are links to them. Nobody writes through a
        link: criu opens images read-only, and what of them is changed (addresses) is written aside
        and renamed into place.

        Raises DriverError naming file, chunk and pack of what is missing or not what was committed;
        `into` then holds part of the images. The store itself is only read.
        """
        checked_place(place)
        job = Transfer(0, progress)
        work = partial(self._fetch, place, digest, into, job)
        return await bounded(work, job, deadline_s, f"reading {place} from the image store")

    def _fetch(self, place: str, digest: str, into: Path, job: Transfer) -> Manifest:
        manifest, layout = find_manifest(self.objects, place, digest, self._sealing)
        if layout is None:
            return whole.fetch(self.objects, place, manifest, into, job)
        local = self._local.images(place)
        return Bringing(self.objects, self._sealing, manifest, layout, into, local, job).run()

    async def manifest(self, place: str, digest: str, *, deadline_s: float) -> Manifest:
        """Read the manifest alone, verified; raises as `fetch`."""
        checked_place(place)
        work = partial(find_manifest, self.objects, place, digest, self._sealing)
        return (await self._quietly(work, deadline_s, f"reading {place} from the image store"))[0]

    async def verify(
        self,
        place: str,
        digest: str,
        *,
        others: Sequence[Kept] = (),
        progress: Progress,
        deadline_s: float,
    ) -> tuple[Damage, ...]:
        """Read every pack that the manifest needs, and check every chunk."""
        checked_place(place)
        job = Transfer(0, progress)
        work = partial(checking.verify, self.objects, self._sealing, place, digest, others, job)
        return await bounded(work, job, deadline_s, f"reading {place} of the image store")

    async def actions(self, job: str, *, deadline_s: float) -> tuple[str, ...]:
        """Every attempt of the job that has objects."""
        work = partial(clearing.actions, self.objects, checked_name(job, "job"))
        return await self._quietly(work, deadline_s, f"listing {job} of the image store")

    async def collect(
        self,
        job: str,
        dead: Sequence[str],
        keep: Sequence[Kept],
        *,
        dry_run: bool,
        deadline_s: float,
    ) -> Collected:
        """Remove manifests of `dead` first, then the packs that no manifest in `keep` needs."""
        checked_name(job, "job")
        for action in dead:
            checked_name(action, "action")
        work = partial(clearing.collect, self.objects, self._sealing, job, dead, keep, dry_run)
        return await self._quietly(work, deadline_s, f"cleaning {job} in the image store")

    async def delete(self, place: str) -> None:
        """Remove what `put` published and wrote; the manifest first."""
        checked_place(place)
        self._local.forget(place)
        await asyncio.to_thread(clearing.delete, self.objects, place)

    def sweep(self) -> tuple[str, ...]:
        """Remove what an earlier shim of this node was writing; returns what went."""
        return self.objects.sweep()

    async def _quietly(self, work: Callable[[], T], deadline_s: float, doing: str) -> T:
        return await bounded(work, Transfer(0, lambda done, total: None), deadline_s, doing)
