"""The job of the demo: the unmodified example under unmodified torchrun, and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from coordinator.core.errors import SetupError
from lab.cluster import Lab
from lab.demo.options import DemoOptions

RENDEZVOUS_PORT = 29500
EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
UNDISTURBED_TIMEOUT_S = 600.0


def torchrun(options: DemoOptions, lab: Lab, index: int, result: Path) -> list[str]:
    """The command of one node, as a user would type it."""
    hosts = [lab.hosts[name] for name in options.busy]
    program = Path(sys.executable).with_name("torchrun")
    if not program.exists():
        raise SetupError("PyTorch is not installed", advice="`make demo` installs it")
    return [
        str(program),
        *("--nnodes", str(options.nodes), "--nproc-per-node", str(options.ranks_per_node)),
        *("--node-rank", str(index), "--local-addr", hosts[index].address),
        *("--master-addr", hosts[0].address, "--master-port", str(RENDEZVOUS_PORT)),
        *script(options, result),
    ]


def python(options: DemoOptions, result: Path) -> list[str]:
    """The command of one rank, as torchrun would run it."""
    return [sys.executable, *script(options, result)]


def script(options: DemoOptions, result: Path) -> list[str]:
    """The example and its options."""
    return [
        str(EXAMPLES / "digits_ddp.py"),
        *("--epochs", str(options.epochs), "--batch-size", str(options.batch_size)),
        *("--workers", str(options.loader_workers), "--result", str(result)),
    ]


def environment() -> dict[str, str]:
    """What a user of a cluster sets: the interface for gloo, one thread a rank."""
    return {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def read_result(path: Path) -> dict[str, Any]:
    """What rank 0 wrote at its end."""
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def run_undisturbed(options: DemoOptions, root: Path) -> dict[str, Any]:
    """The same command in a lab of its own, with no allstop anywhere; blocks until it ends.

    Raises SetupError with the job's last words when it fails.
    """
    directory = root / "undisturbed"
    directory.mkdir()
    result = directory / "result.json"
    with Lab(directory / "lab", options.busy) as lab:
        runs = []
        for index, name in enumerate(options.busy):
            with (directory / f"{name}.log").open("wb") as log:
                runs.append(
                    lab.hosts[name].popen(
                        torchrun(options, lab, index, result),
                        env={**clean_environment(), **environment()},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        deadline = time.monotonic() + UNDISTURBED_TIMEOUT_S
        for name, run in zip(options.busy, runs, strict=True):
            code = run.wait(max(1.0, deadline - time.monotonic()))
            if code != 0:
                words = (directory / f"{name}.log").read_text(errors="replace")[-2000:]
                raise SetupError(f"the undisturbed run failed on {name}", details=(words,))
    found = read_result(result)
    shutil.rmtree(directory)
    return found


def clean_environment() -> dict[str, str]:
    """This process's environment without anything of a launcher's."""
    launcher = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    return {name: value for name, value in os.environ.items() if name not in launcher}
