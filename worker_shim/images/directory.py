"""ImageStore on a directory that all nodes see: a shared file system, or one disk in development.

<root>/store.id                          random, made once: tells two stores apart
<root>/partial/<job>.<action>.<worker>.…@<node> being written; nobody reads it
<root>/<job>/<action>/<worker>/          published by one rename: whole or not there
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

from coordinator.core.errors import DriverError
from worker_shim.images import manifest as manifests
from worker_shim.images.copying import (
    CopyStopped,
    copy_hashed,
    hash_only,
    link_hashed,
    link_known,
    sync_directory,
)  # fmt: skip
from worker_shim.images.known import TICK_S, KnownFiles
from worker_shim.images.names import checked_name, inside
from worker_shim.images.port import Collected, Damage, Kept, Manifest, Stored, StoredFile
from worker_shim.images.priority import go_first, session_goes_first, yield_to_others
from worker_shim.images.staging import listed
from worker_shim.images.transfer import Copy, Progress, Transfer, Work, bounded, run_all

PARTIAL = "partial"
IDENTITY = "store.id"
NOBODY = "@"  # mark of a store that was opened without a node
DEAD_PARTIAL_S = 86_400.0
COPIERS = 4
VERIFIERS_MAX = 16
LINK_BYTES_MIN = 1 << 20


class DirectoryStore:
    """The image store on a directory; `progress` callbacks come from threads."""

    def __init__(self, root: Path, node: str = "") -> None:
        """Open (or make) the store for a node's shim; raises DriverError when it cannot be used."""
        self.root = root
        self._mark = f"@{quote(node, safe='')}"
        self._known = KnownFiles()
        try:
            (root / PARTIAL).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._identity = _identity(root)
        except OSError as error:
            raise _store_error(error, root) from error

    @property
    def identity(self) -> str:
        """The random id that was written when the store was made."""
        return self._identity

    def free_bytes(self) -> int:
        """Room left for an ordinary user."""
        room = os.statvfs(self.root)
        return room.f_bavail * room.f_frsize

    async def put(
        self,
        staged: Path,
        manifest: Manifest,
        *,
        base: str = "",
        progress: Progress,
        deadline_s: float,
    ) -> Stored:
        """Copy, hash and sync everything, then publish.

        A crash half-way leaves only a directory under `partial/` that `sweep` removes.
        Raises DriverError: store full or unreachable, deadline passed, place taken.
        """
        place = self.place(manifest.job, manifest.action, manifest.worker)
        name = f"{place.replace('/', '.')}.{secrets.token_hex(4)}{self._mark}"
        half = self.root / PARTIAL / name
        copies = await asyncio.to_thread(_staged_files, staged, half)
        job = Transfer(sum(copy.size_bytes for copy in copies), progress)
        work = partial(self._put, copies, half, manifest, place, job)
        digest = await bounded(work, job, deadline_s, f"writing {place} to the image store")
        return Stored(place, digest, job.total_bytes, job.total_bytes, 0)

    def _put(
        self, copies: Sequence[Copy], half: Path, manifest: Manifest, place: str, job: Transfer
    ) -> str:
        target = inside(self.root, place)
        try:
            half.mkdir(mode=0o700)
            works = [_copying(copy, job, sync=True) for copy in copies]
            stored = run_all(works, job, threads=COPIERS, begin=yield_to_others)
            encoded = manifests.encode(replace(manifest, files=tuple(stored)))
            _write_synced(half / manifests.FILE_NAME, encoded)
            for directory in (path for path in half.rglob("*") if path.is_dir()):
                sync_directory(directory)
            sync_directory(half)
            self._remember(copies, stored)
            if job.stop.is_set():
                raise CopyStopped
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.rename(half, target)
            if job.stop.is_set():  # nobody waits for it any more, or it was undone meanwhile
                self._delete(target)
                raise CopyStopped
        except OSError as error:
            raise _store_error(error, self.root) from error
        finally:
            shutil.rmtree(half, ignore_errors=True)
        try:
            for directory in (target.parent, target.parent.parent, self.root):
                sync_directory(directory)
        except OSError as error:
            raise _store_error(error, self.root, definite=False) from error
        return manifests.digest_of(encoded)

    def _remember(self, copies: Sequence[Copy], stored: Sequence[StoredFile]) -> None:
        """What is hashed now needs no second reading here; under its own name it is not yet."""
        time.sleep(TICK_S)
        for copy, file in zip(copies, stored, strict=True):
            if file.size_bytes >= LINK_BYTES_MIN:
                self._known.remember(copy.target, file.digest)

    async def fetch(
        self, place: str, digest: str, into: Path, *, progress: Progress, deadline_s: float
    ) -> Manifest:
        """Bring the images to the existing directory `into`, verifying every digest.

        What this shim wrote itself and nobody changed is not read again; see `known`.
        Large files are links to those in the store, small ones, which a restore may rewrite, are
        copies. Nobody writes through a link: criu opens images read-only, and what of them is
        changed (addresses) is written aside and renamed into place.

        Raises DriverError naming the file that is missing or not what was committed; `into` then
        holds part of the images. The store itself is only read.
        """
        source = inside(self.root, place)
        job = Transfer(0, progress)
        work = partial(_fetch, source, digest, into, job, self._known)
        return await bounded(work, job, deadline_s, f"reading {place} from the image store")

    async def manifest(self, place: str, digest: str, *, deadline_s: float) -> Manifest:
        """Read the manifest alone, verified; raises as `fetch`."""
        source, job = inside(self.root, place), Transfer(0, lambda done, total: None)
        work = partial(_manifest, source, digest)
        return await bounded(work, job, deadline_s, f"reading {place} from the image store")

    def place(self, job: str, action: str, worker: int) -> str:
        """Where `put` publishes the images of an action, relative to the root."""
        return f"{checked_name(job, 'job')}/{checked_name(action, 'action')}/{worker}"

    async def verify(
        self,
        place: str,
        digest: str,
        *,
        others: Sequence[Kept] = (),
        progress: Progress,
        deadline_s: float,
    ) -> tuple[Damage, ...]:
        """Hash every file again; no two places share anything here."""
        source, job = inside(self.root, place), Transfer(0, progress)
        work = partial(_damaged, source, digest, job)
        return await bounded(work, job, deadline_s, f"reading {place} of the image store")

    async def actions(self, job: str, *, deadline_s: float) -> tuple[str, ...]:
        """Every attempt of the job that has a directory."""
        root = inside(self.root, checked_name(job, "job"))

        def listing() -> tuple[str, ...]:
            self._require_here()
            return tuple(sorted(one.name for one in root.iterdir())) if root.is_dir() else ()

        quiet = Transfer(0, lambda done, total: None)
        return await bounded(listing, quiet, deadline_s, f"listing {job} of the image store")

    async def collect(
        self,
        job: str,
        dead: Sequence[str],
        keep: Sequence[Kept],
        *,
        dry_run: bool,
        deadline_s: float,
    ) -> Collected:
        """Remove the directories of `dead`, but for places in `keep`."""
        work = partial(self._collect, job, dead, {kept.place for kept in keep}, dry_run)
        quiet = Transfer(0, lambda done, total: None)
        return await bounded(work, quiet, deadline_s, f"cleaning {job} in the image store")

    def _collect(self, job: str, dead: Sequence[str], stay: set[str], dry_run: bool) -> Collected:
        self._require_here()
        objects = freed = 0
        for action in dead:
            root = inside(self.root, f"{checked_name(job, 'job')}/{checked_name(action, 'action')}")
            for place in sorted(root.iterdir()) if root.is_dir() else ():
                if str(place.relative_to(self.root)) in stay:
                    continue
                objects += 1
                freed += sum(one.stat().st_size for one in place.rglob("*") if one.is_file())
                if not dry_run:
                    self._delete(place)
            if not dry_run and root.is_dir() and not any(root.iterdir()):
                root.rmdir()
        return Collected(objects, freed)

    def _require_here(self) -> None:
        """Raise DriverError where this is not the store any more: nothing there is no answer."""
        try:
            found = (self.root / IDENTITY).read_text().strip()
        except OSError as error:
            raise _store_error(error, self.root) from error
        if found != self._identity:
            raise DriverError(
                f"{self.root} is another image store now",
                advice="is the right file system mounted there?",
            )

    async def delete(self, place: str) -> None:
        """Remove what `put` published; it vanishes at once, its bytes a moment later."""
        await asyncio.to_thread(self._delete, inside(self.root, place))

    def _delete(self, target: Path) -> None:
        dying = self.root / PARTIAL / f"deleted.{secrets.token_hex(8)}"
        try:
            os.rename(target, dying)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _store_error(error, self.root) from error
        shutil.rmtree(dying, ignore_errors=True)

    def sweep(self, *, older_than_s: float = DEAD_PARTIAL_S) -> tuple[str, ...]:
        """Remove what this node's earlier shims left, and whatever nobody touched for so long.

        Only for who has claimed the node. Returns the names of what went.
        """
        swept = []
        for half in sorted((self.root / PARTIAL).iterdir()):
            own = self._mark != NOBODY and half.name.endswith(self._mark)
            if own or _untouched(half, older_than_s):
                shutil.rmtree(half, ignore_errors=True)
                swept.append(half.name)
        return tuple(swept)


