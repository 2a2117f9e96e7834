"""Writing extended units (docs/formats/consumequeue.md#extended-unit): crashes, damage, and switching them off and on."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest

from storageio import REAL_DISK, InvalidMessage
from storageio.testing import CountingDisk, ForgettingDisk
from tests.builds import World

BASE = -(1 << 63)
SIZE = 1200  # of a file: two sectors and a part of a third
FLUSHED = 30


def opened(world: World, disk: Any, root: str, size: int = SIZE) -> Any:
    """Return a writer as after opening the folder in a new process."""
    files = world.consumequeue.QueueFiles(disk, writable=True)
    return world.consumequeue.ExtWriter(root, "T", 0, size, files)


def unit(world: World, number: int) -> Any:
    """Return the unit of a number; every third has a bitmap."""
    bitmap = bytes([255]) * (number % 3 * 7)
    return world.consumequeue.ExtUnit(0x6B6B6B00 + number, 1_700_000_000_000 + number, bitmap, 20 + len(bitmap))


def write(world: World, writer: Any, count: int) -> list[int]:
    """Append units 0 to `count` and return their addresses."""
    return [writer.append(unit(world, number)) for number in range(count)]


def read(world: World, disk: Any, root: str, size: int = SIZE) -> Any:
    return world.consumequeue.ConsumeQueueExt(disk, f"{root}/T/0", size)


def named(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "T/0").iterdir())


@pytest.mark.parametrize("seed", range(4))
def test_address_after_a_crash_points_at_the_written_unit_or_is_refused(world: World, seed: int) -> None:
    """Whatever pages, sizes and names are lost, the last address is refused if a unit before it is lost.

    Otherwise a reader would find zeros, which mean "no tags", and a consumer with a filter would miss messages.
    """
    random = Random(seed)
    disk = ForgettingDisk()
    writer = opened(world, disk, "/ext")
    addresses = write(world, writer, FLUSHED)
    writer.flush()
    addresses += [writer.append(unit(world, number)) for number in range(FLUSHED, FLUSHED + 20 + 30 * seed)]
    for image in disk.images(random, 40, limit=60):
        last = random.randrange(len(addresses))
        after = ForgettingDisk.of(image)
        again = opened(world, after, "/ext")
        is_there = again.truncate(addresses[last])
        assert is_there or last >= FLUSHED
        if is_there:
            found = read(world, after, "/ext")
            assert [found.unit(address) for address in addresses[: last + 1]] == [unit(world, n) for n in range(last + 1)]
            assert len(list(found.units())) == last + 1


def test_units_go_on_behind_the_last_after_every_opening(world: World, tmp_path: Path) -> None:
    """Each file but the last is closed by -1, and addresses count the unused rest of files too."""
    addresses, expected = [], []
    position = 0
    for number in range(100):
        size = 20 + number % 3 * 7
        if position % SIZE + size + 4 > SIZE:
            position += SIZE - position % SIZE
        expected.append(BASE + position)
        position += size
    writer = opened(world, REAL_DISK, str(tmp_path))
    for number in range(100):
        if number % 20 == 0:
            assert writer.flush() == (number > 0)
            assert not writer.flush()
            writer = opened(world, REAL_DISK, str(tmp_path))
            assert writer.end == (expected[number - 1] - BASE + 20 + (number - 1) % 3 * 7 if number else 0)
        addresses.append(writer.append(unit(world, number)))
    assert addresses == expected and named(tmp_path) == [0, SIZE, 2 * SIZE]
    assert list(read(world, REAL_DISK, str(tmp_path)).units()) == [(expected[n], unit(world, n)) for n in range(100)]
    closed = max(address for address in expected if address < BASE + SIZE) - BASE
    first = (tmp_path / "T/0" / f"{0:020d}").read_bytes()
    size = int.from_bytes(first[closed : closed + 2], "big")
    assert first[closed + size : closed + size + 2] == b"\xff\xff" and not any(first[closed + size + 2 :])


@pytest.mark.parametrize("bitmap_size", [32748, SIZE - 23])
def test_a_bitmap_that_no_unit_or_no_file_holds_is_refused(world: World, tmp_path: Path, bitmap_size: int) -> None:
    """A size is a signed 16-bit number, and four bytes of a file are reserved."""
    writer = opened(world, REAL_DISK, str(tmp_path), 40_000 if bitmap_size > SIZE else SIZE)
    with pytest.raises(InvalidMessage, match="too long"):
        writer.append(world.consumequeue.ExtUnit(1, 2, bytes(bitmap_size), 0))
    assert not (tmp_path / "T").exists()
    writer.append(world.consumequeue.ExtUnit(1, 2, bytes(bitmap_size - 1), 0))


HEAD = "6b6b6b" + "00" * 13  # tags code and time
DAMAGE = [
    ("a size of another version", "0019" + HEAD + "0000"),
    ("a bitmap of less than nothing", "0013" + HEAD + "ffff"),
    ("a bitmap that leaves the file", "4014" + HEAD + "4000"),
    ("no head before the end", ""),
]


@pytest.mark.parametrize(("name", "data"), DAMAGE, ids=[row[0] for row in DAMAGE])
@pytest.mark.parametrize("at", [0, 40])
def test_truncate_at_an_address_of_another_unit_changes_nothing(
    world: World, tmp_path: Path, name: str, data: str, at: int
) -> None:
    """After a flipped bit in the queue's last unit its address is refused, and the queue can be rebuilt from the log."""
    writer = opened(world, REAL_DISK, str(tmp_path))
    addresses = write(world, writer, 60)
    path = tmp_path / "T/0" / f"{SIZE:020d}"
    bad = bytes.fromhex(data)
    if not bad:
        at = SIZE - 10
    kept = bytearray(path.read_bytes())
    kept[at : at + len(bad)] = bad
    path.write_bytes(kept)
    again = opened(world, REAL_DISK, str(tmp_path))
    assert not again.truncate(BASE + SIZE + at)
    assert path.read_bytes() == kept
    assert again.truncate(addresses[3]) and named(tmp_path) == [0]


