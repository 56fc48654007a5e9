"""Replica groups of torchft are one job: saved at one step, moved, and equal to the last bit.

Their lighthouse runs in the tree of worker 0, as docs/integrations.md says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.recovery.contender import JOBS, python
from bench.recovery.environments import make
from bench.recovery.torchft_groups import RELEASE
from lab import Lab
from tests.peers.kit import NODES, Peer, undisturbed

STEPS_AN_EPOCH = 46
LIGHTHOUSE_PORT = 29510
MASTER_PORT = 29600
FIRST_ADDRESS = "10.77.0.11"

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def _torchft() -> None:
    make("torchft", [RELEASE], "import torchft")


def group(lab: Lab, node: str, result: Path, epochs: int) -> str:
    """torchrun of one replica group, as torchft's README starts it."""
    index = NODES.index(node)
    return " ".join(
        (
            f"{python('torchft').with_name('torchrun')} --nnodes 1 --nproc-per-node 1",
            f"--max-restarts 0 --master-addr {lab.hosts[node].address}",
            f"--master-port {MASTER_PORT + index}",
            f"{JOBS / 'torchft_ddp.py'} --epochs {epochs} --result {result}",
        )
    )


def workers(lab: Lab, root: Path, epochs: int, least: int) -> list[list[str]]:
    """One group on each node; the lighthouse beside the first, until that ends."""
    result = root / "result.json"
    lighthouse = (
        f"{python('torchft').with_name('torchft_lighthouse')} --min_replicas {least}"
        f" --bind 0.0.0.0:{LIGHTHOUSE_PORT} --quorum_tick_ms 100 --join_timeout_ms 10000"
    )
    first = f"{lighthouse} & {group(lab, 'n0', result, epochs)}; code=$?; kill $!; exit $code"
    second = f"exec {group(lab, 'n1', result, epochs)}"
    return [["sh", "-c", first], ["sh", "-c", second]]


ENVIRONMENTS = [
    {
        "REPLICA_GROUP_ID": str(index),
        "NUM_REPLICA_GROUPS": str(len(NODES)),
        "TORCHFT_LIGHTHOUSE": f"http://{FIRST_ADDRESS}:{LIGHTHOUSE_PORT}",
    }
    for index in range(len(NODES))
]


@pytest.mark.timeout(300)
async def test_both_groups_move_twice(
    make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path, results: dict[str, Any]
) -> None:
    epochs = 16

    def argvs(lab: Lab, root: Path) -> list[list[str]]:
        return workers(lab, root, epochs, least=2)

    expected = undisturbed(make_lab, tmp_path / "undisturbed", argvs, ENVIRONMENTS)
    assert expected["steps"] == epochs * STEPS_AN_EPOCH
    peer = Peer(make_lab(["n0", "n1", "n2", "n3", "n4"]), tmp_path / "shared", criu_path)
    peer.start(argvs(peer.lab, peer.shared), ENVIRONMENTS)
    await peer.moves_twice()
    assert await peer.ended() == expected
    results[RELEASE] = {"undisturbed": expected, "story": peer.story, "bit_exact": True}


@pytest.mark.timeout(180)
async def test_a_group_that_joins_late_counts_as_the_others_do(
    make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path
) -> None:
    peer = Peer(make_lab(NODES), tmp_path / "shared", criu_path)
    argvs = workers(peer.lab, peer.shared, epochs=1000, least=1)
    peer.start(argvs[:1], ENVIRONMENTS)
    await peer.steps(1, 40)
    peer.run(1, argvs[1], ENVIRONMENTS[1])
    await peer.steps(2, 40)
    taken = await peer.snapshot()
    assert peer.saved_at(taken) == {0: taken.step, 1: taken.step}
    await peer.steps(2, taken.step + 10)