def _untouched(half: Path, seconds: float) -> bool:
    try:
        newest = max(path.stat().st_mtime for path in (half, *half.rglob("*")))
    except FileNotFoundError:  # somebody works there
        return False
    return time.time() - newest >= seconds


def _manifest(source: Path, digest: str) -> Manifest:
    try:
        encoded = (source / manifests.FILE_NAME).read_bytes()
    except FileNotFoundError as error:
        raise DriverError(
            f"the image store has no {source}",
            advice="is the store mounted here the one the snapshot was written to?",
        ) from error
    except OSError as error:
        raise _store_error(error, source) from error
    return manifests.decode(encoded, digest)


def _damaged(source: Path, digest: str, job: Transfer) -> tuple[Damage, ...]:
    manifest = _manifest(source, digest)
    job.total_bytes = sum(file.size_bytes for file in manifest.files)
    damaged = []
    for file in manifest.files:
        try:
            found = hash_only(source / file.name, file.name, job.stop, job.advance)
        except OSError as error:
            damaged.append(Damage(file.name, f"cannot be read: {error.strerror}", file.name))
            continue
        if found != file:
            damaged.append(Damage(file.name, "other bytes than were committed", file.name))
    return tuple(damaged)


def _fetch(source: Path, digest: str, into: Path, job: Transfer, known: KnownFiles) -> Manifest:
    manifest = _manifest(source, digest)
    job.total_bytes = sum(file.size_bytes for file in manifest.files)
    copies = [
        Copy(inside(source, file.name), inside(into, file.name), file.name, file.size_bytes)
        for file in manifest.files
    ]
    try:
        # Hashing many large files at once is worth a core each; the largest ones come first.
        order = sorted(range(len(copies)), key=lambda at: -copies[at].size_bytes)
        works = [_bringing(copies[at], manifest.files[at], job, known) for at in order]
        threads = min(VERIFIERS_MAX, max(COPIERS, os.cpu_count() or 1))
        with session_goes_first():
            brought = run_all(works, job, threads=threads, begin=go_first)
    except FileNotFoundError as error:
        missing = Path(str(error.filename))
        raise DriverError(
            f"{missing.relative_to(source) if missing.is_relative_to(source) else missing} "
            "of the snapshot is missing in the image store",
            advice="the image store is damaged; restore an older snapshot",
        ) from error
    except OSError as error:
        raise _store_error(error, into) from error
    for want, have in zip((manifest.files[at] for at in order), brought, strict=True):
        if want != have:
            raise DriverError(
                f"{want.name} in the image store is not what was committed",
                advice="the image store is damaged; restore an older snapshot",
                details=(
                    f"expected {want.size_bytes} bytes, blake3 {want.digest}",
                    f"found {have.size_bytes} bytes, blake3 {have.digest}",
                ),
            )
    return manifest


