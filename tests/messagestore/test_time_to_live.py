"""Messages with a `ttl`: no consumer gets them later, and the dead letters of its group have them."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storageio import InvalidMessage, OutOfRange, PutRejected
from tests.amounts import amount
from tests.messagestore.kit import START_MS, Clock, crash_copy, open_idle, open_small, read_all
from tests.messagestore.test_delays import deliver

TTL, EXPIRED, DEAD = "BROKERSTORE_TTL_MS", "BROKERSTORE_EXPIRED_MS", "%DLQ%g"
SECOND = timedelta(seconds=1)


def bodies(messages: Any) -> list[bytes]:
    return [message.body for message in messages]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.both_builds
def test_an_expired_message_goes_to_the_dead_letters_of_the_group(world: Any, tmp_path: Path, clock: Clock) -> None:
    """To the millisecond; the next message is delivered, nothing stays pending, and each group has its own."""
    with open_idle(world, tmp_path / "s", clock) as store:
        store.put("T", b"short", keys="k", queue_id=0, ttl=SECOND)
        store.put("T", b"long", queue_id=0, ttl=timedelta(milliseconds=1001))
        clock.now_ms += 1000
        with store.consumer("T", group="g") as consumer:
            assert bodies(consumer.poll()) == [b"long"]
            consumer.commit()
            assert consumer.lag() == 0
        (dead,) = read_all(store, DEAD)
        assert (dead.body, dead.keys, dead.reconsume_times) == (b"short", ["k"], 0)
        assert (dead.properties["RETRY_TOPIC"], dead.properties[EXPIRED]) == ("T", str(START_MS + 1000))
        assert TTL not in dead.properties
        clock.now_ms += 1
        with store.consumer("T", group="other") as consumer:
            assert consumer.poll() == [] and consumer.lag() == 0
        assert bodies(read_all(store, "%DLQ%other")) == [b"short", b"long"]
        assert bodies(store.read("T", 0)) == [b"short", b"long"]  # reads are no deliveries


def test_a_fetched_message_expires_before_it_is_handed_out(world: Any, tmp_path: Path, clock: Clock) -> None:
    """What a program has in hand stays its own, and what was only fetched does not come any more."""
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="g") as consumer:
        for number in range(3):
            store.put("T", b"%d" % number, queue_id=0, ttl=SECOND)
        (first,) = consumer.poll(1)
        clock.now_ms += 1000
        assert consumer.poll() == []
        assert consumer.ack(first)
        assert bodies(read_all(store, DEAD)) == [b"1", b"2"]


def test_random_messages_agree_with_a_plain_model_over_kills(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Each message is delivered before its time is over, or is a dead letter; a kill may repeat either, never lose it."""
    chance = random.Random(3)
    folder, copies = tmp_path / "0", 0
    store = open_idle(world, folder, clock)
    consumer = store.consumer("T", group="g")
    ends: dict[bytes, int] = {}
    delivered: set[bytes] = set()
    for number in range(amount(300, 3000)):
        action = chance.random()
        if action < 0.5:
            body = b"%d" % number
            ttl = chance.choice([None, 100, 1000, 30_000])
            store.put("T", body, ttl=ttl and timedelta(milliseconds=ttl))
            ends[body] = clock.now_ms + ttl if ttl else 1 << 62
        elif action < 0.8:
            for message in consumer.poll(chance.randrange(1, 6)):
                assert clock.now_ms < ends[message.body]
                if chance.random() < 0.9:
                    consumer.ack(message)
                    delivered.add(message.body)
        elif action < 0.95:
            clock.now_ms += chance.choice([1, 99, 500, 3000])
        else:
            copies += 1
            copy = crash_copy(folder, tmp_path / str(copies))
            consumer.close()
            store.close()
            folder = copy
            store = open_idle(world, folder, clock)
            consumer = store.consumer("T", group="g")
    consumer.close()
    with store.consumer("T", group="g") as last:
        rest = set(bodies(iter(lambda: next(iter(last.poll(1)), None), None)))
    dead = set(bodies(read_all(store, DEAD)))
    assert delivered | rest | dead == ends.keys()
    assert not dead & {body for body, end_ms in ends.items() if end_ms > clock.now_ms}
    assert not rest & {body for body, end_ms in ends.items() if end_ms <= clock.now_ms}
    assert dead and copies
    store.close()


def test_the_time_counts_from_the_put_of_a_delayed_message(world: Any, tmp_path: Path, clock: Clock) -> None:
    """One that is delivered later than its time never reaches a consumer, by level and as a timer."""
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="g") as consumer:
        store.put("T", b"late", delay_level=2, ttl=SECOND)
        store.put("T", b"in time", delay_level=2, ttl=timedelta(seconds=9))
        clock.now_ms += 5000
        deliver(store)
        assert bodies(consumer.poll()) == [b"in time"]
        assert bodies(read_all(store, DEAD)) == [b"late"]


def test_a_retry_expires_too(world: Any, tmp_path: Path, clock: Clock) -> None:
    """A message that waits for its next try when its time is over goes to the dead letters once it would be tried."""
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="g") as consumer:
        store.put("T", b"1", ttl=SECOND)
        consumer.nack(consumer.poll()[0], delay_level=1)
        clock.now_ms += 1000
        deliver(store)
        assert consumer.poll() == []
        (dead,) = read_all(store, DEAD)
        assert (dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (1, "T")
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="g") as consumer:
        assert consumer.poll() == [] and len(read_all(store, DEAD)) == 1


