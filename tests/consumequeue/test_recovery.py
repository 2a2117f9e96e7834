"""Recovery, truncation and deletion of queues."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storageio import REAL_DISK, DiskError, StoreCorrupt, StoreReadOnly
from storageio.testing import CountingDisk, FailingDisk
from tests.builds import World
from tests.consumequeue.model import PROPERTY, UNIT, built, packed
from tests.helpers import contents


def overwrite(folder: Path, unit: int, data: bytes) -> None:
    """Overwrite a unit with other bytes."""
    with open(folder / f"{unit // 10 * 200:020d}", "r+b") as file:
        file.seek(unit % 10 * 20)
        file.write(data)


@pytest.mark.parametrize("count", [1, 9, 10, 11, 29, 30, 35])
def test_end_is_found_by_binary_search_and_by_scan(queues: Any, count: int) -> None:
    """Binary search (after a clean stop) and a scan (after an unclean one) find the same end."""
    built(queues, count)
    queue = queues(writable=False).get("T", 0)
    assert (queue.max_offset, queue.max_physical_offset) == (count, 100 * count)
    assert queue.recover() == 20 * count
    assert (queue.max_offset, queue.max_physical_offset) == (count, 100 * count)


@PROPERTY
@given(st.integers(0, 1500), st.integers(30, 700))
def test_binary_search_and_scan_agree_for_any_number_of_units(world: World, count: int, units: int) -> None:
    """They agree for any number of units in files of any size."""
    with tempfile.TemporaryDirectory() as folder:
        make = world.consumequeue.ConsumeQueues
        opened = make(REAL_DISK, folder, writable=True, file_size_bytes=20 * units)
        opened.get_or_add("T", 0).append_run(0, packed(0, count))
        again = make(REAL_DISK, folder, writable=False, file_size_bytes=20 * units).get_or_add("T", 0)
        assert again.max_offset == count
        again.recover()
        assert again.max_offset == count


# what is broken, unit written over, its bytes, units that are left, files that are left
DAMAGE = [
    ("a unit of zeros in the last file", 32, bytes(20), 32, 4),
    ("a unit of zeros in the third file from the end", 13, bytes(20), 13, 2),
    ("a unit of zeros before the third file from the end", 3, bytes(20), 35, 4),  # recovery does not read it
    ("a negative offset", 22, UNIT.pack(-1, 100, 0), 22, 3),
    ("a size of 0", 22, UNIT.pack(2200, 0, 0), 22, 3),
    ("a negative size", 22, UNIT.pack(2200, -1, 0), 22, 3),
    ("the first unit of the last file", 30, bytes(20), 30, 4),
    ("an offset that is nowhere in the log", 22, UNIT.pack(1 << 50, 100, 0), 35, 4),  # only the log can tell
    ("a half-written last unit", 34, UNIT.pack(3400, 0, 0), 34, 4),
]


@pytest.mark.parametrize(("name", "unit", "data", "left", "files"), DAMAGE, ids=[row[0] for row in DAMAGE])
def test_recovery_after(queues: Any, name: str, unit: int, data: bytes, left: int, files: int) -> None:
    """The units before the first invalid one stay, from the third file before the end; the scan changes no file."""
    folder = built(queues)
    overwrite(folder, unit, data)
    before = contents(folder)
    reader = queues(writable=False).get("T", 0)
    reader.recover()
    assert reader.max_offset == left
    assert contents(folder) == before
    opened = queues()
    opened.recover()
    queue = opened.get("T", 0)
    assert queue.max_offset == left
    assert len(contents(folder)) == files
    queue.append_run(left, packed(left, 50 - left))
    assert queue.max_offset == 50


def test_bytes_behind_the_end_are_zeroed(queues: Any) -> None:
    """RocketMQ leaves them, and they come back as units after the next crash."""
    folder = built(queues)
    overwrite(folder, 31, bytes(20))
    opened = queues()
    opened.recover()
    assert (folder / f"{600:020d}").read_bytes() == packed(30, 1) + bytes(180)


def test_a_last_file_of_no_bytes_is_deleted(queues: Any) -> None:
    """It remains after a crash between creating the file and setting its size."""
    folder = built(queues, 30)
    (folder / f"{600:020d}").touch()
    assert queues(writable=False).get("T", 0).max_offset == 30
    opened = queues()
    opened.recover()
    assert sorted(contents(folder)) == [f"{start:020d}" for start in (0, 200, 400)]
    opened.get("T", 0).append_run(30, packed(30, 1))
    assert opened.get("T", 0).max_offset == 31


def test_an_empty_last_file_is_used(queues: Any) -> None:
    """It remains after a crash between creating the file and its first unit."""
    folder = built(queues, 30)
    (folder / f"{600:020d}").write_bytes(bytes(200))
    opened = queues()
    queue = opened.get("T", 0)
    assert (queue.max_offset, queue.max_physical_offset) == (30, 3000)
    opened.recover()
    queue.append_run(30, packed(30, 2))
    assert [number for number, _ in queue.units()] == list(range(32))


STRAYS = [
    ("a temporary file", "00000000000000000000.tmp", b"", "stray file"),
    ("a text", "notes", b"hello", "stray file"),
    ("a short file", f"{600:020d}", bytes(120), "wrong file size"),
    ("a long file", f"{600:020d}", bytes(220), "wrong file size"),
]


@pytest.mark.parametrize(("name", "file", "data", "reason"), STRAYS, ids=[row[0] for row in STRAYS])
def test_a_folder_that_rocketmq_would_not_load(queues: Any, name: str, file: str, data: bytes, reason: str) -> None:
    """The error names file and sizes; nothing is changed."""
    folder = built(queues, 30)
    (folder / file).write_bytes(data)
    with pytest.raises(StoreCorrupt) as caught:
        queues().load()
    assert caught.value.reason == reason
    assert (folder / file).read_bytes() == data


def test_file_name_inside_a_unit_is_rejected(queues: Any) -> None:
    """A first file that begins in the middle of a unit is refused."""
    folder = built(queues, 3)
    (folder / f"{0:020d}").rename(folder / f"{30:020d}")
    with pytest.raises(StoreCorrupt, match="file name"):
        queues().load()


def test_names_that_are_no_queues_are_passed_over(queues: Any, tmp_path: Path) -> None:
    """Files beside topics, folders that are no numbers, and folders inside a queue are ignored."""
    folder = built(queues, 3)
    (tmp_path / "consumequeue" / "file").touch()
    for name in ("x", "-1", "01", "1.5", "99999999999"):
        (tmp_path / "consumequeue" / "T" / name).mkdir()
    (folder / "subfolder").mkdir()
    opened = queues()
    opened.load()
    assert opened.queue_ids("T") == [0]
    assert opened.topics() == ["T"]


# physical offset to cut at, units left, files left
CUTS = [
    (9999, 35, 4),
    (3401, 35, 4),
    (3400, 34, 4),
    (3050, 31, 4),
    (3000, 30, 3),
    (2999, 30, 3),
    (101, 2, 1),
    (1, 1, 1),
    (0, 0, 0),
]


@pytest.mark.parametrize(("at", "left", "files"), CUTS)
def test_truncate(queues: Any, at: int, left: int, files: int) -> None:
    """Units at or behind the offset are zeroed, and files behind the end are deleted."""
    folder = built(queues)
    opened = queues()
    opened.truncate(at)
    queue = opened.get("T", 0)
    assert (queue.max_offset, queue.max_physical_offset) == (left, 100 * left or -1)
    data = b"".join(contents(folder).values())
    assert data == packed(0, left) + bytes(200 * files - 20 * left)
    assert len(contents(folder)) == files
    queue.append_run(left, packed(left, 5))
    assert queue.max_offset == left + 5


def test_truncate_drops_a_damaged_last_unit_that_points_behind_the_log(queues: Any) -> None:
    """Otherwise every later record would look like a repeat."""
    folder = built(queues)
    overwrite(folder, 34, UNIT.pack((1 << 63) - 5, 100, 0))
    opened = queues()
    assert opened.max_physical_offset() == (1 << 63) - 1
    opened.truncate(3500)
    assert opened.max_physical_offset() == 3400


# log minimum, files deleted, minimum after
EXPIRIES = [(0, 0, 0), (900, 0, 9), (901, 1, 10), (1000, 1, 10), (2950, 3, 30), (9999, 3, 35)]


@pytest.mark.parametrize(("log_min", "deleted", "minimum"), EXPIRIES)
def test_delete_expired(queues: Any, log_min: int, deleted: int, minimum: int) -> None:
    """Leading files whose last record left the log are deleted, never the last file."""
    folder = built(queues)
    opened = queues()
    assert opened.delete_expired(log_min) == deleted
    assert sorted(contents(folder)) == [f"{200 * number:020d}" for number in range(deleted, 4)]
    assert (opened.get("T", 0).min_offset, opened.get("T", 0).max_offset) == (minimum, 35)
    again = queues().get("T", 0)
    assert (again.correct_min_offset(log_min), again.max_offset) == (minimum, 35)
    assert opened.get("T", 0).is_expired(log_min) == (log_min == 9999)


def test_flush_syncs_data_and_new_names_once(queues: Any) -> None:
    """It syncs files written since, and the folder if a file was created; it does nothing if nothing was written."""
    disk = CountingDisk()
    opened = queues(disk=disk)
    queue = opened.get_or_add("T", 0)
    queue.append_run(0, packed(0, 12))
    made = disk.counts["sync folder"]
    assert opened.flush()
    assert (disk.counts["sync"], disk.counts["sync folder"]) == (2, made + 1)
    assert queue.flushed == 240
    assert not opened.flush()
    queue.append_run(12, packed(12, 1))
    assert opened.flush()
    assert (disk.counts["sync"], disk.counts["sync folder"]) == (3, made + 1)


@pytest.mark.parametrize(("count", "is_worth_it"), [(1, False), (409, False), (410, True), (1000, True)])
def test_flush_waits_for_two_pages(queues: Any, count: int, is_worth_it: bool) -> None:
    """8,192 bytes are 409.6 units; a full file is synced whatever it holds."""
    queue = queues(units=1000).get_or_add("T", 0)
    queue.append_run(0, packed(0, count))
    assert queue.flush(2) == is_worth_it
    small = queues(units=10, folder=None).get_or_add("U", 0)
    small.append_run(0, packed(0, 10))
    assert small.flush(2)


@pytest.mark.parametrize("operation", ["sync", "sync folder"])
def test_failed_sync_raises_and_does_not_advance_the_flushed_size(queues: Any, operation: str) -> None:
    """Neither data nor a new file's name counts as flushed; the full file was synced before the next was created."""
    disk = FailingDisk(10_000, only=operation)
    opened = queues(disk=disk)
    queue = opened.get_or_add("T", 0)
    queue.append_run(0, packed(0, 12))
    disk.fail_at = len(disk.calls) + 1
    with pytest.raises(DiskError):
        opened.flush()
    assert queue.flushed == 200
    assert queue.max_offset == 12


