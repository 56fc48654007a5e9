"""The `allstop` command: finds the verb, runs it, and turns its end into words and an exit code.

Verbs are imported only when they are run, so that `allstop --help` answers at once.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence

import click

from coordinator.cli.exits import EXIT_CODES, INTERRUPTED
from coordinator.cli.options import connection, output_option
from coordinator.cli.output import Output
from coordinator.cli.verb import VerbGroup
from coordinator.core.errors import AllstopError, BugError

# verb -> (section of the help, one line for it)
VERBS = {
    "up": ("Run", "Control plane for one machine: coordinator with an etcd of its own."),
    "coordinator": ("Run", "A coordinator replica over an existing etcd."),
    "shim": ("Run", "The sidecar of a node: a spare, or (`shim run`) with a worker."),
    "checkpoint": ("Checkpoint and restore", "Stop all ranks at one step and save them as one."),
    "policy": ("Checkpoint and restore", "When a job is saved by itself, and why then."),
    "story": ("Look", "What was done for a job by itself, and why."),
    "plan": ("Checkpoint and restore", "Which node would take which worker, or why none can."),
    "restore": ("Checkpoint and restore", "Put a snapshot back, on other nodes if need be."),
    "watch": ("Checkpoint and restore", "Follow a checkpoint or restore that someone began."),
    "abort": ("Checkpoint and restore", "Give up a running checkpoint or restore."),
    "drain": (
        "Checkpoint and restore",
        "Empty a node: its jobs are moved to others, no step lost.",
    ),
    "undrain": ("Checkpoint and restore", "Let a drained node take workers again."),
    "retention": ("Keep", "Which snapshots of a job stay, and which go by themselves."),
    "pin": ("Keep", "Keep a snapshot whatever the retention says."),
    "unpin": ("Keep", "Let the retention decide about a snapshot again."),
    "delete": ("Keep", "Delete snapshots; what others share with them stays."),
    "gc": ("Keep", "Remove what checkpoints that were given up have left in the stores."),
    "verify": ("Keep", "Read all of a snapshot again, and name what is broken."),
    "jobs": ("Look", "All jobs: state, step, newest snapshot."),
    "nodes": ("Look", "All nodes: state, workers, what they have."),
    "snapshots": ("Look", "A job's snapshots, the newest first."),
    "show": ("Look", "All that is known of one snapshot, checkpoint or restore."),
    "inspect": ("Look", "What a snapshot holds: processes, memory, sockets, files, GPUs."),
    "diff": ("Look", "What changed from one snapshot to another."),
    "export": ("Look", "A tar per worker that checkpointctl and podman's tools read."),
    "top": ("Look", "All jobs and what runs of them, as it changes."),
    "logs": ("Look", "What the workers of a job have put out, wherever they are."),
    "trace": ("Look", "Where the time of a checkpoint or restore went, as a waterfall."),
    "hook": ("Run", "Bridges from others that tell of nodes to be emptied: NVSentinel."),
    "certs": ("Run", "An authority of your own, and certificates with roles."),
    "config": ("Try", "Check a file of options; show which count, and where each comes from."),
    "doctor": ("Try", "What a shim would miss on this machine, line by line."),
    "completion": ("Try", "Completion of verbs and options for your shell."),
    "bench": ("Try", "Measure what it costs on this machine, beside the floor."),
    "demo": ("Try", "A real two-node job is saved, loses a node, and comes back bit-exact."),
}


def module_of(verb: str) -> str:
    """Where a verb lives."""
    return f"coordinator.cli.{verb}"


class Verbs(VerbGroup):
    """A group that knows its verbs by name and imports each when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verb in VERBS if importlib.util.find_spec(module_of(verb))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS or importlib.util.find_spec(module_of(cmd_name)) is None:
            return None
        command = getattr(importlib.import_module(module_of(cmd_name)), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for verb in self.list_commands(ctx):
            section, line = VERBS[verb]
            sections.setdefault(section, []).append((verb, line))
        for section, lines in sections.items():
            with formatter.section(section):
                formatter.write_dl(lines)

    def format_codes(self, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])


def print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Answer `--version`; the metadata is read only then."""
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"allstop {version('allstop')}")
        ctx.exit()


@click.group(
    cls=Verbs,
    examples=(
        "allstop jobs",
        "allstop checkpoint llm",
        "allstop restore llm",
        "allstop --coordinator 10.0.0.1:7411 --insecure nodes -o json",
    ),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@connection
@output_option
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=print_version,
    help="Show the version and exit.",
)  # fmt: skip
def allstop() -> None:
    """Stop every rank of a training job at one step, save all of them as one snapshot, and put it
    back, on other machines if need be.

    Data goes to stdout, everything for people to stderr. `allstop VERB --help` has the rest.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `allstop` and return its exit code; never raises except for a second Ctrl-C."""
    output = Output(arguments)
    try:
        ended = allstop.main(args=arguments, standalone_mode=False, obj=output, prog_name="allstop")
    except AllstopError as error:
        output.error(error)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        output.note("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone; nothing is left to flush into
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        bug = BugError(
            f"unexpected {type(error).__name__}: {error}",
            advice="this is a defect of allstop; please report the lines above",
            definite=False,
        )
        output.note(traceback.format_exc().rstrip())
        output.error(bug)
        return bug.exit_code
    return ended if isinstance(ended, int) else 0


if __name__ == "__main__":
    sys.exit(main())
