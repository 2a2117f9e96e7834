"""The sink of a writer: it appends units to the queues of each kind, and items to the index.

Units are made from records alone, those of other kinds after the ordinary ones of the same range, and a range that is walked
again adds nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from commitlog import CHECK_POSITION, CommitLog, StoredMessage
from commitlog.topic_names import SCHEDULE_TOPIC
from consumequeue import BatchQueues, ConsumeQueue, ConsumeQueueExt, ConsumeQueues
from indexfile import IndexFiles
from indexfile._index_cy import IndexBuffer
from storageio import StoreError

from ..broker.config.topics import Topics
from .kinds import add_to_other_queues, other_units
from .kinds.batch import BatchUnits, QueueKey
from .kinds.extended import ExtendedUnits
from .kinds.scheduled import DelayLevels
from .walk import Sink


class QueueGap(StoreError):
    """A queue lacks units before the ones that are dispatched to it."""


class DerivedQueues:
    """The queues of one open store that the kernel does not build.  The dispatcher's thread writes them."""

    def __init__(
        self, log: CommitLog, queues: ConsumeQueues, topics: Topics, root: str, *, has_ext: bool,
        ext_file_size: int | None, batch: BatchQueues,
    ) -> None:  # fmt: skip
        """Create it for the store in `root`; `has_ext` is whether extended units are written."""
        self._log = log
        self._queues = queues
        self._batch_units = BatchUnits(batch, topics)
        self._ext = ExtendedUnits(queues, root, ext_file_size)
        self.batch = batch
        self.has_ext = has_ext
        self.levels = DelayLevels([])
        self.is_batch_topic = self._batch_units.is_batch_topic

    # Dispatch

    def applied(self, queue: ConsumeQueue, units: bytes | memoryview) -> bytes | memoryview:
        """Return the kernel's units with what is in place of their tags codes; write the extended units."""
        if queue.topic == SCHEDULE_TOPIC:
            self.levels.warn_of_unknown(queue, units)
            units = self.levels.corrected(units, self._log.message_at)
        return self._ext.written(queue, units, lambda at: self._log.message_at(at, CHECK_POSITION)) if self.has_ext else units

    def add(self, message: StoredMessage) -> None:
        """Append the units of a record in queues that the kernel does not build."""
        self._batch_units.add(message)
        add_to_other_queues(self._queues, message)

    def lacking(self, message: StoredMessage) -> Iterator[QueueKey]:
        """Yield the queues to which `add` would append a unit of a record."""
        for topic, queue_id, _, _ in other_units(message):
            if self.lacks(topic, queue_id, message):
                yield topic, queue_id
        if self._batch_units.lacks(message):
            yield message.topic, message.queue_id

    def lacks(self, topic: str, queue_id: int, message: StoredMessage) -> bool:
        """Return whether an ordinary queue has no unit of a record of its own yet."""
        queue = self._queues.get(topic, queue_id)
        return queue is None or queue.max_physical_offset < message.physical_offset + message.size

    @property
    def has_batch_topics(self) -> bool:
        """Whether any topic has batch queues."""
        return self._batch_units.has_topics

    def ext_reader(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        """Return a reader of a queue's extended units, or None if the queue has none."""
        return self._ext.reader(topic, queue_id)

    # Recovery and disk

    @property
    def are_kept(self) -> bool:
        """Whether there are batch queues or extended units, whose ends do not show whether units are missing."""
        return self.has_ext or self.has_batch_topics

    def recover(self, physical_offset: int) -> None:
        """Cut batch queues and extended units after an unclean stop; the ordinary queues are already cut."""
        self.batch.recover()
        self.batch.truncate(physical_offset)
        if self.has_ext:
            self._ext.recover()

    def lacks_batch_queues(self) -> bool:
        """Return whether topics should have batch queues and none exists."""
        return len(self.batch) == 0 and self.has_batch_topics

    def delete_expired(self, log_min_offset: int) -> None:
        """Delete files that only point at deleted records; the ordinary queues were done first."""
        self.batch.delete_expired(log_min_offset)
        if self.has_ext:
            self._ext.delete_expired()

    def flush(self) -> None:
        """Sync extended units before the queues that point at them."""
        self._ext.flush()
        self.batch.flush()

    def close(self) -> None:
        """Close every file of these queues."""
        self._ext.close()
        self.batch.close()


class WriteSink(Sink):
    """Appends what a walk derives to queues and to an index; None for what stays as it is."""

    def __init__(self, queues: ConsumeQueues | None, index: IndexFiles | None) -> None:
        """Both are opened for writing."""
        self._queues = queues
        self._index = index

    def item_buffer(self) -> IndexBuffer | None:
        """Return the newest index file, or a new one if that is full."""
        return self._index.active() if self._index is not None else None

    def take_run(self, topic: str, queue_id: int, first: int, units: memoryview) -> None:
        """Append units to their queue."""
        if self._queues is not None:
            queue = self._queues.get_or_add(topic, queue_id)
            self._queues.append_run(queue, first, self.applied(queue, first, units))

    def applied(self, queue: ConsumeQueue, first: int, units: memoryview) -> bytes | memoryview:
        """Return the kernel's units with what is in place of their tags codes."""
        return units

    def take_message(self, message: StoredMessage) -> None:
        """Append the units in queues of other topics."""
        if self._queues is not None:
            add_to_other_queues(self._queues, message)


class StoreSink(WriteSink):
    """Appends what a walk derives to the queues and the index of an open store."""

    def __init__(self, queues: ConsumeQueues, index: IndexFiles | None, derived: DerivedQueues) -> None:
        """`derived` has the queues that the kernel does not build."""
        super().__init__(queues, index)
        self.queues = queues
        self._derived = derived
        self.refuses_gaps = False  # raises `QueueGap` for a queue that lacks units of earlier records

    @property
    def takes_messages(self) -> bool:
        """Whether there are batch queues."""
        return self._derived.has_batch_topics

    def applied(self, queue: ConsumeQueue, first: int, units: memoryview) -> bytes | memoryview:
        """Return units with delivery times and addresses of extended units, which are written."""
        if self.refuses_gaps and first > queue.max_offset:
            raise QueueGap(f"{queue.topic}-{queue.queue_id} ends at {queue.max_offset}, the log goes on with {first}")
        return self._derived.applied(queue, units)

    def take_message(self, message: StoredMessage) -> None:
        """Append the units of every other kind."""
        self._derived.add(message)
