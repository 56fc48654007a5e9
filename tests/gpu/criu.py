"""One GPU process through the drivers of a shim, without a shim."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.kit import ROOT
from worker_shim.criu.driver import CriuDriver
from worker_shim.criu.port import DumpStats
from worker_shim.cuda.port import CudaDriver
from worker_shim.process.driver import LinuxProcessDriver
from worker_shim.process.port import LaunchSpec
from worker_shim.process.runner import CommandRunner

DEADLINE_S = 120.0
WAIT_S = 60.0


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


class Saved:
    """Launched, saved, killed, restored; ended whatever happens."""

    def __init__(self, cuda: CudaDriver, folder: Path, criu: str) -> None:
        self._cuda, self._folder = cuda, folder
        self._process = LinuxProcessDriver()
        self._criu = CriuDriver(CommandRunner(), program=criu)
        self._root = 0

    async def __aenter__(self) -> Saved:
        return self

    async def __aexit__(self, *_: object) -> None:
        for root in self._process.known_roots():
            await self._process.kill(root, deadline_s=DEADLINE_S)
        if self._root:
            await self._process.kill(self._root, deadline_s=DEADLINE_S)

    async def launch(self, argv: Sequence[str], script: str, env: Mapping[str, str]) -> None:
        """Start it with a script in place of a person."""
        words = self._folder / "script"
        words.write_text(script)
        line = ["sh", "-c", f'exec "$@" < {words}', "sh", *argv]
        spec = LaunchSpec(line, dict(env), ROOT, self._folder / "log")
        self._root = await self._process.launch(spec, deadline_s=DEADLINE_S)

    async def lines(self, path: Path, count: int) -> list[str]:
        """Wait for so many lines of a file."""
        until = time.monotonic() + WAIT_S
        while True:
            found = _words(path)
            if len(found) >= count:
                return found
            assert time.monotonic() < until, _words(self._folder / "log")
            await asyncio.sleep(0.05)

    async def _on_devices(self, act: Any) -> None:
        tree = self._process.look(self._root)
        for each in await self._cuda.processes(tree, deadline_s=DEADLINE_S):
            await act(each)

    async def save(self) -> DumpStats:
        """Lock, save, stop, dump."""
        await self._on_devices(lambda p: self._cuda.lock(p, timeout_s=10, deadline_s=DEADLINE_S))
        await self._on_devices(lambda p: self._cuda.checkpoint(p, deadline_s=DEADLINE_S))
        assert self._cuda.holders(self._process.look(self._root)) == ()
        await self._process.stop(self._root, deadline_s=DEADLINE_S)
        return await self._criu.dump(self._root, self._folder / "images", deadline_s=DEADLINE_S)

    async def kill(self) -> None:
        """As a machine that is gone."""
        await self._process.kill(self._root, deadline_s=DEADLINE_S)

    async def restore(self) -> None:
        """Back by CRIU, then onto the device."""
        self._root = await self._criu.restore(self._folder / "images", deadline_s=DEADLINE_S)
        await self._process.go_on(self._root)
        await self._on_devices(lambda p: self._cuda.restore(p, {}, deadline_s=DEADLINE_S))
        await self._on_devices(lambda p: self._cuda.unlock(p, deadline_s=DEADLINE_S))
