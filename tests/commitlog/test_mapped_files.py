"""The files of a log: created, found, rolled over, cut, deleted, and rejected when they are wrong."""

from __future__ import annotations

import errno
import os
import threading
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK, DiskError, DiskFull, StoreCorrupt, UnknownStore
from storageio.testing import CountingDisk, FailingDisk
from tests.builds import World

SIZE = 4096


def name_of(number: int) -> str:
    return f"{number * SIZE:020d}"


def open_log(world: World, folders: Path | list[Path], disk: Any = REAL_DISK, **options: Any) -> Any:
    """Return a log for writing in 4 KiB files, attached at its end."""
    cl = world.commitlog
    names = [str(folder) for folder in (folders if isinstance(folders, list) else [folders])]
    log = cl.CommitLog(cl.LogPaths(disk, names), disk=disk, file_size_bytes=SIZE, writable=True, **options)
    log.attach(log.find_end().offset)
    return log


def put(world: World, log: Any, count: int, size: int = 900) -> list[Any]:
    """Append messages of 900 bytes, 4 a file."""
    message = world.commitlog.Message("T", b"x" * size, queue_id=0)
    return [log.appender.append(message) for _ in range(count)]


def test_files_roll_over_and_are_named_by_their_offset(world: World, tmp_path: Path) -> None:
    """They have one length and no gap, and each but the last ends in a blank."""
    log = open_log(world, tmp_path / "log")
    results = put(world, log, 10)
    assert [result.physical_offset for result in results][3:5] == [3 * results[0].size_bytes, SIZE]
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == [name_of(0), name_of(1), name_of(2)]
    assert {path.stat().st_size for path in (tmp_path / "log").iterdir()} == {SIZE}
    assert [log.walk_file(file).why for file in log.queue.files] == ["blank", "blank", "empty"]
    assert (log.min_offset, log.queue.end_offset, log.queue.roll_next_file(5)) == (0, 3 * SIZE, SIZE)
    assert log.written_offset == results[-1].physical_offset + results[-1].size_bytes
    log.close()


