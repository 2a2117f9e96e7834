"""What a RabbitMQ-style store was given and promised, and what must hold of it after a crash.

- every message that was published with a sync behind it and never acknowledged is there, byte for byte, once and in order
- no message that was never published; none that was acknowledged with a sync behind that
- transient messages may be there before a restart, never after it
- the store's own counts are right, and `verify` finds no fault in the folder
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from rabbitstore import RabbitStore, verify
from storageio import StoreCorrupt
from storageio.testing import ForgettingDisk

from .rocketmq_check import must


class Floor(NamedTuple):
    """What a crash at some moment may take and must leave; bodies by queue."""

    kept: dict[str, frozenset[bytes]]
    gone: dict[str, frozenset[bytes]]


class QueueLedger:
    """One queue's messages, in the order they were published."""

    def __init__(self) -> None:
        """Of a new queue."""
        self.published: list[bytes] = []  # persistent ones, tried ones among them
        self.confirmed: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.doubtful: set[bytes] = set()  # to be acknowledged by a call that has not returned, or failed
        self.gone: set[bytes] = set()  # acknowledged, and synced since

    @contextlib.contextmanager
    def acknowledging(self, bodies: set[bytes]) -> Iterator[None]:
        """While this is done nobody knows whether they are there; afterwards they are not wanted."""
        self.doubtful |= bodies
        yield
        self.doubtful -= bodies
        self.acknowledged |= bodies

    def sync(self) -> None:
        """Everything so far is safe: what was published is there, what was acknowledged is not."""
        self.confirmed.update(self.published)
        self.gone.update(self.acknowledged)


class RabbitLedger:
    """All queues of a virtual host."""

    def __init__(self) -> None:
        """Of a new store."""
        self.queues: dict[str, QueueLedger] = {}
        self.deleted: set[str] = set()  # what is left of them is nobody's promise

    def floor(self) -> Floor:
        """As a crash now would have to respect it."""
        return Floor(
            {name: frozenset(queue.confirmed - queue.acknowledged - queue.doubtful) for name, queue in self.queues.items()},
            {name: frozenset(queue.gone) for name, queue in self.queues.items()},
        )

    def sync(self) -> None:
        """Of every queue."""
        for queue in self.queues.values():
            queue.sync()

    def cut(self, found: dict[str, list[bytes]]) -> None:
        """After a crash: what is left was confirmed, the rest never was."""
        for name, queue in self.queues.items():
            queue.published = list(found.get(name, []))
            queue.confirmed, queue.acknowledged, queue.gone, queue.doubtful = set(queue.published), set(), set(), set()


def check_rabbit(store: RabbitStore, ledger: RabbitLedger, floor: Floor) -> dict[str, list[bytes]]:
    """An open store, just recovered; what its queues hold.  Takes every message out, so that it is to be abandoned."""
    found = {name: take_all(store, name) for name in store.queue_names()}
    for name, kept in floor.kept.items():
        if name in ledger.deleted:
            continue
        bodies, queue = found.get(name, []), ledger.queues[name]
        known = set(queue.published)
        wanted = kept - queue.acknowledged - queue.doubtful
        lost = wanted.difference(bodies)
        must(
            not lost,
            f"queue {name} lost {len(lost)} of {len(wanted)} confirmed messages, the first {min(lost, default=b'')[:9]!r}",
        )
        must(len(bodies) == len(set(bodies)), f"queue {name} has a message twice")
        bodies = [body if body in known else torn_copy(body, queue.published) for body in bodies]
        strange = set(bodies).difference(queue.published)
        must(not strange, f"queue {name} has {len(strange)} messages that nobody published: {min(strange, default=b'')[:40]!r}")
        back = floor.gone[name].intersection(bodies)
        must(not back, f"queue {name} has {len(back)} messages back that were acknowledged for good")
        must(bodies == [body for body in queue.published if body in set(bodies)], f"queue {name} has another order")
    for name in found.keys() - ledger.queues.keys() - ledger.deleted:
        must(not found[name], f"queue {name} that nobody declared has messages")
    for part in (store.parts.persistent, store.parts.transient):
        part.process()
        part.check()
    return found


def take_all(store: RabbitStore, queue: str) -> list[bytes]:
    """Every body that waits in a queue, in order.  What a crash tore is named by its fetch, and is none."""
    bodies: list[bytes] = []
    while True:
        try:
            delivery = store.get(queue)
        except StoreCorrupt:
            continue
        if delivery is None:
            return bodies
        bodies.append(delivery.body)


def torn_copy(body: bytes, published: list[bytes]) -> bytes:
    """The message that a torn write left zeros in; `body` itself where there is none.

    RabbitMQ's files have no checksum of a message: of one that was not confirmed a crash may leave the frame and lose bytes
    of the body, and no reader can tell that from a message of zeros.
    """
    for wanted in published:
        if len(wanted) == len(body) and all(found in (0, byte) for found, byte in zip(body, wanted, strict=True)):
            return wanted
    return body


def check_folder(path: str, disk: ForgettingDisk) -> None:
    """Nothing in the files that a reader would call damage."""
    problems = verify(path, disk).problems
    must(not problems, f"verify finds {problems[:2]}")
