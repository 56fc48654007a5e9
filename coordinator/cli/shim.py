"""`allstop shim` and `allstop shim run`"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from coordinator.cli.config_file import RANKS, config_option, rank
from coordinator.cli.durations import Duration
from coordinator.cli.notices import notice_options
from coordinator.cli.options import connection, directory, gpu_engine, option
from coordinator.cli.output import Output
from coordinator.cli.sizes import KeepRule, Size
from coordinator.cli.stores import persist_options, store_options, where_of
from coordinator.cli.verb import verb_group
from coordinator.core.errors import BadRequest
from worker_shim.agent.elastic import NO_RESTARTS
from worker_shim.agent.options import RUN_DIRECTORY, STAGING_DIRECTORY, STATE_DIRECTORY
from worker_shim.files.keeping import Keeping, parse_rule
from worker_shim.nccl.modes import AUTO, MODES

if TYPE_CHECKING:
    from worker_shim.agent.options import ShimOptions

Function = TypeVar("Function", bound=Callable[..., Any])

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def node_options(function: Function) -> Function:
    """What a shim must know of its node; may stand before or after `run`."""
    for add in reversed(
        (
            option("--node", metavar="NAME", help="Of this node.  [default: the host name]"),
            option(
                "--address", metavar="IP", default="",
                help="Where the node's workers are reached by the others.  [default: the default "
                "interface's]",
            ),
            directory(
                "--staging", help="Images on their way to the store; local disk.  "
                f"[default: {STAGING_DIRECTORY}]",
            ),
            directory(
                "--run-dir", help="Files of running workers; the same path on every node.  "
                f"[default: {RUN_DIRECTORY}]",
            ),
            directory(
                "--node-state", help=f"The highest epoch seen.  [default: {STATE_DIRECTORY}]"
            ),
            option(
                "--criu", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                help="The CRIU to use.  [default: that of `make tools`, then the one in PATH]",
            ),
            option(
                "--criu-at-once", type=click.IntRange(min=1), metavar="N",
                help="Workers that are dumped or restored in parallel.  [default: one a core]",
            ),
            gpu_engine(
                help="What saves device memory: cuda-bindings or the program cuda-checkpoint."
            ),
            option(
                "--dcgm-url", default="", metavar="URL",
                help="Metrics of DCGM's exporter, read beside NVML for the health of GPUs, such as "
                "http://127.0.0.1:9400/metrics.  [default: none]",
            ),
            option(
                "--metrics", default="", metavar="ADDR",
                help="host:port that answers Prometheus.  [default: nobody does]",
            ),
            option(
                "--linger", "linger_s", type=Duration(), metavar="DURATION",
                help="How long the shim of a failed worker waits for a restore; a recovery that "
                "tries or waits keeps it for longer.  [default: 5m]",
            ),
        )
    ):  # fmt: skip
        function = add(function)
    return config_option(connection(store_options(persist_options(notice_options(function)))))


@verb_group(
    examples=(
        "allstop shim --insecure --coordinator 10.0.0.1:7411 --store /shared/allstop",
        "allstop shim --store s3://bucket/llm --store-key file:/etc/allstop/store.key",
        "allstop shim --store partner://n1@10.0.0.1:7420,n2@10.0.0.2:7420 --node n1",
        "allstop shim --config /etc/allstop/shim.toml",
        "allstop shim run --job llm --workers 2 --worker 0 -- torchrun --nnodes 2 train.py",
        "allstop shim run --job llm --ranks 8 -- python train.py",
    ),
    exits=(0, 2, 5, 10, 13, 14),
    invoke_without_command=True,
)
@node_options
@option(
    "--until-worker-ends", is_flag=True,
    help="Show the output of the worker that a restore brings, and end as it ends.",
)  # fmt: skip
@click.pass_context
def shim(ctx: click.Context, /, until_worker_ends: bool, **node: Any) -> int:
    """Attach this node as a spare: it waits until a restore needs it.

    `allstop shim run` attaches it with a worker. Needs root.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    node["until_worker_ends"] = until_worker_ends
    return start(ctx.ensure_object(Output), node, None)


