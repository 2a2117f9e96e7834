"""The tool's answers about a store that another process has open for writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from storageio import REAL_DISK
from tests.brokerstore.schema import check_schema
from tests.brokerstore.tool import run
from tests.messagestore.writers import log_files, open_store, put_all


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """Return a cleanly stopped store whose lock a test can take."""
    with open_store(tmp_path / "store") as store:
        put_all(store, 0, 30)
    return tmp_path / "store"


@pytest.mark.parametrize("command", ["verify", "verify --log-only", "report --out {}", "stats", "info"])
def test_a_check_of_a_store_in_use_says_how_far_it_came(used: Path, tmp_path: Path, command: str) -> None:
    """Text and JSON report it; without a lock neither does."""
    end = run("info", used, "--json").json["max_offset"]
    words = command.format(tmp_path / "page.html").split()
    at_rest = run(words[0], used, *words[1:], "--json").json
    assert "in_use" not in at_rest and "checked_to_offset" not in at_rest
    held = REAL_DISK.lock(str(used / "lock"))
    try:
        ran = run(words[0], used, *words[1:], "--json")
        assert ran.code == 0 and (ran.json["in_use"], ran.json["checked_to_offset"]) == (True, end)
        ran = run(words[0], used, *words[1:])
        assert ran.code == 0 and f"checked up to offset {end}; the store is in use" in ran.out + ran.talk
    finally:
        held.release()


def test_a_log_folder_of_a_store_in_use_is_known_too(used: Path) -> None:
    """The lock is beside the log folder."""
    held = REAL_DISK.lock(str(used / "lock"))
    try:
        assert run("verify", used / "commitlog", "--json").json["in_use"] is True
    finally:
        held.release()


def test_a_half_written_record_of_a_store_in_use_ends_no_command(used: Path) -> None:
    """Without a lock it is a torn end, which `stats` and `dump` report."""
    end = run("info", used, "--json").json["max_offset"]
    data = log_files(used)[0].read_bytes()
    with log_files(used)[0].open("r+b") as file:
        file.seek(end)
        file.write(data[:28] + end.to_bytes(8, "big") + data[36:100])
    assert run("dump", used).code == 1
    held = REAL_DISK.lock(str(used / "lock"))
    try:
        for command in ("dump", "stats", "tail", "info", "verify"):
            assert run(command, used, "--json").code == 0
    finally:
        held.release()


def test_diff_says_that_a_store_is_in_use(used: Path) -> None:
    """`diff` reports each side that is in use."""
    held = REAL_DISK.lock(str(used / "lock"))
    try:
        assert run("diff", used, used, "--json").json["in_use"] is True
        assert run("diff", used, used).talk.count("is in use") == 2
    finally:
        held.release()
    assert "in_use" not in run("diff", used, used, "--json").json


def test_the_published_schema_has_the_keys_of_a_store_in_use(used: Path, tmp_path: Path) -> None:
    """The schema is closed, so a missing key would fail validation."""
    held = REAL_DISK.lock(str(used / "lock"))
    try:
        for command in ("info", "stats", "stats --by hour", "verify", "report --out PAGE", "diff OTHER"):
            words = command.replace("PAGE", str(tmp_path / "page")).replace("OTHER", str(used)).split()
            answer = run(words[0], used, *words[1:], "--json").json
            assert answer["in_use"] is True
            check_schema(words[0], answer)
    finally:
        held.release()
