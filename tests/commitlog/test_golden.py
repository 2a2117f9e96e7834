"""Known bytes, sizes, limits and statuses of the record (docs/formats/commitlog.md, docs/formats/put-rules.md)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storageio import DiskFull, InvalidMessage, StoreClosed
from tests.builds import World, is_compiled_here, load
from tests.commitlog.logs import MemoryLog

GOLDEN = bytes.fromhex(
    "00000072daa320a75ba80bb2000000000000000000000000000000000000000000000000000000000000018bcfe568007f0000010000007b"
    "0000018bcfe5687b7f0000010000007c00000000000000000000000000000004626f64790a746573742d746f7069630009544147530161626302"
)


def golden(world: World) -> Any:
    return world.commitlog.Message(
        "test-topic", b"body", tags="abc", queue_id=0, born_timestamp_ms=1700000000000, born_host="127.0.0.1:123"
    )


def read(world: World, log: MemoryLog) -> list[Any]:
    """Return all messages of a memory log, file by file."""
    found = []
    for number, data in enumerate(log.files):
        messages, at, why = (
            world.module("commitlog._scan_cy").Reader(data, log.first + number * log.size).decode_range(0, log.size, 1 << 20)
        )
        found += messages
        assert why in ("blank", "empty", "end") or log.size - at < 8
    return found


def test_the_golden_record(world: World) -> None:
    """It has 114 bytes, compared one by one."""
    log = MemoryLog(world)
    result = log.appender.append(golden(world))
    assert log.files[0][:114] == GOLDEN
    assert (result.size_bytes, result.physical_offset, result.queue_offset, result.queue_id) == (114, 0, 0, 0)
    assert result.store_timestamp_ms == 1700000000123
    assert log.files[0][114:] == bytes(65536 - 114)


def test_the_golden_record_with_its_checksum(world: World) -> None:
    """It has 134 bytes, a properties size of 29, and the least significant digit first."""
    log = MemoryLog(world, with_crc=True)
    assert log.appender.append(golden(world)).size_bytes == 134
    record = bytes(log.files[0][:134])
    assert record[-20:] == b"__CRC32#\x015314572051\x02"
    assert int.from_bytes(record[103:105], "big") == 29
    assert world.module("commitlog._record_cy").is_protected(record, 0, 134)
    message = world.module("commitlog._scan_cy").Reader(record).decode(0)
    assert (message.properties, message.all_properties["__CRC32#"]) == ({"TAGS": "abc"}, "5314572051")


def test_the_golden_message_id(world: World) -> None:
    """It is encoded and decoded; with IPv6 it has 56 characters."""
    cl, hosts = world.commitlog, world.module("commitlog.hosts")
    assert cl.encode_message_id(hosts.encode_host("127.0.0.1:124"), 4096) == "7F0000010000007C0000000000001000"
    assert cl.decode_message_id("7f0000010000007c0000000000001000") == ("127.0.0.1:124", 4096)
    six = cl.encode_message_id(hosts.encode_host("[fe80::1]:80"), 1 << 40)
    assert (len(six), cl.decode_message_id(six)) == (56, ("[fe80::1]:80", 1 << 40))


@pytest.mark.parametrize(
    "text",
    ["", "7F", "G" * 32, "7F0000010000007C 000000000001000", "7F0000010000007C  00000000001000", "0" * 31, "é" * 32, "0" * 55],
)
def test_decode_message_id_rejects_invalid_text(world: World, text: str) -> None:
    """Decoding such text raises `InvalidMessage`."""
    with pytest.raises(InvalidMessage, match="message id"):
        world.commitlog.decode_message_id(text)


@pytest.mark.parametrize(
    "text", ["", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "::1:80", "[127.0.0.1]:80", "[::1]", "h:80",
             "[::1%eth0]:٣", "1.2.3:4", "127.0.0.1:٣"],
)  # fmt: skip
def test_encode_host_rejects_an_invalid_host(world: World, text: str) -> None:
    """Names, missing ports and wrong brackets are rejected."""
    with pytest.raises(InvalidMessage, match="host"):
        world.module("commitlog.hosts").encode_host(text)


@pytest.mark.parametrize("size", [0, 4, 7, 9, 16, 19, 21])
def test_decode_host_rejects_a_wrong_number_of_bytes(world: World, size: int) -> None:
    """The port is missing, or there is a byte too many."""
    with pytest.raises(ValueError, match=f"not {size}"):
        world.module("commitlog.hosts").decode_host(bytes(size))


@pytest.mark.parametrize(
    ("topic", "size", "version"),
    [("t", 1, 1), ("t" * 127, 127, 1), ("t" * 128, 128, 2), ("t" * 32767, 32767, 2), ("ü" * 63, 126, 1), ("ü" * 64, 128, 2)],
)
def test_topics_and_record_versions(world: World, topic: str, size: int, version: int) -> None:
    """V2 is used from 128 characters on, and for a byte count that overflows one byte, where RocketMQ fails."""
    log = MemoryLog(world, 1 << 17, with_crc=True)
    result = log.appender.append(world.commitlog.Message(topic, b"x", queue_id=1))
    assert result.size_bytes == 91 + 1 + size + 20 + (version - 1)
    message = read(world, log)[0]
    assert (message.topic, message.magic & 0xFF) == (topic, 0xA7 if version == 1 else 0xAB)


@pytest.mark.parametrize("topic", ["", "t" * 32768, "ü" * 16384, "\ud800"])
def test_topics_that_no_record_holds(world: World, topic: str) -> None:
    """The error comes before anything is written."""
    log = MemoryLog(world)
    with pytest.raises(InvalidMessage, match="topic"):
        log.appender.append(world.commitlog.Message(topic, b"x", queue_id=0))
    assert log.files == []


@pytest.mark.parametrize("with_crc", [False, True])
def test_properties_may_have_32767_bytes_with_the_checksum(world: World, with_crc: bool) -> None:
    """One more returns PROPERTIES_SIZE_EXCEEDED, which is tested before the body."""
    most = 32767 - 20 * with_crc
    log = MemoryLog(world, 1 << 17, with_crc=with_crc, body_size_max=50_000)
    make = world.commitlog.Message
    raw = b"a\x01" + b"v" * (most - 3) + b"\x02"
    assert log.appender.append(make("T", b"", queue_id=0, properties_raw=raw)).status.name == "PUT_OK"
    over = make("T", b"x" * 50_001, queue_id=0, properties_raw=b"a" + raw)
    result = log.appender.append(over)
    assert (result.status.name, result.message_count) == ("PROPERTIES_SIZE_EXCEEDED", 0)
    assert str(most) in result.reason
    assert log.offsets.next_offset("T", 0) == 1
    assert len(read(world, log)) == 1


def test_added_property_separator_counts_towards_the_limit(world: World) -> None:
    """Raw properties without a trailing 0x02 get one before the checksum."""
    log = MemoryLog(world, 1 << 17, with_crc=True)
    make = world.commitlog.Message
    assert log.appender.append(make("T", b"", queue_id=0, properties_raw=b"a\x01b")).size_bytes == 92 + 4 + 20
    raw = b"a\x01" + b"v" * (32767 - 22)
    result = log.appender.append(make("T", b"", queue_id=0, properties_raw=raw))
    assert result.status.name == "PROPERTIES_SIZE_EXCEEDED"
    assert read(world, log)[0].properties == {"a": "b"}


def test_bodies_and_records_have_limits(world: World) -> None:
    """The limits are the body size, that plus 64 KiB for a record, and an empty file."""
    make, name = world.commitlog.Message, lambda result: result.status.name
    log = MemoryLog(world, 1 << 18, body_size_max=100_000)
    assert name(log.appender.append(make("T", b"x" * 100_000, queue_id=0))) == "PUT_OK"
    assert name(log.appender.append(make("T", b"x" * 100_001, queue_id=0))) == "MESSAGE_ILLEGAL"
    long = b"a\x01" + b"v" * 32764 + b"\x02"
    assert name(log.appender.append(make("t" * 32767, b"x" * 100_000, queue_id=0, properties_raw=long))) == "MESSAGE_ILLEGAL"
    small = MemoryLog(world, 4096)
    assert name(small.appender.append(make("T", b"x" * (4096 - 8 - 92), queue_id=0))) == "PUT_OK"
    refused = small.appender.append(make("T", b"x" * (4096 - 7 - 92), queue_id=0))
    assert (name(refused), "4088" in refused.reason) == ("MESSAGE_ILLEGAL", True)
    assert len(small.files) == 1


@pytest.mark.parametrize("spare", [8, 7, 9, 0, 1])
def test_the_fit_rule(world: World, spare: int) -> None:
    """A record fits if 8 bytes stay free; otherwise a blank fills the rest, and the record starts the next file."""
    size = 92 + 100
    log = MemoryLog(world, 4096)
    log.next_file()
    start = 4096 - size - spare
    log.appender.attach(memoryview(log.files[0]), 0, start)
    result = log.appender.append(world.commitlog.Message("T", b"x" * 100, queue_id=0))
    fits = spare >= 8
    assert result.physical_offset == (start if fits else 4096)
    if not fits:
        blank = (4096 - start).to_bytes(4, "big") + bytes.fromhex("cbd43194")
        assert log.files[0][start:] == blank + bytes(4096 - start - 8)
    else:
        log.appender.append(world.commitlog.Message("T", b"x" * 100, queue_id=0))
        assert log.files[0][start + size :] == spare.to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(spare - 8)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_batch_is_in_one_file(world: World, count: int) -> None:
    """If any member does not fit, one blank closes the file, and all members start in the next."""
    log = MemoryLog(world, 4096)
    log.next_file()
    log.appender.attach(memoryview(log.files[0]), 0, 4096 - 2 * 192 - 8)
    batch = [world.commitlog.Message("T", b"x" * 100, queue_id=3) for _ in range(count)]
    result = log.appender.append_batch(batch)
    assert (result.message_count, result.queue_offset, result.size_bytes) == (count, 0, 192 * count)
    assert result.physical_offset == (4096 if count == 3 else 4096 - 2 * 192 - 8)
    assert log.offsets.next_offset("T", 3) == count


def test_a_batch_is_of_one_queue_and_no_transaction(world: World) -> None:
    """Otherwise nothing is written."""
    log, make = MemoryLog(world), world.commitlog.Message
    for other in (make("U", b"", queue_id=0), make("T", b"", queue_id=1)):
        with pytest.raises(InvalidMessage, match="one topic and one queue"):
            log.appender.append_batch([make("T", b"", queue_id=0), other])
    refused = log.appender.append_batch([make("T", b"", queue_id=0, sys_flag=8)])
    assert refused.status.name == "MESSAGE_ILLEGAL"
    for put in (log.appender.append_batch, log.appender.append_many):
        with pytest.raises(InvalidMessage, match="no messages"):
            put([])
    assert log.appender.position == 0


@pytest.mark.parametrize(("sys_flag", "counted"), [(0, True), (1, True), (8, True), (4, False), (12, False)])
def test_queue_offsets_count_what_enters_a_queue(world: World, sys_flag: int, counted: bool) -> None:
    """Prepared and rolled-back records have queue offset 0 and do not count."""
    log = MemoryLog(world)
    for _ in range(3):
        log.appender.append(world.commitlog.Message("T", b"", queue_id=9, sys_flag=sys_flag))
    assert [message.queue_offset for message in read(world, log)] == ([0, 1, 2] if counted else [0, 0, 0])
    assert log.offsets.next_offset("T", 9) == (3 if counted else 0)
    assert list(log.offsets.queues()) == ([("T", 9, 3)] if counted else [])


def test_host_flags_follow_the_hosts(world: World) -> None:
    """The message's own flags are ignored."""
    log, make = MemoryLog(world, with_crc=True), world.commitlog.Message
    for born, store in (("1.2.3.4:5", "[::1]:6"), ("[::2]:7", "1.2.3.4:5"), ("[::2]:7", "[::1]:6"), (None, None)):
        log.appender.append(make("T", b"b", queue_id=0, born_host=born, store_host=store, sys_flag=0x31))
    found = read(world, log)
    assert [message.sys_flag for message in found] == [0x21, 0x11, 0x31, 0x01]
    assert [message.born_host for message in found] == ["1.2.3.4:5", "[::2]:7", "[::2]:7", "127.0.0.1:124"]
    assert [message.store_host for message in found] == ["[::1]:6", "1.2.3.4:5", "[::1]:6", "127.0.0.1:124"]
    assert [message.size for message in found] == [125, 125, 137, 113]


