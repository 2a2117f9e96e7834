"""The configuration of version 2, which a real 5.3.3 broker with configManagerVersion=v2 keeps beside queues in files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from messagestore import MessageStore
from messagestore.broker.config.consumer_offsets import offsets_table
from messagestore.broker.config.subscription_groups import SubscriptionGroups
from messagestore.rocksdb.config import read_config
from messagestore.rocksdb.database import can_read
from storageio import REAL_DISK, MissingExtra, StoreCorrupt, UnsupportedFormat
from tests.brokerstore.tool import run
from tests.faults.test_unknown_formats import snapshot

from .test_rocksdb import change

needs_rocksdict = pytest.mark.skipif(not can_read(), reason="rocksdict is not installed")
NAME = "broker-config-v2"
TOPIC_KEY = bytes.fromhex("0100030200075632546f706963")
OFFSET_KEY = bytes.fromhex("010001020004475f76320100075632546f7069630100000001")  # G_v2, V2Topic, queue 1


@pytest.fixture
def store(fixture_store: Any) -> Path:
    """Return a copy of the broker's folder."""
    folder: Path = fixture_store(NAME, own=True).store
    return folder


@needs_rocksdict
def test_topics_groups_and_offsets_equal_those_the_broker_reported_to_clients(fixture_store: Any) -> None:
    """The broker's own topics are not in the database; an offset that nobody committed is 0 for a client."""
    fixture = fixture_store(NAME)
    before = snapshot(fixture.store)
    expected = fixture.expected("manifest.json")
    found = read_config(REAL_DISK, str(fixture.store))
    assert sorted(found.topics) == ["V2ReadOnly", "V2Topic"]  # a deleted one is gone
    assert sorted(found.groups) == ["G_order", "G_v2"]
    rows = {row["key"]: row["valueText"] for row in expected["databases"]["config/rdb"]["default"]}
    for number, table, reported in ((3, found.topics, expected["topics"]), (4, found.groups, expected["groups"])):
        for name, value in table.items():
            key = f"01{number:04x}02{len(name):04x}{name.encode().hex()}"
            assert value == json.loads(rows[key][1:])
            assert all(reported[name].get(field) == one for field, one in value.items() if isinstance(one, bool | int | str))
    committed = {("G_v2", 0), ("G_v2", 1), ("G_v2", 2), ("G_order", 1)}
    assert found.offsets == {
        f"V2Topic@{group}": {int(queue): offset for queue, offset in reported.items() if (group, int(queue)) in committed}
        for group, reported in expected["offsets"].items()
    }
    assert snapshot(fixture.store) == before


@needs_rocksdict
def test_the_tool_and_a_reader_use_the_offsets_and_topics(fixture_store: Any) -> None:
    """`offsets`, `ls`, `verify` and an open store read them; without them a consumer would start from the beginning."""
    store = fixture_store(NAME).store
    rows = run("offsets", "show", "--json", store).json["offsets"]
    lags = {(row["group"], row["queue_id"]): (row["offset"], row["lag"]) for row in rows}
    assert lags[("G_v2", 0)] == (10, 0) and lags[("G_v2", 1)] == (4, 6) and lags[("G_order", 1)] == (7, 3)
    topics = {row["topic"]: (row["read_queues"], row["perm"]) for row in run("ls", "--json", store).json["topics"]}
    assert topics == {"V2Topic": (3, 6), "V2ReadOnly": (1, 4)}
    ran = run("verify", store)
    assert ran.code == 0 and "not read" not in ran.out
    with MessageStore.open(store, "r") as opened:
        assert opened.committed_offsets("V2Topic", group="G_v2") == {0: 10, 1: 4, 2: 0}
        assert "V2ReadOnly" in opened.topics()


@needs_rocksdict
def test_a_copy_has_the_groups_and_their_offsets(fixture_store: Any, tmp_path: Path) -> None:
    """The new store has them in files, and can be written to."""
    source = fixture_store(NAME).store
    assert run("copy", source, "--to", tmp_path / "copied", "--all").code == 0
    with MessageStore.open(tmp_path / "copied", "r+") as copied:
        assert copied.committed_offsets("V2Topic", group="G_v2") == {0: 10, 1: 4, 2: 0}
    group = SubscriptionGroups(REAL_DISK, str(tmp_path / "copied" / "config")).get("G_v2")
    assert group is not None and group.retry_max_times == 5


@pytest.mark.parametrize("mode", ["r+", "a"])
def test_no_writer_opens_the_store(store: Path, mode: str) -> None:
    """A writer would commit to consumerOffset.json, which the broker does not read."""
    before = snapshot(store)
    with pytest.raises(UnsupportedFormat, match="config/rdb"):
        MessageStore.open(store, mode)
    assert run("offsets", "reset", store, "--group", "G_v2", "--topic", "V2Topic", "--to", "earliest", "--apply").code == 3
    assert run("serve", store).code == 3
    assert snapshot(store) == before


