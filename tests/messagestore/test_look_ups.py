"""Lookups by physical offset, key and time: the compiled path against plain models, also with damage."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from storageio import StoreError
from tests.builds import World
from tests.helpers import overwrite
from tests.indexfile.model import key_hash
from tests.messagestore.kit import SLOTS, Clock, message, open_small

pytestmark = pytest.mark.both_builds

UNIT = struct.Struct(">qiq")


def fill(world: World, store: Any, clock: Clock, count: int) -> list[tuple[int, int, list[str]]]:
    """Put messages to two queues, and return (physical offset, store time, keys); the clock moves at every third."""
    put = []
    for number in range(count):
        clock.now_ms += 1500 if number % 3 == 0 else 0
        keys = [f"k{number % 7}", f"own{number}"]
        result = store.put(message(world, number, queue_id=number % 2, keys=keys))
        put.append((result.physical_offset, result.store_timestamp_ms, keys))
    return put


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_any_physical_offset_gives_its_record_or_none(world: World, tmp_path: Path, clock: Clock) -> None:
    """Offsets in several files, between records, outside the log and beyond any file name are tried."""
    with open_small(world, tmp_path, clock=clock) as store:
        put = fill(world, store, clock, 700)
        begins = {offset: number for number, (offset, _, _) in enumerate(put)}
        assert len(store.engine.log.queue.files) > 1
        for offset in range(put[0][0], put[30][0]):
            found = store.message_at(offset)
            assert (found is not None) == (offset in begins)
        for offset, number in begins.items():
            assert int(store.message_at(offset).body[:8]) == number
        for outside in (-1, -(1 << 70), 1 << 62, 1 << 70, store.log_end):
            assert store.message_at(outside) is None


def test_a_key_finds_its_messages_oldest_first(world: World, tmp_path: Path, clock: Clock) -> None:
    """Any key, time range to the millisecond and limit are tried; the newest messages count for the limit."""
    with open_small(world, tmp_path, clock=clock) as store:
        put = fill(world, store, clock, 300)
        times = [time for _, time, _ in put]
        for key in ("k0", "k6", "own17", "own299", "own", "", "k0 own0"):
            for low, high in ((None, None), (times[100], times[200]), (times[100] + 1, None), (None, times[9] - 1), (9, 5)):
                expected = [
                    offset
                    for offset, time, keys in put
                    if key in keys and (low or 0) <= time <= (high if high is not None else 1 << 62)
                ]
                for most in (0, 1, 5, 64, 1000):
                    got = [found.physical_offset for found in store.query("T", key, low, high, most)]
                    kept = min(most, store.engine.index.max_matches)
                    assert got == (expected[-kept:] if kept else []), (key, low, high, most)
        assert store.query("U", "k0") == store.query("", "") == []


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_a_key_of_an_older_index_file_is_found(world: World, tmp_path: Path, is_opened_again: bool) -> None:
    """Most of its slots in the newest file are empty; after an open older files are not mapped yet."""
    sizes = {"max_hash_slot_num": 5000, "max_index_num": 12}
    store = open_small(world, tmp_path, **sizes)
    for number in range(60):
        store.put(message(world, number, keys=[f"own{number}"]))
    store.engine.settle()
    assert len(store.engine.index.listed) > 4
    if is_opened_again:
        store.close()
        store = open_small(world, tmp_path, **sizes)
    with store:
        for number in range(60):
            assert [int(found.body[:8]) for found in store.query("T", f"own{number}")] == [number]
            assert store.query("T", f"none{number}") == []


def test_a_limit_below_zero_is_refused(world: World, tmp_path: Path) -> None:
    """A query of the index alone refuses it too."""
    with open_small(world, tmp_path) as store, pytest.raises(ValueError, match="max_count"):
        store.query("T", "k", max_count=-1)


def test_query_excludes_other_topics_and_keys_with_the_same_hash(world: World, tmp_path: Path) -> None:
    """ "Aa" and "BB" have the same Java hash, as topics, as keys and as parts of them."""
    with open_small(world, tmp_path) as store:
        for topic in ("Aa", "BB"):
            for key in ("Aa", "BB"):
                store.put(message(world, 1, topic, keys=[key]))
        for topic in ("Aa", "BB"):
            for key in ("Aa", "BB"):
                found = store.query(topic, key)
                assert [(one.topic, one.keys) for one in found] == [(topic, [key])]


@pytest.mark.parametrize(
    ("raw", "keys"),
    [
        (b"KEYS\x01a b\x02", ["a", "b"]),
        (b"KEYS\x01a  b \x02", ["a", "b"]),
        (b"KEYS\x01a\x02KEYS\x01b\x02", ["b"]),  # the last of equal names counts
        (b"KEYS\x01a b", ["a", "b"]),
        (b"UNIQ_KEY\x01a\x02", ["a"]),
        (b"UNIQ_KEY\x01a b\x02", ["a b"]),
        (b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01\x02", ["a"]),  # an empty value does not count
        (b"KEYSX\x01a\x02XKEYS\x01b\x02", []),
        (b"KEYS\x01ab\x02", ["ab"]),
        (b"\x01a\x02KEYS\x01b\x02", ["b"]),
        (b"", []),
    ],
)
def test_a_key_is_a_word_of_keys_or_the_unique_key(world: World, raw: bytes, keys: list[str]) -> None:
    """Comparing bytes gives what comparing the message object of the record gives."""
    from tests.commitlog.logs import MemoryLog

    log = MemoryLog(world)
    log.appender.append(world.commitlog.Message("T", b"body", properties_raw=raw), 0)
    reader = world.module("commitlog._scan_cy").Reader(log.bytes)
    has_key = world.module("messagestore.read._lookup_cy").has_key
    for key in ("a", "b", "", "a b", "ab"):
        is_there = reader.decode_keyed(0, b"T", key.encode()) is not None
        assert is_there == has_key(reader.decode(0), "T", key) == (key in keys)
    assert reader.decode_keyed(0, b"U", b"a") is None
    assert reader.decode_keyed(1, b"T", b"a") is reader.decode_keyed(-1, b"T", b"a") is None
    assert reader.decode_keyed(len(log.bytes) + 1, b"T", b"a") is None


def test_a_key_that_is_no_utf_8_is_found_by_what_is_read_for_it(world: World, tmp_path: Path) -> None:
    """The text of the message object is compared, with U+FFFD for invalid UTF-8."""
    with open_small(world, tmp_path) as store:
        store.put(world.commitlog.Message("T", b"x", queue_id=0, properties_raw=b"KEYS\x01k\xff\x02"))
        assert [found.keys for found in store.query("T", "k\N{REPLACEMENT CHARACTER}")] == [["k\N{REPLACEMENT CHARACTER}"]]


def item_at(number: int) -> int:
    return 40 + 4 * SLOTS + 20 * number


DAMAGE = {
    "an item that leads to itself": lambda item: (item_at(item) + 16, struct.pack(">i", item)),
    "two items that lead to each other": lambda item: (item_at(item - 2) + 16, struct.pack(">i", item)),
    "an item that leads behind the last": lambda item: (item_at(item) + 16, struct.pack(">i", 99999)),
    "an item of another record": lambda item: (item_at(item) + 4, struct.pack(">q", 5)),
    "an item of a record outside the log": lambda item: (item_at(item) + 4, struct.pack(">q", 1 << 50)),
    "an item of a negative offset": lambda item: (item_at(item) + 4, struct.pack(">q", -9)),
    "a slot out of range": lambda item: (40 + 4 * (key_hash("T#k") % SLOTS), struct.pack(">i", 1 << 30)),
    "a negative slot": lambda item: (40 + 4 * (key_hash("T#k") % SLOTS), struct.pack(">i", -1)),
    "a count beyond the file": lambda item: (36, struct.pack(">i", (1 << 31) - 1)),
    "a begin at the end of time": lambda item: (0, struct.pack(">q", (1 << 63) - 1)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_query_of_a_damaged_index_returns_only_matching_messages(world: World, tmp_path: Path, name: str) -> None:
    """The query ends and returns only messages that have the key, each once."""
    with open_small(world, tmp_path) as store:
        for number in range(8):
            store.put(message(world, number, keys=["k"]))
    (path,) = (tmp_path / "index").iterdir()
    overwrite(path, *DAMAGE[name](5))
    with open_small(world, tmp_path, "r") as store:
        got = [int(found.body[:8]) for found in store.query("T", "k")]
        assert got == sorted(set(got))
        assert set(got) <= set(range(8))


def test_a_record_with_a_flipped_byte_is_no_answer(world: World, tmp_path: Path) -> None:
    """It is found by neither key nor offset; its time is still known, because that needs no checksum."""
    with open_small(world, tmp_path) as store:
        put = [store.put(message(world, number, keys=["k"])) for number in range(3)]
    (path,) = (tmp_path / "commitlog").iterdir()
    body = path.read_bytes().index(b"00000001")
    overwrite(path, body, b"9")
    with open_small(world, tmp_path, "r") as store:
        assert [int(found.body[:8]) for found in store.query("T", "k")] == [0, 2]
        assert store.message_at(put[1].physical_offset) is None
        assert store.store_time("T", 0, 1) == put[1].store_timestamp_ms


@pytest.mark.parametrize("build", ["LOWER", "UPPER", "NEAREST"])
def test_times_are_found_as_in_a_plain_list(world: World, tmp_path: Path, clock: Clock, build: str) -> None:
    """The times of every message of both queues, and times between them, are tried."""
    with open_small(world, tmp_path, clock=clock) as store:
        put = fill(world, store, clock, 300)
        boundary = world.consumequeue.Boundary[build]
        for queue_id in (0, 1):
            times = [time for _, time, _ in put[queue_id::2]]
            for requested in sorted({*times, *(time + 1 for time in times), times[0] - 9, 0, 1 << 62, 1 << 70}):
                got = store.offset_by_time("T", queue_id, requested, boundary)
                if build == "LOWER":
                    assert got == sum(time < requested for time in times)
                elif build == "UPPER":
                    assert got == max(sum(time <= requested for time in times) - 1, 0)
                else:
                    assert abs(times[got] - requested) == min(abs(time - requested) for time in times)
        assert store.offset_by_time("T", 7, 5) == store.offset_by_time("U", 0, 5) == 0


@pytest.mark.parametrize("unit", [(1 << 50, 90, 0), (3, 90, 0), (0, 1 << 30, 0), ((1 << 63) - 1, 1, 0)])
@pytest.mark.parametrize("position", [0, 10, 49])
def test_units_that_point_at_no_record_have_no_time(
    world: World, tmp_path: Path, clock: Clock, unit: tuple[int, int, int], position: int
) -> None:
    """Outside the log, between records, of a wrong size: the result is within the bounds, and no byte outside is read."""
    with open_small(world, tmp_path, clock=clock) as store:
        put = fill(world, store, clock, 100)
    overwrite(tmp_path / "consumequeue" / "T" / "0" / ("0" * 20), 20 * position, UNIT.pack(*unit))
    with open_small(world, tmp_path, "r") as store:
        for _, time, _ in put[::2]:
            for boundary in world.consumequeue.Boundary:
                assert 0 <= store.offset_by_time("T", 0, time, boundary) <= 50


def test_a_closed_store_answers_nothing(world: World, tmp_path: Path) -> None:
    """Each call raises StoreClosed."""
    store = open_small(world, tmp_path)
    store.put(message(world, 1, keys=["k"]))
    store.close()
    for invoke in (
        lambda: store.message_at(0),
        lambda: store.query("T", "k"),
        lambda: store.offset_by_time("T", 0, 0),
    ):
        with pytest.raises(StoreError, match="closed"):
            invoke()
