"""Defects that were found before and must not return."""

from __future__ import annotations

import os
import resource
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storageio import REAL_DISK, DiskError, InvalidMessage, PutRejected, StoreCorrupt
from tests.builds import World
from tests.commitlog.logs import MemoryLog


def test_long_encoded_properties_without_checksum_stay_inside_the_file(world: World) -> None:
    """Properties of 32748 to 32767 bytes skipped the check of the record's size and were written past the file's end."""
    log = MemoryLog(world, 65536)
    properties = b"a\x01" + b"v" * 32757 + b"\x02"
    positions = [log.appender.append_encoded("T", 0, b"", properties)[0] for _ in range(3)]
    assert positions == [0, 65536, 131072]
    assert [len(file) for file in log.files] == [65536] * len(log.files)


def test_encoded_append_on_a_full_disk_raises_put_rejected(world: World) -> None:
    """It raised `InvalidMessage`, as if the message were wrong."""
    log = MemoryLog(world)
    log.fail = DiskError("allocate", "f", 28, "No space left on device")
    with pytest.raises(PutRejected, match="No space") as caught:
        log.appender.append_encoded("T", 0, b"x", b"")
    assert caught.value.status is world.commitlog.PutStatus.CREATE_MAPPED_FILE_FAILED
    log.fail = None
    assert log.appender.append_encoded("T", 0, b"x", b"") == (0, 0)


def test_encoded_append_keeps_the_limit_of_a_record(world: World) -> None:
    """Body and properties within their limits could make a record beyond its own."""
    log = MemoryLog(world, 1 << 20, body_size_max=1000)
    with pytest.raises(PutRejected, match="record of"):
        log.appender.append_encoded("t" * 32767, 0, b"b" * 1000, b"a\x01" + b"v" * 32764 + b"\x02")
    assert log.files == []


@pytest.mark.parametrize("wrong", [{"topic": ""}, {"born_host": "nowhere"}, {"store_host": "::1:80"}])
def test_many_with_a_bad_topic_or_host_writes_nothing(world: World, wrong: dict[str, str]) -> None:
    """The messages before the bad one were written before `InvalidMessage` was raised."""
    log = MemoryLog(world)
    good = world.commitlog.Message("T", b"x", queue_id=0)
    bad = world.commitlog.Message(**{"topic": "T", "body": b"x", "queue_id": 0, **wrong})
    for put in (log.appender.append_many, log.appender.append_batch):
        with pytest.raises(InvalidMessage):
            put([good, bad])
    assert (log.appender.end_offset, log.offsets.next_offset("T", 0)) == (0, 0)


def test_columns_with_the_longest_properties_without_checksum_are_written(world: World) -> None:
    """The status was PUT_OK with nothing written."""
    log = MemoryLog(world)
    result = log.appender.append_columns("T", 0, array("q", [0, 1]), b"x", properties=b"a\x01" + b"v" * 32764 + b"\x02")
    assert (result.status.name, result.message_count, log.offsets.next_offset("T", 0)) == ("PUT_OK", 1, 1)


@pytest.mark.parametrize("kind", ["d", "Q"])
def test_columns_with_offsets_of_another_kind_are_refused(world: World, kind: str) -> None:
    """The compiled build read eight-byte floats as integers, the plain one as floats."""
    with pytest.raises(InvalidMessage, match="native 64-bit offsets"):
        MemoryLog(world).appender.append_columns("T", 0, array(kind, [0, 1]), b"x")


