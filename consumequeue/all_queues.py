"""The queues of every kind of one store, looked up by topic and queue id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from .batch_queues import BatchQueues
from .consume_queues import ConsumeQueues
from .ordinary import ConsumeQueue
from .queue import Queue


class Lookup(Protocol):
    """What finds ordinary queues: `ConsumeQueues`, or for a reader a view that is refreshed before each lookup."""

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None without one."""

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""

    def discover(self) -> None:
        """Add queues whose folder appeared since."""


class AllQueues:
    """One lookup for queues of 20-byte units and batch queues.

    A topic has queues of one kind.  Where a folder has both, an ordinary queue hides the batch queue of its id.
    """

    def __init__(
        self, ordinary: ConsumeQueues, batch: BatchQueues, log_min_offset: Callable[[], int], view: Lookup | None = None
    ) -> None:
        """`view` brings ordinary queues up to date for a reader beside a writer; `log_min_offset` is where the log begins."""
        self._ordinary = ordinary
        self._batch = batch
        self._log_min_offset = log_min_offset
        self._lookup = view or ordinary

    def get(self, topic: str, queue_id: int) -> Queue | None:
        """Return the queue with everything that its files have now; None without one."""
        return self._lookup.get(topic, queue_id) or self._batch_queue(topic, queue_id)

    def _batch_queue(self, topic: str, queue_id: int) -> Queue | None:
        found = self._batch.get(topic, queue_id)
        if self._batch.files.writable:
            return found
        if found is None:
            self._batch.discover()
            found = self._batch.get(topic, queue_id)
        if found is not None:
            self._batch.files.log_min_offset = max(self._log_min_offset(), 0)
            found.refresh()
        return found

    def end_of(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's next message; 0 without the queue."""
        queue = self.get(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first offset of a queue and that of its next message; 0 and 0 without the queue."""
        queue = self.get(topic, queue_id)
        return (max(queue.min_offset, 0), queue.max_offset) if queue is not None else (0, 0)

    def each(self, topic: str, queue_id: int) -> Iterator[Queue]:
        """Yield the queues of both kinds: a topic whose kind was changed has both."""
        for found in (self._lookup.get(topic, queue_id), self._batch_queue(topic, queue_id)):
            if found is not None:
                yield found

    def records_from(self, topic: str, queue_id: int, physical_offset: int) -> Iterator[int]:
        """Yield the physical offsets of the records in the queues of both kinds from an offset of the log on."""
        for queue in self.each(topic, queue_id):
            yield from queue.records_from(physical_offset)

    def of_topic(self, topic: str) -> Iterator[Queue]:
        """Yield a topic's queues, batch queues first."""
        for queues in (self._batch, self._ordinary):
            yield from (queue for queue_id in queues.queue_ids(topic) if (queue := queues.get(topic, queue_id)) is not None)

    def topics(self) -> list[str]:
        """Return the topics with queues, sorted."""
        return sorted({*self._ordinary.topics(), *self._batch.topics()})

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted; a reader lists the folders."""
        found = self._lookup.queue_ids(topic)
        if not found and not self._batch.files.writable:
            self._batch.discover()
        return found or self._batch.queue_ids(topic)

    def discover(self) -> None:
        """Add queues whose folder appeared since (a reader beside a writer)."""
        self._lookup.discover()
        self._batch.discover()

    def __len__(self) -> int:
        """Return the number of queues."""
        return len(self._ordinary) + len(self._batch)