def test_a_log_goes_on_where_it_ended(world: World, tmp_path: Path) -> None:
    """It does after closing, also if the last file is exactly full or only prepared."""
    for count in (1, 3, 4, 5, 8):
        folder = tmp_path / str(count)
        log = open_log(world, folder)
        results = put(world, log, count)
        if count % 2:
            log.queue.prepare_next()
        log.close()
        again = open_log(world, folder)
        assert again.written_offset in (log.written_offset, -(-log.written_offset // SIZE) * SIZE)
        more = put(world, again, 3)
        assert [found.physical_offset for found in again.messages()] == [result.physical_offset for result in results + more]
        again.close()


def test_find_by_offset(world: World, tmp_path: Path) -> None:
    """It returns the file that holds a byte."""
    log = open_log(world, tmp_path / "log")
    put(world, log, 12)
    log.queue.delete_first(1)
    queue = log.queue
    assert [queue.find(at).start_offset for at in (SIZE, 2 * SIZE - 1, 2 * SIZE)] == [SIZE, SIZE, 2 * SIZE]
    assert [queue.find(at) for at in (0, -1, SIZE - 1, 3 * SIZE, 1 << 60)] == [None] * 5
    assert (log.message_at(0), log.select(0, 10), log.select(SIZE, -1), log.select(2 * SIZE - 1, 2)) == (None,) * 4
    assert log.check(5) == -1
    assert log.select(SIZE, 10).readonly is False
    log.close()


def test_the_first_files_are_deleted_and_never_the_last(world: World, tmp_path: Path) -> None:
    """Views of them stay valid; the folder is synced after each, so that a crash leaves no gap."""
    disk = CountingDisk()
    log = open_log(world, tmp_path / "log", disk)
    put(world, log, 12)
    kept = log.select(0, 100)
    disk.calls.clear()
    assert log.queue.delete_first(2) == 2
    assert [call.operation for call in disk.calls] == ["delete", "sync folder"] * 2
    assert log.queue.delete_first(5) == 0
    assert (log.min_offset, bytes(kept[:4])) == (2 * SIZE, log.message_at(2 * SIZE).size.to_bytes(4, "big"))
    log.close()


@pytest.mark.parametrize("cut", [0, 500, SIZE, SIZE + 700, 3 * SIZE, 9 * SIZE])
def test_truncate_deletes_later_files(world: World, tmp_path: Path, cut: int) -> None:
    """The positions are set to the cut; a file that starts there stays."""
    log = open_log(world, tmp_path / "log")
    put(world, log, 12)
    log.queue.truncate(cut)
    left = [file.start_offset // SIZE for file in log.queue.files]
    assert left == [number for number in range(3) if number * SIZE <= cut]
    last = log.queue.files[-1]
    assert last.written == last.committed == last.flushed == min(SIZE, cut - last.start_offset)
    assert sorted(os.listdir(tmp_path / "log")) == [name_of(number) for number in left]
    log.close()


def test_files_are_distributed_over_several_folders_in_turn(world: World, tmp_path: Path) -> None:
    """Sorted folders are selected by the file number modulo their count; a full one is skipped."""
    folders = [tmp_path / "b", tmp_path / "a", tmp_path / "c"]
    log = open_log(world, folders)
    put(world, log, 16)
    log.queue.paths.full_folders.add(str(tmp_path / "a"))
    put(world, log, 8)
    found = {folder.name: sorted(int(name) // SIZE for name in os.listdir(folder)) for folder in folders}
    assert found == {"a": [0, 3], "b": [1, 4], "c": [2, 5]}
    log.close()
    text = f"{tmp_path / 'c'}, {tmp_path / 'a'},{tmp_path / 'b'}"
    reader = world.commitlog.open_log(text)
    assert len(list(reader.messages())) == 24
    reader.close()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"stray": SIZE, name_of(0): SIZE}, "stray file"),
        ({"-1": SIZE}, "stray file"),
        ({"9" * 20: SIZE}, "stray file"),
        ({"٣": SIZE}, "stray file"),
        ({name_of(0): SIZE, name_of(1): SIZE - 1, name_of(2): SIZE}, "wrong file size"),
        ({name_of(0): SIZE, name_of(1): 0, name_of(2): SIZE}, "wrong file size"),
        ({name_of(0): SIZE, name_of(2): SIZE}, "missing"),
        ({name_of(0): SIZE, "0": SIZE}, "missing"),
        ({"100": SIZE}, "wrong file name"),
    ],
)
@pytest.mark.parametrize("writable", [False, True])
def test_a_folder_that_is_no_log_is_refused(
    world: World, tmp_path: Path, files: dict[str, int], reason: str, writable: bool
) -> None:
    """The error has file, expected and found; nothing in the folder changes."""
    for name, size in files.items():
        (tmp_path / name).write_bytes(b"\1" * size)
    before = {entry.name: (entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(tmp_path)}
    cl = world.commitlog
    with pytest.raises(StoreCorrupt, match=reason) as caught:
        cl.CommitLog(cl.LogPaths(REAL_DISK, [str(tmp_path)]), writable=writable)
    assert caught.value.file.startswith(str(tmp_path))
    assert {entry.name: (entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(tmp_path)} == before


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_symlink_or_fifo_in_a_log_folder_is_rejected_as_stray(world: World, tmp_path: Path, kind: str) -> None:
    """A folder is skipped."""
    (tmp_path / "folder").mkdir()
    assert world.commitlog.open_log(str(tmp_path)).min_offset == -1
    path = tmp_path / name_of(0)
    path.symlink_to("/dev/zero") if kind == "link" else os.mkfifo(path)
    with pytest.raises(StoreCorrupt, match="stray"):
        world.commitlog.open_log(str(tmp_path))


def test_empty_last_file_is_skipped_by_a_reader_and_deleted_by_a_writer(world: World, tmp_path: Path) -> None:
    """A reader skips it, a writer deletes it."""
    log = open_log(world, tmp_path)
    put(world, log, 3)
    log.close()
    (tmp_path / name_of(1)).touch()
    reader = world.commitlog.open_log(str(tmp_path))
    assert len(list(reader.messages())) == 3
    assert (tmp_path / name_of(1)).exists()
    again = open_log(world, tmp_path)
    assert not (tmp_path / name_of(1)).exists()
    assert put(world, again, 3)[-1].status.name == "PUT_OK"
    again.close()
    with pytest.raises(UnknownStore, match="no such folder"):
        world.commitlog.open_log(str(tmp_path / "missing"))


def test_a_prepared_file_is_used_or_dropped(world: World, tmp_path: Path) -> None:
    """It is created once and used at the roll-over without another call of the disk."""
    disk = CountingDisk()
    log = open_log(world, tmp_path / "log", disk)
    put(world, log, 1)
    for _ in range(3):
        log.queue.prepare_next()
    assert disk.counts["create"] == 2
    disk.calls.clear()
    put(world, log, 5)
    assert disk.counts["create"] == 0
    log.queue.prepare_next()
    log.queue.drop_prepared()
    log.queue.drop_prepared()
    assert sorted(os.listdir(tmp_path / "log")) == [name_of(0), name_of(1)]
    log.close()


def test_a_new_file_is_on_the_disk_before_it_is_used(world: World, tmp_path: Path) -> None:
    """It is allocated and mapped, and its name is synced."""
    disk = CountingDisk()
    log = open_log(world, tmp_path, disk)
    disk.calls.clear()
    put(world, log, 1)
    order = [call.operation for call in disk.calls if call.operation not in ("stat", "make folder")]
    assert order == ["create", "allocate", "map", "sync folder"]
    assert os.stat(tmp_path / name_of(0)).st_blocks * 512 >= SIZE
    log.close()


@pytest.mark.parametrize("operation", ["make folder", "stat", "create", "allocate", "map", "sync folder"])
def test_failed_creation_of_a_file_loses_no_record(world: World, tmp_path: Path, operation: str) -> None:
    """The append returns a status and leaves no partial file; it succeeds when the disk does."""
    disk = FailingDisk(1, errno=errno.ENOSPC, only=operation)
    disk.fail_at = 0
    log = open_log(world, tmp_path, disk)
    put(world, log, 4)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    disk.fail_at = len(disk.calls) + 1
    (refused,) = put(world, log, 1)
    assert (refused.status.name, refused.message_count) == ("CREATE_MAPPED_FILE_FAILED", 0)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    (result,) = put(world, log, 1)
    assert (result.physical_offset, result.queue_offset) == (SIZE, 4)
    assert len(list(log.messages())) == 5
    log.close()


def test_flush_reaches_every_file_and_moves_the_offset(world: World, tmp_path: Path) -> None:
    """The oldest file is first; a failed sync stops the offset forever; a full, flushed file closes its descriptor."""
    disk = FailingDisk(0, only="sync")
    log = open_log(world, tmp_path, disk)
    put(world, log, 6)
    assert log.flushed_offset == 0
    assert log.flush() == log.written_offset == log.flushed_offset
    count = len(disk.calls)
    assert log.flush() == log.written_offset
    assert len(disk.calls) == count
    put(world, log, 6)
    before = log.flushed_offset
    first_end = before - before % SIZE + SIZE
    disk.fail_at = len(disk.calls) + 2
    for _ in range(3):
        with pytest.raises(DiskError, match="sync"):
            log.flush()
        assert log.flushed_offset == first_end < log.written_offset
    log.close()


def test_the_flush_rule(world: World, tmp_path: Path) -> None:
    """A flush needs the least pages, or any bytes, or a full file (docs/formats/mapped-files.md#flush-rule)."""
    mapped = world.commitlog.MappedFile.create(REAL_DISK, str(tmp_path / "f"), 0, 10 * 4096)
    for written, flushed, least, expected in (
        (0, 0, 0, False), (1, 0, 0, True), (4095, 0, 1, False), (4096, 4095, 1, True), (3 * 4096, 4095, 4, False),
        (4 * 4096, 0, 4, True), (10 * 4096, 9 * 4096, 4, True), (10 * 4096, 10 * 4096, 0, False),
    ):  # fmt: skip
        mapped.written = mapped.committed = written
        mapped.flushed = flushed
        assert mapped.can_flush(least) is expected, (written, flushed, least)
    mapped.set_positions(100)
    mapped.write(5, b"abc")
    assert bytes(mapped.view[5:8]) == b"abc"
    mapped.delete()
    assert os.listdir(tmp_path) == []


def test_many_batches_and_columns_roll_over_inside(world: World, tmp_path: Path) -> None:
    """Queue offsets have no gap, blanks separate the files, and everything can be read."""
    log = open_log(world, tmp_path)
    make = world.commitlog.Message
    messages = [make("T", b"%03d" % number + b"x" * 300, queue_id=1, tags="t") for number in range(50)]
    result = log.appender.append_many(messages)
    assert (result.status.name, result.message_count, result.queue_offset) == ("PUT_OK", 50, 0)
    for first in range(0, 20, 5):
        log.appender.append_batch(messages[first : first + 5])
    rows, body = 100, 333
    offsets = array("q", range(0, rows * body + 1, body))
    result = log.appender.append_columns("T", 1, offsets, b"c" * rows * body, properties=b"a\x01b\x02")
    assert (result.message_count, result.queue_offset) == (rows, 70)
    assert result.size_bytes == rows * (92 + 20 + body + 4)
    found = list(log.messages())
    assert [message.queue_offset for message in found] == list(range(170))
    assert [message.body[:3] for message in found[:50]] == [b"%03d" % number for number in range(50)]
    assert found[70].physical_offset == result.physical_offset
    assert all(after.physical_offset >= before.physical_offset + before.size for before, after in pairwise(found))
    log.close()


def test_threads_that_append_at_once_lose_and_mix_nothing(world: World, tmp_path: Path) -> None:
    """They use every way to append, two queues and many roll-overs, beside a flushing thread."""
    log = open_log(world, tmp_path)
    make = world.commitlog.Message
    count = 150
    offsets = array("q", [0, 50, 100])

    def work(number: int) -> None:
        for index in range(count):
            message = make(f"T{number % 2}", b"%d" % index * 20, queue_id=0)
            if number == 0:
                log.appender.append(message)
            elif number == 1:
                log.appender.append_many([message, message])
            elif number == 2:
                log.appender.append_encoded("T0", 0, message.body, b"")
            else:
                log.appender.append_columns("T1", 0, offsets, b"y" * 100)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        log.flush()
    for thread in threads:
        thread.join()
    found = list(log.messages())
    for topic, expected in (("T0", 2 * count), ("T1", 4 * count)):
        assert [message.queue_offset for message in found if message.topic == topic] == list(range(expected))
    assert log.flush() == log.written_offset
    log.close()


def test_reader_sees_files_that_a_writer_creates_and_deletes(world: World, tmp_path: Path) -> None:
    """`refresh` follows the folder; a record is visible whole or not at all."""
    log = open_log(world, tmp_path)
    put(world, log, 5)
    reader = world.commitlog.open_log(str(tmp_path))
    assert len(list(reader.messages())) == 5
    put(world, log, 9)
    assert len(list(reader.messages())) == 8
    reader.queue.refresh()
    assert len(list(reader.messages())) == 14
    log.queue.delete_first(2)
    reader.queue.refresh()
    assert (reader.min_offset, len(list(reader.messages()))) == (2 * SIZE, 6)
    log.close()
    reader.close()


def test_reading_changes_nothing(world: World, tmp_path: Path) -> None:
    """No byte, time stamp or name changes."""
    log = open_log(world, tmp_path)
    put(world, log, 9)
    log.close()

    def examine() -> list[tuple[str, bytes, int]]:
        return sorted((path.name, path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir())

    before = examine()
    disk = CountingDisk()
    reader = world.commitlog.open_log(str(tmp_path), disk)
    assert len(list(reader.messages())) == 9
    assert reader.find_end().why == "empty"
    with pytest.raises(TypeError):
        reader.select(0, 10)[0] = 1
    reader.close()
    assert examine() == before
    assert set(disk.counts) <= {"open", "list", "stat", "map", "size"}


def test_append_without_space_for_the_first_file_is_rejected(world: World, tmp_path: Path) -> None:
    """The folder is created, the append rejected."""
    disk = FailingDisk(1, errno=errno.ENOSPC, only="allocate", for_ever=True)
    log = open_log(world, tmp_path / "log", disk)
    for _ in range(3):
        assert put(world, log, 1)[0].status.name == "CREATE_MAPPED_FILE_FAILED"
    assert os.listdir(tmp_path / "log") == []
    with pytest.raises(DiskFull):
        log.queue.prepare_next()
    log.close()


def test_a_log_of_a_hundred_files_is_mapped_once(world: World, tmp_path: Path) -> None:
    """Random reads map no file a second time."""
    log = open_log(world, tmp_path)
    put(world, log, 400)
    log.close()
    disk = CountingDisk()
    reader = world.commitlog.open_log(str(tmp_path), disk)
    for number in [*range(100), *range(99, -1, -1), *range(0, 100, 7)]:
        assert reader.message_at(number * SIZE) is not None
    assert disk.counts["map"] == 100
    reader.close()


def test_maps_beyond_the_limit_are_dropped_and_their_views_stay_valid(world: World, tmp_path: Path) -> None:
    """The least recently used map is dropped first; a view of it stays valid."""
    log = open_log(world, tmp_path)
    put(world, log, 20)
    log.close()
    reader = world.commitlog.open_log(str(tmp_path))
    reader.queue._maps_max = 2
    kept = reader.select(0, SIZE)
    whole = bytes(kept)
    for _ in range(2):
        assert [message.queue_offset for message in reader.messages()] == list(range(20))
        assert sum(file.is_mapped for file in reader.queue.files) <= 3  # the last file's map stays too
    assert kept == whole
    reader.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM])
def test_other_maps_are_dropped_if_a_map_call_fails_for_lack_of_resources(world: World, tmp_path: Path, code: int) -> None:
    """If that does not help, the error is raised."""
    log = open_log(world, tmp_path)
    put(world, log, 20)
    log.close()
    disk = FailingDisk(3, errno=code, only="map")
    reader = world.commitlog.open_log(str(tmp_path), disk)
    assert all(reader.message_at(number * SIZE) is not None for number in range(5))
    assert [file.is_mapped for file in reader.queue.files] == [False, False, True, True, True]
    disk.fail_at, disk.for_ever = len(disk.calls) + 1, True
    with pytest.raises(DiskError):
        reader.message_at(0)
    assert reader.message_at(4 * SIZE) is not None
    reader.close()


@pytest.mark.parametrize("cut", [(1,), (1, 2), (2, 3), (3, 4)])
def test_a_reader_names_a_file_that_is_cut_short_beside_its_writer(world: World, tmp_path: Path, cut: tuple[int, ...]) -> None:
    """If one in the middle, or two files, are short, the later ones are not skipped, and no length is taken from them."""
    log = open_log(world, tmp_path)
    put(world, log, 17)
    reader = world.commitlog.open_log(str(tmp_path))
    for each in cut:
        os.truncate(tmp_path / name_of(each), SIZE - 1)
    with pytest.raises(StoreCorrupt, match="wrong file size") as caught:
        reader.queue.refresh()
    assert (caught.value.file, caught.value.found) == (str(tmp_path / name_of(cut[0])), f"{SIZE - 1} bytes")
    assert reader.message_at(0) is not None
    reader.close()
    log.close()


def test_an_offset_is_found_while_files_of_another_length_are_listed(world: World, tmp_path: Path) -> None:
    """A reader took a growing file's length for that of all files: lookups work until the next refresh corrects it."""
    log = open_log(world, tmp_path)
    put(world, log, 9)
    reader = world.commitlog.open_log(str(tmp_path))
    reader.queue.file_size_bytes = SIZE // 3
    assert [reader.queue.find(at).start_offset for at in (0, SIZE - 1, SIZE, 3 * SIZE - 1)] == [0, 0, SIZE, 2 * SIZE]
    assert reader.queue.find(3 * SIZE) is None
    reader.close()
    log.close()


def test_file_prepared_for_another_offset_is_never_used(world: World, tmp_path: Path) -> None:
    """Its name would not match the offsets of its records; the log stays unchanged."""
    log = open_log(world, tmp_path)
    put(world, log, 5)
    log.queue.prepare_next()
    log.queue.files = log.queue.files[:1]
    with pytest.raises(AssertionError, match=f"prepared {2 * SIZE}, wanted {SIZE}"):
        log.queue.next_file()
    assert [file.start_offset for file in log.queue.files] == [0]
    log.close()


def test_a_flush_of_what_is_flushed_makes_no_call(world: World, tmp_path: Path) -> None:
    """A single file keeps its descriptor until it is full."""
    disk = CountingDisk()
    log = open_log(world, tmp_path, disk)
    put(world, log, 1)
    log.flush()
    disk.calls.clear()
    assert log.queue.files[0].flush() == log.written_offset and disk.calls == []
    log.close()


class Buffers:
    """Write buffers whose newest file the appender does not use yet."""

    committed_offset = 0


def test_a_file_made_ahead_of_a_buffered_appender_counts_as_unwritten(world: World, tmp_path: Path) -> None:
    """It belongs to the log but has no written byte: a reader would take its zeros for the end."""
    log = open_log(world, tmp_path)
    put(world, log, 6)
    log.buffers = Buffers()
    ahead = log.queue.next_file()
    log.update_written()
    assert (ahead.written, ahead.committed) == (0, 0)
    assert [file.written for file in log.queue.files] == [SIZE, log.appender.position, 0]
    log.buffers = None
    log.close()


def test_a_log_with_no_folder_is_refused(world: World) -> None:
    """A list of commas names no folder."""
    with pytest.raises(ValueError, match="at least one folder"):
        world.commitlog.LogPaths.parse(REAL_DISK, " , ,")


def test_flushed_offset_starts_at_the_first_file_of_a_log(world: World, tmp_path: Path) -> None:
    """The flushed offset starts at the first file, for example in a follower of a master."""
    log = open_log(world, tmp_path)
    assert log.flushed_offset == 0
    log.queue.next_file(3 * SIZE)
    assert (log.min_offset, log.flushed_offset) == (3 * SIZE, 3 * SIZE)
    log.close()
