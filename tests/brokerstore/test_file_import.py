"""`import` from JSON Lines and Parquet: the same messages once each, and invalid rows are reported by number."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from brokerstore.file_import import import_file
from commitlog import Message
from messagestore import MessageStore, StoreConfig
from storageio import StoreError
from tests.brokerstore.tool import run
from tests.messagestore.kit import Clock
from tests.messagestore.test_delays import deliver

FIELDS = (
    "topic",
    "queue_id",
    "queue_offset",
    "flag",
    "born_timestamp_ms",
    "born_host",
    "reconsume_times",
    "tags",
    "keys",
    "body_base64",
)


def reported_by(store: Path, topic: str) -> list[dict[str, Any]]:
    return [{name: one[name] for name in FIELDS} for one in run("dump", "--json", "--topic", topic, store).lines]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_an_import_of_an_export_restores_every_message(fixture_store: Any, tmp_path: Path, form: str) -> None:
    """Every field but the position is equal, in the same queues and order."""
    source, out = fixture_store("plain").store, tmp_path / f"rows.{form}"
    assert run("export", "--to", form, "-o", out, "--topic", "SpreadTopic", source).code == 0
    ran = run("import", "--json", out, "--to", tmp_path / "store", "--small")
    assert (ran.code, ran.json["messages"], ran.json["skipped"]) == (0, 237, 0)
    assert reported_by(tmp_path / "store", "SpreadTopic") == reported_by(source, "SpreadTopic")
    assert run("verify", tmp_path / "store").code == 0


def test_a_second_run_puts_only_what_is_missing(tmp_path: Path) -> None:
    """A killed import continues where it stopped."""
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps({"topic": "T", "body": f"{number}", "keys": [f"k{number}"]}) + "\n" for number in range(500)]
    rows.write_text("".join(lines[:300]))
    assert run("import", "--json", rows, "--to", tmp_path / "store", "--small").json["messages"] == 300
    rows.write_text("".join(lines))
    again = run("import", "--json", rows, "--to", tmp_path / "store").json
    assert (again["messages"], again["skipped"]) == (200, 300)
    with MessageStore.open(tmp_path / "store", "r") as store:
        assert [message.body for message in store.read("T", 0)] == [b"%d" % number for number in range(500)]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_delivered_delayed_messages_are_not_delayed_again_by_an_import(tmp_path: Path, form: str) -> None:
    """It arrived after the rows that follow it, and a second run met another message at its offset."""
    config = StoreConfig.small(deliver_delayed=False)
    with MessageStore.open(tmp_path / "old", config=config, clock=(clock := Clock())) as store:
        store.put(Message("T", b"late", queue_id=0, properties={"DELAY": "1"}))
        clock.now_ms += 1000
        deliver(store)
        store.put(Message("T", b"next", queue_id=0))
        store.put(Message("T", b"waits", queue_id=0, properties={"DELAY": "18"}))
    out = tmp_path / f"rows.{form}"
    assert run("export", "--to", form, "-o", out, "--topic", "T", tmp_path / "old").code == 0
    for put, skipped in ((2, 0), (0, 2)):
        ran = run("import", "--json", out, "--to", tmp_path / "store", "--small").json
        assert (ran["messages"], ran["skipped"]) == (put, skipped)
    with MessageStore.open(tmp_path / "store", "r") as store:
        assert [message.body for message in store.read("T", 0)] == [b"late", b"next"]
        assert store.topics() == ["T"]


def test_a_queue_with_other_messages_is_refused(tmp_path: Path) -> None:
    """The messages would be mixed."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"topic": "T", "body": "a"}\n')
    run("import", rows, "--to", tmp_path / "store", "--small")
    rows.write_text('{"topic": "T", "body": "b"}\n{"topic": "T", "body": "c"}\n')
    ran = run("import", rows, "--to", tmp_path / "store")
    assert ran.code == 2
    assert "T/0 holds another message" in ran.talk
    with MessageStore.open(tmp_path / "store", "r") as store:
        assert [message.body for message in store.read("T", 0)] == [b"a"]


