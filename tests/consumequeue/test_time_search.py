"""Queue offsets by time (docs/formats/read-rules.md#offset-by-time)."""

from __future__ import annotations

import tempfile
from bisect import bisect_left, bisect_right
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storageio import REAL_DISK
from tests.builds import World
from tests.consumequeue.model import PROPERTY, UNIT


@pytest.mark.parametrize("name", ["plain", "broker-live", "lmq", "propcrc"])
def test_every_answer_of_a_real_store(name: str, fixture_store: Any, queues: Any, world: Any) -> None:
    """LOWER (the default) and UPPER give the store's answer for every time that it was asked for."""
    fixture = fixture_store(name)
    expected = fixture.expected()
    times = {message["physicalOffset"]: message["storeTimestamp"] for message in expected["messages"]}
    opened = queues(units=100, writable=False, folder=fixture.store / "consumequeue")
    boundary, search = world.consumequeue.Boundary, world.consumequeue.offset_by_time
    for queue in expected["queues"]:
        found = opened.get(queue["topic"], queue["queueId"])
        for answer in queue["offsetByTime"]:
            for kind, target in (("LOWER", "offset"), ("LOWER", "lower"), ("UPPER", "upper")):
                got = search(found, answer["timestamp"], boundary[kind], lambda position, _: times.get(position, -1))
                assert got == answer[target], (queue["topic"], answer, kind)


def queue_of(queues: Any, times: list[int]) -> tuple[Any, Any]:
    """Return a queue whose unit n has its record at 100 n, and a function that returns store times."""
    queue = queues(units=4).get_or_add("T", 0)
    queue.append_run(0, b"".join(UNIT.pack(100 * number, 100, 0) for number in range(len(times))))
    return queue, lambda position, size: times[position // 100] if size == 100 and position // 100 < len(times) else -1


TIMES = [10, 20, 20, 20, 20, 30, 45, 60, 60, 90]
# time, lower, upper, nearest
ANSWERS = [
    (0, 0, 0, 0),
    (10, 0, 0, 0),
    (14, 1, 0, 0),
    (15, 1, 0, 0),  # as near to both: the earlier
    (16, 1, 0, 1),
    (20, 1, 4, 1),
    (26, 5, 4, 5),
    (45, 6, 6, 6),
    (52, 7, 6, 6),
    (53, 7, 6, 7),
    (90, 9, 9, 9),
    (91, 10, 9, 9),
    (1 << 62, 10, 9, 9),
]


@pytest.mark.parametrize("column", [0, 1, 2], ids=["lower", "upper", "nearest"])
def test_boundaries(queues: Any, world: Any, column: int) -> None:
    """Times before, at, between and after the units, and equal times across two files, give the right unit."""
    queue, store_time_of = queue_of(queues, TIMES)
    boundary = list(world.consumequeue.Boundary)[column]
    for time, *expected in ANSWERS:
        got = world.consumequeue.offset_by_time(queue, time, boundary, store_time_of)
        assert got == expected[column], time


@pytest.mark.parametrize("column", [0, 1, 2], ids=["lower", "upper", "nearest"])
def test_a_file_that_has_no_unit_yet_changes_no_answer(queues: Any, world: Any, column: int) -> None:
    """A broker may create a file ahead, or crash before its first unit; its zeros are no times."""
    queue, store_time_of = queue_of(queues, TIMES[:8])
    with open(queue.path(160), "xb") as file:
        file.write(bytes(80))
    again = queues(units=4, writable=False).get("T", 0)
    assert (len(again.starts), again.max_offset) == (3, 8)
    boundary = list(world.consumequeue.Boundary)[column]
    for time, *expected in ANSWERS[:-3]:
        got = world.consumequeue.offset_by_time(again, time, boundary, store_time_of)
        assert got == min(expected[column], 8 if column == 0 else 7), time


def test_a_queue_without_units(queues: Any, world: Any) -> None:
    """The result is 0 for every time."""
    queue = queues().get_or_add("T", 0)
    for boundary in world.consumequeue.Boundary:
        assert world.consumequeue.offset_by_time(queue, 5, boundary, lambda *_: 1) == 0


def test_time_search_skips_units_of_expired_records(queues: Any, world: Any) -> None:
    """The result is always a unit whose record is still in the log."""
    queue, known = queue_of(queues, TIMES)
    queue.correct_min_offset(500)

    def store_time_of(position: int, size: int) -> int:
        return known(position, size) if position >= 500 else -1

    search, boundary = world.consumequeue.offset_by_time, world.consumequeue.Boundary
    assert search(queue, 1, boundary.LOWER, store_time_of, 500) == 5
    assert search(queue, 30, boundary.LOWER, store_time_of, 500) == 5
    assert search(queue, 50, boundary.UPPER, store_time_of, 500) == 6
    assert search(queue, 1, boundary.NEAREST, store_time_of, 500) == 5


def test_a_minimum_that_is_not_corrected_yet(queues: Any, world: Any) -> None:
    """The search goes right at a record below the log, and returns 0 at one that is missing inside it."""
    queue, known = queue_of(queues, TIMES)
    search, lower = world.consumequeue.offset_by_time, world.consumequeue.Boundary.LOWER
    assert search(queue, 45, lower, lambda position, size: known(position, size) if position >= 600 else -1, 600) == 6
    assert search(queue, 45, lower, lambda position, size: known(position, size) if position != 500 else -1) == 0


@PROPERTY
@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(-1, 1000))
def test_nearest_equals_a_linear_search(world: World, gaps: list[int], time: int) -> None:
    """It is the nearer neighbour, the earlier of two, and the first of equal times."""
    times = [1 + sum(gaps[: count + 1]) for count in range(len(gaps))]
    with tempfile.TemporaryDirectory() as folder:
        opened = world.consumequeue.ConsumeQueues(REAL_DISK, folder, writable=True, file_size_bytes=20 * 1000)
        queue, store_time_of = queue_of(lambda units: opened, times)
        got = world.consumequeue.offset_by_time(queue, time, world.consumequeue.Boundary.NEAREST, store_time_of)
        best = min(abs(known - time) for known in times)
        assert abs(times[got] - time) == best
        left = [number for number, known in enumerate(times) if known < time and time - known == best]
        if left:
            assert got == left[-1]
        elif time >= times[0]:
            assert got == next(number for number, known in enumerate(times) if abs(known - time) == best)


