"""Who may run a CRIU: so many at once, and those with link remaps one after another."""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from worker_shim.criu.turns import Turns, cores, has_links


class Crowd:
    """Those who are inside, as many as ever were at once."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.inside, self.linked = turns, 0, 0
        self.most, self.most_linked = 0, 0

    async def come(self, *, links: bool = False) -> None:
        async with self.turns.turn(links=links, until=time.monotonic() + 5.0) as left_s:
            assert 0 < left_s <= 5.0
            self.inside += 1
            self.linked += links
            self.most = max(self.most, self.inside)
            self.most_linked = max(self.most_linked, self.linked)
            await asyncio.sleep(0.01)
            self.inside -= 1
            self.linked -= links


async def test_so_many_at_once() -> None:
    crowd = Crowd(Turns(3))
    await asyncio.gather(*(crowd.come() for _ in range(8)))
    assert (crowd.most, crowd.inside) == (3, 0)
    every = Crowd(Turns())
    await asyncio.gather(*(every.come() for _ in range(cores() + 1)))
    assert every.most == cores()


async def test_link_remaps_are_made_by_one_at_a_time() -> None:
    crowd = Crowd(Turns(3))
    await asyncio.gather(*(crowd.come(links=number % 2 == 0) for number in range(8)))
    assert (crowd.most, crowd.most_linked) == (3, 1)


async def test_who_waits_too_long_is_told_so() -> None:
    turns = Turns(1)
    async with turns.turn(links=False, until=time.monotonic() + 5.0):
        with pytest.raises(DriverError, match="other CRIUs") as raised:
            async with turns.turn(links=True, until=time.monotonic() + 0.02):
                raise AssertionError("nobody may be here")
    assert raised.value.definite
    await Crowd(turns).come(links=True)  # neither place nor lock is lost


def test_a_deleted_name_with_another_name_is_seen(tmp_path: Path) -> None:
    """As glibc makes a named semaphore: mapped by a temporary name, which goes."""
    me = (os.getpid(),)
    one, other = tmp_path / "temporary", tmp_path / "sem.mp-x"
    one.write_bytes(bytes(32))
    assert not has_links(me)
    with open(one, "r+b") as file:
        held = mmap.mmap(file.fileno(), 32)
    assert not has_links(me)
    os.link(one, other)
    one.unlink()
    assert has_links(me)
    other.unlink()
    assert not has_links(me)  # without any name it is CRIU's ghost, in the images
    held.close()
    with open(tmp_path / "log", "w") as log:
        os.link(log.name, tmp_path / "log.1")
        os.unlink(log.name)
        assert has_links(me)
