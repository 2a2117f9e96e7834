"""Units of batch queues (docs/formats/consumequeue.md#batch-unit)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumequeue.layout import BATCH_UNIT
from storageio import REAL_DISK, InvalidMessage
from tests.helpers import contents


def batch_queue(world: Any, root: Path, topic: str, queue_id: int, writable: bool) -> Any:
    files = world.consumequeue.QueueFiles(REAL_DISK, writable=writable)
    return world.consumequeue.BatchQueue(str(root), topic, queue_id, 920, files)


def test_every_unit_of_a_real_store(fixture_store: Any, world: Any) -> None:
    """Bounds and units are those of the real store, in three files of twenty units."""
    fixture = fixture_store("batchcq")
    for expected in fixture.expected()["queues"]:
        if "batchCq" in expected:
            queue = batch_queue(world, fixture.store / "batchconsumequeue", expected["topic"], expected["queueId"], False)
            assert [[*unit[:7]] for unit in queue.units()] == expected["batchCq"]
            bounds = (expected["minOffset"], expected["maxOffset"], expected["maxPhysicOffset"])
            assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == bounds


def test_the_units_of_a_real_store_give_its_files(fixture_store: Any, world: Any, tmp_path: Path) -> None:
    """The files are equal to the last byte, although every unit is appended twice."""
    fixture = fixture_store("batchcq")
    for expected in fixture.expected()["queues"]:
        for unit in expected.get("batchCq", ()):
            queue = batch_queue(world, tmp_path, expected["topic"], expected["queueId"], True)
            assert queue.append(world.consumequeue.BatchUnit(*unit))
            assert not queue.append(world.consumequeue.BatchUnit(*unit))
    assert contents(tmp_path) == contents(fixture.store / "batchconsumequeue")


def test_a_queue_offset_is_found_in_its_batch(fixture_store: Any, world: Any) -> None:
    """One unit is found for all of its queue offsets."""
    fixture = fixture_store("batchcq")
    queue = batch_queue(world, fixture.store / "batchconsumequeue", "BcqTopic", 0, False)
    for index, unit in enumerate(queue.units()):
        for offset in range(unit.base_offset, unit.base_offset + unit.batch_size):
            assert queue.index_of(offset) == index
    assert queue.index_of(264) == queue.stop_index == 45


def test_every_answer_of_a_real_store_for_a_time(fixture_store: Any, world: Any) -> None:
    """LOWER and UPPER give the store's answer for every time that it was asked for, with the oddities of UPPER."""
    fixture = fixture_store("batchcq")
    search, boundary = world.consumequeue.batch_offset_by_time, world.consumequeue.Boundary
    requested = 0
    for expected in fixture.expected()["queues"]:
        if "batchCq" in expected:
            queue = batch_queue(world, fixture.store / "batchconsumequeue", expected["topic"], expected["queueId"], False)
            for answer in expected["offsetByTime"]:
                assert search(queue, answer["timestamp"], boundary.LOWER) == answer["lower"], answer
                assert search(queue, answer["timestamp"], boundary.UPPER) == answer["upper"], answer
                requested += 1
    assert requested > 50


def test_nearest_batch_by_time_is_found(world: Any, tmp_path: Path) -> None:
    """Before all batches the first is found, after all the last, and the earlier of two equally near ones."""
    queue = batch_queue(world, tmp_path, "T", 0, True)
    search, nearest = world.consumequeue.batch_offset_by_time, world.consumequeue.Boundary.NEAREST
    assert [search(queue, 5, boundary) for boundary in world.consumequeue.Boundary] == [0, 0, 0]
    for number, time in enumerate([10, 20, 40]):
        queue.append(world.consumequeue.BatchUnit(100 * number, 100, 0, time, 5 * number, 5))
    assert [search(queue, time, nearest) for time in (0, 10, 15, 16, 30, 31, 99)] == [0, 0, 0, 5, 5, 10, 10]


def test_an_empty_queue(world: Any, tmp_path: Path) -> None:
    """The minimum of an empty queue is -1."""
    queue = batch_queue(world, tmp_path, "T", 0, True)
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (-1, 0, -1)


