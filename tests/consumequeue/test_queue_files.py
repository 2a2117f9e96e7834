"""Thousands of queues in one process."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK, DiskError, InvalidMessage, disk
from storageio.testing import FailingDisk
from tests.consumequeue.model import packed

MANY = """
import os, resource, sys
from consumequeue import ConsumeQueues
from storageio import REAL_DISK
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
queues = ConsumeQueues(REAL_DISK, sys.argv[1], writable=True)
queues.load()
assert queues.max_physical_offset() == 10_000
queues.correct_min_offsets(50)
assert {(queue.min_offset, queue.max_offset) for queue in queues} == {(1, 100)}
opened = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for queue in queues:
    assert len(queue.index_buffer(99)) == 20
print(opened - before, len(queues), len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.deep
def test_thousands_of_queues_open_in_little_memory(tmp_path: Path) -> None:
    """3,000 queues of 100 units in files of 6 MB need far fewer than 1,024 descriptors, and about a kilobyte each."""
    for number in range(3000):
        folder = tmp_path / f"Topic{number // 10}" / str(number % 10)
        folder.mkdir(parents=True)
        with open(folder / f"{0:020d}", "wb") as file:
            file.write(packed(0, 100))
            file.truncate(6_000_000)
    ran = subprocess.run([sys.executable, "-c", MANY, str(tmp_path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    kilobytes, queues, descriptors = map(int, ran.stdout.split())
    assert queues == 3000
    assert kilobytes < 9_000
    assert descriptors < 200


def test_the_least_recently_used_files_are_closed(queues: Any, world: Any, tmp_path: Path) -> None:
    """The number of descriptors stays within the limit, and every unit stays readable."""
    opened = queues()
    opened.files = files = world.consumequeue.QueueFiles(REAL_DISK, writable=True, max_files=3, max_maps=2)
    all_queues = [opened.get_or_add("T", number) for number in range(8)]
    for queue in all_queues:
        queue._files = files
        queue.append_run(0, packed(0, 3))
        assert files.open_count <= 5
    held = [queue.index_buffer(0) for queue in all_queues]
    assert files.open_count <= 5
    assert all(bytes(view) == packed(0, 3) for view in held)
    opened.close()
    assert files.open_count == 0


def test_a_file_in_use_is_not_closed_under_its_user(world: Any, tmp_path: Path) -> None:
    """Another thread's eviction or deletion waits until the block ends."""
    files = world.consumequeue.QueueFiles(REAL_DISK, writable=True, max_files=1)
    for name in "ab":
        (tmp_path / name).write_bytes(b"12345")
    with files.borrow(str(tmp_path / "a")) as first:
        with files.borrow(str(tmp_path / "b")) as second:
            assert second.read(0, 5) == b"12345"
        files.delete(str(tmp_path / "a"))
        assert first.read(0, 5) == b"12345"
    with pytest.raises(DiskError):
        first.read(0, 5)


def test_each_reader_of_a_map_gets_a_view_of_its_own(queues: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where threads run without a GIL, because CPython counts the slices of one view without a lock."""
    monkeypatch.setattr(disk, "FREE_THREADED", True)
    queue = queues().get_or_add("T", 0)
    queue.append_run(0, packed(0, 3))
    first, second = queue.file_view(0), queue.file_view(0)
    assert first is not second and bytes(first[:60]) == bytes(second[:60]) == packed(0, 3)


def test_readers_beside_a_writer(queues: Any) -> None:
    """Every reader sees whole units, in order, up to the maximum that it read."""
    queue = queues(units=50).get_or_add("T", 0)
    queue.append_run(0, packed(0, 1))
    wrong: list[Any] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            stop = queue.max_offset
            got = [unit.tags_code for _, unit in queue.units(0, stop)]
            if got != list(range(stop)):
                wrong.append(got)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for first in range(1, 600, 7):
        queue.append_run(first, packed(first, 7))
    is_over.set()
    for reader in readers:
        reader.join()
    assert not wrong


@pytest.mark.parametrize("is_deleted", [True, False])
def test_file_deleted_during_a_read_has_no_units(queues: Any, is_deleted: bool) -> None:
    """A file that retention deleted has no units.  Any other error of the disk is raised."""
    disk = FailingDisk(10_000, only="open")
    opened = queues(disk=disk)
    queue = opened.get_or_add("T", 0)
    queue.append_run(0, packed(0, 12))
    opened.close()
    requests = (lambda: queue.unit(3), lambda: queue.index_buffer(3), lambda: queue.read_unit(60))
    real, kept = disk.before, list(queue.starts)

    def before(operation: str, path: str) -> None:
        if operation == "open":
            queue._starts = kept[1:] if is_deleted else kept
            disk.fail_at = len(disk.calls) + 1
        real(operation, path)

    disk.before = before  # type: ignore[method-assign]
    for invoke in requests:
        queue._starts, queue._min_offset = kept, 0
        if is_deleted:
            assert invoke() is None
        else:
            with pytest.raises(DiskError):
                invoke()


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../T", "a\0b", "x" * 256, "中" * 100])
def test_a_topic_that_is_no_name_of_a_folder_is_refused(queues: Any, tmp_path: Path, topic: str) -> None:
    """Nothing is created, inside or outside the folder."""
    with pytest.raises(InvalidMessage):
        queues().get_or_add(topic, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("queue_id", [-1, 1 << 31])
def test_a_number_that_is_no_queue_id_is_refused(queues: Any, queue_id: int) -> None:
    """Queue ids are not negative and have 31 bits."""
    with pytest.raises(InvalidMessage):
        queues().get_or_add("T", queue_id)


def test_topic_names_used_by_brokers_are_accepted(queues: Any) -> None:
    """Percent signs, spaces and other alphabets are accepted."""
    for topic in ("%RETRY%group", "%LMQ%a b", "主题", "SCHEDULE_TOPIC_XXXX"):
        queues().get_or_add(topic, 0).append_run(0, packed(0, 1))
        assert queues(writable=False).get(topic, 0).max_offset == 1


def test_the_file_size_is_found_from_the_files(queues: Any, world: Any, tmp_path: Path) -> None:
    """The result is None without any file."""
    find = world.consumequeue.find_file_size
    assert find(REAL_DISK, str(tmp_path / "consumequeue")) is None
    queues(units=7).get_or_add("T", 0).append_run(0, packed(0, 1))
    assert find(REAL_DISK, str(tmp_path / "consumequeue")) == 140


def test_a_file_that_a_reader_cannot_read_is_not_taken_for_deleted(queues: Any) -> None:
    """An error of the disk is raised; only a missing file means that the writer's retention deleted it."""
    writer = queues()
    writer.get_or_add("T", 0).append_run(0, packed(0, 12))
    writer.close()
    disk = FailingDisk(10_000, only="open", for_ever=True)
    opened = queues(disk=disk, writable=False)
    queue = opened.get("T", 0)
    assert queue.max_offset == 12
    opened.close()
    disk.fail_at = len(disk.calls) + 1
    for invoke in (lambda: queue.unit(3), lambda: queue.rest(60)):
        with pytest.raises(DiskError):
            invoke()