def test_two_threads_adding_a_new_topic_share_its_offset_counters(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread got its own counters, and both appended at queue offset 0."""
    kernel = world.module("commitlog._offsets_cy")
    if world.build == "compiled":
        pytest.skip("the class cannot be replaced there")
    offsets, first = kernel.QueueOffsets(), []

    class Slow(kernel.TopicQueues):  # type: ignore[misc, name-defined]
        def __init__(self, name: str) -> None:
            super().__init__(name)
            if not first:
                first.append(self)
                first.append(offsets.topic(name))

    monkeypatch.setattr(kernel, "TopicQueues", Slow)
    assert offsets.topic("T") is first[1] is offsets.topic("T")


def test_a_batch_body_beyond_the_limit_is_refused(world: World) -> None:
    """Only the sum of the records was limited; RocketMQ limits the batch's body (docs/formats/put-rules.md#size-limits)."""
    log = MemoryLog(world, 1 << 20, body_size_max=1000)
    batch = [world.commitlog.Message("T", b"x" * 480, queue_id=0) for _ in range(2)]
    with pytest.raises(InvalidMessage, match="batch body of 1004 bytes; at most 1000"):
        log.appender.append_batch(batch)
    batch[0].body = b"x" * 476
    assert log.appender.append_batch(batch).message_count == 2


def test_a_checksum_property_of_the_user_is_replaced(world: World) -> None:
    """One from the dictionary stayed in the record beside the computed one."""
    log = MemoryLog(world, with_crc=True)
    log.appender.append(world.commitlog.Message("T", b"x", queue_id=0, properties={"__CRC32#": "0123456789", "a": "b"}))
    found = world.module("commitlog._scan_cy").Reader(log.files[0]).decode(0)
    assert found.properties_raw.count(b"__CRC32#") == 1
    assert found.properties == {"a": "b"}


@pytest.mark.parametrize("wrong", [{"properties": {"a": 5}}, {"keys": ["a", 5]}, {"keys": [5]}])
def test_properties_that_are_no_text_are_refused_by_both_builds(world: World, wrong: dict[str, Any]) -> None:
    """The plain build wrote `5` for 5; several keys raised a bare `TypeError`.  A caller can set them after the check."""
    message = world.commitlog.Message("T", b"")
    with pytest.raises(TypeError, match=next(iter(wrong))):
        world.commitlog.Message("T", b"", **wrong)
    for name, value in wrong.items():
        if name == "keys":
            message.keys = ["a"]
            message.keys[:] = value
        else:
            setattr(message, name, value)
    with pytest.raises(InvalidMessage, match="text"):
        world.commitlog.encode_properties(message)


@pytest.mark.parametrize("position", [1, -1, 1 << 40, (1 << 63) - 1, -(1 << 63)])
def test_columns_at_offsets_without_a_record_are_rejected(world: World, position: int) -> None:
    """The kernels accepted any position and read outside the buffer."""
    log = MemoryLog(world)
    log.appender.append_encoded("T", 0, b"x", b"a\x01b\x02")
    view, positions = log.files[0], array("q", [position])
    batch = world.module("commitlog.columns").Batch(view, 0, np.array(positions), np.array([120], np.int32))
    with pytest.raises(ValueError, match="no record"):
        world.module("commitlog.columns").fixed_columns(batch)
    with pytest.raises(ValueError, match="no record"):
        world.module("commitlog.arrow_columns").record_batch(batch, ["properties", "born_host", "message_id"])
    with pytest.raises(ValueError, match=r"record|inside"):
        world.module("commitlog._record_cy").is_protected(view, 1, 100)


def _filled_log(world: World, folder: Path, count: int = 40, **options: Any) -> Any:
    """Return a log of 4 KiB files with `count` records of 1 KiB."""
    cl = world.commitlog
    log = cl.CommitLog(cl.LogPaths(REAL_DISK, [str(folder)]), file_size_bytes=4096, writable=True, **options)
    for number in range(count):
        assert log.appender.append(cl.Message("T", b"%04d" % number * 200, queue_id=0)).status.name == "PUT_OK"
    log.flush()
    return log


def test_a_thousand_files_of_a_writable_log_are_read_with_few_descriptors(world: World, tmp_path: Path) -> None:
    """Each file that was once mapped for writing kept its descriptor."""
    folder = tmp_path / "log"
    folder.mkdir()
    for number in range(1000):
        (folder / f"{number * 4096:020d}").write_bytes(bytes(4096))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 150, hard))
    try:
        log = world.commitlog.CommitLog(world.commitlog.LogPaths(REAL_DISK, [str(folder)]), writable=True)
        assert sum(log.check(number * 4096) for number in range(1000)) == -2 * 1000
        log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reader_of_a_deleted_file_is_not_used_for_the_new_one(world: World, tmp_path: Path) -> None:
    """Readers were cached by start offset: after a cut they returned the old file's bytes."""
    log = _filled_log(world, tmp_path / "log")
    assert log.message_at(4096).body[:4] == b"0004"
    log.attach(0)
    first = log.message_at(0)
    for _ in range(5):
        log.appender.append(world.commitlog.Message("New", b"new" * 300, queue_id=0))
    assert first.topic == "T"
    assert {message.topic for message in log.messages()} == {"New"}
    log.close()


def test_a_log_that_is_cut_at_its_first_byte_goes_on_there(world: World, tmp_path: Path) -> None:
    """The file that starts at the cut was deleted, and the next one started at offset 0."""
    log = _filled_log(world, tmp_path / "log")
    log.queue.delete_first(3)
    log.attach(log.min_offset)
    assert (log.min_offset, log.written_offset) == (12288, 12288)
    result = log.appender.append(world.commitlog.Message("T", b"x", queue_id=0))
    assert result.physical_offset == 12288
    log.close()


def test_a_cut_drops_the_file_that_was_prepared(world: World, tmp_path: Path) -> None:
    """It did not fit after the new last file, and every later roll-over failed."""
    log = _filled_log(world, tmp_path / "log")
    log.queue.prepare_next()
    log.attach(4096)
    for number in range(10):
        log.appender.append(world.commitlog.Message("T", b"%04d" % number * 200, queue_id=0))
    log.close()
    names = sorted(path.name for path in (tmp_path / "log").iterdir())
    assert names == [f"{number * 4096:020d}" for number in range(len(names))]


def test_messages_up_to_an_offset_inside_a_record_end_before_it(world: World, tmp_path: Path) -> None:
    """A range that ended inside a record raised `StoreCorrupt`."""
    log = _filled_log(world, tmp_path / "log")
    size = log.check(0)
    for stop, count in ((0, 0), (size - 1, 0), (size, 1), (size + 5, 1), (4 * size + 2, 4), (4096 + size, 5)):
        assert len(list(log.messages(0, stop))) == count, stop
    log.close()


def test_opening_a_broken_log_for_writing_deletes_nothing(world: World, tmp_path: Path) -> None:
    """An empty last file of one folder was deleted before the missing file was noticed."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, numbers in zip(folders, ((0, 2), (1, 3)), strict=True):
        folder.mkdir()
        for number in numbers:
            (folder / f"{number * 4096:020d}").write_bytes(bytes(0 if number == 2 else 4096))
    with pytest.raises(StoreCorrupt, match="missing"):
        world.commitlog.CommitLog(world.commitlog.LogPaths(REAL_DISK, [str(folder) for folder in folders]), writable=True)
    assert (folders[0] / f"{8192:020d}").exists()


def test_foreign_file_at_the_next_offset_is_never_used(world: World, tmp_path: Path) -> None:
    """It was opened and used, and deleted if the creation failed."""
    log = _filled_log(world, tmp_path / "log", 1)
    stranger = tmp_path / "log" / f"{4096:020d}"
    stranger.write_bytes(b"mine")
    with pytest.raises(StoreCorrupt, match="a file where the next one goes"):
        for _ in range(5):
            log.appender.append(world.commitlog.Message("T", b"x" * 800, queue_id=0))
    assert stranger.read_bytes() == b"mine"
    log.close()
