"""Two replica groups of torchft are one job: saved at one step, moved, and equal to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.recovery.contender import JOBS, python
from bench.recovery.torchft_groups import NIGHTLY
from lab import Lab
from tests.peers.kit import NODES, Peer, undisturbed

EPOCHS = 12
LIGHTHOUSE_PORT = 29510
MASTER_PORT = 29600
SCRIPT = str(JOBS / "torchft_ddp.py")

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.slow]

def lighthouse(groups: int) -> str:
    program = python("torchft").with_name("torchft_lighthouse")
    return (
        f"{program} --min_replicas {groups} --bind 0.0.0.0:{LIGHTHOUSE_PORT}"
        " --quorum_tick_ms 100 --join_timeout_ms 10000"
    )

def group(lab: Lab, node: str, result: Path) -> str:
    index = NODES.index(node)
    program = python("torchft").with_name("torchrun")
    return (
        f"{program} --nnodes 1 --nproc-per-node 1 --max-restarts 0"
        f" --master-addr {lab.hosts[node].address} --master-port {MASTER_PORT + index}"
        f" {SCRIPT} --epochs {EPOCHS} --result {result}"
    )

def argvs_inside(lab: Lab, root: Path) -> list[list[str]]:
    """The lighthouse is a part of worker 0."""
    result = root / "result.json"
    first = f"{lighthouse(2)} & {group(lab, 'n0', result)}; code=$?; kill %1; exit $code"
    return [["sh", "-c", first], ["sh", "-c", f"exec {group(lab, 'n1', result)}"]]

def envs(address: str) -> list[dict[str, str]]:
    return [
        {
            "REPLICA_GROUP_ID": str(index),
            "NUM_REPLICA_GROUPS": "2",
            "TORCHFT_LIGHTHOUSE": f"http://{address}:{LIGHTHOUSE_PORT}",
        }
        for index in range(2)
    ]

@pytest.mark.timeout(300)
async def test_inside(make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path) -> None:
    expected = undisturbed(make_lab, tmp_path / "undisturbed", argvs_inside, envs("10.77.0.11"))
    peer = Peer(make_lab(["n0", "n1", "n2", "n3"]), tmp_path / "shared", criu_path)
    address = peer.lab.hosts["n0"].address
    peer.start(argvs_inside(peer.lab, peer.shared), envs(address))
    print(await peer.steps(2, 20))
    print(await peer.unfit())
    taken = await peer.snapshot()
    print("taken", taken.step)
    import time; t=time.monotonic()
    print(await peer.steps(2, taken.step + 10), time.monotonic()-t)
    peer.lose("n1")
    await peer.is_lost("n1")
    last = await peer.restore()
    print(last)
    print(await peer.steps(2, taken.step + 10))
    assert (await peer.ended()) == expected
