"""The tool's answers about stores that a real RocketMQ wrote, compared with RocketMQ's own account."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from tests.brokerstore.tool import run

STORES = ["plain", "propcrc"]
ALL_STORES = [*STORES, "lmq", "batchcq", "cqext", "broker-live", "broker-ext"]


def host(text: str) -> str:
    """Return `address|port` of the manifest as `ip:port`, IPv6 in brackets."""
    address, port = text.split("|")
    parsed = ip_address(address)
    return f"[{parsed}]:{port}" if parsed.version == 6 else f"{parsed}:{port}"


def expected(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest's message with the tool's keys."""
    properties = manifest["properties"]
    return {
        "topic": manifest["topic"],
        "queue_id": manifest["queueId"],
        "queue_offset": manifest["queueOffset"],
        "physical_offset": manifest["physicalOffset"],
        "size": manifest["storeSize"],
        "magic": manifest["magic"],
        "body_crc": manifest["bodyCRC"],
        "flag": manifest["flag"],
        "sys_flag": manifest["sysFlag"],
        "born_timestamp_ms": manifest["bornTimestamp"],
        "born_host": host(manifest["bornHost"]),
        "store_timestamp_ms": manifest["storeTimestamp"],
        "store_host": host(manifest["storeHost"]),
        "reconsume_times": manifest["reconsumeTimes"],
        "prepared_transaction_offset": manifest["preparedTransactionOffset"],
        "message_id": manifest["msgId"],
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS", "").split(),
        "properties": properties,
        "body_base64": manifest["body"] or "",
    }


@pytest.mark.parametrize(("name", "count"), [("plain", 1093), ("propcrc", 251)])
def test_dump_gives_every_message_field_by_field(fixture_store: Any, name: str, count: int) -> None:
    """No option gives the size of the files."""
    fixture = fixture_store(name)
    ran = run("dump", "--json", fixture.store)
    assert ran.code == 0
    assert ran.talk == ""
    manifest = fixture.expected()["messages"]
    assert len(ran.lines) == count == len(manifest)
    for found, requested in zip(ran.lines, manifest, strict=True):
        assert found == expected(requested)
        assert list(found) == list(expected(requested))


def test_the_checksum_property_is_among_the_properties(fixture_store: Any) -> None:
    """`dump` shows every property."""
    ran = run("dump", "--json", "--limit", 1, fixture_store("propcrc").store)
    assert ran.json["properties"]["__CRC32#"] == "5777168051"


@pytest.mark.parametrize("name", STORES)
def test_get_gives_the_message_at_each_offset(fixture_store: Any, name: str) -> None:
    """The answer equals the line of `dump`."""
    fixture = fixture_store(name)
    for manifest in fixture.expected()["messages"][::37]:
        ran = run("get", "--json", "--at", manifest["physicalOffset"], fixture.store)
        assert (ran.code, ran.json) == (0, expected(manifest))


@pytest.mark.parametrize("name", ALL_STORES)
def test_verify_finds_nothing_wrong_with_a_good_store(fixture_store: Any, name: str) -> None:
    """Any kinds of queues may lie beside the log."""
    ran = run("verify", "--json", fixture_store(name).store)
    assert ran.json["problems"] == []
    assert (ran.code, ran.json["ok"]) == (0, True)


@pytest.mark.parametrize("name", STORES)
def test_verify_counts_what_the_manifest_counts(fixture_store: Any, name: str) -> None:
    """Messages, blanks and end offset are equal."""
    fixture = fixture_store(name)
    manifest, counts = fixture.expected(), run("verify", "--json", fixture.store).json["counts"]
    assert counts["records"] == manifest["messageCount"]
    assert counts["blanks"] == len(manifest["blankRecords"])
    assert counts["end_offset"] == manifest["maxPhyOffset"]
    assert counts["file_size_bytes"] == manifest["config"]["mappedFileSizeCommitLog"]
    assert counts["protected_records"] == (manifest["messageCount"] if manifest["config"]["enabledAppendPropCRC"] else 0)


@pytest.mark.parametrize("name", STORES)
def test_info_detects_offsets_and_file_sizes(fixture_store: Any, name: str) -> None:
    """They are detected from the files alone."""
    fixture = fixture_store(name)
    manifest, ran = fixture.expected(), run("info", "--json", fixture.store)
    assert ran.code == 0
    assert ran.json["kind"] == "rocketmq"
    assert ran.json["file_size_bytes"] == manifest["config"]["mappedFileSizeCommitLog"]
    assert (ran.json["min_offset"], ran.json["max_offset"]) == (manifest["minPhyOffset"], manifest["maxPhyOffset"])
    assert ran.json["first_store_timestamp_ms"] == manifest["messages"][0]["storeTimestamp"]
    assert ran.json["last_store_timestamp_ms"] == manifest["messages"][-1]["storeTimestamp"]
    assert ran.json["abort_file"] is False


