"""`python3 -m tools`: have `.tools/bin/{criu,etcd,etcdctl}` and the system's `nft`, `ip`, `ss`.

`python3 -m tools system` does the second half alone (and ensures that `python -m venv` works);
`python3 -m tools tests` has what only tests need: promtool, SLURM, and Debian's Chromium.
Runs on the bare system Python: standard library only.
"""

import sys
from pathlib import Path

from tools.fetch import fetch_programs, unfetchable
from tools.for_tests import ensure_for_tests
from tools.messages import Missing
from tools.system import ensure_system

ROOT = Path(__file__).resolve().parent.parent


def main(argv: list[str]) -> int:
    """Return the exit status: 0 when everything is there and proven, 1 otherwise."""
    if argv not in ([], ["system"], ["tests"]):
        print(__doc__, file=sys.stderr)
        return 2
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        if argv == ["tests"]:
            ensure_for_tests(ROOT)
            return 0
        ensure_system(unfetchable())  # all that is missing in one message, before anything is made
        if not argv:
            fetch_programs(ROOT)
    except Missing as missing:
        print(f"\n{missing}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: nothing half-done counts, run it again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
