"""A node is lost, nobody fits, two restore at once, and the node returns with its old worker."""

from __future__ import annotations

import asyncio
import time

import pytest

from coordinator.core.errors import Busy, NoPlan
from tests.integration.badluck.conftest import Start
from tests.integration.badluck.kit import JOB, Action, Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

AT_ONCE_S = 1.0


@pytest.mark.alone  # a refusal is timed
async def test_a_lost_node_and_its_return(start_pair: Start) -> None:
    pair = await start_pair("n2", "n3")
    start_without_criu(pair, "n2")
    await until("n2", lambda: is_state(pair, "n2", "attached"))
    taken = await pair.snapshot()
    pair.host("n1").cut_off()
    await until("the loss of n1", lambda: is_state(pair, "n1", "lost"))

    await nobody_fits(pair)

    pair.start_spare("n3")
    await until("n3", lambda: is_state(pair, "n3", "attached"))
    first, second = Action(pair.client.restore(JOB)), Action(pair.client.restore(JOB))
    outcomes = await asyncio.gather(first.ended(), second.ended(), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Busy)]
    won = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert (len(refused), len(won)) == (1, 1), outcomes
    assert won[0].restore is not None
    assert won[0].restore.restore in refused[0].what
    assert won[0].restore.snapshot == taken.snapshot
    assert [place.to_node for place in won[0].restore.plan.placements] == ["n0", "n3"]
    await pair.moves()

    await the_old_worker_is_fenced(pair)
    await pair.moves()
    await pair.nothing_left(("n0", "n1", "n2", "n3"))
    again = await pair.snapshot()
    assert [worker.node for worker in again.workers] == ["n0", "n3"]
    assert again.step > taken.step


def start_without_criu(pair: Pair, node: str) -> None:
    pair.deployment.options = ("--criu", "/no/such/criu")
    pair.deployment.start_spare(pair.host(node))


async def is_state(pair: Pair, node: str, state: str) -> bool:
    view = await pair.node(node)
    return view is not None and view.state == state


async def nobody_fits(pair: Pair) -> None:
    """Refused in an instant, with every reason of every node; nothing is recorded or touched."""
    before = await pair.job()
    at = time.monotonic()
    refused = await Action(pair.client.restore(JOB)).failed()
    took_s = time.monotonic() - at
    assert isinstance(refused, NoPlan), refused.to_fields()
    assert took_s < AT_ONCE_S, took_s
    told = {line.split(",")[0]: line for line in refused.details if "worker 1" in line}
    assert "it was lost" in told["n1"], refused.details
    assert "no usable CRIU" in told["n2"], refused.details
    assert "n0" in told, refused.details
    planned = await pair.client.plan(JOB)
    assert planned.plan is None
    assert planned.failure is not None
    assert planned.failure.details == refused.details
    after = await pair.job()
    assert before is not None
    assert after is not None
    assert after.job.incarnation == before.job.incarnation


STOP_RANKS = """
for process in /proc/[0-9]*; do
    if tr '\\0' ' ' <"$process/cmdline" | grep -q '[p]air.py rank'; then
        kill -STOP "${process#/proc/}"
    fi
done
"""


async def the_old_worker_is_fenced(pair: Pair) -> None:
    """n1 comes back with ranks that think they are the job: it is told, and ends them."""
    log = pair.deployment.log("n1")
    assert pair.ranks_on("n1") == 2
    before = await pair.job()
    assert before is not None
    # Stopped, or they might end by themselves when their peers answer with RST.
    pair.host("n1").run(["sh", "-c", STOP_RANKS])
    pair.host("n1").reconnect()
    await until("the end of the old ranks", lambda: none_runs(pair, "n1"))
    assert "fenced" in log.read_text()
    await until("n1", lambda: is_gone(pair, "n1"))
    after = await pair.job()
    assert before is not None
    assert after is not None
    assert (after.nodes, after.job.incarnation) == (("n0", "n3"), before.job.incarnation)


async def none_runs(pair: Pair, node: str) -> bool:
    return pair.ranks_on(node) == 0


async def is_gone(pair: Pair, node: str) -> bool:
    """Its shim stays as a spare, or has left."""
    view = await pair.node(node)
    return view is not None and not [w for w in view.workers if w.state != "exited"]
