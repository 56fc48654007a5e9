"""Ranks as workers of their own: what torchrun would give each of them, without torchrun.

A tree per rank is a CRIU per rank, and so a core per rank. What a script finds in its environment
is what `torch.distributed.run` of PyTorch 2.13 sets (`LocalElasticAgent._start_workers`), with one
value of its own: TORCHELASTIC_USE_AGENT_STORE is False, since there is no agent whose store could
be used; rank 0 opens the store on MASTER_PORT itself, as documented for `env://`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from worker_shim.agent.options import WorkerSpec

LOCAL_RANK_MACRO = "${local_rank}"  # in arguments, as torchrun replaces it
ERROR_FILE = "error.json"  # where a script decorated with `record` writes what it ended by
ROLE = "default"
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Ranks:
    """How many ranks this node starts, which of the job's they are, and where rank 0 is met."""

    here: int
    nodes: int = 1
    node: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29500

    @property
    def world_size(self) -> int:
        """Ranks of the whole job: every node has as many."""
        return self.here * self.nodes

    @property
    def first(self) -> int:
        """The lowest number of a rank on this node."""
        return self.here * self.node


def rank_specs(ranks: Ranks, command: WorkerSpec, run_dir: Path) -> tuple[WorkerSpec, ...]:
    """One worker for each rank of this node; worker and rank have the same number.

    `command` is what each of them starts; its own number does not count.
    """
    return tuple(
        replace(
            command,
            worker=ranks.first + local,
            workers=ranks.world_size,
            argv=_arguments(command.argv, local),
            env=_environment(ranks, local, command, run_dir),
            slots=max(command.slots, ranks.here),  # a rank has the slot of its local number
        )
        for local in range(ranks.here)
    )


def _arguments(argv: Sequence[str], local: int) -> tuple[str, ...]:
    return tuple(word.replace(LOCAL_RANK_MACRO, str(local)) for word in argv)


def _environment(ranks: Ranks, local: int, command: WorkerSpec, run_dir: Path) -> Mapping[str, str]:
    rank, world = str(ranks.first + local), str(ranks.world_size)
    # What the user has set stays: torchrun leaves these alone too.
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    defaults["PYTHONUNBUFFERED"] = "1"  # torchrun starts `python -u`
    if ranks.here > 1:
        defaults[THREADS] = "1"
    return {
        **defaults,
        **command.env,
        "RANK": rank,
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(ranks.node),
        "ROLE_RANK": rank,
        "ROLE_NAME": ROLE,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(ranks.here),
        "GROUP_WORLD_SIZE": str(ranks.nodes),
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": ranks.master_addr,
        "MASTER_PORT": str(ranks.master_port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": command.job,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_ERROR_FILE": str(run_dir / command.job / rank / ERROR_FILE),
    }
