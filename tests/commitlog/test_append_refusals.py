"""Appends that are rejected with nothing written: column shapes, lengths, separators, and interrupts in the middle."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from storageio import DiskError, InvalidMessage, PutRejected
from tests.builds import World
from tests.commitlog.logs import MemoryLog


def offsets(*numbers: int) -> memoryview:
    return memoryview(array("q", numbers))


def taken(log: MemoryLog) -> bytes:
    """Return all that is written, and the next queue offset."""
    return log.bytes + log.offsets.next_offset("t", 0).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"body_offsets": offsets(0, 3, 2), "bodies": b"abc"}, "fall, or leave"),
        ({"body_offsets": offsets(-1, 3), "bodies": b"abc"}, "fall, or leave"),
        ({"body_offsets": offsets(0, 4), "bodies": b"abc"}, "fall, or leave"),
        ({"body_offsets": offsets(0, 3)[::-1], "bodies": b"abc"}, "contiguous"),
        ({"body_offsets": offsets(0, 3), "bodies": memoryview(b"abcabc")[::2]}, "contiguous data"),
        ({"body_offsets": offsets(0, 3), "bodies": b"abc", "keys": (offsets(0, 1, 2), b"ab")}, "2 rows, bodies have 1"),
        ({"body_offsets": offsets(0, 3), "bodies": b"abc", "tags": (offsets(0, 2), b"a\x01")}, "holds"),
        ({"body_offsets": offsets(0, 3), "bodies": b"abc", "keys": (offsets(0, 2), b"\x02a")}, "holds"),
        ({"body_offsets": offsets(), "bodies": b""}, "one more than rows"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(world: World, columns: dict[str, Any], reason: str) -> None:
    """The error names the column, and no byte is written."""
    log = MemoryLog(world)
    log.appender.append_columns("t", 0, offsets(0, 5), b"first")
    before = taken(log)
    with pytest.raises(InvalidMessage, match=reason):
        log.appender.append_columns("t", 0, **columns)
    assert taken(log) == before


def test_separators_outside_the_used_slice_of_a_column_are_accepted(world: World) -> None:
    """Only the text of the slice counts, not the rest of the column."""
    log = MemoryLog(world)
    tags = (offsets(1, 3, 3), b"\x01ab\x02")
    assert log.appender.append_columns("t", 0, offsets(0, 3, 6), b"abcdef", tags=tags).message_count == 2


@pytest.mark.parametrize(
    ("size", "properties", "status"),
    [
        (70_000, b"", "MESSAGE_ILLEGAL"),
        (66_000, b"", "MESSAGE_ILLEGAL"),
        (5, b"a\x01" + b"b" * 32_760, "PROPERTIES_SIZE_EXCEEDED"),
    ],
)
def test_append_columns_writes_nothing_if_one_row_is_oversized(world: World, size: int, properties: bytes, status: str) -> None:
    """If one row exceeds the body limit, a file or 16 bits, no row is written."""
    log = MemoryLog(world, with_crc=True, body_size_max=68_000)
    log.appender.append_columns("t", 0, offsets(0, 5), b"first")
    before = taken(log)
    result = log.appender.append_columns("t", 0, offsets(0, 3, 3 + size), bytes(3 + size), properties=properties)
    assert (result.status.name, result.message_count) == (status, 0)
    assert taken(log) == before


@pytest.mark.parametrize("given", [("keys",), ("tags",)])
def test_columns_with_keys_or_tags_alone_are_the_messages_one_by_one(world: World, given: tuple[str, ...]) -> None:
    """The bytes are equal; a row with an empty text has no such property."""
    log, plain = MemoryLog(world), MemoryLog(world)
    log.appender.append_columns("t", 0, offsets(0, 3, 6), b"abcdef", **{name: (offsets(0, 4, 4), b"text") for name in given})
    for body, text in ((b"abc", "text"), (b"def", None)):
        message = world.commitlog.Message("t", body, queue_id=0, born_timestamp_ms=1700000000123, **dict.fromkeys(given, text))
        plain.appender.append(message)
    assert log.bytes == plain.bytes


@pytest.mark.parametrize(
    ("body", "properties", "status"),
    [
        (b"x", b"a\x01" + b"b" * 32_746, "PROPERTIES_SIZE_EXCEEDED"),
        (bytes(2001), b"", "MESSAGE_ILLEGAL"),
        (bytes(1900), b"a\x01" + b"b" * 2000, "MESSAGE_ILLEGAL"),
    ],
)
def test_an_encoded_message_that_no_record_holds_is_refused(world: World, body: bytes, properties: bytes, status: str) -> None:
    """It exceeds 16 bits, the body limit or a file: nothing is written, and the next message is appended."""
    log = MemoryLog(world, 3000, with_crc=True, body_size_max=2000)
    log.appender.append_encoded("t", 0, b"first", b"")
    before = taken(log)
    with pytest.raises(PutRejected) as refused:
        log.appender.append_encoded("t", 0, body, properties)
    assert refused.value.status.name == status and taken(log) == before
    assert log.appender.append_encoded("t", 0, b"second", b"")[1] == 1


def test_append_to_a_full_ring_is_rejected_and_succeeds_after_space_is_freed(world: World) -> None:
    """With a full disk below the ring the status reports it, and neither log nor queue offset changes."""
    log, errors = MemoryLog(world), [DiskError("write", "ring", 28, "No space left on device")]

    def reserve_more(position: int, size: int) -> None:
        if errors:
            raise errors.pop()
        log.appender.set_reserved(0, position + size)

    log.appender.write_through(reserve_more)
    message = world.commitlog.Message("t", b"x", queue_id=0)
    result = log.appender.append(message)
    assert (result.status.name, "No space left" in result.reason) == ("CREATE_MAPPED_FILE_FAILED", True)
    assert (log.appender.position, log.offsets.next_offset("t", 0)) == (0, 0)
    assert log.appender.append(message).queue_offset == 0


def test_append_many_rejects_a_wrong_number_of_queue_ids(world: World) -> None:
    """There must be one queue id for each message, or none."""
    log = MemoryLog(world)
    messages = [world.commitlog.Message("t", b"x") for _ in range(3)]
    with pytest.raises(InvalidMessage, match="2 queue ids for 3 messages"):
        log.appender.append_many(messages, [0, 0])
    with pytest.raises(InvalidMessage, match="no messages"):
        log.appender.append_many([])


def test_append_many_rejects_a_record_larger_than_a_file_before_writing(world: World) -> None:
    """Its body is within the limit, the whole record is not."""
    log = MemoryLog(world, body_size_max=1 << 20)
    messages = [world.commitlog.Message("t", b"x", queue_id=0), world.commitlog.Message("t", bytes(65_500), queue_id=0)]
    with pytest.raises(InvalidMessage, match="message 1: a record of up to"):
        log.appender.append_many(messages)
    assert log.files == []


@pytest.mark.parametrize("position", [-1, 101])
def test_attach_rejects_a_position_outside_the_file_and_a_read_only_view(world: World, position: int) -> None:
    """The position must be inside the file, and the file writable."""
    appender = MemoryLog(world, 100).appender
    with pytest.raises(ValueError, match="a writable view"):
        appender.attach(memoryview(bytearray(100)), 0, position)
    with pytest.raises(ValueError, match="a writable view"):
        appender.attach(memoryview(bytes(100)), 0, 0)


def test_host_of_one_message_is_not_used_for_the_next(world: World) -> None:
    """Later encoded messages and columns have the store's host again, and records of the usual length."""
    log, plain = MemoryLog(world), MemoryLog(world)
    log.appender.append(world.commitlog.Message("t", b"x", queue_id=0, born_host="[::1]:7", store_host="[::2]:8"))
    start = log.appender.position
    for each in (log, plain):
        each.appender.append_encoded("t", 0, b"body", b"")
        each.appender.append_columns("t", 0, offsets(0, 4), b"rows")
    size = plain.appender.position
    found, expected = bytearray(log.bytes[start : start + size]), bytearray(plain.bytes[:size])
    for data in (found, expected):
        for at in (0, size // 2):
            data[at + 20 : at + 36] = bytes(16)  # physical offset and queue offset
    assert found == expected


@pytest.mark.parametrize(("kernel_call", "is_in"), [("write_record", False), ("publish_i32", True)])
@pytest.mark.parametrize("sys_flag", [0, 4], ids=["queued", "prepared"])
def test_interrupted_append_through_a_ring_is_complete_or_absent(
    world: World, monkeypatch: pytest.MonkeyPatch, kernel_call: str, is_in: bool, sys_flag: int
) -> None:
    """The interrupt comes before the record, or when the next header is cleared; a prepared message takes no queue offset."""
    if world.build == "compiled":
        pytest.skip("no interrupt comes into a compiled append")
    log = MemoryLog(world)
    log.appender.write_through(lambda position, size: log.appender.set_reserved(0, position + size))
    log.appender.append(world.commitlog.Message("t", b"first", queue_id=0))
    start = log.appender.position

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(world.module("commitlog._append_cy"), kernel_call, interrupted)
        log.appender.append(world.commitlog.Message("t", b"second", queue_id=0, sys_flag=sys_flag))
    assert (log.appender.position > start) == is_in == (b"second" in log.bytes)
    assert log.offsets.next_offset("t", 0) == 1 + (is_in and sys_flag == 0)


def test_an_interrupted_append_leaves_no_hole_in_a_queue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in the plain build both the record and its queue offset are kept, or neither."""
    if world.build == "compiled":
        pytest.skip("no interrupt comes into a compiled append")
    kernel = world.module("commitlog._append_cy")
    log = MemoryLog(world)
    log.appender.append(world.commitlog.Message("t", b"first", queue_id=0))
    before = taken(log)

    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(kernel, "write_record", interrupted)
        log.appender.append(world.commitlog.Message("t", b"second", queue_id=0))
    assert taken(log) == before
    assert log.appender.append(world.commitlog.Message("t", b"second", queue_id=0)).queue_offset == 1


@pytest.mark.parametrize(
    "given",
    [
        {"flag": 5}, {"reconsume_times": 3}, {"prepared_transaction_offset": 9}, {"sys_flag": 1}, {"born_host": "10.0.0.9:1"},
        {"store_host": "10.0.0.9:1"}, {"born_host": "[::1]:7"}, {"store_host": "[::1]:7"}, {"topic": "u"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["message", "encoded", "columns"])
def test_no_field_of_one_record_leaks_into_the_next(world: World, given: dict[str, Any], way: str) -> None:
    """The envelope of a record is reused: each way to append sets every field again."""
    log, plain = MemoryLog(world), MemoryLog(world)
    ways: dict[str, Any] = {
        "message": lambda appender: appender.append(world.commitlog.Message("t", b"body", queue_id=1, born_timestamp_ms=1)),
        "encoded": lambda appender: appender.append_encoded("t", 1, b"body", b""),
        "columns": lambda appender: appender.append_columns("t", 1, offsets(0, 4), b"body"),
    }
    log.appender.append(world.commitlog.Message(**({"topic": "t", "body": b"first", "queue_id": 0} | given)))
    start = log.appender.position
    ways[way](log.appender)
    ways[way](plain.appender)
    size = plain.appender.position
    found, expected = bytearray(log.bytes[start : start + size]), bytearray(plain.bytes[:size])
    for data in (found, expected):
        data[28:36] = bytes(8)  # physical offset
    assert found == expected
    assert not any(log.bytes[start + size :])


@pytest.mark.parametrize("given", [("keys",), ("tags",)])
def test_rows_at_a_files_end_are_the_messages_one_by_one(world: World, given: tuple[str, ...]) -> None:
    """Whether a row fits depends on its own keys and tags, not on those of the previous row."""
    texts = ["", "a", "a-longer-text-than-the-others-have", "", "of-some-length"]
    ends = [0]
    for text in texts:
        ends.append(ends[-1] + len(text))
    for filler in range(200, 420):
        log, plain = MemoryLog(world, 1024), MemoryLog(world, 1024)
        for each in (log, plain):
            each.appender.append_columns("t", 0, offsets(0, filler), bytes(filler))
        column = (offsets(*ends), "".join(texts).encode())
        log.appender.append_columns("t", 0, offsets(*range(0, 12, 2)), b"x" * 10, **dict.fromkeys(given, column))
        for text in texts:
            more = dict.fromkeys(given, text or None)
            plain.appender.append(world.commitlog.Message("t", b"xx", queue_id=0, born_timestamp_ms=1700000000123, **more))
        assert log.bytes == plain.bytes, filler


def test_append_batch_rejects_messages_of_several_queues(world: World) -> None:
    """Queue 0 counts as a queue; a message without a queue takes that of the batch."""
    message = world.commitlog.Message
    log = MemoryLog(world)
    with pytest.raises(InvalidMessage, match="one queue"):
        log.appender.append_batch([message("t", b"1", queue_id=1), message("t", b"2", queue_id=0)], 1)
    assert log.appender.position == 0
    assert log.appender.append_batch([message("t", b"1", queue_id=1), message("t", b"2", queue_id=-1)], 1).message_count == 2


def test_result_of_several_messages_has_their_total_size(world: World) -> None:
    """`size_bytes` covers the first record to the last one for each way to append."""
    log = MemoryLog(world)
    messages = [world.commitlog.Message("t", b"x" * size, queue_id=0) for size in (1, 500, 30)]
    for put in (
        lambda: log.appender.append_many(messages), lambda: log.appender.append_batch(messages, 0),
        lambda: log.appender.append_columns("t", 0, offsets(0, 3, 90), bytes(90)),
    ):  # fmt: skip
        start = log.appender.position
        result = put()
        assert (result.physical_offset, result.size_bytes) == (start, log.appender.position - start)


@pytest.mark.parametrize("with_crc", [False, True])
@pytest.mark.parametrize("what", ["properties", "body"])
def test_append_many_writes_all_or_none_at_each_size_around_the_limits(world: World, with_crc: bool, what: str) -> None:
    """The limits are 16 bits of properties, less the room for a checksum, and the longest record of a file."""
    taken = []
    sizes = range(32_720, 32_770) if what == "properties" else range(65_536 - 260, 65_536 - 60)
    for size in sizes:
        log = MemoryLog(world, 65_536, with_crc=with_crc)
        more = {"properties_raw": b"a\x01" + b"b" * (size - 3) + b"\x02"} if what == "properties" else {"body": bytes(size)}
        hosts = {"born_host": "[::1]:7", "store_host": "[::1]:7"} if size % 2 else {}
        last = world.commitlog.Message(**({"topic": "t", "body": b"", "queue_id": 0} | more | hosts))
        try:
            result = log.appender.append_many([world.commitlog.Message("t", b"first", queue_id=0), last])
        except InvalidMessage:
            assert log.appender.position == 0 and not log.files, size
        else:
            assert (result.status.name, result.message_count) == ("PUT_OK", 2), size
            taken.append(size)
    assert taken and max(taken) < max(sizes), "the limit lies between them"


@pytest.mark.parametrize(
    ("size", "topic", "body", "value"),
    [(1 << 18, "t", b"", "v" * 32_750), (65_536, "t" * 32_767, bytes(32_700), "")],
    ids=["properties beside the checksum", "a record with the longest topic"],
)
def test_append_many_rejects_a_later_oversized_message_before_writing(
    world: World, size: int, topic: str, body: bytes, value: str
) -> None:
    """It is too long by a few bytes: all messages are rejected, not only those after it."""
    log = MemoryLog(world, size, with_crc=True)
    before = taken(log)
    properties = {"k": value} if value else None
    make = world.commitlog.Message
    messages = [make(topic, b"x", queue_id=0), make(topic, body, queue_id=0, properties=properties)]
    with pytest.raises(InvalidMessage, match="message 1: "):
        log.appender.append_many(messages)
    assert taken(log) == before


@pytest.mark.parametrize("call", ["encoded", "columns"])
def test_append_clears_stale_ring_bytes_after_the_last_record(world: World, call: str) -> None:
    """A reader beside the writer sees zeros after the last record."""
    log = MemoryLog(world, 4096)
    log.appender.write_through(lambda position, size: log.appender.set_reserved(0, position + size))
    log.appender.append(world.commitlog.Message("t", b"first", queue_id=0))
    log.files[0][log.appender.position :] = b"\xff" * (4096 - log.appender.position)
    if call == "encoded":
        log.appender.append_encoded("t", 0, b"second", b"")
    else:
        log.appender.append_columns("t", 0, array("q", [0, 3, 6]), b"second")
    end = log.appender.position
    assert bytes(log.files[0][end : end + 8]) == bytes(4) + b"\xff" * 4
