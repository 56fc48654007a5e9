"""GPU ranks through whole rounds: real shims, CRIU and bindings over a fake device below them."""

from __future__ import annotations

import pytest

from coordinator.core.errors import AllstopError
from tests.integration.badluck.kit import JOB, NODES, RANKS_PER_NODE, Action, until
from tests.integration.gpu.kit import GpuPair

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.cc,
    pytest.mark.slow,
    pytest.mark.timeout(120),
]

WEIGHTS_BYTES = 8 << 20
AGAIN_STEPS = 100  # of 20 ms at least, in which it is seen that a job has gone back
ORDER = ["GPU_LOCK", "GPU_SAVE", "DUMP"]


async def beyond(gpus: GpuPair, step: int) -> bool:
    """Whether every rank is further than that."""
    return min(gpus.steps().values()) > step


def devices_run(gpus: GpuPair) -> None:
    """Every rank is on its device."""
    assert [gpus.states(node) for node in NODES] == [["running"] * RANKS_PER_NODE] * len(NODES)


async def test_device_memory_is_saved_with_its_rank_and_comes_back(gpus: GpuPair) -> None:
    taken = await gpus.snapshot()
    for worker in taken.workers:
        assert len(worker.gpu_pids) == RANKS_PER_NODE
        assert worker.gpu_bytes >= RANKS_PER_NODE * WEIGHTS_BYTES
        assert worker.image_bytes > worker.gpu_bytes
    shown = (await gpus.client.show(taken.snapshot)).attempt
    assert shown is not None
    assert [t.phase for t in shown.timings if t.phase in ORDER] == ORDER
    await gpus.chains_are_right()
    devices_run(gpus)
    await until("steps beyond the snapshot", lambda: beyond(gpus, taken.step + AGAIN_STEPS))
    before = gpus.steps()
    last = await Action(gpus.client.restore(JOB, taken.snapshot)).ended()
    assert last.restore is not None
    assert {"GPU_RESTORE", "GPU_UNLOCK"} <= {t.phase for t in last.restore.timings}

    async def again() -> bool:
        return all(taken.step < now < before[rank] for rank, now in gpus.steps().items())

    await until("the steps after the snapshot's, once more", again)
    await gpus.chains_are_right()
    devices_run(gpus)
    await gpus.nothing_left()


@pytest.mark.parametrize(
    ("call", "result", "words"),
    [
        ("lock", "600", "NOT_READY"),
        ("lock", "hang", "answered"),
        ("checkpoint", "304", "OPERATING_SYSTEM"),
        ("checkpoint", "hang", "answered"),
    ],
)
async def test_a_driver_that_fails_on_one_node_costs_the_attempt_and_nothing_else(
    gpus: GpuPair, call: str, result: str, words: str
) -> None:
    gpus.tell_driver("n1", call, result)
    failure = await Action(gpus.client.checkpoint(JOB)).failed()
    assert isinstance(failure, AllstopError)
    told = "\n".join((failure.what, *failure.details, failure.advice))
    assert words in told, told
    assert failure.where.node == "n1", failure.to_fields()
    assert failure.where.phase == ("GPU_LOCK" if call == "lock" else "GPU_SAVE")
    gpus.tell_driver("n1")

    async def all_run() -> bool:
        return all(set(gpus.states(node)) == {"running"} for node in NODES)

    await until("that all are on their devices", all_run)
    await gpus.chains_are_right()
    await gpus.went_on(failure)
    await gpus.chains_are_right()
