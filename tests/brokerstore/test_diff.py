"""`diff`: the content of two folders, by queue and number."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from commitlog import Message
from messagestore import MessageStore, StoreConfig
from tests.brokerstore.tool import run
from tests.stores import small_config

SMALL = small_config()


def fill(folder: Path, bodies: list[bytes], topic: str = "T", config: StoreConfig = SMALL) -> Path:
    with MessageStore.open(folder, config=config, clock=lambda: 1_700_000_000_000) as store:
        for body in bodies:
            store.put(Message(topic, body, queue_id=0, born_timestamp_ms=1, born_host="10.0.0.1:1"))
    return folder


def test_a_store_and_its_copy_are_the_same(fixture_store: Any) -> None:
    """A copy of either kind of folder is equal."""
    store = fixture_store("plain").store
    assert run("diff", "--json", store, store).json == {"same": True, "count": 0, "differences": []}
    rabbit = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    assert run("diff", rabbit, rabbit).code == 0


def test_file_sizes_and_checksums_are_no_difference(tmp_path: Path) -> None:
    """They describe how a message is stored, not what it is."""
    first = fill(tmp_path / "a", [b"one", b"two"])
    other = SMALL.but(mapped_file_size_commit_log=1 << 20, enabled_append_prop_crc=False)
    assert run("diff", first, fill(tmp_path / "b", [b"one", b"two"], config=other)).code == 0


def test_each_difference_is_named(tmp_path: Path) -> None:
    """A changed body, an extra message and an extra queue are each reported."""
    first, second = fill(tmp_path / "a", [b"one", b"two", b"three"]), fill(tmp_path / "b", [b"one", b"TWO"])
    fill(second, [b"x"], topic="U")
    ran = run("diff", "--json", first, second)
    assert (ran.code, ran.json["count"]) == (1, 3)
    assert ran.json["differences"] == [
        {"queue": "T/0", "number": 1, "kind": "differs", "fields": ["body"]},
        {"queue": "T/0", "number": 2, "kind": "only_in_first", "fields": []},
        {"queue": "U/0", "number": None, "kind": "only_in_second", "fields": []},
    ]
    assert run("diff", first, second).out.splitlines() == [
        "T/0 1: differs in body", "T/0 2: only in the first", "U/0: only in the second",
    ]  # fmt: skip


def test_differences_beyond_the_limit_are_only_counted(tmp_path: Path) -> None:
    """Differences beyond the limit are counted only."""
    first, second = fill(tmp_path / "a", [b"%d" % number for number in range(9)]), fill(tmp_path / "b", [b"x"] * 9)
    ran = run("diff", "--limit", 2, first, second)
    assert len(ran.out.splitlines()) == 2
    assert "9 differences" in ran.talk


def test_folders_of_two_kinds_cannot_be_compared(fixture_store: Any) -> None:
    """The error names both folders."""
    ran = run("diff", fixture_store("plain").store, fixture_store("rabbitmq-clean").folder.parent / "vhost")
    assert ran.code == 3
    assert "rabbitmq" in ran.talk


def test_a_copy_without_one_queue(fixture_store: Any, tmp_path: Path) -> None:
    """The missing queue is reported as a whole."""
    store = fixture_store("plain").store
    shutil.copytree(store, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "consumequeue" / "HotTopic")
    found = run("diff", "--json", store, tmp_path / "copy").json["differences"]
    assert {(one["queue"].split("/")[0], one["kind"]) for one in found} == {("HotTopic", "only_in_first")}