@shim.command(
    examples=(
        "allstop shim run --job llm --workers 2 --worker 0 -- torchrun --nnodes 2 train.py",
        "allstop shim run --config /etc/allstop/shim.toml --worker 1 -- python -m my.trainer",
        "allstop shim run --job llm --workers 1 --worker 0 --keep-files tail -- python train.py",
        "allstop shim run --job llm --ranks 8 -- python train.py",
        "allstop shim run --job llm --ranks 8 --nnodes 2 --master-addr node-0 -- python train.py",
    ),
    exits=(0, 2, 5, 10, 13, 14),
)
@node_options
@option("--job", required=True, metavar="NAME", help="The job that it is a worker of.")
@option("--workers", type=click.IntRange(min=1), help="Of the whole job.")
@option("--worker", type=click.IntRange(min=0), help="Which of them, from 0.")
@option(
    "--ranks",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="In the place of both: start COMMAND N times, each a rank of its own with the "
    "environment that torchrun would give it, and each a worker.",
)
@option(
    "--nnodes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="With --ranks: nodes of the job, each with as many ranks.",
)
@option(
    "--node-rank",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="With --ranks: which of these nodes this is, from 0.",
)
@option(
    "--master-addr",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="With --ranks: where rank 0 is met: the address of node 0.",
)
@option(
    "--master-port", type=click.IntRange(1, 65535), default=29500, show_default=True,
    help="With --ranks: the port of rank 0.",
)  # fmt: skip
@option(
    "--slots",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Ranks that this worker may have.  [default: 64]",
)
@option(
    "--cwd", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
    help="Where the worker starts.  [default: here]",
)  # fmt: skip
@option(
    "--nccl",
    type=click.Choice(MODES),
    default=AUTO,
    show_default=True,
    help="What becomes of NCCL's communicators while ranks are saved: NCCL's checkpoint shim "
    "destroys and rebuilds them, they are kept (over sockets alone), or there are none. By itself "
    "only workers on nodes with GPUs get a mode.",
)
@option(
    "--nccl-shim", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="NCCL's checkpoint shim, libnccl-checkpoint-shim.so.  [default: in usual places]",
)  # fmt: skip
@option(
    "--keep-files",
    type=KeepRule(),
    multiple=True,
    metavar="WHAT[:PATHS]",
    help="What a snapshot keeps of a file that the worker has open for writing: none (its size), "
    "tail (its end) or copy; of those at PATHS (* is anything), the first that matches counts.  "
    "[default: copy]",
)
@option(
    "--copy-limit",
    "copy_limit_bytes",
    type=Size(least=0),
    metavar="SIZE",
    help="So much is copied of all these files together; of one beyond it the tail is kept.  "
    "[default: 8GiB]",
)
@option(
    "--keep-tail-bytes",
    "tail_bytes",
    type=Size(least=0),
    metavar="SIZE",
    help="How much a tail is.  [default: 1MiB]",
)
@option(
    "--no-torchrun-restarts", is_flag=True,
    help="torchrun starts no ranks again by itself, whatever PET_MAX_RESTARTS says here; an option "
    "of COMMAND still counts.",
)  # fmt: skip
@option("--follow/--no-follow", default=True, help="Show the worker's output.  [default: follow]")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND…")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    command: tuple[str, ...],
    job: str,
    workers: int | None,
    worker: int | None,
    ranks: int | None,
    nnodes: int,
    node_rank: int,
    master_addr: str,
    master_port: int,
    slots: int | None,
    cwd: Path | None,
    nccl: str,
    nccl_shim: Path | None,
    no_torchrun_restarts: bool,
    follow: bool,
    keep_files: tuple[str, ...],
    copy_limit_bytes: int | None,
    tail_bytes: int | None,
    **node: Any,
) -> int:
    """Start one worker of a job, or one for each rank of this node, and stay beside them.

    COMMAND is what the node would run without allstop, such as torchrun and its arguments. With
    --ranks it is what torchrun would run, such as `python train.py`; every rank is then dumped and
    restored by a CRIU of its own, in parallel. The exit code is the worker's; of several, that of
    the one that failed first.
    """
    place = _place(ranks, nnodes, node_rank, master_addr, master_port)
    if place is None and (workers is None or worker is None):
        raise BadRequest(
            "which worker is this?", advice="give --workers and --worker, or --ranks alone"
        )
    if place is not None and _typed(ctx, "workers", "worker"):
        raise BadRequest(
            "--ranks numbers the workers itself",
            advice="leave --workers and --worker out; --nnodes and --node-rank place this node",
        )
    if workers is not None and worker is not None and worker >= workers:
        raise BadRequest(
            f"--worker {worker} of --workers {workers}", advice="workers are numbered from 0"
        )
    node = _merged(ctx, node)
    spec = {
        "job": job,
        "worker": worker or 0,
        "workers": workers or 1,
        "argv": command,
        "env": _environment(node["store_key"]) | (NO_RESTARTS if no_torchrun_restarts else {}),
        "follow": follow,
        "nccl": nccl,
        "keeping": Keeping(
            rules=tuple(map(parse_rule, keep_files)),
            **_given(copy_limit_bytes=copy_limit_bytes, tail_bytes=tail_bytes),
        ),
        **_given(slots=slots, cwd=cwd, nccl_shim=nccl_shim),
    }
    return start(ctx.ensure_object(Output), node, spec, place)


