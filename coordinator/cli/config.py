"""`allstop config check` and `allstop config show`"""

from __future__ import annotations

import glob
import importlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.options import option, output_option
from coordinator.cli.output import Output
from coordinator.cli.verb import verb_group
from coordinator.core.errors import BadRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from coordinator.cli.config_check import Problem
    from coordinator.cli.config_show import Effective

ROLES = ("up", "coordinator", "shim")
USUAL_FILES = "/etc/allstop/*.toml"


def command_of(role: str) -> click.Command:
    """The verb that takes a file of this role."""
    found = getattr(importlib.import_module(f"coordinator.cli.{role}"), role)
    assert isinstance(found, click.Command)
    return found


@verb_group(
    examples=(
        "allstop config check /etc/allstop/shim.toml",
        "allstop config show coordinator --config /etc/allstop/coordinator.toml",
    )
)
def config() -> None:
    """Look at options before anything is started with them: `--config` files, variables, flags."""


@config.command(
    examples=(
        "allstop config check",
        "allstop config check /etc/allstop/coordinator.toml /etc/allstop/shim.toml",
        "allstop config check --role up mine.toml -o json",
    ),
    exits=(0, 2),
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE…]")
@option(
    "--role",
    type=click.Choice(ROLES),
    help="Who is to take it.  [default: by the file's name and keys]",
)
@output_option
@click.pass_obj
def check(output: Output, files: tuple[Path, ...], role: str | None) -> int:
    """Say everything that is wrong with files of options, each by file and key.

    Unknown keys, values of the wrong kind, addresses, files and programs that are not there,
    certificates that do not fit, and plain TCP beyond this machine. Without FILE it is that of
    ALLSTOP_CONFIG, else all of /etc/allstop. Nothing is started and nobody is asked.
    """
    from coordinator.cli.config_check import fitting_role, problems_of

    commands = {each: command_of(each) for each in ROLES}
    told: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for path in files or _usual_files():
        chosen = role or fitting_role(path, commands)
        found = problems_of(path, chosen, commands[chosen])
        problems += found
        told.append(
            {"file": str(path), "role": chosen, "problems": [asdict(each) for each in found]}
        )
    if not problems:
        output.emit({"files": told}, lambda: _all_is_well(told))
        return 0
    error = BadRequest(
        f"{len(problems)} thing{'s' * (len(problems) > 1)} to correct",
        advice="`allstop VERB --help` describes each option",
        details=tuple(_line(each) for each in problems),
    )
    output.error(error, files=told)
    return error.exit_code


def _usual_files() -> list[Path]:
    """What is meant when no file is named; raises BadRequest when there is none."""
    named = os.environ.get("ALLSTOP_CONFIG", "")
    found = [named] if named else sorted(glob.glob(USUAL_FILES))
    if not found:
        raise BadRequest(
            f"no file was named, ALLSTOP_CONFIG is not set, and there is no {USUAL_FILES}",
            advice="allstop config check FILE",
        )
    return [Path(each) for each in found]


def _all_is_well(told: list[dict[str, Any]]) -> str:
    return "\n".join(
        f"{each['file']}: nothing is wrong with it, for {each['role']}" for each in told
    )


def _line(problem: Problem) -> str:
    key = f": {problem.key}" if problem.key else ""
    return f"{problem.file}{key}: {problem.what}" + (f" ({problem.advice})" * bool(problem.advice))


@config.command(
    examples=(
        "allstop config show shim",
        "allstop config show coordinator --config /etc/allstop/coordinator.toml --lease 5s",
        "allstop config show shim run --worker 1 -o json",
    ),
    exits=(0, 2),
    context_settings={"ignore_unknown_options": True},
)
@click.argument("role", type=click.Choice(ROLES))
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[OPTION…]")
@output_option
@click.pass_obj
def show(output: Output, role: str, words: tuple[str, ...]) -> None:
    """Say what each option of a verb would be, and where that comes from.

    Put `config show` before the words that would start it: up, coordinator, shim or shim run, with
    the same flags, in the same environment. A flag wins over the environment, that over the file,
    and that over the default.
    """
    from coordinator.cli.config_show import effective

    found = effective(role, command_of(role), words, output)
    output.emit({"options": [asdict(each) for each in found]}, lambda: _table(found))


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(map(_as_text, value))
    return "" if value is None else str(value)


def _table(found: list[Effective]) -> RenderableType:
    from rich.text import Text

    from coordinator.cli.tables import table

    rows = table("OPTION", "VALUE", "FROM")
    for each in found:
        given = each.source != "default"
        rows.add_row(
            f"--{each.option}",
            Text(_as_text(each.value), style="" if given else "dim"),
            Text(f"{each.source} {each.place}".rstrip(), style="green" if given else "dim"),
        )
    return rows