@pytest.mark.parametrize("address", [BASE + 1, BASE + 5 * SIZE, BASE + SIZE - 1])
def test_an_address_between_units_or_outside_of_all_files_cuts_nothing(world: World, tmp_path: Path, address: int) -> None:
    """Addresses outside all files, in the unused rest of one, or inside a unit are refused."""
    write(world, opened(world, REAL_DISK, str(tmp_path)), 60)
    before = {path: path.read_bytes() for path in (tmp_path / "T/0").iterdir()}
    again = opened(world, REAL_DISK, str(tmp_path))
    assert not again.truncate(address)
    assert {path: path.read_bytes() for path in (tmp_path / "T/0").iterdir()} == before
    assert not opened(world, REAL_DISK, str(tmp_path / "none")).truncate(address)


def test_truncate_zeroes_extended_units_and_deletes_files_behind_them(world: World, tmp_path: Path) -> None:
    """Everything behind the queue's last unit is zeroed and reused; without any unit of the queue all files are deleted."""
    addresses = write(world, opened(world, REAL_DISK, str(tmp_path)), 100)
    again = opened(world, REAL_DISK, str(tmp_path))
    assert again.truncate(addresses[10])
    end = addresses[10] - BASE + 27
    assert named(tmp_path) == [0] and not any((tmp_path / "T/0" / f"{0:020d}").read_bytes()[end:])
    assert again.append(unit(world, 11)) == addresses[11] and again.flush()
    assert again.truncate(None)
    assert named(tmp_path) == [] and again.end == 0
    assert again.append(unit(world, 0)) == BASE


def test_expired_extended_files_are_deleted_except_the_last(world: World, tmp_path: Path) -> None:
    """The last file stays even if all of its records are gone; addresses continue."""
    writer = opened(world, REAL_DISK, str(tmp_path))
    addresses = write(world, writer, 100)
    assert writer.delete_before(addresses[0]) == 0 and writer.delete_before(BASE + SIZE - 1) == 0
    assert writer.delete_before(BASE + SIZE) == 1 and named(tmp_path) == [SIZE, 2 * SIZE]
    found = read(world, REAL_DISK, str(tmp_path))
    assert found.unit(addresses[0]) is None and found.unit(addresses[-1]) == unit(world, 99)
    assert not writer.truncate(addresses[0])
    assert opened(world, REAL_DISK, str(tmp_path)).delete_before(0) == 1
    assert named(tmp_path) == [2 * SIZE]
    again = opened(world, REAL_DISK, str(tmp_path))
    assert again.append(unit(world, 100)) == addresses[99] + 20
    assert again.flush()


