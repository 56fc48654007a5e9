"""`python -m tests.soak --minutes M --seed N`: live lines on stderr, JSON as the last line."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.chaos.exits import ended
from tests.soak.options import SoakOptions
from tests.soak.run import run_soak


def main() -> int:
    """Exit code 0: the job has ended by itself with its own bits, and nothing was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=SoakOptions.minutes)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--mtbf", type=float, default=SoakOptions.mtbf_s, metavar="SECONDS")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep history and logs there")
    given = parser.parse_args()
    options = SoakOptions(
        minutes=given.minutes, seed=given.seed, mtbf_s=given.mtbf, keep=given.keep
    )
    return ended(
        lambda: run_soak(options), lambda found: found["bit_exact"] and not found["violations"]
    )


if __name__ == "__main__":
    sys.exit(main())
