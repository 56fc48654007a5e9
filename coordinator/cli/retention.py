"""`allstop retention JOB`"""

from __future__ import annotations

import click

from coordinator.cli.durations import Duration
from coordinator.cli.options import asking, job_argument, option
from coordinator.cli.output import Output
from coordinator.cli.sizes import Size
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop retention llm",
        "allstop retention llm --keep-last 5 --keep-for 7d",
        "allstop retention llm --keep-last 20 --keep-bytes 1TiB",
        "allstop retention llm --off",
    ),
    exits=(*ASKING, 4, 12),
)
@job_argument
@option(
    "--keep-last", type=click.IntRange(min=1), default=None, metavar="N",
    help="So many of the newest stay.",
)  # fmt: skip
@option(
    "--keep-for", "keep_for_s", type=Duration(), default=None, metavar="DURATION",
    help="Those younger stay, such as 36h or 7d.",
)  # fmt: skip
@option(
    "--keep-bytes", type=Size(), default=None, metavar="SIZE",
    help="Beyond so many stored bytes the oldest go, such as 1TiB, whatever keeps them.",
)  # fmt: skip
@option("--off", is_flag=True, help="Every snapshot stays from now on.")
@asking
@click.pass_obj
def retention(
    output: Output,
    job: str,
    keep_last: int | None,
    keep_for_s: float | None,
    keep_bytes: int | None,
    off: bool,
) -> None:
    """Say which snapshots of JOB stay; without options show it.

    Options given take the place of all that were said before. A snapshot stays where either
    --keep-last or --keep-for keeps it. The newest and pinned ones always stay. The others are
    deleted after each checkpoint, and now and then.
    """
    from rich.text import Text

    from coordinator.cli.asking import ask
    from coordinator.core.kept import Retention
    from coordinator.core.retention import told

    rules = Retention(keep_last or 0, keep_for_s or 0.0, keep_bytes or 0)
    if off and rules != Retention():
        raise click.UsageError("--off and rules exclude each other")
    change = off or rules != Retention()
    retained = ask(
        output,
        lambda client: (
            client.set_retention(job, None if off else rules) if change else client.retention(job)
        ),
    )
    goes = [f"\n  goes: {each.snapshot}: {each.why}" for each in retained.going]
    output.emit(retained, lambda: Text(f"{job}: {told(retained.retention)}{''.join(goes)}"))