def _place(
    ranks: int | None, nnodes: int, node_rank: int, master_addr: str, master_port: int
) -> dict[str, Any] | None:
    """Where the ranks of this node stand in the job; None: it has one worker."""
    if ranks is None:
        return None
    if node_rank >= nnodes:
        raise BadRequest(
            f"--node-rank {node_rank} of --nnodes {nnodes}", advice="nodes are numbered from 0"
        )
    if nnodes > 1 and master_addr in LOOPBACK:
        raise BadRequest(
            f"no other node can reach rank 0 at {master_addr}",
            advice="give the address of node 0 by --master-addr",
        )
    return {
        "here": ranks,
        "nodes": nnodes,
        "node": node_rank,
        "master_addr": master_addr,
        "master_port": master_port,
    }


def _typed(ctx: click.Context, *names: str) -> bool:
    """Whether one of these stands on the command line; a file may have them for other verbs."""
    return any(rank(ctx, name) == RANKS[ParameterSource.COMMANDLINE] for name in names)


def _environment(store_key: str) -> dict[str, str]:
    """What the worker gets of this environment: all but the key of the store."""
    from worker_shim.images.keys import secret_variable

    secret = secret_variable(store_key)
    return {name: value for name, value in os.environ.items() if name != secret}


def _merged(ctx: click.Context, node: dict[str, Any]) -> dict[str, Any]:
    """Of options before and after `run` a flag wins, and of two flags the one after it."""
    before = ctx.parent
    if before is None:
        return node
    return {
        name: value if rank(ctx, name) >= rank(before, name) else before.params[name]
        for name, value in node.items()
    }


def _given(**values: Any) -> dict[str, Any]:
    """Those that were given; the others keep the defaults of the shim."""
    return {name: value for name, value in values.items() if value is not None}


def shim_options(output: Output, node: dict[str, Any]) -> ShimOptions:
    """The options of the shim from those of the command line."""
    import socket

    from coordinator.link.security import channel_credentials
    from worker_shim.agent.options import ShimOptions

    name = node["node"] or socket.gethostname()
    return ShimOptions(
        node=name,
        coordinators=output.safe_addresses,
        credentials=channel_credentials(output.tls),
        server_name=output.tls.server_name,
        store=where_of(output, name, node),
        address=node["address"],
        metrics=node["metrics"],
        dcgm_url=node["dcgm_url"],
        gpu_engine=node["gpu_engine"],
        **_given(
            staging_dir=node["staging"] and node["staging"].absolute(),
            run_dir=node["run_dir"] and node["run_dir"].absolute(),
            state_dir=node["node_state"] and node["node_state"].absolute(),
            criu=node["criu"],
            criu_at_once=node["criu_at_once"],
            linger_s=node["linger_s"],
            persist_bytes_per_s=node["persist_rate"],
            persist_cpu=node["persist_cpu"],
            persist_verify=node["persist_verify"],
            keep_images=node["keep_images"],
            on_term=node["on_term"],
            term_grace_s=node["term_grace_s"],
            term_code=node["term_code"],
            save_grace_s=node["save_grace_s"],
            preemption=node["preemption"],
            preemption_url=node["preemption_url"],
            until_worker_ends=node.get("until_worker_ends"),
        ),
    )


def start(
    output: Output,
    node: dict[str, Any],
    worker: dict[str, Any] | None,
    ranks: dict[str, Any] | None = None,
) -> int:
    """Run the shim until it ends and return its exit code; with `ranks` one worker for each.

    On a machine that is no container the command begins again in a pid namespace of its own:
    every pid of an image must be free for a restore. Raises SetupError when that is not allowed.
    """
    from worker_shim.process.namespace import enter_own_pid_namespace, in_initial_pid_namespace

    if in_initial_pid_namespace():
        # -P: a `coordinator` directory in the user's own directory is not us. This must come
        # before gRPC is imported, which starts threads.
        again = [sys.executable, "-P", "-m", "coordinator.cli.main", *output.arguments]
        enter_own_pid_namespace(again)

    from worker_shim.agent.options import WorkerSpec
    from worker_shim.agent.ranks import Ranks, rank_specs
    from worker_shim.agent.run import run_shim

    options = shim_options(output, node)
    specs: tuple[WorkerSpec, ...] = () if worker is None else (WorkerSpec(**worker),)
    if ranks is not None:
        specs = rank_specs(Ranks(**ranks), specs[0], options.run_dir)
    ended: int = asyncio.run(run_shim(options, specs))
    return ended
