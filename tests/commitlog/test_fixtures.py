"""Logs that RocketMQ wrote: read field by field, encoded again, and written again from the same messages."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest

from storageio import REAL_DISK
from tests.builds import World
from tests.commitlog.logs import FIXTURES, MemoryLog, host_text, log_bytes, message_of, records

FILE_SIZE = 65536
MAGIC_BLANK = 0xCBD43194


def fields(expected: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest's message under the names of this library."""
    return {
        "physical_offset": expected["physicalOffset"],
        "size": expected["storeSize"],
        "magic": int(expected["magic"], 16) - (1 << 32),
        "topic": expected["topic"],
        "queue_id": expected["queueId"],
        "queue_offset": expected["queueOffset"],
        "body_crc": expected["bodyCRC"],
        "flag": expected["flag"],
        "sys_flag": expected["sysFlag"],
        "born_timestamp_ms": expected["bornTimestamp"],
        "born_host": host_text(expected["bornHost"]),
        "store_timestamp_ms": expected["storeTimestamp"],
        "store_host": host_text(expected["storeHost"]),
        "reconsume_times": expected["reconsumeTimes"],
        "prepared_transaction_offset": expected["preparedTransactionOffset"],
        "message_id": expected["msgId"],
        "all_properties": expected["properties"],
        "properties_raw": expected["propertiesString"].encode(),
        "body": base64.b64decode(expected["body"] or ""),
    }


@pytest.mark.parametrize("name", FIXTURES)
def test_every_message_is_that_of_the_manifest(world: World, fixture_store: Any, name: str) -> None:
    """This compares all fields of all messages, with all checks."""
    fixture = fixture_store(name)
    expected = [fields(manifest) for manifest in fixture.expected()["messages"]]
    log = world.commitlog.open_log(str(fixture.store / "commitlog"))
    found = list(log.messages())
    assert [{key: getattr(message, key) for key in expected[0]} for message in found] == expected
    assert log.file_size_bytes == FILE_SIZE
    for message, manifest in zip(found, fixture.expected()["messages"], strict=True):
        at = message.physical_offset
        data = log.select(at, message.size)
        assert zlib.crc32(data) == manifest["recordCrc32"]
        assert log.message_at(at).body == message.body
        tags, keys = manifest["properties"].get("TAGS"), manifest["properties"].get("KEYS", "").split()
        assert (message.tags, message.keys) == (tags, keys)
        assert message.properties == {k: v for k, v in manifest["properties"].items() if k != "__CRC32#"}
    log.close()


def test_manifest_of_the_plain_fixture_has_every_kind_of_message(fixture_store: Any) -> None:
    """It has 1093 messages of every kind: both magics, all address families, transactions, batches."""
    manifests = fixture_store("plain").expected()["messages"]
    assert len(manifests) == 1093
    assert {expected["magic"] for expected in manifests} == {"daa320a7", "daa320ab"}
    assert {expected["sysFlag"] for expected in manifests} >= {0, 1, 4, 8, 12, 16, 32, 48}


@pytest.mark.parametrize("name", FIXTURES)
def test_the_walk_finds_records_blanks_and_the_end(world: World, fixture_store: Any, name: str) -> None:
    """There are as many as in the manifest, protected if the checksum was on."""
    fixture = fixture_store(name)
    expected = fixture.expected()
    log = world.commitlog.open_log(str(fixture.store / "commitlog"))
    stops = [log.walk_file(file) for file in log.queue.files]
    assert sum(stop.records for stop in stops) == expected["messageCount"]
    blanks = [[stop.offset, log.queue.find(stop.offset).end_offset - stop.offset] for stop in stops if stop.why == "blank"]
    assert blanks == expected["blankRecords"]
    is_whole_blank = world.module("commitlog.cursor").is_whole_blank
    assert all(is_whole_blank(log.select(at, 4), left) for at, left in blanks)
    protected = sum("__CRC32#" in message["properties"] for message in expected["messages"])
    assert sum(stop.protected for stop in stops) == protected
    assert log.find_end().offset in (expected["maxPhyOffset"], -(-expected["maxPhyOffset"] // FILE_SIZE) * FILE_SIZE)
    log.close()


@pytest.mark.parametrize("name", FIXTURES)
def test_each_record_and_blank_encoded_from_its_fields_is_the_same(world: World, fixture_store: Any, name: str) -> None:
    """Raw properties are kept, offsets and times are given."""
    data = log_bytes(fixture_store(name))
    reader = world.module("commitlog._scan_cy").Reader(data)
    found = blanks = 0
    for at, magic, expected in records(data):
        if magic == MAGIC_BLANK:
            log = MemoryLog(world, FILE_SIZE)
            log.next_file()
            log.appender.attach(memoryview(log.files[0]), 0, at % FILE_SIZE)
            log.appender.append(world.commitlog.Message("T", bytes(FILE_SIZE - 200), queue_id=0))
            assert bytes(log.files[0][at % FILE_SIZE :]) == expected
            blanks += 1
            continue
        assert encode_again(world, reader.decode(at), len(expected)) == expected
        found += 1
    assert found == fixture_store(name).expected()["messageCount"]
    assert blanks == len(fixture_store(name).expected()["blankRecords"])


def encode_again(world: World, stored: Any, size: int) -> bytes:
    """Return the record that an append makes of a message read from the log."""
    with_crc = b"__CRC32#\x01" in stored.properties_raw
    log = MemoryLog(world, size + 8, with_crc=with_crc, clock=lambda: stored.store_timestamp_ms)
    log.offsets.set_next_offset(stored.topic, stored.queue_id, stored.queue_offset)
    buffer = memoryview(bytearray(size + 8))
    log.appender.attach(buffer, stored.physical_offset, 0)
    result = log.appender.append(stored.to_message())
    assert (result.status.name, result.physical_offset, result.size_bytes) == ("PUT_OK", stored.physical_offset, size)
    assert result.queue_offset == stored.queue_offset
    assert result.message_id == stored.message_id
    return bytes(buffer[:size])


@pytest.mark.parametrize("name", ["plain", "propcrc"])
def test_the_same_messages_at_the_same_times_give_the_same_files(
    world: World, fixture_store: Any, name: str, tmp_path: Any
) -> None:
    """Offsets, queue offsets, blanks and checksums are computed, also in 64 KiB files."""
    fixture = fixture_store(name)
    manifests = fixture.expected()["messages"]
    now = [0]
    cl = world.commitlog
    folder = tmp_path / "commitlog"
    log = cl.CommitLog(
        cl.LogPaths(REAL_DISK, [str(folder)]),
        file_size_bytes=FILE_SIZE,
        writable=True,
        with_crc=name == "propcrc",
        clock=lambda: now[0],
    )
    log.attach(log.find_end().offset)
    index = batches = 0
    while index < len(manifests):
        count = 10 if manifests[index]["topic"] == "BatchTopic" else 1
        group = manifests[index : index + count]
        now[0] = group[0]["storeTimestamp"]
        messages = [message_of(world, expected) for expected in group]
        result = log.appender.append_batch(messages) if count > 1 else log.appender.append(messages[0])
        assert (result.status.name, result.message_count) == ("PUT_OK", count)
        assert (result.physical_offset, result.queue_offset) == (group[0]["physicalOffset"], group[0]["queueOffset"])
        index += count
        batches += count > 1
    log.flush()
    log.close()
    assert batches == 3
    requested = {path.name: path.read_bytes() for path in (fixture.store / "commitlog").iterdir()}
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert found.keys() == requested.keys()
    assert [file for file in requested if found[file] != requested[file]] == []
