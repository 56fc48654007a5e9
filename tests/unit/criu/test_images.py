"""Reading and rewriting images made here by hand."""

from __future__ import annotations

import ipaddress
import os
import struct
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from coordinator.core.model import Endpoint
from worker_shim.criu.addresses import address_of, move_addresses, read_sockets, words_of
from worker_shim.criu.image_file import (
    COMMON_MAGIC,
    FILES_MAGIC,
    PSTREE_MAGIC,
    REMAP_MAGIC,
    ImageFile,
    read_image,
    write_image,
)
from worker_shim.criu.images import LinkRemap, link_remaps, plugins, read_facts
from worker_shim.criu.wire import Field, bytes_field, number_field, read_message, write_message

ESTABLISHED, LISTEN, CLOSE = 1, 10, 7
UNKNOWN = bytes_field(99, b"a field of a newer CRIU")


def put(directory: Path, name: str, magic: int, *entries: bytes) -> None:
    write_image(directory / name, ImageFile((COMMON_MAGIC, magic), entries))


def words(number: int, address: str, *, packed: bool) -> list[Field]:
    fields = [number_field(number, word) for word in words_of(ipaddress.ip_address(address))]
    return [bytes_field(number, b"".join(f.raw for f in fields))] if packed else fields


def inet(
    local: tuple[str, int],
    remote: tuple[str, int] = ("0.0.0.0", 0),
    *,
    state: int = ESTABLISHED,
    packed: bool = False,
) -> bytes:
    socket = [
        *(number_field(1, 7), number_field(2, 4711), number_field(3, 2), number_field(4, 1)),
        *(number_field(5, 6), number_field(6, state)),
        *(number_field(7, local[1]), number_field(8, remote[1]), number_field(9, 2)),
        *words(11, local[0], packed=packed),
        *words(12, remote[0], packed=packed),
        UNKNOWN,
    ]
    entry = [number_field(1, 4), number_field(2, 7), bytes_field(4, write_message(socket)), UNKNOWN]
    return write_message(entry)


def regular(number: int, name: str) -> bytes:
    inner = write_message([number_field(1, number), bytes_field(6, name.encode())])
    return write_message([number_field(1, 1), number_field(2, number), bytes_field(3, inner)])


def task(pid: int, group: int, session: int, *threads: int) -> bytes:
    ids = [number_field(5, thread) for thread in threads]
    head = [number_field(1, pid), number_field(2, 0), number_field(3, group)]
    return write_message([*head, number_field(4, session), *ids])


def ends(images: Path) -> set[tuple[str, int, str, int]]:
    return {
        (e.local_address, e.local_port, e.remote_address, e.remote_port)
        for e in read_sockets(images).established
    }


def test_facts(tmp_path: Path) -> None:
    put(tmp_path, "pstree.img", PSTREE_MAGIC, task(10, 10, 10, 10, 11), task(20, 9, 0, 20))
    facts = read_facts(tmp_path)
    assert (facts.root_pid, facts.pids) == (10, (10, 20))
    assert facts.task_ids == (9, 10, 11, 20), "a dead group leader's number must be free too"
    assert facts.highest_pid == 20


def test_the_threads_of_a_dead_process_are_rubbish(tmp_path: Path) -> None:
    """CRIU 4.2.1 writes one thread of a zombie, whose number it never set."""
    zombie = task(20, 10, 10, 1898454880)
    put(tmp_path, "pstree.img", PSTREE_MAGIC, task(10, 10, 10, 10, 11), zombie)
    facts = read_facts(tmp_path)
    assert facts.pids == (10, 20)
    assert facts.task_ids == (10, 11, 20)


@pytest.mark.parametrize("packed", [False, True])
def test_addresses_move_at_both_ends(tmp_path: Path, packed: bool) -> None:
    entries = (
        inet(("10.0.0.1", 70), ("10.0.0.2", 80), packed=packed),
        inet(("::ffff:10.0.0.1", 71), ("::ffff:10.0.0.2", 81), packed=packed),
        inet(("fd00::1", 72), ("fd00::2", 82), packed=packed),
        inet(("10.0.0.1", 73), state=LISTEN, packed=packed),
        inet(("0.0.0.0", 74), state=LISTEN, packed=packed),
        regular(3, "/10.0.0.1"),
    )
    put(tmp_path, "files.img", FILES_MAGIC, *entries)
    moves = {"10.0.0.1": "10.0.0.200", "10.0.0.2": "10.0.0.3", "fd00::1": "fd00::aaaa:bbbb"}
    assert move_addresses(tmp_path, moves) == 4
    assert ends(tmp_path) == {
        ("10.0.0.200", 70, "10.0.0.3", 80),
        ("10.0.0.200", 71, "10.0.0.3", 81),
        ("fd00::aaaa:bbbb", 72, "fd00::2", 82),
    }
    assert read_sockets(tmp_path).listening == (("0.0.0.0", 74), ("10.0.0.200", 73))
    image = read_image(tmp_path / "files.img", FILES_MAGIC)
    assert image.entries[4:] == entries[4:]
    for old, new in zip(entries[:4], image.entries[:4], strict=True):
        untouched = {1, 2, 3, 4, 5, 6, 7, 8, 9, 99}
        assert _inner(old, untouched) == _inner(new, untouched)


def _inner(entry: bytes, numbers: set[int]) -> list[Field]:
    socket = next(field.raw for field in read_message(entry) if field.number == 4)
    return [field for field in read_message(socket) if field.number in numbers]


