"""Device memory is not in the process: CRIU refuses it before it is saved, and alone it is lost."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.gpu.ranks import Ranks
from coordinator.core.errors import DriverError, SetupError
from tests.integration.badluck.kit import until
from tests.support.gpus import UUIDS, GpuNode, driver_of, gpu_node
from worker_shim.criu.driver import CriuDriver
from worker_shim.process.runner import CommandRunner

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.cc,
    pytest.mark.timeout(120),
]

MIB = 1 << 20
WEIGHTS = hashlib.sha256(random.Random("weights").randbytes(MIB) * 2).hexdigest()


class Alone(Ranks):
    """One rank with something in device memory."""

    def __init__(self, node: GpuNode, folder: Path, criu: str) -> None:
        super().__init__(driver_of("library", node), folder / "ranks")
        self._device, self._images = str(node.folder), folder / "images"
        self._criu = CriuDriver(CommandRunner(), program=criu)

    async def begin(self) -> None:
        program = [sys.executable, "-m", "tests.fakes.gpu.told", "memory", self._device, UUIDS[0]]
        await self.start(program)
        assert await self.ask(0, "fill weights 2") == "done"

    async def weights(self) -> str:
        return await self.ask(0, "sum weights")

    async def dump_as_it_is(self, into: Path) -> None:
        """CRIU alone, without the driver."""
        try:
            await self.dump(self._criu, into)
        finally:
            await self.go_on()

    async def there_and_back(self) -> None:
        """Saved, dumped, killed and restored."""
        await self.lock()
        await self.save()
        await self.dump(self._criu, self._images)
        await self.kill()
        await self.criu_restore(self._criu, self._images)
        await self.restore()
        await self.unlock()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[GpuNode]:
    with gpu_node(tmp_path / "devices", dict.fromkeys(UUIDS, 8 * MIB)) as made:
        yield made


async def test_criu_refuses_a_process_that_is_on_its_device(
    node: GpuNode, tmp_path: Path, criu_path: str
) -> None:
    async with Alone(node, tmp_path, criu_path) as alone:
        await alone.begin()
        with pytest.raises(DriverError) as refused:
            await alone.dump_as_it_is(tmp_path / "early")
        told = "\n".join((refused.value.what, *refused.value.details))
        assert "nix socket" in told, "the connection to the device"
        assert await alone.weights() == WEIGHTS, "it goes on"
        await alone.there_and_back()
        assert await alone.weights() == WEIGHTS


async def test_a_device_that_stays_open_is_refused_by_criu_too(
    node: GpuNode, tmp_path: Path, criu_path: str
) -> None:
    node.faults.write_text("checkpoint stale\n")
    async with Alone(node, tmp_path, criu_path) as alone:
        await alone.begin()
        await alone.lock()
        await alone.save()  # the driver's word of it
        with pytest.raises(DriverError, match="criu cannot dump"):
            await alone.dump_as_it_is(tmp_path / "early")
        node.faults.unlink()
        await alone.restore()
        await alone.unlock()


async def test_what_was_not_saved_does_not_come_back(
    node: GpuNode, tmp_path: Path, criu_path: str
) -> None:
    node.faults.write_text("checkpoint nothing\n")
    async with Alone(node, tmp_path, criu_path) as alone:
        await alone.begin()
        assert node.made.free_bytes(UUIDS[0]) == 6 * MIB
        await alone.there_and_back()
        with pytest.raises(SetupError, match="rank 0 failed"):
            await alone.weights()
        assert node.made.free_bytes(UUIDS[0]) == 8 * MIB


async def test_what_a_rank_had_is_free_when_it_is_killed(
    node: GpuNode, tmp_path: Path, criu_path: str
) -> None:
    async with Alone(node, tmp_path, criu_path) as alone:
        await alone.begin()
        assert node.made.free_bytes(UUIDS[0]) == 6 * MIB
        await alone.kill()

        async def free() -> bool:
            return node.made.free_bytes(UUIDS[0]) == 8 * MIB

        await until("that the daemon has seen its end", free)
