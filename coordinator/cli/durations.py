"""Spans of time as people write them."""

from __future__ import annotations

import re

import click

from coordinator.core.errors import BadRequest

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
DURATION_S_MAX = 366 * 86400.0


def parse_duration(text: str) -> float:
    """Seconds of `500ms`, `60s`, `2m`, `1h30m`, or of a bare number of seconds.

    Raises BadRequest for anything else, and for zero, negative or endless spans.
    """
    compact = text.strip().lower().replace(" ", "")
    if re.fullmatch(r"\d+(?:\.\d+)?", compact):
        seconds = float(compact)
    elif compact and not PART.sub("", compact):
        seconds = sum(float(number) * UNITS_S[unit] for number, unit in PART.findall(compact))
    else:
        raise BadRequest(f"{text!r} is no duration", advice="write it like 500ms, 60s, 2m or 1h30m")
    if not 0 < seconds <= DURATION_S_MAX:
        raise BadRequest(f"duration {text!r} must be above zero and at most a year")
    return seconds


class Duration(click.ParamType[float]):
    """A span of time on the command line; the value is in seconds."""

    name = "duration"

    def __init__(self, least_s: float = 0.0, why: str = "") -> None:
        """Refuse spans shorter than `least_s`, and say why."""
        self._least_s, self._why = least_s, why

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Take a float as it is, parse everything else."""
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(str(value))
        except BadRequest as error:
            self.fail(f"{error.what}. {error.advice}".rstrip(), param, ctx)
        if seconds < self._least_s:
            self.fail(f"{value!r} is shorter than {self._least_s:g}s: {self._why}", param, ctx)
        return seconds


class PhaseDuration(click.ParamType[tuple[str, float]]):
    """`PHASE=DURATION` on the command line; the value is the phase's word and seconds."""

    name = "phase=duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Take a pair as it is, parse everything else; the coordinator knows the phases."""
        from coordinator.core.model import Phase

        if isinstance(value, tuple):
            return value
        phase, found, text = str(value).partition("=")
        word = phase.strip().upper().replace("-", "_")
        if not found or word not in Phase.__members__:
            self.fail(f"{value!r} is not PHASE=DURATION, such as dump=60s", param, ctx)
        return word, Duration().convert(text, param, ctx)
