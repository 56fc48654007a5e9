"""Whatever is wrong with the control page, nothing is raised into the job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker_shim.hook.install import environment, install
from worker_shim.process.control import ControlPage

# What `import torch` calls at its end, then a job that steps by itself.
JOB = """
from worker_shim.hook import autoload, step
autoload.load()
for _ in range(3):
    step()
print("done")
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    install(tmp_path / "hook")
    ControlPage.create(tmp_path / "page", 4).close()
    additions, _ = environment({}, tmp_path / "hook", tmp_path / "page", worker=0)
    return {"PATH": os.environ["PATH"], "RANK": "0", **additions}


def run(env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=env, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("content", [None, b"", b"x" * 4096, b"short", b"\0" * 4096])
def test_a_page_that_is_none(tmp_path: Path, env: dict[str, str], content: bytes | None) -> None:
    (tmp_path / "page").unlink()
    if content is not None:
        (tmp_path / "page").write_bytes(content)
    assert run(env) == "done\n"


def test_a_page_that_ends_before_its_slots(tmp_path: Path, env: dict[str, str]) -> None:
    os.truncate(tmp_path / "page", 64)
    assert run(env) == "done\n"


def test_more_local_ranks_than_slots(tmp_path: Path, env: dict[str, str]) -> None:
    assert run({**env, "LOCAL_RANK": "9"}) == "done\n"
    with ControlPage(tmp_path / "page") as page:
        assert page.snapshot()[1] == ()


def test_ranks_that_are_no_numbers(tmp_path: Path, env: dict[str, str]) -> None:
    assert run({**env, "RANK": "first", "LOCAL_RANK": "", "WORLD_SIZE": "-3"}) == "done\n"
    with ControlPage(tmp_path / "page") as page:
        (slot,) = page.snapshot()[1]
    assert (slot["rank_plus_1"], slot["world_size"], slot["boundary"]) == (1, 0, 3)


def test_a_healthy_page_is_counted_in(tmp_path: Path, env: dict[str, str]) -> None:
    assert run(env) == "done\n"
    with ControlPage(tmp_path / "page") as page:
        assert page.snapshot()[1][0]["boundary"] == 3


def test_without_allstop_a_step_does_nothing(env: dict[str, str]) -> None:
    del env["ALLSTOP_CONTROL_PAGE"]
    assert run(env) == "done\n"


def test_a_second_process_of_the_rank_only_takes_over_when_the_first_is_gone(
    tmp_path: Path, env: dict[str, str]
) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", JOB + "import sys; sys.stdout.flush(); sys.stdin.read()"],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert first.stdin is not None
    assert first.stdout is not None
    with ControlPage(tmp_path / "page") as page:
        first.stdout.readline()
        assert run(env) == "done\n", "the second counts nothing and says nothing"
        (slot,) = page.snapshot()[1]
        assert (slot["pid"], slot["boundary"]) == (first.pid, 3)
        first.communicate()
        assert page.ranks() == (), "a rank that has ended is none"
        run(env)
        (slot,) = page.snapshot()[1]
        assert slot["pid"] != first.pid
        assert slot["boundary"] == 3
