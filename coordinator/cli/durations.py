"""Spans of time and sizes as people write and read them."""

from __future__ import annotations

import re
import time

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

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Take a float as it is, parse everything else."""
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except BadRequest as error:
            self.fail(f"{error.what}. {error.advice}".rstrip(), param, ctx)


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


def duration_text(seconds: float) -> str:
    """A span in two units at most: 38 ms, 4.2 s, 3 m 20 s, 5 h 12 m, 9 d 3 h."""
    if seconds < 0.9995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, big_s, small, small_s in (("m", 60, "s", 1), ("h", 3600, "m", 60)):
        if whole < big_s * (60 if unit == "m" else 24):
            return f"{whole // big_s} {unit} {whole % big_s // small_s} {small}"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def age_text(unix_s: float, now_unix_s: float | None = None) -> str:
    """How long ago something was; a dash when it never was."""
    if unix_s <= 0:
        return "-"
    now = time.time() if now_unix_s is None else now_unix_s
    return duration_text(max(0.0, now - unix_s))


def bytes_text(size: float) -> str:
    """A size in decimal units with three digits: 582 MB, 1.64 GB."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if size >= 99.95 else f"{size:.3g} {units[0]}"
