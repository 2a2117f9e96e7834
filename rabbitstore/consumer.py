"""A consumer with prefetch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from storageio import StoreClosed

from .live_queue import Delivery, LiveQueue


class Consumer:
    """Takes messages of one queue as they come, at most `prefetch` unacknowledged at a time (0: no limit).

    A message published while it waits at the empty queue goes straight to it.  On close, what it has not acknowledged goes
    back to the queue.
    """

    def __init__(self, queue: LiveQueue, prefetch: int) -> None:
        """Made by `RabbitStore.consumer`."""
        self._queue = queue
        self._prefetch = prefetch
        self._held: set[int] = set()
        self._is_closed = False

    def get(self, timeout_s: float | None = 0) -> Delivery | None:
        """The next message; None when none comes in time (None: waits for ever) or the prefetch limit is reached."""
        queue = self._queue
        with queue.lock:
            if self._is_closed or queue.is_deleted:
                raise StoreClosed("the consumer is closed")
            if self._prefetch and len(self._held) >= self._prefetch:
                return None
            found = queue.get()
            if found is None and timeout_s != 0:
                found = self._wait(timeout_s)
            if found is not None:
                self._held.add(found.tag)
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
        """Until the queue is empty or the prefetch limit is reached."""
        while (found := self.get()) is not None:
            yield found

    def ack(self, delivery: Delivery, *, multiple: bool = False) -> int:
        """Acknowledge a delivery; with `multiple`, all of this consumer's up to it.  Return how many were acknowledged.

        A second acknowledgement raises `UnknownDelivery`, as the server closes the channel; with `multiple` it returns 0.
        """
        count = 0
        for tag in self._tags(delivery, multiple):
            try:
                count += self._queue.acknowledge(tag)
            finally:
                self._let_go((tag,))
        return count

    def requeue(self, delivery: Delivery, *, multiple: bool = False) -> None:
        """Back to its old place in the queue."""
        tags = self._tags(delivery, multiple)
        try:
            self._queue.requeue_tags(tags)
        finally:
            self._let_go(tags)

    def _let_go(self, tags: Iterable[int]) -> None:
        """Of what the queue no longer counts as delivered: a failed call may have settled a part."""
        self._held.difference_update(tag for tag in tags if tag not in self._queue.unacked)

    def _tags(self, delivery: Delivery, multiple: bool) -> list[int]:
        return sorted(tag for tag in self._held if tag <= delivery.tag) if multiple else [delivery.tag]

    def close(self) -> None:
        """Give back what was not acknowledged."""
        with self._queue.lock:
            self._is_closed = True
            if not self._queue.is_deleted:
                self._queue.requeue_tags(sorted(self._held))
            self._held.clear()

    def __enter__(self) -> Consumer:
        """For `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
