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
        "allstop policy llm --every 10m --budget 5%",
        "allstop policy llm --every-steps 500",
        "allstop policy llm --auto --mtbf 12h --budget 2%",
        "allstop policy llm --explain",
        "allstop policy llm --every 10m --on-failure restore --wait 1h --hung 20",
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
    help="Share of the job's time that checkpoints may take at the most; wins over the interval.",
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
@option(
    "--on-failure",
    type=click.Choice(["leave", "restore"]),
    help="When its run ends that should not have: nothing, or its last good snapshot.  "
    "[default: leave]",
)
@option(
    "--tries",
    type=click.IntRange(1, 100),
    metavar="TIMES",
    help="Restores of one snapshot that fail, or crashes at one step, before an older one is "
    "tried.  [default: 3]",
)
@option(
    "--grace",
    type=Duration(),
    metavar="DURATION",
    help="For a node that is out of reach to come back.  [default: 5s]",
)
@option(
    "--wait",
    type=Duration(),
    metavar="DURATION",
    help="For nodes that can take the job.  [default: 10m]",
)
@option(
    "--hung",
    type=click.FloatRange(2.0),
    metavar="STEPS",
    help="No step of a rank for so many usual ones, and half a minute, is a failure, unless a rank "
    "has said that it takes none.  [default: never]",
)
@option(
    "--last-resort",
    type=click.Choice(["stop", "cold-start"]),
    help="When no snapshot can be restored: end what is left, or start its commands from "
    "scratch, as its last snapshot has them; without any it ends.  [default: stop]",
)
@option("--explain", is_flag=True, help="Print the numbers behind the present interval.")
@config_option
@asking
@click.pass_obj
def policy(output: Output, /, job: str, explain: bool, **wanted: Any) -> None:
    """Show, or set, when JOB is saved by itself and what is done when it fails.

    It counts at once, also while the job runs.

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


SCHEDULES = ("mtbf", "least", "most")  # mean something with --auto alone
FAILURES = ("tries", "grace", "wait", "hung", "last_resort")  # and with --on-failure restore


def _asked(job: str, wanted: dict[str, Any]) -> Any:
    """The policy that the options make; None where they set nothing. Raises BadRequest."""
    from coordinator.core.job_policy import JobPolicy, LastResort, OnFailure, When, check
    from coordinator.core.model import Cut

    given = {name: value for name, value in wanted.items() if value}
    if not given:
        return None
    when = _when(given)
    if when is not When.AUTO:
        _mean_nothing(given, SCHEDULES, "--auto")
    if when is When.NEVER:
        _mean_nothing(given, ("budget",), "--every, --every-steps or --auto")
    on_failure = OnFailure(given.get("on_failure", OnFailure.LEAVE))
    if on_failure is OnFailure.LEAVE:
        _mean_nothing(given, FAILURES, "--on-failure restore")
    chosen = {
        field: given[name]
        for name, field in (
            ("every", "interval_s"),
            ("every_steps", "interval_steps"),
            ("mtbf", "mtbf_s"),
            ("budget", "budget"),
            ("least", "least_s"),
            ("most", "most_s"),
            ("tries", "tries"),
            ("grace", "grace_s"),
            ("wait", "wait_s"),
            ("hung", "hung"),
        )
        if name in given
    }
    return check(
        JobPolicy(
            job=job,
            when=when,
            cut=Cut(given.get("cut", Cut.STEP)),
            on_failure=on_failure,
            last_resort=LastResort(given.get("last_resort", "stop").replace("-", "_")),
            **chosen,
        )
    )


def _when(given: dict[str, Any]) -> Any:
    from coordinator.core.job_policy import When

    whens = {
        "every": When.SECONDS,
        "every_steps": When.STEPS,
        "auto": When.AUTO,
        "off": When.NEVER,
    }
    chosen = [when for name, when in whens.items() if name in given]
    if len(chosen) != 1:
        raise BadRequest(
            "say once when the job is to be saved",
            advice="give one of --every, --every-steps, --auto and --off",
        )
    return chosen[0]


def _mean_nothing(given: dict[str, Any], names: tuple[str, ...], without: str) -> None:
    named = ", ".join(f"--{name.replace('_', '-')}" for name in names if name in given)
    if named:
        raise BadRequest(f"{named} means nothing without {without}", advice="leave it out")
