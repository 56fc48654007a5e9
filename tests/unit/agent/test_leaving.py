"""When a shim leaves whose worker has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from allstop.v1 import shim_pb2

from tests.unit.agent.rig import Rig
from worker_shim.agent.options import ShimOptions
from worker_shim.agent.run import STAY_S, _may_leave
from worker_shim.agent.worker import Worker
from worker_shim.images.objects.opening import StoreOptions

EPOCH = 7
OPTIONS = ShimOptions(node="n0", coordinators=(), store=StoreOptions("/store"), linger_s=30.0)


@pytest.fixture
def ended(rig: Rig) -> Worker:
    """A worker that has failed, with images in the store."""
    worker = rig.agent.worker("llm", 1)
    worker.state, worker.exit_code = "exited", 1
    worker.published.add("a1")
    return worker


def may_leave(rig: Rig, worker: Worker, ended_s: float, *, code: int = 1) -> bool:
    return _may_leave(rig.agent, (worker,), OPTIONS, code, ended_s)


def stay(rig: Rig, for_s: float, *, job: str = "llm", epoch: int = EPOCH) -> None:
    told = shim_pb2.Stay(epoch=epoch, job=job, for_ms=round(for_s * 1000))
    rig.agent.on_message(shim_pb2.CoordinatorMessage(stay=told))


def test_it_stays_for_a_restore_while_a_leader_says_so(rig: Rig, ended: Worker) -> None:
    assert not may_leave(rig, ended, 29.0)
    assert may_leave(rig, ended, 31.0)
    stay(rig, 60.0)
    assert not may_leave(rig, ended, 3600.0)
    stay(rig, 0.0)
    assert may_leave(rig, ended, 31.0)


def test_of_another_job_or_another_time_it_is_no_concern(rig: Rig, ended: Worker) -> None:
    rig.fence.admit(EPOCH)
    stay(rig, 60.0, job="other")
    stay(rig, 60.0, epoch=EPOCH - 1)
    assert may_leave(rig, ended, 31.0)


def test_a_worker_that_ended_well_keeps_nobody(rig: Rig, ended: Worker) -> None:
    stay(rig, 60.0)
    assert may_leave(rig, ended, 0.0, code=0)


def test_one_that_was_stopped_to_be_moved_is_awaited(rig: Rig, ended: Worker) -> None:
    ended.stays = True
    assert not may_leave(rig, ended, STAY_S - 1.0, code=0)
    assert may_leave(rig, ended, STAY_S + 1.0, code=0)
    nothing = replace(OPTIONS, linger_s=0.0)
    assert not _may_leave(rig.agent, (ended,), nothing, 1, STAY_S - 1.0)
