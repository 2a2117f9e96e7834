"""Stopping consumers: the iteration ends, acknowledgements go on, and the queues go to others."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.read import consumer as consumer_module
from messagestore.write import progress
from storageio import StoreClosed
from tests.messagestore.writers import number_of, open_store, put_all


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    made = open_store(tmp_path)
    yield made
    made.close()


def numbers(found: Any) -> list[int]:
    return [number_of(stored) for stored in found]


def signalled(consumer: Any) -> list[Any]:
    """Iterate until a signal's handler stops the consumer, which it does while the loop waits."""
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    timer.start()
    try:
        return list(consumer)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a wait that nothing ends outlast the test."""
    monkeypatch.setattr(consumer_module, "CLOSE_POLL_S", 1000.0)
    monkeypatch.setattr(progress, "POLL_S", 1000.0)


@pytest.mark.usefixtures("rare_polls")
def test_stop_ends_a_wait_of_another_thread(store: MessageStore) -> None:
    """The loop ends, later polls return nothing, and the consumer is still open."""
    put_all(store, 0, 1)
    consumer = store.consumer("t", group="g")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(consumer))
    thread.start()
    while not found:
        pass
    consumer.stop()
    thread.join(20)
    assert not thread.is_alive()
    put_all(store, 1, 2)
    assert consumer.poll(1, 5) == []
    assert consumer.ack(found[0])
    consumer.close()
    with pytest.raises(StoreClosed):
        consumer.ack(found[0])


@pytest.mark.usefixtures("rare_polls")
def test_stop_in_a_signal_handler_ends_the_wait_that_it_interrupts(store: MessageStore) -> None:
    """Without a lock that the interrupted thread may hold."""
    put_all(store, 0, 2)
    with store.consumer("t", group="g") as consumer:
        found = signalled(consumer)
        assert numbers(found) == [0, 1]
        assert all(consumer.ack(message) for message in found)


@pytest.mark.parametrize("name", ["_lock", "_parts.sharing._guard", "_parts.progress._guard", "_offsets._lock"])
def test_stop_takes_no_lock(store: MessageStore, name: str) -> None:
    """A signal handler would wait without end for one that its own thread holds."""
    with store.consumer("t", group="g") as consumer:
        holder: Any = consumer
        for part in name.split("."):
            holder = getattr(holder, part)
        stopping = threading.Thread(target=consumer.stop, daemon=True)
        with holder:
            stopping.start()
            stopping.join(20)
            assert not stopping.is_alive()


def test_stopped_consumer_keeps_the_queues_of_what_it_has(store: MessageStore) -> None:
    """Others get its other queues, and those too after the last acknowledgement: nothing is delivered twice."""
    put_all(store, 0, 9)
    stopped, other = store.consumer("t", group="g"), store.consumer("t", group="g")
    store.engine.settle()
    assert (stopped.queues, other.queues) == ([0, 1], [2])
    in_hand = stopped.poll(2)
    assert numbers(in_hand) == [0, 3]
    stopped.stop()
    assert sorted(numbers(other.poll(32))) == [1, 2, 4, 5, 7, 8]
    assert stopped.ack(in_hand[0])
    assert other.poll(32) == []
    assert stopped.ack(in_hand[1])
    assert numbers(other.poll(32)) == [6]
    assert store.committed_offsets("t", "g") == {0: 2}


def test_closing_a_stopped_consumer_gives_back_what_it_has(store: MessageStore) -> None:
    """In the order of the queue."""
    put_all(store, 0, 9)
    with store.consumer("t", group="g") as stopped:
        assert len(stopped.poll(9)) == 9
        stopped.stop()
    with store.consumer("t", group="g") as other:
        assert sorted(numbers(other.poll(9))) == list(range(9))


def test_given_back_messages_are_delivered_again_in_order(store: MessageStore) -> None:
    """From an offset of a queue on; what was delivered before is still in hand, and can be acknowledged."""
    for number in range(4):
        store.put(Message("t", b"%d" % number, queue_id=0))
    with store.consumer("t", group="g") as consumer:
        found = consumer.poll(4)
        consumer.give_back("t", 0, 2)
        assert consumer.ack(found[0])
        assert not consumer.ack(found[2])
        assert numbers(consumer.poll(4)) == [2, 3]
        assert store.committed_offsets("t", "g") == {0: 1}
