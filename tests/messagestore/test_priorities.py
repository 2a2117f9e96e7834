"""Topics with priorities: the queue of a put, and the order in which a consumer takes."""

from __future__ import annotations

import random
from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storageio import InvalidMessage, OutOfRange, PutRejected
from tests.amounts import amount
from tests.messagestore.kit import Clock, open_idle, open_small
from tests.messagestore.test_delays import deliver

PRIORITY = {"message.type": "PRIORITY"}
PROPERTY = "_SYS_MSG_PRIORITY_"


def bodies(messages: Any) -> list[bytes]:
    return [message.body for message in messages]


def open_ranked(world: Any, folder: Path, queues: int = 4, **fields: Any) -> Any:
    """Open a store with a topic `jobs` with priorities."""
    store = open_idle(world, folder, **fields)
    store.create_topic("jobs", queues, attributes=PRIORITY)
    return store


@pytest.mark.both_builds
def test_the_priority_is_the_queue_as_in_a_broker(world: Any, tmp_path: Path) -> None:
    """RocketMQ 5.4 takes queue min(priority, queues - 1); the property stays, also of a client's encoded properties."""
    with open_ranked(world, tmp_path / "s") as store:
        assert [store.put("jobs", b"x", priority=priority).queue_id for priority in (0, 2, 3, 4, 2147483647)] == [0, 2, 3, 3, 3]
        assert next(store.read("jobs", 2)).properties == {PROPERTY: "2"}
        raw = f"{PROPERTY}\x011\x02".encode()
        assert store.put(world.commitlog.Message("jobs", b"x", queue_id=3, properties_raw=raw)).queue_id == 1
        many = [world.commitlog.Message("jobs", b"x", priority=priority) for priority in (3, 0)]
        assert store.put_many(many).message_count == 2
        assert store.put_async(many[0]).result().queue_id == 3
        with store.begin_transaction(many[0]) as transaction:
            pass
        assert transaction.committed.queue_id == 3
        assert [store.max_offset("jobs", queue_id, committed=False) for queue_id in range(4)] == [2, 1, 1, 6]


def test_a_message_without_a_priority_has_the_lowest(world: Any, tmp_path: Path) -> None:
    """Also with a key, in columns, and with a property that is no number; a queue of its own stays."""
    with open_ranked(world, tmp_path / "s") as store:
        store.put("jobs", b"x")
        store.put("jobs", b"x", keys="order-17")
        store.put("jobs", b"x", properties={PROPERTY: "high"})
        store.put("jobs", b"x", properties={PROPERTY: "-1"})
        store.put_many("jobs", [b"x"] * 3)
        store.put_many([world.commitlog.Message("jobs", b"x")])
        assert [store.max_offset("jobs", queue_id) for queue_id in range(4)] == [8, 0, 0, 0]
        assert store.put("jobs", b"x", queue_id=2).queue_id == 2


@pytest.mark.both_builds
def test_a_topic_without_priorities_refuses_them_and_names_the_remedy(world: Any, tmp_path: Path) -> None:
    """A refused put creates no topic, so that the remedy works; what it names works in an existing topic of that size too."""
    with open_idle(world, tmp_path / "s") as store:
        message = world.commitlog.Message("jobs", b"x", priority=3)
        puts: list[Any] = [
            lambda: store.put(message), lambda: store.put_many([message]), lambda: store.put_async(message).result(),
            lambda: store.begin_transaction(message),
        ]  # fmt: skip
        remedy = r"create_topic\('jobs', queues=10, attributes=\{'message.type': 'PRIORITY'\}\)"
        for put in puts:
            with pytest.raises(PutRejected, match=f"topic jobs has no priorities; {remedy}"):
                put()
        assert store.topics() == []
        assert store.put(message, check=False).status is world.commitlog.PutStatus.MESSAGE_ILLEGAL
        store.create_topic("jobs", 10)
        for put in puts:
            with pytest.raises(PutRejected, match="has no priorities"):
                put()
        assert store.log_end == 0
        store.create_topic("jobs", queues=10, attributes=PRIORITY)
        assert [put() and 1 for put in puts] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"priority": -1}, OutOfRange), ({"priority": 1 << 31}, OutOfRange), ({"priority": "3"}, TypeError),
        ({"priority": True}, TypeError), ({"priority": 1, "queue_id": 0}, InvalidMessage),
        ({"priority": 1, "properties": {PROPERTY: "2"}}, InvalidMessage),
    ],
)  # fmt: skip
def test_other_values_are_refused(world: Any, tmp_path: Path, fields: dict[str, Any], error: type[Exception]) -> None:
    """By a put, and by a message."""
    with open_ranked(world, tmp_path / "s") as store:
        with pytest.raises(error):
            store.put("jobs", b"x", **fields)
        with pytest.raises(error):
            world.commitlog.Message("jobs", b"x", **fields)


