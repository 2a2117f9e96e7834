"""The rules by which a unit gets its place (docs/formats/consumequeue.md#how-a-unit-gets-its-place)."""

from __future__ import annotations

import errno
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storageio import REAL_DISK, DiskFull, InvalidMessage, StoreReadOnly
from storageio.testing import CountingDisk, FailingDisk
from tests.builds import World
from tests.consumequeue.model import PROPERTY, UNIT, PlainQueue, packed
from tests.helpers import contents

PRE_BLANK = bytes.fromhex("00000000000000007fffffff0000000000000000")


def test_units_lie_one_behind_the_other_and_roll_to_the_next_file(queues: Any, tmp_path: Path) -> None:
    """Twelve units in files of ten make a full file and one with two units and zeros."""
    opened = queues()
    assert opened.get_or_add("T", 3).append_run(0, packed(0, 12)) == 12
    assert contents(tmp_path / "consumequeue") == {
        "T/3/00000000000000000000": packed(0, 10),
        "T/3/00000000000000000200": packed(10, 2) + bytes(160),
    }


def test_a_record_that_was_queued_is_not_queued_again(queues: Any) -> None:
    """Step 1: dispatching a range of the log twice changes nothing."""
    queue = queues().get_or_add("T", 0)
    queue.append_run(0, packed(0, 8))
    assert queue.append_run(0, packed(0, 8)) == 0
    assert queue.append_run(5, packed(5, 5)) == 2
    assert queue.max_offset == 10
    assert queue.max_physical_offset == 1000


def test_the_same_record_twice_in_a_run_gets_one_unit(queues: Any) -> None:
    """If a message names an LMQ twice, the second unit is a repeat."""
    queue = queues().get_or_add("%LMQ%a", 0)
    assert queue.append_run(0, packed(0, 1) + packed(0, 1) + packed(1, 1)) == 2
    assert [unit.tags_code for _, unit in queue.units()] == [0, 1]


def test_existing_queue_offset_gets_no_second_unit(queues: Any) -> None:
    """Step 4: a later record with a queue offset that exists already succeeds without a unit."""
    queue = queues().get_or_add("T", 0)
    queue.append_run(0, packed(0, 5))
    assert queue.append(5000, 100, 0, 3) == 0
    assert queue.max_offset == 5
    assert queue.max_physical_offset == 500


def test_unit_after_a_gap_is_appended_at_the_end_with_a_warning(queues: Any, caplog: Any) -> None:
    """Step 4: RocketMQ logs the gap and appends the unit at the end."""
    queue = queues().get_or_add("T", 0)
    queue.append_run(0, packed(0, 2))
    with caplog.at_level(logging.WARNING, logger="brokerstore.consumequeue"):
        assert queue.append(5000, 100, 7, 6) == 1
    assert queue.unit(2) == (5000, 100, 7)
    assert "unit 6 goes to place 2" in caplog.text


def test_unit_with_queue_offset_zero_is_always_appended(queues: Any) -> None:
    """Step 4: queue offset 0 is not checked."""
    queue = queues().get_or_add("T", 0)
    queue.append_run(0, packed(0, 2))
    assert queue.append(5000, 100, 7, 0) == 1
    assert queue.max_offset == 3


def test_units_after_queue_offset_zero_in_a_run_are_checked(queues: Any) -> None:
    """If a run starts at 0 in a queue with units, only its first unit is appended; the other offsets are taken."""
    queue = queues().get_or_add("T", 0)
    queue.append_run(0, packed(0, 4))
    assert queue.append_run(0, packed(50, 3)) == 1
    assert [unit.tags_code for _, unit in queue.units()] == [0, 1, 2, 3, 50]


def test_first_unit_inside_a_file_is_preceded_by_pre_blank_units(queues: Any, tmp_path: Path) -> None:
    """Step 3: the file before the first unit is filled with blanks, which are no units of the queue."""
    queue = queues().get_or_add("T", 0)
    queue.append_run(23, packed(50, 2))
    expected = {"T/0/00000000000000000400": 3 * PRE_BLANK + packed(50, 2) + bytes(100)}
    assert contents(tmp_path / "consumequeue") == expected
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (23, 25, 5200)


@pytest.mark.parametrize("first", [20, 29])
def test_a_first_unit_at_a_files_edge(queues: Any, first: int) -> None:
    """There are no blanks before the first place of a file, and nine before the last."""
    queue = queues().get_or_add("T", 0)
    queue.append_run(first, packed(50, 2))
    assert (queue.min_offset, queue.max_offset) == (first, first + 2)
    assert queue.unit(first).physical_offset == 5000


