"""Two ranks of a job that adds numbers up over the stand-in for NCCL; a worker of four in all.

    ranks.py WORKER ROOT SHARED

ROOT is the address of rank 0. Each rank writes its step to SHARED/step.RANK after every sum.
"""

import ctypes
import os
import subprocess
import sys
import time

from worker_shim.hook import step

RANKS, LOCAL_RANKS = 4, 2
PORT = 7900
STEP_S = 0.02


def launch(worker: int) -> int:
    """Be the launcher: start the ranks, end as the first that ends."""
    ranks = []
    for local in range(LOCAL_RANKS):
        env = {
            **os.environ,
            "RANK": str(worker * LOCAL_RANKS + local),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(LOCAL_RANKS),
        }
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env))
    codes = [rank.wait() for rank in ranks]
    return max(codes, key=abs)


def run(rank: int, root: str, shared: str) -> None:
    """Add up until SHARED/end is there; every sum is checked."""
    nccl = ctypes.CDLL(None)
    if failed := nccl.fakeNcclInit(rank, RANKS, root.encode(), PORT):
        sys.exit(f"rank {rank}: init failed with {failed}")
    total = ctypes.c_int64()
    at = 0
    while not os.path.exists(f"{shared}/end"):
        at += 1
        if failed := nccl.fakeNcclAllReduce(ctypes.c_int64(at * (rank + 1)), ctypes.byref(total)):
            sys.exit(f"rank {rank}: the sum of step {at} failed with {failed}")
        if total.value != at * sum(range(1, RANKS + 1)):
            sys.exit(f"rank {rank}: the sum of step {at} is {total.value}")
        with open(f"{shared}/.step.{rank}", "w") as file:
            file.write(str(at))
        os.replace(f"{shared}/.step.{rank}", f"{shared}/step.{rank}")
        step()
        time.sleep(STEP_S)


if __name__ == "__main__":
    if "RANK" in os.environ:
        run(int(os.environ["RANK"]), *sys.argv[2:])
    else:
        sys.exit(launch(int(sys.argv[1])))
