"""Ranks below one root, as a shim would have them, taken through the steps of a checkpoint."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from coordinator.core.errors import SetupError
from worker_shim.criu.port import DumpStats, ImageDriver
from worker_shim.cuda.killing import take_off
from worker_shim.cuda.port import CudaDriver, GpuProcess
from worker_shim.process.driver import LinuxProcessDriver
from worker_shim.process.port import LaunchSpec, Tree

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300.0  # of what copies device memory
ANSWER_S = 120.0  # of a rank; the first one waits for its imports
LOCK_S = 10.0
END_S = 45.0  # longer than any work that they were told to do
POLL_S = 0.005
LOOK_S = 1.0  # between looks whether anybody is there to answer


class Ranks:
    """What they are told and what they answer are files, so that CRIU can save them."""

    def __init__(self, cuda: CudaDriver, folder: Path) -> None:
        """`folder`: one that is not there yet."""
        self.cuda = cuda
        self._folder = folder
        self._process = LinuxProcessDriver()
        self._heard: list[int] = []
        self._order: tuple[int, ...] = ()  # pids, since the last lock
        self._root = 0

    async def __aenter__(self) -> Ranks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, *programs: Sequence[str]) -> None:
        """One rank of each; all are on their devices when this returns."""
        self._folder.mkdir(parents=True)
        lines = []
        for number, program in enumerate(programs):
            self._told(number).touch()
            files = f"<{self._told(number)} >>{self._said(number)} 2>>{self._log}"
            lines.append(f"{shlex.join(program)} {files} &")
            self._heard.append(0)
        line = ["/bin/sh", "-c", "\n".join([*lines, "wait"])]
        spec = LaunchSpec(line, dict(os.environ), ROOT, self._log)
        self._root = await self._process.launch(spec, deadline_s=ANSWER_S)
        for number in range(len(programs)):
            if (said := await self.heard(number)) != "ready":
                raise SetupError(f"rank {number} said {said!r}", details=self._last_words())

    @property
    def count(self) -> int:
        """Of ranks."""
        return len(self._heard)

    # -- telling -------------------------------------------------------------------------------

    def _told(self, number: int) -> Path:
        return self._folder / f"told.{number}"

    def _said(self, number: int) -> Path:
        return self._folder / f"said.{number}"

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def tell(self, number: int, line: str) -> None:
        """Without waiting for the answer."""
        with self._told(number).open("a") as file:
            file.write(line + "\n")

    async def heard(self, number: int) -> str:
        """Its next answer; raises SetupError for one that fails, or does not come."""
        looked = time.monotonic()
        until = looked + ANSWER_S
        while True:
            said = self._said(number).read_text() if self._said(number).exists() else ""
            lines = said.split("\n")[:-1]
            if len(lines) > self._heard[number]:
                break
            if time.monotonic() > looked + LOOK_S:
                looked = time.monotonic()
                if looked > until or not self.tree().processes:
                    raise SetupError(f"rank {number} does not answer", details=self._last_words())
            await asyncio.sleep(POLL_S)
        answer = lines[self._heard[number]]
        self._heard[number] += 1
        if answer.startswith("failed "):
            raise SetupError(f"rank {number} {answer}", details=self._last_words())
        return answer

    async def ask(self, number: int, line: str) -> str:
        """Tell it something and wait for the answer."""
        self.tell(number, line)
        return await self.heard(number)

    async def ask_all(self, line: str) -> list[str]:
        """All at once."""
        for number in range(self.count):
            self.tell(number, line)
        return [await self.heard(number) for number in range(self.count)]

    def _last_words(self) -> tuple[str, ...]:
        return tuple(self._log.read_text().splitlines()[-10:]) if self._log.exists() else ()

    # -- the steps of a checkpoint -------------------------------------------------------------

    def tree(self) -> Tree:
        """Root and ranks."""
        return self._process.look(self._root)

    async def gpu_processes(self) -> tuple[GpuProcess, ...]:
        """Those with GPU state, in the order in which they were locked."""
        found = await self.cuda.processes(self.tree(), deadline_s=DEADLINE_S)
        if not self._order:
            return found
        by_pid = {each.pid: each for each in found}  # a restore may have put them in another order
        return tuple(by_pid[pid] for pid in self._order)

    async def _each(self, act: Callable[[GpuProcess], Awaitable[None]]) -> None:
        for process in await self.gpu_processes():
            await act(process)

    async def lock(self) -> None:
        """All of them, one after another, as in every step."""
        self._order = ()
        self._order = tuple(each.pid for each in await self.gpu_processes())
        await self._each(lambda each: self.cuda.lock(each, timeout_s=LOCK_S, deadline_s=DEADLINE_S))

    async def save(self) -> None:
        """Their device memory becomes their own."""
        await self._each(lambda each: self.cuda.checkpoint(each, deadline_s=DEADLINE_S))

    async def restore(self, devices: Mapping[str, str] | None = None) -> None:
        """And is device memory again."""
        await self._each(lambda each: self.cuda.restore(each, devices or {}, deadline_s=DEADLINE_S))

    async def unlock(self) -> None:
        """They go on."""
        await self._each(lambda each: self.cuda.unlock(each, deadline_s=DEADLINE_S))

    async def dump(self, criu: ImageDriver, images: Path) -> DumpStats:
        """The tree, which stays stopped."""
        await self._process.stop(self._root, deadline_s=DEADLINE_S)
        return await criu.dump(self._root, images, deadline_s=DEADLINE_S)

    async def go_on(self) -> None:
        """After a dump, or one that failed."""
        await self._process.go_on(self._root)

    async def kill(self) -> None:
        """Of a tree that has nothing on a device."""
        await self._process.kill(self._root, deadline_s=DEADLINE_S)

    async def criu_restore(self, criu: ImageDriver, images: Path) -> None:
        """The tree runs again, its device memory still its own."""
        self._root = await criu.restore(images, deadline_s=DEADLINE_S)
        self._process.look(self._root)
        await self._process.go_on(self._root)

    async def close(self) -> None:
        """End all: as they are told, else off their devices and killed."""
        if not self._root:
            return
        await self._process.go_on(self._root)
        for number in range(self.count):
            self.tell(number, "quit")
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._process.wait(self._root)
                return
        try:
            alone = asyncio.Lock()  # nobody else asks this driver
            await take_off(self.cuda, self.tree(), alone, self.go_on, deadline_s=DEADLINE_S)
        finally:
            await self._process.kill(self._root, deadline_s=DEADLINE_S)
