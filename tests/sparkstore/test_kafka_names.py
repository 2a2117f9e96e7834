"""Options with the names of Spark's Kafka source, against a plain model over all rows.  Needs no Java."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from sparkstore.errors import BadOption
from sparkstore.options import TASKS_MAX
from storageio import StoreError

from .local import BrokerStoreSource, batches, dumped, rows
from .stores import SMALL

Row = dict[str, Any]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store of three topics with several queues, in whose first queue a group has read."""
    path = tmp_path_factory.mktemp("kafka") / "store"
    chance = random.Random(4)
    clock = itertools.count(1_750_000_000_000)  # the same millisecond would have no middle
    with MessageStore.open(path, config=SMALL, clock=lambda: next(clock)) as made:
        for topic, queues in (("orders", 3), ("orders-eu", 2), ("mails", 1)):
            made.create_topic(topic, queues)
        for number in range(600):
            topic = chance.choice(("orders", "orders-eu", "mails"))
            made.put(Message(topic, b"%d" % number))
        made.engine.consumer_offsets().commit("orders", "readers", 0, 20)
    return path


def numbers(found: list[Row]) -> list[int]:
    return sorted(row["physical_offset"] for row in found)


def assert_selects(store: Path, is_selected: Callable[[Row], bool], **options: Any) -> None:
    expected = [row for row in dumped(store) if is_selected(row)]
    assert expected
    assert numbers(rows(store, **options)) == numbers(expected)


def middle_ms(store: Path) -> int:
    found = dumped(store)
    return int(found[len(found) // 2]["store_timestamp_ms"])


def test_subscribe_and_a_pattern_select_topics(store: Path) -> None:
    """The pattern matches the whole name, as in Kafka's source."""
    assert_selects(store, lambda row: row["topic"] == "orders", subscribe="orders")
    assert_selects(store, lambda row: row["topic"] in ("orders", "mails"), subscribe="orders,mails")
    assert_selects(store, lambda row: bool(re.fullmatch("orders.*", row["topic"])), subscribePattern="orders.*")
    assert_selects(store, lambda row: row["topic"] == "orders", subscribePattern="orders")


def test_assigned_queues_are_read_and_no_others(store: Path) -> None:
    """Each topic has its own list."""
    assigned = {"orders": [0, 2], "orders-eu": [1]}
    assert_selects(store, lambda row: row["queue_id"] in assigned.get(row["topic"], ()), assign=json.dumps(assigned))
    starts = {"orders": {"0": 5}}
    assert_selects(
        store, lambda row: row["topic"] == "orders" and row["queue_id"] == 0 and row["queue_offset"] >= 5,
        assign='{"orders": [0]}', startingOffsets=json.dumps(starts),
    )  # fmt: skip


def test_a_group_starts_where_it_has_committed(store: Path) -> None:
    """Queues without its offset begin with their first message."""
    assert_selects(
        store,
        lambda row: (row["topic"], row["queue_id"]) != ("orders", 0) or row["queue_offset"] >= 20,
        startingGroup="readers",
    )
    with pytest.raises(BadOption, match="'nobody' has committed no offset"):
        list(batches(store, startingGroup="nobody"))


def test_times_are_milliseconds_or_iso_texts(store: Path) -> None:
    """With a zone; the queues that `startingOffsetsByTimestamp` does not name begin with their first message."""
    at_ms = middle_ms(store)
    text = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    assert_selects(store, lambda row: row["store_timestamp_ms"] >= at_ms, startingTimestamp=text)
    assert_selects(store, lambda row: row["store_timestamp_ms"] < at_ms, endingTimestamp=text)
    by_time = json.dumps({"orders": {"1": at_ms}})
    assert_selects(
        store, lambda row: (row["topic"], row["queue_id"]) != ("orders", 1) or row["store_timestamp_ms"] >= at_ms,
        startingOffsetsByTimestamp=by_time,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"topic": "nosuch"}, "no topic 'nosuch'"), ({"subscribe": "orders,nosuch"}, "no topic 'nosuch'"),
        ({"assign": '{"orders": [7]}'}, "no queue 7"), ({"startingOffsets": '{"mails": {"3": 1}}'}, "no queue 3"),
        ({"startingOffsetsByTimestamp": '{"nosuch": {"0": 1}}'}, "no topic 'nosuch'"),
        ({"topic": "orders", "subscribePattern": "x"}, "give one of them"),
        ({"topic": "orders", "subscribe": "mails"}, "two names of one option"),
        ({"kafka.bootstrap.servers": "localhost:9092"}, "load"), ({"kafka.fetch.max.bytes": "1"}, "load"),
        ({"includeHeaders": "true"}, "properties"), ({"minPartitions": "3"}, "splitBytes"),
    ],
)  # fmt: skip
def test_what_would_read_nothing_or_mean_nothing_is_refused(store: Path, options: dict[str, str], named: str) -> None:
    """With the name of the topic, the queue, or the option to use instead."""
    with pytest.raises(BadOption, match=named):
        list(batches(store, **options))


