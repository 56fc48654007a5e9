"""Sizes as people write them, and what is kept of files."""

from __future__ import annotations

import re

import click

from coordinator.core.errors import BadRequest

SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgtp]?)(i?)(?:b(?:/s)?)?", re.IGNORECASE)
SIZE_BYTES_MAX = 1 << 60


def parse_size(text: str, least: int = 1) -> int:
    """Bytes of `1TiB`, `500GB`, `2g` or of a bare number; raises BadRequest for anything else."""
    found = SIZE.fullmatch(text.strip().replace(" ", ""))
    if found is None or (found[3] and not found[2]):
        raise BadRequest(f"{text!r} is no size", advice="write it like 64KiB, 500MB or 1TiB")
    number, unit, binary = found.groups()
    power = " kmgtp".index(unit.lower() or " ")
    size = float(number) * (1024 if binary else 1000) ** power
    if not least <= size <= SIZE_BYTES_MAX:
        raise BadRequest(f"a size of {text!r} makes no sense", advice="write it like 500GB or 1TiB")
    return int(size)


class Size(click.ParamType[int]):
    """A size on the command line; the value is in bytes."""

    name = "size"

    def __init__(self, least: int = 1) -> None:
        """Refuse what is below `least` bytes."""
        self._least = least

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Take a number as it is, parse everything else."""
        if isinstance(value, int):
            return value
        try:
            return parse_size(str(value), self._least)
        except BadRequest as error:
            self.fail(f"{error.what}. {error.advice}".rstrip(), param, ctx)


class KeepRule(click.ParamType[str]):
    """`none`, `tail` or `copy`, and perhaps `:PATHS`; the value is the text, looked through."""

    name = "keep"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Fail where nobody would understand it."""
        from worker_shim.files.keeping import parse_rule

        try:
            parse_rule(str(value))
        except BadRequest as error:
            self.fail(f"{error.what}: {error.advice}", param, ctx)
        return str(value)