@pytest.mark.parametrize("queue_id", [-1, 65536, -(1 << 31), (1 << 31) - 1])
def test_queues_out_of_range(world: World, queue_id: int) -> None:
    """Every way to append raises a named error and writes nothing."""
    log, make = MemoryLog(world), world.commitlog.Message
    for put in (
        lambda: log.appender.append(make("T", b"", queue_id=queue_id)),
        lambda: log.appender.append_many([make("T", b"", queue_id=0), make("T", b"", queue_id=queue_id)]),
        lambda: log.appender.append_batch([make("T", b"", queue_id=queue_id)]),
        lambda: log.appender.append_encoded("T", queue_id, b"", b""),
        lambda: log.appender.append_columns("T", queue_id, memoryview(bytes(16)).cast("q"), b""),
        lambda: log.offsets.set_next_offset("T", queue_id, 5),
    ):
        with pytest.raises(InvalidMessage, match="queue id"):
            put()
    assert log.appender.position == 0
    assert log.offsets.next_offset("T", queue_id) == 0
    log.appender.append(make("T", b"", queue_id=65535))
    assert log.offsets.next_offset("T", 65535) == 1


@pytest.mark.parametrize(
    ("topic", "raw", "is_bad"),
    [
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x01x\x02", True), ("SCHEDULE_TOPIC_XXXX", b"DELAY\x01+3\x02", False),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x012147483648\x02", True), ("T", b"DELAY\x01x\x02", False),
        ("T", b"INNER_BASE\x01x\x02", False), ("T", b"INNER_BASE\x011\x02INNER_NUM\x01 2\x02", True),
        ("T", b"INNER_BASE\x01-9223372036854775808\x02INNER_NUM\x0132767\x02", False),
        ("T", b"INNER_BASE\x011\x02INNER_NUM\x0132768\x02", True), ("T", b"INNER_NUM\x01\xd9\xa3\x02INNER_BASE\x011\x02", True),
    ],
)  # fmt: skip
def test_properties_that_a_real_store_reads_as_numbers(world: World, topic: str, raw: bytes, is_bad: bool) -> None:
    """RocketMQ would end its log at a record with other text."""
    pairs = world.commitlog.decode_properties(raw)
    for put in ({"properties_raw": raw}, {"properties": pairs}):
        log = MemoryLog(world)
        message = world.commitlog.Message(topic, b"", queue_id=0, **put)
        if is_bad:
            with pytest.raises(InvalidMessage, match="a number of"):
                log.appender.append(message)
            assert log.files == []
        else:
            assert log.appender.append(message).status.name == "PUT_OK"


