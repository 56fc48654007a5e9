"""What the hook costs a training step when nothing is asked: measured, for `make bench`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from worker_shim.hook.install import environment, install
from worker_shim.hook.page import MAGIC, page_bytes

ROUNDS = 7
CALLS_PER_ROUND = 100_000
MEASURE_S_MAX = 60.0

# Runs in a process of its own, hook and all, as a rank would. The cost of an empty loop is taken
# off; the best round counts, since other processes can only make a round slower.
_PROGRAM = """
import os, sys, time
from worker_shim.hook import rank
rounds, calls = int(sys.argv[1]), int(sys.argv[2])
loop = range(calls)

def best(run):
    times = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - started)
    return min(times) / calls

def empty():
    for _ in loop:
        pass

def steps():
    step = rank.step
    for _ in loop:
        step()

def hook_pairs():
    begins, ends, optimizer = rank._step_begins, rank._step_ends, object()
    for _ in loop:
        begins(optimizer, (), {})
        ends(optimizer, (), {})

rank.load()
base = best(empty)
pair = best(hook_pairs) - base
single = best(steps) - base
boundary = rank._page[0][8 + 6]
assert boundary == 2 * rounds * calls, boundary
print(single, pair)
"""


@dataclass(frozen=True)
class HookCost:
    """Nanoseconds a step costs when no hold is raised."""

    step_ns: float  # one call of `worker_shim.hook.step`
    optimizer_pair_ns: float  # the pre and the post hook around one `Optimizer.step`


def measure(*, rounds: int = ROUNDS, calls: int = CALLS_PER_ROUND) -> HookCost:
    """Run a rank of its own and time it; raises subprocess.SubprocessError when that fails."""
    with tempfile.TemporaryDirectory(prefix="allstop-hook-") as place:
        page = Path(place) / "page"
        header = b"".join(word.to_bytes(8, sys.byteorder) for word in (MAGIC, 0, 0, 1, 0))
        page.write_bytes(header.ljust(page_bytes(1), b"\0"))
        directory = Path(place) / "hook"
        install(directory)
        additions, _ = environment({}, directory, page, worker=0)
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(rounds), str(calls)],
            env={"RANK": "0", **additions},
            cwd=place,
            check=True,
            capture_output=True,
            text=True,
            timeout=MEASURE_S_MAX,
        )
    step_ns, pair_ns = (float(word) for word in done.stdout.split())
    return HookCost(step_ns=step_ns, optimizer_pair_ns=pair_ns)
