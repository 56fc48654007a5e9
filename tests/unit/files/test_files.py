"""Files at the cut, with a real process that holds them, and their way back."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from worker_shim.files import rollback
from worker_shim.files.copying import copy_contents, same_start
from worker_shim.files.driver import LinuxFileDriver
from worker_shim.files.fake import FakeFileDriver
from worker_shim.files.keeping import Keeping
from worker_shim.files.port import OpenFile
from worker_shim.process.port import Tree, TreeProcess

HERE = Tree((TreeProcess(os.getpid(), 0, 0, "", (), (), 0),))
MIB = 1 << 20


@pytest.fixture
def driver() -> LinuxFileDriver:
    return LinuxFileDriver()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "log"
    with path.open("a") as held:
        held.write("at the cut\n")
        held.flush()
        yield path


def cut(driver: LinuxFileDriver, tmp_path: Path, limit: int = MIB) -> tuple[OpenFile, ...]:
    """Those below the test's own directory: the test runner holds files of its own."""
    keeping = Keeping(copy_limit_bytes=limit, tail_bytes=MIB)
    files = driver.cut(HERE, tmp_path / "copies", keeping=keeping)
    return tuple(file for file in files if file.path.startswith(f"{tmp_path}/"))


def back(driver: LinuxFileDriver, tmp_path: Path, files: tuple[OpenFile, ...]) -> list[str]:
    told = driver.roll_back(files, tmp_path / "copies", label="s1")
    return [Path(put.aside).name for put in told if put.what in ("cut", "replaced")]


def test_a_tail_is_cut_off_and_kept(driver: LinuxFileDriver, tmp_path: Path, log: Path) -> None:
    files = cut(driver, tmp_path)
    inode = log.stat().st_ino
    log.write_text("at the cut\nand after\n")
    assert back(driver, tmp_path, files) == ["log.after-s1"]
    assert log.read_text() == "at the cut\n"
    assert log.stat().st_ino == inode
    assert log.with_name("log.after-s1").read_text() == "and after\n"
    assert back(driver, tmp_path, files) == [], "a second time nothing is left to do"


def test_tails_of_several_roll_backs_are_all_kept(
    driver: LinuxFileDriver, tmp_path: Path, log: Path
) -> None:
    files = cut(driver, tmp_path)
    names = []
    for tail in ("one\n", "two\n", "one\n"):
        log.write_text("at the cut\n" + tail)
        names += back(driver, tmp_path, files)
    assert names == ["log.after-s1", "log.after-s1.2", "log.after-s1"]


def test_a_rewritten_file_is_put_back_whole(
    driver: LinuxFileDriver, tmp_path: Path, log: Path
) -> None:
    log.chmod(0o640)
    files = cut(driver, tmp_path)
    log.write_text("something else, and longer\n")
    log.chmod(0o600)
    assert back(driver, tmp_path, files) == ["log.after-s1"]
    assert log.read_text() == "at the cut\n"
    assert log.stat().st_mode & 0o777 == 0o640
    assert log.with_name("log.after-s1").read_text() == "something else, and longer\n"


