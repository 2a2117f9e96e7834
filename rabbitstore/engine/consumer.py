"""A consumer with a prefetch limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from storageio import Closing, StoreClosed

from .live_queue import Delivery, LiveQueue


class RabbitConsumer(Closing):
    """Receives messages of one queue, at most `prefetch` unacknowledged at a time (0: no limit).

    A message that is published while it waits at the empty queue bypasses the queue.  `close` requeues what it has not
    acknowledged.
    """

    def __init__(self, queue: LiveQueue, prefetch: int) -> None:
        """Create it with `RabbitStore.consumer`."""
        self._queue = queue
        self._prefetch = prefetch
        self._held: set[int] = set()
        self._is_closed = False

    def get(self, timeout_s: float | None = 0) -> Delivery | None:
        """Return the next message; None after `timeout_s` (None: no limit) or at the prefetch limit."""
        found = self.get_many(1, timeout_s)
        return found[0] if found else None

    def get_many(self, count: int, timeout_s: float | None = 0) -> list[Delivery]:
        """Return up to `count` messages; of an empty queue the first one that comes within `timeout_s`."""
        queue = self._queue
        with queue.lock:
            if self._is_closed or queue.is_deleted:
                raise StoreClosed("the consumer is closed")
            count = min(count, self._prefetch - len(self._held)) if self._prefetch else count
            if count <= 0:
                return []
            found = queue.get_many(count)
            if not found and timeout_s != 0:
                arrived = self._wait(timeout_s)
                found = [] if arrived is None else [arrived]
            self._held.update(delivery.tag for delivery in found)
            return found

    def _wait(self, timeout_s: float | None) -> Delivery | None:
        queue = self._queue
        queue.waiting_consumers += 1
        try:
            queue.arrived.wait_for(lambda: queue.direct or len(queue) or queue.is_deleted or self._is_closed, timeout_s)
        finally:
            queue.waiting_consumers -= 1
        if self._is_closed or queue.is_deleted:
            queue.take_back_direct()
            return None
        return queue.take_direct() or queue.get()

    def __iter__(self) -> Iterator[Delivery]:
        """Yield messages until the queue is empty or the prefetch limit is reached."""
        while (found := self.get()) is not None:
            yield found

    def ack(self, delivery: Delivery, *, multiple: bool = False) -> int:
        """Acknowledge a delivery, with `multiple` all of this consumer up to it; return how many.

        A second acknowledgement raises `UnknownDelivery`, where RabbitMQ closes the channel; with `multiple` it returns 0.
        """
        count = 0
        for tag in self._tags(delivery, multiple):
            try:
                count += self._queue.acknowledge(tag)
            finally:
                self._release((tag,))
        return count

    def ack_many(self, deliveries: Iterable[Delivery]) -> int:
        """Acknowledge deliveries of this consumer and return how many; for an unknown or repeated one change nothing."""
        tags = [delivery.tag for delivery in deliveries]
        try:
            return self._queue.acknowledge_many(tags)
        finally:
            self._release(tags)

    def requeue(self, delivery: Delivery, *, multiple: bool = False) -> None:
        """Return a delivery, with `multiple` all of this consumer up to it, to their old positions in the queue."""
        tags = self._tags(delivery, multiple)
        try:
            self._queue.requeue_tags(tags)
        finally:
            self._release(tags)

    def _release(self, tags: Iterable[int]) -> None:
        """Drop the tags that the queue no longer counts as delivered: a failed call may have settled some."""
        self._held.difference_update(tag for tag in tags if tag not in self._queue.unacked)

    def _tags(self, delivery: Delivery, multiple: bool) -> list[int]:
        return sorted(tag for tag in self._held if tag <= delivery.tag) if multiple else [delivery.tag]

    def close(self) -> None:
        """Requeue what was not acknowledged."""
        with self._queue.lock:
            self._is_closed = True
            if not self._queue.is_deleted:
                self._queue.requeue_tags(sorted(self._held))
            self._held.clear()
