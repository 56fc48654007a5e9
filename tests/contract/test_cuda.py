"""One contract for the CUDA driver: by its program, by its library, and the fake in memory.

Program and library meet a fake device (`tests/fakes/gpu`): the real `cuda-bindings` call its
driver, and what was not saved of its memory is lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from tests.fakes.gpu.device import STATE
from tests.support.gpus import UUIDS, GpuNode, Rank, driver_of, gpu_node, tree_of
from worker_shim.cuda.fake import FakeCuda, Held
from worker_shim.cuda.port import CudaDriver, CudaState, GpuProcess
from worker_shim.process.port import Tree, TreeProcess

S = CudaState
DEADLINE_S = 10.0
LOCK_S = 0.2
MIB = 1 << 20


@dataclass
class Target:
    """A driver and one process with a device."""

    driver: CudaDriver
    tree: Tree
    process: GpuProcess
    rank: Rank | None = None  # None: in memory
    node: GpuNode | None = None

    @property
    def fake(self) -> FakeCuda:
        assert isinstance(self.driver, FakeCuda)
        return self.driver

    async def state(self) -> CudaState:
        return await self.driver.state(self.process, deadline_s=DEADLINE_S)

    async def lock(self) -> None:
        await self.driver.lock(self.process, timeout_s=LOCK_S, deadline_s=DEADLINE_S)

    async def checkpoint(self) -> None:
        await self.driver.checkpoint(self.process, deadline_s=DEADLINE_S)

    async def restore(self, devices: dict[str, str] | None = None) -> None:
        await self.driver.restore(self.process, devices or {}, deadline_s=DEADLINE_S)

    async def unlock(self) -> None:
        await self.driver.unlock(self.process, deadline_s=DEADLINE_S)

    async def works(self, working: bool) -> None:
        """It begins or ends work on its device."""
        if self.rank is None:
            self.fake.held[self.process.pid].working = working
        else:
            assert await asyncio.to_thread(self.rank.ask, "begin" if working else "end") == "done"

    def does(self, call: str, what: str) -> None:
        """From now on a call has this result, or `hang`; see also tests/fakes/gpu/libcuda.c."""
        if self.node is not None:
            self.node.faults.write_text(f"{call} {what}\n")
        elif what == "hang":
            self.fake.hangs.add(call)
        else:
            self.fake.faults[call] = int(what)


@pytest.fixture(
    params=[
        "fake",
        pytest.param("program", marks=pytest.mark.cc),
        pytest.param("library", marks=pytest.mark.cc),
    ]
)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    if request.param == "fake":
        tree = Tree((TreeProcess(1000, 1, 5, "S", ("python",), (1000,), 0),))
        process = GpuProcess(1000, 5)
        yield Target(
            FakeCuda(held={1000: Held(UUIDS[0])}, idle=frozenset(UUIDS[1:])), tree, process
        )
        return
    with gpu_node(tmp_path, dict.fromkeys(UUIDS, MIB)) as node:
        rank = node.rank()
        assert rank.ask("write weights abc") == "done"
        driver = driver_of(request.param, node)
        yield Target(driver, tree_of(rank), rank.gpu_process, rank, node)


@pytest.fixture
async def real(target: Target) -> Target:
    return target


of_real = pytest.mark.parametrize(
    "target",
    [pytest.param(kind, marks=pytest.mark.cc) for kind in ("program", "library")],
    indirect=True,
)


async def test_there_and_back(target: Target) -> None:
    assert await target.driver.processes(target.tree, deadline_s=DEADLINE_S) == (target.process,)
    assert target.driver.holders(target.tree) == (target.process.pid,)
    seen = [await target.state()]
    for step in (target.lock, target.checkpoint, target.restore, target.unlock):
        await step()
        seen.append(await target.state())
    assert seen == [S.RUNNING, S.LOCKED, S.CHECKPOINTED, S.LOCKED, S.RUNNING]
    await target.driver.close()
    assert await target.state() is S.RUNNING, "it starts again when it is used again"
    await target.driver.close()


async def test_no_device_is_open_once_it_is_saved(target: Target) -> None:
    await target.lock()
    assert target.driver.holders(target.tree) == (target.process.pid,)
    await target.checkpoint()
    assert target.driver.holders(target.tree) == ()
    assert await target.driver.processes(target.tree, deadline_s=DEADLINE_S) == (target.process,)
    await target.driver.close()


async def test_a_lock_waits_for_work_and_gives_up_in_time(target: Target) -> None:
    await target.works(True)
    with pytest.raises(DriverError, match="NOT_READY") as refused:
        await target.lock()
    assert refused.value.definite
    assert await target.state() is S.RUNNING
    await target.works(False)
    await target.lock()
    await target.unlock()
    await target.driver.close()


@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        ((), "checkpoint"),
        ((), "restore"),
        ((), "unlock"),
        (("lock",), "lock"),
        (("lock",), "restore"),
        (("lock", "checkpoint"), "unlock"),
        (("lock", "checkpoint"), "checkpoint"),
        (("lock", "checkpoint"), "lock"),
    ],
)
async def test_the_wrong_state(target: Target, before: tuple[str, ...], wrong: str) -> None:
    for step in before:
        await getattr(target, step)()
    state = await target.state()
    with pytest.raises(DriverError, match="ILLEGAL_STATE") as refused:
        await getattr(target, wrong)()
    assert str(target.process.pid) in refused.value.what
    assert "result 401" in refused.value.details
    assert await target.state() is state
    await target.driver.close()


@pytest.mark.parametrize("number", range(2), ids=["not its own", "only its own"])
async def test_a_map_must_name_every_device(target: Target, number: int) -> None:
    await target.driver.open(deadline_s=DEADLINE_S)
    assert target.driver.moves
    await target.lock()
    await target.checkpoint()
    with pytest.raises(DriverError, match="INVALID_VALUE") as refused:
        await target.restore({UUIDS[1 - number]: UUIDS[number]})
    assert not refused.value.definite
    assert await target.state() is S.CHECKPOINTED
    await target.restore({UUIDS[0]: UUIDS[1], UUIDS[1]: UUIDS[0]})
    await target.unlock()
    await target.driver.close()


@pytest.mark.parametrize("call", ["lock", "checkpoint", "restore", "unlock"])
async def test_a_result_is_named_and_says_whether_something_changed(
    target: Target, call: str
) -> None:
    for step in {"lock": (), "checkpoint": ("lock",), "unlock": ("lock",)}.get(
        call, ("lock", "checkpoint")
    ):
        await getattr(target, step)()
    target.does(call, "304")
    with pytest.raises(DriverError, match="OPERATING_SYSTEM") as refused:
        await getattr(target, call)()
    assert refused.value.definite is (call in ("lock", "unlock"))
    assert refused.value.advice
    await target.driver.close()


async def test_a_call_that_hangs_ends_at_its_deadline(target: Target) -> None:
    await target.lock()
    target.does("checkpoint", "hang")
    with pytest.raises(DriverError) as late:
        await target.driver.checkpoint(target.process, deadline_s=0.5)
    assert not late.value.definite
    assert await target.state() is S.LOCKED, "the next call is answered"
    await target.driver.close()


# -- with real processes ---------------------------------------------------------------------------


@of_real
async def test_a_state_that_is_new_is_none_of_ours(real: Target) -> None:
    assert real.rank is not None
    write_state(real.rank.process.pid, 7)
    assert await real.state() is S.OTHER
    write_state(real.rank.process.pid, 0)
    assert await real.state() is S.RUNNING
    await real.driver.close()


def write_state(pid: int, number: int) -> None:
    """Have the driver find a process in this state."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    (page,) = (int(line.split("-")[0], 16) for line in maps if "/memfd:fake-gpu" in line)
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        os.pwrite(memory.fileno(), number.to_bytes(4, "little"), page + STATE)


