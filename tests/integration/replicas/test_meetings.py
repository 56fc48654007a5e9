"""What a rank sets on one node is read on all: over replicas, their fronts, and a new leader."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from allstop.v1 import shim_pb2

from coordinator.core.meeting import Key
from tests.integration.replicas.kit import Watchful, attach, replicas, until
from worker_shim.nccl.meetings import Meeting, Meetings

pytestmark = [pytest.mark.etcd, pytest.mark.slow, pytest.mark.timeout(120)]

BLOB = b"\0\xff\r\n$-1\r\n"


class Node(Watchful):
    """A shim whose worker's ranks meet."""

    def __init__(self, address: str, worker: int) -> None:
        super().__init__(address, f"node-{worker}", job="llm", worker=worker, workers=4)
        self.meetings = Meetings()
        self.meetings.send = self._send
        self.saying: set[asyncio.Task[None]] = set()

    def _send(self, message: shim_pb2.ShimMessage) -> bool:
        task = asyncio.ensure_future(self.say(meeting=message.meeting))
        self.saying.add(task)
        task.add_done_callback(self.saying.discard)
        return True

    def open(self) -> None:
        self.meetings.open("llm", f"llm/{self.node}", "a1")

    @property
    def meeting(self) -> Meeting:
        found = self.meetings.of(f"llm/{self.node}")
        assert found is not None
        return found

    def set(self, name: bytes) -> None:
        assert self.meetings.apply(self.meeting, Key(name, BLOB))

    def has(self, name: bytes) -> bool:
        return self.meeting.table.get(name) == BLOB

    async def _take(self, message: shim_pb2.CoordinatorMessage) -> None:
        await super()._take(message)
        if message.HasField("meeting"):
            self.meetings.hear(message.meeting)
        elif message.HasField("welcome"):
            self.meetings.rejoin()


async def test_keys_reach_every_node_whoever_carries_it(etcd_server: Any, tmp_path: Path) -> None:
    place = etcd_server.endpoint, "/meetings", tmp_path
    async with replicas(*place, "a", "b", options=("--fronts", "1")) as running:
        a, b = running.running["a"], running.running["b"]
        nodes = [Node(one.address, worker) for worker, one in enumerate((a, b, b, b))]
        try:
            for node in nodes:
                await attach(node)
            for node in nodes[:3]:
                node.open()
            nodes[0].set(b"one")
            nodes[1].set(b"two")
            await until(lambda: all(n.has(b"one") and n.has(b"two") for n in nodes[:3]))
            nodes[3].open()
            await until(lambda: nodes[3].has(b"one") and nodes[3].has(b"two"))
            nodes[2].meetings.came(nodes[2].meeting, [5])
            await until(lambda: nodes[2].saying == set())
            while await nodes[3].meetings.who_came(nodes[3].meeting, deadline_s=10) != {5}:
                pass  # it went another way; the test's own time bounds it

            marks = running.marks()
            a.kill(signal.SIGKILL)
            await b.said("leading, epoch", since=marks["b"])
            await until(lambda: all(len(node.epochs) > 0 for node in nodes[1:]))
            nodes[3].set(b"three")
            await until(lambda: nodes[1].has(b"three") and nodes[2].has(b"three"))
            late = Node(b.address, 0)
            nodes[0] = late
            await attach(late)
            late.open()
            await until(lambda: late.has(b"two") and late.has(b"three"))
            assert not late.has(b"one"), "it was node-0's own, and that is gone"
        finally:
            await asyncio.gather(*(node.leave(goodbye=False) for node in nodes))
