"""A shim is killed with SIGKILL before each change it makes to a store; then somebody looks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from tests.unit.images.dying import kept
from tests.unit.images.kit import (
    S,
    a_manifest,
    directory,
    fetch,
    pages,
    put,
    quiet,
    same,
    stage,
)  # fmt: skip
from worker_shim.images.port import Kept, Stored

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def staged(tmp_path: Path) -> Path:
    """A store with snapshots a0, a1 (based on a0) and a2; and what is staged for a9."""
    store = directory(tmp_path / "store")
    for action, base, seed in (("a0", "", 1), ("a1", "a0", 2), ("a2", "a1", 3)):
        place = stage(tmp_path / "staging", action=action)
        (place / "images/pages-1.img").write_bytes(pages(0, 400) + pages(seed, 200))
        await put(store, place, a_manifest(action), base=base)
    place = stage(tmp_path / "staging", action="a9")
    (place / "images/pages-1.img").write_bytes(pages(0, 400) + pages(9, 300))
    (tmp_path / "staged").write_text(str(place))
    return place


def killed(verb: str, root: Path) -> Iterator[Path]:
    """The store as each killed child left it, and last as the one that got through did."""
    line = [sys.executable, "-m", "tests.unit.images.dying", verb, str(root)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    last = int(done.stdout)
    assert last > 10, "too few steps to be the truth"
    for at in range(1, last + 1):
        yield root / str(at)
        shutil.rmtree(root / str(at))


def objects(store: Path) -> set[str]:
    found = {str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith(("partial/", "into/"))}


async def whole(store: Path, one: Kept) -> bool:
    """Whether every byte of it is there."""
    opened = directory(store)
    return await opened.verify(one.place, one.digest, progress=quiet, deadline_s=S) == ()


async def test_a_put_that_is_killed_leaves_nothing_that_stays(staged: Path, tmp_path: Path) -> None:
    before = objects(tmp_path / "store")
    keep = [kept(tmp_path / "store", f"llm/a{number}/0") for number in range(3)]
    published = 0
    for store in killed("put", tmp_path):
        opened = directory(store, "n0")
        opened.sweep()
        assert not list((store / "partial").iterdir())
        if (store / "llm/a9/0/manifest").exists():
            published += 1
            assert await whole(store, kept(store, "llm/a9/0")), "a manifest before its bytes"
        else:
            with pytest.raises(DriverError, match="has no"):
                await opened.manifest("llm/a9/0", "0" * 64, deadline_s=S)
        await opened.delete("llm/a9/0")  # UNDO, by a shim that remembers nothing
        assert objects(store) == before
        await opened.collect("llm", ["a9"], keep, dry_run=False, deadline_s=S)
        assert objects(store) == before
        assert await whole(store, keep[1])
    assert published > 0


async def test_a_collection_that_is_killed_is_done_again(staged: Path, tmp_path: Path) -> None:
    keep = kept(tmp_path / "store", "llm/a1/0")
    old = [kept(tmp_path / "store", f"llm/{action}/0") for action in ("a0", "a2")]
    ends = []
    for store in killed("collect", tmp_path):
        assert await whole(store, keep)
        for one in old:
            if (store / one.place / "manifest").exists():
                assert await whole(store, one), "a manifest without its bytes"
        opened = directory(store)
        await opened.collect("llm", ["a0", "a2"], [keep], dry_run=False, deadline_s=S)
        assert await whole(store, keep)
        ends.append(objects(store))
    assert all(each == ends[-1] for each in ends)
    assert not [name for name in ends[-1] if name.startswith("llm/a2/")]
    assert [name for name in ends[-1] if name.startswith("llm/a0/packs/")]  # a1 needs them


async def test_a_fetch_that_is_killed_touches_no_object(staged: Path, tmp_path: Path) -> None:
    before = objects(tmp_path / "store")
    one = kept(tmp_path / "store", "llm/a1/0")
    for count, store in enumerate(killed("fetch", tmp_path)):
        assert objects(store) == before
        if count % 8 == 0:
            shutil.rmtree(store / "into", ignore_errors=True)
            await fetch(directory(store), Stored(one.place, one.digest, 0, 0, 0), store / "into")
            same(tmp_path / "staging/llm/0/a1", store / "into")