@of_real
async def test_what_is_in_device_memory_moves_with_the_process(real: Target) -> None:
    rank = real.rank
    assert rank is not None
    await real.lock()
    await real.checkpoint()
    await real.restore({UUIDS[0]: UUIDS[1], UUIDS[1]: UUIDS[0]})
    await real.unlock()
    assert await asyncio.to_thread(rank.ask, "read weights") == "abc"
    await real.driver.close()


@of_real
async def test_new_work_waits_while_it_is_locked(real: Target) -> None:
    rank = real.rank
    assert rank is not None
    await real.lock()
    rank.tell("read weights")
    answer = asyncio.create_task(asyncio.to_thread(rank.heard))
    done, _ = await asyncio.wait({answer}, timeout=0.2)
    assert not done
    await real.unlock()
    assert await asyncio.wait_for(answer, DEADLINE_S) == "abc"
    await real.driver.close()


@of_real
async def test_no_room_leaves_it_saved_for_ever(real: Target) -> None:
    rank, node = real.rank, real.node
    assert rank is not None
    assert node is not None
    await real.lock()
    await real.checkpoint()
    other = node.rank(1)
    assert await asyncio.to_thread(other.ask, "write much " + "x" * (MIB - 2)) == "done"
    swapped = {UUIDS[0]: UUIDS[1], UUIDS[1]: UUIDS[0]}
    with pytest.raises(DriverError, match="OPERATING_SYSTEM"):
        await real.restore(swapped)
    await asyncio.to_thread(other.close)
    for devices in (swapped, {}):  # there is room by now, on either
        with pytest.raises(DriverError, match="OPERATING_SYSTEM"):
            await real.restore(devices)
    assert await real.state() is S.CHECKPOINTED
    with pytest.raises(DriverError, match="ILLEGAL_STATE"):
        await real.unlock()
    assert real.driver.holders(real.tree) == ()
    await real.driver.close()


@of_real
async def test_a_stopped_process_cannot_be_restored(real: Target) -> None:
    await real.lock()
    await real.checkpoint()
    rank = real.rank
    assert rank is not None
    rank.process.send_signal(19)
    await asyncio.to_thread(os.waitid, os.P_PID, rank.process.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(DriverError) as late:
        await real.driver.restore(real.process, {}, deadline_s=0.5)
    assert not late.value.definite
    rank.process.send_signal(18)
    await real.driver.close()


@of_real
async def test_a_process_that_the_driver_kills_is_named(real: Target) -> None:
    rank = real.rank
    assert rank is not None
    real.does("lock", "crash")
    with pytest.raises(DriverError, match=r"process \d+ has ended"):
        await real.lock()
    assert await asyncio.to_thread(rank.process.wait, DEADLINE_S) == -11
    await real.driver.close()


@of_real
async def test_a_pid_that_another_has_is_not_touched(real: Target) -> None:
    other = GpuProcess(real.process.pid, real.process.start_ticks + 1)
    with pytest.raises(DriverError, match="is another process by now") as refused:
        await real.driver.lock(other, timeout_s=LOCK_S, deadline_s=DEADLINE_S)
    assert refused.value.definite
    assert await real.state() is S.RUNNING
    await real.driver.close()
