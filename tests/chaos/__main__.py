"""`python -m tests.chaos --minutes M --seed N`: live lines on stderr, JSON as the last line."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.chaos.exits import ended
from tests.chaos.faults import KINDS
from tests.chaos.options import ChaosOptions
from tests.chaos.run import run_chaos


def main() -> int:
    """Exit code 0: nothing was violated and no job hurt; 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep history and logs there")
    parser.add_argument(
        "--only", default="", metavar="KIND,…", help=f"of faults: {', '.join(sorted(KINDS))}"
    )
    given = parser.parse_args()
    only = tuple(name for name in given.only.split(",") if name)
    if unknown := sorted(set(only) - set(KINDS)):
        parser.error(f"there is no kind of fault {', '.join(unknown)}")
    options = ChaosOptions(minutes=given.minutes, seed=given.seed, keep=given.keep, only=only)
    return ended(
        lambda: run_chaos(options), lambda found: not (found["violations"] or found["jobs_hurt"])
    )


if __name__ == "__main__":
    sys.exit(main())
