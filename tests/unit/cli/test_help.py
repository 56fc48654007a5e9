"""The help of every verb: a sentence, examples that the parser takes, codes, variables, width."""

from __future__ import annotations

import re

import click
import pytest

from coordinator.cli.exits import EXIT_CODES
from coordinator.cli.main import VERBS
from coordinator.cli.output import Output
from coordinator.cli.verb import WithExamples
from coordinator.core.errors import AllstopError
from tests.support.words import all_verbs, commands_of, parse

from .conftest import Cli

EVERY = dict(all_verbs())
COLUMNS_MAX = 100
PREFIX = "ALLSTOP_"
NOT_OPTIONS = ("help", "version")  # they ask for words and do nothing


def help_of(name: str) -> str:
    """As a terminal of so many columns shows it."""
    ctx = click.Context(
        EVERY[name], info_name=name, obj=Output([]), terminal_width=COLUMNS_MAX,
        max_content_width=COLUMNS_MAX, help_option_names=["-h", "--help"],
    )  # fmt: skip
    return EVERY[name].get_help(ctx)


def options(command: click.Command) -> list[click.Option]:
    found = [each for each in command.params if isinstance(each, click.Option)]
    return [each for each in found if each.name not in NOT_OPTIONS]


EVERY_OPTION = [
    pytest.param(command, option, id=f"{name} {option.opts[-1]}")
    for name, command in EVERY.items()
    for option in options(command)
]


def test_all_verbs_are_walked() -> None:
    assert {name.split()[1] for name in EVERY if " " in name} == set(VERBS)
    assert {"allstop shim run", "allstop certs issue", "allstop config check"} <= set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_help_has_a_sentence_examples_codes_and_variables(name: str) -> None:
    command, text = EVERY[name], help_of(name)
    assert isinstance(command, WithExamples), "made by @verb"
    first = (command.help or "").split("\n\n")[0]
    assert re.match(r"[A-Z].*[.:]$", first, re.DOTALL), first
    assert "\nExamples:\n  allstop" in text
    assert "\nExit codes:\n" in text
    assert "\nEnvironment:\n" in text
    assert "NO_COLOR" in text
    for code in EXIT_CODES if name == "allstop" else command.exits:
        assert f"\n  {code} " in text


@pytest.mark.parametrize("name", EVERY)
def test_help_fits_into_a_terminal(name: str) -> None:
    long = [line for line in help_of(name).splitlines() if len(line) > COLUMNS_MAX]
    assert not long


@pytest.mark.parametrize("name", EVERY)
def test_examples_are_what_the_parser_takes(name: str) -> None:
    command = EVERY[name]
    assert isinstance(command, WithExamples)
    lines = commands_of("\n".join(command.examples))
    assert lines
    for words in lines:
        verbs = " ".join(parse(words))
        assert verbs.startswith(name), f"an example of another verb: {words}"


@pytest.mark.parametrize(
    "line", ["allstop nodes --job x", "allstop logs", "allstop checkpoint llm --deadline soon"]
)
def test_a_wrong_example_would_be_seen(line: str) -> None:
    with pytest.raises((click.UsageError, AllstopError)):
        parse(line.split())


@pytest.mark.parametrize(("command", "option"), EVERY_OPTION)
def test_every_option_is_described(command: click.Command, option: click.Option) -> None:
    assert re.match(r"[A-Za-z-].*\S", option.help or ""), "a word on what it is for"
    assert not (option.help or "").startswith("[")


@pytest.mark.parametrize(("command", "option"), EVERY_OPTION)
def test_every_option_is_a_variable_too(
    command: click.Command, option: click.Option, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = next(each for each in option.opts if each.startswith("--"))
    variable = PREFIX + long.removeprefix("--").upper().replace("-", "_")
    assert option.envvar == variable
    assert option.show_envvar
    monkeypatch.setenv(variable, sample(option))
    ctx = click.Context(command, obj=Output([]))
    value, source = option.consume_value(ctx, {})
    assert source is click.core.ParameterSource.ENVIRONMENT
    option.type_cast_value(ctx, value)  # what a shell can say, the option takes


def sample(option: click.Option) -> str:
    """A value of the option's kind, as a variable holds it."""
    if option.is_flag:
        return "1"
    if isinstance(option.type, click.Choice):
        return str(option.type.choices[-1])
    if isinstance(option.type, click.Path):
        return "/etc/hostname" if option.type.file_okay else "/"
    if isinstance(option.type, click.IntRange):
        return "1"
    return {
        "phase=duration": "dump=60s",
        "duration": "7s",
        "size": "2M",
        "integer": "7",
        "float range": "1.5",
    }.get(option.type.name, "policy_s=7s" if option.name == "policy" else "words")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_verb(cli: Cli, shell: str) -> None:
    def completed(*words: str) -> str:
        ask = {"_ALLSTOP_COMPLETE": f"{shell}_complete", "COMP_WORDS": " ".join(words) + " "}
        ask["COMP_CWORD"] = "" if shell == "fish" else str(len(words))  # the word, or its number
        return cli(**ask).out

    told = completed("allstop")
    for verb in VERBS:
        assert re.search(rf"\b{verb}\b", told), told
    below = completed("allstop", "config")
    assert "check" in below
    assert "show" in below
