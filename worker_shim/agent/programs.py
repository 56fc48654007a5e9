"""The program files of a tree: what must be the same on a node that is to take it."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from blake3 import blake3

from coordinator.core.model import ProgramFile
from worker_shim.process.port import Tree, TreeProcess

CACHE_MAX = 65_536
CHUNK_BYTES = 1 << 20

_Stamp = tuple[str, int, int, int]  # path, mtime in ns, size, inode


class DigestCache:
    """blake3 of files, remembered as long as a file looks unchanged; safe between threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Stamp, str] = OrderedDict()
        self._lock = threading.Lock()

    def digest(self, path: str) -> ProgramFile | None:
        """The file with its digest; None when it cannot be read."""
        try:
            with open(path, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                stamp = (path, status.st_mtime_ns, status.st_size, status.st_ino)
                with self._lock:
                    known = self._known.get(stamp)
                if known is None:
                    hasher = blake3()
                    while chunk := file.read(CHUNK_BYTES):
                        hasher.update(chunk)
                    known = str(hasher.hexdigest())
                    with self._lock:
                        self._known[stamp] = known
                        if len(self._known) > CACHE_MAX:
                            self._known.popitem(last=False)
        except OSError:
            return None
        return ProgramFile(path, status.st_size, known)


_CACHE = DigestCache()


def answer(files: Iterable[ProgramFile]) -> tuple[ProgramFile, ...]:
    """Which of these files this node has, with a digest where one was asked for."""
    found = (_CACHE.digest(file.path) if file.digest else _sized(file.path) for file in files)
    return tuple(file for file in found if file is not None)


def programs_of(tree: Tree) -> tuple[ProgramFile, ...]:
    """Interpreter, libpython, scripts and torch's RECORD with digests; the rest with sizes.

    Torch itself is some gigabytes: its RECORD holds the digests of all its files.
    """
    mapped: set[str] = set()
    hashed: set[str] = set()
    for process in tree.processes:
        mapped |= _mapped_executable(process.pid)
        hashed |= _own_program(process)
    hashed |= {path for path in mapped if Path(path).name.startswith("libpython")}
    hashed |= _torch_record(mapped)
    files = [_CACHE.digest(path) for path in sorted(hashed)]
    files += [_sized(path) for path in sorted(mapped - hashed)]
    return tuple(file for file in files if file is not None)


def _sized(path: str) -> ProgramFile | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return ProgramFile(path, status.st_size)


def _own_program(process: TreeProcess) -> set[str]:
    """The executable, and the scripts that a command line names."""
    found = set()
    try:
        found.add(os.readlink(f"/proc/{process.pid}/exe"))
        directory = Path(os.readlink(f"/proc/{process.pid}/cwd"))
    except OSError:
        return found
    for argument in process.argv[1:]:
        path = directory / argument
        if argument.endswith(".py") and path.is_file():
            found.add(str(path.resolve()))
    return found


def _mapped_executable(pid: int) -> set[str]:
    """Regular files that the process has mapped executable."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    found = set()
    for line in lines:
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and "x" in parts[1] and parts[5].startswith("/"):
            path = parts[5]
            if not path.endswith(" (deleted)") and not path.startswith("/dev/"):
                found.add(path)
    return found


def _torch_record(mapped: set[str]) -> set[str]:
    """RECORD of the torch distribution whose library is mapped."""
    sites = {Path(path).parents[2] for path in mapped if Path(path).parent.match("torch/lib")}
    return {str(record) for site in sites for record in site.glob("torch-*.dist-info/RECORD")}
