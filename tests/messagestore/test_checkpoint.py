"""The checkpoint: its values after every kind of damage, and that it never covers more than what is synced."""

from __future__ import annotations

import re
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from messagestore import checkpoint as capacity
from messagestore.checkpoint import (
    CHECKPOINT_SIZE,
    REST_AT,
    TIMES,
    VALUES,
    Checkpoint,
    CheckpointValues,
    read_checkpoint,
    times_ahead,
)  # fmt: skip
from storageio import REAL_DISK, DiskError, StoreClosed
from storageio.testing import CountingDisk, FailingDisk

from .support import BROKERS, failures

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "checkpoint.md").read_text()
ROW = re.compile(r"^    (\d+) +(\d+) +([a-z]\w+)", re.MULTILINE)
STORES = ["plain", "lmq", "batchcq", "cqext", "propcrc", "crash-torn", "crash-lost-cq", *BROKERS]
NOW = 1_700_000_000_000


def write(folder: Path, data: bytes) -> str:
    (folder / "checkpoint").write_bytes(data)
    return str(folder)


def page(*values: int) -> bytes:
    return VALUES.pack(*filled(*values)).ljust(CHECKPOINT_SIZE, b"\0")


def filled(*values: int) -> tuple[int, ...]:
    """Return the values of a checkpoint whose last ones are 0."""
    return (*values, *[0] * (len(CheckpointValues._fields) - len(values)))


def test_the_page_and_the_constants_agree() -> None:
    """Every field has the same offset, and the sizes add up to the file."""
    at = 0
    for index, (offset, size, field) in enumerate(ROW.findall(PAGE)):
        assert int(offset) == at == struct.calcsize(f">{index}q"), field
        assert re.search(rf"^    {offset} +{size} +{field}\b", capacity.__doc__ or "", re.MULTILINE), field
        at += int(size)
    assert at == CHECKPOINT_SIZE == 4096
    assert CheckpointValues._fields == tuple(field for _, _, field in ROW.findall(PAGE) if field != "rest")


def test_the_worked_example_is_in_the_fixture(fixture_store: Any) -> None:
    """The bytes and the numbers beside them are the fixture's."""
    data = (fixture_store("plain").store / "checkpoint").read_bytes()
    example = re.findall(r"^    ((?:[0-9a-f]{2} +){8}) *\w+ ?(\d*)$", PAGE, re.MULTILINE)
    assert bytes.fromhex("".join(text for text, _ in example)) == data[:REST_AT]
    assert [int(number or 0) for _, number in example] == list(VALUES.unpack(data[:REST_AT]))


@pytest.mark.parametrize("name", STORES)
def test_a_real_stores_checkpoint_comes_back_to_the_byte(fixture_store: Any, name: str) -> None:
    """Reading and flushing it without a change gives the same bytes."""
    folder = fixture_store(name, own=True).store
    before = (folder / "checkpoint").read_bytes()
    checkpoint = Checkpoint(REAL_DISK, str(folder), writable=True)
    assert not checkpoint.is_damaged
    assert checkpoint.values == VALUES.unpack(before[:REST_AT])
    checkpoint.flush()
    checkpoint.close()
    assert (folder / "checkpoint").read_bytes() == before


@pytest.mark.parametrize("broker", BROKERS)
def test_the_values_are_those_the_real_store_had_in_memory(fixture_store: Any, broker: str) -> None:
    """The manifest was taken by a later open, whose recovery set the last value."""
    fixture = fixture_store(broker)
    expected = fixture.expected()["checkpointInMemory"]
    values = read_checkpoint(REAL_DISK, str(fixture.store / "checkpoint")).values
    assert values.physic_msg_timestamp_ms == expected["physicMsgTimestamp"]
    assert values.logics_msg_timestamp_ms == expected["logicsMsgTimestamp"]
    assert values.index_msg_timestamp_ms == expected["indexMsgTimestamp"]
    assert values.master_flushed_offset == expected["masterFlushedOffset"]


