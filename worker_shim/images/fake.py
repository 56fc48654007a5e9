"""ImageStore in memory, for tests of whoever uses one; same rules, no disk of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from blake3 import blake3

from coordinator.core.errors import DriverError
from worker_shim.images import manifest as manifests
from worker_shim.images.names import inside
from worker_shim.images.port import Collected, Damage, Kept, Manifest, Stored, StoredFile
from worker_shim.images.staging import listed


@dataclass
class FakeImageStore:
    """Keeps what was put as bytes; set `failure` to make the next call raise it.

    `hang` makes every call wait until the event is set, as a shared file system does whose server
    is gone: a cancelled call ends only then, and has done nothing.
    """

    identity: str = "fake-store"
    published: dict[str, tuple[bytes, dict[str, bytes]]] = field(default_factory=dict)
    failure: DriverError | None = None
    room_bytes: int = 1 << 40
    hang: asyncio.Event | None = None
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    async def put(
        self,
        staged: Path,
        manifest: Manifest,
        *,
        base: str = "",
        progress: Callable[[int, int], None],
        deadline_s: float,
    ) -> Stored:
        """Keep every staged file; nothing is kept when `failure` is set."""
        self._fail()
        await self._answer()
        place = self.place(manifest.job, manifest.action, manifest.worker)
        if place in self.published:
            raise DriverError(f"{place} exists already")
        content = await asyncio.to_thread(_staged_files, staged)
        total = sum(len(data) for data in content.values())
        progress(total, total)
        files = tuple(
            StoredFile(name, len(data), str(blake3(data).hexdigest()))
            for name, data in content.items()
        )
        encoded = manifests.encode(replace(manifest, files=files))
        held = self._held(manifest.job)
        shared = sum(file.size_bytes for file in files if file.digest in held)
        self.published[place] = (encoded, content)
        return Stored(place, manifests.digest_of(encoded), total, total - shared, shared)

    async def fetch(
        self,
        place: str,
        digest: str,
        into: Path,
        *,
        progress: Callable[[int, int], None],
        deadline_s: float,
    ) -> Manifest:
        """Write the files below `into` after the same checks as a real store."""
        self._fail()
        await self._answer()
        if place not in self.published:
            raise DriverError(f"the image store has no {place}")
        encoded, content = self.published[place]
        manifest = manifests.decode(encoded, digest)
        for file in manifest.files:
            data = content.get(file.name)
            if data is None or str(blake3(data).hexdigest()) != file.digest:
                raise DriverError(f"{file.name} in the image store is not what was committed")
            path = inside(into, file.name)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(data)
        total = sum(file.size_bytes for file in manifest.files)
        progress(total, total)
        return manifest

    async def manifest(self, place: str, digest: str, *, deadline_s: float) -> Manifest:
        """As a real store reads it."""
        self._fail()
        await self._answer()
        if place not in self.published:
            raise DriverError(f"the image store has no {place}")
        return manifests.decode(self.published[place][0], digest)

    def place(self, job: str, action: str, worker: int) -> str:
        """As a real store names it."""
        return f"{job}/{action}/{worker}"

    async def delete(self, place: str) -> None:
        """Forget it; no error when it is not there."""
        await self._answer()
        self.published.pop(place, None)

    async def verify(
        self,
        place: str,
        digest: str,
        *,
        others: Sequence[Kept] = (),
        progress: Callable[[int, int], None],
        deadline_s: float,
    ) -> tuple[Damage, ...]:
        """Every file whose bytes are not those of its digest."""
        manifest = await self.manifest(place, digest, deadline_s=deadline_s)
        content = self.published[place][1]
        damaged = []
        for file in manifest.files:
            data = content.get(file.name)
            if data is None or str(blake3(data).hexdigest()) != file.digest:
                what = "missing" if data is None else "other bytes than were committed"
                sharers = tuple(
                    other.place
                    for other in others
                    if other.place != place and file.digest in self._digests(other.place)
                )
                damaged.append(Damage(file.digest, what, file.name, sharers))
        total = sum(file.size_bytes for file in manifest.files)
        progress(total, total)
        return tuple(damaged)

    async def actions(self, job: str, *, deadline_s: float) -> tuple[str, ...]:
        """As a real store lists them."""
        self._fail()
        await self._answer()
        return tuple(sorted({place.split("/")[1] for place in self._places(job)}))

    async def collect(
        self,
        job: str,
        dead: Sequence[str],
        keep: Sequence[Kept],
        *,
        dry_run: bool,
        deadline_s: float,
    ) -> Collected:
        """Every place is an object of its own here."""
        for kept in keep:
            await self.manifest(kept.place, kept.digest, deadline_s=deadline_s)
        stay = {kept.place for kept in keep}
        gone = [p for p in self._places(job) if p.split("/")[1] in dead and p not in stay]
        freed = sum(len(data) for p in gone for data in self.published[p][1].values())
        for place in () if dry_run else gone:
            del self.published[place]
        return Collected(len(gone), freed)

    def _places(self, job: str) -> list[str]:
        return [place for place in self.published if place.startswith(f"{job}/")]

    def _digests(self, place: str) -> set[str]:
        if place not in self.published:
            return set()
        encoded = self.published[place][0]
        files = manifests.decode(encoded, manifests.digest_of(encoded)).files
        return {file.digest for file in files}

    def _held(self, job: str) -> set[str]:
        return {digest for place in self._places(job) for digest in self._digests(place)}

    def sweep(self) -> tuple[str, ...]:
        """Nothing is ever half-written here."""
        return ()

    def free_bytes(self) -> int:
        """As set."""
        return self.room_bytes

    async def _answer(self) -> None:
        if self.hang is None:
            return
        self.hanging.set()
        waiting = asyncio.ensure_future(self.hang.wait())
        try:
            await asyncio.wait({waiting})
        finally:
            await asyncio.wait({waiting})

    def _fail(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


def _staged_files(staged: Path) -> dict[str, bytes]:
    return {name: (staged / name).read_bytes() for name in listed(staged)}
