"""Queries, in sound and in damaged files (docs/formats/indexfile.md#querying-a-key)."""

from __future__ import annotations

import struct
import tempfile
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storageio import REAL_DISK, StoreCorrupt
from tests.builds import World
from tests.indexfile.model import PROPERTY, PlainIndex, key_hash
from tests.stores import index_record

BEGIN = 1_700_000_000_000
SLOTS, ITEMS = 7, 40
FOR_EVER = (1 << 63) - 1


@PROPERTY
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9000)), max_size=40),
    st.integers(2, 12),
    st.integers(-5, 200),
    st.integers(-5, 200),
    st.integers(0, 9),
)
def test_select_equals_a_linear_search(world: World, puts: Any, items: int, begin: int, end: int, most: int) -> None:
    """Results come newest file first, newest item first, within the range and the limit."""
    begin_ms, end_ms = BEGIN + begin * 1000, BEGIN + end * 1000
    with tempfile.TemporaryDirectory() as folder:
        opened = world.indexfile.IndexFiles(REAL_DISK, folder, writable=True, slots=SLOTS, items=items)
        plain = [PlainIndex(SLOTS, items)]
        store_ms = BEGIN
        for number, (key, later) in enumerate(puts):
            store_ms += later
            index_record(opened, "T", key, None, number, store_ms)
            if not plain[-1].put(f"T#{key}", number, store_ms):
                plain.append(PlainIndex(SLOTS, items, plain[-1].end_ms, plain[-1].end_offset))
                plain[-1].put(f"T#{key}", number, store_ms)
        for key in "abcde":
            expected: list[int] = []
            for file in reversed(plain):
                if file.begin_ms <= end_ms and begin_ms <= file.end_ms and begin_ms <= end_ms:
                    expected += file.select(f"T#{key}", begin_ms, end_ms)
                if file.begin_ms < begin_ms:
                    break
            assert opened.select("T", key, most, begin_ms, end_ms) == expected[:most]
        opened.close()


def test_times_are_cut_to_seconds(index: Any) -> None:
    """A range that begins within a record's second may miss the record."""
    opened = index()
    opened.build("T", "a", None, 0, BEGIN)
    opened.build("T", "b", None, 100, BEGIN + 5700)
    assert opened.select("T", "b", begin_ms=BEGIN + 5000) == [100]
    assert opened.select("T", "b", begin_ms=BEGIN + 5001) == []
    assert opened.select("T", "b", end_ms=BEGIN + 5000) == [100]


def test_select_returns_at_most_64_hits(index: Any) -> None:
    """RocketMQ's maxMsgsNumBatch limits every query."""
    opened = index(7, 500)
    for number in range(400):
        opened.build("T", "k", None, number, BEGIN)
    assert opened.select("T", "k", 1000) == list(range(399, 335, -1))
    assert list(opened.hits("T", "k")) == list(range(399, -1, -1))


def test_keys_with_the_same_hash_are_one(index: Any) -> None:
    """ "Aa" and "BB" have the same Java hash; whoever reads the records compares their keys."""
    opened = index()
    for number, key in enumerate(["Aa", "BB", "Aa", "BB"]):
        opened.build("T", key, None, number, BEGIN)
    assert opened.select("T", "Aa") == opened.select("T", "BB") == [3, 2, 1, 0]


def test_unknown_keys_topics_and_empty_folders(index: Any) -> None:
    """The result is an empty list."""
    opened = index()
    assert opened.select("T", "k") == []
    assert opened.last_header() is None
    opened.build("T", "k", None, 5, BEGIN)
    assert opened.select("T", "x") == opened.select("U", "k") == opened.select("", "") == []
    assert opened.select("T", "k", begin_ms=BEGIN + 1) == opened.select("T", "k", end_ms=BEGIN - 1) == []


def item_at(number: int) -> int:
    return 40 + 4 * SLOTS + 20 * number


def i32(value: int) -> bytes:
    return struct.pack(">i", value)


SLOT = 40 + 4 * (key_hash("T#k") % SLOTS)
# what is broken, where, bytes, answers that are left of [8, 6, 4, 2] (items 2, 4, 6, 8 are of key k), what check says
DAMAGE = [
    ("an item that leads to itself", item_at(6) + 16, i32(6), [8, 6], "item"),
    ("two items that lead to each other", item_at(4) + 16, i32(6), [8, 6, 4, 6, 4, 6, 4, 6], "item"),
    ("an item that leads behind the last", item_at(6) + 16, i32(99), [8, 6], "item"),
    ("an item that leads to a negative number", item_at(6) + 16, i32(-4), [8, 6], "item"),
    ("negative seconds", item_at(6) + 12, i32(-1), [8], None),
    ("a slot that leads behind the last item", SLOT, i32(99), [], "slot"),
    ("a negative slot", SLOT, i32(-1), [], "slot"),
    ("an empty slot", SLOT, i32(0), [], "slot"),
    ("another hash", item_at(6), i32(key_hash("T#k") + SLOTS), [8, 4, 2], None),
    ("a negative hash", item_at(6), i32(-1), [8, 4, 2], "hash"),
    ("a count of 0", 36, i32(0), [], None),
    ("a negative count", 36, i32(-7), [], None),
    ("a count beyond the file", 36, i32(ITEMS + 1), [8, 6, 4, 2], "count"),
    ("the greatest count", 36, i32((1 << 31) - 1), [8, 6, 4, 2], "count"),
    ("slots used that are not", 32, i32(1), [8, 6, 4, 2], "count"),
    ("a begin at the end of time", 0, struct.pack(">q", FOR_EVER), [8, 6, 4, 2], None),
    ("a begin before all time", 0, struct.pack(">q", -FOR_EVER - 1), [], None),
]


