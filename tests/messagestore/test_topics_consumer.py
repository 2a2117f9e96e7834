"""Consumers of several topics."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.read import topics_consumer
from storageio import InvalidMessage, InvalidSetting
from tests.messagestore.test_stop import signalled
from tests.messagestore.writers import open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    made = open_store(tmp_path, message_delay_level="1s")
    yield made
    made.close()


def put_to(store: MessageStore, topic: str, count: int, queues: int = 1) -> None:
    for number in range(count):
        store.put(Message(topic, b"%d" % number, queue_id=number % queues))


def found_in(consumer: Any, count: int) -> list[tuple[str, int]]:
    return [(message.topic, int(message.body)) for message in (next(consumer) for _ in range(count))]


def test_each_topic_has_its_turn(store: MessageStore) -> None:
    """A topic of many messages delays none of the others, however many a poll takes."""
    put_to(store, "many", 300)
    put_to(store, "few", 2)
    put_to(store, "some", 20)
    with store.consumer(["many", "few", "some"], group="g") as consumer:
        assert found_in(consumer, 6) == [("many", 0), ("few", 0), ("some", 0), ("many", 1), ("few", 1), ("some", 1)]
        assert found_in(consumer, 4) == [("many", 2), ("some", 2), ("many", 3), ("some", 3)]
        topics = [message.topic for message in consumer.poll(30)]
        assert (topics.count("many"), topics.count("some")) == (15, 15)


def test_acknowledgements_count_in_each_topic(store: MessageStore) -> None:
    """A consumer of one topic with the same group goes on there; lag and commit are those of all."""
    for topic in ("a", "b"):
        put_to(store, topic, 3)
    with store.consumer(["a", "b"], group="g") as consumer:
        assert consumer.lag() == 6
        first, second = next(consumer), next(consumer)
        assert [consumer.ack(first), consumer.ack(second), consumer.ack(first)] == [True, True, False]
    assert (store.committed_offsets("a", "g"), store.committed_offsets("b", "g")) == ({0: 1}, {0: 1})
    with store.consumer("a", group="g") as consumer:
        assert int(next(consumer).body) == 1
        assert consumer.ack(store.message_at(first.physical_offset) or first) is False
    with store.consumer(["a", "b"], group="g") as consumer:
        consumer.poll()
        consumer.commit(sync=True)
        assert consumer.lag() == 0


def test_messages_sent_back_come_again_to_the_consumer_of_their_topic(store: MessageStore) -> None:
    """From the group's one retry topic, once each; their acknowledgements find the topic they came from."""
    for topic in ("a", "b"):
        put_to(store, topic, 2)
    with store.consumer(["a", "b"], group="g") as consumer:
        for message in [next(consumer) for _ in range(4)]:
            assert consumer.nack(message, delay_level=1) is not None
        again = [next(consumer) for _ in range(4)]
        assert sorted(message.all_properties["RETRY_TOPIC"] for message in again) == ["a", "a", "b", "b"]
        assert all(consumer.ack(message) for message in again)
        assert consumer.poll(4, 0.1) == []
        other = store.message_at(again[0].physical_offset)
        assert other is not None
        assert consumer.ack(other) is False


def test_new_topics_that_match_are_found(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the iteration waits; a pattern matches whole names, and none of the store's own topics."""
    monkeypatch.setattr(topics_consumer, "DISCOVER_S", 0.02)
    put_to(store, "orders-eu", 1)
    put_to(store, "old-orders-eu", 1)
    put_to(store, "orders-eu.x", 1)
    with store.consumer(re.compile(r"orders-\w+|.*RETRY.*|.*XXXX"), group="g") as consumer:
        message = next(consumer)
        assert consumer.nack(message, delay_level=1) is not None
        timer = threading.Timer(0.1, put_to, (store, "orders-ü", 1))
        timer.start()
        found = {(one.topic, one.all_properties.get("RETRY_TOPIC")) for one in (next(consumer), next(consumer))}
        assert found == {("orders-ü", None), ("%RETRY%g", "orders-eu")}
        timer.join()
        assert consumer.topics == ["orders-eu", "orders-ü"]


def test_stop_ends_the_wait(store: MessageStore) -> None:
    """In a signal's handler, with and without topics."""
    put_to(store, "a", 1)
    for topics in (["a", "b"], re.compile("a"), re.compile("none")):
        with store.consumer(topics, group=f"g{topics}") as consumer:
            assert len(signalled(consumer)) == (0 if topics == re.compile("none") else 1)
            assert consumer.poll(1, 5) == []
            consumer.commit()


def test_visibility_time_is_that_of_each_message(store: MessageStore) -> None:
    """`extend` finds the topic."""
    put_to(store, "a", 1)
    put_to(store, "b", 1)
    with store.consumer(["a", "b"], group="g", visibility_s=30, max_deliveries=2) as consumer:
        for message in consumer.poll(2):
            assert consumer.extend(message, 60)
            assert consumer.ack(message)
            assert not consumer.extend(message, 60)


@pytest.mark.parametrize("topics", [[], ["a", "a"], ["a", 1]])
def test_lists_without_a_topic_or_with_one_twice_are_refused(store: MessageStore, topics: Any) -> None:
    """With what was given."""
    with pytest.raises(InvalidSetting, match="topics"):
        store.consumer(topics, group="g")


def test_other_arguments_that_name_one_topic_are_refused(store: MessageStore) -> None:
    """Queues belong to a topic; a missing topic is an error if the program says so, and leaves no consumer open."""
    with pytest.raises(InvalidSetting, match="queues"):
        store.consumer(["a"], group="g", queues=[0])  # type: ignore[call-overload]
    put_to(store, "a", 1)
    with pytest.raises(InvalidMessage, match="no topic 'b'"):
        store.consumer(["a", "b"], group="g", missing_topic="error")
    store.delete_topic("a")
