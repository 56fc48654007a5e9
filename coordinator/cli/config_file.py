"""`--config FILE`: options of a verb from a TOML file, each under its long name.

    listen = ["10.0.0.1:7411"]
    etcd = ["https://etcd-0:2379", "https://etcd-1:2379"]
    lease = "10s"

    [policy]
    dump_s = "90s"

The command line wins over the environment, and that over the file. A file that cannot be read or
holds anything that the verb does not know is refused before anything is started.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from coordinator.core.errors import BadRequest

Function = TypeVar("Function", bound=Callable[..., Any])

FILE_BYTES_MAX = 1 << 20
# What of two values of one option counts, where the option may stand before and after a verb.
RANKS = {
    ParameterSource.COMMANDLINE: 3,
    ParameterSource.ENVIRONMENT: 2,
    ParameterSource.DEFAULT_MAP: 1,
}


def config_option(function: Function) -> Function:
    """The option `--config` for a verb; it is read before all others."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="ALLSTOP_CONFIG",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_take,
        help="Options from a TOML file, by their long names; flags and environment win over it.",
    )(function)


def rank(ctx: click.Context, name: str) -> int:
    """How much the value of an option counts: flag, environment, file, default."""
    source = ctx.get_parameter_source(name)
    return RANKS.get(source, 0) if source is not None else 0


def _take(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Make the file's values the verb's defaults; those of a verb below it go to that one."""
    if path is None:
        return
    found = options_of(path, ctx)
    ctx.default_map = {**(ctx.default_map or {}), **found}


@dataclass(frozen=True)
class KeyProblem:
    """What is wrong with one key of a file."""

    key: str
    what: str
    advice: str = ""
    unknown: bool = False


def options_of(path: Path, ctx: click.Context) -> dict[str, Any]:
    """What the file says, as click wants it: by parameter, verbs below this one as a map each.

    Raises BadRequest naming the file, the key, and what is expected there.
    """
    found, wrong = read_options(path, ctx)
    for first in wrong:
        raise BadRequest(f"{path}: {first.key}: {first.what}"[:1000], advice=first.advice)
    return found


def read_options(path: Path, ctx: click.Context) -> tuple[dict[str, Any], list[KeyProblem]]:
    """The same, with everything that is wrong; raises BadRequest for a file that cannot be read."""
    table = _read(path)
    own = _by_key(ctx.command)
    below = _below(ctx.command)
    known = sorted({*own, *(key for options in below.values() for key in options)})
    found: dict[str, Any] = {}
    wrong: list[KeyProblem] = []
    for key, value in table.items():
        takers = [(name, options[key]) for name, options in below.items() if key in options]
        if key not in own and not takers:
            wrong.append(_unknown(key, known))
            continue
        try:
            if key in own:
                found[own[key].name or ""] = _checked(key, value, own[key], ctx)
            for name, option in takers:
                found.setdefault(name, {})[option.name] = _checked(key, value, option, ctx)
        except _Wrong as error:
            wrong.append(error.problem)
    return found, wrong


def typed_values(found: dict[str, Any], ctx: click.Context) -> dict[str, Any]:
    """The values of `read_options` as the verb gets them, by parameter; verbs below it included."""
    values: dict[str, Any] = {}
    commands = [ctx.command]
    if isinstance(ctx.command, click.Group):
        commands += ctx.command.commands.values()
    for command in commands:
        given = found if command is ctx.command else found.get(command.name or "", {})
        for param in command.params:
            if param.name in given:
                typed = param.process_value if param.expose_value else param.type_cast_value
                values[param.name] = typed(ctx, given[param.name])
    return values


def _read(path: Path) -> dict[str, Any]:
    advice = '--config names a TOML file, such as: listen = ["10.0.0.1:7411"]'
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadRequest(f"cannot read {path}: {why}", advice=advice) from None
    if len(data) > FILE_BYTES_MAX:
        raise BadRequest(f"{path} has more than {FILE_BYTES_MAX} bytes", advice=advice)
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # also of the decoding
        raise BadRequest(f"{path} is not TOML: {error}", advice=advice) from None


def _by_key(command: click.Command) -> dict[str, click.Option]:
    """Options of a verb by their long names, without those that a file cannot give."""
    return {
        key: each
        for each in command.params
        if isinstance(each, click.Option) and not each.is_eager
        for key in keys_of(each)
    }


def keys_of(option: click.Option) -> list[str]:
    """The keys under which a file gives an option: its long names."""
    return [name.removeprefix("--") for name in option.opts if name.startswith("--")]


def _below(command: click.Command) -> dict[str, dict[str, click.Option]]:
    """The same for the verbs below a verb."""
    if not isinstance(command, click.Group):
        return {}
    return {name: _by_key(each) for name, each in command.commands.items()}


def _checked(key: str, value: Any, option: click.Option, ctx: click.Context) -> Any:
    """A value in the form that click takes; raises _Wrong when the option does not take it."""
    if isinstance(value, dict) and option.multiple:  # [policy]: NAME = VALUE
        value = [f"{name}={_text(f'{key}.{name}', each)}" for name, each in value.items()]
    if option.is_flag:
        if not isinstance(value, bool):
            raise _Wrong(key, f"expected true or false, not {value!r}")
        return value
    if option.multiple:
        given = value if isinstance(value, list) else [value]
        texts: Any = tuple(_text(key, each) for each in given)
    else:
        texts = _text(key, value)
    try:
        # A callback without a value of its own keeps what it is given, which is not for now.
        (option.process_value if option.expose_value else option.type_cast_value)(ctx, texts)
    except click.UsageError as error:
        raise _Wrong(key, error.message.rstrip(".")) from None
    except BadRequest as error:
        raise _Wrong(key, error.what) from None
    return texts


def _text(key: str, value: Any) -> str:
    """A text or a number as it would stand on the command line."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _Wrong(key, f"expected a text or a number, not {value!r}")
    return str(value)


class _Wrong(Exception):
    """A value that an option does not take."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.problem = KeyProblem(key[:100], what)


def _unknown(key: str, known: list[str]) -> KeyProblem:
    near = difflib.get_close_matches(key, known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    return KeyProblem(key[:100], "there is no such option", advice, unknown=True)
