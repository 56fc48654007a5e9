"""torchrun alone: elastic restarts and the tutorial's snapshot file; and the plain undisturbed job.

Set up as pytorch.org/docs/stable/elastic/run.html says for jobs that tolerate failures: c10d
rendezvous, `--nnodes` of the size wanted, `--max-restarts`, one agent more than needed as a spare
(it waits in the redundancy list of the rendezvous). The store of the rendezvous is a process of
its own on the control host (`is_host=0` for all agents), since it would be lost with its node.

Agents share no store with their workers: by default a survivor that stays rank 0 publishes no
address in the next round, the new agent waits for it in vain, and after 60 s both end
(`DistStoreError: wait timeout after 60000ms, keys: …/MASTER_ADDR`; pull requests 167301 and 167302
of PyTorch are about it).
"""

from __future__ import annotations

from bench.recovery.contender import (
    JOBS,
    NODES,
    PLAIN,
    RANKS_PER_NODE,
    SPARE,
    Basic,
    Stage,
    python,
)

STORE_PORT = 29400
MAX_RESTARTS = 20
ENV = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
STORE = (
    "import sys, time; from datetime import timedelta; from torch.distributed import TCPStore; "
    "store = TCPStore('0.0.0.0', int(sys.argv[1]), is_master=True, wait_for_workers=False); "
    "time.sleep(7200)"
)


def torchrun(stage: Stage, node: str, conf: str = "") -> list[str]:
    """The command of one agent, up to its script."""
    control = stage.lab.control.address
    return [
        str(python().with_name("torchrun")),
        *("--nnodes", str(len(NODES)), "--nproc-per-node", str(RANKS_PER_NODE)),
        *("--rdzv-backend", "c10d", "--rdzv-id", "digits"),
        *("--rdzv-endpoint", f"{control}:{STORE_PORT}", "--rdzv-conf", f"is_host=0{conf}"),
        *("--local-addr", stage.host(node).address, "--max-restarts", str(MAX_RESTARTS)),
    ]


def start_store(stage: Stage) -> None:
    """The rendezvous' store, on the control host, where nothing is lost."""
    stage.start(stage.lab.control, "store", [str(python()), "-c", STORE, str(STORE_PORT)])


class TorchrunAlone(Basic):
    """Elastic restarts with a snapshot file every so many epochs."""

    script = JOBS / "snapshot_file.py"
    ranks = r"python\S* -u \S*snapshot_file\.py"
    state = "lost; all ranks start again from rank 0's file"

    def __init__(self, save_every: int) -> None:
        self.save_every = save_every
        self.name = f"torchrun-{save_every}"
        epochs = "epoch" if save_every == 1 else f"{save_every} epochs"
        self.title = f"torchrun, a file every {epochs}"

    def start(self, stage: Stage) -> None:
        start_store(stage)
        for node in (*NODES, SPARE):
            self.returned(stage, node)

    def returned(self, stage: Stage, node: str) -> None:
        options = [
            "--snapshot",
            str(stage.root / "snapshot.pt"),
            "--save-every",
            str(self.save_every),
        ]
        argv = [*torchrun(stage, node), str(self.script), *stage.job_options(), *options]
        stage.start(stage.host(node), node, argv, ENV)


class Plain(Basic):
    """The plain script, for what an undisturbed run takes and ends with."""

    name = "plain"
    title = "plain script, no failure"
    script = PLAIN
    ranks = r"python\S* -u \S*digits_ddp\.py"
    state = "-"

    def start(self, stage: Stage) -> None:
        start_store(stage)
        for node in NODES:
            argv = [*torchrun(stage, node), str(self.script), *stage.job_options()]
            stage.start(stage.host(node), node, [*argv, "--workers", "0", "--log-every", "1"])

    def returned(self, stage: Stage, node: str) -> None: ...
