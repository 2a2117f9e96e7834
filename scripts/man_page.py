"""Write `docs/man/brokerstore.1`, the manual page, from the parser that also writes `brokerstore --help`.

Run it after a change to a command or an option; a test compares the page with the parser.  Wheels install the page as
`share/man/man1/brokerstore.1`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "man" / "brokerstore.1"
sys.path.insert(0, str(ROOT))

from brokerstore.tool.commands import NAMES, brokerstore, every_command  # noqa: E402

SUMMARY = "read, check and repair the message stores of RocketMQ and RabbitMQ"
HELP = [".TP", r".B \-h, \-\-help", "Show the help, also that of a command, and exit."]


def main() -> None:
    """Write the page to its file."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())


def page() -> str:
    """Return the manual page in the macros of man(7)."""
    lines = ['.TH BROKERSTORE 1 "" "brokerstore" "User Commands"', ".SH NAME", f"brokerstore \\- {roff(SUMMARY)}"]
    lines += [".SH SYNOPSIS", ".B brokerstore", roff("COMMAND [OPTIONS] ARGUMENTS"), ".SH DESCRIPTION"]
    lines += [*paragraphs(brokerstore), ".SH OPTIONS", *options(brokerstore), *HELP, ".SH COMMANDS"]
    for name, command in leaves():
        lines += [f".SS {roff(name)}", f".B {roff(f'brokerstore {name}')}", *synopsis(command), ".PP"]
        lines += paragraphs(command) + options(command) + examples(command)
    return "\n".join(lines) + "\n"


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Yield the name and the command of each subcommand that the help shows, in the order of the help."""
    every = every_command()
    for name in sorted(NAMES):
        command = every[name]
        if isinstance(command, click.Group):
            yield from ((f"{name} {part}", command.commands[part]) for part in sorted(command.commands))
        else:
            yield name, command


def roff(text: str) -> str:
    """Escape text, so that every character of it is printed."""
    return re.sub(r"^(?=[.'])", r"\\&", text.replace("\\", "\\e").replace("-", "\\-"), flags=re.MULTILINE)


def synopsis(command: click.Command) -> list[str]:
    """Return the line of what follows the name of the command."""
    return [roff(" ".join(command.collect_usage_pieces(click.Context(command))))]


def paragraphs(command: click.Command) -> list[str]:
    """Return the description, whose paragraphs are separated by empty lines."""
    found = re.split(r"\n\n+", inspect.cleandoc(command.help or ""))
    return [line for number, text in enumerate(found) for line in ([".PP"] if number else []) + [roff(" ".join(text.split()))]]


def options(command: click.Command) -> list[str]:
    """Return a tagged paragraph for each option that the help shows; --help, which every command has, is described once."""
    lines = []
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            lines += [".TP", tag(option), roff(" ".join((option.help or "").split()))]
    return lines


def tag(option: click.Option) -> str:
    """Return the line with the names of an option, in bold, and the kind of its value."""
    names = roff(", ".join([*option.opts, *option.secondary_opts]))
    return f".B {names}" if option.is_flag else f'.BR "{names} " {roff(option.metavar or kind(option.type))}'


def kind(value: click.ParamType) -> str:
    """Return what stands for a value: the choices, or the name of the type."""
    if isinstance(value, click.Choice):
        return f"[{'|'.join(map(str, value.choices))}]"
    return "NUMBER" if isinstance(value, click.types.IntParamType | click.types.FloatParamType) else value.name.upper()


def examples(command: click.Command) -> list[str]:
    """Return the examples of the help, a line each."""
    lines = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    return [".PP", "Examples:", ".PP", ".EX", *(roff(f"    {line}") for line in lines), ".EE"] if lines else []


if __name__ == "__main__":
    main()