def test_dead_letters_do_not_expire(world: Any, tmp_path: Path, clock: Clock) -> None:
    """A message that was given up within its time has none left; nor has one that another program put there with a time."""
    with open_idle(world, tmp_path / "s", clock) as store:
        store.put("T", b"1", ttl=SECOND)
        with store.consumer("T", group="g") as consumer:
            consumer.nack(consumer.poll()[0], delay_level=-1)
        store.put(DEAD, b"2", ttl=SECOND)
        clock.now_ms += 5000
        with store.consumer(DEAD, group="undertaker") as consumer:
            assert bodies(consumer.poll()) == [b"1", b"2"]
        assert "%DLQ%undertaker" not in store.topics()


def test_a_consumer_beside_the_writer_leaves_expired_messages_out(world: Any, tmp_path: Path, clock: Clock) -> None:
    """It cannot move them; the group's consumer of the writer does."""
    with open_idle(world, tmp_path / "s", clock) as store:
        store.put("T", b"short", queue_id=0, ttl=SECOND)
        store.put("T", b"long", queue_id=0)
        store.engine.settle()
        clock.now_ms += 1000
        with open_small(world, tmp_path / "s", "r", clock=clock) as reader, reader.consumer("T", group="g") as consumer:
            assert bodies(consumer.poll()) == [b"long"]
        assert DEAD not in store.topics()


def test_a_failed_dead_letter_is_tried_again(
    world: Any, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The other messages of the poll are delivered meanwhile, and the expired one stays unacknowledged."""
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="g") as consumer:
        store.put("T", b"short", queue_id=0, ttl=SECOND)
        store.put("T", b"long", queue_id=0)
        clock.now_ms += 1000
        flag = world.module("messagestore.write.running_flags").Flag.NOT_WRITEABLE
        store.engine.flags.set(flag, "test")
        assert bodies(consumer.poll()) == [b"long"]
        assert "an expired message stays for now" in caplog.text
        assert consumer.lag() == 2
        store.engine.flags.clear(flag)
        assert consumer.poll() == []
        assert consumer.lag() == 1 and bodies(read_all(store, DEAD)) == [b"short"]


def test_a_commit_loses_no_expired_message(world: Any, tmp_path: Path, clock: Clock) -> None:
    """What the dispatcher's thread found expired is a dead letter before everything counts as acknowledged."""
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="g") as consumer:
        store.put("T", b"short", ttl=SECOND)
        clock.now_ms += 1000
        store.engine.settle()
        assert consumer.take(32, waits=False)[0] == []
        assert DEAD not in store.topics()  # that thread waits for no put
        consumer.commit()
        assert bodies(read_all(store, DEAD)) == [b"short"]


def test_text_that_is_no_number_never_expires(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Nor does a record of many messages, which no group can send back; a topic with batch queues refuses a ttl."""
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="g") as consumer:
        store.put("T", b"1", properties={TTL: "soon"})
        clock.now_ms += 1 << 40
        assert bodies(consumer.poll()) == [b"1"]
        store.create_topic("B", 1, attributes={"queue.type": "BatchCQ"})
        with pytest.raises(PutRejected, match="whose messages have no ttl"):
            store.put("B", b"1", ttl=SECOND)


@pytest.mark.both_builds
@pytest.mark.parametrize(
    ("given", "error"), [(5, TypeError), ("1s", TypeError), (timedelta(), OutOfRange), (-SECOND, OutOfRange)]
)  # fmt: skip
def test_other_values_are_refused(world: Any, tmp_path: Path, given: Any, error: type[Exception]) -> None:
    """A number has no unit, and a time that is over makes no sense."""
    with open_idle(world, tmp_path / "s") as store:
        with pytest.raises(error):
            store.put("T", b"1", ttl=given)
        with pytest.raises(InvalidMessage):
            store.put("T", b"1", ttl=SECOND, properties={TTL: "5"})
        store.put("T", b"1", ttl=timedelta(microseconds=1))
        assert next(message for queue in store.queue_ids("T") for message in store.read("T", queue)).properties[TTL] == "1"


@pytest.mark.both_builds
def test_all_three_at_once(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Priority, id and time are kept while a message waits, and are given by messages and by puts alike."""
    with open_idle(world, tmp_path / "s", clock) as store:
        store.create_topic("T", 3, attributes={"message.type": "PRIORITY"})
        fields = {"priority": 2, "dedup_id": "a", "ttl": timedelta(seconds=30), "delay_level": 1}
        assert store.put(world.commitlog.Message("T", b"1", **fields)).message_count == 1
        assert store.put("T", b"1", **fields).is_duplicate
        clock.now_ms += 1000
        deliver(store)
        with store.consumer("T", group="g") as consumer:
            assert [(message.body, message.queue_id) for message in consumer.poll()] == [(b"1", 2)]
        clock.now_ms += 29_000
        with store.consumer("T", group="other") as consumer:
            assert consumer.poll() == []