@pytest.mark.parametrize("field", ["physical_offset", "size_bytes", "base_offset", "batch_size"])
def test_batch_unit_with_a_negative_field_is_rejected(world: Any, tmp_path: Path, field: str) -> None:
    """A negative field or no message would hide all units behind it, so it is refused."""
    queue = batch_queue(world, tmp_path, "T", 0, True)
    unit = world.consumequeue.BatchUnit(0, 100, 0, 1, 0, 1)
    with pytest.raises(InvalidMessage):
        queue.append(unit._replace(**{field: -1}))
    assert queue.append(unit)
    assert queue.recover() == 46


def test_the_minimum_after_expiry_is_the_first_message_that_is_left(world: Any, tmp_path: Path) -> None:
    """It is the first unit whose record the log still has, as in RocketMQ's `correctMinOffset`."""
    files = world.consumequeue.QueueFiles(REAL_DISK, writable=True)
    queue = world.consumequeue.BatchQueue(str(tmp_path), "T", 0, 920, files)  # files of twenty units
    for number in range(45):
        queue.append(world.consumequeue.BatchUnit(number, 1, 0, number, 1 + 10 * number, 10))
    expected = {0: 1, 1: 11, 19: 191, 20: 201, 30: 301, 39: 391, 40: 401, 44: 441, 45: 401}
    for log_min, minimum in expected.items():
        deleted = queue.delete_expired(log_min)
        assert (queue.min_offset, deleted) == (minimum, {20: 1, 40: 1}.get(log_min, 0)), log_min
    assert queue.index_of(queue.min_offset) == queue.first_index == 40
    queue.truncate(42)
    assert (queue.min_offset, queue.max_offset) == (401, 421)


def test_minimum_of_an_opened_batch_queue_is_corrected_by_the_log_start(world: Any, tmp_path: Path) -> None:
    """Both a writer and a reader correct the minimum by the start of the log."""
    queues = world.consumequeue.BatchQueues(REAL_DISK, str(tmp_path), writable=True, file_size_bytes=920)
    for number in range(30):
        queues.get_or_add("T", 0).append(world.consumequeue.BatchUnit(number, 1, 0, number, 10 * number, 10))
    queues.close()
    for writable in (True, False):
        opened = world.consumequeue.BatchQueues(REAL_DISK, str(tmp_path), writable=writable, log_min_offset=7)
        assert opened.get("T", 0).min_offset == 70
        opened.close()


def batch_unit(world: Any, number: int, size_bytes: int = 100) -> Any:
    """Return a unit of three messages; `number` counts the units of a queue."""
    return world.consumequeue.BatchUnit(1000 * number, size_bytes, 0, 1_700_000_000_000, 3 * number, 3)


def test_unit_of_a_record_of_size_zero_is_rejected(world: Any, tmp_path: Path) -> None:
    """A unit with size 0 is refused, and ends a queue that is read."""
    queue = batch_queue(world, tmp_path, "B", 0, True)
    assert queue.append(batch_unit(world, 0))
    with pytest.raises(InvalidMessage):
        queue.append(batch_unit(world, 1, 0))
    assert queue._count_valid(BATCH_UNIT.pack(*batch_unit(world, 1, 0))) == 0


def test_a_batch_queue_cut_at_a_files_begin_loses_that_file(world: Any, tmp_path: Path) -> None:
    """No file of zeros remains behind the end."""
    queue = batch_queue(world, tmp_path, "B", 0, True)
    for number in range(25):
        queue.append(batch_unit(world, number))
    queue.truncate(20_000)
    assert (queue.stop_index, sorted(contents(tmp_path))) == (20, [f"B/0/{0:020d}"])


def test_flush_of_batch_queues_returns_whether_it_synced(world: Any, tmp_path: Path) -> None:
    """The flush returns True if it synced something, and False otherwise."""
    queues = world.consumequeue.BatchQueues(REAL_DISK, str(tmp_path), writable=True, file_size_bytes=920)
    queues.get_or_add("B", 0).append(batch_unit(world, 0))
    assert queues.flush()
    assert not queues.flush()


def test_is_writable_of_a_batch_queue_is_true_only_for_a_writer(world: Any, tmp_path: Path) -> None:
    """A reader checks for new units before each answer; a writer does not."""
    assert batch_queue(world, tmp_path, "B", 0, True).is_writable is True
    assert batch_queue(world, tmp_path, "B", 0, False).is_writable is False
