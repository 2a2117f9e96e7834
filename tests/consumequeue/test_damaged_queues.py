"""Queues after a crash that brought files back, beside files of other programs, and of great length."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random
from typing import Any

import pytest

from storageio import REAL_DISK, StoreCorrupt
from storageio.testing import ForgettingDisk
from tests.builds import World
from tests.consumequeue.model import UNIT, built, packed
from tests.consumequeue.test_batch import batch_queue
from tests.helpers import contents


def name_of(number: int) -> str:
    return f"{200 * number:020d}"


@pytest.mark.parametrize(
    ("lost", "log_min", "left"),
    [
        ([1], 1000, [2, 3]),  # file 0 came back without the next one: its records are gone
        ([1], 1001, [2, 3]),
        ([1], 900, [0]),  # the last record of 0 is still in the log: 2 and 3 lie behind a hole
        ([1], 0, [0]),
        ([0, 2], 2000, [3]),
        ([0, 2], 1500, [1]),
        ([1, 2], 3500, [3]),
        ([2], 99_999, [3]),
        ([], 3000, [0, 1, 2, 3]),
    ],
)
def test_recover_keeps_the_files_with_records_of_a_non_contiguous_queue(
    queues: Any, lost: list[int], log_min: int, left: list[int]
) -> None:
    """Files that a crash brought back are deleted; units behind a gap were never synced and are rebuilt from the log."""
    folder = built(queues)
    for number in lost:
        (folder / name_of(number)).unlink()
    before = contents(folder)
    opened = queues()
    opened.correct_min_offsets(log_min)
    opened.recover()
    queue = opened.get("T", 0)
    assert contents(folder) == {name: data for name, data in before.items() if int(name) // 200 in left}
    assert queue.max_offset == min(35, 10 * left[-1] + 10)
    queue.append_run(queue.max_offset, packed(queue.max_offset, 3))
    assert queue.unit(queue.max_offset - 1).tags_code == queue.max_offset - 1


@pytest.mark.parametrize("empty", [0, 1])
def test_files_behind_one_that_lost_its_length_are_made_again(queues: Any, empty: int) -> None:
    """A file that lost its length and all files after it are rebuilt, even if it is the first."""
    folder = built(queues)
    (folder / name_of(empty)).write_bytes(b"")
    opened = queues()
    opened.recover()
    queue = opened.get("T", 0)
    assert queue.max_offset == 10 * empty and sorted(contents(folder)) == [name_of(number) for number in range(empty)]
    queue.append_run(10 * empty, packed(10 * empty, 35 - 10 * empty))
    assert b"".join(contents(folder).values()) == packed(0, 35) + bytes(100)


@pytest.mark.parametrize("count", [1, 13_106, 13_107, 13_108, 26_213, 26_214, 26_215])
def test_a_file_longer_than_one_read_is_walked_to_its_end(queues: Any, count: int) -> None:
    """The scan handles the border of two reads, and a file of a whole number of reads."""
    opened = queues(26_214)
    opened.get_or_add("T", 0).append_run(0, packed(0, count))
    opened.close()
    again = queues(26_214)
    assert again.recover() == (1 << 63) - 1
    queue = again.get("T", 0)
    assert (queue.max_offset, queue.max_physical_offset) == (count, 100 * count)
    queue.truncate(100 * (count - 1))
    assert queue.max_offset == count - 1


def test_flushed_size_is_known_right_after_opening(queues: Any) -> None:
    """After a clean stop everything counts as flushed, before any other call."""
    built(queues)
    assert queues().get("T", 0).flushed == 700
    assert queues().get_or_add("T", 1).flushed == 0


def test_recover_recomputes_a_minimum_beyond_the_recovered_end(queues: Any) -> None:
    """Otherwise readers would begin behind the next messages, because the units that it counted are gone."""
    folder = built(queues)
    opened = queues()
    queue = opened.get("T", 0)
    assert queue.correct_min_offset(3300) == 33
    with (folder / name_of(2)).open("r+b") as file:
        file.seek(100)
        file.write(bytes(20))
    assert queue.recover() == 500
    assert (queue.min_offset, queue.max_offset) == (0, 25)


def test_a_walk_over_units_that_are_cut_meanwhile_ends_before_them(queues: Any) -> None:
    """The units of the current file are still returned; no position is read twice, and none behind the end."""
    built(queues)
    queue = queues().get("T", 0)
    walk = queue.units()
    seen = [next(walk)[0] for _ in range(12)]
    queue.truncate(1500)
    seen += [number for number, _ in walk]
    assert seen == list(range(20))


def test_first_unit_is_written_to_an_empty_file_of_another_offset(queues: Any, caplog: Any) -> None:
    """The crash came between creating the file and its unit; a warning is logged and no blank is written."""
    folder = built(queues, 0)
    folder.mkdir(parents=True)
    (folder / name_of(0)).write_bytes(bytes(200))
    queue = queues().get("T", 0)
    caplog.set_level(logging.WARNING, logger="brokerstore.consumequeue")
    queue.append_run(25, packed(25, 1))
    assert "unit 25 goes to place 0" in caplog.text
    assert contents(folder) == {name_of(0): packed(25, 1) + bytes(180)}
    assert queue.unit(0).physical_offset == 2500


def test_remove_keeps_a_queue_folder_with_other_files(queues: Any, tmp_path: Path) -> None:
    """The queue and its files are deleted; a folder with other files stays.  A queue that was never written has no folder."""
    folder = built(queues)
    (folder / "mine").mkdir()
    (folder.parent / "notes").touch()
    opened = queues()
    opened.get_or_add("T", 1)
    opened.get_or_add("U", 1)
    opened.remove("T", 0)
    opened.remove("T", 1)
    opened.remove_topic("U")
    assert opened.topics() == [] and len(opened) == 0
    assert sorted(path.name for path in folder.parent.rglob("*")) == ["0", "mine", "notes"]


def test_file_size_is_that_of_the_majority_of_the_first_queues(world: World, tmp_path: Path) -> None:
    """A few of the first queues decide, so the result does not depend on a damaged one."""
    for number in range(130):
        folder = tmp_path / "T" / str(number)
        folder.mkdir(parents=True)
        (folder / name_of(0)).write_bytes(bytes(140 if number % 3 else 200))
    requested: list[str] = []

    class Disk(type(REAL_DISK)):  # type: ignore[misc]
        def list(self, folder: str) -> Any:
            requested.append(folder)
            return super().list(folder)

    assert world.consumequeue.find_file_size(Disk(), str(tmp_path)) == 140
    assert len(requested) == 2 + 100


@pytest.mark.parametrize("base", [0, 5 << 30])
@pytest.mark.parametrize("flushed", [51, 76, 102, 153, 204])
def test_units_after_a_crash_point_at_their_own_records(world: World, base: int, flushed: int) -> None:
    """A unit across a sector border can lose its first half, and would then point at the record of an old message.

    `flushed` units were on the disk, so the old version of the sector ends there; the log has all records.
    """
    disk, random = ForgettingDisk(), Random(flushed)
    units = b"".join(UNIT.pack(base + 100 * number, 100, number) for number in range(flushed + 60))
    opened = world.consumequeue.ConsumeQueues(disk, "/q", writable=True, file_size_bytes=4000)
    queue = opened.get_or_add("T", 0)
    queue.append_run(0, units[: 20 * flushed])
    opened.flush()
    for first in (flushed, flushed + 7, flushed + 40):
        queue.append_run(first, units[20 * first : 20 * min(flushed + 60, first + 33)])
    for image in disk.images(random, 80, limit=40):
        after = ForgettingDisk.of(image)
        again = world.consumequeue.ConsumeQueues(after, "/q", writable=True, file_size_bytes=4000)
        again.recover(base + 100 * flushed, base + 100 * (flushed + 60))
        found = again.get("T", 0)
        assert found.max_offset >= flushed
        assert [tuple(unit) for _, unit in found.units()] == [
            (base + 100 * number, 100, number) for number in range(found.max_offset)
        ]


def test_a_first_unit_behind_blanks_is_no_torn_one(world: World, tmp_path: Path) -> None:
    """A blank points at a long record at 0; the unit after it, across a sector border, is whole."""
    for first in range(20, 30):
        root = str(tmp_path / str(first))
        opened = world.consumequeue.ConsumeQueues(REAL_DISK, root, writable=True, file_size_bytes=2000)
        opened.get_or_add("T", 0).append_run(first, packed(first, 40))
        opened.close()
        again = world.consumequeue.ConsumeQueues(REAL_DISK, root, writable=True, file_size_bytes=2000)
        again.recover(0)
        queue = again.get("T", 0)
        assert (queue.min_offset, queue.max_offset) == (first, first + 40)


# Batch queues


def batches(world: World, root: Path, count: int) -> Any:
    """Return a closed batch queue with files of twenty units, five messages per batch."""
    queue = batch_queue(world, root, "T", 0, True)
    for number in range(count):
        queue.append(world.consumequeue.BatchUnit(100 * number, 100, 0, 1000 + number, 5 * number, 5))
    queue.flush()
    queue._files.close()
    return Path(queue.folder)


@pytest.mark.parametrize("damaged", [None, 30, 70, 110])
def test_a_batch_queue_of_many_files_is_recovered_from_the_third_before_its_end(
    world: World, tmp_path: Path, damaged: int | None
) -> None:
    """Earlier files were synced when they became full; everything from the first invalid unit on is cut."""
    folder = batches(world, tmp_path, 115)
    if damaged is not None:
        with (folder / f"{damaged // 20 * 920:020d}").open("r+b") as file:
            file.seek(damaged % 20 * 46)
            file.write(bytes(46))
    queue = batch_queue(world, tmp_path, "T", 0, True)
    left = 115 if damaged in (None, 30) else damaged
    assert queue.recover() == 46 * left
    queue.drop_tail()
    assert queue.stop_index == left and len(contents(folder)) == -(-left // 20)


@pytest.mark.parametrize(("cut", "left"), [(0, 0), (1, 1), (100, 1), (4000, 40), (4001, 41), (9999, 45)])
def test_batches_behind_the_logs_end_are_cut(world: World, tmp_path: Path, cut: int, left: int) -> None:
    """Their bytes are zeroed and files behind the end are deleted; an empty queue has none to cut."""
    folder = batches(world, tmp_path, 45)
    queue = batch_queue(world, tmp_path, "T", 0, True)
    queue.truncate(cut)
    assert (queue.stop_index, queue.max_offset) == (left, 5 * left)
    assert len(b"".join(contents(folder).values()).rstrip(b"\0")) <= 46 * left
    assert queue.append(world.consumequeue.BatchUnit(99_999, 100, 0, 1, 5 * left, 5))
    empty = batch_queue(world, tmp_path, "T", 1, True)
    empty.truncate(cut)
    assert (empty.stop_index, empty.starts) == (0, [])


@pytest.mark.parametrize(
    ("log_min", "deleted", "min_offset"), [(0, 0, 0), (1900, 0, 95), (1901, 1, 100), (3901, 2, 200), (99_999, 2, 200)]
)
def test_expired_batch_queue_files_are_deleted_except_the_last(
    world: World, tmp_path: Path, log_min: int, deleted: int, min_offset: int
) -> None:
    """A file is deleted with its last record; the minimum is the first message of the first remaining record."""
    folder = batches(world, tmp_path, 45)
    queue = batch_queue(world, tmp_path, "T", 0, True)
    assert queue.delete_expired(log_min) == deleted
    assert len(contents(folder)) == 3 - deleted and queue.min_offset == min_offset
    assert queue.delete_expired(log_min) == 0


def test_reader_opens_batch_queue_folders_without_files(world: World, tmp_path: Path) -> None:
    """A reader may open the folder before the writer creates files; a damaged queue raises unless it may be set aside."""
    for number in range(3):
        (tmp_path / "T" / str(number)).mkdir(parents=True)
    make = world.consumequeue.BatchQueues
    reader = make(REAL_DISK, str(tmp_path), writable=False)
    assert len(reader) == 0 and reader.knows("T")
    (tmp_path / "T" / "1").rmdir()
    batch = batch_queue(world, tmp_path, "T", 1, True)
    batch.append(world.consumequeue.BatchUnit(0, 100, 0, 1, 0, 5))
    reader.discover()
    assert reader.file_size_bytes == 920 and reader.get("T", 1).max_offset == 5
    batch.append(world.consumequeue.BatchUnit(100, 100, 0, 1, 5, 5))
    reader.get("T", 1).refresh()
    assert reader.get("T", 1).max_offset == 10
    (tmp_path / "T" / "0" / "stray").touch()
    with pytest.raises(StoreCorrupt, match="stray file"):
        make(REAL_DISK, str(tmp_path), writable=False)
    aside: dict[tuple[str, int], StoreCorrupt] = {}
    assert make(REAL_DISK, str(tmp_path), writable=False, unreadable=aside).queue_ids("T") == [1, 2]
    assert list(aside) == [("T", 0)]


def test_a_search_by_time_over_batches_that_are_cut_meanwhile_ends(world: World, tmp_path: Path) -> None:
    """The search returns the minimum and invents no unit."""
    queue = batch_queue(world, tmp_path, "T", 0, True)
    for number in range(45):
        queue.append(world.consumequeue.BatchUnit(100 * number, 100, 0, 1000 + number, 5 * number, 5))
    real, requested = queue.unit, []

    class Cut(type(queue)):  # type: ignore[misc]
        __slots__ = ()

        def unit(self, index: int) -> Any:
            requested.append(index)
            return real(index) if len(requested) < 6 else None

    cut = Cut(str(tmp_path), "T", 0, 920, queue._files)
    for boundary in world.consumequeue.Boundary:
        requested.clear()
        assert world.consumequeue.batch_offset_by_time(cut, 1020, boundary) == 0


def test_find_lost_front_stops_at_the_first_unit_of_the_buffer(world: World) -> None:
    """The unit before it is in the previous range: nothing is read before the buffer."""
    find = world.module("consumequeue._units_cy").find_lost_front
    assert find(bytes(60), 500, 0) == (-1, False)
    assert find(packed(5, 1) + bytes(20), 480, 0) == (500, False)
