"""CRIU's image files: a header of magic numbers, then entries of `u32 size, message`.

Source of the format and of the numbers: https://criu.org/Images and criu's `criu/include/magic.h`
and `images/*.proto`; only what is needed here is named.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coordinator.core.errors import DriverError

COMMON_MAGIC = 0x54564319
SERVICE_MAGIC = 0x55105940
PSTREE_MAGIC = 0x50273030
FILES_MAGIC = 0x56303138
REMAP_MAGIC = 0x59133954
STATS_MAGIC = 0x57093306
CORE_MAGIC = 0x55053847
IDS_MAGIC = 0x54432030
FS_MAGIC = 0x51403912
MM_MAGIC = 0x57492820
PAGEMAP_MAGIC = 0x56084025
FDINFO_MAGIC = 0x56213732
MEMFD_MAGIC = 0x48453499
TCP_STREAM_MAGIC = 0x51465506

HEADER = struct.Struct("<II")
SIZE = struct.Struct("<I")
ENTRY_BYTES_MAX = 1 << 24  # the largest messages (mm, fdinfo) are far below; more is rubbish


@dataclass(frozen=True)
class ImageFile:
    """The header and the entries of one image file whose entries have no payload behind them."""

    magics: tuple[int, int]
    entries: tuple[bytes, ...]


def read_image(path: Path, magic: int) -> ImageFile:
    """Read a whole image file; raises DriverError when it is missing, cut off or another kind."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    magics = _checked_header(path, data, magic)
    entries: list[bytes] = []
    at = HEADER.size
    while at < len(data):
        if at + SIZE.size > len(data):
            raise _rubbish(path, "it ends inside the size of an entry")
        (size,) = SIZE.unpack_from(data, at)
        at += SIZE.size
        if size > ENTRY_BYTES_MAX or at + size > len(data):
            raise _rubbish(path, f"entry {len(entries)} claims {size} bytes")
        entries.append(data[at : at + size])
        at += size
    return ImageFile(magics, tuple(entries))


def read_first(path: Path, magic: int) -> bytes:
    """The first entry of an image file that may have any amount of contents behind it.

    Raises DriverError as `read_image` does.
    """
    try:
        with open(path, "rb") as image:
            head = image.read(HEADER.size + SIZE.size)
            _checked_header(path, head, magic)
            if len(head) < HEADER.size + SIZE.size:
                raise _rubbish(path, "it ends inside the size of an entry")
            (size,) = SIZE.unpack_from(head, HEADER.size)
            entry = image.read(min(size, ENTRY_BYTES_MAX))
    except OSError as error:
        raise unreadable(path, error) from error
    if len(entry) != size:
        raise _rubbish(path, f"entry 0 claims {size} bytes")
    return entry


def write_image(path: Path, image: ImageFile) -> None:
    """Put the image in place of `path` at once: a crash leaves the old file or the new one.

    A left-over `NAME.new` of a crash is overwritten by the next call.
    """
    new = path.with_name(path.name + ".new")
    with open(new, "wb", opener=_private) as out:
        out.write(encoded(image))
        out.flush()
        os.fsync(out.fileno())
    os.replace(new, path)
    sync_directory(path.parent)


def encoded(image: ImageFile) -> bytes:
    """The bytes of an image file."""
    return HEADER.pack(*image.magics) + b"".join(_framed(image.entries))


def sync_directory(directory: Path) -> None:
    """Make names in the directory survive a crash of the machine."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _framed(entries: Iterable[bytes]) -> Iterable[bytes]:
    for entry in entries:
        yield SIZE.pack(len(entry))
        yield entry


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def unreadable(path: Path, error: OSError) -> DriverError:
    """What the operating system says of an image, as an error of ours."""
    return DriverError(
        f"cannot read the image {path.name}: {error.strerror}",
        advice="the images are incomplete: fetch them again, or use another snapshot",
        details=(str(path),),
    )


def _checked_header(path: Path, data: bytes, magic: int) -> tuple[int, int]:
    if len(data) < HEADER.size:
        raise _rubbish(path, "it ends inside its header")
    first, second = HEADER.unpack_from(data)
    if first not in (COMMON_MAGIC, SERVICE_MAGIC) or second != magic:
        raise _rubbish(path, f"its magic numbers are {first:#x} {second:#x}, not … {magic:#x}")
    return first, second


def _rubbish(path: Path, why: str) -> DriverError:
    return DriverError(
        f"{path.name} is no CRIU image that allstop understands: {why}",
        advice="the images are damaged or of an unknown CRIU: check their digests",
        details=(str(path),),
    )
