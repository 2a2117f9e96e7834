"""Filters of key hashes: which index files a query may skip (docs/formats/indexfile.md#key-filters)."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK
from tests.builds import World
from tests.indexfile.model import key_hash

BEGIN = 1_700_000_000_000
SLOTS, ITEMS = 25, 101  # 100 keys in a file


def fill(index: Any, start: int, stop: int) -> None:
    """Index the keys k<start> to before k<stop>."""
    for number in range(start, stop):
        index.build("T", None, f"k{number}", 1000 * number, BEGIN + number)


def build_all(world: World, index: Any, folder: Path) -> Any:
    """Build all filters, as the housekeeper does in many steps."""
    filters = world.indexfile.KeyFilters(REAL_DISK, str(folder), index)
    while True:
        filters.step(iter([0.0, 0.0, 1.0]).__next__)
        if filters.is_idle:
            return filters


def paths(folder: Path) -> list[Path]:
    """Return the filter files."""
    return sorted(folder.iterdir())


def masks(index: Any, number: int) -> list[int]:
    """Return the used bits of each filter that a key has."""
    code = key_hash(f"T#k{number}")
    return [one.buffer.mask(code) & one.live for one in index.searched if hasattr(one, "live")]


@pytest.fixture
def filled(world: World, index: Callable[..., Any], tmp_path: Path) -> tuple[Any, Path]:
    """Return an index of 13 full files and one that is not, and the folder of its filters."""
    opened = index(SLOTS, ITEMS)
    fill(opened, 0, 1350)
    build_all(world, opened, tmp_path / "keys")
    return opened, tmp_path / "keys"


def test_a_filter_has_every_key_of_its_files(filled: tuple[Any, Path]) -> None:
    """Thirteen files make filters of eight, four and one, each with its file's bit for each key."""
    opened, folder = filled
    groups = [one for one in opened.searched if hasattr(one, "live")]
    assert [len(one.files) for one in groups] == [8, 4, 1] and len(paths(folder)) == 3
    assert opened.searched[-1] is opened.files[-1]
    for number in range(1300):
        position = number // 100
        group = 0 if position < 8 else 1 if position < 12 else 2
        assert masks(opened, number)[group] >> (position - (0, 8, 12)[group]) & 1, number


def test_few_other_keys_pass(world: World) -> None:
    """Sixteen bits a key and six probes let about one of a thousand hashes pass; keys that count up are no worse."""
    kernel, layout = world.module("indexfile._filter_cy"), world.module("indexfile.layout")
    items = 20_001 if world.build == "compiled" else 1001
    for make in (lambda number: random.Random(number).randrange(1 << 31), lambda number: key_hash(f"T#order-{number}")):
        data = bytearray(layout.file_size(items // 4, items))
        buffer = world.module("indexfile._index_cy").IndexBuffer(data, items // 4, items)
        for number in range(items - 1):
            at = layout.HEADER_SIZE + 4 * (items // 4) + 20 * (number + 1)
            data[at : at + 4] = make(number).to_bytes(4, "big")
        bits = bytearray(64 * kernel.block_count(items))
        kernel.add_items(buffer, 1, items, bits)
        kernel.seal(bits, 1, 0, 5)
        found = kernel.FilterBuffer(bits, 1, kernel.block_count(items), 5)
        assert all(found.mask(make(number)) for number in range(items - 1))
        others = range(1_000_000, 1_000_000 + 5 * items)
        assert sum(found.mask(make(number)) for number in others) < 0.004 * len(others)


def test_flipped_filter_byte_is_reported_and_hides_no_key(world: World, filled: tuple[Any, Path], index: Any) -> None:
    """In the first page the filter is not used; in a block every file of it is searched."""
    opened, folder = filled
    expected = [opened.select("T", f"k{number}") for number in range(0, 1350, 7)]
    chosen = random.Random(4)
    for path in paths(folder):
        whole = path.read_bytes()
        for at in [*chosen.sample(range(1000), 20), *chosen.sample(range(4096, len(whole)), 60), 4092, len(whole) - 1]:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << chosen.randrange(8))]) + whole[at + 1 :])
            reader = index(SLOTS, ITEMS, writable=False)
            world.indexfile.KeyFilters(REAL_DISK, str(folder), reader).load()
            for number in range(0, 1300, 7):
                position = number // 100
                groups = [one for one in reader.searched if hasattr(one, "live")]
                group = next((one for one in groups if reader.files[position] in one.files), None)
                if group is not None:
                    bit = group.files.index(reader.files[position])
                    assert group.buffer.mask(key_hash(f"T#k{number}")) >> bit & 1, (path, at, number)
            assert [name for name, _ in world.indexfile.damaged_filters(REAL_DISK, str(folder))] == [str(path)]
            reader.close()
        path.write_bytes(whole[:-1])
        assert [name for name, _ in world.indexfile.damaged_filters(REAL_DISK, str(folder))] == [str(path)]
        path.write_bytes(whole)
    assert not list(world.indexfile.damaged_filters(REAL_DISK, str(folder)))
    assert [opened.select("T", f"k{number}") for number in range(0, 1350, 7)] == expected


