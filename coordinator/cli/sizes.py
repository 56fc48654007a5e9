"""Sizes as people write them, and what is kept of files."""

from __future__ import annotations

import re

import click

from coordinator.core.errors import BadRequest

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
SIZE_BYTES_MAX = 1 << 60


def parse_size(text: str) -> int:
    """Bytes of `8GiB`, `500 MB`, or of a bare number of bytes; raises BadRequest for other text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]*)", text.strip().lower().replace(" ", ""))
    if not found or found.group(2) not in UNITS:
        raise BadRequest(f"{text!r} is no size", advice="write it like 64KiB, 500MB or 8GiB")
    size = int(float(found.group(1)) * UNITS[found.group(2)])
    if size > SIZE_BYTES_MAX:
        raise BadRequest(f"size {text!r} is above an exbibyte")
    return size


class ByteSize(click.ParamType[int]):
    """A size on the command line; the value is in bytes."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Take a number as it is, parse everything else."""
        if isinstance(value, int):
            return value
        try:
            return parse_size(str(value))
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
