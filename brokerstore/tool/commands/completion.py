"""`completion`: the start-up code of a shell."""

from __future__ import annotations

from typing import Any

import click

from ..options import plain_command

SHELLS = ("bash", "zsh", "fish")


@plain_command("completion", "completion bash", "completion fish")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print what a shell needs to complete commands and options.

    In the start-up file of bash or zsh: eval "$(brokerstore completion bash)"; of fish: brokerstore completion fish | source
    """
    from click.shell_completion import get_completion_class

    made: Any = get_completion_class(shell)
    root = context.find_root()
    complete = made(root.command, {}, root.info_name or "brokerstore", "_BROKERSTORE_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())  # source() would run the shell to ask for its version
    return 0
