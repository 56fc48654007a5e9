"""The control plane is killed, or told to end, while ranks are held: no job stays frozen."""

from __future__ import annotations

import signal

import pytest

from coordinator.core.errors import AttemptFailed, LinkError
from tests.integration.badluck.kit import NODES, POLICY, Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]


async def test_the_job_runs_on_without_a_coordinator(pair: Pair) -> None:
    # CRIU hangs until the phase's deadline on n0, so that n1 is dumped and held all that time.
    pair.tell_criu("n0", "slow", "3")
    await pair.stall(2)
    attempt = pair.checkpoint(deadline_s=5.0)
    action = await attempt.reached("PARKING")
    pair.untell(2)
    await attempt.reached("DUMPING")
    await until("that n1 is stopped", lambda: stopped(pair))
    held_at = pair.steps()
    pair.signal("control", signal.SIGKILL)
    assert pair.deployment.plane is not None
    pair.deployment.plane.wait(10)
    assert isinstance(await attempt.failed(), LinkError)

    await until("that nothing holds the job", lambda: free(pair))  # with nobody to order it
    await pair.moves()
    assert min(pair.steps().values()) > max(held_at.values())

    pair.behave()
    pair.deployment.start_control_plane(*POLICY)
    await until("the job", lambda: whole(pair))
    await until("the end of the attempt", lambda: ended(pair, action))
    await pair.aborted(action, "ended while")
    await pair.went_on()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_an_orderly_end_lets_everybody_go(pair: Pair, number: signal.Signals) -> None:
    pair.tell_criu("n0", "slow", "2")
    attempt = pair.checkpoint()
    action = await attempt.reached("DUMPING")
    await until("that n1 is stopped", lambda: stopped(pair))
    pair.signal("control", number)
    failure = await attempt.failed()
    assert isinstance(failure, AttemptFailed), failure.to_fields()
    assert "told to end" in failure.what
    assert pair.deployment.plane is not None
    assert pair.deployment.plane.wait(30) == 0
    assert [pair.left_on(node) for node in NODES] == [[], []]  # long before any timer
    await pair.moves()

    pair.deployment.start_control_plane(*POLICY)
    await until("the job", lambda: whole(pair))
    await pair.aborted(action, "told to end")
    await pair.went_on()


async def stopped(pair: Pair) -> bool:
    return bool(pair.stopped_on("n1"))


async def free(pair: Pair) -> bool:
    return not any(pair.left_on(node) for node in NODES)


async def whole(pair: Pair) -> bool:
    view = await pair.job()
    return view is not None and view.state in ("running", "checkpointing") and len(view.nodes) == 2


async def ended(pair: Pair, action: str) -> bool:
    shown = await pair.client.show(action)
    return shown.attempt is not None and shown.attempt.state == "ABORTED"