def test_without_the_extra_offsets_are_refused_and_messages_are_read(
    fixture_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """No command takes unread offsets for none."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    store = fixture_store(NAME).store
    ran = run("offsets", "show", store)
    assert ran.code != 0 and "brokerstore[rocksdb]" in ran.talk
    assert "config/rdb: not read" in run("verify", store).out
    ran = run("ls", "--json", store)
    assert [row["messages"] for row in ran.json["queues"]] == [10, 10, 10] and "brokerstore[rocksdb]" in ran.talk
    with MessageStore.open(store, "r") as opened, pytest.raises(MissingExtra, match=r"brokerstore\[rocksdb\]"):
        opened.committed_offsets("V2Topic", group="G_v2")


DAMAGES = {
    "an unknown table": {bytes.fromhex("010005020001") + b"T": b"\1{}"},
    "an unknown kind of row": {bytes.fromhex("010003030001") + b"T": b"\1{}"},
    "a key that is too short": {b"\1\0": b"\1{}"},
    "a name longer than its key": {bytes.fromhex("010003020009") + b"T": b"\1{}"},
    "bytes after the name": {TOPIC_KEY + b"x": b"\1{}"},
    "no JSON": {TOPIC_KEY: b"\1{"},
    "an empty value": {TOPIC_KEY: b""},
    "a short offset": {OFFSET_KEY: bytes(7)},
    "a short queue": {OFFSET_KEY[:-1]: bytes(8)},
    "a separator of another kind": {OFFSET_KEY.replace(b"v2\1", b"v2\2"): bytes(8)},
    "a short version": {bytes.fromhex("01000301") + b"data_version": bytes(23)},
}


@needs_rocksdict
@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_a_problem(store: Path, name: str) -> None:
    """The row is shown; offsets are refused, not taken for none."""
    change(store / "config" / "rdb", "default", dict(DAMAGES[name]))
    with pytest.raises(StoreCorrupt, match="config/rdb"):
        read_config(REAL_DISK, str(store))
    assert run("verify", store).code == 1
    assert run("offsets", "show", store).code not in (0, 2)
    ran = run("ls", "--json", store)
    assert ran.code == 1 and len(ran.json["queues"]) == 3


@needs_rocksdict
def test_another_serialization_is_refused_by_name(store: Path) -> None:
    """The broker has names for protocol buffers and flat buffers, and writes neither."""
    change(store / "config" / "rdb", "default", {TOPIC_KEY: b"\2\x0a\x01T"})
    with pytest.raises(UnsupportedFormat, match="serialization type 2"):
        read_config(REAL_DISK, str(store))
    assert "config/rdb: not read" in run("verify", store).out


@needs_rocksdict
def test_a_json_file_beside_version_2_is_refused_by_name(store: Path) -> None:
    """The folder does not show which of them the broker uses."""
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"V2Topic@G_v2":{0:1}}}')
    with pytest.raises(UnsupportedFormat, match=r"consumerOffset\.json"):
        offsets_table(REAL_DISK, str(store / "config"))
    assert run("offsets", "show", store).code == 3


@needs_rocksdict
@pytest.mark.parametrize("data", [b"", bytes(100)], ids=["empty", "zeros"])
@pytest.mark.parametrize("name", ["delayOffset.json", "consumerFilter.json"])
@pytest.mark.deep
def test_damaged_json_beside_rocksdb_is_reported_until_it_is_repaired(fixture_store: Any, name: str, data: bytes) -> None:
    """A broker with its topics in RocksDB keeps these two in JSON."""
    folder: Path = fixture_store("broker-rocksdb", own=True).store
    (folder / "config" / name).write_bytes(data)
    assert run("verify", folder).code == 1
    assert run("recover", folder, "--apply").code == 7
    assert run("verify", folder).code == 0


@needs_rocksdict
def test_delay_offset_behind_its_queue_in_rocksdb_is_reported(fixture_store: Any) -> None:
    """`recover` sets it back, so `verify` is not 0 before."""
    folder: Path = fixture_store("broker-rocksdb", own=True).store
    path = folder / "config" / "delayOffset.json"
    path.write_text(json.dumps({"offsetTable": {"3": 1000}}))
    ran = run("verify", folder, "--json")
    assert ran.code == 1 and [problem["kind"] for problem in ran.json["problems"]] == ["offset_ahead"]


@needs_rocksdict
def test_recover_leaves_an_unreadable_rocksdb_configuration_to_the_operator(fixture_store: Any) -> None:
    """Only the operator can choose between a copy of the database and a broker that begins without it."""
    folder: Path = fixture_store("broker-rocksdb", own=True).store
    database = folder / "config" / "subscriptionGroups"
    next(database.glob("*.sst")).unlink()
    assert run("verify", folder).code == 1
    ran = run("recover", folder)
    assert ran.code == 1 and "restore this database" in ran.talk and "run: brokerstore" not in ran.talk
    database.rename(folder / "subscriptionGroups")
    assert run("verify", folder).code == 0
