"""Putting files back where something is in the way, and being killed at every step of it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from tests.unit.files.kit import DRIVER, KIB, back, cut
from worker_shim.files import aside
from worker_shim.files.keeping import Keep, Keeping, Rule
from worker_shim.files.port import OpenFile

STEPS = ("open", "rename", "replace", "truncate", "ftruncate", "unlink", "link", "chmod", "fchmod")
STEPS += ("fsync", "fchown", "chown", "pwrite", "copy_file_range", "mkfifo", "mkdir")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs root that may mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def held_file(path: Path, content: bytes, tmp_path: Path) -> OpenFile:
    with path.open("wb") as held:
        held.write(content)
        held.flush()
        return cut(tmp_path)[path.name]


def test_a_full_disk_is_seen_before_and_leaves_the_file_and_no_rubbish(
    small_disk: Path, tmp_path: Path
) -> None:
    path = small_disk / "file"
    file = held_file(path, os.urandom(100 * KIB), tmp_path)
    path.unlink()
    (small_disk / "other").write_bytes(os.urandom(200 * KIB))
    with pytest.raises(DriverError, match="KiB free, and putting files back there takes"):
        DRIVER.check((file,), tmp_path / "copies")
    with pytest.raises(DriverError, match="No space left") as raised:
        DRIVER.roll_back((file,), tmp_path / "copies", label="s1")
    assert "make room" in raised.value.advice
    assert sorted(each.name for each in small_disk.iterdir()) == ["other"]
    (small_disk / "other").unlink()
    assert back(tmp_path, file) == []
    assert path.stat().st_size == 100 * KIB


def test_a_full_disk_while_the_newer_one_is_kept_aside(small_disk: Path, tmp_path: Path) -> None:
    path = small_disk / "file"
    file = held_file(path, os.urandom(100 * KIB), tmp_path)
    newer = os.urandom(120 * KIB)
    path.write_bytes(newer)
    with pytest.raises(DriverError, match="No space left"):
        DRIVER.roll_back((file,), tmp_path / "copies", label="s1")
    assert path.read_bytes() == newer
    subprocess.run(["mount", "-o", "remount,size=352k", str(small_disk)], check=True)
    DRIVER.roll_back((file,), tmp_path / "copies", label="s1")  # what is aside is not written twice
    assert path.stat().st_size == 100 * KIB
    assert (small_disk / "file.after-s1").read_bytes() == newer


def test_shared_memory_is_held_against_the_whole_of_its_file_system(
    small_disk: Path, tmp_path: Path
) -> None:
    """What is free of it now tells nothing: the older run goes first."""
    path = small_disk / "segment"
    file = replace(held_file(path, os.urandom(200 * KIB), tmp_path), role="shm")
    DRIVER.check((file,), tmp_path / "copies")
    path.unlink()
    (small_disk / "of the older run").write_bytes(os.urandom(200 * KIB))
    DRIVER.check((file,), tmp_path / "copies")
    (small_disk / "of the older run").unlink()
    subprocess.run(["mount", "-o", "remount,size=128k", str(small_disk)], check=True)
    with pytest.raises(DriverError, match="has 128 KiB in all, and putting files back there takes"):
        DRIVER.check((file,), tmp_path / "copies")


def test_a_read_only_place_is_seen_before(small_disk: Path, tmp_path: Path) -> None:
    file = held_file(small_disk / "file", b"x", tmp_path)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(DriverError, match=r"disk cannot be written, and .*file is to be put back"):
        DRIVER.check((file,), tmp_path / "copies")
    gone = replace(file, path=str(small_disk / "gone"))
    with pytest.raises(DriverError, match="Read-only file system"):
        DRIVER.roll_back((gone,), tmp_path / "copies", label="s1")


@pytest.mark.parametrize("kind", ["a directory", "a symbolic link"])
def test_something_else_in_the_place(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = held_file(path, b"x", tmp_path)
    path.unlink()
    if kind == "a directory":
        (path / "in it").mkdir(parents=True)
    else:
        path.symlink_to("/etc/passwd")
    for step in (DRIVER.check, lambda *a: DRIVER.roll_back(*a, label="s1")):
        with pytest.raises(
            DriverError, match=f"was a regular file at the checkpoint and is {kind}"
        ):
            step((file,), tmp_path / "copies")
    assert os.path.lexists(path)


def test_a_directory_where_a_fifo_was(tmp_path: Path) -> None:
    place = OpenFile(str(tmp_path / "fifo"), 0, 0o600, role="fifo")
    (tmp_path / "fifo").mkdir()
    with pytest.raises(DriverError, match="was a fifo at the checkpoint and is none now"):
        DRIVER.check((place,), tmp_path)
    with pytest.raises(DriverError, match="was a fifo"):
        DRIVER.roll_back((place,), tmp_path, label="s1")


def test_every_trouble_is_named(tmp_path: Path) -> None:
    files = [OpenFile(f"{tmp_path}/{name}", 3, 0o644, kept="none") for name in "abc"]
    with pytest.raises(DriverError, match=r"/a is missing .*\(and 2 more files\)") as raised:
        DRIVER.check(tuple(files), tmp_path)
    assert [line.split(" ")[0] for line in raised.value.details] == [file.path for file in files]


def test_changed_in_the_middle_with_the_same_length(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = bytearray(os.urandom(3 << 20))
    file = held_file(path, bytes(content), tmp_path)
    newer = content.copy()
    newer[1 << 20] ^= 1
    path.write_bytes(newer)
    (put,) = back(tmp_path, file)
    assert put.what == "replaced"
    assert path.read_bytes() == content
    assert Path(put.aside).read_bytes() == newer


def test_a_sparse_file_comes_back_sparse(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as held:
        os.truncate(held.fileno(), 1 << 30)
        os.pwrite(held.fileno(), b"middle", 500 << 20)
        files = cut(tmp_path)
        os.pwrite(held.fileno(), b"later", 700 << 20)
    path.unlink()
    back(tmp_path, files["file"])
    assert path.stat().st_size == 1 << 30
    assert path.stat().st_blocks * 512 < 1 << 20
    with path.open("rb") as now:
        assert os.pread(now.fileno(), 6, 500 << 20) == b"middle"
        assert os.pread(now.fileno(), 5, 700 << 20) == bytes(5)


def test_two_names_of_one_file_are_kept_once_and_are_one_file_again(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"at the cut")
    os.link(one, two)
    with one.open("r+b"), two.open("r+b"):
        files = cut(tmp_path)
    assert files["two"].same_as == str(one)
    assert files["two"].copy == files["one"].copy
    one.unlink()
    two.unlink()
    two.write_bytes(b"another")
    told = back(tmp_path, *files.values())
    assert one.read_bytes() == b"at the cut"
    assert one.samefile(two)
    assert [(put.path, put.what) for put in told] == [(str(two), "replaced")]
    assert Path(told[0].aside).read_bytes() == b"another"
    assert back(tmp_path, *files.values())[0].what == "before"


def test_a_rewritten_file_stays_the_one_that_other_names_mean(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    file = held_file(path, b"at the cut", tmp_path)
    os.link(path, other)
    path.write_bytes(b"something else, and longer")
    (put,) = back(tmp_path, file)
    assert path.samefile(other)
    assert other.read_bytes() == b"at the cut"
    assert Path(put.aside).read_bytes() == b"something else, and longer"


def test_what_was_a_hole_is_one_again_where_a_file_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as held:
        os.pwrite(held.fileno(), b"end", 256 * KIB)
        file = cut(tmp_path)["file"]
    os.link(path, tmp_path / "other")
    path.write_bytes(b"x" * 512 * KIB)
    back(tmp_path, file)
    assert path.read_bytes() == bytes(256 * KIB) + b"end"


def test_a_file_held_by_a_deleted_name_is_known_by_its_other(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"at the cut")
    os.link(path, other)
    with path.open("r+b"):
        path.unlink()
        files = cut(tmp_path)
    assert [*files] == ["other"]


def test_what_was_kept_is_listed_again_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = held_file(path, b"at the cut\n", tmp_path)
    path.write_bytes(b"at the cut\nafter\n")
    (first,) = back(tmp_path, file)
    (later,) = back(tmp_path, file)
    assert (later.what, later.aside, later.size_bytes) == ("before", first.aside, 6)


def test_a_name_that_has_no_room_for_more(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    file = held_file(path, b"at the cut\n", tmp_path)
    path.write_bytes(b"at the cut\nafter\n")
    (put,) = back(tmp_path, file, label="llm-20261129-214424-579caf")
    assert Path(put.aside).read_bytes() == b"after\n"
    assert put.aside.endswith(".after-llm-20261129-214424-579caf")


# -- killed at every step ------------------------------------------------------------------------


def scene(tmp_path: Path) -> tuple[tuple[OpenFile, ...], Path]:
    """A cut of one file for each kind of trouble, and the trouble."""
    disk = tmp_path / "disk"
    disk.mkdir()
    for name in ("grown", "rewritten", "linked", "missing", "tail", "one"):
        (disk / name).write_bytes(name.encode() * KIB)
    os.link(disk / "one", disk / "two")
    with contextlib.ExitStack() as stack:
        for path in disk.iterdir():
            stack.enter_context(path.open("r+b"))
        files = cut(tmp_path, Keeping((Rule(Keep.TAIL, "*/tail"),), tail_bytes=KIB))
    (disk / "grown").write_bytes(b"grown" * KIB + b"after")
    (disk / "rewritten").write_bytes(b"else")
    (disk / "linked").write_bytes(b"something else" * KIB)
    os.link(disk / "linked", disk / "other name")
    for name in ("missing", "tail", "two"):
        (disk / name).unlink()
    (disk / "two").write_bytes(b"no link any more")
    return tuple(files.values()), disk


def seen(disk: Path) -> dict[str, tuple[bytes, int, int]]:
    """Contents, permissions and number of names of everything there."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mode, path.stat().st_nlink)
        for path in disk.iterdir()
    }


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Do it in a process that is killed as its step of that number begins; whether it was."""
    child = os.fork()
    if child == 0:
        left = number

        def counting(name: str) -> Callable[..., object]:
            real = getattr(os, name)

            def step(*arguments: object, **keywords: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **keywords)

            return step

        try:
            for name in STEPS:
                setattr(os, name, counting(name))
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_killed_before_any_step_and_done_again_the_end_is_the_same(tmp_path: Path) -> None:
    files, disk = scene(tmp_path)
    before = tmp_path / "before"
    again = ["cp", "-a", "--sparse=always"]
    subprocess.run([*again, str(disk), str(before)], check=True)
    told = back(tmp_path, *files)
    assert sorted(put.what for put in told) == ["cut", "hole", *["replaced"] * 3]
    wanted = seen(disk)
    assert wanted["other name"] == wanted["linked"]
    assert wanted["linked"][0] == b"linked" * KIB
    asides = {put.aside for put in told}
    for number in range(1, 500):
        shutil.rmtree(disk)
        subprocess.run([*again, str(before), str(disk)], check=True)
        was_killed = killed_at(number, lambda: back(tmp_path, *files))
        told = back(tmp_path, *files)
        assert seen(disk) == wanted, f"killed at step {number}"
        assert {put.aside for put in told} == asides, f"killed at step {number}"
        assert any(put.what == "hole" for put in told)
        if not was_killed:
            break
    assert 40 < number < 499, "each step once, and then none"


def test_two_who_put_one_shared_file_back_at_once(tmp_path: Path) -> None:
    """Both write what is new under a name of their own."""
    path = tmp_path / "file"
    file = held_file(path, b"at the cut", tmp_path)
    path.write_bytes(b"else")
    with aside.new_beside(path, "-1") as others:
        others.write(b"half of what worker 1 wri")
        back(tmp_path, file, by="-0")
        assert path.read_bytes() == b"at the cut"
        assert aside.new_name(path, "-1").exists()


def test_an_error_while_writing_leaves_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    file = held_file(path, b"at the cut", tmp_path)
    path.write_bytes(b"else")

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(aside.os, "fsync", fails)
    with pytest.raises(DriverError, match="Input/output error"):
        DRIVER.roll_back((file,), tmp_path / "copies", label="s1")
    assert path.read_bytes() == b"else"
    assert {each.name for each in tmp_path.iterdir()} == {"file", "copies"}
