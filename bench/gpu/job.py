"""`train` as a job of one host: how it is started, what it has written, how it is ended."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from bench.gpu.machine import Machine
from bench.gpu.ranks import ROOT
from coordinator.api.client import OperatorClient
from coordinator.core.errors import AllstopError, SetupError
from lab.cluster import Lab
from lab.deployment import Deployment

ENV = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
HOST = "n0"
WAIT_S = 240.0
END_S = 60.0  # of one that has failed
POLL_S = 0.1
LOG_LINES = 100
MARGIN_STEPS = 50  # further than any rank is by the time it reads where to end


def torchrun(machine: Machine, ranks: int, folder: Path, *options: str) -> list[str]:
    """The command line of a user."""
    program = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(ranks)]
    return [*program, *machine.train, "--into", str(folder), *options]


def read_digests(path: Path) -> list[tuple[int, str]]:
    """Of one rank, by step, as far as lines are whole."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [(int(step), digest) for step, digest in map(str.split, lines)]


class Job:
    """It trains under a shim; every rank writes a line after each step."""

    def __init__(self, name: str, lab: Lab, root: Path, ranks: int, criu: str) -> None:
        self.name, self.host, self.ranks = name, lab.hosts[HOST], ranks
        self.folder = root / "job"
        self.folder.mkdir(parents=True)
        self.deployment = Deployment(lab, root / "shared", options=("--criu", criu))
        self.client = OperatorClient([self.deployment.socket])

    async def __aenter__(self) -> Job:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End it, also when something has failed: then only as far as it lets itself be ended."""
        try:
            if kind is None:
                await self.end()
                return
            with suppress(AllstopError, TimeoutError):
                async with asyncio.timeout(END_S):
                    await self.end()
        finally:
            await self.client.close()

    def start(self, machine: Machine, *options: str, **env: str) -> None:
        """Control plane, shim, and the job under it."""
        self.deployment.start_control_plane()
        self.deployment.start_worker(
            self.host,
            self.name,
            workers=1,
            worker=0,
            argv=torchrun(machine, self.ranks, self.folder, *options),
            env={**ENV, **env, "PYTHONPATH": str(ROOT)},
        )

    def digests(self, rank: int) -> list[tuple[int, str]]:
        """As it wrote them; after a restore it writes some again."""
        return read_digests(self.folder / str(rank))

    async def goes_on(self, steps: int) -> None:
        """Every rank writes so many lines more; raises SetupError with the shim's last words."""
        wanted = [len(self.digests(rank)) + steps for rank in range(self.ranks)]
        until = time.monotonic() + WAIT_S
        while any(len(self.digests(rank)) < line for rank, line in enumerate(wanted)):
            if await self._has_ended() or time.monotonic() > until:
                log = self.deployment.log(HOST).read_text().splitlines()[-LOG_LINES:]
                raise SetupError(f"the job does not come to {wanted} steps", details=tuple(log))
            await asyncio.sleep(POLL_S)

    async def _has_ended(self) -> bool:
        if self.deployment.shims[HOST].poll() is not None:
            return True
        try:
            return any(view.state == "exited" for view in await self.client.jobs())
        except AllstopError:
            return False  # the control plane is not there yet

    async def end(self) -> None:
        """By itself: processes on a device are not to be killed with their host."""
        told = [step for rank in range(self.ranks) for step, _ in self.digests(rank)]
        last = max(told, default=0)
        temporary = self.folder / ".end"
        temporary.write_text(str(last + MARGIN_STEPS))
        os.replace(temporary, self.folder / "end")
        until = time.monotonic() + WAIT_S
        while any(view.state == "running" for view in await self.client.jobs()):
            if time.monotonic() > until:
                raise SetupError("the job does not end")
            await asyncio.sleep(POLL_S)
