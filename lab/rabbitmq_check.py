"""The ledger of a RabbitMQ-style store, and what must hold of the store after a crash.

- every message that was published before a sync and never acknowledged is there, byte for byte, once and in order
- no message that was never published, and none that was acknowledged before a sync
- transient messages may be there before a restart, never after it
- the store's own counts are right, and `verify` finds no problem in the folder
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
    """What a crash at some moment must leave, and what must be gone; bodies by queue."""

    kept: dict[str, frozenset[bytes]]
    gone: dict[str, frozenset[bytes]]


class QueueLedger:
    """One queue's messages, in the order of publishing."""

    def __init__(self) -> None:
        """Start with a new queue."""
        self.published: list[bytes] = []  # persistent ones, including failed attempts
        self.confirmed: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.uncertain: set[bytes] = set()  # to be acknowledged by a call that has not returned, or failed
        self.gone: set[bytes] = set()  # acknowledged, and synced since

    @contextlib.contextmanager
    def acknowledging(self, bodies: set[bytes]) -> Iterator[None]:
        """While the block runs, the messages may or may not be there; afterwards they must not be."""
        self.uncertain |= bodies
        yield
        self.uncertain -= bodies
        self.acknowledged |= bodies

    def sync(self) -> None:
        """Mark everything so far as safe: what was published is there, what was acknowledged is gone."""
        self.confirmed.update(self.published)
        self.gone.update(self.acknowledged)


class RabbitLedger:
    """All queues of a virtual host."""

    def __init__(self) -> None:
        """Start with a new store."""
        self.queues: dict[str, QueueLedger] = {}
        self.deleted: set[str] = set()  # nothing is promised for what is left of them

    def floor(self) -> Floor:
        """Return what a crash at this moment must respect."""
        return Floor(
            {name: frozenset(queue.confirmed - queue.acknowledged - queue.uncertain) for name, queue in self.queues.items()},
            {name: frozenset(queue.gone) for name, queue in self.queues.items()},
        )

    def sync(self) -> None:
        """Mark every queue as synced."""
        for queue in self.queues.values():
            queue.sync()

    def cut(self, found: dict[str, list[bytes]]) -> None:
        """After a crash, count what remains as confirmed and drop the rest."""
        for name, queue in self.queues.items():
            queue.published = list(found.get(name, []))
            queue.confirmed, queue.acknowledged, queue.gone, queue.uncertain = set(queue.published), set(), set(), set()


def check_rabbit(store: RabbitStore, ledger: RabbitLedger, floor: Floor) -> dict[str, list[bytes]]:
    """Check a store that has just been recovered; return what its queues hold.

    It takes every message out, so the caller must abandon the store.
    """
    found = {name: take_all(store, name) for name in store.queue_names()}
    for name, kept in floor.kept.items():
        if name in ledger.deleted:
            continue
        bodies, queue = found.get(name, []), ledger.queues[name]
        known = set(queue.published)
        required = kept - queue.acknowledged - queue.uncertain
        lost = required.difference(bodies)
        must(
            not lost,
            f"queue {name} lost {len(lost)} of {len(required)} confirmed messages, the first {min(lost, default=b'')[:9]!r}",
        )
        must(len(bodies) == len(set(bodies)), f"queue {name} has a message twice")
        bodies = [body if body in known else torn_copy(body, queue.published) for body in bodies]
        strange = set(bodies).difference(queue.published)
        must(
            not strange,
            f"queue {name} has {len(strange)} unpublished messages: {min(strange, default=b'')[:40]!r}",
        )
        back = floor.gone[name].intersection(bodies)
        must(not back, f"queue {name} has {len(back)} messages back that were acknowledged for good")
        must(bodies == [body for body in queue.published if body in set(bodies)], f"queue {name} has another order")
    for name in found.keys() - ledger.queues.keys() - ledger.deleted:
        must(not found[name], f"queue {name} that was never declared has messages")
    for part in (store.parts.persistent, store.parts.transient):
        part.process()
        part.check()
    return found


def take_all(store: RabbitStore, queue: str) -> list[bytes]:
    """Return every waiting body of a queue in order; a message that the crash tore is skipped."""
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
    """Return the message that a torn write left zeros in, or `body` itself.

    RabbitMQ's files have no checksum of a message: a crash may leave the frame of an unconfirmed one and lose bytes of its
    body.  No reader can distinguish that from a message of zeros.
    """
    for candidate in published:
        if len(candidate) == len(body) and all(found in (0, byte) for found, byte in zip(body, candidate, strict=True)):
            return candidate
    return body


def check_folder(path: str, disk: ForgettingDisk) -> None:
    """Check that `verify` finds no damage in the files."""
    problems = verify(path, disk).problems
    must(not problems, f"verify finds {problems[:2]}")
