"""Queues that the dispatch kernel does not build: LMQs (light message queues), batch queues, and extended units.

LMQ units are built wherever a record has offsets in LMQs, whatever the configuration; the others only where the configuration
or the folder has them.  All are built from records alone, after the ordinary queues of the same batch, and a batch that is
dispatched again adds nothing twice.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator

from commitlog import CHECK_PLACE, CommitLog, MappedFile, StoredMessage
from commitlog.java_numbers import is_java_number
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from commitlog.topic_names import LMQ_PREFIX, SCHEDULE_TOPIC
from consumequeue import BatchQueues, BatchUnit, ConsumeQueue, ConsumeQueueExt, ConsumeQueues, ExtUnit, ExtWriter, QueueFiles
from consumequeue.ext import ext_folder, is_ext_address
from consumequeue.layout import EXT_FILE_SIZE_DEFAULT, UNIT, UNIT_SIZE
from storebytes.java_hash import java_hash_code

from ..broker.config.topics import Topics
from ..delay_levels import DelayLevels
from ..property_names import INNER_BASE, INNER_COUNT
from .lmq_units import lmq_offsets

LOG = logging.getLogger(f"brokerstore.{__name__}")
BATCH_AT_ONCE = 256
NO_NUMBERS = -1, 0


class DerivedQueues:
    """The queues of one open store that the kernel does not build.  The dispatcher's thread writes them."""

    def __init__(
        self, log: CommitLog, queues: ConsumeQueues, topics: Topics, root: str, *, has_ext: bool,
        ext_file_size: int | None, batch: BatchQueues,
    ) -> None:  # fmt: skip
        """Create it for the store in `root`; `has_ext` is whether extended units are written."""
        self._log = log
        self._queues = queues
        self._topics = topics
        self.batch = batch
        self.has_ext = has_ext
        self.levels = DelayLevels([])
        self._is_unsure_logged = False
        self._ext_root = os.path.join(root, "consumequeue_ext")
        self._ext_file_size = ext_file_size or EXT_FILE_SIZE_DEFAULT
        self._ext_files = QueueFiles(queues.disk, writable=queues.files.writable)
        self._writers: dict[tuple[str, int], ExtWriter] = {}

    # Dispatch

    def dispatch(self, file: MappedFile, start: int, stop: int, *, has_lmqs: bool) -> None:
        """Dispatch the records of a file from position `start` to `stop`; `has_lmqs` is whether any may be in LMQs."""
        if not has_lmqs and not self.has_batch_topics:
            return
        for message in self._messages(file, start, stop):
            if message.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
                continue
            if self.is_batch_topic(message.topic):
                self._add_batch(message)
            if has_lmqs:
                self._add_to_lmqs(message)

    def lacking(
        self, file: MappedFile, start: int, stop: int, *, has_lmqs: bool, is_ignored: Callable[[str], bool]
    ) -> Iterator[tuple[tuple[str, int], bool]]:  # fmt: skip
        """Yield batch queues and LMQs that lack a unit, for the records that `dispatch` would be given.

        Each comes with whether it is the first queue found to lack that record; an ordinary one may lack it too.
        """
        if not has_lmqs and not self.has_batch_topics:
            return
        for message in self._messages(file, start, stop):
            if message.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
                continue
            lacking_keys = [(name, 0) for name, _ in lmq_offsets(message) if self._lacks(name, 0, message)] if has_lmqs else []
            if self.is_batch_topic(message.topic) and self._lacks_batch(message):
                lacking_keys.append((message.topic, message.queue_id))
            is_first = is_ignored(message.topic) or not self._lacks(message.topic, message.queue_id, message)
            for queue_key in dict.fromkeys(lacking_keys):
                yield queue_key, is_first
                is_first = False

    def _lacks(self, topic: str, queue_id: int, message: StoredMessage) -> bool:
        queue = self._queues.get(topic, queue_id)
        return queue is None or queue.max_physical_offset < message.physical_offset + message.size

    def _lacks_batch(self, message: StoredMessage) -> bool:
        queue = self.batch.get(message.topic, message.queue_id)
        is_behind = queue is None or queue.max_physical_offset < message.physical_offset
        return is_behind and batch_unit(message).is_valid

    @property
    def has_batch_topics(self) -> bool:
        """Whether any topic has batch queues."""
        return self.batch.is_used or any(self.is_batch_topic(name) for name in self._topics.names())

    def is_batch_topic(self, topic: str) -> bool:
        """Return whether a topic has batch queues, by its attribute or by the queues that exist."""
        config = self._topics.get(topic)
        return (config is not None and config.is_batch) or self.batch.knows(topic)

    def _messages(self, file: MappedFile, start: int, stop: int) -> Iterator[StoredMessage]:
        reader = self._log.reader(file)
        at, why = start, "full"
        while why == "full" and at < stop:
            messages, at, why = reader.decode_range(at, stop, BATCH_AT_ONCE, CHECK_PLACE)
            yield from messages

    def _add_to_lmqs(self, message: StoredMessage) -> None:
        """Append a unit to each LMQ of a record, at the queue's end.

        Readers see the position; the number in the record is only where the unit was meant to be.
        """
        unit = UNIT.pack(message.physical_offset, message.size, _tags_code(message))
        for name, offset in lmq_offsets(message):
            queue = self._queues.get_or_add(name, 0)
            if message.physical_offset + message.size > queue.max_physical_offset:
                self._queues.append_run(queue, queue.max_offset if queue.starts else offset, unit)

    def _add_batch(self, message: StoredMessage) -> None:
        """Append a batch unit, which has the number of messages in the record."""
        unit = batch_unit(message)
        if unit.is_valid:
            self.batch.get_or_add(message.topic, message.queue_id).append(unit)

    # Extended units

    def extended(self, queue: ConsumeQueue, units: bytes | memoryview, file: MappedFile) -> bytes | memoryview:
        """Write extended units; return the units with addresses in place of their tags codes."""
        if queue.topic == SCHEDULE_TOPIC:
            units = self._scheduled(queue, units)
        if not self.has_ext or queue.topic.startswith(LMQ_PREFIX):
            return units
        writer = self._writer(queue.topic, queue.queue_id)
        made = bytearray()
        for physical, size, code in UNIT.iter_unpack(units):
            message = self._log.reader(file).decode(physical - file.start_offset, CHECK_PLACE)
            is_new = physical + size > queue.max_physical_offset
            if is_new and message is not None:
                code = writer.append(ExtUnit(code, message.store_timestamp_ms, b"", 0))
            made += UNIT.pack(physical, size, code)
        return bytes(made)

    def _scheduled(self, queue: ConsumeQueue, units: bytes | memoryview) -> bytes | memoryview:
        """Return the units of delayed messages, with delivery times by the levels in force when each was put."""
        first = UNIT.unpack_from(units)[0]
        if self.levels.at(first) is None and first > queue.max_physical_offset and not self._is_unsure_logged:
            self._is_unsure_logged = True
            LOG.warning(
                "%s: delivery times from offset %d on are made by the current delay levels: those of the time are not known",
                queue.folder, first,
            )  # fmt: skip
        return self.levels.corrected(units, self._log.message_at)

    def _writer(self, topic: str, queue_id: int) -> ExtWriter:
        found = self._writers.get((topic, queue_id))
        if found is None:
            found = ExtWriter(self._ext_root, topic, queue_id, self._ext_file_size, self._ext_files)
            self._writers[topic, queue_id] = found
        return found

    def ext_reader(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        """Return a reader of a queue's extended units, or None if the queue has none."""
        folder = ext_folder(self._ext_root, topic, queue_id)
        return ConsumeQueueExt(self._queues.disk, folder) if self._queues.disk.stat(folder) is not None else None

    # Recovery and disk

    @property
    def are_kept(self) -> bool:
        """Whether there are batch queues or extended units, whose ends do not show whether units are missing."""
        return self.has_ext or self.has_batch_topics

    def recover(self, physical_offset: int) -> None:
        """Cut batch queues and extended units after an unclean stop; the ordinary queues are already cut.

        Deletes an ordinary queue whose last address leads to no extended unit, so that it is built again.
        """
        self.batch.recover()
        self.batch.truncate(physical_offset)
        for queue in list(self._queues) if self.has_ext else ():
            if not self._writer(queue.topic, queue.queue_id).truncate(_last_address(queue)):
                self._writer(queue.topic, queue.queue_id).truncate(None)
                self._queues.remove(queue.topic, queue.queue_id)

    def lacks_batch_queues(self) -> bool:
        """Return whether topics should have batch queues and none exists."""
        return len(self.batch) == 0 and self.has_batch_topics

    def delete_expired(self, log_min_offset: int) -> None:
        """Delete files that only point at deleted records; the ordinary queues were done first."""
        self.batch.delete_expired(log_min_offset)
        for queue in list(self._queues) if self.has_ext else ():
            first = queue.unit(queue.min_offset)
            if first is not None and is_ext_address(first.tags_code):
                self._writer(queue.topic, queue.queue_id).delete_before(first.tags_code)

    def flush(self) -> None:
        """Sync extended units before the queues that point at them."""
        for writer in list(self._writers.values()):
            writer.flush()
        self.batch.flush()

    def close(self) -> None:
        """Close every file of these queues."""
        self._ext_files.close()
        self.batch.close()


def _last_address(queue: ConsumeQueue) -> int | None:
    """Return the address of the newest extended unit of a queue, or None.

    Later units may have none, because the broker had them disabled.
    """
    for start in reversed(queue.starts):
        units = queue.rest(start) or b""
        for at in range(len(units) - UNIT_SIZE, -1, -UNIT_SIZE):
            code: int = UNIT.unpack_from(units, at)[2]
            if is_ext_address(code):
                return code
    return None


def batch_unit(message: StoredMessage) -> BatchUnit:
    """Return the batch unit of a record; it is invalid if the properties lack the numbers."""
    pairs = message.all_properties
    base, count = message.queue_offset, 1
    if INNER_BASE in pairs and INNER_COUNT in pairs:
        are_numbers = is_java_number(pairs[INNER_BASE], 64) and is_java_number(pairs[INNER_COUNT], 16)
        base, count = (int(pairs[INNER_BASE]), int(pairs[INNER_COUNT])) if are_numbers else NO_NUMBERS
    return BatchUnit(message.physical_offset, message.size, _tags_code(message), message.store_timestamp_ms, base, count)


def _tags_code(message: StoredMessage) -> int:
    return java_hash_code(message.tags) if message.tags else 0
