"""A node whose NVML is the fake one: what it tells is a file, and the helper finds its library."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.fakes.nvml.build import build, described
from worker_shim.inventory.inventory import GpuInventory
from worker_shim.process.runner import CommandRunner, Finished

A = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
B = "GPU-bbbbbbbb-0000-4000-8000-000000000001"


@cache
def library(*without: str) -> Path:
    """The folder of a library that lacks these functions, compiled once."""
    folder = Path(tempfile.mkdtemp(prefix="allstop-fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return build(folder, without)


class Counting(CommandRunner):
    """Runs programs, and keeps which."""

    def __init__(self) -> None:
        super().__init__()
        self.argvs: list[tuple[str, ...]] = []

    async def run(self, argv: Any, **how: Any) -> Finished:
        self.argvs.append(tuple(argv))
        return await super().run(argv, **how)


@dataclass
class NvmlNode:
    """One node; `drivers` is its /proc/driver/nvidia, `log` its kernel's log."""

    folder: Path
    commands: Counting = field(default_factory=Counting)

    @property
    def told(self) -> Path:
        """What the library tells."""
        return self.folder / "gpus"

    @property
    def drivers(self) -> Path:
        """Absent until it is made."""
        return self.folder / "nvidia"

    @property
    def log(self) -> Path:
        """Absent until it is made."""
        return self.folder / "kmsg"

    def has(self, *lines: str, uuids: tuple[str, ...] = (A, B), **how: Any) -> None:
        """The node has these GPUs; further lines as the library reads them."""
        new = self.folder / "gpus.new"  # a library that has the old one sees a new one whole
        new.write_text(described(uuids, *lines, **how))
        new.rename(self.told)

    def happens(self, index: int, xid: int) -> None:
        """The driver tells an Xid of one GPU; `events` must be among the lines."""
        self.tells(index, 8, xid)

    def tells(self, index: int, kind: int, data: int = 0) -> None:
        """The driver tells an event of any kind."""
        with (self.folder / "gpus.events").open("a") as file:
            file.write(f"{index} {kind} {data}\n")

    def environment(self, *without: str) -> dict[str, str]:
        """Of whoever asks a library without these functions."""
        library_path = {"LD_LIBRARY_PATH": str(library(*without))}
        return {**os.environ, **library_path, "FAKE_NVML": str(self.told)}

    def inventory(self, *without: str, look_s: float = 10.0) -> GpuInventory:
        """Who looks at them."""
        return GpuInventory(
            self.commands,
            drivers=self.drivers,
            kernel_log=self.log,
            env=self.environment(*without),
            look_s=look_s,
        )
