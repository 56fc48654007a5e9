"""A job of four ranks on two nodes whose communicator is the stand-in's, under real shims."""

from __future__ import annotations

import sys
from pathlib import Path

from coordinator.api.client import OperatorClient
from coordinator.core.view import JobView
from lab import Lab
from lab.deployment import Deployment
from tests.support.jobs import job_of, runs_in, until

PROGRAM = Path(__file__).with_name("programs") / "ranks.py"
JOB = "sums"
RANKS = 4


class Sums:
    """The job, its control plane, and ways to make a rank misbehave."""

    def __init__(self, lab: Lab, root: Path, criu: str, shim: Path, *policy: str) -> None:
        self.lab, self.shared, self.shim = lab, root / "job", shim
        self.shared.mkdir(parents=True)
        self.policy = ("--lease", "3s", *(w for each in policy for w in ("--policy", each)))
        self.deployment = Deployment(lab, root, options=("--criu", criu))
        self.deployment.start_control_plane(*self.policy)
        self.client = OperatorClient([self.deployment.socket])

    def start(self, **env: str) -> None:
        """Worker 0 on n0, worker 1 on n1, a spare on n2."""
        root = self.lab.hosts["n0"].address
        env = {
            "ALLSTOP_NCCL": "rebuild",
            "ALLSTOP_NCCL_SHIM": str(self.shim),
            "FAKE_NCCL": str(self.shared / "do"),
            **env,
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
        return await job_of(self.client, JOB)

    async def is_running(self, incarnation: int) -> JobView:
        """Wait until all of the job runs in this incarnation."""
        return await runs_in(self.client, JOB, incarnation)

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
