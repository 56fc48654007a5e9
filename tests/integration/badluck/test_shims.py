"""A shim dies or stands still during an attempt: it is named at once, and the others go on."""

from __future__ import annotations

import signal
import time

import pytest

from coordinator.core.errors import AllstopError
from tests.integration.badluck.kit import NODES, Action, Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

KEEPALIVE_S = 6.0  # a silent peer is given up after so long; coordinator/link/options.py
SLACK_S = 10.0  # the machine may be busy


def check_named(failure: AllstopError) -> None:
    where = failure.where
    assert (where.worker, where.node, where.phase) == (1, "n1", "DUMP"), failure.to_fields()
    assert "n1 was lost" in failure.what


async def test_a_shim_that_is_killed(pair: Pair) -> None:
    taken = await pair.snapshot()
    pair.tell_criu("n1", "slow", "3")
    attempt = pair.checkpoint()
    action = await attempt.reached("DUMPING")
    at = time.monotonic()
    pair.signal("n1", signal.SIGKILL)
    failure = await attempt.failed()
    assert time.monotonic() - at < SLACK_S  # its stream tells, not a time-out
    check_named(failure)
    await pair.aborted(action, "n1")
    pair.deployment.shims.pop("n1").wait(10)
    await until("that n0 is free", lambda: is_free(pair, "n0"))
    assert await pair.unpublished() == set()

    # A new shim takes the node in hand: nothing of what the old one held stays.
    pair.tell_criu("n1")
    pair.start_spare("n1")
    await until("that n1 is free", lambda: is_free(pair, "n1"))
    await until("n1", lambda: is_attached(pair, "n1"))
    back = await pair.restore(taken.snapshot)
    assert back.restore is not None
    assert [place.to_node for place in back.restore.plan.placements] == list(NODES)
    await pair.went_on()


async def test_a_shim_that_stands_still_and_comes_back(pair: Pair) -> None:
    pair.tell_criu("n1", "slow", "2")
    attempt = pair.checkpoint()
    action = await attempt.reached("DUMPING")
    at = time.monotonic()
    pair.signal("n1", signal.SIGSTOP)
    try:
        failure = await attempt.failed()
        assert time.monotonic() - at < KEEPALIVE_S + SLACK_S
        check_named(failure)
        await pair.aborted(action, "n1")
        await until("that n0 is free", lambda: is_free(pair, "n0"))
    finally:
        pair.signal("n1", signal.SIGCONT)
    await until("that n1 is free", lambda: is_free(pair, "n1"))
    await until("n1", lambda: is_attached(pair, "n1"))
    await pair.went_on(failure)


async def is_free(pair: Pair, node: str) -> bool:
    return pair.left_on(node) == []


async def is_attached(pair: Pair, node: str) -> bool:
    view = await pair.node(node)
    return view is not None and view.state == "attached"


async def test_a_node_without_cable_comes_back(pair: Pair) -> None:
    pair.tell_criu("n1", "slow", "2")
    attempt = pair.checkpoint()
    await attempt.reached("DUMPING")
    pair.host("n1").cut_off()
    try:
        failure = await attempt.failed()
        check_named(failure)
        refused = await pair.checkpoint().failed()
        assert refused.where.worker == 1, refused.to_fields()
        assert "n1" in refused.what
    finally:
        pair.host("n1").reconnect()
    await until("n1", lambda: is_attached(pair, "n1"))
    await until("that n1 is free", lambda: is_free(pair, "n1"))
    await pair.went_on(failure)
    assert isinstance(await Action(pair.client.watch(attempt.events[0].action)).failed(), Exception)
