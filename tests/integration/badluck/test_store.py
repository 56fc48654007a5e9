"""The image store becomes too small, or goes, while images are on their way to it."""

from __future__ import annotations

import pytest

from coordinator.core.errors import AllstopError, DriverError
from tests.integration.badluck.kit import JOB, NODES, Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]


async def test_a_store_that_becomes_too_small(pair: Pair) -> None:
    """Found only while it is written: HOLD had seen room enough."""
    store, host = pair.deployment.store, pair.host("n1")
    pair.tell_criu("n1", "wait")
    attempt = pair.checkpoint()
    await attempt.reached("DUMPING")
    identity = (store / "store.id").read_text()
    host.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(store)])
    try:
        host.run(["mkdir", str(store / "partial")])
        host.run(["sh", "-c", f"printf {identity} > {store / 'store.id'}"])
        pair.behave()
        failure = await attempt.failed()
        await pair.moves()
        left = host.run(["find", str(store), "-type", "f"]).stdout.split()
        assert left == [str(store / "store.id")]  # what was written is gone
    finally:
        host.run(["umount", str(store)])
    assert isinstance(failure, DriverError), failure.to_fields()
    check(failure, f"no room left under {store}")
    assert "make room, or delete old snapshots" in failure.advice
    told = await pair.aborted(attempt.events[0].action, "no room left under")
    assert "No space left on device" in told
    await pair.went_on(failure)  # n0 had stored its images: they are gone too


async def test_a_store_that_goes_away(pair: Pair) -> None:
    store, host = pair.deployment.store, pair.host("n1")
    pair.tell_criu("n1", "wait")
    attempt = pair.checkpoint()
    await attempt.reached("DUMPING")
    host.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(store)])
    try:
        pair.behave()
        failure = await attempt.failed()
        await pair.moves()
    finally:
        host.run(["umount", str(store)])
    check(failure, str(store))
    await pair.aborted(attempt.events[0].action, str(store))
    await until("that n1 is clean", lambda: nothing_on(pair))
    await pair.went_on(failure)


def check(failure: AllstopError, what: str) -> None:
    where = failure.where
    named = (where.job, where.worker, where.node, where.phase)
    assert named == (JOB, 1, NODES[1], "PERSIST"), failure.to_fields()
    assert what in failure.what


async def nothing_on(pair: Pair) -> bool:
    return pair.left_on("n1") == []
