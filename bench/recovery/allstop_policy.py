"""allstop with the unmodified script: `allstop policy JOB --every … --on-failure restore`."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.recovery.contender import NODES, PLAIN, RANKS_PER_NODE, SPARE, Basic, Stage, python
from coordinator.core.errors import SetupError
from lab.demo.training import environment
from lab.deployment import Deployment, allstop
from worker_shim.agent.options import RUN_DIRECTORY

JOB = "digits"
MASTER_PORT = 29500
ASK_TIMEOUT_S = 30.0
READY_S = 60.0
KEEP = 2  # snapshots; a folder in memory is small
DUMPED = re.compile(r"are parked at step (\d+); the trees are dumped")


class Allstop(Basic):
    """Saved every so many seconds and restored by itself.

    Its staging is in memory, two snapshots are kept, and every other option has its default.
    """

    script = PLAIN
    ranks = r"python\S* -u \S*digits_ddp\.py"
    restores_logs = True
    state = "restored on the spare from its image, as is every other rank"

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self.name = f"allstop-{every_s:g}s"
        self.title = f"allstop, every {every_s:g} s"
        self._deployment: Deployment | None = None

    def start(self, stage: Stage) -> None:
        deployment = self._deployment = Deployment(stage.lab, stage.root)
        deployment.start_control_plane()
        self._set_policy()
        deployment.start_spare(stage.host(SPARE))
        first = stage.host(NODES[0]).address
        for index, node in enumerate(NODES):
            argv = [
                str(python().with_name("torchrun")),
                *("--nnodes", str(len(NODES)), "--nproc-per-node", str(RANKS_PER_NODE)),
                *("--node-rank", str(index), "--local-addr", stage.host(node).address),
                *("--master-addr", first, "--master-port", str(MASTER_PORT)),
                *(str(self.script), *stage.job_options(), "--workers", "0", "--log-every", "1"),
            ]
            deployment.start_worker(
                stage.host(node),
                JOB,
                workers=len(NODES),
                worker=index,
                argv=argv,
                env=environment(),
            )

        line = 'for try in $(seq 60); do "$@" && exit; sleep 1; done'  # once there is a job
        retention = [*allstop("retention"), "--coordinator", deployment.socket, JOB]
        argv = ["sh", "-c", line, "sh", *retention, "--keep-last", str(KEEP)]
        stage.start(stage.lab.control, "retention", argv)

    def returned(self, stage: Stage, node: str) -> None:
        assert self._deployment is not None
        self._deployment.start_spare(stage.host(node))

    def logs(self, stage: Stage) -> Iterable[Path]:
        """Where the shims keep the workers' output; each host has a /run of its own."""
        alive = [host for host in stage.lab.hosts.values() if host.alive]
        runs = [Path(f"/proc/{host.init_pid}/root{RUN_DIRECTORY}") for host in alive]
        return [log for run in runs for log in run.glob(f"{JOB}/*/log")]

    def checkpoints(self, stage: Stage) -> list[int]:
        """Each that has stopped the job, as the coordinator's log says: given up ones, too."""
        text = (stage.logs / "control.log").read_text(errors="replace")
        return [int(step) for step in DUMPED.findall(text)]

    def _set_policy(self) -> None:
        """A job may be given its policy before it is first started."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                every = f"{self.every_s:g}s"
                self._ask("policy", JOB, "--every", every, "--on-failure", "restore")
                return
            except SetupError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.3)

    def _ask(self, *words: str) -> str:
        assert self._deployment is not None
        verb, *rest = words
        argv = [*allstop(verb), "--coordinator", self._deployment.socket, *rest]
        try:
            done: subprocess.CompletedProcess[Any] = subprocess.run(
                argv, capture_output=True, text=True, timeout=ASK_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as late:
            raise SetupError(f"allstop {verb} took over {ASK_TIMEOUT_S:g} s") from late
        if done.returncode != 0:
            raise SetupError(f"allstop {verb}: {done.stderr.strip()[-500:]}")
        return str(done.stdout)
