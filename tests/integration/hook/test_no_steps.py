"""A real rank says that it takes no steps for now, and its shim reads that from the page."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker_shim.hook.install import environment, install
from worker_shim.process.control import ControlPage

# Runs each line that it is given and answers when that is done.
OBEDIENT = textwrap.dedent("""
    import os, sys
    from worker_shim.hook import no_steps, step
    outer, inner = no_steps(), no_steps()
    for line in sys.stdin:
        exec(line)
        print("done", flush=True)
""")
FAILS = "exec('try:\\n with no_steps(): raise KeyError\\nexcept KeyError: pass')"
FORKS = (
    "exec('child = os.fork()\\nif not child:\\n with no_steps(): pass\\n os._exit(0)')"
    "; os.waitpid(child, 0)"
)


class Rank:
    """One rank that does as it is told, and its page."""

    def __init__(self, place: Path) -> None:
        self.page = ControlPage.create(place / "page", 1)
        install(place / "hook")
        env = {"RANK": "3", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}
        env |= environment({}, place / "hook", place / "page", worker=0)[0]
        command = [sys.executable, "-c", OBEDIENT]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=env, cwd=place, text=True, **pipes)  # type: ignore[call-overload]

    def does(self, line: str) -> bool:
        """Have it do that; returns whether it then says that it takes no steps."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"
        (state,) = self.page.ranks()
        assert state.rank == 3
        return state.no_steps


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    with made.process:  # its pipes are closed too
        made.process.kill()
    made.page.close()


@pytest.mark.parametrize("first", ["step()", "pass"])
def test_it_says_so_for_as_long_as_the_outermost_is_open(rank: Rank, first: str) -> None:
    if first == "step()":
        assert not rank.does(first)
    assert rank.does("outer.__enter__()")
    assert rank.does("inner.__enter__()")
    assert rank.does("inner.__exit__()")
    assert rank.does("step()")  # also a step between does not end it
    assert not rank.does("outer.__exit__()")
    assert not rank.does("step()")


def test_an_error_inside_ends_it_and_a_forked_child_says_nothing(rank: Rank) -> None:
    rank.does("step()")
    assert not rank.does(FAILS)
    assert rank.does("outer.__enter__()")
    assert rank.does(FORKS)


def test_it_belongs_to_the_snapshot(rank: Rank, tmp_path: Path) -> None:
    rank.does("outer.__enter__()")
    page, slots = rank.page.snapshot()
    with ControlPage.write_anew(tmp_path / "again", page, slots) as again:
        (state,) = again.ranks()
        assert state.no_steps


def test_without_a_page_it_does_nothing() -> None:
    program = "from worker_shim.hook import no_steps\nwith no_steps(): print('in it')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "in it\n"
