"""The kill loop for the RabbitMQ-style store: publishers with confirms and consumers, killed at any moment.

What was confirmed, what a consumer was about to acknowledge and what it acknowledged with a sync behind it are counted in
memory shared with the parent.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

from brokerstore.testing.rabbitmq_check import take_all
from rabbitstore import RabbitSettings, RabbitStore, StoreSettings, verify
from tests.faults.kill_loop import WRITERS, KillLoop, shared_counters

CONFIRMED, TAKEN, GONE = range(3)
PRIORITY = {0: 0, 1: 0, 2: 3}  # the last queue has parts for priorities; only one is used, so that order holds
WAITING_MAX = 400  # a publisher that is further ahead stops until the consumer has caught up


def small() -> RabbitSettings:
    """Small message files, so that a short life rolls over and collects."""
    return RabbitSettings(store=StoreSettings(file_size_limit=65536))


def body_of(writer: int, number: int) -> bytes:
    """Small ones go into the index, large ones into the message store."""
    return f"{writer}:{number}:".encode() + bytes(6000 if number % 11 == 0 else number % 97)


def name_of(writer: int) -> str:
    """Of a writer's queue."""
    return f"Q{writer}"


class RabbitKillLoop(KillLoop):
    """One virtual host in `folder`."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.shared = shared_counters(WRITERS * 3)
        self.present: list[set[int]] = [set() for _ in range(WRITERS)]  # seen after the last kill: in the files for good
        self.first = [0] * WRITERS  # number that this life's publisher begins with

    def count(self, what: int, writer: int) -> int:
        """One of the shared counters."""
        return self.shared[3 * writer + what]

    def tell(self, what: int, writer: int, number: int) -> None:
        """Set one, in the child."""
        self.shared[3 * writer + what] = number

    def acknowledged(self, writer: int) -> int:
        """Confirmed messages of a writer."""
        return self.count(CONFIRMED, writer)

    def work(self, ready: int, *, is_idle: bool) -> None:
        """In the child: publishers and consumers until the kill; idle ones only open."""
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
        """Confirmed and not taken: there. Acknowledged and synced: not there. In order, each once, byte for byte."""
        store = RabbitStore.open(self.folder, "a", settings=small())
        for writer in range(WRITERS):
            declared = name_of(writer) in store.queue_names()
            bodies = take_all(store, name_of(writer)) if declared else []
            numbers = [int(body.split(b":")[1]) for body in bodies]
            at = f"cycle {self.cycles}, queue {name_of(writer)}"
            assert bodies == [body_of(writer, number) for number in numbers], f"{at}: other messages than were published"
            assert numbers == sorted(set(numbers)), f"{at}: twice, or out of order"
            confirmed = set(range(self.first[writer], self.count(CONFIRMED, writer)))
            wanted = {n for n in self.present[writer] | confirmed if n >= self.count(TAKEN, writer)}
            assert wanted <= set(numbers), f"{at}: confirmed and lost: {sorted(wanted - set(numbers))[:5]}"
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
