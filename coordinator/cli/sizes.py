"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

import click

from coordinator.core.errors import BadRequest

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(?:b(?:/s)?)?", re.IGNORECASE)
SIZE_MAX = 1 << 60


def parse_size(text: str) -> float:
    """Bytes of `200M`, `1.5GiB` or a bare number; raises BadRequest for anything else, and zero."""
    found = SIZE.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        raise BadRequest(f"{text!r} is no number of bytes", advice="write it like 200M or 1.5GiB")
    units = BINARY if found[3] else UNITS
    size = float(found[1]) * units[found[2].lower()]
    if not 0 < size <= SIZE_MAX:
        raise BadRequest(f"{text!r} must be above zero bytes, and not above 1 EiB")
    return size


class Size(click.ParamType[float]):
    """A number of bytes on the command line."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Take a float as it is, parse everything else."""
        if isinstance(value, float):
            return value
        try:
            return parse_size(str(value))
        except BadRequest as error:
            self.fail(f"{error.what}. {error.advice}".rstrip(), param, ctx)
