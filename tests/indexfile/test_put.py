"""Adding keys to an index file (docs/formats/indexfile.md#putting-a-key)."""

from __future__ import annotations

import errno
import time
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexfile import item_hash
from storageio import DiskFull, StoreReadOnly
from storageio.testing import FailingDisk
from tests.builds import World
from tests.indexfile.model import PROPERTY, PlainIndex, key_hash

NOW = "20261120173254506"


def contents(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((tmp_path / "index").iterdir())}


def test_one_put_changes_header_slot_and_item_at_once(index: Any, tmp_path: Path, clock_disk: Any) -> None:
    """Another process sees the key without any flush."""
    index(disk=clock_disk(NOW)).build("T", "key", None, 4096, 1_700_000_000_123)
    plain = PlainIndex(7, 10)
    plain.put("T#key", 4096, 1_700_000_000_123)
    assert contents(tmp_path) == {NOW: plain.as_bytes()}


PUTS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3), st.integers(-3000, 9000)), max_size=60)


@PROPERTY
@given(PUTS, st.integers(1, 9), st.integers(2, 20))
def test_any_puts_give_the_bytes_of_the_plain_model(world: World, puts: Any, slots: int, items: int) -> None:
    """Bytes and query results equal the model's, with full files and times that go back."""
    buffer = bytearray(40 + 4 * slots + 20 * items)
    made = world.module("indexfile._index_cy").IndexBuffer(buffer, slots, items)
    plain = PlainIndex(slots, items)
    offset, store_ms = 0, 1_700_000_000_000
    for key, step, later in puts:
        offset += step
        store_ms += later
        assert made.put(b"T", key.encode(), offset, store_ms) == plain.put(f"T#{key}", offset, store_ms)
    assert buffer == plain.as_bytes()
    assert made.check(items) == (0, 0)
    damaged = bytearray(buffer)
    for position in range(24, len(buffer), 7):
        damaged[position] ^= 1
        other = world.module("indexfile._index_cy").IndexBuffer(damaged, slots, items)
        replayed = other.new_replay()
        found = [other.check(limit, replayed) for limit in (*range(1, items, 3), items)]
        assert next((one for one in found if one[0]), (0, 0)) == other.check(items), "in pieces as at once"
        damaged[position] ^= 1


def test_file_of_400_items_holds_399_keys(index: Any, tmp_path: Path) -> None:
    """Item 0 is never used, so a file of 400 items holds 399 keys, and the next key creates a new file."""
    opened = index(100, 400)
    for number in range(399):
        opened.build("T", f"k{number}", None, number, 1_700_000_000_000)
    assert len(opened.files) == 1
    assert opened.files[0].is_full
    assert opened.files[0].buffer.space() == 0
    assert opened.files[0].header.next_item == 400
    opened.build("T", "k399", None, 399, 1_700_000_000_000)
    assert len(opened.files) == 2
    assert [opened.select("T", f"k{number}") for number in (0, 398, 399)] == [[0], [398], [399]]


def test_the_first_item_after_a_roll_counts_its_seconds_from_the_file_before(
    index: Any, clock_disk: Any, tmp_path: Path
) -> None:
    """The begin is preset, used, and only then replaced; the record is found by its true time."""
    opened = index(7, 3, disk=clock_disk(NOW, "20261120173254999"))
    opened.build("T", "a", None, 100, 1_700_000_000_000)
    opened.build("T", "b", None, 200, 1_700_000_001_000)
    opened.build("T", "c", None, 300, 1_700_000_061_000)
    plain = PlainIndex(7, 3, 1_700_000_001_000, 200)
    plain.put("T#c", 300, 1_700_000_061_000)
    assert plain.items[0].seconds == 60
    assert contents(tmp_path)["20261120173254999"] == plain.as_bytes()
    assert opened.select("T", "c", begin_ms=1_700_000_061_000, end_ms=1_700_000_061_000) == [300]