def test_too_many_tasks_are_refused_with_a_size_that_works(store: Path) -> None:
    """One byte a task would take Spark minutes to plan."""
    with pytest.raises(BadOption, match="use at least") as caught:
        list(batches(store, splitBytes=1))
    least = int(str(caught.value).rpartition(" ")[2])
    assert numbers(rows(store, splitBytes=least)) == numbers(dumped(store))
    assert least * TASKS_MAX >= sum(file.stat().st_size for file in (store / "commitlog").iterdir()) // 2


def test_a_relative_path_is_made_absolute_by_the_driver(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An executor has another working directory."""
    monkeypatch.chdir(store.parent)
    for path in (store.name, "./sto*"):
        source = BrokerStoreSource({"path": path})
        reader = source.reader(source.schema())
        partitions = reader.partitions()
        monkeypatch.chdir(tmp_path)
        found = [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]
        assert numbers(found) == numbers(dumped(store))
        monkeypatch.chdir(store.parent)


def stream(store: Path, **options: str) -> Any:
    source = BrokerStoreSource({"path": os.fspath(store), **options})
    return source.streamReader(source.schema())


def read_all(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_stream_takes_the_same_starts(store: Path) -> None:
    """A group, assigned queues and times of single queues; a resumed query keeps them from its checkpoint."""
    at_ms = middle_ms(store)
    cases: list[tuple[dict[str, str], Callable[[Row], bool]]] = [
        (
            {"startingGroup": "readers"},
            lambda row: (row["topic"], row["queue_id"]) != ("orders", 0) or row["queue_offset"] >= 20,
        ),
        ({"assign": '{"orders": [1]}'}, lambda row: (row["topic"], row["queue_id"]) == ("orders", 1)),
        ({"subscribePattern": "or.*"}, lambda row: row["topic"].startswith("or")),
        (
            {"startingOffsetsByTimestamp": json.dumps({"mails": {"0": at_ms}})},
            lambda row: row["topic"] != "mails" or row["store_timestamp_ms"] >= at_ms,
        ),
    ]
    for options, is_selected in cases:
        reader = stream(store, **options)
        start = json.loads(json.dumps(reader.initialOffset()))
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert numbers(read_all(reader, start, end)) == numbers([row for row in dumped(store) if is_selected(row)])
        kept = {name: value for name, value in options.items() if not name.startswith("starting")}
        again = stream(store, **kept)
        assert numbers(read_all(again, start, end)) == numbers([row for row in dumped(store) if is_selected(row)])


def test_a_stream_waits_for_the_least_number_of_records(tmp_path: Path) -> None:
    """Until the delay is over; `availableNow` takes what there is."""
    with MessageStore.open(tmp_path / "s", config=SMALL) as made:
        for number in range(5):
            made.put(Message("t", b"%d" % number))
    reader = stream(tmp_path / "s", minOffsetsPerTrigger="6", maxTriggerDelay="1h")
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    with MessageStore.open(tmp_path / "s", config=SMALL) as made:
        made.put(Message("t", b"5"))
    assert len(read_all(reader, start, reader.latestOffset(start, reader.getDefaultReadLimit()))) == 6
    hasty = stream(tmp_path / "s", minOffsetsPerTrigger="7", maxTriggerDelay="0ms")
    assert len(read_all(hasty, start, hasty.latestOffset(start, hasty.getDefaultReadLimit()))) == 6
    now = stream(tmp_path / "s", minOffsetsPerTrigger="7", maxTriggerDelay="1h")
    now.prepareForTriggerAvailableNow()
    assert len(read_all(now, start, now.latestOffset(start, now.getDefaultReadLimit()))) == 6


@pytest.mark.parametrize(
    ("name", "text"), [("minOffsetsPerTrigger", "0"), ("maxTriggerDelay", "5"), ("maxOffsetsPerTrigger", "x")]
)
def test_a_wrong_trigger_option_is_refused(store: Path, name: str, text: str) -> None:
    """By name, at the first call: Spark hides errors of a constructor."""
    reader = stream(store, **{name: text})
    with pytest.raises(StoreError, match="option m"):
        reader.initialOffset()
