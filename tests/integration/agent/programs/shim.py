"""Runs a shim as the command line would.

shim.py NODE COORDINATOR ROOT CRIU [WORKER WORKERS ARGV...]
"""

import asyncio
import os
import sys
from pathlib import Path

from worker_shim.agent.options import ShimOptions, WorkerSpec
from worker_shim.agent.run import run_shim
from worker_shim.images.objects.opening import StoreOptions

node, coordinator, root, criu, *rest = sys.argv[1:]
options = ShimOptions(
    node=node,
    coordinators=[coordinator],
    store=StoreOptions(str(Path(root, "store")), node),
    staging_dir=Path(root, node, "staging"),
    state_dir=Path(root, node, "state"),
    criu=Path(criu),
    linger_s=30.0,
)
spec = None
if rest:
    worker, workers, *argv = rest
    spec = WorkerSpec("llm", int(worker), int(workers), argv, dict(os.environ), Path(root))
sys.exit(asyncio.run(run_shim(options, () if spec is None else (spec,))))
