"""The node's GPUs as NVML tells them, asked by a helper that may hang or crash.

A look takes the helper about a tenth of a second, on a large node without persistence mode some
seconds. Where there is no NVIDIA driver nothing is started.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import structlog

from coordinator.core.errors import DriverError
from coordinator.core.model import Gpu
from worker_shim.process.runner import Commands, last_lines, signal_name

log = structlog.get_logger(__name__)

DRIVERS = Path("/proc/driver/nvidia")
KERNEL_LOG = Path("/dev/kmsg")
LIBRARY = "libnvidia-ml.so.1"
LOADER_CACHE = Path("/etc/ld.so.cache")
HELPER = "worker_shim.inventory.helper"
LOOK_S = 20.0  # then the helper is killed
INTERVAL_S = 60.0  # from one look to the next while nobody asks
FRESH_S = 5.0  # what is younger answers a question
WAIT_S = 0.6  # for a look when a coordinator asks, which waits for a second; then the last one does
KEPT = 4  # looks that are remembered


class _Seen(msgspec.Struct):
    """One GPU as the helper prints it."""

    index: int
    uuid: str = ""
    model: str = ""
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    pci_address: str = ""
    architecture: str = ""
    links: list[str] = []
    mig: bool = False
    sick: str = ""
    minor: int = -1
    persistence: bool = False
    remarks: list[str] = []
    processes: list[tuple[int, int]] = []

    def gpu(self) -> Gpu:
        """As the planner knows it."""
        return Gpu(
            index=self.index,
            uuid=self.uuid,
            model=self.model,
            memory_bytes=self.memory_bytes,
            memory_free_bytes=self.memory_free_bytes,
            pci_address=self.pci_address,
            architecture=self.architecture,
            links=tuple(self.links),
            mig=self.mig,
            sick=self.sick,
            minor=self.minor,
            persistence=self.persistence,
            remarks=tuple(self.remarks),
        )


class _Printed(msgspec.Struct):
    """What the helper prints."""

    trouble: str = ""
    unseen: str = ""
    driver: str = ""
    cuda: str = ""
    looked: list[str] = []
    gpus: list[_Seen] = []


@dataclass(frozen=True)
class Inventory:
    """The GPUs as one look has found them; without a driver all of it is empty."""

    gpus: tuple[Gpu, ...] = ()
    unseen: str = ""  # why these are not all that the kernel's driver has; empty: they are
    driver: str = ""
    cuda_version: str = ""
    trouble: str = ""  # why this is not new
    looked: tuple[str, ...] = ()  # at what, for `Gpu.sick`
    held: Mapping[str, Mapping[int, int]] = field(default_factory=dict)  # UUID: bytes by pid
    began_s: float = 0.0  # on the monotonic clock; 0: nobody has looked yet
    ended_s: float = 0.0


class GpuInventory:
    """Looks at the GPUs, one look at a time, and remembers the last ones."""

    def __init__(
        self,
        commands: Commands,
        *,
        drivers: Path = DRIVERS,
        kernel_log: Path = KERNEL_LOG,
        env: Mapping[str, str] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        """`env`: of the helper; None inherits."""
        self._commands = commands
        self._drivers, self._kernel_log = drivers, kernel_log
        self._env = env
        self._look_s = look_s
        self._looks: list[Inventory] = []
        self._looking: asyncio.Task[None] | None = None

    @property
    def current(self) -> Inventory:
        """As last looked at."""
        return self._looks[-1] if self._looks else Inventory()

    def before(self, moment_s: float) -> Inventory:
        """The last look that was over at a moment of the monotonic clock, else the oldest kept.

        While ranks are saved their memory is off the GPUs, and a look then tells nothing of them.
        """
        known = [each for each in self._looks if each.ended_s <= moment_s]
        return known[-1] if known else self._looks[0] if self._looks else Inventory()

    @property
    def driver_there(self) -> bool:
        """Whether this node has an NVIDIA driver, or at least its library."""
        return self._drivers.exists() or any(path.exists() for path in self._libraries())

    def _libraries(self) -> Iterator[Path]:
        env = os.environ if self._env is None else self._env
        for folder in env.get("LD_LIBRARY_PATH", "").split(":"):
            if folder:
                yield Path(folder) / LIBRARY
        try:
            if LIBRARY.encode() in LOADER_CACHE.read_bytes():
                yield LOADER_CACHE
        except OSError:
            return

    async def look(self, *, wait_s: float = LOOK_S * 2) -> Inventory:
        """Look anew, waiting so long for it; later than that the look goes on without us."""
        await asyncio.wait({self._begin()}, timeout=wait_s)
        return self.current

    async def fresh(self) -> Inventory:
        """A look of the last few seconds, or the last one where that takes too long."""
        if time.monotonic() - self.current.ended_s > FRESH_S or not self._looks:
            await self.look(wait_s=WAIT_S)
        return self.current

    async def since(self, moment_s: float, *, wait_s: float) -> Inventory | None:
        """A look that began after a moment of the monotonic clock; None: there is none in time.

        A driver that did not answer the last time is not waited for.
        """
        if self.current.trouble:
            return None
        until_s = time.monotonic() + wait_s
        for _ in range(2):  # one that is under way may have begun before
            left_s = until_s - time.monotonic()
            if self.current.began_s < moment_s and left_s > 0:
                await asyncio.wait({self._begin()}, timeout=left_s)
        seen = self.current
        return seen if seen.began_s >= moment_s and not seen.trouble else None

    def look_now_and_then(self) -> None:
        """Begin a look when the last one is old, and return at once."""
        if self._looks and time.monotonic() - self.current.ended_s >= INTERVAL_S:
            self._begin()

    async def close(self) -> None:
        """End a look that is under way."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    def _begin(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self._looking

    async def _look(self) -> None:
        began_s = time.monotonic()
        found = await self._found() if self.driver_there else Inventory()
        before = self.current
        if found.trouble and not found.gpus:
            # What was there is there most likely; the trouble keeps anybody from relying on it.
            found = replace(before, trouble=found.trouble)
        if found.trouble and found.trouble != before.trouble:
            log.warning("GPUs cannot be looked at", why=found.trouble)
        self._looks.append(replace(found, began_s=began_s, ended_s=time.monotonic()))
        del self._looks[:-KEPT]

    async def _found(self) -> Inventory:
        argv = [sys.executable, "-m", HELPER, str(self._drivers), str(self._kernel_log)]
        try:
            ended = await self._commands.run(argv, deadline_s=self._look_s, env=self._env)
        except DriverError as error:
            late = f"NVML did not answer within {self._look_s:g} s, and its helper was killed"
            return Inventory(trouble=late if not error.definite else error.what)
        if ended.exit_code:
            how = f"exit code {ended.exit_code}"
            if ended.exit_code < 0:
                how = signal_name(-ended.exit_code)
            words = "; ".join(last_lines(ended.stderr, 1))
            return Inventory(trouble=f"NVML's helper ended by {how}" + (words and f": {words}"))
        try:
            printed = msgspec.json.decode(ended.stdout, type=_Printed)
        except msgspec.MsgspecError as error:
            return Inventory(trouble=f"NVML's helper printed what cannot be read: {error}")
        return _taken(printed)


def _taken(printed: _Printed) -> Inventory:
    return Inventory(
        gpus=tuple(seen.gpu() for seen in printed.gpus),
        unseen=printed.unseen,
        driver=printed.driver,
        cuda_version=printed.cuda,
        trouble=printed.trouble,
        looked=tuple(printed.looked),
        held={seen.uuid: dict(seen.processes) for seen in printed.gpus if seen.processes},
    )
