"""Options of a shim about what tells it that its node goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from coordinator.cli.durations import Duration
from coordinator.cli.options import option

Function = TypeVar("Function", bound=Callable[..., Any])

ON_TERM = ("end", "drain", "stop")  # as in worker_shim/agent/notices
CLOUDS = ("aws", "azure", "gcp")  # as in worker_shim/preemption/opening


def notice_options(function: Function) -> Function:
    """What SIGTERM asks for, and which cloud is watched."""
    for add in reversed(
        (
            option(
                "--on-term", type=click.Choice(ON_TERM), default="end", show_default=True,
                help="SIGTERM: end at once, or first have the node drained, as by `allstop drain`, "
                "or its jobs saved and stopped.",
            ),
            option(
                "--term-grace", "term_grace_s", type=Duration(), metavar="DURATION",
                help="With --on-term drain or stop: the time there is for that.  [default: 120s]",
            ),
            option(
                "--term-code", type=click.IntRange(0, 255), default=0, show_default=True,
                help="Exit code after a SIGTERM that has lost nothing: its jobs were stopped, "
                "or it had none. Not 0 in a Job of Kubernetes, where 0 means completed.",
            ),
            option(
                "--save-grace", "save_grace_s", type=Duration(), metavar="DURATION",
                help="SIGUSR1: the time there is for the checkpoints that it asks for.  "
                "[default: no limit]",
            ),
            option(
                "--preemption", type=click.Choice(CLOUDS),
                help="Watch this cloud's notices that the machine goes, and have it drained then.",
            ),
            option(
                "--preemption-url", metavar="URL",
                help="Of the metadata service with these.  [default: where the cloud has it]",
            ),
        )
    ):  # fmt: skip
        function = add(function)
    return function
