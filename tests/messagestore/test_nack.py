"""Consumers that fail: messages sent back, retried, and moved to the dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storageio import InvalidMessage
from tests.messagestore.kit import Clock, crash_copy, open_idle, open_small, put_numbers, read_all
from tests.messagestore.test_delays import LEVELS_S, deliver

SCHEDULE, RETRY, DEAD = "SCHEDULE_TOPIC_XXXX", "%RETRY%G", "%DLQ%G"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def next_try(store: Any, clock: Clock, level: int) -> None:
    """Deliver a message that waits in a level, and return it."""
    store.engine.settle()
    clock.now_ms += 1000 * LEVELS_S[level - 1]
    deliver(store)


def numbers(messages: Any) -> list[int]:
    return [int(message.body[:8]) for message in messages]


def test_a_message_sent_back_waits_as_a_real_broker_has_it(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Properties, retries, topic and level are those of fixture broker-ext; the first retry has level 3."""
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="G") as consumer:
        put_numbers(world, store, range(1), tags="paid", keys=["k"], born_timestamp_ms=7)
        (message,) = consumer.poll()
        result = consumer.nack(message)
        stored = store.message_at(result.physical_offset)
        assert (stored.topic, stored.queue_id, stored.reconsume_times) == (SCHEDULE, 2, 1)
        assert stored.properties == {
            "KEYS": "k", "TAGS": "paid", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": message.message_id, "WAIT": "false",
            "DELAY": "3", "REAL_TOPIC": RETRY, "REAL_QID": "0",
        }  # fmt: skip
        assert (stored.body, stored.born_timestamp_ms) == (message.body, 7)
        topic = store.engine.topics.get(RETRY)
        assert (topic.write_queues, topic.read_queues, topic.perm) == (1, 1, 6)


def test_nacked_message_is_redelivered_once_and_can_be_acknowledged(world: Any, tmp_path: Path, clock: Clock) -> None:
    """It comes once, with its retries counted; both offsets move, and nothing is left after a restart."""
    with open_idle(world, tmp_path / "s", clock) as store:
        put_numbers(world, store, range(3))
        with store.consumer("T", group="G") as consumer:
            first = consumer.poll()
            assert numbers(first) == [0, 1, 2]
            consumer.nack(first[1])
            consumer.ack(first[0])
            consumer.ack(first[2])
            assert consumer.poll() == []
            next_try(store, clock, 3)
            (again,) = consumer.poll()
            assert (again.topic, numbers([again]), again.reconsume_times) == (RETRY, [1], 1)
            assert again.all_properties["RETRY_TOPIC"] == "T"
            assert consumer.ack(again)
            assert not consumer.ack(again)
            assert consumer.poll() == []
        assert store.committed_offsets("T", "G") == {0: 3}
        assert store.committed_offsets(RETRY, "G") == {0: 1}
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="G") as consumer:
        assert consumer.poll() == []


