"""What README.md shows works as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

from brokerstore import Message, MessageStore
from brokerstore.tool.cli import brokerstore as tool
from tests.brokerstore.tool import run
from tests.packaging.house import ROOT

README = (ROOT / "README.md").read_text()


def test_the_library_example_runs(tmp_path: Path) -> None:
    """Copied into a file and run, it prints the message that it put."""
    block = README.partition("As a library:\n")[2].partition("\n`brokerstore.open")[0]
    example = tmp_path / "example.py"
    example.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{textwrap.dedent(block)}")
    done = subprocess.run([sys.executable, "-W", "error", example], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "b'...'" in done.stdout
    assert done.stderr == ""


def test_the_first_commands_run(tmp_path: Path) -> None:
    """On a store of the library example's kind; `jq` is the reader's."""
    store = tmp_path / "orders-store"
    with MessageStore.open(store) as made:
        made.put(Message("orders", b"first"))
    shown = re.findall(r"^    brokerstore (\S.*?)  +# ", README, re.MULTILINE)
    assert [line.split()[0] for line in shown] == ["info", "dump", "verify"]
    for line in shown:
        ran = run(*line.partition(" | ")[0].replace("DIR", str(store)).split())
        assert (ran.code, bool(ran.out)) == (0, True), line


def test_what_is_shown_of_spark_stands_on_a_page_that_runs() -> None:
    """`test_documents` runs those pages."""
    block = README.partition("without registration:\n")[2].partition("\n## ")[0]
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("spark.md", "spark-sinks.md"))
    lines = [line.partition("  #")[0].strip() for line in block.splitlines() if line.startswith("    ")]
    assert len(lines) == 4
    assert [line for line in lines if line not in pages] == []


def test_every_command_shown_exists_and_every_command_is_shown() -> None:
    """In the table of the commands."""
    shown = set(re.findall(r"^\| `brokerstore ([\w-]+)", README, re.MULTILINE))
    assert shown == {name for name, command in tool.commands.items() if not command.hidden}


def test_every_make_target_named_exists() -> None:
    """In all pages."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ROOT.glob("*.md"):
        assert (
            set(re.findall(r"\bmake (test-plain|test|demo|lint|format|wheel-check|bench|doctor)\b", page.read_text()))
            <= targets
        )