def test_a_record_without_keys_makes_and_rolls_files(index: Any) -> None:
    """An index folder may therefore end in a file without items."""
    opened = index(7, 3)
    assert opened.build("T", None, None, 0, 1) == 0
    assert len(opened.files) == 1
    opened.build("T", "a", "b", 100, 5000)
    assert opened.build("T", None, "", 200, 6000) == 0
    assert len(opened.files) == 2
    assert opened.last_header() == (5000, 5000, 100, 100, 0, 0)
    opened.sync()
    assert opened.last_header() == (5000, 5000, 100, 100, 0, 1)


def test_a_rolled_back_record_is_not_indexed(index: Any) -> None:
    """It creates the first file nevertheless."""
    opened = index()
    assert opened.build("T", "a", "b", 100, 5000, is_rollback=True) == 0
    assert (len(opened.files), opened.select("T", "a")) == (1, [])


def test_only_the_last_record_is_indexed_again(index: Any) -> None:
    """The comparison is strict: dispatching the last record again adds its items again."""
    opened = index()
    for offset in (100, 200, 100, 200):
        opened.build("T", f"key{offset}", None, offset, 5000)
    assert opened.select("T", "key100") == [100]
    assert opened.select("T", "key200") == [200, 200]


def test_unique_key_first_then_words(index: Any) -> None:
    """Empty words are skipped, equal ones are kept; the newest item is found first."""
    opened = index()
    assert opened.build("T", "u", "  a b  a ", 100, 5000) == 4
    data = Path(opened.files[0].path).read_bytes()[40 + 28 + 20 :]
    hashes = [int.from_bytes(data[20 * item : 20 * item + 4], "big") for item in range(4)]
    assert hashes == [key_hash(f"T#{key}") for key in "uaba"]


def test_keys_of_a_message_continue_in_the_next_file(index: Any) -> None:
    """The remaining keys go to the new file."""
    opened = index(7, 4)
    opened.build("T", "u", "a b c d", 100, 5000)
    assert [file.header.items_used for file in opened.files] == [3, 2]
    assert [opened.select("T", key) for key in "uabcd"] == [[100]] * 5


@pytest.mark.parametrize(
    ("topic", "key", "code", "expected"),
    [
        ("FooBar", "k1", -78142500, 78142500),  # the format page's vector
        ("T", "DWIECHC", -(1 << 31), 0),  # the hash without a positive counterpart
        ("主题", "键", key_hash("主题#键"), key_hash("主题#键")),
    ],
)
def test_the_hash_of_a_key(index: Any, world: Any, topic: str, key: str, code: int, expected: int) -> None:
    """It is |JHash(topic#key)|, over UTF-16 units."""
    kernel = world.module("indexfile._index_cy")
    assert kernel.hash_of(topic.encode(), key.encode()) == code
    assert kernel.hash_of_texts(topic, key) == code
    opened = index()
    opened.build(topic, key, None, 100, 5000)
    item = Path(opened.files[0].path).read_bytes()[40 + 28 + 20 :]
    assert int.from_bytes(item[:4], "big") == expected
    assert opened.select(topic, key) == [100]


@pytest.mark.parametrize("half", ["\ud800", "\udfff", "a\udc00é", "\ud83d"])
def test_lone_surrogate_is_hashed_as_a_question_mark(world: Any, half: str) -> None:
    """It counts as a question mark, as Java encodes it, in a topic and in a key."""
    kernel = world.module("indexfile._index_cy")
    for topic, key in ((half, "k"), ("T", half), (half, half)):
        expected = kernel.hash_of(topic.encode("utf-8", "replace"), key.encode("utf-8", "replace"))
        assert kernel.hash_of_texts(topic, key) == expected


def test_files_made_in_one_millisecond_have_names_in_order(index: Any, clock_disk: Any, tmp_path: Path) -> None:
    """If the clock stands still or goes back, a later file's name is still greater, also across the end of a year."""
    opened = index(7, 2, disk=clock_disk("20261231235959999", "20261231235959999", "20200101000000000"))
    for number in range(3):
        opened.build("T", "k", None, number, 5000)
    assert list(contents(tmp_path)) == ["20261231235959999", "20270101000000000", "20270101000000001"]
    assert opened.select("T", "k") == [2, 1, 0]


