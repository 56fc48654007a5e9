"""What a driver does wrong, by program and by library over the fake device, and how it is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from tests.contract.test_cuda import DEADLINE_S, LOCK_S, MIB, Target
from tests.support.gpus import UUIDS, driver_of, gpu_node, tree_of
from worker_shim.cuda.port import CudaState

pytestmark = pytest.mark.cc

S = CudaState
BEFORE = {
    "lock": (),
    "checkpoint": ("lock",),
    "unlock": ("lock",),
    "restore": ("lock", "checkpoint"),
}


@pytest.fixture(params=["program", "library"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    with gpu_node(tmp_path, dict.fromkeys(UUIDS, MIB)) as node:
        rank = node.rank()
        assert rank.ask("write weights abc") == "done"
        driver = driver_of(request.param, node)
        yield Target(driver, tree_of(rank), rank.gpu_process, rank, node)


async def test_a_restore_that_the_map_was_wrong_for_can_be_tried_again(real: Target) -> None:
    rank = real.rank
    assert rank is not None
    await real.lock()
    await real.checkpoint()
    unknown = UUIDS[1][:-1] + "f"
    with pytest.raises(DriverError, match="NO_DEVICE"):
        await real.restore({UUIDS[0]: unknown, UUIDS[1]: UUIDS[0]})
    await real.restore({UUIDS[0]: UUIDS[1], UUIDS[1]: UUIDS[0]})
    await real.unlock()
    assert await asyncio.to_thread(rank.ask, "read weights") == "abc"
    await real.driver.close()


async def test_what_was_not_saved_is_lost(real: Target) -> None:
    rank = real.rank
    assert rank is not None
    real.does("checkpoint", "nothing")
    for step in (real.lock, real.checkpoint, real.restore, real.unlock):
        await step()
    assert await asyncio.to_thread(rank.ask, "read weights") == "lost"
    await real.driver.close()


async def test_a_device_that_stays_open_is_seen(real: Target) -> None:
    rank = real.rank
    assert rank is not None
    real.does("checkpoint", "stale")
    await real.lock()
    await real.checkpoint()
    assert real.driver.holders(real.tree) == (real.process.pid,)
    await real.restore()
    await real.unlock()
    assert await asyncio.to_thread(rank.ask, "read weights") == "abc"
    await real.driver.close()


@pytest.mark.parametrize(
    ("call", "becomes"),
    [
        ("lock", S.LOCKED),
        ("checkpoint", S.CHECKPOINTED),
        ("restore", S.LOCKED),
        ("unlock", S.RUNNING),
    ],
)
@pytest.mark.parametrize("what", ["304 after", "hang after"])
async def test_an_error_may_come_after_the_deed(
    real: Target, call: str, becomes: S, what: str
) -> None:
    for step in BEFORE[call]:
        await getattr(real, step)()
    real.does(call, what)
    act, deadline_s = getattr(real.driver, call), 0.7 if "hang" in what else DEADLINE_S
    arguments = ({},) if call == "restore" else ()
    timeout = {"timeout_s": LOCK_S} if call == "lock" else {}
    with pytest.raises(DriverError):
        await act(real.process, *arguments, deadline_s=deadline_s, **timeout)
    assert await real.state() is becomes
    await real.driver.close()


async def test_a_checkpoint_may_end_its_process_state(real: Target) -> None:
    await real.lock()
    real.does("checkpoint", "failed")
    with pytest.raises(DriverError) as failed:
        await real.checkpoint()
    assert not failed.value.definite
    assert await real.state() is S.FAILED
    for step in (real.restore, real.unlock):
        with pytest.raises(DriverError, match="ILLEGAL_STATE"):
            await step()
    await real.driver.close()


@pytest.mark.parametrize("what", ["304", "hang"])
async def test_the_question_for_the_state_may_fail(real: Target, what: str) -> None:
    real.does("state", what)
    with pytest.raises(DriverError):
        await real.driver.state(real.process, deadline_s=0.7)
    real.does("state", "0")
    assert await real.state() is S.RUNNING
    await real.driver.close()