def test_filter_applies_only_to_the_unchanged_index_file(world: World, filled: tuple[Any, Path], index: Any) -> None:
    """Another file of the same name, a deleted one, the newest one and one that was cut are searched without a filter."""
    opened, folder = filled
    files = [Path(file.path) for file in opened.files]
    opened.close()
    with files[3].open("r+b") as file:  # another end time
        file.seek(15)
        file.write(b"\x07")
    files[0].unlink()
    files[-1].unlink()
    reader = index(SLOTS, ITEMS, writable=False)
    world.indexfile.KeyFilters(REAL_DISK, str(folder), reader).load()
    plain = [one.name for one in reader.searched if not hasattr(one, "live")]
    assert plain == [files[3].name, files[-2].name]
    assert [len([file for file in one.files if file]) for one in reader.searched if hasattr(one, "live")] == [2, 4, 4]


def test_a_writer_builds_again_what_is_lost_or_damaged(world: World, filled: tuple[Any, Path], index: Any) -> None:
    """It deletes what an unfinished step left, and filters whose index files are gone."""
    opened, folder = filled
    opened.close()
    names = [path.name for path in paths(folder)]
    shutil.copy(folder / names[0], folder / "1-8.keys")
    (folder / "7-1.keys.new").write_bytes(b"half")
    paths(folder)[-1].write_bytes(b"x" * 9000)
    again = index(SLOTS, ITEMS)
    build_all(world, again, folder)
    assert [len(one.files) for one in again.searched if hasattr(one, "live")] == [8, 4, 1]
    assert len(paths(folder)) == 3
    again.delete_expired(1000 * 1000)
    build_all(world, again, folder)
    assert [one.live for one in again.searched if hasattr(one, "live")] == [0b1100, 1] and len(paths(folder)) == 2
    assert masks(again, 1250)[-1] == 1


def test_a_crash_between_two_steps_leaves_one_filter_a_file(world: World, filled: tuple[Any, Path], index: Any) -> None:
    """A merge was renamed, and the filters that it replaces were not deleted: the wider one is used."""
    opened, folder = filled
    kept = {path.name: path.read_bytes() for path in paths(folder)}
    fill(opened, 1350, 1650)
    build_all(world, opened, folder)
    assert [len(one.files) for one in opened.searched if hasattr(one, "live")] == [16]
    opened.close()
    for name, data in kept.items():
        (folder / name).write_bytes(data)
    again = index(SLOTS, ITEMS)
    filters = world.indexfile.KeyFilters(REAL_DISK, str(folder), again)
    filters.load()
    assert [len(one.files) for one in again.searched if hasattr(one, "live")] == [16]
    build_all(world, again, folder)
    assert len(paths(folder)) == 1
