"""Items that are kept after an unclean stop if a hint tells what was on the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builds import World
from tests.indexfile.model import HEADER, PROPERTY

NOW_MS = 1_700_000_000_000
RECORD = 100
FOR_EVER = (1 << 62) - 1
KEYS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30)


@PROPERTY
@given(KEYS, KEYS, st.integers(1, 9), st.sampled_from([8, 16, 24, 64, 512]), st.randoms())
def test_keep_until_restores_the_hint_state_from_any_mix_of_sectors(
    world: World, synced: list[str], later: list[str], slots: int, sector: int, chance: Any
) -> None:
    """Whatever sectors are old or new, slots, items and counts are those at the time of the hint."""
    buffer = bytearray(40 + 4 * slots + 20 * 64)
    made = world.module("indexfile._index_cy").IndexBuffer(buffer, slots, 64)
    for number, key in enumerate(synced):
        made.put(b"T", key.encode(), number * RECORD, NOW_MS + number * 1000)
    then = bytes(buffer)
    for number, key in enumerate(later, len(synced)):
        made.put(b"T", key.encode(), number * RECORD, NOW_MS + number * 1000)
    for at in range(0, len(buffer), sector):
        if chance.random() < 0.5:
            buffer[at : at + sector] = then[at : at + sector]
    next_item = len(synced) + 1
    assert made.keep_items(next_item, FOR_EVER) == next_item
    items_end = 40 + 4 * slots + 20 * next_item
    assert bytes(buffer[:items_end]) == then[:items_end]
    assert made.check(64) == (0, 0)


def fill(opened: Any, records: range) -> None:
    for number in records:
        opened.build("T", None, f"k{number}", number * RECORD, NOW_MS + number * 1000)


def found(opened: Any, records: range) -> list[int]:
    return [number for number in records if opened.select("T", f"k{number}") == [number * RECORD]]


def test_keep_until_drops_only_items_after_the_end_of_the_log(index: Callable[..., Any]) -> None:
    """The log lost its tail; the kept items belong to whole records, so none is indexed again."""
    opened = index(items=20)
    fill(opened, range(8))
    name, next_item = opened.sync_active()
    fill(opened, range(8, 12))
    assert opened.keep_until(name, next_item, 5 * RECORD)
    assert found(opened, range(12)) == list(range(5))
    fill(opened, range(5, 12))
    assert found(opened, range(12)) == list(range(12))


def test_keep_until_deletes_later_files(index: Callable[..., Any]) -> None:
    """The hint does not cover them."""
    opened = index(items=10)
    fill(opened, range(5))
    name, next_item = opened.sync_active()
    fill(opened, range(5, 30))
    assert len(opened.files) > 1
    assert opened.keep_until(name, next_item, 5 * RECORD)
    assert [file.name for file in opened.files] == [name]
    assert found(opened, range(30)) == list(range(5))


@pytest.mark.parametrize("name", ["", "20200101000000000"])
def test_keep_until_with_a_missing_file_changes_nothing(index: Callable[..., Any], tmp_path: Path, name: str) -> None:
    """A real broker may have deleted the file in the meantime."""
    opened = index()
    fill(opened, range(5))
    before = [path.read_bytes() for path in (tmp_path / "index").iterdir()]
    assert not opened.keep_until(name, 3, FOR_EVER)
    assert [path.read_bytes() for path in (tmp_path / "index").iterdir()] == before


def test_keep_until_rejects_a_file_of_the_same_name_with_fewer_items(index: Callable[..., Any]) -> None:
    """A rebuilt index reuses the old names; items that it does not have must not be kept as zeros."""
    opened = index(items=20)
    fill(opened, range(3))
    name, next_item = opened.sync_active()
    assert not opened.keep_until(name, next_item + 1, FOR_EVER)
    assert opened.keep_until(name, next_item, FOR_EVER)


def test_a_file_without_keys_stays_as_it_is(index: Callable[..., Any], tmp_path: Path) -> None:
    """It is neither deleted nor a reason to read the whole log for keys that do not exist."""
    opened = index()
    opened.active()
    name, next_item = opened.sync_active()
    before = [path.read_bytes() for path in (tmp_path / "index").iterdir()]
    assert opened.keep_until(name, next_item, FOR_EVER)
    assert [path.read_bytes() for path in (tmp_path / "index").iterdir()] == before


def test_header_of_a_truncated_file_matches_its_last_item(world: World) -> None:
    """Time, offset and count in the header are those of the last kept item."""
    buffer = bytearray(40 + 4 * 3 + 20 * 10)
    made = world.module("indexfile._index_cy").IndexBuffer(buffer, 3, 10)
    for number in range(6):
        made.put(b"T", b"k%d" % number, number * RECORD, NOW_MS + 1000 * number)
    assert made.keep_items(5, FOR_EVER) == 5
    header = HEADER.unpack(bytes(buffer[:40]))
    assert (header[0], header[1], header[2], header[3], header[5]) == (NOW_MS, NOW_MS + 3000, 0, 3 * RECORD, 5)
