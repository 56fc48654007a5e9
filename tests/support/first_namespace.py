"""`allstop`, taking a given PID namespace for the machine's first: `first_namespace.py INODE …`.

On a real machine a shim that systemd or SLURM starts begins again in a PID namespace of its own. In
a test these run in a PID namespace themselves, where it would not.
"""

from __future__ import annotations

import sys

from coordinator.cli.main import main
from worker_shim.process import namespace

if __name__ == "__main__":
    namespace.INITIAL_PID_NAMESPACE = int(sys.argv.pop(1))
    sys.exit(main())
