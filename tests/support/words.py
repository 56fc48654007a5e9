"""Words of command lines, as people type them: from a shell text, and held against the parser."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click

from coordinator.cli.main import allstop
from coordinator.cli.output import Output

OPERATORS = re.compile(r"[;&|()]+")
REDIRECTION = re.compile(r"[<>&]+")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def commands_of(text: str) -> list[list[str]]:
    """Every simple command of a shell text: no comments, redirections or leading assignments."""
    found: list[list[str]] = []
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += "…$@%+{}[]!^:,"
        words: list[str] = []
        skip = False
        for word in lexer:
            if OPERATORS.fullmatch(word):
                found.append(words)
                words = []
            elif REDIRECTION.fullmatch(word):
                if words and words[-1].isdigit():  # 2>
                    words.pop()
                skip = True
            elif skip:
                skip = False
            else:
                words.append(word)
        found.append(words)
    return [rest for words in found if (rest := _without_assignments(words))]


def _without_assignments(words: list[str]) -> list[str]:
    while words and ASSIGNMENT.match(words[0]):
        words = words[1:]
    return words


def all_verbs() -> Iterator[tuple[str, click.Command]]:
    """Every verb with the words that name it, `allstop` itself and verbs below verbs included."""
    queue: list[tuple[str, click.Command]] = [("allstop", allstop)]
    while queue:
        name, command = queue.pop(0)
        yield name, command
        if isinstance(command, click.Group):
            ctx = click.Context(command)
            for each in command.list_commands(ctx):
                below = command.get_command(ctx, each)
                assert below is not None
                queue.append((f"{name} {each}", below))


def parse(words: list[str]) -> list[str]:
    """Let the real parser take a command line (`allstop` first), without running anything.

    Files need not be there, and a --config file has whatever is required. Returns the names of the
    verbs; raises click.ClickException or AllstopError for a line that would be refused.
    """
    assert words[0] == "allstop", words
    command: click.Command = allstop
    ctx: click.Context | None = None
    name, arguments, named = "allstop", words[1:], []
    with _any_files(), contextlib.redirect_stdout(io.StringIO()):
        try:
            while True:
                ctx = command.make_context(
                    name, list(arguments), parent=ctx, obj=Output(arguments) if not ctx else None
                )
                named.append(name)
                rest = [*ctx._protected_args, *ctx.args]
                if not isinstance(command, click.Group) or not rest:
                    return named
                _, below, arguments = command.resolve_command(ctx, rest)
                assert below is not None
                command, name = below, below.name or ""
        except click.exceptions.Exit:  # --help, --version
            return named


def _many(param: click.Parameter) -> bool:
    return isinstance(param, click.Option) and param.multiple


def _any_files() -> contextlib.ExitStack:
    """As if every file were there."""
    stack = contextlib.ExitStack()

    def convert(kind: click.Path, value: Any, *_: object) -> Any:
        return Path(value) if kind.type is Path else value

    def options_of(path: Path, ctx: click.Context) -> dict[str, Any]:
        required = (each for each in ctx.command.params if each.required and each.name)
        return {each.name: ("8",) if _many(each) else "8" for each in required if each.name}

    stack.enter_context(mock.patch.object(click.Path, "convert", convert))
    stack.enter_context(mock.patch("coordinator.cli.config_file.options_of", options_of))
    return stack
