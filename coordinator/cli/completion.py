"""`allstop completion SHELL`"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from coordinator.cli.verb import verb


@verb(
    examples=(
        "allstop completion bash > /etc/bash_completion.d/allstop",
        'allstop completion zsh > "${fpath[1]}/_allstop"',
        "allstop completion fish > ~/.config/fish/completions/allstop.fish",
    ),
    exits=(0, 2),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what completes `allstop` in your shell."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    root = ctx.find_root().command
    click.echo(kind(root, {}, "allstop", "_ALLSTOP_COMPLETE").source())
