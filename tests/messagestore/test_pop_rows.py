"""What POP consumers have in hand where a real 5.5.1 broker keeps it in RocksDB, and rows that vary it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from messagestore import MessageStore
from messagestore.rocksdb.database import can_read, new_database
from messagestore.rocksdb.pop_rows import PopRow, stored_pop_rows, write_pop_rows
from storageio import REAL_DISK, StoreCorrupt
from tests.archives import unpack
from tests.brokerstore.tool import run

pytestmark = pytest.mark.skipif(not can_read(), reason="rocksdict is not installed")
YEARS = Path(__file__).parents[1] / "data" / "years"
VALUE = {"popTime": 5, "groupId": "G", "topicId": "T", "queueId": 1, "invisibleTime": 7, "offset": 2}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A folder whose consumers processed 60 messages and failed on 12 more, by their own account in the manifest."""
    unpack(YEARS / "popkv551.tar.xz", tmp_path)
    return tmp_path / "popkv551" / "store"


def manifest(store: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((store.parent / "manifest.json").read_text())
    return found


def offsets_of(rows: list[PopRow]) -> list[list[int]]:
    """Return queue id and queue offset of each row."""
    return sorted([row.queue_id, row.queue_offset] for row in rows)


def test_messages_in_hand_are_those_without_an_acknowledgement(store: Path) -> None:
    """`ls` counts them; the time is in the key as well."""
    rows = stored_pop_rows(REAL_DISK, str(store))
    assert offsets_of(rows) == manifest(store)["in_hand"]
    assert {(row.topic, row.group) for row in rows} == {("PopTopic", "G_pop")}
    assert [row.revive_ms for row in rows] == [int.from_bytes(row.key[:8], "big") for row in rows]
    [lag] = run("ls", store, "--json").json["pop"]
    assert (lag["ready"], lag["unacknowledged"]) == (0, len(manifest(store)["in_hand"]))
    assert lag["next_revive_ms"] == min(row.revive_ms for row in rows)


@pytest.mark.parametrize("options", [["--all"], ["--topic", "PopTopic"]])
def test_they_are_copied_with_their_topic(store: Path, options: list[str]) -> None:
    """A row names queue and queue offset alone, which stay; so no topic of the broker is needed."""
    copy = store.with_name("copy")
    ran = run("copy", store, "--to", copy, "--json", *options)
    assert (ran.code, ran.talk) == (0, "")
    assert ran.json["not_copied"] == dict.fromkeys(("delayed", "timers", "transactions", "unacknowledged"), 0)
    assert stored_pop_rows(REAL_DISK, str(copy)) == stored_pop_rows(REAL_DISK, str(store))
    assert run("ls", copy, "--json").json["pop"] == run("ls", store, "--json").json["pop"]
    assert run("verify", copy).code == 0


def test_a_copy_of_other_topics_has_no_rows(store: Path) -> None:
    """They would name messages that it does not have."""
    copy = store.with_name("copy")
    assert run("copy", store, "--to", copy, "--topic", "SELF_TEST_TOPIC").code == 0
    assert not (copy / "kvStore").exists()


def test_without_the_package_a_copy_reports_what_it_lacks(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is complete; an operator or a program learns what is missing and why."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    ran = run("copy", store, "--to", store.with_name("copy"), "--all")
    assert ran.code == 0 and "not copied: kvStore, which needs the extra rocksdb" in ran.talk
    assert not (store.with_name("copy") / "kvStore").exists()
    with MessageStore.open(store, "r") as opened:
        assert opened.copy_topics(store.with_name("other")).unread == ["kvStore"]


def test_without_the_package_what_is_not_shown_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer takes unread rows for none, and the folder has no problem."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    for command in ("ls", "stats"):
        ran = run(command, store, "--json")
        assert (ran.code, "pop" in ran.json) == (0, False)
        assert "no lag of POP consumers: rocksdict is not installed: pip install 'brokerstore[rocksdb]'" in ran.talk
    ran = run("verify", store)
    assert ran.code == 0 and "kvStore: not read: pop consumer state (RocksDB)" in ran.out


def test_verify_reads_the_rows_and_counts_those_after_the_end_of_their_queue(store: Path) -> None:
    """A broker drops such a row later, or delivers the message that it stores there until then."""
    assert [one["kind"] for one in run("verify", store, "--json").json["notes"]] == []
    rows = stored_pop_rows(REAL_DISK, str(store))
    _, queue_id, offset = max((row.queue_offset, row.queue_id, row.queue_offset) for row in rows)
    key = (1 << 42).to_bytes(8, "big") + b"G_pop@PopTopic@" + queue_id.to_bytes(4, "big") + b"@" + bytes(8)
    value = VALUE | {"topicId": "PopTopic", "groupId": "G_pop", "queueId": queue_id, "offset": offset + 1000}
    shutil.rmtree(store / "kvStore")
    write_pop_rows(REAL_DISK, str(store), [*rows, PopRow("PopTopic", "G_pop", 0, 0, 0, key, json.dumps(value).encode())])
    ran = run("verify", store, "--json")
    [found] = [one for one in ran.json["notes"] if one["kind"] == "pop_ahead"]
    assert (ran.code, found["found"]) == (0, "1 row after the end of the queue")


@pytest.mark.parametrize(
    "value",
    [
        b"", b"{", b"[]", b"null", b"[" * 100_000, json.dumps(VALUE | {"offset": "2"}).encode(),
        json.dumps(VALUE | {"queueId": True}).encode(), json.dumps(VALUE | {"popTime": 1 << 63}).encode(),
        json.dumps(VALUE | {"topicId": None}).encode(), json.dumps({"topicId": "T"}).encode(), b"\xff",
    ],
)  # fmt: skip
def test_an_unknown_row_is_refused(store: Path, value: bytes) -> None:
    """Nothing is copied, because the consumers of the copy would miss messages; `ls` shows the rest."""
    shutil.rmtree(store / "kvStore")
    with new_database(REAL_DISK, str(store / "kvStore"), ["default", "popState"]) as database:
        database.put("popState", b"k", json.dumps(VALUE).encode())
        database.put("popState", b"l", value)
    with pytest.raises(StoreCorrupt, match="POP state"):
        stored_pop_rows(REAL_DISK, str(store))
    assert run("copy", store, "--to", store.with_name("copy"), "--all").code == 1
    assert not store.with_name("copy").exists()
    assert run("ls", store).code == 1
    found = run("verify", store, "--json")
    assert (found.code, [one["kind"] for one in found.json["problems"]]) == (1, ["unreadable"])
    planned = run("recover", store, "--json").json["plan"]
    assert "put a copy in its place" in planned["unrepaired"][0]["advice"]