def _copying(copy: Copy, job: Transfer, *, sync: bool) -> Work:
    return partial(
        copy_hashed,
        *(copy.source, copy.target, copy.name),
        stop=job.stop,
        progress=job.advance,
        sync=sync,
    )


def _bringing(copy: Copy, wanted: StoredFile, job: Transfer, known: KnownFiles) -> Work:
    if copy.size_bytes < LINK_BYTES_MIN:
        return _copying(copy, job, sync=False)
    if known.digest(copy.source) == wanted.digest:
        return partial(
            link_known,
            *(copy.source, copy.target, wanted),
            stop=job.stop,
            progress=job.advance,
        )
    return partial(
        link_hashed,
        *(copy.source, copy.target, copy.name),
        stop=job.stop,
        progress=job.advance,
    )


def _identity(root: Path) -> str:
    """Read the store's id, or make it; two shims that start at once agree by link(2)."""
    path = root / IDENTITY
    if not path.exists():
        mine = root / PARTIAL / f"{IDENTITY}.{secrets.token_hex(4)}"
        _write_synced(mine, secrets.token_hex(16).encode())
        try:
            os.link(mine, path)
            sync_directory(root)
        except FileExistsError:
            pass
        finally:
            mine.unlink()
    return path.read_text().strip()


def _write_synced(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _staged_files(staged: Path, half: Path) -> list[Copy]:
    return [Copy(staged / name, half / name, name, size) for name, size in listed(staged).items()]


def _store_error(error: OSError, root: Path, *, definite: bool = True) -> DriverError:
    """The one place where this edge's operating system errors become ours."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what, advice = f"no room left under {root}", "make room, or delete old snapshots"
    elif error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        what, advice = f"{error.filename2 or error.filename} exists already", ""
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        what, advice = f"{root} may not be written", "the shim needs write access to it"
    else:
        what, advice = f"{root} cannot be used", "is the shared file system mounted?"
    return DriverError(what, advice=advice, definite=definite, details=(str(error),))