def test_a_flush_syncs_the_files_that_were_written_since_and_a_full_one_when_the_next_is_made(
    world: World, tmp_path: Path
) -> None:
    """A file that is on the disk is not synced again; the folder is synced every time, for the names of new files."""
    disk = CountingDisk()
    writer = opened(world, disk, str(tmp_path))
    synced = []
    for first, stop in ((0, 30), (30, 55), (55, 60), (60, 100)):
        disk.calls.clear()
        for number in range(first, stop):
            writer.append(unit(world, number))
        assert writer.flush() and not writer.flush()
        synced.append([int(call.path.rpartition("/")[2]) // SIZE for call in disk.calls if call.operation == "sync"])
    assert synced == [[0], [0, 0, 1], [1], [1, 1, 2]]
    assert sorted({call.path for call in disk.calls if call.operation == "sync folder"}) == [f"{tmp_path}/T/0"]


def test_opening_after_a_kill_allocates_no_blocks_of_sparse_files(world: World, tmp_path: Path) -> None:
    """Zeros written to files of 48 MiB per queue would fill the disk with a thousand queues."""
    size = 48 << 20
    writer = opened(world, REAL_DISK, str(tmp_path), size)
    addresses = write(world, writer, 30)
    writer.flush()
    disk = CountingDisk()
    again = opened(world, disk, str(tmp_path), size)
    assert again.truncate(addresses[20]) and again.end == addresses[20] - BASE + 34
    path = tmp_path / "T/0" / f"{0:020d}"
    assert path.stat().st_size == size and path.stat().st_blocks * 512 < 1 << 20
    assert list(read(world, REAL_DISK, str(tmp_path), size).units())[-1] == (addresses[20], unit(world, 20))


@pytest.mark.parametrize("bitmap_size", [0, 9, 30_000])
def test_a_file_of_more_units_than_one_read_holds_is_walked_to_its_end(world: World, tmp_path: Path, bitmap_size: int) -> None:
    """Units across the border of two reads are found; a position inside a unit is refused."""
    size = 20 + bitmap_size
    packed = struct.pack(">hqqh", size, 5, 1_700_000_000_000, bitmap_size) + b"\xff" * bitmap_size
    count = 600_000 // size
    (tmp_path / "T/0").mkdir(parents=True)
    (tmp_path / "T/0" / f"{0:020d}").write_bytes((packed * count).ljust(1 << 20, b"\0"))
    again = opened(world, REAL_DISK, str(tmp_path), 1 << 20)
    assert again.end == size * count
    assert not again.truncate(BASE + size * (count - 1) + 1)
    assert again.truncate(BASE + size * (count - 2)) and again.end == size * (count - 1)
    assert again.append(world.consumequeue.ExtUnit(5, 6, b"", 20)) == BASE + size * (count - 1)


@pytest.mark.parametrize("first", [0, 1])
def test_unit_torn_at_a_sector_border_is_incomplete(world: World, tmp_path: Path, first: int) -> None:
    """This holds for the first file and later ones; a unit that ends before the border stays."""
    writer = opened(world, REAL_DISK, str(tmp_path), 1100)
    units = [world.consumequeue.ExtUnit(7, 1_700_000_000_000, bytes([255]) * 40, 60) for _ in range(40)]
    addresses = [writer.append(each) for each in units]
    start = 1100 * first
    positions = [address - BASE for address in addresses if start <= address - BASE < start + 1100]
    torn = next(position for position in positions if (position - start) // 512 != (position - start + 59) // 512)
    path = tmp_path / "T/0" / f"{start:020d}"
    data = bytearray(path.read_bytes())
    border = (torn - start) // 512 * 512 + 512
    data[border : torn - start + 60] = bytes(torn - start + 60 - border)
    path.write_bytes(data)
    again = opened(world, REAL_DISK, str(tmp_path), 1100)
    assert not again.truncate(torn + BASE)
    assert again.truncate(max(position for position in positions if position < torn) + BASE)
    assert again.end == torn
