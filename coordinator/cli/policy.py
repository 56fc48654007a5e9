"""`allstop policy JOB`"""

from __future__ import annotations

from typing import Any

import click

from coordinator.cli.config_file import config_option
from coordinator.cli.durations import Duration
from coordinator.cli.options import asking, job_argument, option
from coordinator.cli.output import Output, plain
from coordinator.cli.verb import ASKING, verb
from coordinator.core.errors import BadRequest


class Share(click.ParamType[float]):
    """A percentage on the command line; the value is a share of one."""

    name = "percentage"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Take a float as it is, and `2%` or `2` for a fiftieth."""
        if isinstance(value, float):
            return value
        try:
            share = float(str(value).strip().removesuffix("%")) / 100
        except ValueError:
            self.fail(f"{value!r} is no percentage, such as 2%", param, ctx)
        if not 0 < share < 1:
            self.fail(f"{value!r} must be above 0 and below 100", param, ctx)
        return share


@verb(
    examples=(
        "allstop policy llm",
        "allstop policy llm --every 10m",
        "allstop policy llm --every-steps 500",
        "allstop policy llm --auto --mtbf 12h --budget 2%",
        "allstop policy llm --explain",
        "allstop policy llm --off",
    ),
    exits=(*ASKING, 4, 12),
)
@job_argument
@option("--every", type=Duration(), metavar="DURATION", help="From one checkpoint to the next.")
@option("--every-steps", type=click.IntRange(1), metavar="STEPS", help="The same, in steps.")
@option(
    "--auto",
    is_flag=True,
    help="By Daly's formula, from what a checkpoint costs and how often the job fails.",
)
@option("--off", is_flag=True, help="Only when somebody asks for one.")
@option(
    "--mtbf",
    type=Duration(),
    metavar="DURATION",
    help="auto: expected time between failures of the job; counts less the more are seen.",
)
@option(
    "--budget",
    type=Share(),
    metavar="PERCENT",
    help="auto: share of the job's time that checkpoints may take at the most.",
)
@option(
    "--least", type=Duration(), metavar="DURATION", help="auto: never more often.  [default: 1m]"
)
@option(
    "--most", type=Duration(), metavar="DURATION", help="auto: never more seldom.  [default: 1d]"
)
@option(
    "--cut",
    type=click.Choice(["step", "freeze"]),
    help="How the ranks come to rest, as of `allstop checkpoint`.  [default: step]",
)
@option("--explain", is_flag=True, help="Print the numbers behind the present interval.")
@config_option
@asking
@click.pass_obj
def policy(output: Output, /, job: str, explain: bool, **wanted: Any) -> None:
    """Show, or set, when JOB is saved by itself; it counts at once, also while the job runs.

    Options that set something replace the whole policy: what is not named has its default.
    """
    from coordinator.cli.asking import ask
    from coordinator.cli.policies import policy_view

    asked = _asked(job, wanted)
    if asked is None:
        reply = ask(output, lambda client: client.policy(job))
    else:
        reply = ask(output, lambda client: client.set_policy(asked))
    output.emit(plain(reply), lambda: policy_view(reply, explain=explain))


def _asked(job: str, wanted: dict[str, Any]) -> Any:
    """The policy that the options make; None where they set nothing. Raises BadRequest."""
    from coordinator.core.job_policy import JobPolicy, When, check
    from coordinator.core.model import Cut

    whens = {
        When.SECONDS: wanted["every"],
        When.STEPS: wanted["every_steps"],
        When.AUTO: wanted["auto"],
        When.NEVER: wanted["off"],
    }
    chosen = [when for when, value in whens.items() if value]
    others = {name for name in ("mtbf", "budget", "least", "most", "cut") if wanted[name]}
    if not chosen and not others:
        return None
    if len(chosen) != 1:
        raise BadRequest(
            "say once when the job is to be saved",
            advice="give one of --every, --every-steps, --auto and --off",
        )
    when = chosen[0]
    if when is not When.AUTO and others - {"cut"}:
        named = ", ".join(f"--{name}" for name in sorted(others - {"cut"}))
        raise BadRequest(f"{named} means nothing without --auto", advice="leave it out")
    default = JobPolicy(job)
    return check(
        JobPolicy(
            job=job,
            when=when,
            cut=Cut(wanted["cut"] or Cut.STEP),
            interval_s=wanted["every"] or 0.0,
            interval_steps=wanted["every_steps"] or 0,
            mtbf_s=wanted["mtbf"] or 0.0,
            budget=wanted["budget"] or 0.0,
            least_s=wanted["least"] or default.least_s,
            most_s=wanted["most"] or default.most_s,
        )
    )