def test_message_goes_to_the_dead_letter_queue_after_sixteen_retries(world: Any, tmp_path: Path, clock: Clock) -> None:
    """The delay grows by a level each time up to the last; then %DLQ%, DELAY=0, one more retry counted, nothing waits."""
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="G") as consumer:
        put_numbers(world, store, range(1))
        (message,) = consumer.poll()
        first_id = message.message_id
        for attempt in range(16):
            result = consumer.nack(message)
            level = min(3 + attempt, 18)
            waiting = store.message_at(result.physical_offset)
            assert (waiting.topic, waiting.queue_id, waiting.reconsume_times) == (SCHEDULE, level - 1, attempt + 1)
            next_try(store, clock, level)
            (message,) = consumer.poll()
            assert (message.topic, message.reconsume_times) == (RETRY, attempt + 1)
        result = consumer.nack(message)
        (dead,) = read_all(store, DEAD)
        assert dead.physical_offset == result.physical_offset
        assert (dead.queue_id, dead.reconsume_times) == (0, 17)
        expected = {"DELAY": "0", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": first_id, "WAIT": "false"}
        assert expected.items() <= dead.properties.items()
        assert store.engine.topics.get(DEAD).perm == 6
        next_try(store, clock, 18)
        assert consumer.poll() == []
        assert len(read_all(store, DEAD)) == 1


@pytest.mark.parametrize("is_ext", [False, True])
def test_retry_settings_of_the_group_apply(world: Any, tmp_path: Path, clock: Clock, is_ext: bool) -> None:
    """retryMaxTimes and retryQueueNums come from subscriptionGroup.json; the fixture's group has 1 and 2."""
    with open_idle(world, tmp_path / "s", clock, enable_consume_queue_ext=is_ext) as store:
        store.engine.retries.groups.create("G", retry_max_times=1, retry_queues=2)
        store.engine.retries.groups.persist()
        put_numbers(world, store, range(20))
        with store.consumer("T", group="G") as consumer:
            for message in consumer.poll(100):
                consumer.nack(message, delay_level=1)
            next_try(store, clock, 1)
            again = consumer.poll(100)
            assert sorted(numbers(again)) == list(range(20))
            assert {message.queue_id for message in again} == {0, 1}
            for message in again:
                consumer.nack(message)
        assert sorted(numbers(read_all(store, DEAD))) == list(range(20))
        assert {message.reconsume_times for message in read_all(store, DEAD)} == {2}
    text = (tmp_path / "s" / "config" / "subscriptionGroup.json").read_text()
    assert '"retryMaxTimes":1' in text
    assert '"retryQueueNums":2' in text


def test_nack_with_a_negative_level_goes_to_the_dead_letter_queue(world: Any, tmp_path: Path, clock: Clock) -> None:
    """A client sends a level below 0."""
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="G") as consumer:
        put_numbers(world, store, range(1))
        consumer.nack(consumer.poll()[0], delay_level=-1)
        assert numbers(read_all(store, DEAD)) == [0]
        assert store.max_offset(SCHEDULE, 0) == 0


def test_nack_of_a_message_that_is_not_pending_writes_nothing(world: Any, tmp_path: Path, clock: Clock) -> None:
    """It is already acknowledged, or another consumer's: nothing is written."""
    with open_idle(world, tmp_path / "s", clock) as store, store.consumer("T", group="G") as consumer:
        put_numbers(world, store, range(2))
        first, second = consumer.poll()
        consumer.ack(first)
        end = store.log_end
        assert consumer.nack(first) is None
        assert store.log_end == end
        assert consumer.nack(second) is not None
        assert consumer.nack(second) is None
        with store.consumer("T", group="a/b") as other, pytest.raises(InvalidMessage):
            other.nack(other.poll(1)[0])


def test_retries_of_different_groups_and_topics_are_separate(world: Any, tmp_path: Path, clock: Clock) -> None:
    """One group reads two topics, another one of them: each failed message comes back to its own consumer.

    An acknowledged message stays acknowledged while an older one of the other topic waits.
    """
    with open_idle(world, tmp_path / "s", clock) as store:
        put_numbers(world, store, range(2), topic="T")
        put_numbers(world, store, range(10, 12), topic="U")
        with (
            store.consumer("U", group="G") as other,
            store.consumer("T", group="G") as one,
            store.consumer("T", group="H") as third,
        ):
            for consumer in (other, one):
                for message in consumer.poll():
                    consumer.nack(message, delay_level=1)
            assert numbers(third.poll()) == [0, 1]
            next_try(store, clock, 1)
            assert numbers(third.poll()) == []
            came = one.poll()
            assert numbers(came) == [0, 1]
            for message in came:
                one.ack(message)
            assert store.committed_offsets(RETRY, "G") == {}
            came = other.poll()
            assert numbers(came) == [10, 11]
            other.ack(came[0])
            assert store.committed_offsets(RETRY, "G") == {0: 1}
            other.ack(came[1])
            assert store.committed_offsets(RETRY, "G") == {0: 4}
            assert (one.poll(), other.poll()) == ([], [])


