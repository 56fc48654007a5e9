"""Run a training script as it is, with a pause after each optimizer step and a line about it.

    paced.py PAUSE_S|FILE DIRECTORY SCRIPT ARGUMENTS...

The pause is the number, or what the file says at that moment. Each rank appends `unix_ns
incarnation host rank step digest` to DIRECTORY/<rank>; the digest covers every parameter and
optimizer value after the step. The file is never left open: it is no part of a snapshot, so that
nothing cuts the history back. A parked rank writes the line of its step when it is let go, since
allstop's hook comes first.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

INCARNATION_AT = 4 * 8  # in the control page; see worker_shim/hook/page.py


class Diary:
    """Counts steps of this rank and writes them down."""

    def __init__(self, pause: str, path: Path) -> None:
        self.pause = pause
        self.path = path
        self.step = 0

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Called after every step of an optimizer."""
        self.step += 1
        rank = os.environ["RANK"]
        digest = state_digest(optimizer)
        host = socket.gethostname()
        line = f"{time.time_ns()} {incarnation()} {host} {rank} {self.step} {digest}\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
        time.sleep(pause_s(self.pause))


def pause_s(pause: str) -> float:
    """A number, or the number in the file of that name."""
    return float(Path(pause).read_text()) if "/" in pause else float(pause)


def state_digest(optimizer: torch.optim.Optimizer) -> str:
    """BLAKE2 of all parameters and of all that the optimizer remembers of them."""
    hashed = hashlib.blake2b(digest_size=8)
    for group in optimizer.param_groups:
        hashed.update(repr(group["lr"]).encode())
        for parameter in group["params"]:
            hashed.update(parameter.detach().cpu().numpy().tobytes())
            for _, value in sorted(optimizer.state[parameter].items()):
                hashed.update(value.cpu().numpy().tobytes())
    return hashed.hexdigest()


def incarnation() -> int:
    """In which incarnation of the job this rank is; -1 without allstop."""
    try:
        with open(os.environ["ALLSTOP_CONTROL_PAGE"], "rb") as page:
            return int(struct.unpack_from("Q", page.read(64), INCARNATION_AT)[0])
    except (KeyError, OSError, struct.error):
        return -1


def main() -> None:
    """Become the script, watched."""
    pause, directory, script = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    sys.argv = sys.argv[3:]
    register_optimizer_step_post_hook(Diary(pause, directory / os.environ["RANK"]))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
