"""Dispatching unusual ranges of the log into units and keys."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from storebytes.java_hash import java_hash_code
from tests.messagestore.kit import START_MS, Clock, hold_dispatch, message, number_of, open_small, put_numbers, read_all

pytestmark = pytest.mark.both_builds

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def units_of(store: Any, topic: str, queue_id: int = 0) -> list[tuple[int, int, int]]:
    """Return the units of a queue."""
    return [tuple(unit) for _, unit in store.engine.queues.get(topic, queue_id).units()]


def test_range_with_records_of_hundreds_of_queues_is_dispatched(world: Any, tmp_path: Path) -> None:
    """Short and long names, more than the first table holds: each unit is in its own record's queue."""
    topics = [f"{number}-" + "x" * (number % 110) for number in range(150)]
    with open_small(world, tmp_path) as store:
        resume = hold_dispatch(store)
        for number in range(900):
            store.put(message(world, number, topic=topics[number % 150], queue_id=number % 2))
        resume()
        store.engine.settle()
        for position, topic in enumerate(topics):
            found = {number_of(stored) for queue in (0, 1) for stored in store.read(topic, queue)}
            assert found == set(range(position, 900, 150))


def test_gaps_and_repeats_of_queue_offsets_in_a_range_are_dispatched(world: Any, tmp_path: Path) -> None:
    """After a gap units go to the current end, and a number that exists already is skipped.

    Another queue of the same range has all of its units.
    """
    with open_small(world, tmp_path) as store:
        put_numbers(world, store, range(1))
        store.engine.settle()
        resume = hold_dispatch(store)
        offsets = []
        for number, position in enumerate((1, 2, 7, 8, 3, 20)):
            store.engine.offsets.set_next_offset("T", 0, position)
            offsets.append(store.put(message(world, number)).physical_offset)
            put_numbers(world, store, range(number, number + 1), topic="other")
        resume()
        store.engine.settle()
        assert [unit[0] for unit in units_of(store, "T")][1:] == [offsets[row] for row in (0, 1, 2, 3, 5)]
        assert [number_of(stored) for stored in read_all(store, "other")] == list(range(6))


def test_range_with_more_records_than_a_kernel_batch_is_dispatched(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The units are returned in several parts, none twice, and none is missing."""
    kernel = world.module("messagestore.derive._dispatch_cy")
    count = (1 << 15) + 100
    if world.build == "plain":
        count = 250
        monkeypatch.setattr(kernel, "UNITS_MAX", 100)
    with open_small(world, tmp_path, mapped_file_size_commit_log=8 << 20, mapped_file_size_consume_queue=6_000_000) as store:
        resume = hold_dispatch(store)
        store.put_many([world.commitlog.Message("T", b"x", queue_id=0) for _ in range(count)])
        resume()
        store.engine.settle()
        positions = [unit[0] for unit in units_of(store, "T")]
        assert positions == sorted(set(positions)) and len(positions) == count


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 11), (11, 11)])
def test_range_outside_its_buffer_is_rejected(world: Any, start: int, stop: int) -> None:
    """Nothing outside the buffer is read."""
    with pytest.raises(ValueError, match="not inside the buffer"):
        world.module("messagestore.derive._dispatch_cy").Dispatcher([]).dispatch(
            bytes(10), start, stop, 0, 4, None, 0, lambda _: False
        )


@pytest.mark.parametrize(
    ("levels", "text", "wait_ms"),
    [
        ("1s 5s 10s", "3", 10_000), ("1s 5s 10s", "+3", 10_000), ("1s 5s 10s", "99", 10_000), ("", "3", 1000),
        ("1s 5s 10s", "2147483647", 10_000),
        ("1s 5s 10s", "0", None), ("1s 5s 10s", "-1", None), ("1s 5s 10s", "+0", None),
    ],
)  # fmt: skip
def test_unit_of_a_delayed_message_has_its_due_time(
    world: Any, tmp_path: Path, levels: str, text: str, wait_ms: int | None
) -> None:
    """The unit has the due time; a level beyond the last has the last one's delay, and without levels it is a second.

    Without a level it has the hash of the tags.
    """
    with open_small(world, tmp_path, clock=Clock(), message_delay_level=levels, deliver_delayed=False) as store:
        waiting = world.commitlog.Message(SCHEDULE, b"x", queue_id=2, tags="paid", properties={"DELAY": text})
        assert store.engine.log.appender.append(waiting, 2).status.name == "PUT_OK"
        store.engine.settle()
        ((_, _, code),) = units_of(store, SCHEDULE, 2)
        assert code == (java_hash_code("paid") if wait_ms is None else START_MS + wait_ms)


def test_a_level_of_more_than_32_bits_is_none(world: Any, tmp_path: Path) -> None:
    """No put writes one, but a record on the disk may have it; its unit has the hash of the tags."""
    settings = {"deliver_delayed": False, "enabled_append_prop_crc": False, "message_delay_level": "1s 5s"}
    with open_small(world, tmp_path, **settings) as store:
        waiting = world.commitlog.Message(SCHEDULE, b"x", queue_id=1, tags="paid", properties={"DELAY": "1147483648"})
        assert store.engine.log.appender.append(waiting, 1).status.name == "PUT_OK"
    path = min((tmp_path / "commitlog").iterdir())
    path.write_bytes(path.read_bytes().replace(b"1147483648", b"9147483648"))
    (tmp_path / "abort").write_bytes(b"1")
    shutil.rmtree(tmp_path / "consumequeue")
    with open_small(world, tmp_path, **settings) as store:
        ((_, _, code),) = units_of(store, SCHEDULE, 1)
        assert code == java_hash_code("paid")


def test_properties_without_a_name_or_a_value_are_none(world: Any, tmp_path: Path) -> None:
    """They are skipped, and those after them count; several spaces between keys make no key."""
    changes = {"enabled_append_prop_crc": False}
    with open_small(world, tmp_path, **changes) as store:
        store.put(world.commitlog.Message("T", b"0", queue_id=0, keys=["abc"], tags="paid", properties={"UNIQ_KEY": "uuuuu"}))
        store.put(world.commitlog.Message("T", b"1", queue_id=0, tags="paid", properties={"KEYS": "a  b "}))
        path = min((tmp_path / "commitlog").iterdir())
    data = path.read_bytes()
    for whole, differing in ((b"KEYS\x01abc\x02", b"KEYSabc\x01\x02"), (b"UNIQ_KEY\x01uuuuu\x02", b"\x01NIQ_KEY_uuuuu\x02")):
        assert data.count(whole) == 1 and len(whole) == len(differing)
        data = data.replace(whole, differing)
    path.write_bytes(data)
    (tmp_path / "abort").write_bytes(b"1")
    for derived in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / derived)
    with open_small(world, tmp_path, **changes) as store:
        assert [stored.body for stored in store.get("T", 0, 0, tags={"paid"}).messages] == [b"0", b"1"]
        assert [len(store.query("T", key)) for key in ("abc", "uuuuu", "a", "b", "")] == [0, 0, 1, 1, 0]
        assert sum(file.header.next_item - 1 for file in store.engine.index.files) == 2
