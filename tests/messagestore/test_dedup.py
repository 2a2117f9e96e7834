"""Puts with a `dedup_id`: within the window of its topic a second put writes nothing and returns the first one's result."""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storageio import InvalidMessage, PutRejected
from tests.amounts import amount
from tests.messagestore.kit import Clock, crash_copy, open_idle, sync_mode
from tests.messagestore.test_delays import deliver

WINDOW_MS = 300_000
ID = "BROKERSTORE_DEDUP_ID"


def bodies(store: Any, topic: str = "T") -> list[bytes]:
    """Return the bodies of a topic, in the order of the log."""
    store.engine.settle()
    found = [message for queue_id in store.queue_ids(topic) for message in store.read(topic, queue_id)]
    return [message.body for message in sorted(found, key=lambda message: message.physical_offset)]


def location(result: Any) -> tuple[int, ...]:
    return result.queue_id, result.queue_offset, result.physical_offset, result.size_bytes, result.store_timestamp_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.both_builds
def test_a_second_put_returns_the_first_result_and_writes_nothing(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Whatever its other fields are; another topic has ids of its own, and a message without an id is put each time."""
    with open_idle(world, tmp_path / "s", clock) as store:
        first = store.put("T", b"1", keys="k", dedup_id="order-17")
        end = store.log_end
        again = store.put("T", b"other", queue_id=3, dedup_id="order-17")
        assert (first.is_duplicate, again.is_duplicate, again.message_count) == (False, True, 0)
        assert (location(again), again.message_id, store.log_end) == (location(first), first.message_id, end)
        assert store.put_async(world.commitlog.Message("T", b"2", dedup_id="order-17")).result().is_duplicate
        assert not store.put("U", b"1", dedup_id="order-17").is_duplicate
        assert not store.put("T", b"1").is_duplicate and not store.put("T", b"1").is_duplicate
        assert store.query("T", "k")[0].properties[ID] == "order-17"


def test_the_window_ends_to_the_millisecond(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Then the message is stored, and a new window begins; a duplicate does not extend it."""
    with open_idle(world, tmp_path / "s", clock, dedup_window_ms=1000) as store:
        store.put("T", b"1", dedup_id="a")
        clock.now_ms += 999
        assert store.put("T", b"2", dedup_id="a").is_duplicate
        clock.now_ms += 1
        assert not store.put("T", b"3", dedup_id="a").is_duplicate
        clock.now_ms += 999
        assert store.put("T", b"4", dedup_id="a").is_duplicate
    with open_idle(world, tmp_path / "s", clock, dedup_window_ms=1000) as store:
        assert store.put("T", b"5", dedup_id="a").is_duplicate
        clock.now_ms += 1
        assert not store.put("T", b"6", dedup_id="a").is_duplicate
        assert bodies(store) == [b"1", b"3", b"6"]


@pytest.mark.parametrize("is_sync", [False, True])
def test_random_puts_agree_with_a_plain_model_over_restarts_and_kills(world: Any, tmp_path: Path, is_sync: bool) -> None:
    """The model is a dict from topic and id to time and result; a kill leaves a copy of the files, which is opened instead."""
    chance, clock = random.Random(7), Clock()
    mode = {"flush_disk_type": sync_mode(world)} if is_sync else {}
    folder, copies = tmp_path / "0", 0
    store = open_idle(world, folder, clock, **mode)
    model: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = {}
    expected: dict[str, list[bytes]] = {"T": [], "U": []}
    make = world.commitlog.Message
    for number in range(amount(250, 3000)):
        topic, name, body = chance.choice("TU"), f"id {chance.randrange(40)}", b"%d" % number
        action = chance.random()
        if action < 0.7:
            result = store.put(topic, body, dedup_id=name)
            put_at, where = model.get((topic, name), (-WINDOW_MS, ()))
            assert result.is_duplicate == (clock.now_ms - put_at < WINDOW_MS)
            if result.is_duplicate:
                assert location(result) == where
            else:
                model[topic, name] = clock.now_ms, location(result)
                expected[topic].append(body)
        elif action < 0.8:
            names = [f"id {chance.randrange(40)}" for _ in range(5)]
            fresh = 0
            for one in names:
                if clock.now_ms - model.get((topic, one), (-WINDOW_MS, ()))[0] >= WINDOW_MS:
                    model[topic, one] = clock.now_ms, ()
                    expected[topic].append(one.encode())
                    fresh += 1
            assert store.put_many([make(topic, one.encode(), dedup_id=one) for one in names]).message_count == fresh
            for one in names:  # where each is
                model[topic, one] = model[topic, one][0], location(store.put(topic, b"", dedup_id=one))
        elif action < 0.85:
            store.put(topic, body)
            expected[topic].append(body)
        elif action < 0.93:
            clock.now_ms += chance.choice([1, 1000, 100_000, 299_000])
        elif action < 0.96:
            store.close()
            store = open_idle(world, folder, clock, **mode)
        else:
            copies += 1
            copy = crash_copy(folder, tmp_path / str(copies))
            store.close()
            folder = copy
            store = open_idle(world, folder, clock, **mode)
    for topic, stored in expected.items():
        assert bodies(store, topic) == stored
    assert copies
    store.close()


def test_many_duplicates_count_as_not_written(world: Any, tmp_path: Path, clock: Clock) -> None:
    """The count of `put_many` is that of the messages that were written; the offsets are those of the first one's message."""
    make = world.commitlog.Message
    with open_idle(world, tmp_path / "s", clock) as store:
        first = store.put("T", b"1", dedup_id="a")
        result = store.put_many([make("T", b"2", dedup_id="a"), make("T", b"3", dedup_id="b"), make("T", b"4", dedup_id="b")])
        assert (result.message_count, location(result)[:3]) == (1, location(first)[:3])
        assert store.put_many([make("T", b"5", dedup_id="b")]).is_duplicate
        assert bodies(store) == [b"1", b"3"]


def test_two_threads_put_an_id_once(world: Any, tmp_path: Path) -> None:
    """All threads get the location of the one message."""
    with open_idle(world, tmp_path / "s") as store:
        found: list[list[tuple[int, ...]]] = [[] for _ in range(4)]
        together = threading.Barrier(4)

        def put(number: int) -> None:
            together.wait()
            found[number] = [location(store.put("T", b"%d" % one, dedup_id=str(one))) for one in range(300)]

        threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found[0] == found[1] == found[2] == found[3]
        assert sorted(map(int, bodies(store))) == list(range(300))


def test_a_put_that_was_refused_leaves_its_id_free(world: Any, tmp_path: Path, clock: Clock) -> None:
    """The next put with the id is stored."""
    with open_idle(world, tmp_path / "s", clock) as store:
        with pytest.raises(PutRejected):
            store.put("T", bytes(5 << 20), dedup_id="a")
        assert not store.put("T", b"1", dedup_id="a").is_duplicate


@pytest.mark.parametrize("delay", [timedelta(seconds=1), timedelta(minutes=7)])
def test_a_delayed_message_counts_from_its_put(world: Any, tmp_path: Path, clock: Clock, delay: timedelta) -> None:
    """It has an id while it waits, also over a restart; its delivery neither fails nor begins a window."""
    with open_idle(world, tmp_path / "s", clock) as store:
        first = store.put("T", b"late", dedup_id="a", delay=delay)
        assert location(store.put("T", b"2", dedup_id="a")) == location(first)
    with open_idle(world, tmp_path / "s", clock) as store:
        assert location(store.put("T", b"3", dedup_id="a")) == location(first)
        clock.now_ms += delay // timedelta(milliseconds=1) + 1000
        if delay < timedelta(minutes=5):
            deliver(store)
            assert bodies(store) == [b"late"]
            clock.now_ms += WINDOW_MS
    with open_idle(world, tmp_path / "s", clock) as store:
        assert not store.put("T", b"4", dedup_id="a").is_duplicate


def test_a_delivered_message_is_no_put(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Five minutes after the put of a message that waited for four, another put is stored, also by a store opened anew."""
    with open_idle(world, tmp_path / "s", clock) as store:
        store.put("T", b"late", dedup_id="a", delay_level=8)
        clock.now_ms += 240_000
        deliver(store)
        assert bodies(store) == [b"late"]
        clock.now_ms += 59_999
    with open_idle(world, tmp_path / "s", clock) as store:
        assert store.put("T", b"1", dedup_id="a").is_duplicate
        clock.now_ms += 1
    with open_idle(world, tmp_path / "s", clock) as store:
        assert not store.put("T", b"2", dedup_id="a").is_duplicate


def test_a_deleted_topic_forgets_its_ids(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Also those of messages that wait, and after a restart."""
    with open_idle(world, tmp_path / "s", clock) as store:
        store.put("T", b"1", dedup_id="a")
        store.put("T", b"2", dedup_id="late", delay_level=5)
        store.put("T%", b"1", dedup_id="a")
        store.delete_topic("T")
        store.engine.deleted.entries.clear()  # as once the log begins behind the topic's records
        assert not store.put("T", b"3", dedup_id="a").is_duplicate
        assert store.put("T%", b"3", dedup_id="a").is_duplicate
    with open_idle(world, tmp_path / "s", clock) as store:
        assert store.put("T", b"4", dedup_id="a").is_duplicate
        assert not store.put("T", b"5", dedup_id="late").is_duplicate
        assert bodies(store) == [b"3", b"5"]


def test_retries_and_dead_letters_are_delivered_whatever_their_id(world: Any, tmp_path: Path, clock: Clock) -> None:
    """A dead letter has no id any more, so it can be put to its topic again within the window."""
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="g") as consumer:
        store.put("T", b"1", dedup_id="a")
        consumer.nack(consumer.poll()[0], delay_level=1)
        clock.now_ms += 1000
        deliver(store)
        (again,) = consumer.poll()
        consumer.nack(again, delay_level=-1)
        dead = next(store.read("%DLQ%g", 0))
        assert ID not in dead.properties
        message = dead.to_message()
        message.topic = "T"
        assert not store.put(message).is_duplicate
        retried = world.commitlog.Message("%RETRY%g", b"1", properties={ID: "a"})  # as a client sends a message back
        assert not store.put(retried).is_duplicate and not store.put(retried).is_duplicate


def test_ids_of_a_full_window_are_refused(world: Any, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has a bound; a put that could not be remembered is refused, and old ids make space."""
    monkeypatch.setattr(world.module("messagestore.broker.services.dedup"), "IDS_MAX", 3)
    with open_idle(world, tmp_path / "s", clock) as store:
        for name in "abc":
            store.put("T", b"1", dedup_id=name)
            clock.now_ms += 1000
        assert store.put("T", b"1", dedup_id="a").is_duplicate
        with pytest.raises(PutRejected, match="3 ids were put within dedup_window_ms=300000"):
            store.put("T", b"1", dedup_id="d")
        clock.now_ms += WINDOW_MS - 3000
        assert not store.put("T", b"1", dedup_id="d").is_duplicate


def test_what_is_stored_as_a_whole_takes_no_id(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Neither a batch nor a transaction, whose message is stored twice, nor columns."""
    make = world.commitlog.Message
    with open_idle(world, tmp_path / "s", clock) as store:
        for call in (
            lambda: store.put_batch("T", 0, [make("T", b"1", dedup_id="a")]),
            lambda: store.begin_transaction(make("T", b"1", dedup_id="a")),
        ):
            with pytest.raises(PutRejected, match="takes no dedup_id"):
                call()
        with pytest.raises(InvalidMessage):
            store.append_columns("T", 0, [b"1"], properties=f"{ID}\x01a\x02".encode())
        assert store.log_end == 0


@pytest.mark.both_builds
@pytest.mark.parametrize(
    ("given", "error"), [(5, TypeError), (b"a", TypeError), ("", InvalidMessage), ("a\x02b", InvalidMessage)]
)
def test_other_values_are_refused(world: Any, tmp_path: Path, clock: Clock, given: Any, error: type[Exception]) -> None:
    """An id is text that a property can hold, beyond ASCII too."""
    with open_idle(world, tmp_path / "s", clock) as store:
        with pytest.raises(error):
            store.put("T", b"1", dedup_id=given)
        with pytest.raises(TypeError):
            store.put(world.commitlog.Message("T", b"1"), dedup_id="a")
        store.put("T", b"1", dedup_id="日本 1")
        assert store.put("T", b"1", dedup_id="日本 1").is_duplicate


def test_a_lower_clock_keeps_the_window(world: Any, tmp_path: Path, clock: Clock) -> None:
    """A message of the future is within the window."""
    with open_idle(world, tmp_path / "s", clock) as store:
        store.put("T", b"1", dedup_id="a")
    clock.now_ms -= 1_000_000
    with open_idle(world, tmp_path / "s", clock) as store:
        assert store.put("T", b"2", dedup_id="a").is_duplicate


def test_batch_topics_have_ids(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Their queues are read as others are."""
    with open_idle(world, tmp_path / "s", clock) as store:
        store.create_topic("B", 2, attributes={"queue.type": "BatchCQ"})
        store.put("B", b"1", dedup_id="a", queue_id=1)
    with open_idle(world, tmp_path / "s", clock) as store:
        assert store.put("B", b"2", dedup_id="a").is_duplicate
