"""On a terminal: drawn tables and progress bars, and the same without the libraries that draw them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brokerstore.tool import output
from commitlog import CommitLog, LogPaths, Message
from storageio import REAL_DISK
from tests.brokerstore.damage import Log
from tests.brokerstore.tool import run

pty = pytest.importorskip("pty")


def on_terminal(*command: object) -> tuple[int, str]:
    """Exit code and all that the terminal got, from both streams."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-m", *map(str, command)], stdout=theirs, stderr=theirs, cwd=root, env=env)
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side is gone
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    return process.wait(60), b"".join(parts).decode()


def test_verify_draws_and_answers(tmp_path: Path) -> None:
    """The answer stands below the bar."""
    code, shown = on_terminal("brokerstore", "verify", Log(tmp_path).store)
    assert code == 0
    assert "OK: " in shown
    assert "Traceback" not in shown


SAME = [
    "info --json", "ls --json", "stats --json", "verify --json -q", "verify -q", "info", "recover -q", "recover --json -q",
    "dump --json", "get --at 0", "get --at 0 --json", "tail --json", "export -q", "export -q --to csv", "offsets show --json",
]  # fmt: skip


@pytest.mark.parametrize("line", SAME)
def test_the_same_answer_on_a_terminal(fixture_store: Any, line: str) -> None:
    """For programs and for people."""
    command = line.split()
    store = fixture_store("propcrc").store
    code, shown = on_terminal("brokerstore", *command, store)
    ran = run(*command, store)
    assert (code, shown.replace("\r\n", "\n")) == (ran.code, ran.out)


@pytest.mark.parametrize("command", [["rebuild"], ["recover"], ["recover", "--apply"], ["export", "--to", "csv"]])
def test_bars_are_drawn_and_gone(fixture_store: Any, command: list[str]) -> None:
    """The answer stands below."""
    store = fixture_store("propcrc", own=True).store
    code, shown = on_terminal("brokerstore", *command, store)
    assert code == 0
    assert "Traceback" not in shown


def test_a_table_shows_names_as_they_are(tmp_path: Path) -> None:
    """What looks like markup is a name like any other."""
    folder = tmp_path / "store" / "commitlog"
    log = CommitLog(LogPaths(REAL_DISK, [str(folder)]), writable=True, file_size_bytes=65536)
    log.attach(0)
    log.appender.append(Message("[red]topic[/red]", b"", queue_id=0))
    log.close()
    code, shown = on_terminal("brokerstore", "ls", folder.parent)
    assert code == 0
    assert "[red]topic[/red]" in shown


def test_the_demo_on_a_terminal(tmp_path: Path) -> None:
    """With bars, and the same lines."""
    code, shown = on_terminal("brokerstore.demo", "--messages", 3000, "--folder", tmp_path)
    assert code == 0
    assert shown.count("messages/s") == 6


def test_without_rich_the_tables_are_text(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Nothing else is missing."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    output.table(["topic", "messages"], [["orders", 12], ["x", 3]])
    with output.progress("title", 10) as advance:
        advance(10)
    assert capsys.readouterr().out == "topic   messages\norders  12\nx       3\n"


def test_without_click_the_tool_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own dependencies do not hold it."""
    monkeypatch.setitem(sys.modules, "click", None)
    ran = run("info", ".")
    assert ran.code == 2
    assert "brokerstore[cli]" in ran.talk