@pytest.mark.parametrize(
    ("raw", "pairs"),
    [
        (b"", {}),
        (b"a\x01b\x02", {"a": "b"}), (b"a\x01b", {"a": "b"}), (b"\x01b\x02", {}), (b"a\x01\x02", {}), (b"ab\x02", {}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}), (b"a\x01b\x01c\x02", {"a": "b\x01c"}), (b"\x02\x02a\x01b\x02", {"a": "b"}),
        (b"a\x01b\x02x", {"a": "b"}), (b"\xff\x01\xfe\x02", {"\ufffd": "\ufffd"}),
    ],
)  # fmt: skip
def test_properties_are_parsed_by_the_rules(world: World, raw: bytes, pairs: dict[str, str]) -> None:
    """Empty names and values are dropped, the last of equal names counts, the last pair may lack its end."""
    assert world.commitlog.decode_properties(raw) == pairs


@pytest.mark.parametrize(
    "given",
    [
        {"tags": "a\x01"}, {"tags": "a\x02b"}, {"keys": ["a b"]}, {"keys": [""]}, {"keys": ["a", ""]}, {"keys": ["a", " b"]},
        {"keys": "a b"}, {"keys": " "}, {"keys": "a\x01"}, {"keys": "\ud800"}, {"keys": "k", "properties_raw": b"a\x01b\x02"},
        {"properties": {"": "v"}}, {"properties": {"n": ""}}, {"properties": {"n\x01": "v"}}, {"properties": {"n": "\x02"}},
        {"tags": "\ud800"}, {"properties": {"n": "v"}, "properties_raw": b"a\x01b\x02"}, {"tags": "t", "properties_raw": b""},
    ],
)  # fmt: skip
def test_properties_that_would_not_come_back_are_refused(world: World, given: dict[str, Any]) -> None:
    """They have separators, empty names or values, spaces in keys, or both forms together."""
    with pytest.raises(InvalidMessage):
        world.commitlog.encode_properties(world.commitlog.Message("T", b"", **given))


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8)
KEY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02 "), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.none() | TEXT, KEY | st.lists(KEY, max_size=4), st.dictionaries(TEXT, TEXT, max_size=4), st.binary(max_size=40))
def test_message_is_read_back_as_it_was_appended(
    tags: str | None, keys: str | list[str], properties: dict[str, str], body: bytes
) -> None:
    """Any text does on both builds, which write the same bytes; a single key becomes a list."""
    listed = [keys] if isinstance(keys, str) else keys
    properties = {name: value for name, value in properties.items() if name not in ("KEYS", "TAGS", "DELAY", "__CRC32#")}
    written = set()
    for build in ("compiled", "plain") if is_compiled_here() else ("plain",):
        world = load(build)
        log = MemoryLog(world, with_crc=True)
        message = world.commitlog.Message("T", body, tags=tags, keys=keys, properties=properties, queue_id=0)
        assert log.appender.append(message).status.name == "PUT_OK"
        found = read(world, log)[0]
        assert (found.body, found.tags, found.keys) == (body, tags, listed)
        assert message.keys == listed
        assert {name: value for name, value in found.properties.items() if name not in ("KEYS", "TAGS")} == properties
        written.add(bytes(log.files[0][: found.size]))
    assert len(written) == 1


