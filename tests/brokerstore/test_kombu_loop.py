"""The kombu transport delivers in kombu's event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

kombu = pytest.importorskip("kombu", reason="kombu is not installed (extra kombu)")

from kombu.asynchronous import Hub  # noqa: E402

from brokerstore.kombu import loop_reader  # noqa: E402
from tests.shared.processes import Child, Counters  # noqa: E402


def connect(folder: Path) -> Any:
    return kombu.Connection(f"brokerstore://{folder}", transport_options={"parts": 1})


class Loop:
    """A connection whose messages come in a loop, which the test turns."""

    def __init__(self, folder: Path) -> None:
        self.found: list[Any] = []
        self.hub = Hub()
        self.hub.call_repeatedly(0.1, lambda: None)  # else a turn takes seconds
        self.connection = connect(folder)
        self.transport = self.connection.transport
        self.transport.register_with_event_loop(self.connection.connection, self.hub)
        self.channel = self.connection.channel()
        self.consumer = kombu.Consumer(self.channel, [kombu.Queue("q")], callbacks=[self._take])

    def _take(self, _body: Any, message: Any) -> None:
        self.found.append(message)

    def turn_until(self, condition: Callable[[], Any], timeout_s: float = 20.0) -> None:
        """Run the loop until a condition holds."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, f"{len(self.found)} messages"
            self.hub.run_once()

    def turn_for(self, seconds: float) -> int:
        """Run the loop for some seconds, and return how many turns it made."""
        turns, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            self.hub.run_once()
            turns += 1
        return turns

    def close(self) -> None:
        self.connection.close()
        self.hub.close()

    def bodies(self) -> list[Any]:
        return [message.payload for message in self.found]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loop_reader, "CHECK_S", 3600.0)
    return tmp_path / "tasks"


@pytest.fixture
def loop(folder: Path) -> Iterator[Loop]:
    made = Loop(folder)
    yield made
    made.close()


def put(connection: Any, *bodies: Any) -> None:
    for body in bodies:
        kombu.Producer(connection.default_channel).publish(body, exchange="", routing_key="q", declare=[kombu.Queue("q")])


def test_messages_of_another_process_arrive_in_the_loop(folder: Path) -> None:
    """The owner of the store is another process, whose put the loop learns of."""
    puts = Counters(2)

    def put_two() -> None:
        other = connect(folder)
        put(other, 0)
        puts[1] = 1
        puts.wait_for(0, 1)
        put(other, 1)
        time.sleep(60)

    child = Child(put_two)
    try:
        puts.wait_for(1, 1)
        made = Loop(folder)
        made.consumer.consume()
        made.turn_until(lambda: made.bodies() == [0])
        assert not made.transport.opened.store.is_owner
        made.turn_for(0.3)
        puts[0] = 1
        made.turn_until(lambda: made.bodies() == [0, 1], 10)
    finally:
        child.kill()
    made.close()


def test_a_full_consumer_gets_the_next_message_after_an_acknowledgement(loop: Loop) -> None:
    """Also one that another thread makes, and after a larger limit; meanwhile the loop sleeps."""
    loop.channel.basic_qos(0, 2, False)
    loop.consumer.consume()
    put(loop.connection, *range(5))
    loop.turn_until(lambda: loop.bodies() == [0, 1])
    loop.turn_for(0.5)
    assert loop.turn_for(0.5) < 20
    assert loop.bodies() == [0, 1]
    threading.Timer(0.2, loop.found[0].ack).start()
    loop.turn_until(lambda: loop.bodies() == [0, 1, 2], 5)
    loop.found[1].reject()
    loop.turn_until(lambda: loop.bodies() == [0, 1, 2, 3], 5)
    loop.channel.basic_qos(0, 3, False)
    loop.turn_until(lambda: loop.bodies() == [0, 1, 2, 3, 4], 5)


def test_a_new_priority_is_found_by_the_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topic is not looked for at each news."""
    monkeypatch.setattr(loop_reader, "CHECK_S", 0.2)
    made = Loop(folder)
    made.consumer.consume()
    made.turn_for(0.3)
    with connect(folder) as other:
        kombu.Producer(other.default_channel).publish(0, exchange="", routing_key="q", priority=9)
        made.turn_until(lambda: made.bodies() == [0], 4)
    made.close()


def test_a_queue_that_another_consumer_left_is_found(folder: Path) -> None:
    """The hand-over is news, although nobody puts a message."""
    with connect(folder) as other:
        put(other, 0)
        message = kombu.Queue("q")(other.default_channel).get()
        made = Loop(folder)
        made.consumer.consume()
        put(other, 1)
        made.turn_for(0.5)
        assert made.bodies() == []
        message.ack()
        made.turn_until(lambda: made.bodies() == [1], 10)
        made.close()


def test_a_closed_connection_leaves_the_loop(loop: Loop) -> None:
    """Its descriptor, its timer and its thread go; the next connection uses the same loop."""
    loop.consumer.consume()
    watched = set(loop.hub.readers)
    assert len(watched) == 1
    loop.transport.register_with_event_loop(loop.connection.connection, loop.hub)
    assert set(loop.hub.readers) == watched
    loop.connection.close()
    assert not loop.hub.readers
    assert [entry.entry.cancelled for entry in loop.hub.timer.queue].count(False) == 1
    assert "brokerstore-watch" not in {thread.name for thread in threading.enumerate()}


def test_a_loop_that_was_reset_is_left_too(loop: Loop) -> None:
    """Celery resets its loop before it closes a connection that failed."""
    loop.consumer.consume()
    loop.hub.reset()
    loop.connection.close()
    assert not loop.hub.readers
