"""Lookups of single records: each log file has a second map without read-ahead, which changes nothing for scans and appends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK
from storageio.testing import CountingDisk, ForgettingDisk
from tests.builds import World
from tests.messagestore.kit import message, number_of, open_small

pytestmark = pytest.mark.both_builds
RANDOM, SEQUENTIAL, READ = "expect random", "expect sequential", "expect read"
FIRST = f"{0:020d}"  # the oldest file
LOG_FILE = 65536
COUNT = 700  # of messages that fill three log files


def filled(world: World, folder: Path, count: int = COUNT, **options: Any) -> list[int]:
    """Fill and close a store; return the physical offsets."""
    with open_small(world, folder, **options) as store:
        return [store.put(message(world, number, keys=f"k{number}")).physical_offset for number in range(count)]


def advised(disk: CountingDisk, name: str = "") -> list[str]:
    """Return the advice for files of the log, or for one of them."""
    return [call.operation for call in disk.advice if f"commitlog/{name}" in call.path]


def maps(disk: CountingDisk) -> int:
    return sum(call.operation == "map" and "commitlog" in call.path for call in disk.calls)


def flags_of_maps(folder: Path) -> list[str]:
    """Return the advice that the kernel has for each map of a log file: `random`, `sequential` or nothing."""
    found, is_ours = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            is_ours = str(folder / "commitlog") in line
        elif is_ours and words[0] == "VmFlags:":
            found.append(RANDOM if "rr" in words else SEQUENTIAL if "sr" in words else "")
    return sorted(found)


LOOKUPS = {
    "message_at": lambda store, offset: store.message_at(offset),
    "query": lambda store, _: store.query("T", "k9")[0],
    "get": lambda store, _: store.get("T", 0, 9, 1).messages[0],
}


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_a_lookup_expects_random_access(world: World, tmp_path: Path, lookup: str, mode: str) -> None:
    """It maps the file once more if a scan has mapped it, and only once for all later lookups."""
    offsets = filled(world, tmp_path)
    disk = CountingDisk()
    with open_small(world, tmp_path, mode, disk=disk) as store:
        list(store.read("T", 0))
        assert advised(disk, FIRST) == []
        for _ in range(3):
            assert number_of(LOOKUPS[lookup](store, offsets[9])) == 9
        assert advised(disk, FIRST) == [RANDOM]
        count = maps(disk)
        list(store.read("T", 0))
        assert maps(disk) == count


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's view of a map is known on Linux alone")
def test_a_lookup_does_not_change_the_advice_of_a_scan(world: World, tmp_path: Path) -> None:
    """The kernel reads ahead in one map of a file and not in the other."""
    offsets = filled(world, tmp_path, 5)
    with open_small(world, tmp_path, "r") as store:
        (file,) = store.engine.log.queue.files
        assert len(store.get("T", 0, 0, 5).messages) == 5
        file.expect_sequential()
        assert flags_of_maps(tmp_path) == [SEQUENTIAL]
        assert store.message_at(offsets[3]) is not None
        assert flags_of_maps(tmp_path) == [RANDOM, SEQUENTIAL]
        file.drop_map()
        assert not file.is_mapped
        assert flags_of_maps(tmp_path) == []


def test_the_first_query_requests_the_ends_of_all_index_files(world: World, tmp_path: Path) -> None:
    """It checks the first and last item of each older index file, and their records; later queries do not."""
    offsets = filled(world, tmp_path, max_index_num=101)
    disk = CountingDisk()
    with open_small(world, tmp_path, "r", disk=disk, max_index_num=101) as store:
        assert number_of(store.query("T", "k9")[0]) == 9
        older = [file.path for file in store.engine.index.files[:-1]]
        assert len(older) > 5
        requests = [call for call in disk.advice if call.operation == READ]
        assert [call.path for call in requests if call.path in older] == [path for path in older for _ in range(2)]
        files = [f"{offsets[number] // LOG_FILE * LOG_FILE:020d}" for number in range(600) if number % 100 in (0, 99)]
        assert [Path(call.path).name for call in requests if "commitlog" in call.path] == files
        del disk.advice[:]
        assert number_of(store.query("T", "k600")[0]) == 600
        assert [call for call in disk.advice if call.operation == READ] == []


def test_a_page_reads_ahead_if_its_records_are_neighbours(world: World, tmp_path: Path) -> None:
    """Records a megabyte apart are read one at a time, as if each had been requested alone."""
    sizes = {"mapped_file_size_commit_log": 4 << 20, "max_message_size": 2 << 20}
    with open_small(world, tmp_path, **sizes) as store:
        for number in range(4):
            store.put(message(world, number))
        for number in range(3):
            store.put(message(world, number, "Far"))
            store.put(message(world, number, "Other", size=1 << 20))
    for topic, expected in (("T", []), ("Far", [RANDOM])):
        disk = CountingDisk()
        with open_small(world, tmp_path, "r", disk=disk, **sizes) as store:
            assert [number_of(one) for one in store.get(topic, 0, 0, 3).messages] == [0, 1, 2]
            assert advised(disk)[:1] == expected
            assert set(advised(disk)) == set(expected)


def test_a_large_record_is_read_with_reading_ahead(world: World, tmp_path: Path) -> None:
    """Otherwise each of its pages would be a read."""
    sizes = {"mapped_file_size_commit_log": 4 << 20}
    with open_small(world, tmp_path, **sizes) as store:
        small, large = (
            store.put(message(world, number, size=size, keys=f"k{number}")).physical_offset
            for number, size in enumerate((60_000, 70_000))
        )
    with open_small(world, tmp_path, **sizes) as store:
        (file,) = store.engine.log.queue.files
        file.drop_map()
        for offset, is_scanned in ((small, False), (large, True)):
            assert store.message_at(offset) is not None
            assert (file.reader_for(True) is not None) == is_scanned
        assert store.query("T", "none") == []  # checks once what the index covers
        file.drop_map()
        for key, is_scanned in (("k0", False), ("k1", True)):
            assert len(store.query("T", key)) == 1
            assert (file.reader_for(True) is not None) == is_scanned


def test_the_file_being_filled_has_one_map(world: World, tmp_path: Path) -> None:
    """Its pages are in memory; when it is full and synced, lookups map it for themselves."""
    disk = CountingDisk()
    with open_small(world, tmp_path, disk=disk) as store:
        first = store.put(message(world, 0, keys="k")).physical_offset
        assert store.message_at(first) is not None
        assert advised(disk) == []
        while len(store.engine.log.queue.files) < 2:
            store.put(message(world, 1))
        assert store.message_at(first) is not None
        store.flush()
        assert number_of(store.message_at(first)) == number_of(store.query("T", "k")[0]) == 0
        assert advised(disk) == [RANDOM]
        assert number_of(store.message_at(store.put(message(world, 2)).physical_offset)) == 2


def test_a_file_that_is_mapped_twice_can_be_deleted(world: World, tmp_path: Path) -> None:
    """What was read stays valid; the record is not found afterwards, and no map is left."""
    offsets = filled(world, tmp_path)
    with open_small(world, tmp_path) as store, open_small(world, tmp_path, "r") as reader:
        files = [one.engine.log.queue.files[0] for one in (store, reader)]
        pages = [one.get("T", 0, 0, 8).messages for one in (store, reader)]
        found = [one.message_at(offsets[0]) for one in (store, reader)]
        view = store.engine.log.select(offsets[0], found[0].size)
        store.delete_before(offsets[-1])
        assert not files[0].is_mapped
        assert store.message_at(offsets[0]) is reader.message_at(offsets[0]) is None
        assert [number_of(one) for one in found] == [0, 0]
        assert [[number_of(one) for one in page] for page in pages] == [list(range(8))] * 2
        assert view is not None
        assert f"{0:08d}".encode() in bytes(view)
        assert store.query("T", "k0") == reader.query("T", "k0") == []
        assert number_of(reader.query("T", f"k{COUNT - 1}")[0]) == COUNT - 1


def test_lookups_of_a_reader_follow_a_growing_file(world: World, tmp_path: Path) -> None:
    """Its map for lookups shows what a writer appends later, in that file and in new ones."""
    with open_small(world, tmp_path) as store:
        first = store.put(message(world, 0, keys="k0")).physical_offset
        with open_small(world, tmp_path, "r") as reader:
            assert number_of(reader.message_at(first)) == 0
            for number in range(1, COUNT):
                offset = store.put(message(world, number, keys=f"k{number}")).physical_offset
                if number % 50 == 0:
                    assert number_of(reader.message_at(offset)) == number
                    assert number_of(reader.query("T", f"k{number}")[0]) == number
            assert len(store.engine.log.queue.files) == len(reader.engine.log.queue.files) > 1


@pytest.mark.parametrize("disk", [REAL_DISK, None], ids=["real", "forgetting"])
def test_lookups_of_a_log_are_those_of_its_scan(world: World, tmp_path: Path, disk: Any) -> None:
    """While it is filled, after a sync, after a cut, and opened again: on any disk."""
    disk, root = (ForgettingDisk(), "/log") if disk is None else (disk, str(tmp_path))
    cl = world.commitlog

    def check(log: Any) -> None:
        scanned = list(log.messages())
        assert [log.message_at(one.physical_offset).body for one in scanned] == [one.body for one in scanned]

    with cl.CommitLog(cl.LogPaths(disk, [root]), disk=disk, file_size_bytes=4096, writable=True) as log:
        log.attach(0)
        for number in range(20):
            log.appender.append(message(world, number, size=900))
            if number % 5 == 0:
                check(log)
                log.flush()
        check(log)
        log.flush()
        check(log)
    with cl.open_log(root, disk) as log:
        assert len(list(log.messages())) == 20
        check(log)
