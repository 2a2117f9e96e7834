"""The tool's answers about a store that another process has open for writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from storageio import REAL_DISK
from tests.brokerstore.schema import check_schema
from tests.brokerstore.tool import run
from tests.messagestore.writers import Writer, log_files, open_store, put_all


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """Return a cleanly stopped store whose lock a test can take."""
    with open_store(tmp_path / "store") as store:
        put_all(store, 0, 30)
    return tmp_path / "store"


@pytest.mark.parametrize("command", ["verify", "verify --log-only", "report --out {}", "stats", "info"])
def test_a_check_of_a_store_in_use_reports_the_checked_offset(used: Path, tmp_path: Path, command: str) -> None:
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


def test_a_log_folder_of_a_store_in_use_is_reported_as_in_use(used: Path) -> None:
    """The lock is beside the log folder."""
    held = REAL_DISK.lock(str(used / "lock"))
    try:
        assert run("verify", used / "commitlog", "--json").json["in_use"] is True
    finally:
        held.release()


def test_a_partially_written_record_of_a_store_in_use_is_not_an_error(used: Path) -> None:
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


def test_diff_reports_that_a_store_is_in_use(used: Path) -> None:
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


def test_top_counts_what_a_writer_in_another_process_puts(tmp_path: Path) -> None:
    """The writer is not disturbed, and rates are those between two views."""
    root = tmp_path / "store"
    program = """
with open_store(root) as store:
    put_all(store, 0, 30, queues=1)
    with store.consumer("t", group="g", timeout_s=0.0) as consumer:
        for found in consumer.poll(12):
            consumer.ack(found)
    store.engine.persist_offsets()
    said("ready")
    for number in range(5000):
        store.put(message(number, queues=1))
        time.sleep(0.001)
    told()
"""
    with Writer(root, program) as writer:
        assert writer.hear() == "ready"
        ran = run("top", root, "--interval", "0.3", "--count", "2", "--json")
        assert ran.code == 0
        first, second = ran.lines
    for view in (first, second):
        check_schema("top", view)
        assert view["in_use"] is True
        [topic] = view["topics"]
        assert (topic["topic"], topic["queues"]) == ("t", 1)
        [group] = view["groups"]
        assert (group["group"], group["topic"]) == ("g", "t")
        assert group["lag"] == topic["messages"] - 12
    put = second["messages"] - first["messages"]
    seconds = (second["time_ms"] - first["time_ms"]) / 1000
    assert put > 0
    assert second["messages_per_s"] == second["topics"][0]["messages_per_s"] == round(put / seconds)


def test_top_prints_one_view_of_an_idle_store(used: Path) -> None:
    """As text it prints one view where there is no terminal."""
    ran = run("top", used, "--interval", "0.1")
    assert ran.code == 0
    heading, rates, files, headers, row = ran.out.splitlines()
    assert heading.startswith(str(used)) and heading.endswith("not in use")
    assert rates == "30 messages, 0 put/s, 0 B/s"
    assert files.startswith("files: log ")
    assert headers.split() == ["topic", "queues", "messages", "put/s"]
    assert row.split() == ["t", "3", "30", "0"]
