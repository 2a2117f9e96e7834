"""Drawn tables and progress bars on a terminal, and output without the libraries that draw them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from brokerstore.tool import output
from commitlog import CommitLog, LogPaths, Message
from storageio import REAL_DISK
from tests.brokerstore.damage import Log
from tests.brokerstore.tool import run

pty = pytest.importorskip("pty")
BAR, GONE = "\u2501", "\x1b[2K"  # what a bar is drawn with, and what clears its line


def on_terminal(*command: object, columns: int = 120) -> tuple[int, str]:
    """Return the exit code and everything that the terminal received from both streams."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-m", *map(str, command)], stdout=theirs, stderr=theirs, cwd=root, env=env)
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux raises this when the other side is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    return process.wait(60), b"".join(parts).decode()


def test_verify_draws_and_answers(tmp_path: Path) -> None:
    """The answer is below the bar."""
    code, shown = on_terminal("brokerstore", "verify", Log(tmp_path).store)
    assert code == 0
    assert "OK: " in shown
    assert "Traceback" not in shown


SAME = [
    "info --json", "ls --json", "stats --json -q", "verify --json -q", "verify -q", "info", "recover -q", "recover --json -q",
    "dump --json", "get --at 0", "get --at 0 --json", "tail --json", "export -q", "export -q --to csv", "offsets show --json",
]  # fmt: skip
QUICK = ("info", "ls --json", "verify -q", "export -q --to csv")  # golden outputs are compared on a terminal, too


@pytest.mark.parametrize("line", [line if line in QUICK else pytest.param(line, marks=pytest.mark.deep) for line in SAME])
def test_the_same_answer_on_a_terminal(fixture_store: Any, line: str) -> None:
    """JSON and text are the same as on a pipe."""
    command = line.split()
    store = fixture_store("propcrc").store
    code, shown = on_terminal("brokerstore", *command, store)
    ran = run(*command, store)
    assert (code, shown.replace("\r\n", "\n")) == (ran.code, ran.out)


BARS = [
    "propcrc: rebuild --apply", "propcrc: recover", "propcrc: recover --apply", "propcrc: verify", "propcrc: export -o OUT",
    "propcrc: report -o OUT", "propcrc: import --to-rabbit OUT", "crash-lost-cq: copy --all --to OUT",
    "rabbitmq-clean: recover", "rabbitmq-clean: verify", "rabbitmq-clean: export -o OUT", "rabbitmq-clean: report -o OUT",
    "rabbitmq-clean: import --small --to OUT", "propcrc: stats", "rabbitmq-clean: stats", "propcrc: diff AGAIN",
    "rabbitmq-clean: diff AGAIN",
]  # fmt: skip


def folder_of(fixture: Any) -> Path:
    return Path(fixture.store if fixture.store.exists() else fixture.folder.parent / "vhost")


@pytest.mark.deep
@pytest.mark.parametrize("case", BARS)
def test_bars_are_drawn_and_gone(fixture_store: Any, tmp_path: Path, case: str) -> None:
    """A bar is drawn and removed; --quiet draws none."""
    name, line = case.split(": ")
    store = folder_of(fixture_store(name, own=True))
    out = tmp_path / "out"
    command = [{"OUT": str(out), "AGAIN": str(store)}.get(word, word) for word in line.split()]
    code, shown = on_terminal("brokerstore", *command, store)
    assert (code, BAR in shown) == (0, True)
    assert shown.rpartition(BAR)[2].count(GONE)
    shutil.rmtree(out, ignore_errors=True)
    code, shown = on_terminal("brokerstore", *command, store, "--quiet")
    assert (code, BAR in shown) == (0, False)


def test_a_bar_among_the_messages(fixture_store: Any) -> None:
    """No bar is drawn while rows go to the same terminal."""
    assert BAR not in on_terminal("brokerstore", "export", fixture_store("propcrc").store)[1]


@pytest.mark.parametrize("name", ["plain", pytest.param("crash-torn", marks=pytest.mark.deep), "rabbitmq-clean"])
@pytest.mark.parametrize("command", [pytest.param("recover", marks=pytest.mark.deep), "stats", "ls"])
def test_a_table_of_80_columns_cuts_its_cells(fixture_store: Any, name: str, command: str) -> None:
    """Every word of the wide answer is there, and no line is too long."""
    folder = folder_of(fixture_store(name))
    _, shown = on_terminal("brokerstore", *command.split(), folder, *(["-q"] if command != "ls" else []), columns=80)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    wide = run(*command.split(), folder).out
    assert "\u2026" not in shown
    table = [line for line in shown.splitlines() if "  " in line and not line.startswith("brokerstore: ")]
    assert all(len(line) <= 80 for line in table)
    numbers = [word for word in wide.split() if word.isdigit()]
    assert not Counter(numbers) - Counter(shown.split())
    assert not Counter("".join(wide.split())) - Counter("".join(shown.split()))


def test_a_table_shows_names_as_they_are(tmp_path: Path) -> None:
    """Markup in a name is shown as text."""
    folder = tmp_path / "store" / "commitlog"
    log = CommitLog(LogPaths(REAL_DISK, [str(folder)]), writable=True, file_size_bytes=65536)
    log.attach(0)
    log.appender.append(Message("[red]topic[/red]", b"", queue_id=0))
    log.close()
    code, shown = on_terminal("brokerstore", "ls", folder.parent)
    assert code == 0
    assert "[red]topic[/red]" in shown


@pytest.mark.deep
def test_the_demo_on_a_terminal(tmp_path: Path) -> None:
    """It draws bars and prints the same lines."""
    code, shown = on_terminal("brokerstore.demo", "--messages", 3000, "--folder", tmp_path)
    assert code == 0
    assert shown.count("messages/s") == 6


def test_without_rich_the_tables_are_text(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Tables are plain text, and everything else works."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    output.table(["topic", "messages"], [["orders", 12], ["x", 3]])
    with output.progress("title", 10) as advance:
        advance(10)
    assert capsys.readouterr().out == "topic   messages\norders        12\nx              3\n"


def test_without_click_the_tool_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dependencies of the library do not include it."""
    monkeypatch.setitem(sys.modules, "click", None)
    ran = run("info", ".")
    assert ran.code == 2
    assert "brokerstore[cli]" in ran.talk
