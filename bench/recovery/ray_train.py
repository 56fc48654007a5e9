"""Ray Train: a head on the control host, a Ray node on each host, TorchTrainer with checkpoints.

Set up as docs.ray.io says for a cluster of one's own (`ray start --head`, `ray start --address`)
and for fault tolerance in Ray Train (`FailureConfig`, `report` with a checkpoint,
`get_checkpoint`); each host has as many CPUs as ranks, the head none. Every time-out has its
default.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench.recovery.contender import (
    JOBS,
    NODES,
    RANKS_PER_NODE,
    REPOSITORY,
    SPARE,
    Basic,
    Stage,
    python,
)
from bench.recovery.environments import make
from lab.host import DISK, Host

VERSION = "2.60.0"
PORT = 6379
OBJECT_STORE_BYTES = 100_000_000
HEAD_S = 60  # for the head, and then for the nodes, to be there
ENV = {
    "PYTHONPATH": str(REPOSITORY),
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
}
WAIT = (
    "import sys, time, ray\n"
    "until = time.monotonic() + float(sys.argv[2])\n"
    "while time.monotonic() < until:\n"
    "    try:\n"
    "        ray.init(address='auto', logging_level='error')\n"
    "        if ray.cluster_resources().get('CPU', 0) >= float(sys.argv[1]): break\n"
    "        ray.shutdown()\n"
    "    except ConnectionError: pass\n"
    "    time.sleep(0.5)\n"
)


class RayTrain(Basic):
    """The whole worker group starts again from rank 0's last reported checkpoint."""

    script = JOBS / "ray_ddp.py"
    ranks = r"ray::\S*RayTrainWorker"
    state = "lost; all workers start again from rank 0's checkpoint"

    def __init__(self, save_every: int) -> None:
        self.save_every = save_every
        self.name = f"ray-{save_every}"
        epochs = "epoch" if save_every == 1 else f"{save_every} epochs"
        self.title = f"Ray Train {VERSION}, every {epochs}"

    def prepare(self) -> None:
        make("ray", [f"ray[train]=={VERSION}"], "import ray.train.torch")

    def start(self, stage: Stage) -> None:
        control, address = stage.lab.control, stage.lab.control.address
        head = ["--head", f"--port={PORT}", f"--node-ip-address={address}", "--num-cpus=0"]
        head += [f"--temp-dir={DISK / 'ray'}"]
        self._ray(stage, control, [*head, f"--object-store-memory={OBJECT_STORE_BYTES}"])
        for node in (*NODES, SPARE):
            self.returned(stage, node)
        program, wanted = str(python("ray")), str(RANKS_PER_NODE * len(NODES))
        job = [str(self.script), *stage.job_options(), "--save-every", str(self.save_every)]
        job += ["--storage", str(stage.root / "ray")]
        line = 'python=$1; shift; "$python" -c "$1" "$2" "$3"; shift 3; exec "$python" "$@"'
        argv = ["sh", "-c", line, "sh", program, WAIT, wanted, str(HEAD_S), *job]
        stage.start(control, "driver", argv, ENV)

    def returned(self, stage: Stage, node: str) -> None:
        host, head = stage.host(node), stage.lab.control.address
        options = [f"--address={head}:{PORT}", f"--node-ip-address={host.address}"]
        options += [f"--num-cpus={RANKS_PER_NODE}"]
        self._ray(stage, host, [*options, f"--object-store-memory={OBJECT_STORE_BYTES}"])

    def logs(self, stage: Stage) -> Iterable[Path]:
        disks = [host.disk for host in stage.lab.hosts.values()]
        return [log for disk in disks for log in disk.glob("ray/session_2*/logs/worker-*.out")]

    def _ray(self, stage: Stage, host: Host, options: list[str]) -> None:
        program = str(python("ray").with_name("ray"))
        argv = [program, "start", *options, "--disable-usage-stats", "--block"]
        line = 'for try in 1 2 3 4 5 6 7 8 9 10; do "$@" && exit; sleep 1; done'
        stage.start(host, host.name, ["sh", "-c", line, "sh", *argv], ENV)
