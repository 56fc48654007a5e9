"""Ranks on this machine's GPU, by each way to its driver."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from bench.gpu.machine import Machine, lacking_criu
from bench.gpu.ranks import Ranks
from tests.gpu import kit
from worker_shim.criu.driver import CriuDriver
from worker_shim.cuda.choosing import choose
from worker_shim.cuda.port import CudaDriver
from worker_shim.process.runner import CommandRunner

Start = Callable[..., Awaitable[Ranks]]
_undisturbed: dict[tuple[str, ...], tuple[str, str]] = {}


@pytest.fixture(scope="session")
def machine() -> Machine:
    """What there is here."""
    return kit.machine()


@pytest.fixture(scope="session")
def torch_rank() -> Sequence[str]:
    """The program of a rank that trains."""
    if why := kit.why_no_torch():
        pytest.skip(why)
    return kit.torch_rank()


@pytest.fixture(scope="session")
def criu(criu_path: str) -> CriuDriver:
    """CRIU, where it can be used."""
    if why := lacking_criu():
        pytest.skip(f"{why}; what needs no CRIU is tested")
    return CriuDriver(CommandRunner(), program=criu_path)


@dataclass
class Bench:
    """A machine and one way to its driver."""

    machine: Machine
    driver: CudaDriver
    start: Start  # ranks of these programs, ended when the test is over
    folder: Path

    async def undisturbed(self, program: Sequence[str]) -> tuple[str, str]:
        """Digests that such a rank comes to after two steps and after two more, by itself."""
        key = tuple(program)
        if key not in _undisturbed:
            async with Ranks(
                self.driver, self.folder / f"undisturbed-{len(_undisturbed)}"
            ) as ranks:
                await ranks.start(program)
                await ranks.ask(0, f"fill weights {kit.size_mib()}")
                first = await ranks.ask(0, "step weights 2")
                _undisturbed[key] = (first, await ranks.ask(0, "step weights 2"))
        return _undisturbed[key]


@pytest_asyncio.fixture(params=["library", "program"])
async def gpu(
    request: pytest.FixtureRequest, machine: Machine, tmp_path: Path
) -> AsyncIterator[Bench]:
    """By either; skipped where this one is not here."""
    if request.param not in machine.engines:
        pytest.skip(f"driver {machine.driver} is here, and no way to it by {request.param}")
    driver = choose(request.param, CommandRunner())
    numbers = itertools.count()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(driver.close)

        async def start(*programs: Sequence[str]) -> Ranks:
            ranks = Ranks(driver, tmp_path / f"ranks-{next(numbers)}")
            await stack.enter_async_context(ranks)
            await ranks.start(*programs)
            return ranks

        yield Bench(machine, driver, start, tmp_path)


@pytest.fixture
def pair(machine: Machine, torch_rank: Sequence[str]) -> list[Sequence[str]]:
    """A rank of bare device memory and one that trains."""
    return [machine.rank, torch_rank]


@pytest.fixture(params=kit.KINDS)
def program(request: pytest.FixtureRequest, machine: Machine) -> Sequence[str]:
    """A rank of either kind: bare device memory, and PyTorch with an optimizer."""
    if request.param == "memory":
        return machine.rank
    found: Sequence[str] = request.getfixturevalue("torch_rank")
    return found