def test_names_are_local_time(index: Any, world: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Names have the local time, as in RocketMQ."""
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        opened = index()
        opened.disk = type("Disk", (), {"now_ms": lambda self: 1_700_000_000_123})()
        assert opened._new_name() == "20231115061320123"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_full_disk_leaves_no_half_file(index: Any, tmp_path: Path) -> None:
    """All blocks are allocated when a file is created; if that fails, the put fails, and the next one may succeed."""
    disk = FailingDisk(2, errno=errno.ENOSPC, only="allocate")
    opened = index(7, 3, disk=disk)
    opened.build("T", "a", "b", 100, 5000)
    with pytest.raises(DiskFull):
        opened.build("T", "c", None, 200, 6000)
    assert len(contents(tmp_path)) == 1
    opened.build("T", "c", None, 200, 6000)
    assert opened.select("T", "c") == [200]


def test_a_file_has_all_its_blocks(index: Any, tmp_path: Path) -> None:
    """A write through the map can then not run out of space."""
    opened = index(1000, 4000)
    opened.active()
    path = next((tmp_path / "index").iterdir())
    assert path.stat().st_blocks * 512 >= path.stat().st_size == 40 + 4000 + 80_000


def test_full_file_is_synced_once_and_gives_the_checkpoint_time(index: Any, clock_disk: Any) -> None:
    """The index time of the checkpoint moves only when a file became full."""
    disk = clock_disk(NOW)
    opened = index(7, 3, disk=disk)
    opened.build("T", "a", None, 100, 5000)
    assert opened.sync_full() == 0
    opened.build("T", "b", None, 200, 6000)
    opened.build("T", "c", None, 300, 7000)
    syncs = disk.counts["sync"]
    assert opened.sync_full() == 6000
    assert disk.counts["sync"] == syncs + 1
    assert opened.sync_full() == 0
    opened.sync()
    assert disk.counts["sync"] == syncs + 2
    assert disk.counts["sync folder"] >= 2


def test_a_reader_cannot_put(index: Any) -> None:
    """An index opened for reading refuses to put."""
    index().build("T", "a", None, 100, 5000)
    reader = index(writable=False)
    for change in (reader.active, reader.sync, lambda: reader.delete_expired(1)):
        with pytest.raises(StoreReadOnly):
            change()
    with pytest.raises(ValueError, match="for reading"):
        reader.files[0].buffer.put(b"T", b"a", 1, 1)
    with pytest.raises(StoreReadOnly):
        reader.files[0].sync()


def test_reopening_goes_on_in_the_newest_file(index: Any) -> None:
    """After closing and opening, the next key gets the next item of the same file."""
    for number in range(3):
        opened = index()
        opened.build("T", "k", None, number, 5000)
        opened.sync()
        opened.close()
    assert len(index().files) == 1
    assert index(writable=False).select("T", "k") == [2, 1, 0]


@pytest.mark.parametrize(("slots", "items", "size"), [(0, 10, 500), (-1, 10, 500), (7, 0, 500), (7, 10, 267)])
def test_buffer_too_small_for_the_layout_is_rejected(world: Any, slots: int, items: int, size: int) -> None:
    """It is refused before any pointer is taken."""
    with pytest.raises(ValueError, match="no room"):
        world.module("indexfile._index_cy").IndexBuffer(bytearray(size), slots, items)


@pytest.mark.parametrize("name", ["20991399000000000", "99991231235959999", "3000000000000000000"])
def test_file_after_one_with_an_invalid_time_gets_a_later_name(index: Any, tmp_path: Path, name: str) -> None:
    """After a renamed file, or the last millisecond that a date can express, the next name is still later."""
    opened = index(7, 3)
    opened.build("T", "a", None, 0, 1_700_000_000_000)
    opened.close()
    (file,) = (tmp_path / "index").iterdir()
    file.rename(file.parent / name)
    again = index(7, 3)
    for number, key in enumerate("bcd", 1):
        again.build("T", key, None, 100 * number, 1_700_000_000_000 + number)
    again.close()
    names = sorted(int(path.name) for path in (tmp_path / "index").iterdir())
    assert names[0] == int(name) and len(names) == 2
    reader = index(7, 3, writable=False)
    assert [reader.select("T", key) for key in "abcd"] == [[0], [100], [200], [300]]
    assert [int(found.name) for found in reader.files] == names


def test_a_reader_of_an_index_cannot_cut_it(index: Any) -> None:
    """Its map is read-only, and a write through it would kill the process."""
    opened = index()
    opened.build("T", "k", None, 0, 1_700_000_000_000)
    opened.close()
    (file,) = index(writable=False).files
    with pytest.raises(ValueError, match="opened for reading"):
        file.buffer.keep_items(1, 0)
    assert index(writable=False).select("T", "k") == [0]


def buffer_of(world: World, *puts: tuple[str, int], slots: int = 3, items: int = 10) -> tuple[Any, bytearray]:
    """Return an index file in memory with keys put a second apart, and its bytes."""
    held = bytearray(40 + 4 * slots + 20 * items)
    made = world.module("indexfile._index_cy").IndexBuffer(held, slots, items)
    for number, (key, offset) in enumerate(puts):
        made.put(b"T", key.encode(), offset, 1_700_000_000_000 + 1000 * number)
    return made, held


def test_free_items_of_a_file_are_counted(world: World) -> None:
    """Ten items with item 0 unused hold nine keys, two of which are used."""
    made, _ = buffer_of(world, ("a", 0), ("b", 100))
    assert made.space() == 7


@pytest.mark.parametrize("head", [-5, 1000])
def test_a_slot_that_leads_to_no_item_begins_a_new_chain(world: World, head: int) -> None:
    """A put after a damaged slot does not lead a reader to an item that does not exist."""
    made, held = buffer_of(world, ("a", 0), slots=1)
    held[40:44] = head.to_bytes(4, "big", signed=True)
    assert made.put(b"T", b"b", 100, 1_700_000_005_000)
    assert held[44 + 2 * 20 + 16 : 44 + 3 * 20] == bytes(4)


def test_key_with_hash_0_is_not_reported_as_damage(world: World) -> None:
    """`T#!.bhjkc` hashes to 0, and a file with it is sound."""
    assert key_hash("T#!.bhjkc") == 0
    made, _ = buffer_of(world, ("a", 0), ("!.bhjkc", 100))
    assert made.check(10) == (0, 0)


def test_item_hash_is_the_absolute_java_hash() -> None:
    """It is the absolute value of Java's hash, or 0 for -2147483648."""
    assert item_hash("T", "!ybriwe") == 0
    assert [item_hash("T", key) for key in ("a", "key", "DWIECH")] == [key_hash(f"T#{key}") for key in ("a", "key", "DWIECH")]


@PROPERTY
@given(PUTS, st.integers(1, 9), st.integers(2, 20), st.integers(1, 7))
def test_columns_of_keys_give_the_bytes_of_the_plain_model(world: World, puts: Any, slots: int, items: int, rows: int) -> None:
    """Keys that are put by their hash, some at a time, make the same file; the number of keys that fit is returned."""
    buffer = bytearray(40 + 4 * slots + 20 * items)
    made = world.module("indexfile._index_cy").IndexBuffer(buffer, slots, items)
    plain = PlainIndex(slots, items)
    for start in range(0, len(puts), rows):
        part = puts[start : start + rows]
        keys = [f"T#{key}" for key, _, _ in part]
        offsets = array("q", [100 * (start + row) for row in range(len(part))])
        times = array("q", [1_700_000_000_000 + later_ms for _, _, later_ms in part])
        fitting = 0
        for key, offset, time_ms in zip(keys, offsets, times, strict=True):
            fitting += bool(plain.put(key, offset, time_ms))
        assert made.put_items(array("i", map(key_hash, keys)), offsets, times, 0) == fitting
    assert bytes(buffer) == plain.as_bytes()


def test_columns_of_other_widths_are_refused(world: World) -> None:
    """A pointer to 32-bit numbers must not be read as one to 64-bit numbers."""
    made = world.module("indexfile._index_cy").IndexBuffer(bytearray(40 + 4 * 2 + 20 * 3), 2, 3)
    short, long = array("i", [1]), array("q", [1])
    for columns in ((long, long, long), (short, short, long), (short, long, array("q", [1, 2]))):
        with pytest.raises(ValueError, match="columns of one length"):
            made.put_items(*columns, 0)
    with pytest.raises(ValueError, match="columns of one length"):
        made.put_items(short, long, long, 1)
