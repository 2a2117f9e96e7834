"""The kill loop for the RabbitMQ-style store: publishers with confirms and consumers, killed at any moment.

Memory shared with the parent has the numbers of confirmed messages, of messages about to be acknowledged, and of
acknowledgements that a sync covers.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

from lab.rabbitmq_check import take_all
from rabbitstore import RabbitSettings, RabbitStore, StoreSettings, verify
from tests.faults.kill_loop import WRITERS, KillLoop, shared_counters

CONFIRMED, TAKEN, GONE = range(3)
PRIORITY = {0: 0, 1: 0, 2: 3}  # the last queue has priorities, but uses one, so order holds
WAITING_MAX = 400  # a publisher this far ahead waits for the consumer


def small() -> RabbitSettings:
    """Return settings with small message files, so that a short life rolls over and collects."""
    return RabbitSettings(store=StoreSettings(file_size_limit=65536))


def body_of(writer: int, number: int) -> bytes:
    """Return a body: small ones go into the index, large ones into the message store."""
    return f"{writer}:{number}:".encode() + bytes(6000 if number % 11 == 0 else number % 97)


def name_of(writer: int) -> str:
    """Return the name of a writer's queue."""
    return f"Q{writer}"


class RabbitKillLoop(KillLoop):
    """One virtual host in `folder`."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.shared = shared_counters(WRITERS * 3)
        self.present: list[set[int]] = [set() for _ in range(WRITERS)]  # seen after the last kill, so durable
        self.first = [0] * WRITERS  # the publisher's first number in this life

    def count(self, what: int, writer: int) -> int:
        """Return one of the shared counters."""
        return self.shared[3 * writer + what]

    def tell(self, what: int, writer: int, number: int) -> None:
        """Set one of the shared counters, in the child."""
        self.shared[3 * writer + what] = number

    def acknowledged(self, writer: int) -> int:
        """Return the number of confirmed messages of a writer."""
        return self.count(CONFIRMED, writer)

    def work(self, ready: int, *, is_idle: bool) -> None:
        """Run publishers and consumers until the kill; an idle child only opens the store."""
        store = RabbitStore.open(self.folder, "a", settings=small())
        if is_idle:
            threading.Event().wait()
        for writer in range(WRITERS):
            if name_of(writer) not in store.queue_names():
                store.declare_queue(name_of(writer), max_priority=PRIORITY[writer])
        work = [threading.Thread(target=call, args=(store, n)) for n in range(WRITERS) for call in (self._publish, self._take)]
        for thread in work:
            thread.start()
        os.write(ready, b"x")
        for thread in work:
            thread.join()

    def _publish(self, store: RabbitStore, writer: int) -> None:
        publisher, number = store.publisher(), self.first[writer]
        chance = random.Random(number)
        while True:
            for _ in range(chance.randrange(1, 9)):
                publisher.publish(name_of(writer), body_of(writer, number))
                number += 1
            if chance.random() < 0.5 or number > self.count(TAKEN, writer) + WAITING_MAX:
                publisher.wait()
                self.tell(CONFIRMED, writer, number)

    def _take(self, store: RabbitStore, writer: int) -> None:
        chance = random.Random(writer)
        while True:
            delivery = store.get(name_of(writer))
            if delivery is None:
                continue
            number = int(delivery.body.split(b":")[1])
            self.tell(TAKEN, writer, number + 1)
            store.ack(delivery)
            if chance.random() < 0.05:
                store.sync()
                self.tell(GONE, writer, number + 1)

    def check(self) -> None:
        """Assert that confirmed messages survive, synced acknowledgements hold, and messages are in order, once, unchanged."""
        store = RabbitStore.open(self.folder, "a", settings=small())
        for writer in range(WRITERS):
            declared = name_of(writer) in store.queue_names()
            bodies = take_all(store, name_of(writer)) if declared else []
            numbers = [int(body.split(b":")[1]) for body in bodies]
            at = f"cycle {self.cycles}, queue {name_of(writer)}"
            assert bodies == [body_of(writer, number) for number in numbers], f"{at}: other messages than were published"
            assert numbers == sorted(set(numbers)), f"{at}: twice, or out of order"
            confirmed = set(range(self.first[writer], self.count(CONFIRMED, writer)))
            expected = {n for n in self.present[writer] | confirmed if n >= self.count(TAKEN, writer)}
            assert expected <= set(numbers), f"{at}: confirmed and lost: {sorted(expected - set(numbers))[:5]}"
            back = [n for n in numbers if n < self.count(GONE, writer)]
            assert not back, f"{at}: acknowledged for good, and back: {back[:5]}"
            self.present[writer] = set(numbers)
            known = (*numbers[-1:], self.count(TAKEN, writer) - 1, self.count(CONFIRMED, writer) - 1, self.first[writer] - 1)
            self.first[writer] = max(known) + 1
        if self.chance.random() < 0.5:
            store.close()
        else:
            store.abandon()
        if self.cycles % 10 == 0:
            assert verify(str(self.folder)).problems == []
