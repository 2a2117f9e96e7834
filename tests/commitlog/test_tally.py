"""Counts by group, against a dictionary of messages."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from tests.builds import World
from tests.commitlog.logs import MemoryLog

HOUR_MS = 3_600_000


def records(world: World, count: int, queues: int) -> tuple[bytes, Any, list[Any]]:
    """Return a log of several topics and times, the positions of its records, and its messages."""
    chosen = random.Random(7)
    log = MemoryLog(world, 1 << 22, clock=lambda: chosen.randrange(9 * HOUR_MS))
    for number in range(count):
        topic = chosen.choice(["A", "B", "long" * 40])  # a long topic gives a record of version 2
        host = "[::1]:7" if number % 3 == 1 else None
        log.appender.append(
            world.commitlog.Message(topic, bytes(chosen.randrange(300)), queue_id=chosen.randrange(queues), born_host=host)
        )
    data, positions = bytes(log.files[0]), array("q", bytes(8 * count))
    found = world.module("commitlog._scan_cy").scan(data, 0, log.appender.position, 0, 7, positions)
    assert found[1:3] == ("end", count)
    reader = world.module("commitlog._scan_cy").Reader(data)
    return data, positions, [reader.decode(at) for at in positions]


def rows_of(messages: list[Any], group_of: Any) -> set[tuple[Any, ...]]:
    groups: dict[Any, list[Any]] = {}
    for message in messages:
        groups.setdefault(group_of(message), []).append(message)
    return {
        (
            *group, len(held), sum(one.size for one in held), min(one.store_timestamp_ms for one in held),
            max(one.store_timestamp_ms for one in held),
        )
        for group, held in groups.items()
    }  # fmt: skip


@pytest.mark.parametrize("queues", [1, 4, 3000])
def test_groups_are_those_of_the_messages(world: World, queues: int) -> None:
    """Also if the groups are more than the kernel keeps at hand, and if the records come in parts."""
    data, positions, messages = records(world, 3000, queues)
    tally = world.module("commitlog._tally_cy").Tally()
    for start in range(0, len(positions), 700):
        tally.add(data, positions[start : start + 700])
    assert set(tally.rows()) == rows_of(messages, lambda one: (one.topic.encode(), one.queue_id))


@pytest.mark.parametrize("period_ms", [1, 1000, HOUR_MS])
def test_periods_with_and_without_a_topic(world: World, period_ms: int) -> None:
    """A period is numbered from 1970."""
    data, positions, messages = records(world, 1000, 4)
    kind = world.module("commitlog._tally_cy").Tally
    tally, alone = kind(period_ms), kind(period_ms, with_topic=False)
    tally.add(data, positions)
    alone.add(data, positions)
    assert set(tally.rows()) == rows_of(messages, lambda one: (one.topic.encode(), one.store_timestamp_ms // period_ms))
    assert set(alone.rows()) == rows_of(messages, lambda one: (b"", one.store_timestamp_ms // period_ms))


def test_a_time_before_1970_is_rounded_down(world: World) -> None:
    """C would round it towards zero; a record's time may be any number."""
    layout = world.module("commitlog.layout")
    log = MemoryLog(world)
    log.appender.append(world.commitlog.Message("T", b"b", queue_id=0))
    tally = world.module("commitlog._tally_cy").Tally(HOUR_MS)
    at = layout.BORN_HOST_AT + layout.HOST_SIZE
    log.files[0][at : at + 8] = (-1).to_bytes(8, "big", signed=True)
    tally.add(bytes(log.files[0]), array("q", [0]))
    assert [row[1:3] for row in tally.rows()] == [(-1, 1)]


def test_nothing_is_counted_without_records(world: World) -> None:
    """An empty log has no groups; positions of another width are refused."""
    tally = world.module("commitlog._tally_cy").Tally()
    tally.add(b"", array("q"))
    assert list(tally.rows()) == []
    with pytest.raises(ValueError, match="64-bit"):
        tally.add(b"", array("i", [0]))
