"""A verb's help: what it does, options, then examples, exit codes and variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from coordinator.cli.exits import EXIT_CODES

VARIABLES = (
    ("ALLSTOP_…", "Each option's own variable stands behind it as [env var: …]; a flag wins."),
    ("NO_COLOR", "Set: no colours, whatever the terminal can."),
)
# What any verb that asks a coordinator may end with, beside what is its own.
ASKING = (0, 2, 11, 15)


class WithExamples(click.Command):
    """A command whose help has examples that work, its exit codes, and its variables."""

    def __init__(
        self,
        *arguments: Any,
        examples: Sequence[str] = (),
        exits: Sequence[int] = ASKING,
        **settings: Any,
    ) -> None:
        """`examples` are whole command lines, `exits` codes of `exits.EXIT_CODES`."""
        super().__init__(*arguments, **settings)
        self.examples = tuple(examples)
        self.exits = tuple(sorted(exits))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples as they are typed, then codes and variables as lists."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        self.format_codes(formatter)
        with formatter.section("Environment"):
            formatter.write_dl(VARIABLES)

    def format_codes(self, formatter: click.HelpFormatter) -> None:
        """Those that are the verb's own; all stand in the help of `allstop` itself."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), EXIT_CODES[code]) for code in self.exits])
            formatter.write_text("`allstop --help` has all that there are.")


class Verb(WithExamples):
    """A verb."""


class VerbGroup(WithExamples, click.Group):
    """A verb with verbs below it."""

    command_class = Verb


def verb(
    *, examples: Sequence[str], exits: Sequence[int] = ASKING, **settings: Any
) -> Callable[[Callable[..., Any]], Verb]:
    """`click.command` with examples and exit codes."""
    return click.command(cls=Verb, examples=examples, exits=exits, **settings)


def verb_group(
    *, examples: Sequence[str], exits: Sequence[int] = (0, 2), **settings: Any
) -> Callable[[Callable[..., Any]], VerbGroup]:
    """`click.group` with examples and exit codes."""
    return click.group(cls=VerbGroup, examples=examples, exits=exits, **settings)
