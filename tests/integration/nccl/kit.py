"""A job of four ranks on two nodes whose communicator is the stand-in's, under real shims."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from coordinator.api.client import OperatorClient
from coordinator.core.errors import AllstopError
from coordinator.core.view import JobView
from lab import Lab
from lab.deployment import Deployment

PROGRAM = Path(__file__).with_name("programs") / "ranks.py"
JOB = "sums"
RANKS = 4
WAIT_S = 60.0
POLL_S = 0.05


async def until(what: str, look: Callable[[], Awaitable[Any] | Any], wait_s: float = WAIT_S) -> Any:
    """Look again and again until the answer is true; return it."""
    deadline = time.monotonic() + wait_s
    while True:
        found = look()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not come within {wait_s:g} s"
        await asyncio.sleep(POLL_S)


class Sums:
    """The job, its control plane, and ways to make a rank misbehave."""

    def __init__(self, lab: Lab, root: Path, criu: str, shim: Path, *policy: str) -> None:
        self.lab, self.shared, self.shim = lab, root / "job", shim
        self.shared.mkdir(parents=True)
        self.policy = ("--lease", "3s", *(w for each in policy for w in ("--policy", each)))
        self.deployment = Deployment(lab, root, options=("--criu", criu))
        self.deployment.start_control_plane(*self.policy)
        self.client = OperatorClient([self.deployment.socket])

    def start(self) -> None:
        """Worker 0 on n0, worker 1 on n1, a spare on n2."""
        root = self.lab.hosts["n0"].address
        env = {
            "ALLSTOP_NCCL": "rebuild",
            "ALLSTOP_NCCL_SHIM": str(self.shim),
            "FAKE_NCCL": str(self.shared / "do"),
        }
        for worker in (0, 1):
            argv = [sys.executable, str(PROGRAM), str(worker), root, str(self.shared)]
            host = self.lab.hosts[f"n{worker}"]
            self.deployment.start_worker(host, JOB, workers=2, worker=worker, argv=argv, env=env)
        self.deployment.start_spare(self.lab.hosts["n2"])

    def tell(self, what: str, rank: int) -> Path:
        """Make a rank behave otherwise as long as this file is there."""
        path = self.shared / f"do.{what}.{rank}"
        path.touch()
        return path

    def steps(self) -> list[int]:
        """The last step of each rank."""
        paths = [self.shared / f"step.{rank}" for rank in range(RANKS)]
        return [int(path.read_text()) if path.exists() else 0 for path in paths]

    def log(self, node: str) -> str:
        """What a shim has said, its worker included."""
        return self.deployment.log(node).read_text()

    async def goes_on(self) -> None:
        """Every rank finishes further steps."""
        before = self.steps()
        try:
            await until("steps", lambda: min(self.steps()) > max(before) + 3)
        except AssertionError:
            logs = "\n".join(self.log(name)[-3000:] for name in ("control", "n0", "n1", "n2"))
            raise AssertionError(f"no steps after {before}: {self.steps()}\n{logs}") from None

    async def job(self) -> JobView | None:
        """The job as `allstop jobs` shows it; None while it is not known or nobody leads."""
        try:
            return next((view for view in await self.client.jobs() if view.job.job == JOB), None)
        except AllstopError:
            return None

    async def is_running(self, incarnation: int) -> JobView:
        """Wait until all of the job runs in this incarnation."""

        async def there() -> JobView | None:
            view = await self.job()
            right = view is not None and view.job.incarnation == incarnation
            return view if right and view is not None and view.state == "running" else None

        found: JobView = await until(f"the job in incarnation {incarnation}", there)
        return found

    async def findings(self) -> list[str]:
        """What the shims have found, of all workers."""
        view = await self.job()
        workers = view.workers if view is not None else ()
        return [finding.text for worker in workers for finding in worker.findings]

    async def is_lost(self, node: str) -> None:
        """Wait until the coordinator knows that a node is out of reach."""

        async def lost() -> bool:
            views = await self.client.nodes()
            return any(view.facts.node == node and view.state == "lost" for view in views)

        await until(f"the loss of {node}", lost)
