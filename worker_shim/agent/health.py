"""Telling leaders what trouble this node's GPUs have: at once, and each new leader anew."""

from __future__ import annotations

import asyncio
import contextlib

from allstop.v1 import shim_pb2

from coordinator.codec import to_proto
from worker_shim.agent.agent import Agent
from worker_shim.health.troubles import Troubles

LOOK_S = 1.0


class HealthTelling:
    """Tells when something has changed, and after each Hello."""

    def __init__(self, agent: Agent, troubles: Troubles) -> None:
        """Nothing is told before `run` is awaited."""
        self._agent = agent
        self._troubles = troubles
        self._news = asyncio.Event()
        self._hello = 0  # after which it was told last
        self._ever = False  # a coordinator was told of trouble
        troubles.changed = self._news.set

    async def run(self) -> None:
        """Tell for as long as the shim lives."""
        while True:
            self.tell()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()

    def tell(self) -> None:
        """Tell what this leader has not heard; who never had trouble says nothing of it."""
        hello, troubles = self._agent.hellos, self._troubles.now()
        if not hello or (hello == self._hello and not self._news.is_set()):
            return
        if troubles or self._ever:
            told = shim_pb2.GpuTroubles(troubles=[to_proto(each) for each in troubles])
            if not self._agent.send(shim_pb2.ShimMessage(troubles=told)):
                return
            self._troubles.told()
            self._ever = True
        self._news.clear()
        self._hello = hello
