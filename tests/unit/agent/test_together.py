"""Workers of one job on one node: they end together, share staging, and take turns at devices."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.core.model import Phase, Severity
from tests.unit.agent.rig import Rig
from worker_shim.agent import gpus, holding
from worker_shim.agent.agent import Agent
from worker_shim.agent.options import WorkerSpec
from worker_shim.agent.order import Deadline, Order
from worker_shim.agent.run import _back, _exit_code
from worker_shim.agent.together import Together
from worker_shim.agent.worker import Worker
from worker_shim.cuda.fake import FakeCuda
from worker_shim.cuda.port import GpuProcess
from worker_shim.process.fake import FakeProcessDriver

END_S = 5.0


class Node:
    """A node with several workers whose processes are only remembered."""

    def __init__(self, tmp_path: Path) -> None:
        rig = Rig(tmp_path)
        self.process = FakeProcessDriver()
        self.staging = rig.staging
        self.agent = Agent(replace(rig.drivers, process=self.process), rig.fence, rig.probe)
        self.agent.start(lambda message: True)

    async def launch(self, *workers: int, job: str = "llm") -> list[Worker]:
        made = [self.agent.worker(job, number) for number in workers]
        for worker in made:
            spec = WorkerSpec(job, worker.worker, len(made), ["python"], {}, Path("/"))
            await worker.launch(spec)
        return made

    async def end(self, worker: Worker, code: int) -> None:
        await asyncio.sleep(0)  # whoever watches it has begun to
        await self.process.end(worker.root_pid, code)
        async with asyncio.timeout(END_S):
            while worker.state != "exited":
                await self.agent.change(at_most_s=0.1)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_the_others_are_told_to_end_and_then_killed(node: Node) -> None:
    first, second, third = await node.launch(0, 1, 2)
    patient, at_once = Together(node.agent), Together(node.agent, grace_s=0.0)
    await patient.look()
    assert node.process.terminated == []
    await node.end(second, 3)
    for _ in range(3):
        await patient.look()
    assert node.process.terminated == [first.root_pid, third.root_pid]  # once, and not killed
    await node.end(first, -15)
    await at_once.look()
    assert third.alive
    await at_once.look()
    assert third.state == "exited"
    assert _exit_code((first, second, third), 0) == 3  # who failed first, and not who followed


async def test_one_that_ends_well_leaves_the_others_alone(node: Node) -> None:
    first, second = await node.launch(0, 1)
    (other,) = await node.launch(0, job="other")
    together = Together(node.agent, grace_s=0.0)
    await node.end(first, 0)
    await together.look()
    assert second.alive
    await node.end(second, 9)
    await together.look()
    assert node.process.terminated == []
    assert other.alive
    assert _exit_code((first, second), 0) == 9


async def test_not_while_an_attempt_or_a_restore_has_it(node: Node) -> None:
    first, second = await node.launch(0, 1)
    together = Together(node.agent, grace_s=0.0)
    await node.end(first, 1)
    second.claim("a1")
    await together.look()
    assert node.process.terminated == []
    second.end_hold()
    await together.look()
    assert node.process.terminated == [second.root_pid]
    second.claim("a2")  # between SIGTERM and SIGKILL
    await together.look()
    assert second.alive
    second.end_hold()
    await together.look()
    assert second.state == "exited"


async def test_what_took_it_meanwhile_keeps_it(node: Node) -> None:
    (worker,) = await node.launch(0)
    (lane,) = node.agent.lanes()
    done: list[str] = []

    async def work(worker: Worker, deadline: Deadline) -> None:
        done.append(worker.action)

    async with lane._foreground:  # an order is being carried out
        waiting = asyncio.ensure_future(lane.between(work))
        await asyncio.sleep(0)
        worker.claim("a1")
    assert await waiting is False
    worker.end_hold()
    assert await lane.between(work) is True
    assert done == [""]


async def test_one_that_is_killed_on_purpose_has_not_failed(node: Node) -> None:
    first, second = await node.launch(0, 1)
    await first.kill(deadline_s=END_S)
    assert first.exit_code == -9
    await Together(node.agent).look()
    assert node.process.terminated == []
    assert second.alive


async def test_a_spare_takes_what_a_restore_brought_once_all_of_it_is_let_go(node: Node) -> None:
    first, second = await node.launch(0, 1)
    assert _back(node.agent) == ()
    for worker in (first, second):
        worker.restored_by = "r1"
        worker.claim("r1")
    first.end_hold()
    assert _back(node.agent) == ()
    second.end_hold()
    assert _back(node.agent) == (first, second)


async def test_staging_must_have_room_for_all_of_them(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = await node.launch(0, 1, 2)
    alone = holding.room_needed(workers[0].tree())
    free = 2 * alone + alone // 2
    monkeypatch.setattr(type(node.staging), "free_bytes", lambda _: free)
    found = [await holding.look_over(worker, worker.tree()) for worker in workers]
    codes = [{each.code for each in told if each.severity is Severity.REFUSE} for told in found]
    assert codes == [set(), set(), {"staging_space"}]
    await node.end(workers[0], 0)
    again = await holding.look_over(workers[2], workers[2].tree())
    assert not any(each.code == "staging_space" for each in again)


class OneAtATime(FakeCuda):
    """Remembers how many locks were under way at once, at most."""

    inside, most = 0, 0

    async def lock(self, process: GpuProcess, *, timeout_s: float, deadline_s: float) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.01)
        await super().lock(process, timeout_s=timeout_s, deadline_s=deadline_s)
        self.inside -= 1


async def test_devices_are_locked_one_process_after_another(node: Node) -> None:
    cuda = OneAtATime()
    node.agent.drivers = replace(node.agent.drivers, cuda=cuda)
    workers = await node.launch(0, 1, 2)
    cuda.pids = tuple(worker.root_pid for worker in workers)
    order = Order(1, "llm", 0, "a1", Phase.GPU_LOCK, END_S)
    for worker in workers:
        worker.claim("a1")
        worker.ended.add(order.done)  # so that they do not go by their numbers
    await asyncio.gather(*(gpus.lock(worker, order, Deadline(END_S)) for worker in workers))
    assert (len(cuda.done), cuda.most) == (3, 1)