@pytest.mark.parametrize(
    "line",
    ["{", "[1]", "{}", '{"topic": "T"}', '{"topic": 1, "body": "x"}', '{"topic": "T", "body_base64": "*"}',
     '{"topic": "T", "body": "x", "keys": 3}', '{"topic": "T", "body": "x", "queue_id": "q"}',
     '{"topic": "T", "body": "x", "flag": 99999999999}', '{"topic": "T", "body": "x", "properties": [1]}'],
)  # fmt: skip
def test_a_row_that_is_no_message_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    """The error has the file and what was expected."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"topic": "T", "body": "good"}\n' + line + "\n")
    ran = run("import", rows, "--to", tmp_path / "store", "--small")
    assert (ran.code, ran.out) == (1, "")
    assert f"row 2 of {rows}: expected" in ran.talk
    assert "the 1 rows before it are imported" in ran.talk
    assert "then run the same command again" in ran.talk
    rows.write_text('{"topic": "T", "body": "good"}\n{"topic": "T", "body": "mended"}\n')
    again = run("import", "--json", rows, "--to", tmp_path / "store").json
    assert (again["messages"], again["skipped"]) == (1, 1)


def test_a_row_that_the_store_refuses_stops_half_way(tmp_path: Path) -> None:
    """The error has the row's number, its topic, and how to continue."""
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps({"topic": "T", "body": f"{number}", "queue_id": number % 2}) + "\n" for number in range(600)]
    bad = json.dumps({"topic": "L" * 150, "body": "x"}) + "\n"
    long = json.dumps({"topic": "T", "body": "x", "properties": {"p": "x" * 40000}}) + "\n"
    for refused, code, shown in ((bad, 1, "L" * 150), (long, 1, "T")):
        rows.write_text("".join([*lines[:299], refused, *lines[300:]]))
        ran = run("import", rows, "--to", tmp_path / f"store-{len(shown)}", "--small")
        assert ran.code == code
        assert f"row 300 of {rows}, topic {shown!r}; the 299 rows before it are imported" in ran.talk
        assert "run the same command again" in ran.talk
        rows.write_text("".join(lines))
        again = run("import", "--json", rows, "--to", tmp_path / f"store-{len(shown)}").json
        assert (again["messages"], again["skipped"]) == (301, 299)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists a process's open files")
def test_the_file_is_closed_while_the_error_of_a_row_is_held(tmp_path: Path) -> None:
    """The error's frames keep the walk over the rows alive."""
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps({"topic": topic, "body": "x"}) for topic in ("T", "L" * 150, *["T"] * 2000)]
    rows.write_text("\n".join(lines))
    with pytest.raises(StoreError) as caught:
        import_file(str(rows), str(tmp_path / "store"), config=StoreConfig.small())
    assert "row 2 of" in str(caught.value)
    assert str(rows) not in [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]


def test_rows_before_a_refused_one_are_put_twice(tmp_path: Path) -> None:
    """With a delayed message the store puts rows one by one; those before the refused row stay imported once."""
    rows = tmp_path / "rows.jsonl"
    lines = [{"topic": "T", "body": str(number), "queue_id": 0, "properties": {}} for number in range(10)]
    lines[3] = {"topic": "D", "body": "later", "properties": {"DELAY": "18"}}
    lines[7]["properties"] = {"a\x01b": "x"}
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = run("import", rows, "--to", tmp_path / "store", "--small")
    assert (ran.code, "row 8 of" in ran.talk, "the 7 rows before it are imported" in ran.talk) == (2, True, True)
    with MessageStore.open(tmp_path / "store", "r") as store:
        assert [message.body for message in store.read("T", 0)] == [b"0", b"1", b"2", b"4", b"5", b"6"]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_rows_of_a_rabbit_folder(fixture_store: Any, tmp_path: Path, form: str) -> None:
    """They have no topic; the error names the command that moves the folder, and no empty store remains."""
    vhost, rows = fixture_store("rabbitmq-clean").folder.parent / "vhost", tmp_path / f"rows.{form}"
    assert run("export", vhost, "--to", form, "-o", rows, "--queue", "q.mixed").code == 0
    ran = run("import", rows, "--to", tmp_path / "store", "--small")
    assert ran.code == 2
    assert "run: brokerstore import RABBIT_DIR --to STORE_DIR" in ran.talk
    assert not (tmp_path / "store").exists()


def test_a_parquet_file_with_other_columns(tmp_path: Path) -> None:
    """The error names the row, and no empty store remains."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for row in ({"topic": "T", "body": "x", "properties": "text"}, {"a": 1}, {"topic": "T", "body": 7}):
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
        ran = run("import", tmp_path / "rows.parquet", "--to", tmp_path / "store", "--small")
        assert (ran.code, "row 1 of" in ran.talk) == (1, True)
        assert not (tmp_path / "store").exists()


def test_unsupported_and_invalid_files_are_refused(tmp_path: Path) -> None:
    """Another file name ending, and an invalid Parquet file, are refused."""
    (tmp_path / "a.txt").write_text("x")
    assert run("import", tmp_path / "a.txt", "--to", tmp_path / "store").code == 3
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    assert run("import", tmp_path / "a.parquet", "--to", tmp_path / "store", "--small").code == 1
    assert not (tmp_path / "store").exists()
