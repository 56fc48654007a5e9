"""What the fake `cuda-checkpoint` prints and ends with is what `said.json` says, word for word."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.gpu.build import said
from tests.support.gpus import UUIDS, GpuNode, Rank, gpu_node

pytestmark = pytest.mark.cc

SAID = said()
MIB = 1 << 20
NOBODY = 1 << 22  # above every pid
RUN_S = 20


@dataclass
class Program:
    """The program, and a process with a device."""

    node: GpuNode
    rank: Rank

    def run(self, *words: str, ends_with: int = 0) -> subprocess.CompletedProcess[str]:
        """It is given these words."""
        done = subprocess.run(
            [self.node.programs / "cuda-checkpoint", *words],
            env={**os.environ, **self.node.environment},
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        assert done.returncode == ends_with, done
        return done

    def act(self, *words: str, ends_with: int = 0) -> subprocess.CompletedProcess[str]:
        """An action on the process."""
        return self.run("--action", *words, "--pid", str(self.pid), ends_with=ends_with)

    @property
    def pid(self) -> int:
        return self.rank.process.pid

    def state(self) -> str:
        return self.run("--get-state", "-p", str(self.pid)).stdout.strip()

    def says(self, case: str, pid: int, *words: str) -> None:
        """Given these words it says what the case says."""
        told = {**SAID["cases"], **SAID["unasked"]}[case]
        done = self.run(*words, ends_with=told["exit"])
        assert done.stdout == told["stdout"].replace("{pid}", str(pid))
        assert done.stderr == told["stderr"].replace("{pid}", str(pid))


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    with gpu_node(tmp_path, dict.fromkeys(UUIDS, MIB)) as node:
        rank = node.rank()
        assert rank.ask("write weights abc") == "done"
        yield Program(node, rank)


def locked(program: Program) -> None:
    program.act("lock", "-t", "5000")


def saved(program: Program) -> None:
    locked(program)
    program.act("checkpoint")


def working(program: Program) -> None:
    assert program.rank.ask("begin") == "done"


def without_room(program: Program) -> None:
    saved(program)
    other = program.node.rank()
    assert other.ask("write much " + "x" * (MIB - 2)) == "done"


def stranded(program: Program) -> None:
    without_room(program)
    program.act("restore", ends_with=SAID["unasked"]["restore_without_room"]["exit"])


def nothing(program: Program) -> None:
    pass


CASES: dict[str, tuple[Callable[[Program], None], tuple[str, ...]]] = {
    "checkpoint_while_running": (nothing, ("--action", "checkpoint")),
    "restore_while_running": (nothing, ("--action", "restore")),
    "unlock_while_running": (nothing, ("--action", "unlock")),
    "lock_while_locked": (locked, ("--action", "lock", "--timeout", "200")),
    "restore_while_locked": (locked, ("--action", "restore")),
    "checkpoint_while_checkpointed": (saved, ("--action", "checkpoint")),
    "unlock_while_checkpointed": (saved, ("--action", "unlock")),
    "lock_while_checkpointed": (saved, ("--action", "lock", "--timeout", "200")),
    "lock_with_work_outstanding": (working, ("--action", "lock", "--timeout", "200")),
    "restore_with_a_device_missing": (
        saved,
        ("--action", "restore", "--device-map", f"{UUIDS[0]}={UUIDS[0]}"),
    ),
    "restore_without_room": (without_room, ("--action", "restore")),
    "restore_while_stranded": (stranded, ("--action", "restore")),
}
OF_OTHERS = {
    "state_without_cuda": ("--get-state",),
    "lock_without_cuda": ("--action", "lock", "--timeout", "200"),
    "tid_without_cuda": ("--get-restore-tid",),
    "state_of_nobody": ("--get-state",),
    "lock_of_nobody": ("--action", "lock", "--timeout", "200"),
}
WITHOUT_PROCESS = {"no_device": "init 100", "insufficient_driver": "version 12020"}


def test_every_case_is_tried() -> None:
    tried = {*CASES, *OF_OTHERS, *WITHOUT_PROCESS}
    assert tried == {*SAID["cases"], *SAID["unasked"]}


@pytest.mark.parametrize("case", CASES)
def test_it_refuses(program: Program, case: str) -> None:
    prepare, words = CASES[case]
    prepare(program)
    program.says(case, program.pid, *words, "--pid", str(program.pid))


@pytest.mark.parametrize("case", OF_OTHERS)
def test_it_refuses_processes_without_cuda(program: Program, case: str) -> None:
    pid = NOBODY if case.endswith("nobody") else os.getpid()
    program.says(case, pid, *OF_OTHERS[case], "--pid", str(pid))


@pytest.mark.parametrize("case", WITHOUT_PROCESS)
def test_it_cannot_begin(program: Program, case: str) -> None:
    program.node.faults.write_text(WITHOUT_PROCESS[case] + "\n")
    program.says(case, program.pid, "--get-state", "--pid", str(program.pid))


@pytest.mark.parametrize(
    ("result", "ends_with", "words"),
    [
        ("304", 48, "OS call failed or operation not supported on this OS"),
        ("801", 33, "operation not supported"),
        ("4711", 103, "unknown error"),
    ],
)
def test_any_other_result(program: Program, result: str, ends_with: int, words: str) -> None:
    program.node.faults.write_text(f"lock {result}\n")
    done = program.act("lock", ends_with=ends_with)
    assert done.stderr == f'Could not lock on process ID {program.pid}: "{words}"\n'


def test_there_and_back_by_toggle(program: Program) -> None:
    pid = str(program.pid)
    assert program.run("--toggle", "--pid", pid).stdout == ""
    assert program.state() == "checkpointed"
    program.run("--toggle", "-p", pid)
    assert program.state() == "running"
    locked(program)
    done = program.run("--toggle", "-p", pid, ends_with=401 & 0xFF)
    illegal = "the operation cannot be performed in the present state"
    assert done.stderr == f'Error toggling CUDA in process ID {pid}: "{illegal}"\n'


def test_short_options_and_a_map(program: Program) -> None:
    saved(program)
    devices = f"{UUIDS[0]}={UUIDS[1]},{UUIDS[1]}={UUIDS[0]}"
    program.run("--action", "restore", "-p", str(program.pid), "-d", devices)
    program.act("unlock")
    assert program.rank.ask("read weights") == "abc"
    assert program.node.made.free_bytes(UUIDS[1]) == MIB - 3


def test_a_job_file_for_a_program(program: Program) -> None:
    show = 'readlink "$CUDA_CHECKPOINT_JOB_FILE"'
    told = program.run("--launch-job", "sh", "-c", show).stdout
    assert told.startswith("/memfd:cuda-checkpoint-job")
    assert program.run("-j", "sh", "-c", "exit 7", ends_with=7).stderr == ""


@pytest.mark.parametrize("words", [(), ("--pid",), ("--get-state",), ("--what", "-p", "1")])
def test_what_it_does_not_understand(program: Program, words: tuple[str, ...]) -> None:
    assert program.run(*words, ends_with=1).stderr == SAID["help"]
    assert program.run("-h").stdout == program.run("--help").stdout == SAID["help"]
