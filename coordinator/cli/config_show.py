"""Which options a verb would run with, and where each comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import click
from click.core import ParameterSource

from coordinator.cli.config_file import keys_of
from coordinator.cli.output import Output
from coordinator.core.errors import BadRequest

SOURCES = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
}
DEFAULT_IN_HELP = re.compile(r"\[default: (.*?)\]")


@dataclass(frozen=True)
class Effective:
    """One option as it would count."""

    option: str  # its long name
    value: Any  # as it would be written; a list where there may be several
    source: str  # flag, environment, file, default
    place: str  # the variable or the file; empty: neither


def effective(
    role: str, command: click.Command, words: Sequence[str], output: Output
) -> list[Effective]:
    """Each option of the verb (with `run` first among the words, of that) as it would count.

    Raises BadRequest and click.UsageError for words or values that the verb does not take.
    """
    below = command.commands if isinstance(command, click.Group) else {}
    if words and words[0] in below:
        command, words = below[words[0]], words[1:]
    ctx = click.Context(command, info_name=role, obj=output)
    parser = command.make_parser(ctx)
    parser.allow_interspersed_args = False  # what follows the first word is the worker's
    given, rest, _ = parser.parse_args(list(words))
    stray = [each for each in rest if not below and not _takes_words(command)]
    if stray:
        raise BadRequest(f"{stray[0]!r} is no option", advice=f"allstop {role} --help")
    options = [each for each in command.params if isinstance(each, click.Option)]
    path = _file_of(next((each for each in options if each.name == "config"), None), ctx, given)
    return [
        _effective(each, ctx, given, path)
        for each in options
        if each.name not in ("help", "config")
    ]


def _takes_words(command: click.Command) -> bool:
    return any(isinstance(each, click.Argument) for each in command.params)


def _file_of(option: click.Option | None, ctx: click.Context, given: dict[str, Any]) -> str:
    """The file of options that counts; its values become the verb's defaults."""
    if option is None:
        return ""
    value, source = option.consume_value(ctx, given)
    if source is ParameterSource.DEFAULT:
        return ""
    path = option.type_cast_value(ctx, value)
    option.process_value(ctx, value)  # its callback reads the file
    return str(path)


def _effective(
    option: click.Option, ctx: click.Context, given: dict[str, Any], path: str
) -> Effective:
    value, source = option.consume_value(ctx, given)
    told = SOURCES.get(source, "default")
    place = {"environment": str(option.envvar), "file": path}.get(told, "")
    if told == "default":
        return Effective(keys_of(option)[0], _default(option, ctx), told, place)
    typed = option.type_cast_value(ctx, value)  # raises for what the verb would not take
    return Effective(keys_of(option)[0], _written(typed if option.is_flag else value), told, place)


def _written(value: Any) -> Any:
    """A value as it would be written."""
    if isinstance(value, (list, tuple)):
        return [_written(each) for each in value]
    return value if isinstance(value, (bool, int, str)) or value is None else str(value)


def _default(option: click.Option, ctx: click.Context) -> Any:
    """The default, or the words of the help where that is found out only at the start."""
    told = DEFAULT_IN_HELP.search(option.help or "")
    if told and not option.is_flag:
        return told.group(1)
    value = option.get_default(ctx)
    known = isinstance(value, (bool, int, float, str, tuple, PurePath))
    return _written(value) if known else [] if option.multiple else None
