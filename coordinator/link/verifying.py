"""Images that nodes read again for whoever waits; beside the core, which hears of no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from allstop.v1 import shim_pb2

from coordinator.core.kept import KeptImages
from coordinator.link import wire

GRACE_S = 15.0  # by which a shim may answer later than its deadline


@dataclass(eq=False)
class _Reading:
    """What one node was asked."""

    node: str
    progress: Callable[[int, int], None]
    answer: asyncio.Future[shim_pb2.StoreTaskResult]


class Verifications:
    """All that are under way, by task."""

    def __init__(
        self, epoch: int, send: Callable[[str, shim_pb2.CoordinatorMessage], bool]
    ) -> None:
        """`send` says False for a node that is not reached."""
        self._epoch = epoch
        self._send = send
        self._readings: dict[str, _Reading] = {}

    async def ask(
        self,
        node: str,
        task: str,
        job: str,
        images: KeptImages,
        others: Sequence[KeptImages],
        *,
        progress: Callable[[int, int], None],
        deadline_s: float,
    ) -> shim_pb2.StoreTaskResult | None:
        """Have a node read one worker's images again; None where it was lost, or too late.

        A caller that is cancelled cancels the task too.
        """
        message = wire.verify_message(self._epoch, task, job, images, others, deadline_s)
        reading = _Reading(node, progress, asyncio.get_running_loop().create_future())
        self._readings[task] = reading
        try:
            if not self._send(node, message):
                return None
            await asyncio.wait({reading.answer}, timeout=deadline_s + GRACE_S)
            answered = reading.answer.done() and not reading.answer.cancelled()
            return reading.answer.result() if answered else None
        finally:
            del self._readings[task]
            if not reading.answer.done():
                self._send(node, wire.cancel_message(self._epoch, task, job))

    def progressed(self, doing: shim_pb2.StoreTaskProgress) -> None:
        """How far a task is."""
        reading = self._readings.get(doing.task)
        if reading is not None:
            reading.progress(doing.done_bytes, doing.total_bytes)

    def take(self, node: str, result: shim_pb2.StoreTaskResult) -> bool:
        """An answer; False when it is of no task here."""
        reading = self._readings.get(result.task)
        if reading is None:
            return False
        if reading.node == node and not reading.answer.done():
            reading.answer.set_result(result)
        return True

    def lose(self, node: str) -> None:
        """A node is out of reach: nobody waits for it any more."""
        for reading in self._readings.values():
            if reading.node == node:
                reading.answer.cancel()