@pytest.mark.parametrize(("name", "at", "data", "left", "check"), DAMAGE, ids=[row[0] for row in DAMAGE])
def test_a_damaged_file(index: Any, name: str, at: int, data: bytes, left: list[int], check: str | None) -> None:
    """The query ends, returns what can be reached, and reads only the file; `check` names the damage."""
    writer = index(SLOTS, ITEMS)
    for number in range(1, 9):
        writer.build("T", "k" if number % 2 == 0 else "other", None, number, BEGIN)
    writer.close()
    with open(writer.files[0].path, "r+b") as file:
        file.seek(at)
        file.write(data)
    reader = index(SLOTS, ITEMS, writable=False)
    assert reader.select("T", "k", begin_ms=0) == left
    if check:
        with pytest.raises(StoreCorrupt, match=check):
            reader.files[0].check()
    again = index(SLOTS, ITEMS)
    assert again.build("T", "k", None, 9, BEGIN) in (0, 1)


def test_slot_that_points_after_the_last_item_gives_no_hit(world: Any) -> None:
    """RocketMQ lets a slot name the next item; in a full file that one lies behind the end."""
    buffer = bytearray(40 + 4 + 20 * 3)
    made = world.module("indexfile._index_cy").IndexBuffer(buffer, 1, 3)
    assert [made.put(b"T", b"k", number, 5) for number in range(3)] == [True, True, False]
    buffer[40:44] = i32(3)
    assert made.select(1, 0, 0, FOR_EVER, array("q", [0] * 5)) == (0, 0)


def test_select_ends_in_a_cyclic_chain_of_other_keys(world: World) -> None:
    """Items of another key that point at each other give no hit; the walk ends nevertheless."""
    buffer = bytearray(40 + 4 + 20 * 9)
    made = world.module("indexfile._index_cy").IndexBuffer(buffer, 1, 9)
    for number in range(3):
        made.put(b"T", b"stranger", number, BEGIN)
    buffer[40 + 4 + 20 + 16 : 40 + 4 + 40] = i32(3)
    assert made.select(1, 0, 0, FOR_EVER, array("q", [0] * 5)) == (0, 0)


@PROPERTY
@given(st.binary(min_size=40 + 4 * 3 + 20 * 5, max_size=40 + 4 * 3 + 20 * 5), st.integers(-(1 << 31), (1 << 31) - 1))
def test_select_put_and_check_accept_arbitrary_bytes(world: World, data: bytes, code: int) -> None:
    """Queries, puts and checks raise no exception, stay inside the buffer, and end."""
    held = bytearray(b"\xaa" * 8 + data + b"\xaa" * 8)
    with memoryview(held)[8:-8] as inside:
        made = world.module("indexfile._index_cy").IndexBuffer(inside, 3, 5)
        count, at = made.select(code, 0, -(1 << 62), 1 << 62, array("q", [0] * 9))
        assert 0 <= count <= 5
        assert at == 0
        made.check(5)
        made.put(b"T", b"k", 5, 1_700_000_000_000)
        del made
    assert held[:8] == held[-8:] == b"\xaa" * 8


@pytest.mark.parametrize("found", [array("i", [0]), b"12345678", memoryview(array("q", [0, 0, 0, 0]))[::2]])
def test_select_rejects_an_unsuitable_result_array(world: Any, found: Any) -> None:
    """An unsuitable result array is refused before any pointer is taken."""
    made = world.module("indexfile._index_cy").IndexBuffer(bytearray(100), 1, 2)
    with pytest.raises(ValueError, match="64-bit"):
        made.select(1, 0, 0, 1, found)


def test_a_short_file_is_not_mapped(index: Any) -> None:
    """Reading beyond its end would kill the process."""
    writer = index(SLOTS, ITEMS)
    writer.build("T", "k", None, 1, BEGIN)
    writer.close()
    path = Path(writer.files[0].path)
    for size in (path.stat().st_size - 1, 44):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(StoreCorrupt, match="index file size"):
            index(SLOTS, ITEMS, writable=False).select("T", "k")
        with pytest.raises(StoreCorrupt, match="index file size"):
            index(SLOTS, ITEMS).load()
    path.write_bytes(b"")
    with pytest.raises(StoreCorrupt, match="index header"):
        index(SLOTS, ITEMS, writable=False).select("T", "k")


def test_select_from_a_second_returns_all_items_of_that_second(world: World) -> None:
    """The chain is followed past the newest item of the second in which the range begins."""
    made = world.module("indexfile._index_cy").IndexBuffer(bytearray(40 + 4 * 3 + 20 * 10), 3, 10)
    for number in range(4):
        made.put(b"T", b"a", 100 * number, BEGIN + 2000 * (number // 2))
    found = array("q", bytes(8 * 10))
    code = world.module("indexfile._index_cy").hash_of(b"T", b"a")
    assert made.select(code, 0, BEGIN + 2000, FOR_EVER, found)[0] == 2
    assert found[:2].tolist() == [300, 200]