def test_two_nodes_that_change_places_may_be_moved_twice(tmp_path: Path) -> None:
    put(tmp_path, "files.img", FILES_MAGIC, inet(("10.0.0.1", 70), ("10.0.0.2", 80)))
    dumped = (tmp_path / "files.img").read_bytes()
    swap = {"10.0.0.1": "10.0.0.2", "10.0.0.2": "10.0.0.1"}
    for _ in range(2):
        assert move_addresses(tmp_path, swap) == 1
        assert ends(tmp_path) == {("10.0.0.2", 70, "10.0.0.1", 80)}
    assert move_addresses(tmp_path, {"10.0.0.1": "10.0.0.9"}) == 1
    assert ends(tmp_path) == {("10.0.0.9", 70, "10.0.0.2", 80)}, "always from what was dumped"
    assert move_addresses(tmp_path, {}) == 0
    assert (tmp_path / "files.img").read_bytes() == dumped


def test_a_connection_that_left_the_job_is_closed(tmp_path: Path) -> None:
    peer, outside = (
        inet(("10.0.0.1", 70), ("10.0.0.2", 80)),
        inet(("10.0.0.1", 71), ("9.9.9.9", 53)),
    )
    put(tmp_path, "files.img", FILES_MAGIC, peer, outside)
    moves = {"10.0.0.1": "10.0.0.5"}
    gone = Endpoint("10.0.0.1", 71, "9.9.9.9", 53)
    never = Endpoint("10.0.0.1", 79, "10.0.0.2", 80)  # another client of the peer's port
    assert move_addresses(tmp_path, moves, close=[gone, never]) == 2
    assert ends(tmp_path) == {("10.0.0.5", 70, "10.0.0.2", 80)}
    closed = read_image(tmp_path / "files.img", FILES_MAGIC).entries[1]
    assert number_field(6, CLOSE) in _inner(closed, {6})


def test_nothing_to_move_leaves_the_files_alone(tmp_path: Path) -> None:
    put(tmp_path, "files.img", FILES_MAGIC, inet(("10.0.0.1", 70), ("10.0.0.2", 80)))
    before = os.stat(tmp_path / "files.img")
    assert move_addresses(tmp_path, {}) == 0
    after = os.stat(tmp_path / "files.img")
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert [path.name for path in tmp_path.iterdir()] == ["files.img"]


def test_families_do_not_mix(tmp_path: Path) -> None:
    put(tmp_path, "files.img", FILES_MAGIC, inet(("10.0.0.1", 70)))
    with pytest.raises(DriverError, match="another address family"):
        move_addresses(tmp_path, {"10.0.0.1": "fd00::1"})


def test_link_remaps(tmp_path: Path) -> None:
    linked = write_message([number_field(1, 27), number_field(2, 28), number_field(3, 0)])
    ghost = write_message([number_field(1, 29), number_field(2, 1), number_field(3, 1)])
    put(tmp_path, "remap-fpath.img", REMAP_MAGIC, linked, ghost)
    files = (regular(28, "/dev/shm/link_remap.28"), regular(27, "/dev/shm/sem.x"))
    put(tmp_path, "files.img", FILES_MAGIC, *files)
    assert link_remaps(tmp_path) == (LinkRemap("/dev/shm/sem.x", "/dev/shm/link_remap.28"),)


def test_addresses_are_words_in_network_order() -> None:
    assert words_of(ipaddress.ip_address("127.0.0.1")) == (16777343,)
    assert str(address_of((16777343,))) == "127.0.0.1"
    assert str(address_of(words_of(ipaddress.ip_address("::ffff:10.0.0.1")))) == "10.0.0.1"


@pytest.mark.parametrize("keep", [0, 4, 7, 9, 11, 15, -1])
def test_a_cut_off_image_is_refused(tmp_path: Path, keep: int) -> None:
    put(tmp_path, "pstree.img", PSTREE_MAGIC, task(10, 10, 10, 10))
    data = (tmp_path / "pstree.img").read_bytes()
    (tmp_path / "pstree.img").write_bytes(data[:keep])
    with pytest.raises(DriverError) as caught:
        read_facts(tmp_path)
    assert caught.value.advice


def test_another_kind_of_image_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "pstree.img", FILES_MAGIC, task(10, 10, 10, 10))
    with pytest.raises(DriverError, match="magic"):
        read_facts(tmp_path)


def test_missing_and_empty(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=r"cannot read the image pstree\.img"):
        read_facts(tmp_path)
    put(tmp_path, "pstree.img", PSTREE_MAGIC)
    with pytest.raises(DriverError, match="names no process"):
        read_facts(tmp_path)


def test_sockets_of_images_are_endpoints(tmp_path: Path) -> None:
    closed = inet(("10.0.0.1", 71), ("9.9.9.9", 53), state=CLOSE)
    put(tmp_path, "files.img", FILES_MAGIC, inet(("10.0.0.1", 70), ("10.0.0.2", 80)), closed)
    assert read_sockets(tmp_path).established == (Endpoint("10.0.0.1", 70, "10.0.0.2", 80),)


def inventory(directory: Path, *names: str) -> None:
    inner = write_message([bytes_field(12, name.encode()) for name in names])
    entry = write_message([number_field(1, 2), *([bytes_field(12, inner)] if names else [])])
    (directory / "inventory.img").write_bytes(struct.pack("<II", 0x58313116, len(entry)) + entry)


def test_plugins_are_read_from_the_inventory(tmp_path: Path) -> None:
    inventory(tmp_path)
    assert plugins(tmp_path) == ()
    inventory(tmp_path, "cuda_plugin", "amdgpu_plugin")
    assert plugins(tmp_path) == ("cuda_plugin", "amdgpu_plugin")


@pytest.mark.parametrize("data", [b"", b"\x16\x31\x31\x58\xff\x00\x00\x00", b"\x00" * 16])
def test_an_inventory_that_is_none_proves_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "inventory.img").write_bytes(data)
    with pytest.raises(DriverError, match=r"inventory\.img"):
        plugins(tmp_path)
