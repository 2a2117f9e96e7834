"""The manual page and the parser of the tool have the same commands and options, with the same texts."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess

import click
import pytest

from brokerstore.tool.commands import NAMES, brokerstore, every_command
from tests.packaging.pages import DOCS, ROOT

PAGE = DOCS / "man" / "brokerstore.1"
SECTION = re.compile(r"^\.S[HS] (.*)$", re.MULTILINE)
OPTION = re.compile(r'^\.TP\n\.BR? "?(-[^"\n]*?)"?(?: [^"\n-]\S*)?\n(.*)$', re.MULTILINE)


def plain(text: str) -> str:
    """Undo the escapes of roff."""
    return text.replace("\\&", "").replace("\\-", "-").replace("\\e", "\\")


def sections() -> dict[str, str]:
    """Return the text below each heading of the page."""
    parts = SECTION.split(PAGE.read_text())
    return {plain(title): plain(text) for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def options_of(command: click.Command) -> dict[str, str]:
    """Return the help of each option, by its names as the help lists them."""
    shown = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    return {", ".join([*option.opts, *option.secondary_opts]): " ".join((option.help or "").split()) for option in shown}


def commands() -> dict[str, click.Command]:
    """Return the commands that the help shows, those of a group with its name in front."""
    found: dict[str, click.Command] = {}
    for name, command in every_command().items():
        if isinstance(command, click.Group):
            found |= {f"{name} {part}": one for part, one in command.commands.items()}
        elif name in NAMES:
            found[name] = command
    return found


def test_the_page_is_what_the_script_writes() -> None:
    """`make man` brings the page up to date."""
    assert runpy.run_path(str(ROOT / "scripts" / "man_page.py"))["page"]() == PAGE.read_text(), "run `make man`"


def test_the_page_has_the_commands_of_the_parser_and_no_others() -> None:
    """Commands of a group count one by one."""
    assert {title for title in sections() if title.upper() != title} == set(commands())


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_options_of_a_command_are_those_of_the_parser(name: str) -> None:
    """With the same texts, and the first line of its description."""
    command, text = commands()[name], sections()[name]
    assert {names.strip(): shown for names, shown in OPTION.findall(text)} == options_of(command)
    assert (command.help or "").partition("\n")[0] in text


def test_the_options_of_the_tool_are_those_of_the_parser() -> None:
    """The page adds --help, which click adds to every command."""
    shown = {names.strip(): text for names, text in OPTION.findall(sections()["OPTIONS"])}
    assert shown.pop("-h, --help")
    assert shown == options_of(brokerstore)


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
def test_groff_formats_the_page_without_a_warning() -> None:
    """Every macro and escape of the page is known to it."""
    done = subprocess.run(["groff", "-man", "-Tascii", "-ww", PAGE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert "--skip-bad" in re.sub(r".\x08|\x1b\[\d+m", "", done.stdout)
