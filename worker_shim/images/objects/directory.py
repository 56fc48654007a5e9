"""ObjectStore on a directory that all nodes see: a shared file system, or one disk.

<root>/store.id                  random, made once: tells two stores apart
<root>/partial/<random>@<node>   being written; nobody reads it
<root>/<name of the object>      linked there when whole: it is there whole or not at all
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from coordinator.core.errors import DriverError
from worker_shim.images.copying import sync_directory
from worker_shim.images.names import inside
from worker_shim.images.objects.causes import store_error
from worker_shim.images.objects.port import Listed, ObjectMissing, Part

PARTIAL = "partial"
IDENTITY = "store.id"
NOBODY = "@"  # mark of a store that was opened without a node
DEAD_PARTIAL_S = 86_400.0
MAKE_TRIES = 64  # of a directory that another one's last removal takes away


class DirectoryObjects:
    """Objects are files below a root; their names are paths below it."""

    scheme = "directory"

    def __init__(self, root: Path, node: str = "") -> None:
        """Open (or make) the store for a node's shim; raises DriverError when it cannot be used."""
        self.root = root
        self._mark = f"@{quote(node, safe='')}"
        try:
            (root / PARTIAL).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._identity = self._found_or_made()
        except OSError as error:
            raise store_error(error, root) from error

    @property
    def identity(self) -> str:
        """The random id that was written when the store was made."""
        return self._identity

    def put(self, name: str, parts: Sequence[Part]) -> bool:
        """Write aside, sync, then link: link(2) lets one of two writers win, also over NFS."""
        target = self._path(name)
        aside = self.root / PARTIAL / f"{secrets.token_hex(8)}{self._mark}"
        try:
            if target.exists():
                return False
            _write_synced(aside, parts)
            made = self._link(aside, target)
        except OSError as error:
            raise store_error(error, self.root) from error
        finally:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
        return made

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read it, or what there is of a part of it."""
        try:
            with open(self._path(name), "rb", buffering=0) as file:
                if length is None:
                    length = max(0, os.fstat(file.fileno()).st_size - start)
                return _read(file.fileno(), start, length)
        except OSError as error:
            raise self._read_error(error, name) from error

    def size(self, name: str) -> int:
        """Of the file."""
        try:
            return self._path(name).stat().st_size
        except OSError as error:
            raise self._read_error(error, name) from error

    def list(self, prefix: str) -> Iterator[Listed]:
        """What vanishes meanwhile is left out; a store that is gone is no empty one."""
        directory, _, begins = prefix.rpartition("/")
        top = inside(self.root, directory) if directory else self.root
        if not top.is_dir() and not self._is_there():
            gone = FileNotFoundError(errno.ENOENT, "its store.id is not there", str(self.root))
            raise store_error(gone, self.root)
        yield from self._below(top, f"{directory}/" if directory else "", begins)

    def delete(self, name: str) -> None:
        """Remove the file, and the directories that it leaves empty."""
        path = self._path(name)
        try:
            path.unlink(missing_ok=True)
            for directory in path.parents:
                if directory == self.root:
                    break
                directory.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if path.exists():
                raise store_error(error, self.root) from error

    def free_bytes(self) -> int:
        """Room left for an ordinary user."""
        try:
            room = os.statvfs(self.root)
        except OSError as error:
            raise store_error(error, self.root) from error
        return room.f_bavail * room.f_frsize

    def sweep(self, *, older_than_s: float = DEAD_PARTIAL_S) -> tuple[str, ...]:
        """Remove what this node's earlier shims left, and whatever nobody touched for so long.

        Only for who has claimed the node. Ages are those of the file system's own clock.
        """
        swept = []
        now = self._now()
        for half in sorted((self.root / PARTIAL).iterdir()):
            own = self._mark != NOBODY and half.name.endswith(self._mark)
            if own or _untouched(half, now - older_than_s):
                if half.is_dir():  # of a version before
                    shutil.rmtree(half, ignore_errors=True)
                else:
                    half.unlink(missing_ok=True)
                swept.append(half.name)
        return tuple(swept)

    def close(self) -> None:
        """Nothing is held open."""

    def _path(self, name: str) -> Path:
        return inside(self.root, name)

    def _link(self, aside: Path, target: Path) -> bool:
        for _ in range(MAKE_TRIES):
            try:
                made = _made(target.parent, self.root)
                os.link(aside, target)
            except FileExistsError:
                return False
            except FileNotFoundError:  # whoever removed the last object took the directory too
                continue
            for directory in (target.parent, *made):
                sync_directory(directory)
            return True
        raise FileNotFoundError(f"{target.parent} is removed as often as it is made")

    def _below(self, directory: Path, name: str, begins: str = "") -> Iterator[Listed]:
        try:
            with os.scandir(directory) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise store_error(error, self.root) from error
        for entry in entries:
            own = not name and entry.name in (PARTIAL, IDENTITY)
            if own or not entry.name.startswith(begins):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._below(Path(entry.path), f"{name}{entry.name}/")
                continue
            with suppress(FileNotFoundError):
                seen = entry.stat()
                yield Listed(f"{name}{entry.name}", seen.st_size, seen.st_mtime)

    def _now(self) -> float:
        """The present by the clock that gives files their times, which may be a server's."""
        probe = self.root / PARTIAL / f"now.{secrets.token_hex(4)}{self._mark}"
        try:
            probe.write_bytes(b"")
            return probe.stat().st_mtime
        except OSError as error:
            raise store_error(error, self.root) from error
        finally:
            with suppress(OSError):
                probe.unlink(missing_ok=True)

    def _read_error(self, error: OSError, name: str) -> DriverError:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and self._is_there():
            return ObjectMissing(
                f"the image store has no {name}",
                advice="is the store mounted here the one the snapshot was written to?",
                details=(str(self.root),),
            )
        return store_error(error, self.root)

    def _is_there(self) -> bool:
        try:
            return (self.root / IDENTITY).read_text().strip() == self._identity
        except OSError:
            return False

    def _found_or_made(self) -> str:
        """Read the store's id, or make it; two shims that start at once agree by link(2)."""
        path = self.root / IDENTITY
        if not path.exists():
            mine = self.root / PARTIAL / f"{IDENTITY}.{secrets.token_hex(4)}{self._mark}"
            _write_synced(mine, [secrets.token_hex(16).encode()])
            try:
                os.link(mine, path)
                sync_directory(self.root)
            except FileExistsError:
                pass
            finally:
                mine.unlink()
        return path.read_text().strip()


def _made(directory: Path, root: Path) -> tuple[Path, ...]:
    """Make what is missing between root and directory; returns the parents of what was made."""
    missing = []
    while directory != root and not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)
    return tuple(each.parent for each in missing)


def _write_synced(path: Path, parts: Sequence[Part]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def _read(descriptor: int, start: int, length: int) -> bytes:
    pieces = []
    while length > 0 and (piece := os.pread(descriptor, length, start)):
        pieces.append(piece)
        start, length = start + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _untouched(half: Path, since: float) -> bool:
    try:
        newest = max(path.stat().st_mtime for path in (half, *half.rglob("*")))
    except FileNotFoundError:  # somebody works there
        return False
    return newest <= since