@pytest.mark.parametrize(
    ("raw", "name", "left"),
    [
        (b"a\x01b\x02c\x01d\x02", b"a", b"c\x01d\x02"),
        (b"xa\x01b\x02", b"a", b"xa\x01b\x02"), (b"a\x02a\x01b\x02", b"a", b"a\x02"),
        (b"a\x01b\x02a\x01c\x02", b"a", b""),
        (b"v\x01a\x01b\x02", b"a", b"v\x01a\x01b\x02"), (b"ab\x01c\x02", b"a", b"ab\x01c\x02"),
    ],
)  # fmt: skip
def test_deleting_a_property(world: World, raw: bytes, name: bytes, left: bytes) -> None:
    """It removes every pair of that exact name and nothing else."""
    assert world.commitlog.delete_property(raw, name) == left


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"topic": None}, TypeError),
        ({"body": None}, TypeError), ({"body": "text"}, TypeError), ({"topic": b"x"}, TypeError),
        ({"tags": 5}, TypeError), ({"keys": b"k"}, TypeError), ({"keys": ("k",)}, TypeError), ({"properties": []}, TypeError),
        ({"flag": 1 << 31}, OverflowError),
        ({"queue_id": "1"}, TypeError), ({"born_timestamp_ms": 1 << 63}, OverflowError), ({"properties_raw": "x"}, TypeError),
    ],
)  # fmt: skip
def test_messages_of_wrong_types(world: World, given: dict[str, Any], error: type[Exception]) -> None:
    """Both builds raise the same errors."""
    with pytest.raises(error):
        world.commitlog.Message(**{"topic": "T", "body": b"", **given})


