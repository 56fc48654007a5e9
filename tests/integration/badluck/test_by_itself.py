"""A real job is saved by its policy, loses a node, and comes back on a spare without a person."""

from __future__ import annotations

import pytest

from coordinator.core.job_policy import JobPolicy, OnFailure, RecoveryState, When
from tests.integration.badluck.conftest import Start
from tests.integration.badluck.kit import JOB, Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

POLICY = JobPolicy(
    JOB, When.SECONDS, interval_s=2.0, on_failure=OnFailure.RESTORE, grace_s=1.0, wait_s=60.0
)


async def test_a_node_is_lost_twice_and_nobody_is_asked(start_pair: Start) -> None:
    pair = await start_pair("n2", "n3")
    for name in ("n2", "n3"):
        pair.start_spare(name)
    await pair.client.set_policy(POLICY)
    await saved(pair, 1)

    pair.host("n1").power_off()
    await until("the first recovery", lambda: came_back(pair, 1))
    await pair.moves()
    before = len((await pair.client.snapshots(JOB)).snapshots)
    await saved(pair, before + 1)

    moved = next(name for name in await where(pair) if name in ("n2", "n3"))
    pair.host(moved).power_off()
    await until("the second recovery", lambda: came_back(pair, 2))
    await pair.moves()
    assert {"n1", moved}.isdisjoint(await where(pair))

    answer = await pair.client.policy(JOB)
    failures = {node.node: node.failures for node in answer.history.nodes}
    assert (failures["n1"], failures[moved], failures["n0"]) == (1, 1, 0)
    story = await pair.client.story(JOB)
    told = [line.text for line in story.lines]
    assert sum("the run has ended at step" in text for text in told) == 2
    assert not any("an operator asked" in text for text in told)


async def saved(pair: Pair, count: int) -> None:
    async def there() -> bool:
        return len((await pair.client.snapshots(JOB)).snapshots) >= count

    await until(f"{count} snapshots", there)


async def came_back(pair: Pair, times: int) -> bool:
    story = await pair.client.story(JOB)
    back = sum(line.text.startswith("the job runs from") for line in story.lines)
    return back >= times and story.recovery.state is RecoveryState.WATCHING


async def where(pair: Pair) -> tuple[str, ...]:
    job = await pair.job()
    assert job is not None
    return job.nodes
