"""`allstop plan JOB`"""

from __future__ import annotations

import click

from coordinator.cli.options import (
    asking,
    job_argument,
    mismatch_options,
    option,
    snapshot_option,
)
from coordinator.cli.output import Output, plain
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop plan llm",
        "allstop plan llm --explain",
        "allstop plan llm --snapshot llm-20261129-214424-579caf -o json",
    ),
    exits=(*ASKING, 4, 6, 12),
)
@job_argument
@snapshot_option
@option(
    "--explain",
    is_flag=True,
    help="Name every node that fits too, and say why another one was chosen.",
)
@mismatch_options
@asking
@click.pass_obj
def plan(
    output: Output,
    job: str,
    snapshot: str,
    explain: bool,
    on_mismatch: str,
    old_addresses: str,
) -> int:
    """Say which node would take which worker of JOB, without doing it.

    When no set of nodes fits, every reason for every node is printed and the exit code is 6.
    """
    from coordinator.cli.asking import ask
    from coordinator.cli.tables import not_restored_lines, plan_view, reasons_lines
    from coordinator.core.errors import BugError
    from coordinator.core.failures import error_of
    from coordinator.core.model import OldAddresses

    answer = ask(
        output,
        lambda client: client.plan(
            job,
            snapshot,
            explain=explain,
            cold_start=on_mismatch == "cold-start",
            old_addresses=OldAddresses(old_addresses),
        ),
    )
    restore_refused = (
        {"restore_refused": plain(answer.restore_refused)} if answer.restore_refused else {}
    )
    if answer.failure is not None:
        error = error_of(answer.failure)
        error.details = error.details or tuple(reasons_lines(answer.refused))
        error.details += tuple(not_restored_lines(answer.restore_refused))
        output.error(error, refused=plain(answer.refused), **restore_refused)
        return error.exit_code
    if answer.plan is None:
        raise BugError("the coordinator answered with neither a plan nor a refusal")
    chosen = answer.plan
    output.emit(
        {
            "plan": plain(chosen),
            "refused": plain(answer.refused),
            "unseen": answer.unseen,
            **({"fits": plain(answer.fits)} if explain else {}),
            **restore_refused,
        },
        lambda: plan_view(answer, chosen),
    )
    return 0
