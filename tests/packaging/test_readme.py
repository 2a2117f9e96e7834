"""What README.md and the reference of the tool list exists.  `test_documents` runs their programs and commands."""

from __future__ import annotations

import re
from pathlib import Path

from brokerstore.tool.commands import NAMES

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 120


def test_every_command_is_in_the_reference_and_the_reference_names_no_other() -> None:
    """The table of the commands, without the hidden ones."""
    table = (ROOT / "docs" / "reference" / "tool.md").read_text()
    shown = set(re.findall(r"^\| `brokerstore ([\w-]+)", table, re.MULTILINE))
    assert shown == set(NAMES)


def test_the_readme_is_short() -> None:
    """Options and details belong to the reference."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= LINES_MAX


def test_every_make_target_named_exists() -> None:
    """On the pages at the top of the repository."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    for page in ROOT.glob("*.md"):
        named = re.findall(r"^    make ([\w-]+)|`make ([\w-]+)`", page.read_text(), re.MULTILINE)
        assert {first or second for first, second in named} <= targets, page
