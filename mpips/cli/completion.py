"""`mpips completion`: print the script with which a shell completes commands, options and names of runs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands, options and names of runs.

    \b
    bash   eval "$(mpips completion bash)"      in ~/.bashrc
    zsh    eval "$(mpips completion zsh)"       in ~/.zshrc
    fish   mpips completion fish | source       in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "mpips", "_MPIPS_COMPLETE").source())