def test_a_missing_file_is_made(driver: LinuxFileDriver, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    with (tmp_path / "deep" / "file").open("w") as held:
        held.write("x")
        held.flush()
        files = cut(driver, tmp_path)
    (tmp_path / "deep" / "file").unlink()
    (tmp_path / "deep").rmdir()
    assert back(driver, tmp_path, files) == []
    assert (tmp_path / "deep" / "file").read_text() == "x"


def test_what_counts_as_held(driver: LinuxFileDriver, tmp_path: Path, log: Path) -> None:
    for name in ("mapped", "read", "gone", "private"):
        (tmp_path / name).write_bytes(bytes(4096))
    with (
        (tmp_path / "mapped").open("r+b") as mapped,
        mmap.mmap(mapped.fileno(), 4096) as page,
        (tmp_path / "private").open("rb") as private,
        mmap.mmap(private.fileno(), 4096, flags=mmap.MAP_PRIVATE),
        (tmp_path / "read").open("rb"),
        (tmp_path / "gone").open("r+b"),
        open("/proc/self/comm", "r+b"),
        open("/dev/null", "wb"),
    ):
        mapped.close()
        private.close()
        (tmp_path / "gone").unlink()
        page[:3] = b"new"
        files = cut(driver, tmp_path)
        everything = driver.cut(HERE, tmp_path / "again", keeping=Keeping())
    assert [Path(file.path).name for file in files] == ["log", "mapped"]
    assert not [file.path for file in everything if file.path.startswith(("/proc", "/dev/null"))]
    copy = next(file.copy for file in files if file.path.endswith("mapped"))
    assert (tmp_path / "copies" / copy).read_bytes()[:3] == b"new"


def test_shared_memory_is_put_back_and_not_kept(driver: LinuxFileDriver, tmp_path: Path) -> None:
    path = Path(f"/dev/shm/allstop-test-{os.getpid()}")
    try:
        with path.open("wb") as held:
            held.write(b"old")
            held.flush()
            files = driver.cut(HERE, tmp_path / "copies", keeping=Keeping())
        (file,) = (file for file in files if file.path == str(path))
        assert file.role == "shm"
        path.write_bytes(b"newer")
        assert back(driver, tmp_path, (file,)) == []
        assert path.read_bytes() == b"old"
        path.write_bytes(b"new")
        assert back(driver, tmp_path, (file,)) == []
        assert path.read_bytes() == b"old"
        assert [found.name for found in path.parent.glob(f"{path.name}*")] == [path.name]
    finally:
        path.unlink(missing_ok=True)


def test_a_crash_before_the_last_step_loses_nothing(
    driver: LinuxFileDriver, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = cut(driver, tmp_path)
    log.write_text("another start, and a tail\n")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rollback.os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            back(driver, tmp_path, files)
    assert log.read_text() == "another start, and a tail\n"
    assert back(driver, tmp_path, files) == ["log.after-s1"]
    assert log.read_text() == "at the cut\n"
    assert log.with_name("log.after-s1").read_text() == "another start, and a tail\n"
    assert not list(tmp_path.glob("*.allstop-new"))


def test_something_else_in_the_place_is_refused(
    driver: LinuxFileDriver, tmp_path: Path, log: Path
) -> None:
    files = cut(driver, tmp_path)
    log.unlink()
    log.symlink_to("/etc/passwd")
    with pytest.raises(DriverError, match="is a symbolic link now"):
        back(driver, tmp_path, files)
    assert log.is_symlink()


def test_holes_stay_holes(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w+b") as source, (tmp_path / "b").open("w+b") as target:
        os.truncate(source.fileno(), 64 * MIB)
        os.pwrite(source.fileno(), b"middle", 32 * MIB)
        copy_contents(source.fileno(), target.fileno(), 64 * MIB)
        assert same_start(source.fileno(), target.fileno(), 64 * MIB)
        assert os.fstat(target.fileno()).st_blocks * 512 < MIB
        os.pwrite(target.fileno(), b"X", 33 * MIB)
        assert not same_start(source.fileno(), target.fileno(), 64 * MIB)


def test_from_one_file_system_to_another(tmp_path: Path) -> None:
    path = Path(f"/dev/shm/allstop-test-{os.getpid()}")
    content = os.urandom(3 * MIB + 5)
    try:
        path.write_bytes(content)
        with path.open("rb") as source, (tmp_path / "b").open("w+b") as target:
            copy_contents(source.fileno(), target.fileno(), len(content))
            assert (tmp_path / "b").read_bytes() == content
    finally:
        path.unlink(missing_ok=True)


def test_the_fake(tmp_path: Path) -> None:
    fake = FakeFileDriver((OpenFile("/log", 3, 0o644),))
    assert fake.cut(HERE, tmp_path, keeping=Keeping()) == fake.files
    assert fake.settle(fake.files, tmp_path, {}) == fake.files
    fake.check(fake.files, tmp_path)
    assert fake.roll_back(fake.files, tmp_path, label="s1") == ()
    assert fake.rolled_back == [(fake.files, "s1")]