def test_each_take_begins_with_the_highest_queue(world: Any, tmp_path: Path) -> None:
    """Random puts and takes agree with a plain model: a list for each priority, over restarts that return what is in hand."""
    chance = random.Random(5)
    model: list[deque[bytes]] = [deque() for _ in range(4)]
    store = open_ranked(world, tmp_path / "s")
    consumer = store.consumer("jobs", group="g")
    for number in range(amount(400, 4000)):
        action = chance.random()
        if action < 0.6:
            priority = chance.randrange(6)
            body = b"%d" % number
            store.put("jobs", body, priority=priority)
            model[min(priority, 3)].append(body)
        elif action < 0.98:
            count = chance.choice([1, 1, 3, 40])
            expected: list[bytes] = []
            while len(expected) < count and any(model):
                expected.append(next(queue for queue in reversed(model) if queue).popleft())
            found = consumer.poll(count)
            assert bodies(found) == expected
            for message in found:
                consumer.ack(message)
        else:
            consumer.close()
            store.close()
            store = open_idle(world, tmp_path / "s")
            consumer = store.consumer("jobs", group="g")
    store.close()


def test_a_higher_priority_overtakes_what_is_not_handed_out(world: Any, tmp_path: Path) -> None:
    """A poll of two takes the low ones that are there; the next one takes the high one that came since."""
    with open_ranked(world, tmp_path / "s") as store, store.consumer("jobs", group="g") as consumer:
        for number in range(5):
            store.put("jobs", b"low %d" % number, priority=0)
        assert bodies(consumer.poll(2)) == [b"low 0", b"low 1"]
        store.put("jobs", b"high", priority=3)
        assert bodies(consumer.poll(2)) == [b"high", b"low 2"]


def test_a_delayed_message_keeps_its_priority(world: Any, tmp_path: Path) -> None:
    """It is taken by its priority once it is delivered."""
    clock = Clock()
    with open_ranked(world, tmp_path / "s", clock=clock) as store, store.consumer("jobs", group="g") as consumer:
        store.put("jobs", b"late", priority=2, delay=timedelta(seconds=1))
        store.put("jobs", b"low")
        clock.now_ms += 1000
        deliver(store)
        assert bodies(consumer.poll()) == [b"late", b"low"]


def test_retries_come_last_as_in_a_broker(world: Any, tmp_path: Path) -> None:
    """POP of RocketMQ 5.4 takes from the retry topic where a request is not filled; the topic's own messages go first."""
    clock = Clock()
    with open_ranked(world, tmp_path / "s", clock=clock) as store, store.consumer("jobs", group="g") as consumer:
        store.put("jobs", b"failed", priority=3)
        consumer.nack(consumer.poll()[0], delay_level=1)
        store.engine.settle()
        clock.now_ms += 1000
        deliver(store)
        store.put("jobs", b"low")
        assert bodies(consumer.poll(1)) == [b"low"]
        assert bodies(consumer.poll(1)) == [b"failed"]


def test_the_topic_may_get_its_priorities_while_consumers_wait(world: Any, tmp_path: Path) -> None:
    """A consumer that was opened before the topic takes in their order."""
    with open_small(world, tmp_path / "s") as store, store.consumer("jobs", group="g") as consumer:
        store.create_topic("jobs", 3, attributes=PRIORITY)
        store.put("jobs", b"low", priority=0)
        store.put("jobs", b"high", priority=2)
        assert bodies(consumer.poll()) == [b"high", b"low"]


def test_a_reader_takes_in_the_order_too(world: Any, tmp_path: Path) -> None:
    """A consumer beside the writer only lacks acknowledgements."""
    with open_ranked(world, tmp_path / "s") as store:
        for priority in (0, 3, 1):
            store.put("jobs", b"%d" % priority, priority=priority)
        store.engine.settle()
        with open_small(world, tmp_path / "s", "r") as reader, reader.consumer("jobs", group="g") as consumer:
            assert bodies(consumer.poll()) == [b"3", b"1", b"0"]
