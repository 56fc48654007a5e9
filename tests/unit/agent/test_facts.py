"""Node facts, program files, the follower, and processes that lost their root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from blake3 import blake3

from coordinator.core.errors import SetupError
from coordinator.core.model import ProgramFile
from tests.unit.agent.rig import Rig
from worker_shim import facts
from worker_shim.agent import programs
from worker_shim.agent.follow import Follower
from worker_shim.agent.strays import kill_strays, strays_of
from worker_shim.hook.page import PATH_VARIABLE
from worker_shim.process.port import Tree, TreeProcess


async def test_facts_of_this_machine(rig: Rig) -> None:
    assert await rig.probe.probe() == ""
    seen = rig.probe.current()
    assert (seen.node, seen.address, seen.criu_version) == ("n0", "10.0.0.1", "4.2.1")
    assert seen.kernel == os.uname().release
    assert seen.memory_bytes >= seen.memory_free_bytes > 0
    assert seen.cpu_flags
    assert seen.staging_free_bytes > 0
    assert seen.store == "fake-store"
    assert len(seen.boot_id) > 10


async def test_no_criu_is_told_and_no_error(rig: Rig) -> None:
    async def version() -> str:
        raise SetupError("there is no criu")

    rig.images.version = version  # type: ignore[method-assign]
    assert "no criu" in await rig.probe.probe()
    assert rig.probe.current().criu_version == ""


def test_an_address_is_found() -> None:
    assert facts.default_address().count(".") == 3


def own_tree(*argv: str) -> Tree:
    process = TreeProcess(os.getpid(), 1, 1, "R", argv, (os.getpid(),), 0)
    return Tree((process,))


def test_programs_of_this_process(tmp_path: Path) -> None:
    found = {file.path: file for file in programs.programs_of(own_tree("python", __file__))}
    python = os.readlink("/proc/self/exe")
    assert found[python].digest == blake3(Path(python).read_bytes()).hexdigest()
    assert len(found[str(Path(__file__).resolve())].digest) == 64
    libc = [file for path, file in found.items() if Path(path).name.startswith("libc.so")]
    assert libc
    assert libc[0].digest == ""
    assert libc[0].size_bytes == Path(libc[0].path).stat().st_size


def test_answers_are_about_the_files_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("one")
    asked = (ProgramFile(str(path), 3, "x"), ProgramFile(str(path), 3), ProgramFile("/no", 1))
    digest, size = programs.answer(asked)
    assert digest == ProgramFile(str(path), 3, str(blake3(b"one").hexdigest()))
    assert size == ProgramFile(str(path), 3)
    path.write_text("two")
    os.utime(path, ns=(1, 1))
    assert programs.answer(asked)[0].digest == str(blake3(b"two").hexdigest())


def test_follower_copies_what_grows_and_survives_a_roll_back(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT)
    follower = Follower(log, descriptor)
    follower.catch_up()
    log.write_text("one\ntwo\nthree\n")
    follower.catch_up()
    os.truncate(log, 4)
    follower.catch_up()
    with log.open("a") as file:
        file.write("two again\n")
    follower.catch_up()
    os.close(descriptor)
    assert out.read_text() == "one\ntwo\nthree\ntwo again\n"


def test_followers_of_several_workers_cut_no_line(tmp_path: Path) -> None:
    logs, out = [tmp_path / "0", tmp_path / "1"], tmp_path / "out"
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT)
    followers = [Follower(log, descriptor, lines=True) for log in logs]

    def write(*texts: str) -> None:
        for log, text, follower in zip(logs, texts, followers, strict=True):
            with log.open("a") as file:
                file.write(text)
            follower.catch_up()

    write("step 1\nlo", "50 %\r100")
    write("ss 0.5\n", " %\r")
    write("no end", "of line")
    assert out.read_bytes() == b"step 1\n50 %\rloss 0.5\n100 %\r"
    for follower in followers:
        follower.catch_up(last=True)
    os.close(descriptor)
    assert out.read_text().endswith("no endof line")


def test_strays_are_known_by_their_page(tmp_path: Path) -> None:
    page = tmp_path / "page"
    other = {**os.environ, PATH_VARIABLE: f"{page}x"}
    mine = {**os.environ, PATH_VARIABLE: str(page)}
    line = [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(60)"]
    with (
        subprocess.Popen(line, env=mine, stdout=subprocess.PIPE) as stray,
        subprocess.Popen(line, env=other, stdout=subprocess.PIPE) as neighbour,
    ):
        for process in (stray, neighbour):
            assert process.stdout is not None
            process.stdout.readline()
        assert strays_of(page) == (stray.pid,)
        assert kill_strays(page) >= 1
        assert stray.wait(5) == -9
        assert neighbour.poll() is None
        neighbour.kill()
