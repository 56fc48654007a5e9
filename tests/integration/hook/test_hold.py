"""Real ranks stepping in lockstep, held and parked through the real page."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator.core.errors import DeadlinePassed, DriverError
from coordinator.core.model import RankState
from worker_shim.hook.install import environment, install
from worker_shim.process.control import ControlPage

RANKS = 4

# Every step ends only after both neighbours have sent theirs, as a collective would have it:
# ranks can be one step apart, and the whole ring stands still when one does.
LOCKSTEP = textwrap.dedent("""
    import random, socket, sys, time
    from worker_shim.hook import step
    left, right = (socket.socket(fileno=int(fd)) for fd in sys.argv[1:3])
    jitter = random.Random(sys.argv[3])
    while True:
        left.sendall(b"x"), right.sendall(b"x")
        if not left.recv(1) or not right.recv(1):
            break
        if jitter.random() < 0.2:
            time.sleep(jitter.random() * 0.004)
        step()
""")


async def until(condition: Callable[[], bool], tries: int = 20_000) -> None:
    """Poll until the condition holds, 20 s at most."""
    for _ in range(tries):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come true within 20 s")


class Ring:
    """Some ranks of one worker, each a process of its own."""

    def __init__(self, place: Path, program: str = LOCKSTEP, ranks: int = RANKS) -> None:
        self.page = ControlPage.create(place / "page", ranks)
        install(place / "hook")
        pairs = [socket.socketpair() for _ in range(ranks)]
        self.processes: list[subprocess.Popen[bytes]] = []
        for rank in range(ranks):
            ends = (pairs[rank][0].fileno(), pairs[(rank + 1) % ranks][1].fileno())
            env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            env |= environment({}, place / "hook", place / "page", worker=0)[0]
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", program, *map(str, ends), str(rank)],
                    env=env,
                    pass_fds=ends,
                    cwd=place,
                )
            )
        for pair in pairs:
            pair[0].close()
            pair[1].close()

    async def past(self, boundary: int) -> None:
        """Wait until every rank has finished so many steps."""
        await until(lambda: min((r.boundary for r in self.ranks()), default=0) >= boundary)

    def ranks(self) -> tuple[RankState, ...]:
        ranks = self.page.ranks()
        return ranks if len(ranks) == len(self.processes) else ()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(10)
        self.page.close()


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = Ring(tmp_path)
    yield ring
    ring.end()


async def test_all_ranks_park_at_max_plus_one_every_time(ring: Ring) -> None:
    chance = random.Random(7)
    spreads: set[int] = set()
    last = 1
    for generation in range(1, 41):
        await ring.past(last + chance.randrange(3))
        await ring.page.raise_hold(generation)
        published = [rank.boundary for rank in ring.page.ranks()]
        spreads.add(max(published) - min(published))
        if chance.random() < 0.5:  # let the ranks run into the hold before the target is known
            await asyncio.sleep(chance.random() * 0.01)
        target = max(published) + 1
        ring.page.set_target(target)
        parked = await ring.page.wait_parked(deadline_s=10)
        assert [rank.boundary for rank in parked] == [target] * RANKS
        assert all(rank.parked for rank in ring.page.ranks())
        ring.page.release()
        last = target
    assert spreads - {0}, "the ranks were never apart, so this test showed nothing"


async def test_a_hold_released_and_raised_again_at_once_is_not_missed(ring: Ring) -> None:
    for generation in range(1, 200, 2):
        await ring.past(1)
        await ring.page.raise_hold(generation)
        ring.page.set_target(max(rank.boundary for rank in ring.ranks()) + 1)
        await ring.page.wait_parked(deadline_s=10)
        ring.page.release()
        await ring.page.raise_hold(generation + 1)
        ring.page.set_target(max(rank.boundary for rank in ring.ranks()) + 1)
        await ring.page.wait_parked(deadline_s=10)
        ring.page.release()


async def test_a_hold_given_up_before_the_target_lets_the_ranks_go_on(ring: Ring) -> None:
    await ring.past(1)
    await ring.page.raise_hold(1)
    before = max(rank.boundary for rank in ring.ranks())
    ring.page.release()
    await ring.past(before + 5)
    assert not any(rank.parked for rank in ring.ranks())


async def test_a_parked_rank_does_not_move(ring: Ring) -> None:
    await ring.past(1)
    await ring.page.raise_hold(1)
    target = max(rank.boundary for rank in ring.ranks()) + 1
    ring.page.set_target(target)
    await ring.page.wait_parked(deadline_s=10)
    before = [_switches(process.pid) for process in ring.processes]
    await until(  # every rank has polled some more, and has stayed
        lambda: all(
            _switches(process.pid) > count + 20
            for process, count in zip(ring.processes, before, strict=True)
        )
    )
    assert [rank.boundary for rank in ring.ranks()] == [target] * RANKS


async def test_a_rank_that_never_reports_a_step_is_named_within_the_deadline(
    tmp_path: Path,
) -> None:
    stuck = LOCKSTEP.replace("while True:", "if sys.argv[3] == '2': time.sleep(60)\nwhile True:")
    ring = Ring(tmp_path, "from worker_shim.hook import rank; rank.load()\n" + stuck)
    try:
        await until(lambda: bool(ring.ranks()))
        await ring.page.raise_hold(1)
        ring.page.set_target(max(rank.boundary for rank in ring.ranks()) + 1)
        with pytest.raises(DeadlinePassed, match=r"rank 2 .* has not finished a step yet"):
            await ring.page.wait_parked(deadline_s=0.3)
    finally:
        ring.end()


async def test_a_rank_that_ends_ends_the_wait_at_once(ring: Ring) -> None:
    await ring.past(1)
    await ring.page.raise_hold(1)
    ring.page.set_target(max(rank.boundary for rank in ring.ranks()) + 1_000_000)
    wait = asyncio.ensure_future(ring.page.wait_parked(deadline_s=30))
    await ring.past(ring.ranks()[0].boundary + 1)
    ring.processes[1].kill()
    ring.processes[1].wait(10)
    with pytest.raises(DriverError, match="ended while it was to park"):
        await asyncio.wait_for(wait, 5)


async def test_a_rank_that_had_ended_before_the_wait_is_named(ring: Ring) -> None:
    await ring.past(1)
    await ring.page.raise_hold(1)
    known = ring.page.ranks()
    ring.processes[1].kill()
    ring.processes[1].wait(10)
    ring.page.set_target(max(rank.boundary for rank in known) + 1)
    with pytest.raises(DriverError, match=r"rank 1 \(pid \d+\) ended while") as caught:
        await ring.page.wait_parked(known=known, deadline_s=10)
    assert caught.value.where.rank == 1


async def test_a_rank_past_the_target_is_an_error_at_once(ring: Ring) -> None:
    await ring.past(5)
    await ring.page.raise_hold(1)
    ring.page.set_target(2)
    with pytest.raises(DriverError, match="past the target 2"):
        await ring.page.wait_parked(deadline_s=10)


def _switches(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    raise AssertionError(f"pid {pid} has no count of its context switches")
