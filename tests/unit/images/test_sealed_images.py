"""Images in an encrypted store: nothing of a job shows in any byte, and all of it comes back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3

from coordinator.core.errors import DriverError, WrongKey
from tests.unit.images.kit import S, a_manifest, fetch, flip, pages, put, quiet, same, stage
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.chunks.reading import find_manifest
from worker_shim.images.objects.opening import StoreOptions, open_objects
from worker_shim.images.opening import open_store
from worker_shim.images.sealing import Open

PAGE = 4096
TEXT = b"password of the registry: 7h2k and much that is said again and again. " * 3_000
NAMES = (b"train.py", b"pages-1.img", b"core-1.img", b"/run/allstop", b"password", b"open_files")
ZSTD = re.compile(rb"\x28\xb5\x2f\xfd")
KEYS = {"own": "5a" * 32, "other": "a5" * 32}


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    for name, key in KEYS.items():
        path = tmp_path / name
        path.write_text(key)
        path.chmod(0o600)
    return {name: f"file:{tmp_path / name}" for name in KEYS}


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    return staging(tmp_path, "a1")


def staging(tmp_path: Path, action: str) -> Path:
    place = stage(tmp_path / "staging", action=action)
    (place / "images/pages-1.img").write_bytes(pages(1, 900) + bytes(50 * PAGE) + pages(2, 300))
    (place / "images/pages-2.img").write_bytes(TEXT)
    return place


def sealed(tmp_path: Path, key: str) -> ChunkStore:
    return open_store(StoreOptions(str(tmp_path / "store"), "n0", key))


def everything(root: Path) -> bytes:
    """Every stored byte, with the names of the files."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return b"\0".join(
        str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() for path in files
    )


def shown(stored: bytes, staged: Path, digests: set[bytes]) -> set[str]:
    """What somebody who reads the store learns of the job."""
    found = set()
    for path in (path for path in staged.rglob("*") if path.is_file()):
        content = path.read_bytes()
        windows = {content[at : at + 24] for at in range(0, len(content) - 24, PAGE)}
        if any(window in stored for window in windows - {bytes(24)}):
            found.add("contents")
        if any(each in stored for each in _forms(blake3(content).digest())):
            found.add("digests of files")
    if any(form in stored for digest in digests for form in _forms(digest)):
        found.add("digests of chunks")
    for at in ZSTD.finditer(stored):
        try:
            unpacked = zstandard.ZstdDecompressor().decompress(
                stored[at.start() :], max_output_size=64 << 20, allow_extra_data=True
            )
        except zstandard.ZstdError:
            continue
        stored += b"\0" + unpacked
    if any(name in stored for name in NAMES):
        found.add("names")
    return found


def _forms(digest: bytes) -> tuple[bytes, bytes]:
    return digest, digest.hex().encode()


async def test_nothing_of_a_job_is_in_any_stored_byte(
    staged: Path, tmp_path: Path, keys: dict[str, str]
) -> None:
    plain_root = tmp_path / "plain"
    plain = open_store(str(plain_root), "n0")
    stored = await put(plain, staged)
    _, layout = find_manifest(plain.objects, stored.place, stored.digest, Open())
    assert layout is not None
    digests = {each.tobytes() for each in layout.digests}
    assert len(digests) > 10
    told = {"contents", "digests of chunks", "names"}
    assert shown(everything(plain_root), staged, digests) >= told, "the test sees nothing"

    store = sealed(tmp_path, keys["own"])
    stored = await put(store, staged)
    assert shown(everything(tmp_path / "store"), staged, digests) == set()
    assert bytes.fromhex(KEYS["own"]) not in everything(tmp_path / "store")
    await fetch(store, stored, tmp_path / "back")
    same(staged, tmp_path / "back")
    again = sealed(tmp_path, keys["own"])  # another node
    await fetch(again, stored, tmp_path / "elsewhere")
    same(staged, tmp_path / "elsewhere")


async def test_chunks_are_shared_under_one_key(
    staged: Path, tmp_path: Path, keys: dict[str, str]
) -> None:
    store = sealed(tmp_path, keys["own"])
    first = await put(store, staged)
    second = await put(store, staging(tmp_path, "a2"), a_manifest("a2"), base="a1")
    assert second.stored_bytes < first.stored_bytes / 20
    assert await store.verify(second.place, second.digest, progress=quiet, deadline_s=S) == ()


@pytest.mark.parametrize("file", ["packs", "manifest"])
async def test_what_was_changed_is_named(
    staged: Path, tmp_path: Path, keys: dict[str, str], file: str
) -> None:
    store = sealed(tmp_path, keys["own"])
    stored = await put(store, staged)
    root = tmp_path / "store/llm/a1"
    path = next((root / "packs").iterdir()) if file == "packs" else root / "0/manifest"
    flip(path, at=5_000 if file == "packs" else None)
    other = sealed(tmp_path, keys["own"])
    if file == "packs":
        damage = await other.verify(stored.place, stored.digest, progress=quiet, deadline_s=S)
        assert damage
        assert "damaged" in damage[0].what
        assert damage[0].what.isprintable()
    with pytest.raises(DriverError):
        await fetch(other, stored, tmp_path / "back")


async def test_a_rotated_key_is_refused_before_anything_is_read_or_written(
    staged: Path, tmp_path: Path, keys: dict[str, str]
) -> None:
    await put(sealed(tmp_path, keys["own"]), staged)
    before = everything(tmp_path / "store")
    for key in (keys["other"], ""):
        with pytest.raises(WrongKey):
            sealed(tmp_path, key)
    assert everything(tmp_path / "store") == before


async def test_a_plain_store_with_images_takes_no_key(
    staged: Path, tmp_path: Path, keys: dict[str, str]
) -> None:
    plain = ChunkStore(open_objects(StoreOptions(str(tmp_path / "store"), "n0")))
    await put(plain, staged)
    with pytest.raises(WrongKey, match="not encrypted"):
        sealed(tmp_path, keys["own"])
