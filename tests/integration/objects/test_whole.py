"""A real job whose nodes keep encrypted copies for each other loses one of them, and comes back."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from lab import Lab
from tests.integration.badluck.kit import NODES, Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

SPARE = "n2"
PORT = 7420
KEY = "5a" * 32


@pytest_asyncio.fixture
async def pair(tmp_path: Path, criu_path: str) -> AsyncIterator[Pair]:
    with Lab(tmp_path / "lab", [*NODES, SPARE]) as lab:
        ring = ",".join(f"{node}@{lab.hosts[node].address}:{PORT}" for node in NODES)
        pair = Pair(
            lab,
            tmp_path,
            criu_path,
            env={"STORE_KEY": KEY},
            options=(
                *("--store", f"partner://{ring}", "--store-key", "env:STORE_KEY"),
                *("--partner-dir", "/run/allstop-disk/partner"),
            ),
        )
        await pair.start(spares=(SPARE,))
        yield pair
        await pair.stop()


def packs(pair: Pair, node: str, which: str) -> list[Path]:
    return list((pair.host(node).disk / "partner" / which).glob("*/*/packs/*"))


async def test_a_lost_nodes_images_come_from_its_partner(pair: Pair) -> None:
    async def is_seen(state: str, node: str) -> bool:
        view = await pair.node(node)
        return view is not None and view.state == state

    await until("the spare", lambda: is_seen("attached", SPARE))
    taken = await pair.snapshot()
    for node, other in (NODES, NODES[::-1]):
        own, kept = packs(pair, node, "own"), packs(pair, other, "kept")
        assert {path.name for path in own} == {path.name for path in kept}
        assert own
        assert not any(b"pair.py" in path.read_bytes() for path in (*own, *kept))
    assert list(pair.deployment.store.iterdir()) == [], "nobody needs a shared store"
    for rank in (0, 2):
        environ = f"/proc/{await pair.pid_of(rank)}/environ"
        shown = pair.host(NODES[rank // 2]).run(["cat", environ]).stdout
        assert "PATH=" in shown
        assert KEY not in shown, "a rank, and so its image, has the key of the store"

    lost = pair.host("n1")
    lost.cut_off()

    await until("the loss of n1", lambda: is_seen("lost", "n1"))
    shutil.rmtree(lost.disk)
    last = await pair.restore(taken.snapshot)
    assert last.restore is not None
    assert [place.to_node for place in last.restore.plan.placements] == ["n0", SPARE]
