"""A real job leaves a node that is to be emptied, and no step of it is repeated."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.core.drain_records import DrainRecord, DrainState
from coordinator.core.errors import NoPlan
from tests.integration.badluck.conftest import Start
from tests.integration.badluck.kit import Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

LOOK_S = 0.002  # a step takes longer


async def test_a_node_is_emptied_and_no_step_is_repeated(start_pair: Start) -> None:
    pair = await start_pair("n2")
    with pytest.raises(NoPlan):
        await pair.client.drain("n1")
    await pair.moves()  # nothing was stopped

    pair.start_spare("n2")
    await until("n2", lambda: attached(pair, "n2"))
    watching = asyncio.create_task(seen(pair))
    await pair.client.drain("n1", why="a new kernel")
    record = await until("the drain", lambda: ended(pair, "n1"))
    assert record.state is DrainState.DRAINED, record
    await pair.moves()
    watching.cancel()
    job = await pair.job()
    assert job is not None
    assert job.nodes == ("n0", "n2")
    assert pair.ranks_on("n1") == 0
    (moved,) = record.jobs
    shown = await pair.client.show(moved.snapshot)
    assert shown.snapshot is not None
    for rank, steps in SEEN.items():
        assert steps == sorted(steps), f"rank {rank} went back: {steps}"
        assert shown.snapshot.step in steps, f"rank {rank} was not seen where it was stopped"
        assert max(steps) > shown.snapshot.step


SEEN: dict[int, list[int]] = {}


async def seen(pair: Pair) -> None:
    """Note each step of each rank as it is written, with those that are written again."""
    while True:
        for rank, step in pair.steps().items():
            told = SEEN.setdefault(rank, [])
            if not told or told[-1] != step:
                told.append(step)
        await asyncio.sleep(LOOK_S)


async def attached(pair: Pair, node: str) -> bool:
    view = await pair.node(node)
    return view is not None and view.state == "attached"


async def ended(pair: Pair, node: str) -> DrainRecord | None:
    view = await pair.node(node)
    record = view.drain if view is not None else None
    return record if record is not None and record.state is not DrainState.DRAINING else None
