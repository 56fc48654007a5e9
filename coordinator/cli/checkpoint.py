"""`allstop checkpoint JOB`"""

from __future__ import annotations

import click

from coordinator.cli.durations import PhaseDuration
from coordinator.cli.options import asking, deadline_option, job_argument, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop checkpoint llm",
        "allstop checkpoint llm --deadline 2m --phase-deadline park=30s",
        "allstop checkpoint llm --cut freeze --stop",
        "allstop checkpoint llm --detach -o json",
    ),
    exits=(*ASKING, 4, 3, 5, 7, 8, 12, 130),
)
@job_argument
@option(
    "--cut",
    type=click.Choice(["step", "freeze"]),
    default="step",
    show_default=True,
    help="step: all ranks stop at one training step. freeze: wherever they are, for programs "
    "whose only channels are TCP.",
)
@option("--stop", is_flag=True, help="End the job once the snapshot is committed.")
@option(
    "--wait/--detach",
    default=True,
    help="Follow it to its end, or say its id as soon as it has begun.  [default: wait]",
)
@deadline_option
@option(
    "--phase-deadline",
    "phase_deadlines_s",
    type=PhaseDuration(),
    multiple=True,
    metavar="PHASE=DURATION",
    help="For one phase, such as dump=60s; may be repeated: hold, park, gpu_lock, gpu_save, dump, "
    "persist.  [default: the coordinator's policy]",
)
@asking
@click.pass_obj
def checkpoint(
    output: Output,
    job: str,
    cut: str,
    stop: bool,
    wait: bool,
    deadline_s: float,
    phase_deadlines_s: tuple[tuple[str, float], ...],
) -> int:
    """Stop all ranks of JOB, save them as one snapshot, and let the job run on.

    Ctrl-C leaves the checkpoint running; `allstop abort` undoes it.
    """
    from coordinator.cli.follow import follow
    from coordinator.core.model import Cut, Phase

    return follow(
        output,
        lambda client: client.checkpoint(
            job,
            cut=Cut(cut),
            stop=stop,
            deadline_s=deadline_s,
            phase_deadlines_s={Phase(phase): seconds for phase, seconds in phase_deadlines_s},
        ),
        deadline_s=deadline_s,
        to_the_end=wait,
    )
