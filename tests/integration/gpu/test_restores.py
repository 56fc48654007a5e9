"""Restores that a driver fails: nobody runs half a job, and the same snapshot comes back later.

By the library alone, as in test_aborts.py.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from coordinator.core.errors import AllstopError
from coordinator.core.model import Phase
from tests.integration.badluck.kit import JOB, NODES, Action
from tests.integration.gpu.kit import PLACE, GpuPair, uuids_of
from tests.support.gpus import ROOT

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.cc,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.parametrize("_shared", ["library"], indirect=True),
]

MUCH_MIB = 60  # of a device's 64


async def failed(gpus: GpuPair, restore: Action, phase: Phase) -> AllstopError:
    """The restore fails on n1 in this phase, and nothing of it is left."""
    failure = await restore.failed()
    assert (failure.where.node, failure.where.phase) == ("n1", phase), failure.to_fields()
    shown = (await gpus.client.show(restore.events[0].action)).restore
    assert shown is not None
    assert shown.state == "FAILED"
    assert [gpus.ranks_on(node) for node in NODES] == [0, 0]
    await gpus.nothing_left()
    return failure


async def comes_back(gpus: GpuPair) -> None:
    """The job goes on from its snapshot."""
    gpus.behave()
    await gpus.restore()
    await gpus.chains_are_right()
    await gpus.went_on()


@pytest.mark.parametrize(
    ("call", "what", "phase"),
    [
        ("restore", "304", Phase.GPU_RESTORE),
        ("restore", "hang", Phase.GPU_RESTORE),
        ("unlock", "304", Phase.GPU_UNLOCK),
        ("unlock", "hang after", Phase.GPU_UNLOCK),
    ],
)
async def test_a_driver_that_fails_at_a_restore(
    gpus: GpuPair, call: str, what: str, phase: Phase
) -> None:
    await gpus.snapshot()
    gpus.tell_driver("n1", call, what)
    await failed(gpus, Action(gpus.client.restore(JOB)), phase)
    await comes_back(gpus)


async def test_a_restore_without_room_on_a_device(gpus: GpuPair) -> None:
    """Somebody else takes the memory while CRIU brings the ranks back."""
    await gpus.snapshot()
    gpus.tell_criu("n1", "wait-restore")
    restore = Action(gpus.client.restore(JOB))
    await restore.reached("RESTORING")
    program = [sys.executable, "-m", "tests.fakes.gpu.rank", str(PLACE), uuids_of("n1")[0]]
    other = gpus.host("n1").popen(
        program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(f"fill much {MUCH_MIB}\n")
        other.stdin.flush()
        assert [other.stdout.readline() for _ in range(2)] == ["ready\n", "done\n"]
        gpus.behave()
        failure = await failed(gpus, restore, Phase.GPU_RESTORE)
        assert "OPERATING_SYSTEM" in "\n".join((failure.what, *failure.details))
        assert "too little GPU memory" in failure.advice
    finally:
        other.communicate(timeout=20)
    await comes_back(gpus)
