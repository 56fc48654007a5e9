"""Runs a shim as the command line would: shim.py NODE COORDINATOR ROOT [-- ARGV...]."""

import asyncio
import sys
from pathlib import Path

from worker_shim.agent.options import ShimOptions, WorkerSpec
from worker_shim.agent.run import run_shim

node, coordinator, root = sys.argv[1], sys.argv[2], Path(sys.argv[3])
argv = sys.argv[5:]
options = ShimOptions(
    node=node,
    coordinators=[coordinator],
    store_dir=root / "store",
    staging_dir=root / "staging",
    state_dir=root / "state",
    criu=Path(sys.argv[4]) if sys.argv[4] else None,
    linger_s=30.0,
)
spec = None
if argv:
    import os

    spec = WorkerSpec(
        job="llm", worker=0, workers=1, argv=argv, env=dict(os.environ), cwd=root, follow=False
    )
sys.exit(asyncio.run(run_shim(options, spec)))
