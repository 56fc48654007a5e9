"""torchft: a lighthouse on the control host and four replica groups of one rank each.

Set up as torchft's README and its train_ddp example say: `torchft_lighthouse --min_replicas 1
--quorum_tick_ms 100 --join_timeout_ms 10000`, and each group under a torchrun of its own. torchft
leaves it to a scheduler to start lost groups anew; here the harness does so on the spare host the
moment the plug is pulled, so no time of a scheduler's to notice is counted.
"""

from __future__ import annotations

from bench.recovery.contender import JOBS, NODES, RANKS, RANKS_PER_NODE, SPARE, Basic, Stage, python
from bench.recovery.environments import make

RELEASE, NIGHTLY = "torchft==0.2.0", "torchft-nightly==2026.10.26"
TORCHDATA = "torchdata==0.11.0"
SAVE_EVERY = 10  # epochs between two files for when all groups go down
PORT = 29510
MASTER_PORT = 29600


class Torchft(Basic):
    """Survivors go on with what is left of the batch; a new group takes its state from them.

    Twice: the release leaves DDP's hook by an AssertionError when a peer of gloo's has gone
    (`assert fut._fut` in torchft/ddp.py), so all survivors end, too; the nightly build mends that.
    """

    script = JOBS / "torchft_ddp.py"
    ranks = r"python\S* -u \S*torchft_ddp\.py"

    def __init__(self, package: str) -> None:
        self.package = package
        self.name, version = package.split("==")
        self.title = f"{self.name.replace('-', ' ')} {version}"
        self.state = "lost; a new group takes parameters from a living one, its place from a file"
        if package == RELEASE:
            self.state = "lost, mostly the survivors' too; then all start again from a file"
        self._groups = {
            node: list(range(index * RANKS_PER_NODE, (index + 1) * RANKS_PER_NODE))
            for index, node in enumerate(NODES)
        }
        self._spare = SPARE

    def prepare(self) -> None:
        make(self.name, [self.package, TORCHDATA], "import torchft, torchdata.stateful_dataloader")

    def start(self, stage: Stage) -> None:
        program = str(python(self.name).with_name("torchft_lighthouse"))
        options = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
        bind = ["--bind", f"0.0.0.0:{PORT}"]
        stage.start(stage.lab.control, "lighthouse", [program, *options, *bind])
        for node in NODES:
            self._start_groups(stage, node)

    def lost(self, stage: Stage, node: str) -> None:
        if self._spare:
            self._groups[self._spare] = self._groups.pop(node)
            self._start_groups(stage, self._spare)
            self._spare = ""

    def returned(self, stage: Stage, node: str) -> None:
        self._spare = node

    def _start_groups(self, stage: Stage, node: str) -> None:
        for group in self._groups[node]:
            port = MASTER_PORT + group
            argv = [
                str(python(self.name).with_name("torchrun")),
                *("--nnodes", "1", "--nproc-per-node", "1"),
                *("--master-addr", stage.host(node).address, "--master-port", str(port)),
                *("--max-restarts", "20"),
                *(str(self.script), *stage.job_options()),
                *("--snapshot", str(stage.root / "snapshot.pt"), "--save-every", str(SAVE_EVERY)),
            ]
            env = {
                "REPLICA_GROUP_ID": str(group),
                "NUM_REPLICA_GROUPS": str(RANKS),
                "TORCHFT_LIGHTHOUSE": f"http://{stage.lab.control.address}:{PORT}",
            }
            stage.start(stage.host(node), f"{node}-{group}", argv, env)