@pytest.mark.parametrize(
    ("data", "expected", "is_damaged"),
    [
        (None, (0, 0, 0, 0, 0), False),
        (bytes(4096), (0, 0, 0, 0, 0), False),
        (page(NOW, NOW, NOW, -1, -1), (NOW, NOW, NOW, -1, -1), False),
        (page(NOW, NOW, NOW, 5, 6) + b"more", (NOW, NOW, NOW, 5, 6), False),
        (b"", (0, 0, 0, 0, 0), True),
        (b"\1", (0, 0, 0, 0, 0), True),
        (bytes(48), (0, 0, 0, 0, 0), True),
        (page(NOW, NOW, NOW, 5, 6)[:4095], (NOW, NOW, NOW, 5, 6), True),
        (page(NOW, NOW, NOW, 5, 6)[:48], (NOW, NOW, NOW, 5, 6), True),
        (page(NOW, NOW, NOW, 5, 6)[:20], (NOW, NOW, 0, 0, 0), True),
        (page(NOW, NOW, NOW, 5, 6)[:8], (NOW, 0, 0, 0, 0), True),
        (b"\xff" * 4096, (0, 0, 0, 0, 0), True),
        (b"\x7f" * 4096, (0, 0, 0, 0, 0), True),
        (b"checkpoint" * 500, (0, 0, 0, 0, 0), True),
        (page(-1, NOW, NOW, 0, 0), (0, 0, 0, 0, 0), True),
        (page(NOW, NOW, 1 << 50, 0, 0), (0, 0, 0, 0, 0), True),
        (page(NOW, NOW, NOW, -2, 0), (0, 0, 0, 0, 0), True),
        (page(NOW, NOW, NOW, 0, -2), (0, 0, 0, 0, 0), True),
    ],
)
def test_damaged_checkpoint_is_read_as_zeros(
    tmp_path: Path, data: bytes | None, expected: tuple[int, ...], is_damaged: bool
) -> None:
    """No exception is raised; implausible values count as 0."""
    if data is not None:
        write(tmp_path, data)
    found = read_checkpoint(REAL_DISK, str(tmp_path / "checkpoint"))
    assert (found.values, found.is_damaged) == (filled(*expected), is_damaged)
    checkpoint = Checkpoint(REAL_DISK, str(tmp_path))
    assert (checkpoint.values, checkpoint.is_damaged) == (filled(*expected), is_damaged)
    assert (tmp_path / "checkpoint").exists() == (data is not None)


@pytest.mark.parametrize(
    ("physic", "logics", "index", "expected", "expected_index"),
    [
        (NOW, NOW + 1, 0, NOW - 3000, 0),
        (NOW + 9000, NOW, NOW, NOW - 3000, NOW - 3000),
        (NOW, NOW, NOW - 5000, NOW - 3000, NOW - 5000),
        (0, NOW, NOW, 0, 0),
        (2999, 5000, 5000, 0, 0),
        (3001, 5000, 5000, 1, 1),
    ],
)
def test_the_safe_times(tmp_path: Path, physic: int, logics: int, index: int, expected: int, expected_index: int) -> None:
    """It is the lesser time of log and queues, less three seconds, and at least 0."""
    checkpoint = Checkpoint(REAL_DISK, write(tmp_path, page(physic, logics, index, 0, 0)))
    assert (checkpoint.min_timestamp_ms, checkpoint.min_index_timestamp_ms) == (expected, expected_index)


def test_nothing_is_written_before_flush_and_all_is_synced_after(tmp_path: Path) -> None:
    """Setting a value writes nothing; a flush is one write of the whole page and one sync."""
    disk = CountingDisk()
    checkpoint = Checkpoint(disk, str(tmp_path), writable=True)
    assert [call.operation for call in disk.calls][-3:] == ["write", "sync", "sync folder"]
    disk.calls.clear()
    checkpoint.physic_msg_timestamp_ms = NOW
    checkpoint.logics_msg_timestamp_ms = NOW + 1
    checkpoint.index_msg_timestamp_ms = NOW + 2
    checkpoint.confirm_phy_offset = 77
    assert disk.calls == []
    assert (tmp_path / "checkpoint").read_bytes() == bytes(4096)
    checkpoint.flush()
    assert [call.operation for call in disk.calls] == ["write", "sync"]
    assert (tmp_path / "checkpoint").read_bytes() == page(NOW, NOW + 1, NOW + 2, 0, 77)
    checkpoint.close()


def test_times_may_be_set_back(tmp_path: Path) -> None:
    """After a recovery to an earlier end the caller lowers the times."""
    checkpoint = Checkpoint(REAL_DISK, write(tmp_path, page(NOW, NOW, NOW, 0, 0)), writable=True)
    checkpoint.physic_msg_timestamp_ms = NOW - 60_000
    checkpoint.flush()
    checkpoint.close()
    assert Checkpoint(REAL_DISK, str(tmp_path)).physic_msg_timestamp_ms == NOW - 60_000


def test_flush_repairs_a_damaged_checkpoint_and_opening_does_not(tmp_path: Path) -> None:
    """Opening the store changes nothing."""
    checkpoint = Checkpoint(REAL_DISK, write(tmp_path, b"abc"), writable=True)
    assert (tmp_path / "checkpoint").read_bytes() == b"abc"
    checkpoint.flush()
    assert not checkpoint.is_damaged
    checkpoint.close()
    assert (tmp_path / "checkpoint").read_bytes() == bytes(4096)


