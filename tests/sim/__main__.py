"""`python -m tests.sim --seeds 2000`: many runs; `--seed N` repeats one and tells all of it."""

from __future__ import annotations

import os
import sys

from tests.sim import clock

if os.environ.get("PYTHONHASHSEED") != "0":
    os.execve(
        sys.executable,
        [sys.executable, "-m", "tests.sim", *sys.argv[1:]],
        {**os.environ, "PYTHONHASHSEED": "0"},
    )
clock.take_over()

from tests.sim.command import main  # noqa: E402 - after the clock is taken over

sys.exit(main(sys.argv[1:]))
