"""Requests that cannot be: refused at once, by name, and the job does not notice."""

from __future__ import annotations

import pytest

from coordinator.core.errors import Busy, NotFound, Refused
from tests.integration.badluck.kit import JOB, Action, Pair

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]


async def test_a_second_checkpoint_is_refused_with_the_id_of_the_first(pair: Pair) -> None:
    pair.tell_criu("n0", "slow", "2")
    first = pair.checkpoint()
    action = await first.reached("DUMPING")
    refused = await pair.checkpoint().failed()
    assert isinstance(refused, Busy), refused.to_fields()
    assert action in refused.what
    assert refused.where.job == JOB
    taken = (await first.ended()).snapshot
    assert taken is not None
    assert taken.snapshot == action
    await pair.went_on()


async def test_a_snapshot_that_nobody_took_is_refused(pair: Pair) -> None:
    refused = await Action(pair.client.restore(JOB, "pair-no-such")).failed()
    assert isinstance(refused, NotFound), refused.to_fields()
    assert "pair-no-such" in refused.what
    unknown = await Action(pair.client.restore("nobody")).failed()
    assert isinstance(unknown, NotFound), unknown.to_fields()
    assert "nobody" in unknown.what
    await pair.went_on()


async def test_an_attempt_that_was_not_committed_is_refused(pair: Pair) -> None:
    pair.tell_criu("n1", "says")
    attempt = pair.checkpoint()
    await attempt.failed()
    action = attempt.events[0].action
    refused = await Action(pair.client.restore(JOB, action)).failed()
    assert isinstance(refused, Refused), refused.to_fields()
    assert action in refused.what
    assert "ABORTED" in refused.what
    await pair.went_on()
