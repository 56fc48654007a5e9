"""What is kept of files by choice, and what a roll back makes of it with and without the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from coordinator.core.errors import BadRequest, DriverError
from tests.unit.files.kit import DRIVER, HERE, KIB, NONE, TAIL, back, cut
from worker_shim.files import cutting
from worker_shim.files.keeping import Keep, Keeping, Rule, parse_rule
from worker_shim.files.port import OpenFile
from worker_shim.process import descriptors
from worker_shim.process.view import view

CONTENT = os.urandom(64 * KIB + 17)
SIZE = len(CONTENT)


@pytest.fixture
def never_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that cannot share blocks between files."""
    monkeypatch.setattr(cutting, "clone", lambda source, target: False)


@pytest.fixture
def hold(tmp_path: Path) -> Callable[[Keeping], OpenFile]:
    """Cut one file with that content, held open for writing; afterwards nobody holds it."""

    def made(keeping: Keeping) -> OpenFile:
        with (tmp_path / "file").open("wb") as held:
            held.write(CONTENT)
            held.flush()
            return cut(tmp_path, keeping)["file"]

    return made


def test_rules_are_read_and_the_first_that_matches_counts() -> None:
    rules = tuple(map(parse_rule, ("copy:/data/log/*", "none:/data/*.bin", "tail")))
    keeping = Keeping(rules)
    told = {
        path: str(keeping.of(path, "data"))
        for path in ("/data/log/deep/a.bin", "/data/x.bin", "/data/x", "/other")
    }
    assert told == {
        "/data/log/deep/a.bin": "copy",
        "/data/x.bin": "none",
        "/data/x": "tail",
        "/other": "tail",
    }
    assert Keeping().of("/x", "data") is Keep.COPY
    assert keeping.of("/dev/shm/x", "shm") is Keeping((Rule(Keep.NONE),)).of("p", "page")
    for wrong in ("all", "", "copy:", "tail:data/x", "copy /x"):
        with pytest.raises(BadRequest, match="does not say"):
            parse_rule(wrong)


def test_of_none_the_size_alone_is_known(hold: Callable[..., OpenFile], tmp_path: Path) -> None:
    file = hold(NONE)
    assert (file.kept, file.copy, file.size_bytes, file.kept_from) == ("none", "", SIZE, SIZE)
    assert not list((tmp_path / "copies").glob("file-*"))
    path = Path(file.path)
    path.write_bytes(CONTENT + b"later")
    (put,) = back(tmp_path, file)
    assert (put.what, Path(put.aside).read_bytes()) == ("cut", b"later")
    assert path.read_bytes() == CONTENT
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DriverError, match=rf"is {SIZE - 1} bytes long and was {SIZE}.*none of its"):
        DRIVER.check((file,), tmp_path)
    path.unlink()
    with pytest.raises(DriverError, match="is missing on this node") as raised:
        DRIVER.check((file,), tmp_path)
    assert "--keep-files" in raised.value.advice
    with pytest.raises(DriverError, match="is missing on this node"):
        DRIVER.roll_back((file,), tmp_path, label="s1")
    assert not path.exists()


