"""Minimum, maximum, lookup and iteration of queues."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storageio import REAL_DISK
from tests.builds import World
from tests.consumequeue.model import PROPERTY, UNIT, built, packed


@pytest.mark.parametrize("name", ["plain", "broker-live", "lmq", "propcrc"])
def test_bounds_and_units_equal_those_of_a_real_store(name: str, fixture_store: Any, queues: Any) -> None:
    """Minimum, maximum, greatest record end and every unit are the real store's; the end of files is detected."""
    fixture = fixture_store(name)
    opened = queues(units=100, writable=False, folder=fixture.store / "consumequeue")
    expected = fixture.expected()["queues"]
    assert len(opened) == len(expected)
    for queue in expected:
        found = opened.get(queue["topic"], queue["queueId"])
        bounds = (queue["minOffset"], queue["maxOffset"], queue["maxPhysicOffset"])
        assert (found.min_offset, found.max_offset, found.max_physical_offset) == bounds
        assert [[*unit] for _, unit in found.units()] == queue["cq"]
    assert opened.max_physical_offset() == max(queue["maxPhysicOffset"] for queue in expected)


def test_an_empty_queue(queues: Any) -> None:
    """An empty queue has no units, and no folder before its first unit."""
    opened = queues()
    queue = opened.get_or_add("T", 0)
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 0, -1)
    assert queue.unit(0) is None
    assert queue.index_buffer(0) is None
    assert list(queue.units()) == []
    assert queue.find_physical(0) == 0
    assert not queue.flush()
    assert opened.max_physical_offset() == -1


def test_index_buffer_is_the_rest_of_one_file(queues: Any) -> None:
    """As in RocketMQ's getIndexBuffer, it ends at the end of the file or of what is written."""
    queue = queues().get_or_add("T", 0)
    queue.append_run(0, packed(0, 25))
    assert bytes(queue.index_buffer(3)) == packed(3, 7)
    assert bytes(queue.index_buffer(10)) == packed(10, 10)
    assert bytes(queue.index_buffer(24)) == packed(24, 1)
    assert queue.index_buffer(25) is None
    assert queue.index_buffer(-1) is None


def test_index_buffer_sees_units_appended_after_it_was_mapped(queues: Any) -> None:
    """Units are written with a call and read through a map; both see the same bytes."""
    queue = queues().get_or_add("T", 0)
    queue.append_run(0, packed(0, 1))
    assert len(queue.index_buffer(0)) == 20
    queue.append_run(1, packed(1, 3))
    assert bytes(queue.index_buffer(0)) == packed(0, 4)


def test_index_buffer_outlives_the_files(queues: Any) -> None:
    """A buffer stays readable after the queue is deleted."""
    opened = queues()
    opened.get_or_add("T", 0).append_run(0, packed(0, 4))
    held = opened.get("T", 0).index_buffer(0)
    opened.remove_topic("T")
    opened.close()
    assert bytes(held) == packed(0, 4)


def test_roll_next_file(queues: Any) -> None:
    """It returns the first offset of the next file."""
    queue = queues().get_or_add("T", 0)
    assert [queue.roll_next_file(offset) for offset in (0, 9, 10, 25)] == [10, 10, 20, 30]


def test_units_walk_over_file_ends(queues: Any) -> None:
    """The walk begins at the minimum or a given offset and ends before the stop."""
    queue = queues().get_or_add("T", 0)
    queue.append_run(0, packed(0, 25))
    assert [number for number, _ in queue.units(8, 22)] == list(range(8, 22))
    assert [unit.tags_code for _, unit in queue.units(-5, 99)] == list(range(25))


# log minimum, queue minimum before, and after: units 0..24 at 0, 100, ... 2400
MINIMA = [
    (0, 0, 0),
    (100, 0, 1),
    (101, 0, 2),
    (950, 0, 10),  # the whole first file is gone: RocketMQ stays at 0 until it deletes the file
    (2400, 0, 24),
    (2401, 0, 25),  # all expired: the minimum is the maximum
    (9999, 0, 25),
    (300, 2000, 20),  # it never decreases
]


