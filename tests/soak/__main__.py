"""`python -m tests.soak --minutes M --seed N`: live lines on stderr, JSON as the last line."""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from coordinator.core.errors import AllstopError
from lab.errors import LabError
from tests.soak.options import SoakOptions
from tests.soak.run import run_soak

INTERRUPTED = 130


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
    try:
        summary = run_soak(options)
    except KeyboardInterrupt:
        print("interrupted; nothing is left behind", file=sys.stderr)
        return INTERRUPTED
    except (LabError, AllstopError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary), flush=True)
    return 1 if summary["violations"] or not summary["bit_exact"] else 0


if __name__ == "__main__":
    sys.exit(main())