def test_an_empty_file_is_always_made(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("wb"):
        file = cut(tmp_path, NONE)["lock"]
    path.unlink()
    assert back(tmp_path, file) == []
    assert path.read_bytes() == b""


def test_of_a_tail_a_missing_file_is_made_with_a_hole(
    hold: Callable[..., OpenFile], tmp_path: Path
) -> None:
    file = hold(TAIL)
    assert (file.kept, file.kept_from) == ("tail", SIZE - KIB)
    assert (tmp_path / "copies" / file.tail).read_bytes() == CONTENT[-KIB:]
    assert not file.copy, "a shim of before would take it for all"
    path = Path(file.path)
    path.unlink()
    (put,) = back(tmp_path, file)
    assert (put.what, put.size_bytes) == ("hole", SIZE - KIB)
    assert path.read_bytes() == bytes(SIZE - KIB) + CONTENT[-KIB:]
    assert path.stat().st_blocks * 512 < SIZE // 2
    (again,) = back(tmp_path, file)
    assert again.what == "hole", "a later restore still says what that file is"


def test_of_a_tail_a_file_that_is_there_is_compared(
    hold: Callable[..., OpenFile], tmp_path: Path
) -> None:
    file = hold(TAIL)
    path = Path(file.path)
    assert back(tmp_path, file) == []
    path.write_bytes(CONTENT + b"later")
    assert [put.what for put in back(tmp_path, file)] == ["cut"]
    assert path.read_bytes() == CONTENT
    rewritten = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    path.write_bytes(rewritten)
    with pytest.raises(DriverError, match=f"differs from byte {SIZE - KIB} on .*only its last"):
        DRIVER.check((file,), tmp_path / "copies")
    with pytest.raises(DriverError, match="differs"):
        DRIVER.roll_back((file,), tmp_path / "copies", label="s1")
    assert path.read_bytes() == rewritten


@pytest.mark.usefixtures("never_shared")
def test_more_than_the_limit_is_kept_by_its_tail(tmp_path: Path) -> None:
    keeping = Keeping(copy_limit_bytes=20 * KIB, tail_bytes=KIB)
    with (tmp_path / "big").open("wb") as big, (tmp_path / "small").open("wb") as small:
        big.write(CONTENT)
        small.write(CONTENT[: 16 * KIB])
        big.flush()
        small.flush()
        expected = DRIVER.expect(HERE, keeping)
        files = cut(tmp_path, keeping)
    assert (files["small"].kept, files["small"].why) == ("copy", "")
    assert (files["big"].kept, files["big"].why) == ("tail", cutting.OVER_LIMIT)
    assert files["big"].path in [file.path for file in expected.partial]
    assert expected.bytes >= 17 * KIB


def test_memory_of_the_job_is_kept_whatever_was_chosen(tmp_path: Path) -> None:
    path = Path(f"/dev/shm/allstop-keep-{os.getpid()}")
    try:
        path.write_bytes(CONTENT)
        with path.open("rb"):  # by a reader: no other node has it
            files = DRIVER.cut(HERE, tmp_path / "copies", keeping=Keeping(NONE.rules, 0))
        (file,) = (file for file in files if file.path == str(path))
        assert (file.kept, file.role, file.why) == ("copy", "shm", "memory of the job")
        path.unlink()
        DRIVER.roll_back((file,), tmp_path / "copies", label="s1")
        assert path.read_bytes() == CONTENT
    finally:
        path.unlink(missing_ok=True)


def test_files_without_a_name_are_counted_for_the_room(tmp_path: Path) -> None:
    before = DRIVER.expect(HERE, NONE).bytes
    with (tmp_path / "gone").open("wb") as gone:
        gone.write(CONTENT)
        gone.flush()
        os.fsync(gone.fileno())
        (tmp_path / "gone").unlink()
        assert DRIVER.expect(HERE, NONE).bytes >= before + SIZE


def test_a_name_that_no_record_can_hold_is_seen_before(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"\xff\xfe")
    with open(path, "wb"), pytest.raises(DriverError, match=r"not UTF-8: .*\\udcff\\udcfe"):
        DRIVER.expect(HERE, Keeping())


def test_what_another_process_appends_after_the_cut_is_taken_in(tmp_path: Path) -> None:
    """CRIU looks a moment later, and a restore insists on the size that it saw."""
    for keeping, whole in ((Keeping(), True), (TAIL, False)):
        with (tmp_path / "file").open("wb") as held:
            held.write(CONTENT)
            held.flush()
            file = cut(tmp_path, keeping)["file"]
            held.write(b"by another")
            held.flush()
            grown = (SIZE + 6, CONTENT + b"by ano")
            (settled,) = DRIVER.settle((file,), tmp_path / "copies", {file.path: grown[0]})
        Path(file.path).unlink()
        back(tmp_path, settled)
        start = 0 if whole else SIZE - KIB
        assert Path(file.path).read_bytes() == bytes(start) + grown[1][start:]
    with pytest.raises(DriverError, match="rewritten by another process"):
        DRIVER.settle((file,), tmp_path / "copies", {file.path: SIZE - 1})


def test_a_manifest_of_before_still_says_what_is_kept() -> None:
    old = b'[{"path":"/a","size_bytes":3,"mode":420,"copy":"file-0"},' + (
        b'{"path":"/b","size_bytes":9,"mode":420,"role":"data","uid":0,"gid":0}]'
    )
    one, other = msgspec.json.decode(old, type=tuple[OpenFile, ...])
    assert (one.keeps, other.keeps) == (Keep.COPY, Keep.NONE)
    assert (one.kept_from, one.same_as) == (0, "")


def test_more_without_a_name_than_the_images_carry_is_seen_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "GHOST_BYTES_MAX", 32 * KIB)
    with (tmp_path / "gone").open("wb") as gone, (tmp_path / "holes").open("wb") as holes:
        gone.write(CONTENT)
        gone.flush()
        os.fsync(gone.fileno())
        os.ftruncate(holes.fileno(), 1 << 40)
        for name in ("gone", "holes"):
            (tmp_path / name).unlink()
        found = [each for each in descriptors.check(view(HERE)) if each.code == "deleted_file"]
    (finding,) = [each for each in found if f"{tmp_path}/" in each.text]
    assert f"{tmp_path}/gone (deleted)" in finding.text
