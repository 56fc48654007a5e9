"""The job, and the same job undisturbed, to compare every step with."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from lab import Lab
from lab.demo.training import EXAMPLES, clean_environment, environment
from tests.chaos.options import BUSY, RANKS, ChaosOptions
from tests.chaos.steps import Diaries

__all__ = ["environment", "torchrun", "undisturbed"]

RENDEZVOUS_PORT = 29500
PACED = Path(__file__).with_name("programs") / "paced.py"
POLL_S = 0.2
START_S = 120.0
STEP_S = 0.5  # allowed for each step of the undisturbed run


def torchrun(
    options: ChaosOptions, lab: Lab, index: int, directory: Path, paced: bool
) -> list[str]:
    """The command of one node: plain torchrun, the example with many epochs, small and paced."""
    hosts = [lab.hosts[name] for name in BUSY]
    program = Path(sys.executable).with_name("torchrun")
    return [
        str(program),
        *("--nnodes", str(len(BUSY)), "--nproc-per-node", "1"),
        *("--node-rank", str(index), "--local-addr", hosts[index].address),
        *("--master-addr", hosts[0].address, "--master-port", str(RENDEZVOUS_PORT)),
        *(str(PACED), str(options.pause_s if paced else 0.0), str(directory)),
        str(EXAMPLES / "digits_ddp.py"),
        *("--epochs", str(options.epochs), "--hidden", "128", "--workers", "0"),
        *("--log-every", "100"),
    ]


def undisturbed(options: ChaosOptions, root: Path, steps: int) -> dict[tuple[int, int], str]:
    """Run it without allstop and without pauses up to that step; digests by (rank, step).

    Blocks. Raises AssertionError when it does not come so far.
    """
    root.mkdir()
    diaries = Diaries(root / "steps", RANKS)
    with Lab(root / "lab", BUSY) as lab:
        for index, name in enumerate(BUSY):
            with (root / f"{name}.log").open("wb") as log:
                lab.hosts[name].popen(
                    torchrun(options, lab, index, diaries.directory, False),
                    env={**clean_environment(), **environment()},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        deadline = time.monotonic() + START_S + STEP_S * steps
        while min(diaries.last().values()) < steps:
            assert time.monotonic() < deadline, (
                f"the undisturbed run came to {diaries.last()}, not to {steps}: "
                + (root / f"{BUSY[0]}.log").read_text(errors="replace")[-1500:]
            )
            time.sleep(POLL_S)
    return {
        (step.rank, step.step): step.digest
        for steps_of_rank in diaries.look().values()
        for step in steps_of_rank
    }
