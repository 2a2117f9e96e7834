"""Random programs for queues of all types of a real server, until it is killed."""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import time
from typing import Any

from .judge import Judge

DEAD = "dead"  # the queue of dead letters
REFUSED = {"bullseye": ("x-overflow", "x-dead-letter-strategy")}  # by quorum queues of a release
GETS_MAX = 8
CONSUMES_MAX = 16
_PATIENCE_S = 120
NAMES_SAVED_S = 7.0  # the server writes the names of new queues after five seconds


def body(name: str, number: int, size: int) -> bytes:
    """Return a body that no other message has."""
    text = hashlib.sha256(f"{name}:{number}".encode()).hexdigest().encode()
    return (text * (size // len(text) + 1))[:size]


def declare(judge: Judge, names: list[str], chance: random.Random, suite: str = "") -> dict[str, dict[str, Any]]:
    """Declare a queue for each name with random arguments, which are returned; its first letter is that of its type.

    Quorum queues have none that the server of `suite` refuses.
    """
    connection = judge.connect()
    channel = connection.channel()
    channel.queue_declare(DEAD, durable=True)
    arguments = {
        name: {"c": classic_arguments, "q": quorum_arguments, "s": stream_arguments}[name[0]](chance) for name in names
    }
    for name, found in arguments.items():
        for unknown in REFUSED.get(suite, ()) if name[0] == "q" else ():
            found.pop(unknown, None)
        channel.queue_declare(name, durable=True, arguments=found)
    connection.close()
    time.sleep(NAMES_SAVED_S)
    return arguments


def _limits(chance: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if chance.random() < 0.3:
        found["x-max-length"] = chance.randint(5, 60)
        found["x-overflow"] = chance.choice(["drop-head", "reject-publish"])
    if chance.random() < 0.5:
        found |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    if chance.random() < 0.2:
        found["x-single-active-consumer"] = True
    return found


def classic_arguments(chance: random.Random) -> dict[str, Any]:
    """Return random arguments of a classic queue."""
    found = _limits(chance)
    if chance.random() < 0.3:
        found["x-max-priority"] = chance.randint(1, 5)
    if chance.random() < 0.2:
        found["x-message-ttl"] = 3_600_000
    return found


def quorum_arguments(chance: random.Random) -> dict[str, Any]:
    """Return random arguments of a quorum queue."""
    found = _limits(chance) | {"x-queue-type": "quorum"}
    if chance.random() < 0.3:
        found["x-delivery-limit"] = chance.randint(1, 5)
    if "x-dead-letter-exchange" in found and chance.random() < 0.5:
        found |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return found


def stream_arguments(chance: random.Random) -> dict[str, Any]:
    """Return random arguments of a stream."""
    found: dict[str, Any] = {"x-queue-type": "stream"}
    if chance.random() < 0.5:
        found["x-stream-max-segment-size-bytes"] = chance.randint(2_000, 40_000)
    return found


class Program(threading.Thread):
    """One queue's clients: publishes, deliveries, acknowledgements and returns in random order until the server ends."""

    def __init__(self, judge: Judge, name: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.judge = judge
        self.queue = name
        self.chance = random.Random(seed)
        self.transient = 0.1 if name.startswith("c") else 0.0  # a restart drops those of classic queues
        self.number = 0
        self.held: list[tuple[Any, int]] = []
        self.steps = self.gets = self.consumes = 0

    def run(self) -> None:
        """Work until the connection breaks."""
        with contextlib.suppress(Exception):  # the server is killed at any moment
            connection = self.judge.connect()
            publisher = connection.channel()
            if self.chance.random() < 0.7:
                publisher.confirm_delivery()
            channels = [connection.channel() for _ in range(self.chance.randint(1, 3))]
            for channel in channels:
                channel.basic_qos(prefetch_count=self.chance.choice([1, 3, 10, 50]))
            while True:
                self._step(connection, publisher, channels)
                self.steps += 1

    def _step(self, connection: Any, publisher: Any, channels: list[Any]) -> None:
        chance = self.chance.random()
        if chance < 0.5 or self.queue.startswith("s"):
            self._publish(publisher)
            time.sleep(0.03 if self.queue.startswith("s") else 0)
        elif chance < 0.55:
            self._consume(self.chance.choice(channels))
        elif chance < 0.65:
            self._get(self.chance.choice(channels))
        elif chance < 0.92:
            self._settle()
        elif chance < 0.925:
            publisher.queue_purge(self.queue)
        elif chance < 0.94:
            self._cancel(self.chance.choice(channels))
        connection.process_data_events(0)

    def message(self) -> Any:
        """Return the properties of the next message."""
        import pika

        return pika.BasicProperties(
            message_id=f"{self.queue}-{self.number}",
            delivery_mode=1 if self.chance.random() < self.transient else 2,
            priority=self.chance.choice([None, 0, 1, 4, 5, 9]),
            headers={"n": self.number},
        )

    def _publish(self, channel: Any) -> None:
        import pika

        for _ in range(self.chance.choice([1, 1, 1, 4])):
            size = self.chance.choice([0, 1, 40, 300, 5000])
            properties = self.message()
            with contextlib.suppress(pika.exceptions.NackError, pika.exceptions.UnroutableError):
                channel.basic_publish("", self.queue, body(self.queue, self.number, size), properties)
            self.number += 1

    def _get(self, channel: Any) -> None:
        """Take one message; each that stays unsettled is a consumer, and the order of more than 32 is the runtime's secret."""
        method, _properties, _body = channel.basic_get(self.queue)
        if method is not None:
            self.gets += 1
            if self.gets < GETS_MAX:
                self.held.append((channel, method.delivery_tag))
            else:
                channel.basic_ack(method.delivery_tag)

    def _consume(self, channel: Any) -> None:
        if len(channel.consumer_tags) < 2 and self.consumes < CONSUMES_MAX:
            self.consumes += 1
            priority = {"x-priority": self.chance.randint(0, 5)} if self.chance.random() < 0.3 else {}
            channel.basic_consume(
                self.queue, lambda own, method, *_rest: self.held.append((own, method.delivery_tag)), arguments=priority
            )

    def _settle(self) -> None:
        if not self.held:
            return
        channel, tag = self.held.pop(self.chance.randrange(len(self.held)))
        kind = self.chance.random()
        if kind < 0.6:
            channel.basic_ack(tag)
        elif kind < 0.85:
            channel.basic_nack(tag, requeue=True)
        else:
            channel.basic_reject(tag, requeue=False)

    def _cancel(self, channel: Any) -> None:
        if channel.consumer_tags:
            channel.basic_cancel(self.chance.choice(channel.consumer_tags))


def run_and_kill(judge: Judge, names: list[str], seed: int, duration_s: float, steps_min: int = 0) -> int:
    """Run a program for each queue, kill the server after a time, and return the number of steps.

    A loaded machine takes longer until there are `steps_min` steps.
    """
    programs = [Program(judge, name, seed * 1000 + number) for number, name in enumerate(names)]
    for program in programs:
        program.start()
    time.sleep(duration_s)
    stop = time.monotonic() + _PATIENCE_S
    while sum(program.steps for program in programs) < steps_min and time.monotonic() < stop:
        time.sleep(0.1)
    judge.kill()
    for program in programs:
        program.join(30)
    return sum(program.steps for program in programs)
