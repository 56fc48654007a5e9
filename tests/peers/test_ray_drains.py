"""`ray drain-node` on a real Ray empties the node of the same address, by deploy/ray/drains.py."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from allstop.v1 import shim_pb2

from bench.recovery.contender import REPOSITORY, python
from bench.recovery.environments import make
from bench.recovery.ray_train import VERSION
from coordinator.codec import to_proto
from coordinator.core.drain_records import DrainState
from tests.integration.control.test_hooks import TOKEN, page
from tests.integration.control.test_recovery import until
from tests.support.cluster import cluster

PROGRAMS = Path(__file__).with_name("programs_ray")
RAY = python("ray")
SECOND = "127.0.0.2"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module", autouse=True)
def _ray() -> None:
    make("ray", [f"ray[train]=={VERSION}"], "import ray.train.torch")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a program in Ray's environment; what is left of it ends with the test."""
    made: list[subprocess.Popen[str]] = []

    def begin(program: Path, *words: str, **env: str) -> subprocess.Popen[str]:
        made.append(
            subprocess.Popen(
                [str(RAY), str(program), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **env},
                cwd=tmp_path,
            )
        )
        return made[-1]

    yield begin
    for process in made:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(20 if process is made[0] else 0.1)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


async def test_a_node_that_ray_drains_is_drained(start: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    began = time.time()
    ray = start(PROGRAMS / "cluster.py", SECOND, "100")
    assert ray.stdout is not None
    line = await asyncio.to_thread(ray.stdout.readline)
    assert line.startswith("at "), line
    async with cluster(2, spares=1) as case, page(case) as url:
        moved = replace(case.shims[1].facts, address=SECOND)
        workers = [to_proto(worker) for worker in case.shims[1].workers.values()]
        told = shim_pb2.Report(facts=to_proto(moved), workers=workers)
        await case.shims[1].say(report=told)
        words = (url, "--every", "0.2", "--token-file", str(token))
        start(REPOSITORY / "deploy/ray/drains.py", *words, RAY_ADDRESS=line.split()[1])

        def drained(nodes: Any) -> bool:
            found = {view.facts.node: view.drain for view in nodes if view.drain is not None}
            return set(found) == {"node-1"} and found["node-1"].state is DrainState.DRAINED

        nodes = await until(case.client.nodes, drained)
        (record,) = (view.drain for view in nodes if view.drain is not None)
        assert record.why == "Ray drains its node"
        assert began + 60 < record.deadline_unix_s < time.time() + 100
        (job,) = await case.client.jobs()
        assert job.nodes == ("node-0", "node-2")