def test_message_keys_can_be_replaced(world: World) -> None:
    """New keys replace the previous ones; no key and an empty one both mean None."""
    message = world.commitlog.Message("T", b"", keys="a")
    for keys in (["b", "c"], None, "d", ""):
        message.keys = keys
        assert message.keys == ([keys] if keys and isinstance(keys, str) else keys or None)
    with pytest.raises(TypeError):
        message.keys = 5


def test_a_full_disk_loses_nothing(world: World) -> None:
    """The file is unchanged; when space is free again, the same message is appended."""
    log, make = MemoryLog(world, 4096), world.commitlog.Message
    message = make("T", b"x" * 1500, queue_id=0)
    assert log.appender.append(message).status.name == log.appender.append(message).status.name == "PUT_OK"
    before, log.fail = bytes(log.files[0]), DiskFull("allocate", "next", 28, "No space left on device")
    refused = log.appender.append(message)
    assert (refused.status.name, refused.message_count) == ("CREATE_MAPPED_FILE_FAILED", 0)
    assert "No space left" in refused.reason
    many = log.appender.append_many([make("T", b"", queue_id=0), message, message])
    assert (many.status.name, many.message_count) == ("CREATE_MAPPED_FILE_FAILED", 1)
    rows = memoryview(bytes(8) + (1500).to_bytes(8, "little") + (3000).to_bytes(8, "little")).cast("q")
    columns = log.appender.append_columns("T", 0, rows, bytes(3000))
    assert (columns.status.name, columns.message_count) == ("CREATE_MAPPED_FILE_FAILED", 0)
    assert log.appender.append_batch([message, message]).status.name == "CREATE_MAPPED_FILE_FAILED"
    assert log.files[0][: len(before) - 1000] == before[:-1000]
    log.fail = None
    result = log.appender.append(message)
    assert (result.physical_offset, result.queue_offset) == (4096, 3)
    assert [found.queue_offset for found in read(world, log)] == [0, 1, 2, 3]


