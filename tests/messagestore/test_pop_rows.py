"""What POP consumers have in hand where a real 5.5.1 broker keeps it in RocksDB, and rows that vary it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from messagestore.rocksdb import pop_rows
from messagestore.rocksdb.database import can_read, new_database
from messagestore.rocksdb.pop_rows import PopRow, stored_pop_rows
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
    """The rest is complete; an operator learns what is missing and why."""
    monkeypatch.setattr(pop_rows, "can_read", lambda: False)
    monkeypatch.setattr("messagestore.rocksdb.database.can_read", lambda: False)
    ran = run("copy", store, "--to", store.with_name("copy"), "--all")
    assert ran.code == 0 and "not copied: kvStore, which needs the extra rocksdb" in ran.talk
    assert not (store.with_name("copy") / "kvStore").exists()


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
