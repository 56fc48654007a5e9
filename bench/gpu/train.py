"""A job for torchrun, without end: `train.py --backend gloo|nccl --into FOLDER [--mib N]`.

Every rank appends the digest of its parameters and optimizer to FOLDER/RANK after each step, as
`STEP DIGEST`. The job ends after the step that is written in FOLDER/end, or after --steps.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch.distributed as dist

from bench.gpu.place import Place
from bench.gpu.training import Training

PACE_S = 0.2  # between steps, so that a job that runs for minutes writes no gigabytes
MIB = 8


def main(place: Place) -> None:
    """Train until told to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--mib", type=int, default=MIB)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--pace-s", type=float, default=PACE_S)
    parser.add_argument("--no-digests", action="store_true", help="write - in their place")
    options = parser.parse_args()
    place.join(options.backend)
    rank = dist.get_rank()
    training = Training(place, options.mib, rank=rank, together=True)
    last = options.steps
    while not last or training.steps < last:
        training.step()
        digest = "-" if options.no_digests else training.digest()
        with (options.into / str(rank)).open("a") as file:
            file.write(f"{training.steps} {digest}\n")
        last = last or told_end(options.into)
        time.sleep(options.pace_s)
    dist.destroy_process_group()


def told_end(folder: Path) -> int:
    """The step after which to end; 0: none was named."""
    try:
        return int((folder / "end").read_text())
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    main(Place())
