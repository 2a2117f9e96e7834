"""Messages that are delivered and acknowledged in lists."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rabbitstore import RabbitSettings, RabbitStore, UnknownDelivery
from storageio import DiskError

from .conftest import FailsOnce

QUIET = RabbitSettings(background=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RabbitStore]:
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET) as found:
        found.declare_queue("q", max_priority=1)
        for number in range(6):
            found.publish("q", b"%d" % number, properties={"priority": number % 2})
        yield found


def test_many_are_those_that_one_after_another_would_be(store: RabbitStore) -> None:
    """Higher priorities first, at most as many as asked, and as many as there are."""
    assert store.get_many("q", 0) == []
    assert [delivery.body for delivery in store.get_many("q", 4)] == [b"1", b"3", b"5", b"0"]
    assert [delivery.body for delivery in store.get_many("q", 4)] == [b"2", b"4"]
    assert store.get_many("q", 4) == [] and len(store.queue("q").unacked) == 6


def test_messages_acknowledged_together_are_gone_after_a_restart(tmp_path: Path) -> None:
    """Embedded messages and stored ones, of two queues."""
    path = str(tmp_path / "vhost")
    with RabbitStore.open(path, settings=QUIET) as store:
        for name in ("a", "b"):
            store.declare_queue(name)
            for number in range(4):
                store.publish(name, b"%d" % number + bytes(5000 * (number % 2)))
        found = [*store.get_many("a", 3), *store.get_many("b", 2)]
        assert store.ack_many(found) == 5 and store.ack_many([]) == 0
        assert not store.queue("a").unacked and not store.queue("b").unacked
    with RabbitStore.open(path, settings=QUIET) as store:
        assert [delivery.body[:1] for delivery in store.get_many("a", 9)] == [b"3"]
        assert [delivery.body[:1] for delivery in store.get_many("b", 9)] == [b"2", b"3"]


def test_an_unknown_or_repeated_delivery_acknowledges_none_of_its_queue(store: RabbitStore) -> None:
    """One that is named twice would be settled twice."""
    first, second = store.get_many("q", 2)
    with pytest.raises(UnknownDelivery):
        store.ack_many([first, second, first])
    assert len(store.queue("q").unacked) == 2
    store.ack(first)
    with pytest.raises(UnknownDelivery):
        store.ack_many([second, first])
    assert list(store.queue("q").unacked) == [second.tag]


def test_many_without_acknowledgement_are_settled(store: RabbitStore) -> None:
    """Nothing of them stays with the queue."""
    assert len(store.get_many("q", 9, auto_ack=True)) == 6
    assert not store.queue("q").unacked and store.get("q") is None


def test_a_message_that_cannot_be_read_comes_after_those_before_it(tmp_path: Path) -> None:
    """What was taken is delivered; the error is of the next call, and the message stays in the queue."""
    disk = FailsOnce()
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET, disk=disk) as store:
        store.declare_queue("q")
        store.publish("q", b"small")
        store.publish("q", b"x" * 9000)
        store.process()
        store.parts.persistent._roll()  # the file is closed, so that the message is in no cache
        store.queue("q").parts[0].set_target_ram_count(0)
        disk.will_fail = True
        assert [delivery.body for delivery in store.get_many("q", 9)] == [b"small"]
        with pytest.raises(DiskError):
            store.get_many("q", 9)
        assert [delivery.body for delivery in store.get_many("q", 9)] == [b"x" * 9000]


def test_a_consumer_keeps_what_came_before_a_message_that_cannot_be_read(tmp_path: Path) -> None:
    """What its queue has delivered must reach the caller: nobody else could acknowledge it."""
    disk = FailsOnce()
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET, disk=disk) as store, contextlib.ExitStack() as closing:
        store.declare_queue("q")
        consumer = closing.enter_context(store.consumer("q"))
        store.publish("q", b"small")
        store.publish("q", b"x" * 9000)
        store.process()
        store.parts.persistent._roll()  # the file is closed, so that the message is in no cache
        store.queue("q").parts[0].set_target_ram_count(0)
        disk.will_fail = True
        (small,) = consumer.get_many(9)
        with pytest.raises(DiskError):
            consumer.get_many(9)
        assert small.body == b"small" and consumer.ack_many([small]) == 1
        assert [delivery.body for delivery in consumer.get_many(9)] == [b"x" * 9000]


def test_a_consumer_takes_no_more_than_its_prefetch(store: RabbitStore) -> None:
    """What it has acknowledged makes place for as many."""
    with store.consumer("q", prefetch=4) as consumer:
        held = consumer.get_many(3)
        assert len(held) == 3 and len(consumer.get_many(3)) == 1 and consumer.get_many(3) == []
        assert consumer.ack_many(held) == 3
        with pytest.raises(UnknownDelivery):
            consumer.ack_many(held[:1])
        assert len(consumer.get_many(9)) == 2
    assert len(store.queue("q")) == 3
