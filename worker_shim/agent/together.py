"""Workers of one job on one node end together, as the ranks below one torchrun do.

When one has failed, the others get SIGTERM and, after the time that torchrun gives them, SIGKILL.
Not while an attempt or a restore has them: what that does to them comes first, and it ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import structlog

from coordinator.core.errors import AllstopError
from worker_shim.agent.agent import Agent
from worker_shim.agent.lane import Lane
from worker_shim.agent.order import Deadline
from worker_shim.agent.worker import Worker

log = structlog.get_logger(__name__)

LOOK_S = 1.0
GRACE_S = 30.0  # torchrun's --shutdown-timeout


class Together:
    """Watches every worker of the node; what it has begun a later look goes on with."""

    def __init__(self, agent: Agent, *, grace_s: float = GRACE_S) -> None:
        """`grace_s` is the time between SIGTERM and SIGKILL."""
        self._agent = agent
        self._grace_s = grace_s
        self._told: dict[int, float] = {}  # root pids that got SIGTERM, and when

    async def run(self) -> None:
        """Look at every change, for as long as the shim lives."""
        while True:
            await self.look()
            await self._agent.change(at_most_s=LOOK_S)

    async def look(self) -> None:
        """End who is left beside a worker that has failed."""
        lanes = self._agent.lanes()
        living = {lane.worker.root_pid for lane in lanes if lane.worker.alive}
        self._told = {pid: when for pid, when in self._told.items() if pid in living}
        for lane in lanes:
            if lane.worker.alive and not lane.held:
                failed = first_failed(each for each in lane.worker.beside())
                if failed is not None:
                    await self._end(lane, failed)

    async def _end(self, lane: Lane, failed: Worker) -> None:
        worker, now = lane.worker, time.monotonic()
        told = self._told.get(worker.root_pid)
        if told is None:
            self._told[worker.root_pid] = now
            why = f"{failed.name} ended with {failed.exit_code}"
            log.warning("worker is told to end", worker=worker.name, why=why)
            worker.drivers.process.terminate(worker.root_pid)
        elif now - told >= self._grace_s:
            try:
                if await lane.between(_kill):
                    log.warning("worker did not end by itself", worker=worker.name)
            except AllstopError as error:  # the next look tries again
                log.error("worker cannot be killed", worker=worker.name, why=str(error))


def first_failed(workers: Iterable[Worker]) -> Worker | None:
    """The one that failed first: the others' ends may only follow from it."""
    failed = [each for each in workers if each.failed]
    return min(failed, key=lambda each: each.ended_at, default=None)


async def _kill(worker: Worker, deadline: Deadline) -> None:
    await worker.kill(deadline_s=deadline.left_s)