def test_remove_deletes_the_queue_and_topic_folders(queues: Any, tmp_path: Path) -> None:
    """It deletes the queue's folder, and the topic's folder with its last queue."""
    opened = queues()
    opened.get_or_add("T", 0).append_run(0, packed(0, 3))
    opened.get_or_add("T", 1).append_run(0, packed(0, 3))
    opened.remove("T", 0)
    assert opened.queue_ids("T") == [1]
    opened.remove("T", 1)
    assert opened.topics() == []
    assert list((tmp_path / "consumequeue").iterdir()) == []
    opened.remove("T", 5)


def test_a_reader_follows_a_live_writer(queues: Any) -> None:
    """The reader sees new units, files and queues, and notices deleted files."""
    writer = queues()
    writer.get_or_add("T", 0).append_run(0, packed(0, 3))
    reader = queues(writable=False)
    queue = reader.get("T", 0)
    assert queue.max_offset == 3
    writer.get("T", 0).append_run(3, packed(3, 30))
    assert queue.refresh() == 33 * 20
    assert [number for number, _ in queue.units()] == list(range(33))
    assert queue.refresh() == 33 * 20
    reader.close()
    writer.delete_expired(1500)
    writer.get("T", 0).append_run(33, packed(33, 10))
    assert queue.unit(3) is None
    queue.refresh()
    assert (queue.min_offset, queue.max_offset) == (10, 43)
    writer.get_or_add("U", 1).append_run(0, packed(0, 1))
    reader.discover()
    assert reader.get("U", 1).max_offset == 1


