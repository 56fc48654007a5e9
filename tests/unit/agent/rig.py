"""An agent with fake drivers, and a way to give it orders without a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allstop.v1 import shim_pb2

from coordinator.core.model import Endpoint, NodeFacts
from tests.support.fake_coordinator import order_message
from tests.unit.agent.fakes import FakeHook, FakeImages, FakeProcesses
from worker_shim.agent.agent import Agent
from worker_shim.agent.fence import Fence
from worker_shim.agent.options import WorkerSpec
from worker_shim.agent.ports import Drivers
from worker_shim.agent.worker import Worker
from worker_shim.cuda.fake import FakeCuda
from worker_shim.facts import NodeProbe
from worker_shim.files.fake import FakeFileDriver
from worker_shim.images.fake import FakeImageStore
from worker_shim.images.staging import Staging
from worker_shim.network.fake import FakeNetworkDriver
from worker_shim.network.port import Sockets, reverse

ANSWER_S = 10.0
PEER = Endpoint("10.0.0.1", 4000, "10.0.0.2", 5000)
OUTSIDE = Endpoint("10.0.0.1", 4001, "192.0.2.9", 443)
LOCAL = Endpoint("127.0.0.1", 4002, "127.0.0.1", 4003)
OWN = Endpoint("10.0.0.1", 4004, "10.0.0.1", 29500)  # to itself, over its own address
INSIDE = (LOCAL, reverse(LOCAL), OWN, reverse(OWN))
SOCKETS = Sockets((PEER, OUTSIDE, *INSIDE), (("0.0.0.0", 29500),))


class Facts:
    """Facts that never change."""

    def __init__(self, probe: NodeProbe) -> None:
        self.probe = probe

    def current(self) -> NodeFacts:
        return self.probe.current()


class Rig:
    """One node with one worker."""

    def __init__(self, tmp_path: Path) -> None:
        self.process = FakeProcesses()
        self.images = FakeImages(self.process, SOCKETS)
        self.network = FakeNetworkDriver(SOCKETS)
        self.files = FakeFileDriver()
        self.cuda = FakeCuda()
        self.hook = FakeHook()
        self.store = FakeImageStore()
        self.staging = Staging(tmp_path / "staging", "n0")
        self.probe = NodeProbe("n0", "10.0.0.1", self.images, self.store, self.staging)
        self.drivers = Drivers(
            process=self.process,
            images=self.images,
            network=self.network,
            files=self.files,
            cuda=self.cuda,
            hook=self.hook,
            store=self.store,
            staging=self.staging,
            facts=self.probe,
            run_root=tmp_path / "run",
        )
        self.tmp_path = tmp_path
        self.fence = Fence(tmp_path / "state")
        self.agent = Agent(self.drivers, self.fence, self.probe)
        self.sent: list[shim_pb2.ShimMessage] = []
        self._news = asyncio.Event()
        self.agent.start(self._take)

    def _take(self, message: shim_pb2.ShimMessage) -> bool:
        self.sent.append(message)
        self._news.set()
        return True

    @property
    def worker(self) -> Worker:
        return self.agent.worker("llm", 0)

    @property
    def page(self) -> Any:
        return self.hook.page

    async def launch(self) -> None:
        spec = WorkerSpec("llm", 0, 1, ["python", "train.py"], {"A": "b"}, self.tmp_path)
        await self.worker.launch(spec)
        assert self.worker.incarnation == 0
        self.worker.admit(1)

    async def until(self, wanted: Callable[[shim_pb2.ShimMessage], Any], since: int = 0) -> Any:
        async with asyncio.timeout(ANSWER_S):
            while True:
                for message in self.sent[since:]:
                    if found := wanted(message):
                        return found
                self._news.clear()
                await self._news.wait()

    def give(
        self, phase: str, action: str = "a1", *, epoch: int = 1, deadline_s: float = 5.0,
        hold_s: float = 0.0, job: str = "llm", **detail: Any,
    ) -> int:  # fmt: skip
        """Hand in an order without waiting; returns where its answer will be at the earliest."""
        before = len(self.sent)
        message = order_message(phase, action, job, 0, epoch, deadline_s, hold_s, detail)
        self.agent.on_message(message)
        return before

    async def answer(self, phase: str, since: int, action: str = "a1") -> shim_pb2.OrderResult:
        number = shim_pb2.Order(phase=f"PHASE_{phase}").phase  # type: ignore[arg-type]

        def fits(message: shim_pb2.ShimMessage) -> Any:
            result = message.result
            right = (result.phase, result.action) == (number, action)
            return result if message.HasField("result") and right else None

        found: shim_pb2.OrderResult = await self.until(fits, since)
        return found

    async def order(self, phase: str, action: str = "a1", **more: Any) -> shim_pb2.OrderResult:
        return await self.answer(phase, self.give(phase, action, **more), action)

    async def done(self, phase: str, action: str = "a1", **more: Any) -> shim_pb2.OrderResult:
        result = await self.order(phase, action, **more)
        assert not result.HasField("failure"), result.failure
        await self.worker.dropped(deadline_s=5.0)  # what is beside the answer, not before it
        return result

    async def to(self, last: str, action: str = "a1", **more: Any) -> shim_pb2.OrderResult:
        """Take a checkpoint up to and including this phase."""
        steps: dict[str, dict[str, Any]] = {
            "HOLD": {"cut": "CUT_STEP"},
            "PARK": {"target": self.page.boundary + 1},
            "DUMP": {"cut": "CUT_STEP"},
            "RESUME": {},
            "PERSIST": {},
        }
        for phase, detail in steps.items():
            result = await self.done(phase, action, **detail, **(more if phase == last else {}))
            if phase == last:
                return result
        raise AssertionError(f"no phase {last}")

    async def in_dump(self, epoch: int = 1) -> asyncio.Event:
        """The lane is taken by a dump of a1 until the event is set."""
        await self.to("PARK", epoch=epoch)
        gate = self.images.gate = asyncio.Event()
        self.give("DUMP", cut="CUT_STEP", epoch=epoch)
        await asyncio.wait_for(self.images.begun.wait(), 5)
        return gate

    async def back_to(self, last: str, saved: Any, action: str = "r1", **more: Any) -> Any:
        """Restore up to and including this phase."""
        steps: dict[str, dict[str, Any]] = {
            "FETCH": {"record": saved},
            "CLEAR": {"record": saved, "connections": (PEER,)},
            "RESTORE": {"record": saved, "incarnation": 2, "workers": 1},
            "OPEN": {},
            "RELEASE": {},
        }
        for phase, detail in steps.items():
            result = await self.done(phase, action, **detail, **(more if phase == last else {}))
            if phase == last:
                return result
        raise AssertionError(f"no phase {last}")

    def staged(self) -> list[Path]:
        """What is in staging for an order, not for a later restore alone."""
        kept = {self.staging.place(*images) for images in self.staging.kept()}
        owners = self.staging.root.glob("*/*/*/owner")
        return [owner.parent for owner in owners if owner.parent not in kept]

    def free(self) -> bool:
        """The worker runs and nothing of an attempt is left on the node."""
        return (
            self.process.state == "S"
            and not self.network.locks
            and self.page.hold == 0
            and self.worker.state == "running"
            and self.worker.action == ""
            and not self.staged()
        )