@pytest.mark.parametrize("name", STORES)
def test_ls_names_every_queue_with_its_offsets(fixture_store: Any, name: str) -> None:
    """Offsets equal those of the store's queues; prepared and rolled-back messages are in none."""
    fixture = fixture_store(name)
    ran = run("ls", "--json", fixture.store)
    manifest = fixture.expected()["queues"]
    requested = {(queue["topic"], queue["queueId"]): (queue["minOffset"], queue["maxOffset"]) for queue in manifest}
    found = {(row["topic"], row["queue_id"]): (row["min_offset"], row["max_offset"]) for row in ran.json["queues"]}
    assert found == requested
    assert all(row["messages"] == row["max_offset"] - row["min_offset"] for row in ran.json["queues"])
    assert list(ran.json["queues"][0]) == ["topic", "queue_id", "min_offset", "max_offset", "messages"]


def test_dump_applies_filters_and_a_limit(fixture_store: Any) -> None:
    """Filters by topic and queue, and a limit, apply."""
    fixture = fixture_store("plain")
    manifest = [expected(message) for message in fixture.expected()["messages"]]
    spread = [message for message in manifest if message["topic"] == "SpreadTopic"]
    assert run("dump", "--json", "--topic", "SpreadTopic", fixture.store).lines == spread
    third = [message for message in spread if message["queue_id"] == 3]
    assert run("dump", "--json", "--topic", "SpreadTopic", "--queue", 3, fixture.store).lines == third
    assert (
        run("dump", "--json", "--queue", 3, "--limit", 2, fixture.store).lines
        == [m for m in manifest if m["queue_id"] == 3][:2]
    )
    assert run("dump", "--json", "--limit", 0, fixture.store).out == ""
    assert run("dump", "--json", "--topic", "nobody's", fixture.store).out == ""


def test_the_log_folder_alone_reads_the_same(fixture_store: Any) -> None:
    """A commitlog folder without its store gives the same messages."""
    store = fixture_store("propcrc").store
    assert run("dump", "--json", store / "commitlog").out == run("dump", "--json", store).out
    assert run("info", "--json", store / "commitlog").json["kind"] == "rocketmq-commitlog"


def test_decode_id_gives_broker_and_offset(fixture_store: Any) -> None:
    """The ids of the manifest are those of the real store."""
    for manifest in fixture_store("plain").expected()["messages"][::100]:
        ran = run("decode-id", "--json", manifest["msgId"])
        assert (ran.json["store_host"], ran.json["physical_offset"]) == (
            host(manifest["storeHost"]),
            manifest["physicalOffset"],
        )


READING = [
    ["info"],
    ["ls"],
    ["dump", "--json"],
    ["get", "--at", "0"],
    ["get", "--topic", "HotTopic", "--queue", "0", "--offset", "3"],
    ["tail"],
    ["stats"],
    ["verify"],
    ["recover"],
    ["offsets", "show"],
    ["export"],
]


def test_reading_changes_not_one_byte_nor_time_stamp(fixture_store: Any) -> None:
    """Access times count too, if the system lets a reader keep them."""
    store = fixture_store("plain", own=True).store
    paths = [store, *sorted(store.rglob("*"))]
    contents = {path: path.read_bytes() for path in paths if path.is_file()}
    for path in paths:
        os.utime(path, ns=(10**18, os.lstat(path).st_mtime_ns))  # long ago: the next read would move it
    before = [stamps(path) for path in paths]
    for command in READING:
        assert run(*command, store).code == 0, command
    assert run("query", store, "HotTopic", "hot-1").code == 0
    assert [stamps(path) for path in paths] == before
    assert [store, *sorted(store.rglob("*"))] == paths
    assert {path: path.read_bytes() for path in contents} == contents


def stamps(path: Path) -> tuple[int, ...]:
    """Return the times of a file without reading it."""
    found = os.lstat(path)
    access_ns = found.st_atime_ns if hasattr(os, "O_NOATIME") and found.st_uid == os.geteuid() else 0
    return found.st_mode, found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, access_ns