def test_binary_search_finds_the_end_of_a_file_of_several_blocks(queues: Any) -> None:
    """450 units in a file of 1,000 are more than one read."""
    opened = queues(units=1000)
    opened.get_or_add("T", 0).append_run(0, packed(0, 450))
    opened.close()
    assert queues(units=1000).get("T", 0).max_offset == 450


def test_recover_reads_a_file_that_starts_at_the_safe_offset(queues: Any) -> None:
    """The third file from the end begins with a record at the safe end, so the files before it are read too."""
    folder = built(queues, 45)
    overwrite(folder, 13, bytes(20))
    assert queues(writable=False).get("T", 0).recover(safe_offset=2000) == 13 * 20
    assert queues(writable=False).get("T", 0).recover(safe_offset=2001) == 45 * 20


def test_zeros_behind_the_end_of_a_later_file_are_no_lost_units(queues: Any) -> None:
    """The search for lost sectors of the second file ends at its last unit, not at the file's end."""
    opened = queues(units=100)
    opened.get_or_add("T", 0).append_run(0, packed(0, 110))
    opened.close()
    assert queues(units=100, writable=False).get("T", 0).recover(safe_offset=2000) == 110 * 20


def test_a_reader_drops_no_files_behind_a_hole(queues: Any) -> None:
    """Only a writer may delete them."""
    folder = built(queues)
    (folder / f"{200:020d}").unlink()
    before = contents(folder)
    with pytest.raises(StoreReadOnly):
        queues(writable=False).get("T", 0).drop_files_after_gap()
    assert contents(folder) == before