def test_consumers_of_one_group_share_what_comes_back(world: Any, tmp_path: Path, clock: Clock) -> None:
    """Each failed message comes to one of the two consumers of the topic."""
    with open_idle(world, tmp_path / "s", clock) as store:
        store.engine.retries.groups.create("G", retry_queues=4)
        put_numbers(world, store, range(30))
        with store.consumer("T", group="G") as one, store.consumer("T", group="G") as two:
            for message in [*one.poll(100), *two.poll(100)]:
                assert (one.nack(message, delay_level=1) or two.nack(message, delay_level=1)) is not None
            next_try(store, clock, 1)
            parts = numbers(one.poll(100)), numbers(two.poll(100))
            assert sorted([*parts[0], *parts[1]]) == list(range(30))


def test_killed_after_sending_back_a_message_comes_at_least_once(world: Any, tmp_path: Path, clock: Clock) -> None:
    """The new record exists before the old one counts as acknowledged."""
    with open_idle(world, tmp_path / "s", clock) as store:
        put_numbers(world, store, range(5))
        with store.consumer("T", group="G") as consumer:
            for message in consumer.poll():
                consumer.nack(message, delay_level=1)
            copy = crash_copy(tmp_path / "s", tmp_path / "killed")
    with open_idle(world, copy, clock) as store, store.consumer("T", group="G") as consumer:
        next_try(store, clock, 1)
        assert set(numbers(consumer.poll(100))) == set(range(5))


@pytest.mark.parametrize("level", [-1, 0, 1])
def test_a_record_of_many_messages_is_not_sent_back(world: Any, tmp_path: Path, clock: Clock, level: int) -> None:
    """Its delivery would be refused, and the messages lost."""
    with open_idle(world, tmp_path / "s", clock) as store:
        store.create_topic("B", 1, attributes={"queue.type": "BatchCQ"})
        inner = {"sys_flag": 0x80, "properties": {"INNER_NUM": "3"}}
        store.put(world.commitlog.Message("B", b"three", queue_id=0, **inner))
        store.engine.settle()
        with store.consumer("B", group="G", queues=[0]) as consumer:
            (message,) = consumer.poll()
            end = store.log_end
            for send_back in (consumer.nack, lambda one, delay_level: store.engine.retries.send_back(one, "G", delay_level)):
                with pytest.raises(InvalidMessage, match="a record of many messages of B"):
                    send_back(message, delay_level=level)
            assert store.log_end == end
            assert store.committed_offsets("B", "G") == {}
            assert consumer.ack(message)


@pytest.mark.parametrize("name", ["broker-live", "broker-ext"])
def test_a_real_brokers_failed_messages_are_its_retries(world: Any, fixture_store: Any, name: str) -> None:
    """Retries and dead letters, by group, are those that the real broker wrote; our records have the same fields."""
    fixture = fixture_store(name, own=True)
    with open_small(world, fixture.store, "r+", deliver_delayed=False) as store:
        dead = read_all(store, "%DLQ%G_fail")
        assert dead
        for message in dead:
            assert message.all_properties["DELAY"] == "0"
            assert message.reconsume_times == 2
        assert store.engine.retries.group("G_fail").retry_max_times == 1
        with store.consumer("LiveFail", group="G_fail") as consumer:
            assert consumer.poll() == []
            message = world.commitlog.Message("LiveFail", b"ours", queue_id=0, keys=["fail-0"])
            store.put(message)
            result = consumer.nack(consumer.poll()[0], delay_level=1)
            ours = store.message_at(result.physical_offset).all_properties
            theirs = read_all(store, SCHEDULE, 0)
            known = next(one for one in theirs if one.all_properties.get("REAL_TOPIC") == "%RETRY%G_fail").all_properties
            marks = {"DELAY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "WAIT"}
            assert marks <= ours.keys()
            assert marks <= known.keys()
            for name_ in ("DELAY", "REAL_TOPIC", "RETRY_TOPIC", "WAIT"):
                assert ours[name_] == known[name_]