def test_a_closed_log_takes_nothing(world: World) -> None:
    """Every way to append raises `StoreClosed`; the file is released."""
    log, make = MemoryLog(world), world.commitlog.Message
    log.appender.append(make("T", b"x", queue_id=0))
    end = log.appender.end_offset
    log.appender.close()
    for put in (
        lambda: log.appender.append(make("T", b"", queue_id=0)),
        lambda: log.appender.append_many([make("T", b"", queue_id=0)]),
        lambda: log.appender.append_batch([make("T", b"", queue_id=0)]),
        lambda: log.appender.append_encoded("T", 0, b"", b""),
        lambda: log.appender.append_columns("T", 0, memoryview(bytes(16)).cast("q"), b""),
    ):
        with pytest.raises(StoreClosed):
            put()
    assert (log.appender.end_offset, log.offsets.next_offset("T", 0)) == (end, 1)
    log.files[0].clear()


def test_store_time_never_goes_back(world: World) -> None:
    """The clock may go back, also relative to the last record before a restart."""
    times = iter([100, 90, 101, 50, 60])
    log = MemoryLog(world, clock=lambda: next(times))
    for _ in range(4):
        log.appender.append(world.commitlog.Message("T", b"", queue_id=0))
    assert [message.store_timestamp_ms for message in read(world, log)] == [100, 100, 101, 101]
    assert [message.born_timestamp_ms for message in read(world, log)] == [100, 100, 101, 101]
    log.appender.attach(memoryview(log.files[0]), 0, 0, 1000)
    assert log.appender.append(world.commitlog.Message("T", b"", queue_id=0)).store_timestamp_ms == 1000


UNUSUAL_TEXT = st.text(st.sampled_from("ab \x01\x02\x00é中😀\ud800") | st.characters(), max_size=6)


UNUSUAL_NAME = UNUSUAL_TEXT | st.sampled_from(
    ["DELAY", "INNER_NUM", "INNER_BASE", "INNER_X", "__CRC32#", "__CRC32", "TAGS", "KEYS"]
)
UNUSUAL_PROPERTIES = st.none() | st.dictionaries(
    UNUSUAL_NAME, UNUSUAL_TEXT | st.sampled_from(["7", "INNER_", "__CRC32#"]), max_size=3
)


@settings(max_examples=300, deadline=None)
@given(
    st.none() | UNUSUAL_TEXT, UNUSUAL_TEXT | st.lists(UNUSUAL_TEXT, max_size=3), UNUSUAL_PROPERTIES,
    st.sampled_from(["T", "SCHEDULE_TOPIC_XXXX"]),
)  # fmt: skip
def test_one_pass_property_encoding_equals_encode_properties(
    tags: str | None, keys: str | list[str], properties: dict[str, str] | None, topic: str
) -> None:
    """For one message and many: the bytes of `encode_properties` without a user's checksum, or an error of the same text."""
    for build in ("compiled", "plain") if is_compiled_here() else ("plain",):
        world = load(build)
        message = world.commitlog.Message(topic, b"body", tags=tags, keys=keys, properties=properties, queue_id=0)
        log = MemoryLog(world)
        try:
            encoded = world.commitlog.delete_property(world.commitlog.encode_properties(message), b"__CRC32#")
            world.module("commitlog.java_numbers").check_number_properties(topic, encoded)
            refusal = None
        except InvalidMessage as error:
            refusal = str(error)
        for put in (lambda: log.appender.append(message), lambda: log.appender.append_many([message, message])):  # noqa: B023
            try:
                put()
                assert refusal is None
            except InvalidMessage as error:
                assert str(error) == refusal
        assert [there.properties_raw for there in read(world, log)] == ([] if refusal else [encoded] * 3)