def test_truncate_resets_the_sum_of_next_offsets(queues: Any) -> None:
    """The sum of next offsets is counted again after a truncation."""
    built(queues)
    opened = queues()
    opened.next_total = opened.count()
    opened.truncate(1000)
    assert (opened.count(), opened.next_total) == (10, None)


def test_a_full_file_is_synced_before_the_next_is_made(queues: Any) -> None:
    """This also holds if its name was synced by a flush before it was full."""
    disk = CountingDisk()
    opened = queues(disk=disk)
    queue = opened.get_or_add("T", 0)
    queue.append_run(0, packed(0, 4))
    opened.flush()
    queue.append_run(4, packed(4, 6))
    disk.calls.clear()
    queue.append_run(10, packed(10, 1))
    first = queue.path(0)
    assert [call.operation for call in disk.calls if call.path == first and call.operation == "sync"] == ["sync"]


def test_a_queue_with_a_stray_file_leaves_the_size_to_the_others(queues: Any, world: World, tmp_path: Path) -> None:
    """It raises an error when it is used; until then the other queues give the file size."""
    built(queues)
    stray = tmp_path / "consumequeue" / "A" / "0"
    stray.mkdir(parents=True)
    (stray / "notes").write_bytes(b"hello")
    assert world.consumequeue.find_file_size(REAL_DISK, str(tmp_path / "consumequeue")) == 200
    world.consumequeue.refuse_other_file_size(REAL_DISK, str(tmp_path / "consumequeue"), 200)
