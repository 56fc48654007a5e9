"""The memory in the images: areas of a process, and how much of each the images hold.

What is not in the images comes back all the same: from the file that is mapped, or as the zeros of
memory that nobody ever wrote to. The bytes themselves are read by `pages`. Field numbers and bits
are those of CRIU's `images/mm.proto`, `vma.proto` and `criu/include/image.h`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from worker_shim.criu.descriptors import HeldFile, file_of
from worker_shim.criu.entries import Entry, damaged, only_entry
from worker_shim.criu.image_file import MM_MAGIC
from worker_shim.criu.pages import PageTable, read_page_table

MM_ARGUMENTS, MM_ARGUMENTS_END, MM_PROGRAM, MM_AREAS = 8, 9, 12, 14
AREA_START, AREA_END, AREA_OFFSET, AREA_SHARED_ID, AREA_ACCESS, AREA_FLAGS, AREA_STATUS = range(
    1, 8
)
MAP_SHARED, MAP_GROWSDOWN = 0x1, 0x100
IS_VSYSCALL, IS_VDSO, IS_HEAP, IS_FILE_PRIVATE, IS_FILE_SHARED = (
    1 << 2,
    1 << 3,
    1 << 5,
    1 << 6,
    1 << 7,
)
IS_ANON_SHARED, IS_SYSV, IS_VVAR, IS_MEMFD, IS_UPROBES = 1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 17
OF_THE_KERNEL = IS_VSYSCALL | IS_VDSO | IS_VVAR | IS_UPROBES
ARGUMENTS_BYTES_MAX = 1 << 20

HEAP, STACK, ANONYMOUS, FILE, KERNEL = "heap", "stack", "anonymous", "file", "kernel"
SHARED_FILE, SHARED = "shared file", "shared memory"
KINDS = (ANONYMOUS, HEAP, STACK, SHARED, SHARED_FILE, FILE, KERNEL)  # as they are shown


@dataclass(frozen=True)
class Area:
    """One mapping of a process; of its bytes each is in one of the three places or nowhere."""

    start: int
    end: int
    kind: str  # one of KINDS
    access: str  # rwx, with s or p behind, as in /proc/PID/maps
    name: str  # the file, or the name of the memory; empty: it has none
    offset: int  # in that file or memory, bytes
    dumped_bytes: int  # in the images; of shared memory what lies in this window of it
    file_bytes: int  # not in them: comes from the file
    zero_bytes: int  # not in them: never written to, comes back as zeros
    segment: int = 0  # number of the shared memory; 0: it is none

    @property
    def size_bytes(self) -> int:
        """From the first byte to the last."""
        return self.end - self.start


@dataclass(frozen=True)
class Memory:
    """The address space of one process."""

    areas: tuple[Area, ...]  # by address
    program: str  # path of what runs in it
    command: tuple[str, ...]  # arguments as the process last had them; empty: not in the images


@dataclass(frozen=True)
class Segment:
    """Shared memory, which is in the images once however many processes map it."""

    number: int
    name: str
    dumped_bytes: int


def read_memory(images: Path, pid: int, files: Mapping[int, HeldFile]) -> Memory:
    """The areas of a living process; raises DriverError naming an image that is damaged."""
    path = images / f"mm-{pid}.img"
    entry = only_entry(path, MM_MAGIC)
    own = read_page_table(images, str(pid))
    shared: dict[int, PageTable] = {}
    areas: list[Area] = []
    for one in entry.inners(MM_AREAS):
        area = _area(images, one, files, own, shared)
        if area.size_bytes <= 0 or (areas and area.start < areas[-1].end):
            raise damaged(path, f"the area {area.start:x}-{area.end:x} cannot be")
        areas.append(area)
    _require_all_pages_mapped(own, areas)
    program = entry.number(MM_PROGRAM)
    return Memory(
        areas=tuple(areas),
        program=file_of(files, program, path).name,
        command=_command(own, entry.number(MM_ARGUMENTS), entry.number(MM_ARGUMENTS_END)),
    )


def read_segments(
    images: Path, memories: Iterable[Memory], files: Mapping[int, HeldFile]
) -> tuple[Segment, ...]:
    """The shared memory that is mapped or open, each once; raises DriverError as `read_memory`."""
    names = {file.segment: file.name for file in files.values()}
    names |= {area.segment: area.name for memory in memories for area in memory.areas}
    names.pop(0, None)
    return tuple(
        Segment(number, names[number], read_page_table(images, f"shmem-{number}").size_bytes)
        for number in sorted(names)
    )


def _area(
    images: Path,
    entry: Entry,
    files: Mapping[int, HeldFile],
    own: PageTable,
    shared: dict[int, PageTable],
) -> Area:
    start, end = entry.number(AREA_START), entry.number(AREA_END)
    status, flags = entry.number(AREA_STATUS), entry.number(AREA_FLAGS)
    offset, number = entry.number(AREA_OFFSET), entry.number(AREA_SHARED_ID)
    file = None
    if status & (IS_FILE_PRIVATE | IS_FILE_SHARED):
        file = file_of(files, number, entry.path)
    segment = number if status & IS_ANON_SHARED else 0
    if file is not None and status & IS_MEMFD:
        segment = file.segment
    if segment and segment not in shared:
        shared[segment] = read_page_table(images, f"shmem-{segment}")
    if segment:
        dumped = shared[segment].bytes_between(offset, offset + end - start)
    else:
        dumped = own.bytes_between(start, end)
    rest = end - start - dumped
    kind = _kind(status, flags, file)
    from_file = kind in (FILE, SHARED_FILE)
    return Area(
        start=start,
        end=end,
        kind=kind,
        access=_access(entry.number(AREA_ACCESS), flags),
        name=file.name if file else "",
        offset=offset,
        dumped_bytes=dumped,
        file_bytes=rest if from_file else 0,
        zero_bytes=0 if from_file or kind == KERNEL else rest,
        segment=segment,
    )


def _kind(status: int, flags: int, file: HeldFile | None) -> str:
    if status & OF_THE_KERNEL:
        return KERNEL
    if status & (IS_ANON_SHARED | IS_SYSV | IS_MEMFD):
        return SHARED
    if file is not None:
        return SHARED_FILE if status & IS_FILE_SHARED else FILE
    if status & IS_HEAP:
        return HEAP
    return STACK if flags & MAP_GROWSDOWN else ANONYMOUS


def _access(bits: int, flags: int) -> str:
    letters = "".join(letter if bits & 1 << at else "-" for at, letter in enumerate("rwx"))
    return letters + ("s" if flags & MAP_SHARED else "p")


def _require_all_pages_mapped(table: PageTable, areas: Iterable[Area]) -> None:
    """Each page of the images belongs to an area, or one of the two images is damaged."""
    mapped = sum(area.dumped_bytes for area in areas if not area.segment)
    if mapped != table.size_bytes:
        raise damaged(table.path, f"of {table.size_bytes} bytes only {mapped} lie in areas")


def _command(table: PageTable, start: int, end: int) -> tuple[str, ...]:
    if not 0 < end - start <= ARGUMENTS_BYTES_MAX:
        return ()
    text = table.read(start, end).rstrip(b"\0").decode(errors="replace")
    return tuple(text.split("\0")) if text else ()
