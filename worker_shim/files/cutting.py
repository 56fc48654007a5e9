"""What is kept of the files of a stopped tree, at the cut."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.files.copying import clone, copy_contents
from worker_shim.files.keeping import MEMORY_ROLES, Keep, Keeping
from worker_shim.files.open_files import Held
from worker_shim.files.port import OpenFile

COPY = "file-{}"
CHOSEN = "so chosen by --keep-files"
OVER_LIMIT = "more than --copy-limit allows"


def cut_files(held: Iterable[Held], into: Path, keeping: Keeping) -> list[OpenFile]:
    """Keep of each file what was chosen, smallest first; a further name of one is kept once."""
    left = keeping.copy_limit_bytes
    known: dict[tuple[int, int], OpenFile] = {}
    recorded: list[OpenFile] = []
    # Of two names the memory of the job comes first: it is kept whole, whatever was chosen.
    order = sorted(held, key=lambda h: (h.role not in MEMORY_ROLES, h.status.st_size, h.path))
    for number, one in enumerate(order):
        first = known.get((one.status.st_dev, one.status.st_ino))
        if first is not None:
            recorded.append(_other_name(one, first))
            continue
        file, cost = _keep(one, into / COPY.format(number), keeping, left)
        left -= cost
        known[one.status.st_dev, one.status.st_ino] = file
        recorded.append(file)
    return sorted(recorded, key=lambda file: file.path)


def expected(held: Iterable[Held], keeping: Keeping) -> Iterator[tuple[OpenFile, int]]:
    """What would be kept of each file if none could share its blocks, and the bytes it takes."""
    left = keeping.copy_limit_bytes
    known: set[tuple[int, int]] = set()
    for one in sorted(held, key=lambda h: (h.role not in MEMORY_ROLES, h.status.st_size, h.path)):
        if (one.status.st_dev, one.status.st_ino) in known:
            continue
        known.add((one.status.st_dev, one.status.st_ino))
        want, why = _wanted(one, keeping)
        if want is Keep.COPY and _over(one, left):
            want, why = Keep.TAIL, OVER_LIMIT
        size = one.status.st_size
        start = _start(want, size, keeping)
        cost = min(size - start, _stored(one))
        left -= cost if want is Keep.COPY and one.role not in MEMORY_ROLES else 0
        yield _recorded(one, size, "", want, start, why), cost


def grown(file: OpenFile, copies: Path, size_bytes: int) -> OpenFile:
    """The file as CRIU found it, longer than at the cut: somebody outside the job wrote to it.

    Raises DriverError where it is shorter or gone: it was rewritten while the job stood still.
    """
    if size_bytes < file.size_bytes:
        raise _changed(file.path)
    copy = copies / file.content if file.content else None
    if copy is not None:
        with open(file.path, "rb") as source, open(copy, "r+b") as target:
            if os.fstat(source.fileno()).st_size < size_bytes:
                raise _changed(file.path)
            copy_contents(
                source.fileno(),
                target.fileno(),
                size_bytes,
                start=file.size_bytes,
                shift=-file.kept_from,
            )
    return replace(file, size_bytes=size_bytes)


def _keep(held: Held, target: Path, keeping: Keeping, left: int) -> tuple[OpenFile, int]:
    want, why = _wanted(held, keeping)
    try:
        source = os.open(held.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            status = os.fstat(source)
            if status.st_ino != held.status.st_ino or not stat.S_ISREG(status.st_mode):
                raise _changed(held.path)
            size = status.st_size
            if not size:  # a lock file, say: nothing is saved by not having it
                want, why = Keep.COPY, ""
            if want is Keep.NONE:
                return _recorded(held, size, "", want, size, why), 0
            cost = _write(source, held, size, target, want, keeping, left)
            if cost is None:
                want, why = Keep.TAIL, OVER_LIMIT
                _write(source, held, size, target, want, keeping, left)
                cost = 0
            if os.fstat(source).st_size < size:
                raise _changed(held.path)
        finally:
            os.close(source)
    except OSError as error:
        raise DriverError(
            f"cannot keep {held.path}, which the job has open for writing: {error.strerror}",
            advice="make room where the images are staged",
            details=(str(target),),
        ) from error
    start = _start(want, size, keeping)
    return _recorded(held, size, target.name, want if start else Keep.COPY, start, why), cost


def _write(
    source: int, held: Held, size: int, target: Path, want: Keep, keeping: Keeping, left: int
) -> int | None:
    """Write a copy or a tail; return what it costs of the limit, None for more than is left."""
    start = _start(want, size, keeping)
    copy = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if want is Keep.COPY and clone(source, copy):
            os.ftruncate(copy, size)  # what somebody else has written since is not of the cut
            return 0
        if want is Keep.COPY and _over(held, left):
            return None
        copy_contents(source, copy, size, start=start, shift=-start)
        return min(size, _stored(held)) if want is Keep.COPY else 0
    finally:
        os.close(copy)


def _wanted(held: Held, keeping: Keeping) -> tuple[Keep, str]:
    want = keeping.of(held.path, held.role)
    if held.role in MEMORY_ROLES:
        return want, "memory of the job"
    return want, "" if want is Keep.COPY else CHOSEN


def _over(held: Held, left: int) -> bool:
    return held.role not in MEMORY_ROLES and min(held.status.st_size, _stored(held)) > left


def _stored(held: Held) -> int:
    return held.status.st_blocks * 512  # holes cost nothing


def _start(want: Keep, size: int, keeping: Keeping) -> int:
    """Offset of the first byte that is kept."""
    if want is Keep.COPY:
        return 0
    return size if want is Keep.NONE else max(0, size - keeping.tail_bytes)


def _other_name(held: Held, first: OpenFile) -> OpenFile:
    return replace(first, path=held.path, role=held.role, same_as=first.path)


def _recorded(
    held: Held, size: int, content: str, kept: Keep, kept_from: int, why: str
) -> OpenFile:
    return OpenFile(
        path=held.path,
        size_bytes=size,
        mode=stat.S_IMODE(held.status.st_mode),
        copy="" if kept_from else content,
        tail=content if kept_from else "",
        role=held.role,
        uid=held.status.st_uid,
        gid=held.status.st_gid,
        kept=kept,
        kept_from=kept_from,
        why=why,
    )


def _changed(path: str) -> DriverError:
    return DriverError(
        f"{path} was rewritten by another process while the job stood still",
        advice="try again; no process outside the job may rewrite a file that the job writes",
    )
