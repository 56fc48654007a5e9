"""How files are cut: the same run of pages into the same chunks, wherever it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.images.kit import PAGE, pages
from worker_shim.criu.image_file import COMMON_MAGIC, ImageFile, write_image
from worker_shim.criu.wire import VARINT, Field, bytes_field, number_field, write_varint
from worker_shim.images.chunks import cutting, pagemap
from worker_shim.images.chunks.cutting import Cuts, cut, hasher
from worker_shim.images.chunks.pagemap import PAGEMAP_MAGIC, PRESENT, seams
from worker_shim.images.chunks.table import Table, as_digests, distinct


def cut_file(path: Path, seam: tuple[int, ...] = (), key: bytes = b"") -> Cuts:
    return cut(path, path.name, seam, hasher(key), lambda count: None)


def digests(cuts: Cuts) -> list[bytes]:
    return [bytes(cuts.digests[at : at + 32]) for at in range(0, len(cuts.digests), 32)]


def put_together(cuts: Cuts, source: bytes) -> bytes:
    """The file again from its chunks alone, each looked up by its digest."""
    chunks = {}
    whole = bytearray(cuts.size_bytes)
    for start, length in zip(cuts.all_starts.tolist(), cuts.all_lengths.tolist(), strict=True):
        data = source[start : start + length]
        chunks[blake3(data).digest()] = data
    for start, digest in zip(cuts.all_starts.tolist(), digests(cuts), strict=True):
        whole[start : start + len(chunks[digest])] = chunks[digest]
    return bytes(whole)


# A file as runs of pages: of zeros, of one byte, of noise; and what is left after the last page.
RUNS = st.lists(
    st.tuples(st.sampled_from("znb"), st.integers(1, 90), st.integers(0, 3)), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(runs=RUNS, tail=st.integers(0, PAGE - 1), block=st.sampled_from([80, 128, 256]))
def test_whatever_is_cut_comes_together_again(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[tuple[str, int, int]],
    tail: int,
    block: int,
) -> None:
    parts = []
    for kind, count, seed in runs:
        parts.append({"z": bytes(PAGE), "b": b"\7" * PAGE}.get(kind, b"") * count)
        if kind == "n":
            parts.append(pages(seed, count))
    data = b"".join(parts) + b"\1" * tail
    path = tmp_path_factory.mktemp("cut") / "file"
    path.write_bytes(data)
    before = cutting.BLOCK_PAGES
    cutting.BLOCK_PAGES = block
    try:
        cuts = cut_file(path)
    finally:
        cutting.BLOCK_PAGES = before
    assert put_together(cuts, data) == data
    assert digests(cuts) == digests(cut_file(path))  # whatever is read at once
    for start, length in zip(cuts.all_starts.tolist(), cuts.all_lengths.tolist(), strict=True):
        assert length <= 64 * PAGE + tail
        piece = data[start : start + length]
        assert all(any(piece[at : at + PAGE]) for at in range(0, length, PAGE)), "zeros in a chunk"


def test_sizes_are_as_promised(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(pages(3, 8192))
    lengths = cut_file(path).all_lengths[:-1]
    assert lengths.min() >= 16 << 10
    assert lengths.max() <= 256 << 10
    assert 48 << 10 < lengths.mean() < 80 << 10


@pytest.mark.parametrize("shift", [1, 7, 1000])
def test_what_is_shifted_is_cut_alike(tmp_path: Path, shift: int) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    same = pages(4, 4096)
    one.write_bytes(same)
    other.write_bytes(pages(5, shift) + same)
    first, second = set(digests(cut_file(one))), set(digests(cut_file(other)))
    assert len(first - second) <= 4


def test_a_page_that_changes_costs_one_chunk(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = bytearray(pages(6, 4096))
    path.write_bytes(data)
    first = set(digests(cut_file(path)))
    data[2000 * PAGE + 5] ^= 1
    path.write_bytes(data)
    assert len(first - set(digests(cut_file(path)))) <= 4


def test_a_key_gives_other_names(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(pages(7, 100))
    plain, keyed = cut_file(path), cut_file(path, key=b"k" * 32)
    assert not set(digests(plain)) & set(digests(keyed))
    assert plain.all_starts.tolist() == keyed.all_starts.tolist()


# -- seams -----------------------------------------------------------------------------------------


def entry(address: int, count: int, flags: int = PRESENT) -> bytes:
    fields = ((1, address), (2, count), (4, flags))
    return b"".join(bytes([number << 3 | VARINT]) + write_varint(value) for number, value in fields)


def pagemap_of(images: Path, number: int, pages_id: int, *entries: bytes) -> None:
    head = bytes([1 << 3]) + write_varint(pages_id)
    image = ImageFile((COMMON_MAGIC, PAGEMAP_MAGIC), (head, *entries))
    write_image(images / f"pagemap-{number}.img", image)


def test_mappings_are_found_in_the_pagemap(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    pagemap_of(
        images, 100, 3,
        entry(0x1000, 40), entry(0x29000, 10),  # one run of 50
        entry(0x100000, 3), entry(0x200000, 2),  # small ones are not worth a seam of their own
        entry(0x300000, 9, flags=0),  # zeros: not in the file
        entry(0x400000, 500),
    )  # fmt: skip
    (images / "pagemap-7.img").write_bytes(b"rubbish")
    assert seams(tmp_path) == {"images/pages-3.img": (50, 55)}


def test_equal_mappings_are_cut_alike_at_once(tmp_path: Path) -> None:
    """With the seam not even the first chunk of what is equal differs."""
    one, other = tmp_path / "one", tmp_path / "other"
    same = pages(8, 64)
    one.write_bytes(same)
    other.write_bytes(pages(9, 21) + same)
    assert set(digests(cut_file(one))) <= set(digests(cut_file(other, (21,))))


def test_bytes_fields_are_no_pagemap() -> None:
    with pytest.raises(Exception, match="is no number"):
        pagemap._numbers(bytes([bytes_field(1, b"x").number << 3 | 2, 1, 0]))
    assert number_field(1, 5) == Field(1, VARINT, b"\5")


# -- tables ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), max_size=200), st.lists(st.integers(0, 60), max_size=50))
def test_tables_say_what_sets_say(held: list[int], wanted: list[int]) -> None:
    def digest(number: int) -> bytes:
        return blake3(bytes([number])).digest()

    table = as_digests(b"".join(map(digest, held)))
    first, which = distinct(table)
    assert [held[at] for at in first.tolist()] == list(dict.fromkeys(held))
    assert [held[first[at]] for at in which.tolist()] == held
    found = Table(table).find(as_digests(b"".join(map(digest, wanted))))
    for number, at in zip(wanted, found.tolist(), strict=True):
        assert (at >= 0) == (number in held)
        assert at < 0 or held[at] == number


def test_digests_that_begin_alike_are_told_apart() -> None:
    begin = np.array([7], np.uint64).tobytes()
    one, other, third = (begin + bytes([number]) * 24 for number in (1, 2, 3))
    table = Table(as_digests(one))
    assert table.find(as_digests(one + other)).tolist() == [0, -1]
    first, which = distinct(as_digests(one + other + one + third))
    assert len(first) >= 3
    assert which[0] != which[1]
    assert which[1] != which[3]