def opened_queue(world: World, folder: str, times: list[int], units: int) -> tuple[Any, Any]:
    """Return the same as `queue_of`, with files of `units` units."""
    opened = world.consumequeue.ConsumeQueues(REAL_DISK, folder, writable=True, file_size_bytes=20 * units)
    return queue_of(lambda units: opened, times)


@PROPERTY
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(3, 60), st.integers(-1, 45))
def test_runs_of_equal_times_are_answered_as_bisection_of_a_list_does(
    world: World, runs: list[int], units: int, requested: int
) -> None:
    """The results are those of bisecting a list, for runs of any length and any file ends."""
    times = [3 * number + 1 for number, run in enumerate(runs) for _ in range(run)]
    with tempfile.TemporaryDirectory() as folder:
        queue, store_time_of = opened_queue(world, folder, times, units)
        search, boundary = world.consumequeue.offset_by_time, world.consumequeue.Boundary
        assert search(queue, requested, boundary.LOWER, store_time_of) == bisect_left(times, requested)
        assert search(queue, requested, boundary.UPPER, store_time_of) == max(bisect_right(times, requested) - 1, 0)


@PROPERTY
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(-1, 7), st.sampled_from(["LOWER", "UPPER"]))
def test_a_clock_that_was_set_back_ends_at_an_edge(world: World, times: list[int], requested: int, kind: str) -> None:
    """If times are out of order and a message of the time is found, its neighbour has another time."""
    with tempfile.TemporaryDirectory() as folder:
        queue, store_time_of = opened_queue(world, folder, times, 1000)
        got = world.consumequeue.offset_by_time(queue, requested, world.consumequeue.Boundary[kind], store_time_of)
        assert 0 <= got <= len(times)
        if got < len(times) and times[got] == requested and times[0] <= requested <= times[-1]:
            beside = got - 1 if kind == "LOWER" else got + 1
            assert not 0 <= beside < len(times) or times[beside] != requested


def test_search_over_many_equal_times_reads_few_records(world: World, tmp_path: Any) -> None:
    """RocketMQ would step over them one by one."""
    times = [1, *[2] * 30_000, 3]
    queue, known = opened_queue(world, str(tmp_path), times, 40_000)
    requested: list[int] = []

    def store_time_of(position: int, size: int) -> int:
        requested.append(position)
        return int(known(position, size))

    search, boundary = world.consumequeue.offset_by_time, world.consumequeue.Boundary
    assert search(queue, 2, boundary.LOWER, store_time_of) == 1
    assert search(queue, 2, boundary.UPPER, store_time_of) == 30_000
    assert len(requested) < 150


def test_a_file_that_is_deleted_meanwhile_has_no_times(world: World, tmp_path: Any) -> None:
    """There is no error, and the result is within the bounds."""
    queue, store_time_of = opened_queue(world, str(tmp_path), TIMES, 4)
    assert queue.max_offset == len(TIMES)
    (tmp_path / "T" / "0" / f"{80:020d}").unlink()
    queue._files.forget(queue.path(80))
    queue._files.writable = False  # as beside a writer
    for boundary in world.consumequeue.Boundary:
        assert 0 <= world.consumequeue.offset_by_time(queue, 20, boundary, store_time_of) <= len(TIMES)
