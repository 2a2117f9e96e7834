"""Drawn tables and progress bars on a terminal, and output without the libraries that draw them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest

from brokerstore.tool import output
from brokerstore.tool.commands import brokerstore
from brokerstore.tool.layout import TableColumn, message_lines, table_lines, width_of
from commitlog import CommitLog, LogPaths, Message
from storageio import REAL_DISK
from tests.archives import unpack
from tests.brokerstore.damage import Log
from tests.brokerstore.tool import run
from tests.processes import running
from tests.rabbitstore.conftest import DATA
from tests.rabbitstore.later import node_of

pty = pytest.importorskip("pty")
BAR, GONE = "\u2501", "\x1b[2K"  # what a bar is drawn with, and what clears its line


def on_terminal(*command: object, columns: int = 120) -> tuple[int, str]:
    """Return the exit code and everything that the terminal received from both streams."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    root = Path(__file__).parents[2]
    parts = []
    with running([sys.executable, "-m", *command], stdout=theirs, stderr=theirs, cwd=root, env=env) as process:
        os.close(theirs)
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


def test_verify_draws_a_progress_bar_and_prints_the_result(tmp_path: Path) -> None:
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
    assert code == ran.code
    if "--json" in command or "csv" in command:
        assert shown.replace("\r\n", "\n") == ran.out
    else:  # lines are wrapped
        assert shown.split() == ran.out.split()


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
def test_progress_bars_are_drawn_and_removed(fixture_store: Any, tmp_path: Path, case: str) -> None:
    """A bar is drawn and removed; --quiet draws none."""
    name, line = case.split(": ")
    store = folder_of(fixture_store(name, own=True))
    out = tmp_path / "out"
    command = [{"OUT": str(out), "AGAIN": str(store)}.get(word, word) for word in line.split()]
    code, shown = on_terminal("brokerstore", *command, store)
    assert (code, BAR in shown) == (0, True)
    assert shown.rpartition(BAR)[2].count(GONE)
    assert re.findall(r"\d+%", shown)[-1] == "100%"
    shutil.rmtree(out, ignore_errors=True)
    code, shown = on_terminal("brokerstore", *command, store, "--quiet")
    assert (code, BAR in shown) == (0, False)


def test_no_progress_bar_is_drawn_while_rows_go_to_the_terminal(fixture_store: Any) -> None:
    """No bar is drawn while rows go to the same terminal."""
    assert BAR not in on_terminal("brokerstore", "export", fixture_store("propcrc").store)[1]


ROCKETMQ = ("plain", "broker-live", "broker-timer", "crash-torn")
RABBITMQ_3, RABBITMQ_4 = ("rabbitmq-clean", "rabbitmq-v2"), ("rabbitmq4-clean", "rabbitmq4-streams")
OF_ALL = (
    "info", "ls", "stats -q", "verify -q", "recover -q", "dump --limit 4", "tail -n 2", "rebuild --plan -q", "diff -q DIR",
)  # fmt: skip
OF_ROCKETMQ = ("stats -q --by hour", "offsets show", "top --interval 0.1 --count 1")
QUICK_AT_80 = {"plain", "rabbitmq-v2", "rabbitmq4-streams"}


LONG = "0123456789" * 11  # in a topic of one fixture, which no line can hold


def node_or_store(name: str, above: Path) -> Path:
    """Return a copy of a fixture's folder: of a store, a virtual host or a node."""
    unpack(DATA / f"{name}.tar.xz", above / "source")
    if name in RABBITMQ_4:
        node_of(name, above / "source", above / "node")
        return above / "node"
    found = (above / "source" / name / "store", above / "source" / "vhost")
    return next(path for path in found if path.is_dir())


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK_AT_80 else pytest.param(name, marks=pytest.mark.deep)
        for name in (*ROCKETMQ, *RABBITMQ_3, *RABBITMQ_4)
    ],
)
def test_output_fits_80_columns(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of any command is longer than 80 columns or ends inside a word of the wide answer, but for longer words."""
    folder = node_or_store(name, tmp_path)
    monkeypatch.chdir(folder.parent)  # so that paths are short
    folder = Path(folder.name)
    for line in (*OF_ALL, *(OF_ROCKETMQ if name in ROCKETMQ else ())):
        words = [str(folder) if word == "DIR" else word for word in line.split()]
        monkeypatch.setattr(output, "_columns", lambda: None)
        wide = run(*words, folder).out
        monkeypatch.setattr(output, "_columns", lambda: 80)
        narrow = run(*words, folder).out
        for shown in narrow.splitlines():
            assert width_of(shown) <= 80 or LONG in shown, f"{line}: {shown}"
        if not line.startswith(("top", "dump", "tail")):  # rates and times differ, bodies are cut
            assert set(wide.split()) == set(narrow.split()), line
            numbers = [[word for word in text.split() if word.isdigit()] for text in (wide, narrow)]
            assert Counter(numbers[0]) == Counter(numbers[1]), line


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
    output.show(output.Answer({}, [output.Table(["topic", "messages"], [["orders", 12], ["x", 3]])]), False)
    with output.progress("title", 10) as advance:
        advance(10)
    assert capsys.readouterr().out == "topic   messages\norders        12\nx              3\n"


def test_without_click_the_tool_prints_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dependencies of the library do not include it."""
    monkeypatch.setitem(sys.modules, "click", None)
    ran = run("info", ".")
    assert ran.code == 2
    assert "brokerstore[cli]" in ran.talk


def test_help_has_whole_summaries_at_80_columns() -> None:
    """No summary of a command ends in dots."""
    shown = run("--help").out + run("offsets", "--help").out
    summaries = [line for line in shown.splitlines() if re.match("  [a-z][a-z-]*  +[A-Z]", line)]
    assert len(summaries) == len(brokerstore.list_commands(click.Context(brokerstore))) + 2
    assert all(line.endswith(".") and not line.endswith("...") and len(line) <= 80 for line in summaries)


ROWS = [["orders", "0", "12"], ["a" * 30, "0", "7"], ["a" * 30, "1", "8"]]


def test_a_name_that_is_too_long_gets_a_line_of_its_own() -> None:
    """Shorter names stay in the row; a name of several rows is shown once."""
    assert table_lines(["topic", "queue", "messages"], ROWS, 24) == [
        "topic    queue  messages",
        "orders       0        12",
        "a" * 30,
        "             0         7",
        "             1         8",
    ]


def test_cells_are_wrapped_between_words_first() -> None:
    """A column of prose becomes as narrow as its words allow."""
    assert table_lines(["step", "because of"], [["rename", "a file of no queue"]], 18) == [
        "step    because of",
        "rename  a file of",
        "        no queue",
    ]


def test_the_end_of_a_row_is_cut_or_on_the_next_line() -> None:
    """Wide terminals cut it; narrow ones show it below; pipes get all of it."""
    layout = (TableColumn("queue", 6), TableColumn("number", 6, True))
    assert message_lines(layout, ["mail", "7"], "x" * 50, None) == ["mail         7  " + "x" * 50]
    assert message_lines(layout, ["mail", "7"], "x" * 50, 40) == ["mail         7  " + "x" * 21 + "..."]
    assert message_lines(layout, ["mail", "7"], "x" * 50, 30) == ["mail         7", "    " + "x" * 23 + "..."]
    assert width_of("标签") == 4