@pytest.mark.parametrize(
    "run",
    [b"x" * 19, UNIT.pack(-1, 100, 0), UNIT.pack(0, 0, 0), UNIT.pack(0, -5, 0), UNIT.pack((1 << 63) - 1, 100, 0)],
    ids=["half a unit", "negative offset", "no size", "negative size", "offset beyond any log"],
)
def test_append_run_rejects_invalid_units_and_writes_nothing(queues: Any, tmp_path: Path, run: bytes) -> None:
    """A unit that would end the queue for every reader is refused."""
    queue = queues().get_or_add("T", 0)
    with pytest.raises(InvalidMessage):
        queue.append_run(0, run)
    with pytest.raises(InvalidMessage):
        queue.append_run(-1, packed(0, 1))
    assert not (tmp_path / "consumequeue").exists()


def test_a_reader_cannot_append(queues: Any) -> None:
    """A queue opened for reading refuses to append."""
    queues().get_or_add("T", 0).append_run(0, packed(0, 1))
    queue = queues(writable=False).get("T", 0)
    for change in (lambda: queue.append_run(1, packed(1, 1)), lambda: queue.truncate(0), queue.destroy, queue.drop_tail):
        with pytest.raises(StoreReadOnly):
            change()


def test_append_run_on_a_full_disk_keeps_the_units_already_written(queues: Any) -> None:
    """The write to the third file fails; the same call later continues there and adds no unit twice."""
    disk = FailingDisk(3, errno=errno.ENOSPC, only="write")
    queue = queues(disk=disk).get_or_add("T", 0)
    with pytest.raises(DiskFull):
        queue.append_run(0, packed(0, 25))
    assert (queue.max_offset, queue.max_physical_offset) == (20, 2000)
    assert queue.append_run(0, packed(0, 25)) == 5
    assert [unit.physical_offset for _, unit in queue.units()] == [100 * number for number in range(25)]


@pytest.mark.parametrize("call", range(1, 9))
def test_append_retried_after_any_failed_call_completes_the_queue(queues: Any, call: int) -> None:
    """One failure of any call (make folder, create, truncate, open, write) leaves units that a retry completes."""
    disk = FailingDisk(10_000)
    queue = queues(disk=disk).get_or_add("T", 0)
    disk.fail_at = len(disk.calls) + call
    for _ in range(2):
        try:
            queue.append_run(3, packed(3, 12))
        except Exception as error:
            assert type(error).__name__ == "DiskError"
    again = queues(writable=False).get("T", 0)
    assert [number for number, _ in again.units()] == list(range(3, 15))


RUNS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.lists(st.tuples(st.integers(0, 60), st.integers(1, 3), st.integers(-5, 5)), min_size=1, max_size=12),
    ),
    max_size=8,
)


@PROPERTY
@given(RUNS, st.integers(1, 7))
def test_any_runs_give_the_bytes_of_the_plain_model(world: World, runs: Any, units: int) -> None:
    """Runs in bulk and one by one give the model's bytes for any mixture of repeats, gaps, blanks and rolls."""
    make = world.consumequeue.ConsumeQueues
    plain = PlainQueue(20 * units)
    folder = Path(tempfile.mkdtemp())
    bulk = make(REAL_DISK, str(folder / "bulk"), writable=True, file_size_bytes=20 * units)
    single = make(REAL_DISK, str(folder / "single"), writable=True, file_size_bytes=20 * units)
    try:
        for first, run in runs:
            bulk.get_or_add("T", 0).append_run(first, b"".join(UNIT.pack(*unit) for unit in run))
            for number, unit in enumerate(run):
                plain.append(*unit, first + number)
                single.get_or_add("T", 0).append(*unit, first + number)
        assert contents(folder / "single") == plain.as_files("T/0")
        assert contents(folder / "bulk") == plain.as_files("T/0")
        for opened in (bulk, single):
            assert opened.max_physical_offset() == plain.top
            assert not runs or opened.get("T", 0).max_offset == plain.written // 20
    finally:
        bulk.close()
        single.close()
        shutil.rmtree(folder)


def test_one_run_is_one_write(queues: Any) -> None:
    """The dispatcher hands over thousands of units together; they are written with one call per file."""
    disk = CountingDisk()
    queue = queues(units=1000, disk=disk).get_or_add("T", 0)
    queue.append_run(0, packed(0, 10))
    before = disk.counts["write"]
    queue.append_run(10, packed(10, 900))
    assert disk.counts["write"] == before + 1


@pytest.mark.parametrize("name", ["plain", "cqext", "batchcq", "broker-live", "lmq"])
def test_the_units_of_a_real_store_give_its_files(name: str, fixture_store: Any, queues: Any, tmp_path: Path) -> None:
    """Every queue file is equal byte by byte, except those with addresses of extended units."""
    fixture = fixture_store(name)
    opened = queues(units=100)
    for queue in fixture.expected()["queues"]:
        if "cq" in queue and not queue.get("ext"):
            units = b"".join(UNIT.pack(*unit) for unit in queue["cq"])
            opened.get_or_add(queue["topic"], queue["queueId"]).append_run(0, units)
    opened.flush()
    made, real = contents(tmp_path / "consumequeue"), contents(fixture.store / "consumequeue")
    assert made == {path: real[path] for path in made}
    assert len(made) == len(real) or name == "cqext"
