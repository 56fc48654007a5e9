"""The job, and the same job undisturbed, to compare every step with."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lab import Lab
from lab.demo.training import EXAMPLES, clean_environment, environment
from tests.chaos.options import BUSY, RANKS, ChaosOptions
from tests.chaos.steps import Diaries

__all__ = ["environment", "read", "torchrun", "undisturbed"]

RENDEZVOUS_PORT = 29500
PACED = Path(__file__).with_name("programs") / "paced.py"
POLL_S = 0.2
START_S = 120.0
STEP_S = 0.5  # allowed for each step of the undisturbed run


def torchrun(
    options: ChaosOptions,
    lab: Lab,
    index: int,
    directory: Path,
    pause: str,
    result: Path | None = None,
) -> list[str]:
    """The command of one node: plain torchrun, the example with many epochs, small and paced.

    `pause`: seconds after each step, or a file that says how many.
    """
    hosts = [lab.hosts[name] for name in BUSY]
    program = Path(sys.executable).with_name("torchrun")
    return [
        str(program),
        *("--nnodes", str(len(BUSY)), "--nproc-per-node", "1"),
        *("--node-rank", str(index), "--local-addr", hosts[index].address),
        *("--master-addr", hosts[0].address, "--master-port", str(RENDEZVOUS_PORT)),
        *(str(PACED), pause, str(directory)),
        str(EXAMPLES / "digits_ddp.py"),
        *("--epochs", str(options.epochs), "--hidden", "128", "--workers", "0"),
        *("--log-every", "100"),
        *(("--result", str(result)) if result is not None else ()),
    ]


def undisturbed(
    options: ChaosOptions, root: Path, steps: int, result: Path | None = None
) -> dict[tuple[int, int], str]:
    """Run it without allstop and without pauses up to that step; digests by (rank, step).

    With `result` it is run to its end, and leaves there what it comes to. Blocks. Raises
    AssertionError when it does not come so far.
    """
    root.mkdir()
    diaries = Diaries(root / "steps", RANKS)
    with Lab(root / "lab", BUSY) as lab:
        for index, name in enumerate(BUSY):
            with (root / f"{name}.log").open("wb") as log:
                lab.hosts[name].popen(
                    torchrun(options, lab, index, diaries.directory, "0", result),
                    env={**clean_environment(), **environment()},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        deadline = time.monotonic() + START_S + STEP_S * steps
        while min(diaries.last().values()) < steps or not (result is None or read(result)):
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


def read(result: Path) -> dict[str, Any]:
    """What the job has written at its end; empty while it is not there, or not whole."""
    try:
        return dict(json.loads(result.read_text()))
    except (OSError, ValueError):
        return {}