@pytest.mark.parametrize(("log_min", "earlier", "expected"), MINIMA)
def test_the_minimum_follows_the_log(queues: Any, log_min: int, earlier: int, expected: int) -> None:
    """The minimum is the first unit whose record is still in the log."""
    queue = queues().get_or_add("T", 0)
    queue.append_run(0, packed(0, 25))
    queue.correct_min_offset(earlier)
    assert queue.correct_min_offset(log_min) == expected
    assert queue.min_offset == expected
    assert (queue.index_buffer(expected - 1) is None) and (expected == 25 or queue.index_buffer(expected) is not None)


def test_blanks_before_the_first_unit_are_below_the_minimum_after_a_restart(queues: Any) -> None:
    """RocketMQ reports 0 here if its log begins at 0 (docs/formats/consumequeue.md#blanks)."""
    queues().get_or_add("T", 0).append_run(7, packed(50, 2))
    queue = queues().get("T", 0)
    assert (queue.min_offset, queue.max_offset) == (7, 9)
    assert queue.correct_min_offset(0) == 7
    assert queue.correct_min_offset(5001) == 8


def test_a_queue_of_blanks_alone_has_no_record_end(queues: Any) -> None:
    """After a crash between blanks and first unit, RocketMQ takes 2147483647 for the greatest end."""
    opened = queues()
    opened.get_or_add("T", 0).append_run(7, packed(50, 1))
    path = opened.get("T", 0).path(0)
    with open(path, "r+b") as file:
        file.seek(140)
        file.write(bytes(20))
    again = queues()
    queue = again.get("T", 0)
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (7, 7, -1)
    assert again.max_physical_offset() == -1
    queue.recover()
    assert queue.append_run(7, packed(50, 2)) == 2
    assert (queue.min_offset, queue.max_offset) == (7, 9)


@PROPERTY
@given(st.integers(0, 60), st.integers(1, 9), st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(-10, 2100))
def test_find_physical_is_a_plain_search(world: World, first: int, units: int, gaps: list[int], expected: int) -> None:
    """It returns the first unit at or behind a log offset, or the maximum if there is none."""
    offsets = [sum(gaps[: count + 1]) for count in range(len(gaps))]
    with tempfile.TemporaryDirectory() as folder:
        queue = world.consumequeue.ConsumeQueues(REAL_DISK, folder, writable=True, file_size_bytes=20 * units).get_or_add(
            "T", 0
        )
        queue.append_run(first, b"".join(UNIT.pack(offset, 1, 0) for offset in offsets))
        plain = [first + number for number, offset in enumerate(offsets) if offset >= expected]
        assert queue.find_physical(expected) == (plain[0] if plain else first + len(offsets))


def test_the_bounds_hold_the_minimum_inside_the_first_file(queues: Any) -> None:
    """`bounds` has the value of `min_offset` if records of the first file's first units left the log."""
    built(queues)
    queue = queues().get("T", 0)
    assert queue.correct_min_offset(500) == 5
    assert queue.bounds == (queue.starts, 35 * 20, 5)


def test_a_known_minimum_is_corrected_with_all_others(queues: Any) -> None:
    """`correct_min_offsets` also moves a minimum that was read before."""
    built(queues)
    opened = queues()
    queue = opened.get("T", 0)
    assert queue.min_offset == 0
    opened.correct_min_offsets(700)
    assert queue.min_offset == 7


def test_refresh_updates_the_greatest_record_end_of_a_reader(queues: Any) -> None:
    """The greatest record end includes the new units after a refresh."""
    built(queues, 3)
    reader = queues(writable=False).get("T", 0)
    assert reader.max_physical_offset == 300
    queues().get("T", 0).append_run(3, packed(3, 2))
    reader.refresh()
    assert (reader.max_offset, reader.max_physical_offset) == (5, 500)


def test_units_in_order_are_appended_without_a_warning(queues: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Only a gap causes a warning, not a unit that begins a file."""
    queue = queues().get_or_add("T", 0)
    with caplog.at_level(logging.WARNING, logger="brokerstore.consumequeue"):
        queue.append_run(0, packed(0, 10))
        queue.append_run(10, packed(10, 5))
        assert not caplog.records
        queue.append_run(20, packed(20, 1))
    assert "goes to place 15" in caplog.text
