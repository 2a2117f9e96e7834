"""Reads at the exact boundaries of a log's files: selection, search, partial reads and rejected positions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from storageio import DiskError, StoreClosed, StoreCorrupt
from tests.builds import World
from tests.commitlog.test_mapped_files import SIZE, name_of, open_log, put


@pytest.fixture
def log(world: World, tmp_path: Path) -> Any:
    """Create a log of three files, with four records in each of the first two and one in the third."""
    made = open_log(world, tmp_path)
    put(world, made, 9)
    made.update_written()
    yield made
    made.close()


def positions(world: World, log: Any) -> list[tuple[int, int]]:
    """Return (physical offset, size) of each record, by reading all."""
    return [(message.physical_offset, message.size) for message in log.messages()]


def test_bytes_are_selected_inside_one_file_to_its_last_byte(world: World, log: Any) -> None:
    """A range may be empty or reach the file's end; a range across two files, or outside, returns None."""
    raw = b"".join(bytes(file.view) for file in log.queue.files)
    for start, size in ((0, 10), (0, 0), (0, SIZE), (SIZE, SIZE), (SIZE - 1, 1), (SIZE + 5, 7)):
        assert bytes(log.select(start, size)) == raw[start : start + size]
    for start, size in ((SIZE - 1, 2), (0, SIZE + 1), (0, -1), (3 * SIZE, 1), (-1, 1)):
        assert log.select(start, size) is None


def test_find_record_finds_the_next_record_from_any_offset(world: World, log: Any) -> None:
    """The search starts at its first byte, after the previous record's first byte, or before a blank at a file's end."""
    starts = [at for at, _ in positions(world, log)]
    assert SIZE in starts and 2 * SIZE in starts
    before = 0
    for at in starts:
        assert {log.find_record(each) for each in (before, (before + at) // 2, at)} == {at}
        before = at + 1
    assert log.find_record(starts[-1] + 1) == -1
    assert log.find_record(3 * SIZE) == -1


def test_messages_are_read_between_any_two_offsets(world: World, log: Any) -> None:
    """The result has the records that start at or after the one position and end by the other, in any files."""
    every = positions(world, log)
    borders = [0, *(at + size for at, size in every), SIZE, 2 * SIZE]
    for start in (at for at, _ in every):
        for stop in borders:
            expected = [position for position in every if position[0] >= start and sum(position) <= stop]
            found = [(message.physical_offset, message.size) for message in log.messages(start, stop)]
            assert found == expected, (start, stop)
    assert [message.physical_offset for message in log.messages(SIZE)] == [at for at, _ in every if at >= SIZE]


def test_walk_returns_the_offset_of_the_last_record(world: World, log: Any) -> None:
    """The physical offset is right in the second file too; it is -1 without a record."""
    every = positions(world, log)
    for file in log.queue.files:
        inside = [at for at, _ in every if file.start_offset <= at < file.end_offset]
        stop = log.walk_file(file)
        assert (stop.last_offset, stop.records) == (inside[-1], len(inside))
    last = log.queue.files[-1]
    assert log.walk_file(last, every[-1][0] + every[-1][1]).last_offset == -1


@pytest.mark.parametrize("left", range(1, 12))
@pytest.mark.parametrize("number", [0, 1])
def test_a_file_may_end_in_less_than_a_blanks_bytes_and_in_no_more(world: World, log: Any, left: int, number: int) -> None:
    """In eight bytes, which can hold a blank, anything but a record or zeros is damage, in every file."""
    end = (number + 1) * SIZE
    assert log.is_end(world.commitlog.Stop(end - left, "torn", 0, 0)) == (left < 8)
    assert log.is_end(world.commitlog.Stop(end - left, "empty", 0, 0))


def test_damage_is_reported_with_file_and_offset(world: World, log: Any, tmp_path: Path) -> None:
    """The damage is in the second record of the second file."""
    at, _ = next(position for position in positions(world, log) if position[0] > SIZE)
    log.queue.files[1].view[at - SIZE + 90] ^= 1
    with pytest.raises(StoreCorrupt) as caught:
        list(log.messages())
    assert (caught.value.file, caught.value.offset) == (str(tmp_path / name_of(1)), at - SIZE)


@pytest.mark.parametrize("size", [1, SIZE - 1, SIZE])
def test_existing_file_at_the_next_offset_is_not_overwritten(world: World, tmp_path: Path, size: int) -> None:
    """It may be somebody's data; an empty file is the remains of a crash and is replaced."""
    log = open_log(world, tmp_path)
    put(world, log, 4)
    (tmp_path / name_of(1)).write_bytes(b"x" * size)
    with pytest.raises(StoreCorrupt, match="where the next one goes"):
        log.queue.prepare_next()
    assert (tmp_path / name_of(1)).read_bytes() == b"x" * size
    log.close()


def test_a_closed_log_takes_nothing_and_holds_no_file(world: World, tmp_path: Path) -> None:
    """Its appender is closed too."""
    log = open_log(world, tmp_path)
    put(world, log, 9)
    files = log.queue.files
    assert files[-1].is_mapped
    log.close()
    assert not any(file.is_mapped for file in files)
    assert log.appender.is_closed
    with pytest.raises((StoreClosed, DiskError)):
        put(world, log, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what is open")
def test_reader_keeps_no_descriptor_open_after_a_file_is_read(world: World, log: Any, tmp_path: Path) -> None:
    """A log of thousands of files can be read with a thousand descriptors."""
    reader = world.commitlog.open_log(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    for file in reader.queue.files:
        assert file.next_data(0) == 0
        assert file.next_data(SIZE) == SIZE
    assert len(os.listdir("/proc/self/fd")) <= before
    reader.close()


@pytest.mark.parametrize("size", [0, 1, SIZE - 1])
def test_a_last_file_that_is_still_being_made_is_left_out_for_now(world: World, log: Any, tmp_path: Path, size: int) -> None:
    """`refresh` returns False until the file has its whole size and is added."""
    reader = world.commitlog.open_log(str(tmp_path))
    path = tmp_path / name_of(3)
    path.write_bytes(bytes(size))
    assert not reader.queue.refresh()
    assert [file.start_offset for file in reader.queue.files] == [0, SIZE, 2 * SIZE]
    path.write_bytes(bytes(SIZE))
    assert reader.queue.refresh()
    assert [file.start_offset for file in reader.queue.files] == [0, SIZE, 2 * SIZE, 3 * SIZE]
    reader.close()
