"""What a worker has put out, as far as it is kept, piece by piece; and keeping it small.

The worker writes into one file of its run directory by itself: a pipe to the shim could not be
saved with it. So the file is never renamed or cut; its beginning is given back to the file system
(a hole), which changes no offset.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from coordinator.core.errors import AllstopError, DriverError, NotFound, Refused
from coordinator.core.failures import failure_of
from coordinator.core.logs import OUTPUT, LogPart, LogPlace
from coordinator.core.model import RankState
from worker_shim.agent.ports import LOG
from worker_shim.agent.worker import Worker
from worker_shim.process import proc

KEPT_BYTES_MAX = 64 << 20  # of one worker's output on this node
KEPT_BYTES = 48 << 20  # when it was more than that
LOOK_BYTES_MAX = 4 << 20  # looked through for the last lines
ROOM_BYTES_MAX = 256 << 10  # of one piece
HOLE = 0x03  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, <linux/falloc.h>
NO_HOLES = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
PREFIX = re.compile(rb"\[[^\]\s]*?(\d+)\]:")  # torchrun --tee: [default0]: text
APART = (
    "start torchrun with --tee 3 (each line then begins with the rank's name) or --redirects 3 (a"
    " file for each rank); --worker takes all that a worker has put out"
)


@dataclass(frozen=True)
class Source:
    """A file with output, or the lines of one rank in it."""

    name: str
    path: Path
    local_rank: int = -1  # only lines that torchrun has marked as this one's
    note: str = ""


def read(worker: Worker, place: LogPlace) -> tuple[LogPart, ...]:
    """The next piece of each source of this place; what cannot be read is a part with a failure.

    For a thread: it reads files and /proc.
    """
    try:
        sources = [s for s in _sources(worker, place) if place.source in ("", s.name)]
        room = min(place.room or ROOM_BYTES_MAX, ROOM_BYTES_MAX) // max(1, len(sources))
        return tuple(_piece(worker, place, source, room) for source in sources)
    except OSError as error:
        failed: AllstopError = DriverError(
            f"cannot read output: {error.strerror}: {error.filename}"
        )
    except AllstopError as error:
        failed = error
    where = worker.where
    failed.at(job=where.job, worker=where.worker, node=where.node)
    return (LogPart(place.worker, place.source, place.file, failure=failure_of(failed)),)


# -- which files -----------------------------------------------------------------------------------


def _sources(worker: Worker, place: LogPlace) -> tuple[Source, ...]:
    whole = worker.directory / LOG
    if not place.of_rank:
        return (Source(OUTPUT, whole),)
    state = next((each for each in worker.ranks if each.rank == place.rank), None)
    if state is not None and proc.read_environment(state.pid).get("RANK") == str(place.rank):
        worker.outputs[place.rank] = _of_process(worker, state, whole)
    known = worker.outputs.get(place.rank)
    if known is None:
        raise NotFound(
            f"rank {place.rank} has ended, and where its output went was not seen",
            advice="--worker takes all that its worker has put out",
        )
    return known


def _of_process(worker: Worker, state: RankState, whole: Path) -> tuple[Source, ...]:
    """Where the standard output and error of a rank go; raises Refused where that is no file."""
    targets = {name: _target(state.pid, fd) for name, fd in (("stdout", 1), ("stderr", 2))}
    files = {name: path for name, path in targets.items() if _is_file(path)}
    if not files:
        went = " and ".join(sorted({str(path) for path in targets.values()}))
        raise Refused(f"rank {state.rank} writes to {went}, which is no file", advice=APART)
    own = {name: path for name, path in files.items() if path != whole}
    if not own:
        return (_picked(worker, state, whole),)
    if len(own) == 2 and len(set(own.values())) == 1:
        return (Source(OUTPUT, own["stdout"]),)
    other = ", ".join(name for name in targets if name not in own)
    note = f"its {other} is among the output of worker {worker.worker}" if other else ""
    return tuple(Source(name, path, note=note) for name, path in own.items())


def _target(pid: int, descriptor: int) -> Path:
    try:
        return Path(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    except OSError:
        return Path("nowhere")


def _is_file(path: Path) -> bool:
    try:
        return path.is_absolute() and stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _picked(worker: Worker, state: RankState, whole: Path) -> Source:
    """The lines of a rank that shares one file with the others of its worker."""
    if len(worker.ranks) == 1:
        text = f"rank {state.rank} is the only one of worker {worker.worker}: this is all of both"
        return Source(OUTPUT, whole, note=text)
    with open(whole, "rb") as file:
        _, tail = _tail(file.fileno(), os.fstat(file.fileno()).st_size)
    if not any(PREFIX.match(line) for line in tail.splitlines()):
        raise Refused(
            f"the {len(worker.ranks)} ranks of worker {worker.worker} write into one file, and"
            " nothing tells their lines apart",
            advice=APART,
        )
    return Source(OUTPUT, whole, state.local_rank)


# -- what is in them -------------------------------------------------------------------------------


def _piece(worker: Worker, place: LogPlace, source: Source, room: int) -> LogPart:
    """What follows the place in one file; nothing, where the file is not there yet."""
    try:
        descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return LogPart(place.worker, source.name, note="nothing has been put out yet")
    try:
        return _piece_of(descriptor, worker, place, source, room)
    finally:
        os.close(descriptor)


def _piece_of(
    descriptor: int, worker: Worker, place: LogPlace, source: Source, room: int
) -> LogPart:
    status = os.fstat(descriptor)
    size = status.st_size
    file = f"{worker.where.node}:{status.st_ino:x}:{worker.restored_by}"
    notes = [source.note] if not place.file else []
    if not place.file:
        start, note = _last_lines(descriptor, size, place.lines, source.local_rank)
        notes.append(note)
    elif place.file == file:
        start = min(place.offset, size)
    else:
        start = _again(worker, source.path, place.offset, size)
        notes.append(
            f"it goes on where {worker.restored_by} put it back" * bool(worker.restored_by)
        )
    kept = _kept(descriptor, start, size)
    if kept > start and place.file:
        notes.append(f"{kept - start} bytes were put out and given up before they were read")
    data = os.pread(descriptor, room, kept)
    if source.local_rank >= 0:
        data = _whole_lines(data, room)
    after = kept + len(data)
    more = after < size and bool(data)
    if source.local_rank >= 0:
        data = b"".join(each for each in data.splitlines(True) if _is_of(each, source.local_rank))
    note = "; ".join(filter(None, notes))
    return LogPart(place.worker, source.name, file, data, after, more, note)


def _again(worker: Worker, path: Path, offset: int, size: int) -> int:
    """Where to go on in a file that is not the one of before.

    A restore has put back what was there at the cut, and all of it was there before; a worker that
    was launched anew has put out nothing before its launch.
    """
    began = worker.log_began.get(str(path))
    if worker.restored_by:
        return min(offset, size if began is None else began, size)
    return min(began or 0, size)


def _kept(descriptor: int, start: int, size: int) -> int:
    """The first byte from `start` on that has not been given back."""
    if start >= size:
        return size
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # only a hole is left
            return size
        raise


def _tail(descriptor: int, size: int) -> tuple[int, bytes]:
    """Where the end of the file begins that is looked through, and what is in it."""
    start = _kept(descriptor, max(0, size - LOOK_BYTES_MAX), size)
    return start, os.pread(descriptor, size - start, start)


def _last_lines(descriptor: int, size: int, lines: int, local_rank: int) -> tuple[int, str]:
    """Where the last so many lines begin (those of one rank, if it is not -1), and a note."""
    if not lines:
        return size, ""
    start, tail = _tail(descriptor, size)
    at, left = size, lines
    for line in reversed(tail.splitlines(True)):
        at -= len(line)
        left -= local_rank < 0 or _is_of(line, local_rank)
        if not left:
            return at, ""
    short = start > 0 and size - start >= LOOK_BYTES_MAX
    return start, f"there may be more than these last {LOOK_BYTES_MAX} bytes" if short else ""


def _whole_lines(data: bytes, room: int) -> bytes:
    """Up to the last end of a line; all of it, where a line is longer than the room."""
    end = data.rfind(b"\n") + 1
    return data if not end and len(data) == room else data[:end]


def _is_of(line: bytes, local_rank: int) -> bool:
    found = PREFIX.match(line)
    return found is not None and int(found.group(1)) == local_rank


# -- how much of it --------------------------------------------------------------------------------


def give_back(path: Path) -> int:
    """Give the beginning of an output that has become too long back to the file system.

    Returns how many bytes; 0 where it is short, missing, or on a file system without holes. Not
    for a worker that is held: its files are being copied.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        status = os.fstat(descriptor)
        stored = status.st_blocks * 512
        if stored <= KEPT_BYTES_MAX:
            return 0
        _punch(descriptor, status.st_size - KEPT_BYTES)
        return stored - os.fstat(descriptor).st_blocks * 512
    finally:
        os.close(descriptor)


def _punch(descriptor: int, until: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    end = ctypes.c_longlong(until)
    if libc.fallocate(descriptor, HOLE, ctypes.c_longlong(0), end) != 0:
        number = ctypes.get_errno()
        if number not in NO_HOLES:
            raise OSError(number, os.strerror(number))
