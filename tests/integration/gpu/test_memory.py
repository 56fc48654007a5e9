"""Device memory is not in the process: CRIU refuses it before it is saved, and alone it is lost."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gpu.criu import DEADLINE_S, Saved

from coordinator.core.errors import DriverError
from tests.fakes.gpu.rank import LOST
from tests.integration.badluck.kit import until
from tests.support.gpus import UUIDS, GpuNode, driver_of, gpu_node

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.cc,
    pytest.mark.timeout(120),
]

MIB = 1 << 20
WEIGHTS = hashlib.sha256(random.Random("weights").randbytes(MIB) * 2).hexdigest()


class Alone(Saved):
    """One rank that writes what is in device memory to a file, again and again."""

    def __init__(self, node: GpuNode, folder: Path, criu: str) -> None:
        super().__init__(driver_of("library", node), folder, criu)
        self._device, self.out = str(node.folder), folder / "sums"

    async def begin(self) -> None:
        program = [sys.executable, "-m", "tests.fakes.gpu.rank", self._device, UUIDS[0]]
        await self.launch(program, f"fill weights 2\ncount weights {self.out}\n", {})
        await self.lines(self.out, 2)

    async def dump_as_it_is(self, into: Path) -> None:
        """CRIU alone, without the driver."""
        await self._process.stop(self._root, deadline_s=DEADLINE_S)
        try:
            await self._criu.dump(self._root, into, deadline_s=DEADLINE_S)
        finally:
            await self._process.go_on(self._root)

    async def next_sums(self) -> list[str]:
        """The last of several further ones."""
        return (await self.lines(self.out, len(await self.lines(self.out, 0)) + 3))[-2:]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[GpuNode]:
    with gpu_node(tmp_path / "devices", dict.fromkeys(UUIDS, 8 * MIB)) as made:
        yield made


async def test_criu_refuses_a_process_that_is_on_its_device(
    node: GpuNode, tmp_path: Path, criu_path: str
) -> None:
    async with Alone(node, tmp_path, criu_path) as alone:
        await alone.begin()
        (tmp_path / "early").mkdir()
        with pytest.raises(DriverError) as refused:
            await alone.dump_as_it_is(tmp_path / "early")
        told = "\n".join((refused.value.what, *refused.value.details))
        assert "nix socket" in told, "the connection to the device"
        assert await alone.next_sums() == [WEIGHTS] * 2, "it goes on"
        await alone.save()
        await alone.kill()
        await alone.restore()
        assert await alone.next_sums() == [WEIGHTS] * 2


async def test_a_device_that_stays_open_is_refused_by_criu_too(
    node: GpuNode, tmp_path: Path, criu_path: str
) -> None:
    node.faults.write_text("checkpoint stale\n")
    async with Alone(node, tmp_path, criu_path) as alone:
        await alone.begin()
        with pytest.raises(AssertionError):
            await alone.save()  # the driver's word of it
        (tmp_path / "early").mkdir()
        with pytest.raises(DriverError, match="criu cannot dump"):
            await alone.dump_as_it_is(tmp_path / "early")


async def test_what_was_not_saved_does_not_come_back(
    node: GpuNode, tmp_path: Path, criu_path: str
) -> None:
    node.faults.write_text("checkpoint nothing\n")
    async with Alone(node, tmp_path, criu_path) as alone:
        await alone.begin()
        assert node.made.free_bytes(UUIDS[0]) == 6 * MIB
        await alone.save()
        await alone.kill()
        await alone.restore()
        assert await alone.next_sums() == [LOST.decode()] * 2
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
