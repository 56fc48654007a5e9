"""What pods of deploy/kubernetes run, on hosts: its script, variables, certificates and roles."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.core.job_policy import JobPolicy, OnFailure, When
from lab import Lab
from lab.deployment import PORT, STAGING, allstop
from lab.host import DISK
from tests.integration.badluck.kit import NODES, PAIR, RANKS_PER_NODE, WAIT_S, Pair, heard, until
from tests.support.manifests import ROOT, argv, environment, node_of

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

JOBSET = "pair"  # as the kit's job
SERVICE = "allstop-coordinator-0.allstop-coordinator"


@dataclass
class Pods(Pair):
    """The job of the kit in the pods of jobset/llm.yaml; n0 and n1 have index 0 and 1."""

    certificates: Path = field(init=False)

    def issue(self) -> None:
        """Make what certificates.sh makes for the pods."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(
            [str(ROOT / "certificates.sh"), *(f"{JOBSET}-node-0-{n}" for n in range(2))],
            cwd=self.root,
            env={**os.environ, "PATH": path},
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )
        self.certificates = self.root / "certificates"
        own = self.certificates / "coordinator"
        name = "coordinator-allstop-coordinator-0"
        tls = ["--tls-ca", own / "ca.pem", "--tls-cert", own / f"{name}.pem"]
        self.policy = (*self.policy, *map(str, [*tls, "--tls-key", own / f"{name}.key"]))
        self.deployment.env = {}

    def start_worker(self, node: str) -> None:
        """Start the node's pod, or start its container again; somebody leads by then."""
        self._answered()
        host, index = self.host(node), NODES.index(node)
        hosts = ",".join(self.host(name).address for name in NODES)
        container = node_of("JobSet", "llm")
        container["args"] = [sys.executable, PAIR, "worker", str(index), str(RANKS_PER_NODE)]
        container["args"] += [hosts, str(self.shared)]
        fields = {
            "metadata.labels['jobset.sigs.k8s.io/jobset-name']": JOBSET,
            "metadata.labels['batch.kubernetes.io/job-completion-index']": str(index),
        }
        told = environment(container, fields)
        words = [self._here(word) for word in argv(container, told)]
        told = {name: self._here(value) for name, value in told.items()}
        del told["ALLSTOP_METRICS"]
        here = {
            "ALLSTOP_COORDINATOR": f"{self.lab.control.address}:{PORT}",
            "ALLSTOP_TLS_SERVER_NAME": SERVICE,  # a lab has no names of services
            "ALLSTOP_STORE": str(self.deployment.store),
            "ALLSTOP_STAGING": str(STAGING),
            "ALLSTOP_NODE_STATE": str(DISK / "node"),
            "ALLSTOP_ADDRESS": host.address,
            "ALLSTOP_CRIU": str(self.criu_of(node)),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        with self.deployment.log(node).open("ab") as log:
            self.deployment.shims[node] = host.popen(
                words, env={**os.environ, **told, **here}, stdout=log, stderr=subprocess.STDOUT
            )

    def _answered(self) -> None:
        """Wait for the coordinator, as the kubelet's restarts would."""
        asked = [*allstop("jobs"), "--coordinator", self.deployment.socket]
        deadline = time.monotonic() + WAIT_S
        while subprocess.run(asked, capture_output=True, timeout=WAIT_S).returncode:
            assert time.monotonic() < deadline, "nobody leads"

    def _here(self, text: str) -> str:
        return text.replace("/tls/", f"{self.certificates}/nodes/")


@pytest_asyncio.fixture
async def pods(tmp_path: Path, criu_path: str) -> AsyncIterator[Pods]:
    with Lab(tmp_path / "lab", NODES) as lab:
        pods = Pods(lab, tmp_path, criu_path)
        pods.issue()
        await pods.start()
        yield pods
        await pods.stop()


async def test_a_container_that_is_started_again_takes_its_worker_back(pods: Pods) -> None:
    view = await pods.job()
    assert view is not None
    assert view.nodes == tuple(f"{JOBSET}-node-0-{index}" for index in range(2))
    taken = await pods.snapshot()
    await pods.client.set_policy(
        JobPolicy(JOBSET, When.NEVER, on_failure=OnFailure.RESTORE, grace_s=1.0, wait_s=60.0)
    )
    await until("the watch over the job", lambda: told(pods, "the job runs and is watched"))
    shim = pods.deployment.shims["n1"]
    os.kill(pods.host("n1").pid_of(shim), 9)
    shim.wait(30)
    pods.start_worker("n1")
    await heard(pods, "n1", f"a spare of {JOBSET}, whose newest snapshot is {taken.snapshot}")

    await until("the restore that nobody asked for", lambda: told(pods, "the job runs from"))
    await pods.moves()
    assert pods.ranks_on("n1") == RANKS_PER_NODE


async def told(pods: Pods, words: str) -> bool:
    """Whether the job's story has a line that begins so."""
    story = await pods.client.story(JOBSET)
    return any(line.text.startswith(words) for line in story.lines)
