"""`allstop completion SHELL`"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what completes `allstop` in your shell.

    \b
    Examples:
      allstop completion bash > /etc/bash_completion.d/allstop
      allstop completion zsh > "${fpath[1]}/_allstop"
      allstop completion fish > ~/.config/fish/completions/allstop.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    root = ctx.find_root().command
    click.echo(kind(root, {}, "allstop", "_ALLSTOP_COMPLETE").source())
