"""The commands of the tool, one module each; a module is imported when its command runs or is shown in the help."""

from __future__ import annotations

import importlib

import click

NAMES = (
    "put", "info", "ls", "dump", "get", "query", "tail", "top", "stats", "transactions", "verify", "offsets", "export",
    "import", "copy", "diff", "definitions", "purge", "requeue", "group", "topic", "report", "recover", "rebuild",
    "replicate", "promote", "serve", "decode-id", "bench", "completion", "doctor", "web",
)  # fmt: skip
_MODULES = {"import": "imports", "decode-id": "decode_id"}  # the others are called like the command


class _LazyGroup(click.Group):
    """A group that finds its commands by name."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return the names that the help shows."""
        return sorted(NAMES)

    def get_command(self, _context: click.Context | None, name: str) -> click.Command | None:
        """Import a command; names of mqadmin are tried last."""
        if name in NAMES:
            module = _MODULES.get(name, name)  # it has the command under the same name
            found: click.Command = getattr(importlib.import_module(f"{__name__}.{module}"), module)
            return found
        from .mqadmin import COMMANDS

        return COMMANDS.get(name)


def every_command() -> dict[str, click.Command]:
    """Import every command, hidden ones included."""
    from .mqadmin import COMMANDS

    found = {name: brokerstore.get_command(None, name) for name in NAMES}
    return {name: command for name, command in found.items() if command is not None} | COMMANDS


def _show_version(context: click.Context, _option: click.Parameter, is_given: bool) -> None:
    if is_given and not context.resilient_parsing:
        import brokerstore

        click.echo(f"brokerstore {brokerstore.__version__}")
        context.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version and exit."
)
def brokerstore() -> None:
    """Read, check and repair the message stores of RocketMQ and RabbitMQ without a running broker.

    Only put, copy, import, rebuild, offsets reset, replicate and serve change a folder, and with --apply purge, requeue, topic
    delete, group delete, recover and promote.  Exit codes: 0 clean, 1 a problem was found, 2 wrong use, 3 not a store, 4 in
    use, 5 input or output failed, 6 repaired with data dropped, 7 repaired, 130 interrupted.
    """
