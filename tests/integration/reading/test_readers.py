"""What the readers say of real images is what /proc said of the real processes."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from tests.integration.reading.kit import DELETED, Dumped, Seen
from worker_shim.criu.descriptors import HeldFile, access_of, read_descriptors, read_files
from worker_shim.criu.memory import (
    ANONYMOUS,
    KERNEL,
    SHARED,
    SHARED_FILE,
    read_memory,
    read_segments,
)
from worker_shim.criu.pages import read_page_table
from worker_shim.criu.processes import Process, read_processes

pytestmark = [pytest.mark.root, pytest.mark.criu]

PAGE = 4096


@pytest.fixture
def files(dumped: Dumped) -> dict[int, HeldFile]:
    return read_files(dumped.images)


@pytest.fixture
def processes(dumped: Dumped) -> dict[int, Process]:
    return {process.pid: process for process in read_processes(dumped.images)}


def living(dumped: Dumped) -> list[Seen]:
    return [dumped.seen[dumped.root], dumped.seen[dumped.child]]


def test_processes(
    dumped: Dumped, processes: dict[int, Process], files: dict[int, HeldFile]
) -> None:
    assert list(processes) == [dumped.root, dumped.child, dumped.zombie]
    assert processes[dumped.root].parent == 0
    for seen in dumped.seen.values():
        process = processes[seen.pid]
        assert process.name == seen.status["Name"]
        assert str(process.group) == seen.status["NSpgid"]
        assert str(process.session) == seen.status["NSsid"]
        if seen.pid != dumped.root:
            assert str(process.parent) == seen.status["PPid"]
    for seen in living(dumped):
        process = processes[seen.pid]
        assert process.state == "stopped"
        assert (process.uid, process.gid) == (os.getuid(), os.getgid())
        assert {thread.tid: thread.name for thread in process.threads} == seen.threads
        assert files[process.cwd].name == seen.cwd
    assert len(processes[dumped.root].threads) == 4
    zombie = processes[dumped.zombie]
    assert (zombie.state, os.waitstatus_to_exitcode(zombie.exit_status)) == ("zombie", 3)
    assert zombie.threads == ()


def test_descriptors(
    dumped: Dumped, processes: dict[int, Process], files: dict[int, HeldFile]
) -> None:
    for seen in living(dumped):
        found = read_descriptors(dumped.images, processes[seen.pid].files, files)
        assert [one.number for one in found] == sorted(one.number for one in seen.descriptors)
        for was in seen.descriptors:
            [one] = [one for one in found if one.number == was.number]
            assert one.close_on_exec == bool(was.flags & os.O_CLOEXEC), was
            if one.file.kind not in ("epoll", "timerfd", "eventfd"):
                assert one.file.access == access_of(was.flags), was
            check_target(one.file, was.target, was.position, seen)


def check_target(file: HeldFile, target: str, position: int, seen: Seen) -> None:
    if target.startswith("socket:"):
        assert file.socket is not None
        assert file.socket.inode == int(target[8:-1])
        assert (file.socket.local, file.socket.remote) == seen.sockets[file.socket.inode]
    elif target.startswith("pipe:"):
        assert (file.kind, file.name) == ("pipe", f"pipe {target[6:-1]}")
    elif target.startswith("anon_inode:"):
        assert target == f"anon_inode:[{file.kind.replace('epoll', 'eventpoll')}]"
    elif target.startswith("/memfd:"):
        assert (file.kind, file.name) == ("memfd", target[7:].removesuffix(DELETED))
        assert (file.position, file.size_bytes) == (position, position) == (9, 9)
    else:
        assert file.name == target.removesuffix(DELETED)
        assert file.deleted == target.endswith(DELETED)
        assert file.position == position


def test_every_kind_of_descriptor_is_in_the_tree(
    dumped: Dumped, processes: dict[int, Process], files: dict[int, HeldFile]
) -> None:
    found = read_descriptors(dumped.images, processes[dumped.root].files, files)
    kinds = Counter(one.file.kind for one in found)
    assert kinds == {
        "socket": 8, "file": 7, "pipe": 2, "device": 1, "fifo": 1, "eventfd": 1, "epoll": 1,
        "timerfd": 1, "memfd": 1, "directory": 1,
    }  # fmt: skip
    sockets = [one.file.socket for one in found if one.file.socket is not None]
    assert sorted(one.protocol for one in sockets) == ["tcp"] * 4 + ["udp"] + ["unix stream"] * 3
    assert [one.state for one in sockets].count("listening") == 3
    pair = [one for one in sockets if one.peer]
    assert {one.peer for one in pair} == {one.inode for one in pair}
    [waiting] = [one for one in sockets if one.received_bytes]
    assert waiting.received_bytes == len(b"not read yet")
    assert files[next(n for n, f in files.items() if f.kind == "eventfd")].name == "count 5"


def test_memory(dumped: Dumped, processes: dict[int, Process], files: dict[int, HeldFile]) -> None:
    for seen in living(dumped):
        memory = read_memory(dumped.images, seen.pid, files)
        assert memory.command == seen.command
        assert memory.program == seen.program
        kernel = ("[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]")  # two of them in one area
        was = [area for area in seen.areas if area.name not in kernel]
        have = [area for area in memory.areas if area.kind != KERNEL]
        assert [(one.start, one.end, one.access, one.offset) for one in have] == [
            (one.start, one.end, one.access, one.offset) for one in was
        ]
        for one, area in zip(have, was, strict=True):
            assert one.dumped_bytes + one.file_bytes + one.zero_bytes == one.size_bytes
            if (
                not one.segment
            ):  # CRIU's way in is one page of code, which is then the process's own
                poked = PAGE if one.dumped_bytes != area.own_bytes and "x" in one.access else 0
                assert one.dumped_bytes == area.own_bytes + poked, area
            if area.name.startswith("/"):
                assert one.name == area.name.removesuffix(DELETED)
            elif area.name in ("[heap]", "[stack]"):
                assert one.kind == area.name[1:-1]
            else:
                assert (one.kind, one.name) == (ANONYMOUS, "")


def test_memory_that_is_shared(dumped: Dumped, files: dict[int, HeldFile]) -> None:
    both = [read_memory(dumped.images, pid, files) for pid in (dumped.root, dumped.child)]
    for memory in both:
        [together] = [area for area in memory.areas if area.kind == SHARED]
        assert (together.size_bytes, together.dumped_bytes) == (64 * PAGE, PAGE)
        named = {area.name for area in memory.areas if area.kind == SHARED_FILE}
        assert str(dumped.directory / "data") in named
        assert any(name.startswith("/dev/shm/") for name in named)
    mapped, opened = read_segments(dumped.images, both, files)
    assert (mapped.number, mapped.dumped_bytes) == (together.segment, PAGE)
    assert (opened.name, opened.dumped_bytes) == ("scratch", PAGE), "a memfd that nobody maps"


def test_the_bytes_of_pages(dumped: Dumped, files: dict[int, HeldFile]) -> None:
    """The tree wrote `step N page M` into 64 pages, and read 64 others that stay zero."""
    table = read_page_table(dumped.images, str(dumped.root))
    pages = dict(table.each_page())
    assert len(pages) * PAGE == table.size_bytes
    written = [page[:14].split(b"\0")[0] for page in pages.values() if page.startswith(b"step ")]
    assert written == [b"step 1 page %d" % n for n in range(64)]
    first = min(address for address, page in pages.items() if page.startswith(b"step 1 page 0\0"))
    assert table.read(first + 5, first + 13) == b"1 page 0"
    assert table.read(first + 70 * PAGE, first + 1 << 46) == b""


Damage = Callable[[Path], None]


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def header_alone(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:8])


def of_another_kind(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff\xee\xdd\xcc" + data[8:])


def removed(path: Path) -> None:
    path.unlink()


def read_all(images: Path) -> None:
    files = read_files(images)
    memories = []
    for process in read_processes(images):
        if process.alive:
            read_descriptors(images, process.files, files)
            memories.append(read_memory(images, process.pid, files))
    read_segments(images, memories, files)


NAMES = (
    "pstree.img", "files.img", "core-{root}.img", "core-{zombie}.img", "ids-{root}.img",
    "fs-{child}.img", "mm-{root}.img", "pagemap-{child}.img", "fdinfo-2.img", "memfd.img",
)  # fmt: skip


LEGAL = ("fdinfo-2.img", header_alone)  # of a process which has nothing open
DAMAGED = [
    (name, damage)
    for name in NAMES
    for damage in (cut_off, emptied, header_alone, of_another_kind, removed)
    if (name, damage) != LEGAL
]


@pytest.mark.parametrize(("name", "damage"), DAMAGED)
def test_damage_is_seen_and_the_file_is_named(
    dumped: Dumped, tmp_path: Path, name: str, damage: Damage
) -> None:
    images = shutil.copytree(dumped.images, tmp_path / "images")
    numbers = {"root": dumped.root, "child": dumped.child, "zombie": dumped.zombie}
    path = images / name.format(**numbers)
    damage(path)
    with pytest.raises(DriverError) as raised:
        read_all(images)
    said = f"{raised.value.what} {raised.value.details}"
    assert path.name in said or (name == "memfd.img" and "memfd.img" in said)


@pytest.mark.parametrize("pages_more", [-1, 1, 1000])
def test_pages_that_are_too_few_or_too_many_are_seen(
    dumped: Dumped, tmp_path: Path, pages_more: int
) -> None:
    images = shutil.copytree(dumped.images, tmp_path / "images")
    pages = read_page_table(images, str(dumped.root)).pages
    assert pages is not None
    os.truncate(pages, pages.stat().st_size + pages_more * PAGE)
    with pytest.raises(DriverError, match=rf"{pages.name} is damaged: it has \d+ bytes"):
        read_all(images)


def test_any_byte_may_be_another(dumped: Dumped, tmp_path: Path, seed: int) -> None:
    """Images have no checksums: a flipped bit is read as it is, or told; nothing else happens."""
    chance = random.Random(seed)
    images = shutil.copytree(dumped.images, tmp_path / "images")
    told: list[DriverError] = []
    paths = [path for path in sorted(images.glob("*.img")) if not path.name.startswith("pages-")]
    for _ in range(80):
        path = chance.choice(paths)
        data = path.read_bytes()
        flipped = bytearray(data)
        flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            read_all(images)
        except DriverError as error:
            told.append(error)
        path.write_bytes(data)
    assert len(told) > 8
    assert all(error.details for error in told), "which file"
