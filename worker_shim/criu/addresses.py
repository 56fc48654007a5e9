"""The sockets in the images, and the one thing that is changed in images: their addresses.

Field numbers are those of CRIU's `images/sk-inet.proto`. That live connections survive a change of
address on both ends was measured, see design/adr/0002-criu-images.md.
"""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from coordinator.core.errors import DriverError
from coordinator.core.model import Endpoint
from worker_shim.criu.image_file import (
    FILES_MAGIC,
    ImageFile,
    read_image,
    sync_directory,
    write_image,
)
from worker_shim.criu.images import FILES, first, messages
from worker_shim.criu.wire import (
    BYTES,
    Field,
    bytes_field,
    number_field,
    read_message,
    write_message,
)
from worker_shim.network.port import Sockets

UNMOVED = "files.img.unmoved"  # files.img as it was dumped; every rewriting starts from it

FILE_INET = 4
INET_PROTO, INET_STATE, INET_SRC_PORT, INET_DST_PORT = 5, 6, 7, 8
INET_SRC_ADDR, INET_DST_ADDR = 11, 12

IPPROTO_TCP = 6
TCP_CLOSE, TCP_LISTEN = 7, 10  # include/net/tcp_states.h

Words = tuple[int, ...]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def read_sockets(images: Path) -> Sockets:
    """The TCP sockets as the images have them now: after `move_addresses`, the moved ones.

    Sockets that will come back closed are left out. Raises DriverError for damaged images.
    """
    established: set[Endpoint] = set()
    listening: set[tuple[str, int]] = set()
    for entry in messages(images / FILES, FILES_MAGIC):
        for field in entry:
            if field.number != FILE_INET or field.kind != BYTES:
                continue
            socket = list(read_message(field.raw))
            state = first(socket, INET_STATE)
            if first(socket, INET_PROTO) != IPPROTO_TCP or state == TCP_CLOSE:
                continue
            if state == TCP_LISTEN:
                local = str(address_of(_words_in(socket, INET_SRC_ADDR)))
                listening.add((local, first(socket, INET_SRC_PORT)))
            else:
                established.add(_connection(socket))
    order = sorted(established, key=lambda e: (e.local_address, e.local_port, e.remote_port))
    return Sockets(tuple(order), tuple(sorted(listening)))


def move_addresses(
    images: Path, moves: Mapping[str, str], *, close: Sequence[Endpoint] = ()
) -> int:
    """Rewrite files.img by `moves`; connections in `close` come back closed.

    `close` has the addresses as dumped. Always starts from files.img as it was dumped, kept beside
    it, so that the call can be repeated, also with another map. A crash leaves the old file or the
    new one. Returns how many sockets differ from the dump.
    """
    words = _words_of_moves(moves)
    shut = frozenset(close)
    if not words and not shut and not (images / UNMOVED).exists():
        return 0
    _keep_unmoved(images)
    image = read_image(images / UNMOVED, FILES_MAGIC)
    entries = tuple(_moved_entry(entry, words, shut) for entry in image.entries)
    write_image(images / FILES, ImageFile(image.magics, entries))
    return sum(old != new for old, new in zip(image.entries, entries, strict=True))


def address_of(words: Sequence[int]) -> Address:
    """The address that CRIU writes as words of native byte order; an IPv4-mapped one as IPv4."""
    raw = struct.pack(f"<{len(words)}I", *words)
    address = ipaddress.ip_address(raw)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def words_of(address: Address) -> Words:
    """The other way round."""
    return struct.unpack(f"<{len(address.packed) // 4}I", address.packed)


def _keep_unmoved(images: Path) -> None:
    """Give the dumped files.img a second name, once."""
    try:
        os.link(images / FILES, images / UNMOVED)
    except FileExistsError:
        return
    except OSError as error:
        raise DriverError(
            f"cannot keep {FILES} as it was dumped: {error.strerror}", details=(str(images),)
        ) from error
    sync_directory(images)


def _words_of_moves(moves: Mapping[str, str]) -> dict[Words, Words]:
    """Old to new as the images have them: an IPv4 move counts for IPv4-mapped sockets as well."""
    words: dict[Words, Words] = {}
    for old_text, new_text in moves.items():
        old, new = ipaddress.ip_address(old_text), ipaddress.ip_address(new_text)
        if old.version != new.version:
            raise DriverError(
                f"cannot move sockets from {old} to {new}: another address family",
                advice="give both nodes addresses of one family",
            )
        words[words_of(old)] = words_of(new)
        if old.version == 4:
            words[_mapped(old)] = _mapped(new)
    return words


def _mapped(address: Address) -> Words:
    return words_of(ipaddress.IPv6Address(f"::ffff:{address}"))


def _moved_entry(entry: bytes, words: Mapping[Words, Words], shut: Set[Endpoint]) -> bytes:
    """A file entry with the socket in it moved; the very same bytes where nothing moves."""
    fields = list(read_message(entry))
    moved = [
        bytes_field(FILE_INET, _moved_socket(field.raw, words, shut))
        if field.number == FILE_INET and field.kind == BYTES
        else field
        for field in fields
    ]
    return entry if moved == fields else write_message(moved)


def _moved_socket(raw: bytes, words: Mapping[Words, Words], shut: Set[Endpoint]) -> bytes:
    fields = list(read_message(raw))
    if shut and first(fields, INET_DST_PORT) and _connection(fields) in shut:
        fields = [
            number_field(INET_STATE, TCP_CLOSE) if field.number == INET_STATE else field
            for field in fields
        ]
    for number in (INET_SRC_ADDR, INET_DST_ADDR):
        old = _words_in(fields, number)
        new = words.get(old, old)
        if new != old:
            fields = _with_words(fields, number, new)
    return write_message(fields)


def _connection(fields: Sequence[Field]) -> Endpoint:
    """The four numbers of a socket that has two ends."""
    return Endpoint(
        str(address_of(_words_in(fields, INET_SRC_ADDR))),
        first(fields, INET_SRC_PORT),
        str(address_of(_words_in(fields, INET_DST_ADDR))),
        first(fields, INET_DST_PORT),
    )


def _words_in(fields: Sequence[Field], number: int) -> Words:
    """A repeated number field, written one by one or packed."""
    return tuple(word for field in fields if field.number == number for word in field.numbers())


def _with_words(fields: Sequence[Field], number: int, words: Words) -> list[Field]:
    """The same fields with the words of one repeated field replaced, each in its place."""
    rest = list(words)
    changed: list[Field] = []
    for field in fields:
        if field.number != number:
            changed.append(field)
        elif field.kind == BYTES:
            count = len(field.numbers())
            packed = b"".join(number_field(number, word).raw for word in rest[:count])
            changed.append(replace(field, raw=packed))
            del rest[:count]
        else:
            changed.append(number_field(number, rest.pop(0)))
    return changed
