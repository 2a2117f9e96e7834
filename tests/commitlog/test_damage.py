"""Damaged logs: every result has a name, nothing is read outside the buffer, nothing crashes."""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.checks import CHECK_READ
from commitlog.layout import CRC_SIZE
from storageio import REAL_DISK, StoreCorrupt
from tests.builds import World, is_compiled_here, load
from tests.commitlog.logs import MemoryLog

NAMES = {
    "blank", "torn", "empty", "bad_magic", "bad_size", "bad_body_size", "bad_topic_size", "bad_properties_size", "misplaced",
    "bad_body_crc", "bad_record_crc", "torn_properties",
}  # fmt: skip


def two_records(world: World, *, with_crc: bool, v6: bool = False, topic: str = "Topic") -> tuple[bytearray, int]:
    """Return a file with two records, and the size of the first."""
    log = MemoryLog(world, 2048, with_crc=with_crc, host="[::1]:9" if v6 else "127.0.0.1:9")
    message = world.commitlog.Message(topic, b"body of some bytes", tags="t", queue_id=0)
    size = log.appender.append(message).size_bytes
    log.appender.append(message)
    return log.files[0], size


def examine(world: World, data: Any, start: int = 0, base: int = 0) -> tuple[int, str, int]:
    """Walk with every kernel; all must agree on position, reason and count."""
    scan = world.module("commitlog._scan_cy")
    stop = len(data)
    at, why, records, _, _ = scan.scan(data, start, stop, base)
    positions, sizes = array("q", [0] * 64), array("i", [0] * 64)
    assert scan.scan(data, start, stop, base, 7, positions, sizes)[:3] == (at, why, records)
    messages, reached, reason = scan.Reader(data, base).decode_range(start, stop, 64)
    assert (reached, reason, len(messages)) == (at, why, records)
    assert why in NAMES or why == "end"
    return at, why, records


@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("topic", ["Topic", "t" * 130])
def test_any_flipped_byte_of_a_protected_record_is_seen(world: World, v6: bool, topic: str) -> None:
    """The walk stops at the record, whichever byte changed, and keeps the record before it."""
    data, size = two_records(world, with_crc=True, v6=v6, topic=topic)
    generator = random.Random(1)
    for at in range(size, 2 * size):
        if at >= 2 * size - 21:
            continue  # with a damaged trailer, or no separator before it, the record counts as unprotected
        broken = bytearray(data)
        broken[at] ^= generator.randrange(1, 256)
        where, why, records = examine(world, broken)
        assert (where, records) == (size, 1), at
        assert why != "end", at
        reader = world.module("commitlog._scan_cy").Reader(broken)
        assert reader.decode(size, CHECK_READ) is None, at
        assert reader.check(size, CHECK_READ) == reader.check(size), "the same name for it"


