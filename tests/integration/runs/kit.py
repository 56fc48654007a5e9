"""A deployment with a light job, asked as an operator asks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from coordinator.api.client import OperatorClient
from coordinator.api.values import ActionEvent
from coordinator.core.model import Cut, Snapshot
from coordinator.core.view import JobView
from lab import Lab
from lab.deployment import Deployment
from tests.support.jobs import job_of, runs_in, until

PROGRAMS = Path(__file__).with_name("programs")
JOB = "talk"
OUTSIDE_PORT = 9000
POLICY = ("--lease", "3s", "--policy", "adopt_s=8s")


class Talk:
    """The job `talk`: workers on the hosts named, and a service outside on the control host."""

    def __init__(self, lab: Lab, root: Path, criu: str) -> None:
        self.lab, self.shared = lab, root / "job"
        self.program = PROGRAMS / "talk.py"
        self.shared.mkdir(parents=True)
        self.deployment = Deployment(lab, root, options=("--criu", criu))
        self.deployment.start_control_plane(*POLICY)
        self.client = OperatorClient([self.deployment.socket])
        self.deployment.lab.control.popen(
            [sys.executable, str(PROGRAMS / "outside.py"), str(OUTSIDE_PORT)],
            stdout=subprocess.DEVNULL,
        )

    def environment(self, worker: int) -> dict[str, str]:
        """Further variables of a worker."""
        return {}

    def run(self, worker: int, on: str, hosts: tuple[str, str]) -> subprocess.Popen[Any]:
        """`allstop shim run` of one worker; the hosts are those of worker 0 and 1."""
        addresses = ",".join(self.lab.hosts[name].address for name in hosts)
        outside = f"{self.lab.control.address}:{OUTSIDE_PORT}"
        program = [sys.executable, str(self.program), str(worker), addresses, outside]
        self.deployment.start_worker(
            self.lab.hosts[on],
            JOB,
            workers=2,
            worker=worker,
            argv=[*program, str(self.shared)],
            env=self.environment(worker),
        )
        return self.deployment.shims[on]

    def start(self, hosts: tuple[str, str]) -> None:
        """Both workers anew."""
        for path in self.shared.iterdir():
            path.unlink()
        for worker, name in enumerate(hosts):
            self.run(worker, name, hosts)

    def end(self) -> None:
        """Tell the program to end."""
        (self.shared / "end").touch()

    def said(self, what: str, worker: int) -> str:
        """What a worker has said last; empty when nothing yet."""
        path = self.shared / f"{what}.{worker}"
        return path.read_text() if path.exists() else ""

    async def goes_on(self) -> None:
        """Both workers finish further rounds."""
        before = [int(self.said("round", worker) or 0) for worker in (0, 1)]
        await until(
            f"rounds after {before}",
            lambda: all(
                int(self.said("round", worker) or 0) > at + 3 for worker, at in enumerate(before)
            ),
        )

    async def job(self) -> JobView | None:
        """The job as `allstop jobs` shows it; None while it is not known or nobody leads."""
        return await job_of(self.client, JOB)

    async def is_running(self, incarnation: int) -> JobView:
        """Wait until all of the job runs in this incarnation."""
        return await runs_in(self.client, JOB, incarnation)

    async def snapshot(self) -> Snapshot:
        """A checkpoint that must commit."""
        last = await follow(self.client.checkpoint(JOB, cut=Cut.FREEZE))
        assert last.snapshot is not None, (last.state, last.reason)
        return last.snapshot

    async def is_lost(self, node: str) -> None:
        """Wait until the coordinator knows that a node is out of reach."""

        async def lost() -> bool:
            views = await self.client.nodes()
            return any(view.facts.node == node and view.state == "lost" for view in views)

        await until(f"the loss of {node}", lost)


async def follow(events: Any) -> ActionEvent:
    """The last event of an action; raises what it failed by."""
    last = None
    async for event in events:
        last = event
    assert last is not None
    return last
