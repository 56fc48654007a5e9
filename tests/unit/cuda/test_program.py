"""What the program says, and what is made of it: exit statuses, words, and time."""

from __future__ import annotations

import os
import time

import pytest

from coordinator.core.errors import DriverError
from worker_shim.cuda.port import CudaState, GpuProcess
from worker_shim.cuda.program import ProgramCuda
from worker_shim.process.fake_runner import Call, FakeCommandRunner
from worker_shim.process.port import Tree, TreeProcess
from worker_shim.process.proc import read_stat
from worker_shim.process.runner import Finished

WITH_MAP = "--action --get-state --get-restore-tid --timeout --device-map"
DEADLINE_S = 10.0


class Program(FakeCommandRunner):
    """`cuda-checkpoint` with one answer to all but the question for help."""

    def __init__(self, *, help_text: str = WITH_MAP, **answer: object) -> None:
        super().__init__()
        self._help_text = help_text
        self.says(**answer)

    def says(self, exit_code: int = 0, stdout: str = "", stderr: str = "") -> None:
        """From now on."""

        def said(call: Call) -> Finished:
            if "--help" in call.argv:
                return Finished(call.argv, 0, self._help_text, "", 0)
            return Finished(call.argv, exit_code, stdout, stderr, 0)

        self.answers["cuda-checkpoint"] = said

    @property
    def driver(self) -> ProgramCuda:
        return ProgramCuda(self, "/usr/bin/cuda-checkpoint", device_prefix="/nowhere/nvidia")


@pytest.fixture
def process() -> GpuProcess:
    """One that lives."""
    stat = read_stat(os.getpid())
    assert stat is not None
    return GpuProcess(os.getpid(), stat.start_ticks)


@pytest.fixture
def tree(process: GpuProcess) -> Tree:
    return Tree((TreeProcess(process.pid, 1, process.start_ticks, "S", ("a",), (1,), 0),))


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("running\n", CudaState.RUNNING),
        ("checkpointed", CudaState.CHECKPOINTED),
        ("checkpointing\n", CudaState.OTHER),
        ("state 7", CudaState.OTHER),
    ],
)
async def test_states(process: GpuProcess, word: str, state: CudaState) -> None:
    assert await Program(stdout=word).driver.state(process, deadline_s=DEADLINE_S) is state


async def test_a_program_without_the_option_takes_no_map(process: GpuProcess) -> None:
    program = Program(help_text=WITH_MAP.removesuffix(" --device-map"))
    driver = program.driver
    await driver.open(deadline_s=DEADLINE_S)
    assert not driver.moves
    with pytest.raises(DriverError, match="same GPUs only") as refused:
        await driver.restore(process, {"GPU-a": "GPU-b"}, deadline_s=DEADLINE_S)
    assert refused.value.definite
    assert all("restore" not in call.argv for call in program.calls)
    await driver.restore(process, {}, deadline_s=DEADLINE_S)


@pytest.mark.parametrize(
    ("exit_code", "stderr"),
    [
        (1, "Could not find restore thread for process ID 5"),
        (3, 'Could not find restore thread for process ID 5: "initialization error"'),
    ],
)
async def test_processes_without_cuda(tree: Tree, exit_code: int, stderr: str) -> None:
    driver = Program(exit_code=exit_code, stderr=stderr).driver
    assert await driver.processes(tree, deadline_s=DEADLINE_S) == ()


@pytest.mark.parametrize(
    ("exit_code", "stderr", "told"),
    [
        (100, 'Error initializing CUDA: "no CUDA-capable device is detected"', "NO_DEVICE"),
        (1, "Insufficient driver", "Insufficient driver"),
        (48, 'Could not find restore thread: "OS call failed"', "OS call failed"),
        (231, 'Could not find restore thread: "unknown error"', "UNKNOWN"),
    ],
)
async def test_a_driver_that_cannot_say_is_not_one_without_gpu_state(
    tree: Tree, exit_code: int, stderr: str, told: str
) -> None:
    driver = Program(exit_code=exit_code, stderr=stderr).driver
    with pytest.raises(DriverError, match=told):
        await driver.processes(tree, deadline_s=DEADLINE_S)


async def test_a_lock_that_a_signal_ended_may_have_been_taken(process: GpuProcess) -> None:
    with pytest.raises(DriverError, match="killed by SIGKILL") as killed:
        await Program(exit_code=-9).driver.lock(process, timeout_s=1, deadline_s=DEADLINE_S)
    assert not killed.value.definite


async def test_the_driver_gives_up_a_lock_before_we_do(process: GpuProcess) -> None:
    program = Program()
    await program.driver.lock(process, timeout_s=60, deadline_s=6)
    argv, left_s = program.calls[-1].argv, program.calls[-1].deadline_s
    assert int(argv[argv.index("--timeout") + 1]) / 1000 < left_s - 1


async def test_looking_at_the_program_is_part_of_the_time(process: GpuProcess) -> None:
    program = Program(stdout="running")
    said = program.answers["cuda-checkpoint"]

    def slow(call: Call) -> Finished:
        if "--help" in call.argv:
            time.sleep(0.3)  # as a program that attaches to many GPUs
        return said(call)

    program.answers["cuda-checkpoint"] = slow
    await program.driver.state(process, deadline_s=1.0)
    assert program.calls[-1].deadline_s <= 0.71
