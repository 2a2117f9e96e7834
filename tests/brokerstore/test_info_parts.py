"""`info` lists every part of a RocketMQ store, and which parts it did not check."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from messagestore.folder_contents import _KNOWN, Use
from tests.brokerstore.tool import run

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "store-folder.md"


def parts(store: Path, use: str) -> set[str]:
    return {part["name"] for part in run("info", "--json", store).json["parts"] if part["use"] == use}


def test_timer_files_are_read(fixture_store: Any) -> None:
    """A real broker wrote the timers; its log, queues and index are read."""
    store = fixture_store("broker-timer").store
    assert parts(store, "kept") == set()
    assert {
        "commitlog",
        "consumequeue",
        "index",
        "checkpoint",
        "config",
        "abort",
        "timerlog",
        "timerwheel",
        "config/timercheck",
    } <= parts(store, "read")


def test_rocksdb_databases_are_named_as_unsupported(fixture_store: Any) -> None:
    """A real broker wrote the RocksDB queues and configuration; the log is checked."""
    store = fixture_store("broker-rocksdb").store
    databases = {"consumequeue", "config/topics", "config/consumerOffsets", "config/subscriptionGroups"}
    assert parts(store, "unsupported") == databases
    ran = run("info", store)
    assert ran.code == 0 and all(f"{name} (RocksDB" in ran.out for name in databases)


def test_files_of_the_user_are_not_listed(fixture_store: Any) -> None:
    """They are not listed and block no writer."""
    store = fixture_store("plain", own=True).store
    before = parts(store, "kept") | parts(store, "read") | parts(store, "unsupported")
    (store / "README.txt").write_text("mine")
    (store / "consumequeue.old").mkdir()
    assert parts(store, "kept") | parts(store, "read") | parts(store, "unsupported") == before
    assert run("put", store, "HotTopic", "body").code == 0


def test_a_store_without_a_log_file_has_no_problem(tmp_path: Path) -> None:
    """A store without a log file has nothing to check."""
    (tmp_path / "commitlog").mkdir()
    assert re.search(r"Problems +not checked", run("info", tmp_path).out)


@pytest.mark.parametrize("name", _KNOWN)
def test_the_format_page_has_each_part(name: str) -> None:
    """The page uses the same words and the same use."""
    what, use = _KNOWN[name]
    rows = re.findall(r"^\| `([^`]*?)/?` \| (.*?)(?: \(`[\w.-]+\.md`\))? \| (\w+) \|$", PAGE.read_text(), re.M)
    assert (name, what, use.value) in rows
    assert use in Use


def test_folders_that_hold_the_log_together_are_named_with_the_command(fixture_store: Any, tmp_path: Path) -> None:
    """The second folder continues the log, or has the only one beside it; the command reads both."""
    store = fixture_store("broker-live", own=True).store
    second = store / "commitlog2"
    second.mkdir()
    last = max((store / "commitlog").iterdir())
    last.rename(second / last.name)
    expected = run("dump", fixture_store("broker-live").store).out
    for first in ("commitlog", "commitlog1"):
        folders = f"{store / first},{second}"
        if first != "commitlog":
            (store / "commitlog").rename(store / first)
        assert f"brokerstore info {store} --commitlog {folders}" in run("info", store).talk
        assert run("info", store, "--commitlog", folders).talk == ""
        assert run("dump", store, "--commitlog", folders).out == expected


@pytest.mark.parametrize("kind", ["a copy", "a hole", "another size", "other names", "a known folder"])
def test_folders_that_are_no_part_of_the_log_are_not_named(fixture_store: Any, kind: str) -> None:
    """A backup has the same names; files of another log leave a hole or have another size."""
    store = fixture_store("broker-live", own=True).store
    _, last = sorted((store / "commitlog").iterdir())
    beside = store / ("timerlog2" if kind != "a known folder" else "tieredstore")
    beside.mkdir()
    if kind == "a copy":
        shutil.copy(last, beside)
    elif kind == "a hole":
        shutil.copy(last, beside / f"{3 * 65536:020}")
    elif kind == "another size":
        (beside / f"{2 * 65536:020}").write_bytes(bytes(32768))
    elif kind == "other names":
        shutil.copy(last, beside / f"{2 * 65536:020}")
        (beside / "readme").write_text("x")
    else:
        last.rename(beside / last.name)
    assert "--commitlog" not in run("info", store).talk
