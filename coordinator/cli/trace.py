"""`allstop trace ID`"""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import asking, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb
from coordinator.core.errors import NotFound, SetupError


@verb(
    examples=(
        "allstop trace llm-20261129-214424-579caf",
        "allstop trace llm-20261129-214424-579caf --html stop.html",
    ),
    exits=(*ASKING, 4, 12),
)
@click.argument("action", metavar="ID")
@option("--all", "everything", is_flag=True, help="Every worker that is kept and what it did.")
@option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the picture as one page that needs nothing else.",
)
@asking
@click.pass_obj
def trace(output: Output, action: str, everything: bool, html: Path | None) -> None:
    """Draw where the time of a checkpoint or restore went: phases, workers, and their ranks.

    The same spans go to an OpenTelemetry collector while it runs, where the coordinator and the
    shims have OTEL_EXPORTER_OTLP_ENDPOINT. Of many workers the slowest are kept.
    """
    from coordinator.cli.asking import ask
    from coordinator.cli.waterfall import waterfall
    from coordinator.telemetry.picture import page_of
    from coordinator.telemetry.spans import trace_of

    shown = ask(output, lambda client: client.show(action))
    record = shown.attempt or shown.restore
    if record is None:
        raise NotFound(f"{action} is no checkpoint and no restore")
    drawn = trace_of(record, shown.timeline)
    if html is not None:
        try:
            html.write_text(page_of(drawn), encoding="utf-8")
        except OSError as error:
            raise SetupError(f"cannot write {html}: {error.strerror}") from None
        output.note(f"written: {html}")
        return
    left_out = shown.timeline.left_out if shown.timeline is not None else 0
    output.emit(drawn, lambda: waterfall(drawn, everything=everything, left_out=left_out))