def test_readers_check_the_body_crc_of_a_record_without_a_record_crc(world: World) -> None:
    """In a record without a checksum over all of it, any changed bit of the body is detected."""
    data, size = two_records(world, with_crc=False)
    reader = world.module("commitlog._scan_cy").Reader
    begin = data.index(b"body of some bytes", size)
    assert reader(data).decode(size, CHECK_READ).body == b"body of some bytes"
    for bit in range(8 * 18):
        broken = bytearray(data)
        broken[begin + bit // 8] ^= 1 << bit % 8
        assert reader(broken).decode(size, CHECK_READ) is None, bit


def test_wrong_body_crc_under_a_valid_record_crc_is_reported_by_verify_only(world: World) -> None:
    """The record was written with it, so readers return the message; a verification with all checks reports it."""
    data, size = two_records(world, with_crc=True)
    data[8] ^= 1
    digits = f"{crc32(data[: size - CRC_SIZE]) & 0x7FFFFFFF:010d}"[::-1]
    data[size - 11 : size - 1] = digits.encode()
    reader = world.module("commitlog._scan_cy").Reader(data)
    assert (reader.decode(0, CHECK_READ).body, reader.decode(0)) == (b"body of some bytes", None)
    assert examine(world, data)[1] == "bad_body_crc"


def test_flipped_crc_digit_is_detected_and_a_malformed_crc_trailer_is_ignored(world: World) -> None:
    """The number counts as long as the trailer is well-formed."""
    data, size = two_records(world, with_crc=True)
    broken = bytearray(data)
    broken[size - 5] = 48 + (broken[size - 5] - 47) % 10
    assert examine(world, broken)[:2] == (0, "bad_record_crc")
    for at, value in ((size - 12, 0), (size - 5, ord("x")), (size - 5, ord(" "))):
        bad = bytearray(data)
        bad[at] = value
        assert examine(world, bad)[2] == 2
        assert not world.module("commitlog._record_cy").is_protected(bad, 0, size)


def test_any_lost_sector_of_a_protected_record_is_seen(world: World) -> None:
    """A torn write leaves 512 bytes zero at any boundary: in body, properties, or only in part of the checksum."""
    for extra in range(26):
        log = MemoryLog(world, 8192, with_crc=True)
        message = world.commitlog.Message("T", b"body" * 150 + b"x" * extra, tags="t" * 900, queue_id=0)
        size = log.appender.append(message).size_bytes
        log.appender.append(message)
        for sector in range(size // 512, (2 * size - 1) // 512 + 1):
            broken = bytearray(log.files[0])
            low, high = max(512 * sector, size), min(512 * sector + 512, 2 * size)
            broken[low:high] = bytes(high - low)
            where, why, records = examine(world, broken)
            assert (where, records) == (size, 1) and (why != "empty" or low == size), (extra, sector)


def test_flipped_header_bytes_of_an_unprotected_record_never_crash(world: World) -> None:
    """Changes of lengths, magic, offset and body are detected; those of times and hosts cannot be."""
    data, size = two_records(world, with_crc=False)
    unseen = set(range(12, 28)) | set(range(36, 84)) | set(range(size - 7, size)) | set(range(107, 112))
    for at in range(size):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            where, why, _ = examine(world, broken)
            if at not in unseen:
                assert (where, why in NAMES) == (0, True), at


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (0, -1, "bad_size"), (0, 0, "bad_size"), (0, 90, "bad_size"), (0, 1 << 30, "torn"), (0, -(1 << 31), "bad_size"),
        (4, 0x12345678, "bad_magic"), (4, 0, "bad_magic"), (4, -875286124, "blank"), (84, -1, "bad_body_size"),
        (84, 1 << 30, "bad_body_size"), (84, (1 << 31) - 1, "bad_body_size"), (84, 19, "bad_topic_size"), (28, 5, "misplaced"),
        (8, 5, "bad_body_crc"),
    ],
)  # fmt: skip
def test_each_kind_of_damage_has_its_name(world: World, at: int, value: int, why: str) -> None:
    """A length is never used before it is bounded."""
    data, _ = two_records(world, with_crc=False)
    data[at : at + 4] = value.to_bytes(4, "big", signed=True)
    found = examine(world, data)
    assert found[0] == 0
    assert found[1] == why or (at == 84 and value == 19 and found[1].startswith("bad_"))
    reader = world.module("commitlog._scan_cy").Reader(data)
    assert reader.decode(0) is None
    checks = world.module("commitlog.checks")
    assert checks.STOPS[reader.check(0)] == found[1]


@pytest.mark.parametrize("topic_size", [128, 200, 255])
def test_a_negative_topic_length_is_damage(world: World, topic_size: int) -> None:
    """It is a byte above 127 in V1, a negative 16-bit length in V2."""
    data, _ = two_records(world, with_crc=False)
    data[88 + 18] = topic_size
    assert examine(world, data)[1] == "bad_topic_size"
    longer, _ = two_records(world, with_crc=False, topic="t" * 128)
    longer[88 + 18] |= 0x80
    assert examine(world, longer)[1] == "bad_topic_size"


