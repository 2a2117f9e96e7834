"""Consumers that close, lose their queue or meet a failing disk: no message stays assigned to them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rabbitstore import RabbitSettings, RabbitStore
from storageio import DiskError, StoreClosed
from storageio.testing import WrappedDisk

from .conftest import FailsOnce

QUIET = RabbitSettings(background=False)


class PendingConfirms:
    """A consumer that waits on a thread; the body of the `with` runs before it can wake."""

    def __init__(self, store: RabbitStore, name: str) -> None:
        self.queue = store.queue(name)
        self.consumer = store.consumer(name)
        self.found = []
        self.thread = threading.Thread(target=self._get, daemon=True)

    def _get(self) -> None:
        try:
            self.found.append(self.consumer.get(timeout_s=30))
        except (DiskError, StoreClosed) as error:
            self.found.append(error)

    def __enter__(self) -> PendingConfirms:
        self.thread.start()
        while not self.queue.waiting_consumers:
            pass
        self.queue.lock.acquire()
        return self

    def __exit__(self, *_: Any) -> None:
        self.queue.lock.release()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RabbitStore]:
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET) as found:
        found.declare_queue("q")
        yield found


def test_a_message_sent_to_a_closing_consumer_is_requeued(store: RabbitStore) -> None:
    """A message handed to a closed consumer used to stay with it until a restart."""
    with PendingConfirms(store, "q") as waiting:
        store.publish("q", b"first")
        waiting.consumer.close()
        store.publish("q", b"second")
    assert waiting.found == [None] and not waiting.queue.direct and not waiting.queue.unacked
    assert [store.get("q").body for _ in range(2)] == [b"first", b"second"]
    with pytest.raises(StoreClosed):
        waiting.consumer.get()


def test_a_message_handed_to_a_consumer_is_deleted_with_its_queue(store: RabbitStore) -> None:
    """A message of a deleted queue used to be delivered although nobody could acknowledge it."""
    with PendingConfirms(store, "q") as waiting:
        store.publish("q", b"gone")
        store.delete_queue("q")
    assert waiting.found == [None] and not waiting.queue.unacked
    store.declare_queue("q")
    assert store.get("q") is None


def test_a_message_with_a_time_to_live_reaches_a_waiting_consumer_through_the_queue(store: RabbitStore) -> None:
    """A message with an expiry is queued instead of handed over; the consumer still wakes."""
    with PendingConfirms(store, "q") as waiting:
        store.publish("q", b"short", properties={"expiration": "60000"})
        assert len(waiting.queue) == 1 and not waiting.queue.direct
    assert waiting.found[0].body == b"short"


def test_a_message_with_a_failed_read_is_returned_by_the_next_get(tmp_path: Path) -> None:
    """After memory pressure dropped the copy, a failed read used to lose the message."""
    disk = FailsOnce()
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET, disk=disk) as store:
        store.declare_queue("q")
        with PendingConfirms(store, "q") as waiting:
            store.publish("q", b"x" * 9000)
            store.process()
            store.parts.persistent._roll()  # the file is closed, so that the message is in no cache
            waiting.queue.parts[0].set_target_ram_count(0)
            disk.will_fail = True
        assert isinstance(waiting.found[0], DiskError)
        found = waiting.consumer.get()
        assert found.body == b"x" * 9000 and list(waiting.queue.unacked) == [found.tag]


def test_a_requeued_message_counts_no_longer_against_the_prefetch(store: RabbitStore) -> None:
    """They settle one message of the consumer, with `multiple` all of it up to the message."""
    for number in range(4):
        store.publish("q", b"%d" % number)
    with store.consumer("q", prefetch=2) as consumer:
        first, second = consumer
        assert consumer.get() is None
        consumer.requeue(first)
        again = consumer.get()
        assert (again.body, again.redelivered, consumer.get()) == (b"0", True, None)
        consumer.requeue(again, multiple=True)
        assert [delivery.body for delivery in consumer] == [b"0", b"1"]
    assert second.body == b"1" and len(store.queue("q")) == 4


def test_a_consumer_of_a_deleted_queue_can_be_closed(store: RabbitStore) -> None:
    """Closing a consumer of a deleted queue requeues nothing."""
    store.publish("q", b"held")
    consumer = store.consumer("q")
    consumer.get()
    store.delete_queue("q")
    consumer.close()
    with pytest.raises(StoreClosed):
        consumer.get()


def test_expired_messages_of_a_higher_priority_do_not_hide_lower_ones(tmp_path: Path) -> None:
    """After expired messages of the high priority are dropped, the lower one is served."""
    disk = WrappedDisk()
    now = [disk.now_ms()]
    disk.now_ms = lambda: now[0]
    with contextlib.closing(RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET, disk=disk)) as store:
        store.declare_queue("q", max_priority=5)
        store.publish("q", b"high", properties={"priority": 5, "expiration": "10"})
        store.publish("q", b"low")
        now[0] += 11
        assert store.get("q").body == b"low" and store.get("q") is None