def test_bytes_behind_the_values_are_kept(tmp_path: Path) -> None:
    """A later version may use them."""
    data = page(NOW, NOW, 0, 0, 0)[:40] + b"future" + bytes(4050)
    checkpoint = Checkpoint(REAL_DISK, write(tmp_path, data), writable=True)
    checkpoint.flush()
    checkpoint.close()
    assert (tmp_path / "checkpoint").read_bytes() == data


def test_a_flush_that_fails_at_any_call_leaves_old_or_new(tmp_path: Path) -> None:
    """It is not retried: after a failed sync the content of the disk is unknown."""
    opening = len(_opened(tmp_path / "count", CountingDisk()).calls)
    seen = set()
    for number in (opening + 1, opening + 2):
        folder = tmp_path / str(number)
        disk = _opened(folder, FailingDisk(number))
        checkpoint = disk.checkpoint
        checkpoint.physic_msg_timestamp_ms = NOW + 1
        with pytest.raises(DiskError) as first:
            checkpoint.flush()
        calls = len(disk.calls)
        with pytest.raises(DiskError) as second:
            checkpoint.flush()
        assert second.value is first.value
        assert len(disk.calls) == calls
        seen.add(Checkpoint(REAL_DISK, str(folder)).physic_msg_timestamp_ms)
        checkpoint.close()
    assert seen == {NOW, NOW + 1}


def _opened(folder: Path, disk: Any) -> Any:
    """Return a checkpoint with the time NOW, opened on `disk`."""
    folder.mkdir()
    disk.checkpoint = Checkpoint(disk, write(folder, page(NOW, NOW, 0, 0, 0)), writable=True)
    return disk


def test_a_first_open_that_fails_at_any_call_can_be_done_again(tmp_path: Path) -> None:
    """The file that it leaves has no values."""
    runs = iter(range(1000))
    folder = tmp_path

    def first_open(disk: Any) -> None:
        nonlocal folder
        folder = tmp_path / str(next(runs))
        folder.mkdir()
        Checkpoint(disk, str(folder), writable=True).close()

    count = 0
    for _ in failures(first_open):
        checkpoint = Checkpoint(REAL_DISK, str(folder), writable=True)
        assert checkpoint.values == CheckpointValues()
        checkpoint.flush()
        checkpoint.close()
        assert (folder / "checkpoint").read_bytes() == bytes(4096)
        count += 1
    assert count >= 5


def test_a_value_that_could_not_be_read_back_is_refused(tmp_path: Path) -> None:
    """It is a programming error; the file stays unchanged."""
    checkpoint = Checkpoint(REAL_DISK, write(tmp_path, page(NOW, NOW, 0, 0, 0)), writable=True)
    checkpoint.physic_msg_timestamp_ms = -5
    with pytest.raises(ValueError, match="cannot stand"):
        checkpoint.flush()
    checkpoint.close()
    assert (tmp_path / "checkpoint").read_bytes() == page(NOW, NOW, 0, 0, 0)


def test_a_reader_and_a_closed_one_cannot_flush(tmp_path: Path) -> None:
    """Reading never changes a folder."""
    for checkpoint in (Checkpoint(REAL_DISK, str(tmp_path)), Checkpoint(REAL_DISK, str(tmp_path), writable=True)):
        checkpoint.close()
        checkpoint.close()
        with pytest.raises(StoreClosed):
            checkpoint.flush()


def test_threads_set_and_flush(tmp_path: Path) -> None:
    """The last values are the ones on the disk."""
    checkpoint = Checkpoint(REAL_DISK, str(tmp_path), writable=True)

    def work(field: str) -> None:
        for k in range(100):
            setattr(checkpoint, field, NOW + k)
            checkpoint.flush()

    threads = [threading.Thread(target=work, args=(field,)) for field in CheckpointValues._fields[:3]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    checkpoint.close()
    assert Checkpoint(REAL_DISK, str(tmp_path)).values == filled(NOW + 99, NOW + 99, NOW + 99)


def test_a_time_behind_that_of_the_logs_last_record_is_named(tmp_path: Path) -> None:
    """It covers more than the log holds; a log without records tells nothing about times."""
    folder = write(tmp_path, page(NOW + 1, NOW, NOW - 1, 0, 0))
    values = read_checkpoint(REAL_DISK, str(Path(folder) / "checkpoint")).values
    assert times_ahead(values, NOW) == {TIMES[0]: NOW + 1}
    assert times_ahead(values, NOW - 2) == dict(zip(TIMES, (NOW + 1, NOW, NOW - 1), strict=True))
    assert times_ahead(values, 0) == {}
