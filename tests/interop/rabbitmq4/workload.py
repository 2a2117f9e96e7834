"""Programs for a live server, and what its queues deliver."""

from __future__ import annotations

import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from .server import AMQP_PORT

PATIENCE_S = 150  # of a machine that runs every other test meanwhile
SIZES = (10, 300, 5000, 1200, 9000, 40, 3500, 700)


def connect() -> Any:
    """Open a connection and a channel with publisher confirms."""
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", AMQP_PORT, heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    return connection, channel


def body_of(name: str, number: int, size: int) -> bytes:
    """Return the body of a message, which names it."""
    return (f"{name}:{number}:".encode() * (size // 3 + 1))[:size]


def publish(channel: Any, queue: str, number: int, size: int, *, priority: int | None = None, persistent: bool = True) -> None:
    """Publish a message and wait for its confirm."""
    import pika

    properties = pika.BasicProperties(
        delivery_mode=2 if persistent else 1,
        message_id=f"m{number}",
        priority=priority,
        headers={"n": number, "k": f"v{number}"},
    )
    channel.basic_publish("", queue, body_of(queue, number, size), properties, mandatory=True)


def forget(connection: Any) -> None:
    """Close a connection to a server that may be gone."""
    import pika

    with suppress(pika.exceptions.AMQPError):
        connection.close()


@contextmanager
def patience(seconds: int = PATIENCE_S) -> Any:
    """Interrupt a call to a server that never answers."""

    def interrupt(*_: object) -> None:
        raise TimeoutError("the server does not answer")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def drain(queue: str) -> list[tuple[str, bytes, dict[str, Any]]]:
    """Return (message id, body, headers) of everything that a queue delivers."""
    rows = []
    with patience():
        connection, channel = connect()
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            rows.append((got[1].message_id, got[2], got[1].headers or {}))
        connection.close()
    return rows


@dataclass
class Program:
    """A random program on some queues; `held` are unacknowledged deliveries by queue."""

    random: Random
    queues: dict[str, int]  # maximum priority by name
    channel: Any
    next_number: int = 0
    held: dict[str, list[int]] = field(default_factory=dict)

    def run(self, steps: int) -> None:
        """Do so many random steps."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        """Publish, get, acknowledge, requeue, reject or purge."""
        queue = self.random.choice(list(self.queues))
        what = self.random.random()
        if what < 0.6:
            self._publish(queue)
        elif what < 0.8:
            for _ in range(self.random.randrange(1, 6)):
                got = self.channel.basic_get(queue)[0]
                if got is not None:
                    self.held.setdefault(queue, []).append(got.delivery_tag)
        elif what < 0.985:
            self._settle(queue)
        else:
            self.channel.queue_purge(queue)

    def _publish(self, queue: str) -> None:
        for _ in range(self.random.randrange(1, 12)):
            size = self.random.choice(SIZES) + self.random.randrange(10)
            priority = self.random.randrange(self.queues[queue] + 2) if self.queues[queue] else None
            publish(self.channel, queue, self.next_number, size, priority=priority, persistent=self.random.random() < 0.9)
            self.next_number += 1

    def _settle(self, queue: str) -> None:
        held = self.held.get(queue, [])
        self.random.shuffle(held)
        for _ in range(min(len(held), self.random.randrange(1, 5))):
            tag = held.pop()
            if self.random.random() < 0.7:
                self.channel.basic_ack(tag)
            else:
                self.channel.basic_nack(tag, requeue=self.random.random() < 0.8)