def test_buffer_cut_at_any_byte_is_torn_or_ends_at_a_record(world: World) -> None:
    """The result is torn or the end, and no byte after the buffer is read."""
    data, size = two_records(world, with_crc=True)
    for stop in range(2 * size + 1):
        where, why, records = examine(world, bytes(data[:stop]))
        assert records == stop // size
        assert (where, why) == (stop // size * size, "end" if stop % size == 0 else "torn")


def test_ranges_outside_the_buffer_are_refused(world: World) -> None:
    """They are rejected before any pointer is taken."""
    scan, record = world.module("commitlog._scan_cy"), world.module("commitlog._record_cy")
    data = bytes(200)
    reader = scan.Reader(data)
    for start, stop in ((-1, 5), (5, 201), (6, 5), (201, 201)):
        for call in (
            lambda start=start, stop=stop: scan.scan(data, start, stop),
            lambda start=start, stop=stop: scan.find_record(data, start, stop, 0),
            lambda start=start, stop=stop: reader.decode_range(start, stop, 1),
            lambda start=start, stop=stop: record.check(data, start, stop),
            lambda start=start, stop=stop: scan.scan(data, start, stop, 0, 7, array("q", [0]), array("i", [0])),
        ):
            with pytest.raises(ValueError, match="not inside"):
                call()
    assert (reader.decode(-1), reader.decode(201)) == (None, None)
    assert [reader.store_time(at) for at in (-1, 0, 109, 110, 201)] == [-1] * 5
    for at in (-1, 201):
        with pytest.raises(ValueError, match="not inside"):
            reader.check(at)
    for at, size in ((-1, 100), (150, 91), (0, 90), (0, -1)):
        with pytest.raises(ValueError, match="not inside"):
            record.is_protected(data, at, size)
    with pytest.raises(ValueError, match="no record of 100 bytes"):
        record.is_protected(data, 0, 100)
    with pytest.raises(ValueError, match="lies behind"):
        scan.find_record(data, 0, 100, 0, 101)
    for columns in ((array("i", [0]), array("i", [0])), (array("q", [0]), array("d", [0])), (b"12345678", array("i", [0]))):
        with pytest.raises(ValueError, match="column"):
            scan.scan(data, 0, 200, 0, 7, *columns)


def test_the_next_whole_record_is_found_behind_damage(world: World) -> None:
    """It is found at its own offset, also across a piece boundary; a copy at another offset is skipped."""
    scan = world.module("commitlog._scan_cy")
    for gap in (1, 100, 4080, 4095, 4096, 4100, 9000):
        log = MemoryLog(world, 20_000, with_crc=True)
        log.next_file()
        log.files[0][:gap] = b"\xda" * gap
        log.appender.attach(memoryview(log.files[0]), 0, gap)
        size = log.appender.append(world.commitlog.Message("T", b"x" * 50, queue_id=0)).size_bytes
        data = log.files[0]
        assert scan.find_record(data, 0, len(data), 0) == gap
        assert scan.find_record(data, gap + 1, len(data), 0) == -1
        assert scan.find_record(data, 0, gap + size - 1, 0) == -1
        assert scan.find_record(data, 0, len(data), 4) == -1


def test_find_record_is_bounded_in_a_log_of_long_false_records(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a checksum to compute: after a limit of bytes only short records are checked."""
    scan = world.module("commitlog._scan_cy")
    log = MemoryLog(world, 1 << 18, with_crc=True)
    for size in (20_000, 20_001, 20_002, 50):
        log.appender.append(world.commitlog.Message("T", b"x" * size, queue_id=0))
    data, step = log.files[0], 20_000 + 91 + 1 + 20
    for number in range(2):
        data[step * number + number + 100] ^= 1
    true = 2 * step + 1
    assert scan.find_record(data, 0, len(data), 0) == true
    if world.build == "compiled":
        return  # the limit is 256 MiB
    monkeypatch.setattr(scan, "CHECKED_MAX", 30_000)
    assert scan.find_record(data, 0, len(data), 0) == 3 * step + 3


ANY = st.binary(max_size=400)


@settings(max_examples=150, deadline=None)
@given(ANY, st.integers(0, 1 << 40), st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), max_size=6), st.booleans())
def test_garbage_gives_the_same_answer_in_both_builds(
    garbage: bytes, base: int, changes: list[tuple[int, int]], is_record: bool
) -> None:
    """The input is random bytes, and records with some bytes changed, with every set of checks."""
    answers = []
    for build in ("compiled", "plain") if is_compiled_here() else ("plain",):
        world = load(build)
        data = bytearray(garbage)
        if is_record:
            whole, size = two_records(world, with_crc=bool(len(garbage) % 2))
            data = whole[: 2 * size + 9]
            for at, value in changes:
                data[at % len(data)] = value
        record = world.module("commitlog._record_cy")
        answers.append(
            [examine(world, bytes(data), base=base if not is_record else 0)]
            + [record.check(bytes(data), 0, len(data), base, checks) for checks in range(8)]
            + [world.module("commitlog._scan_cy").find_record(bytes(data), 0, len(data), base)]
            + [world.commitlog.decode_properties(bytes(data))]
        )
    assert answers[0] == answers[-1]


def broken_log(world: World, folder: Path, change: dict[int, int]) -> Any:
    """Return a log of 4 KiB files with some bytes changed, opened for reading."""
    cl = world.commitlog
    log = cl.CommitLog(cl.LogPaths(REAL_DISK, [str(folder)]), file_size_bytes=4096, writable=True, with_crc=True)
    for number in range(12):
        log.appender.append(cl.Message("T", b"%02d" % number * 400, queue_id=0))
    log.close()
    for at, value in change.items():
        path = folder / f"{at // 4096 * 4096:020d}"
        data = bytearray(path.read_bytes())
        data[at % 4096] = value
        path.write_bytes(data)
    return cl.open_log(str(folder))


def test_a_log_names_the_file_and_byte_of_the_damage(world: World, tmp_path: Path) -> None:
    """Reads return the records before it; `find_end` requires recovery first; `find_record` continues after it."""
    log = broken_log(world, tmp_path, {4096 + 200: 0, 2 * 4096 + 200: 0})
    found = []
    with pytest.raises(StoreCorrupt, match="bad_body_crc") as caught:
        for message in log.messages():
            found.append(message.queue_offset)
    assert found == [0, 1, 2, 3]
    assert (caught.value.file, caught.value.offset) == (str(tmp_path / f"{4096:020d}"), 0)
    assert caught.value.expected == "a record, a blank or zeros"
    with pytest.raises(StoreCorrupt, match="bad_body_crc"):
        log.find_end()
    assert log.find_record(4096) == 4096 + log.check(0)
    assert log.message_at(4096) is None
    assert log.message_at(4096, checks=4).queue_offset == 4
    assert log.find_record(1 << 40) == -1
    log.close()


def test_a_blank_that_does_not_reach_the_files_end(world: World, tmp_path: Path) -> None:
    """It does not end the file; with `any_blank`, as in RocketMQ's dispatcher, it does."""
    log = broken_log(world, tmp_path, {})
    stop = log.walk_file(log.queue.files[0])
    is_file_end, left = world.module("commitlog.cursor").is_file_end, 4096 - stop.offset
    assert is_file_end(stop.why, left, log.select(stop.offset, left))
    log.close()
    again = broken_log(world, tmp_path / "second", {stop.offset + 3: 1})
    assert not is_file_end("blank", left, again.select(stop.offset, left))
    assert is_file_end("blank", left, any_blank=True)
    assert len(list(again.messages())) == 12
    again.close()
