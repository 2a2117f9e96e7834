"""Read and write `config/consumerOffset.json`: the next offset of each group in each queue.

The file's keys are `topic@group`. The key of a broadcast group has a third part; its offsets are kept, and clamped with the
others, but cannot be queried here. `groupTopicMap` is derived from the keys when the file is written.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from commitlog.topic_names import LMQ_PREFIX
from storageio import Disk, InvalidMessage

from .ack_file import NO_OFFSET, AckedQueue, AckFile, Key, QueueLease
from .config_files import Document
from .config_table import INT64_MAX, ConfigTable

JOINT = "@"
VERSION_STEP = 500  # commits per step of dataVersion, as in the broker
QUEUE_ID_MAX = (1 << 31) - 1

EndOf = Callable[[str, int], int]


class ClampedOffset(NamedTuple):
    """An offset that was negative or behind the end of its queue."""

    key: str
    queue_id: int
    before: int
    after: int


class OffsetTable(ConfigTable):
    """A table with offsets in queues."""

    @abstractmethod
    def _rows(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield key, topic, queue id and offset of each row."""

    @abstractmethod
    def _set(self, key: str, queue_id: int, offset: int) -> None:
        """Set the offset of a row."""

    def clamp(self, end_of: EndOf) -> list[ClampedOffset]:
        """Clamp every offset to 0 and `end_of(topic, queue_id)` and return the changes.

        Otherwise consumers would skip new messages after the log was cut.
        """
        with self._lock:
            rows = [
                ClampedOffset(key, queue_id, offset, max(0, min(offset, end_of(topic, queue_id))))
                for key, topic, queue_id, offset in self._rows()
            ]
            changed = [row for row in rows if row.before != row.after]
            for change in changed:
                self._set(change.key, change.queue_id, change.after)
            if changed:
                self._change()
            return changed


class ConsumerOffsets(OffsetTable):
    """The offset of the next message for each topic, group and queue id."""

    file_name = "consumerOffset.json"
    table_name = "offsetTable"
    rocksdb_name = "offsets"

    def __init__(self, disk: Disk, folder: str) -> None:
        """Read the file. `folder` is the store's `config/`."""
        self._commits = 0
        self._acks: AckFile | None = None
        self._restored: dict[Key, set[int]] = {}  # `done` of a writer's file, for readers
        super().__init__(disk, folder)
        self._saved = _flat(self.document())

    def _take(self, table: Document) -> None:
        self._table: dict[str, dict[int, int]] = {}
        for key, offsets in table.items():
            if not isinstance(offsets, dict):
                raise self.corrupt(f"{self.table_name}.{key}", "a map", offsets)
            self._table[str(key)] = self.offsets(offsets, where=f"{self.table_name}.{key}")

    def _fill(self, document: Document) -> None:
        document[self.table_name] = {key: dict(offsets) for key, offsets in self._table.items()}
        document["groupTopicMap"] = self._group_topics(self._map_of("groupTopicMap"))

    def _group_topics(self, before: Document) -> Document:
        """Return a map from group to topics; entries of `before` keep their order."""
        expected: dict[str, dict[str, None]] = {}
        for topic, group in _pairs(self._keys()):
            expected.setdefault(group, {})[topic] = None
        found: Document = {}
        for group in [*(str(group) for group in before if group in expected), *expected]:
            if group not in found:
                old = before.get(group)
                kept = [topic for topic in old if topic in expected[group]] if isinstance(old, list) else []
                found[group] = list(dict.fromkeys([*kept, *expected[group]]))
        return found

    def _keys(self) -> list[str]:
        return list(self._table)

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the next offset to read; None if the group has committed none for the queue."""
        with self._lock:
            self.take_leased()
            return self._table.get(topic + JOINT + group, {}).get(queue_id)

    def offsets_of(self, topic: str, group: str) -> dict[int, int]:
        """Return a map from queue id to next offset."""
        with self._lock:
            self.take_leased()
            return dict(self._table.get(topic + JOINT + group, {}))

    def groups(self, topic: str | None = None) -> list[str]:
        """Return all groups, or those that have read a topic, sorted."""
        with self._lock:
            return sorted({group for name, group in _pairs(self._keys()) if topic in (None, name)})

    def pairs(self) -> list[tuple[str, str]]:
        """Return every (group, topic), sorted."""
        with self._lock:
            return sorted({(group, topic) for topic, group in _pairs(self._keys())})

    def topics(self, group: str) -> list[str]:
        """Return the topics that a group has read, sorted."""
        with self._lock:
            return sorted({topic for topic, name in _pairs(self._keys()) if name == group})

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set the next offset to read, forward or backward. `persist` writes it to the file."""
        key = check_key(topic, group)
        check_offset(queue_id, offset)
        with self._lock:
            self._set(key, queue_id, offset)
            self._count_commit(key, queue_id, offset)

    def _set(self, key: str, queue_id: int, offset: int) -> None:
        self._table.setdefault(key, {})[queue_id] = offset

    def _count_commit(self, key: str, queue_id: int, offset: int) -> None:
        self._commits += 1
        self._change(counts=self._commits % VERSION_STEP == 0)
        if self._acks is not None:
            self._acks.record((key, queue_id), offset)

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set the next offset as `commit` does; what is acknowledged behind it is delivered again."""
        with self._lock:
            self.commit(topic, group, queue_id, offset)
            if self._acks is not None:
                self._acks.forget_done((topic + JOINT + group, queue_id))

    # What another process acknowledges

    def lease(self, topic: str, group: str, queue_id: int, next_offset: int, position: int) -> QueueLease | None:
        """Let another process acknowledge messages of a queue itself, unless the group is ahead of it; None if it cannot."""
        with self._lock:
            if self._acks is None or group.startswith(LMQ_PREFIX) or (self.get(topic, group, queue_id) or 0) > next_offset:
                return None
            return self._acks.lease((check_key(topic, group), queue_id), position)

    def end_lease(self, lease: QueueLease) -> None:
        """Take what the other process did, and end the lease: it has to ask from now on."""
        with self._lock:
            if self._acks is not None:
                self._acks.end_lease(lease)
                self._take_lease(lease)

    def take_leased(self) -> None:
        """Take what other processes acknowledged."""
        with self._lock:
            for lease in self._acks.leases() if self._acks is not None else ():
                self._take_lease(lease)

    def _take_lease(self, lease: QueueLease) -> None:
        key, queue_id = lease.key
        if lease.next_offset > self._table.get(key, {}).get(queue_id, 0):
            self._set(key, queue_id, lease.next_offset)
            self._commits += 1
            self._change(counts=self._commits % VERSION_STEP == 0)

    def persist(self) -> bool:
        """Write changes durably, as every table, with what other processes acknowledged."""
        self.take_leased()
        return super().persist()

    # What a killed process leaves

    def restore(self, found: Iterable[AckedQueue], end_of: EndOf | None = None) -> list[AckedQueue]:
        """Take what the last writer acknowledged after it wrote the file, and return the queues for which that counts.

        The offset in the file holds where it is none that this writer wrote: then another program consumed.  With `end_of`
        nothing behind the end of a queue counts, because the log lost it.
        """
        kept = []
        with self._lock:
            for queue in found:
                saved = self._saved.get((queue.key, queue.queue_id), NO_OFFSET)
                if saved not in (queue.saved, queue.saving, queue.next_offset):
                    continue
                if end_of is not None:
                    end = end_of(queue.key.split(JOINT)[0], queue.queue_id)
                    queue.next_offset = max(0, min(queue.next_offset, end))
                    queue.done = {offset for offset in queue.done if offset < end}
                    queue.handed = {offset for offset in queue.handed if offset < end}
                    queue.taken = {offset: text for offset, text in queue.taken.items() if offset < end}
                queue.saved = queue.saving = saved
                self._restored[queue.key, queue.queue_id] = queue.done
                kept.append(queue)
                if queue.next_offset != saved:
                    self._set(queue.key, queue.queue_id, queue.next_offset)
                    self._change(counts=False)
        return kept

    def record_to(self, acks: AckFile) -> None:
        """Record every commit from now on in a file that a killed process leaves complete."""
        self._acks = acks
        acks.saved = self._saved

    def add_done(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Record that a message is acknowledged before an earlier one; in a store that is read only, do nothing."""
        key = check_key(topic, group)
        with self._lock:
            if self._acks is not None:
                self._acks.add_done((key, queue_id), offset)

    def done(self, topic: str, group: str, queue_id: int) -> set[int]:
        """Return the offsets of messages that are acknowledged before an earlier one."""
        key = topic + JOINT + group, queue_id
        with self._lock:
            return set(self._restored.get(key, ())) if self._acks is None else self._acks.done(key)

    def waiting(self, topic: str, group: str, queue_id: int, low: int, high: int) -> int:
        """Return how many messages from queue offset `low` to before `high` a group did not acknowledge.

        A queue without an offset of the group has yet to be read from its first message.
        """
        with self._lock:
            start = max(low, self.get(topic, group, queue_id) or 0)
            return max(0, high - start) - sum(start <= offset < high for offset in self.done(topic, group, queue_id))

    def add_handed(self, topic: str, group: str, queue_id: int, offsets: Iterable[int]) -> None:
        """Record that a consumer has messages, so that a kill ends these deliveries and not only the process."""
        with self._lock:
            if self._acks is not None:
                self._acks.add_handed((check_key(topic, group), queue_id), offsets)

    def give_back(self, topic: str, group: str, queue_id: int, offsets: Iterable[int]) -> None:
        """Record that a consumer does not have messages any more."""
        with self._lock:
            if self._acks is not None:
                self._acks.give_back((topic + JOINT + group, queue_id), offsets)

    def add_taken(self, topic: str, group: str, queue_id: int, taken: Mapping[int, bytes]) -> None:
        """Record that clients of a server have messages, so that they have them after a restart too; `give_back` ends it."""
        with self._lock:
            if self._acks is not None:
                self._acks.add_taken((check_key(topic, group), queue_id), taken)

    def taken(self, topic: str, group: str, queue_id: int) -> dict[int, bytes]:
        """Return what clients of a server have of a queue, by offset, ascending."""
        with self._lock:
            return {} if self._acks is None else self._acks.taken((topic + JOINT + group, queue_id))

    def is_handed(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Return whether a consumer got a message and neither acknowledged it nor gave it back."""
        with self._lock:
            return self._acks is not None and self._acks.is_handed((topic + JOINT + group, queue_id), offset)

    def sync(self) -> None:
        """Return when every commit made before the call is on the disk."""
        if self._acks is not None:
            self.take_leased()
            self._acks.sync()

    def close(self, *, is_clean: bool) -> None:
        """Close the file of acknowledgements; a clean stop has written the table."""
        if self._acks is not None:
            self._acks.close(is_clean=is_clean)

    def _save(self, document: Document) -> None:
        offsets = _flat(document)
        with self._lock:
            if self._acks is not None:
                self._acks.begin_save(offsets)
        super()._save(document)
        with self._lock:
            self._saved = offsets
            if self._acks is not None:
                self._acks.saved = offsets
                self._acks.end_save()

    def delete_group(self, group: str) -> bool:
        """Remove a group's offsets and return whether there were any."""
        return self._delete(lambda parts: parts[1:2] == [group])

    def delete_topic(self, topic: str) -> bool:
        """Remove all groups' offsets of a topic and return whether there were any."""
        return self._delete(lambda parts: parts[0] == topic)

    def _delete(self, is_meant: Callable[[list[str]], bool]) -> bool:
        with self._lock:
            gone = [key for key in self._keys() if is_meant(key.split(JOINT))]
            for key in gone:
                self._drop(key)
            if gone:
                self._change()
                if self._acks is not None:
                    self._acks.drop(gone)
            return bool(gone)

    def _drop(self, key: str) -> None:
        self._table.pop(key, None)

    def _rows(self) -> Iterator[tuple[str, str, int, int]]:
        for key, offsets in self._table.items():
            for queue_id, offset in offsets.items():
                yield key, key.split(JOINT)[0], queue_id, offset


class LmqConsumerOffsets(ConsumerOffsets):
    """The table `config/lmqConsumerOffset.json`, which replaces the ordinary file in a broker with LMQ enabled.

    Groups named `%LMQ%...` have one offset per topic, whatever the queue id, which is always 0 in an LMQ.
    """

    file_name = "lmqConsumerOffset.json"

    def _take(self, table: Document) -> None:
        super()._take(table)
        lmqs = self._map_of("lmqOffsetTable")
        self._lmqs = {str(key): self.number(lmqs, key, 0, where="lmqOffsetTable") for key in lmqs}

    def _fill(self, document: Document) -> None:
        super()._fill(document)
        document["lmqOffsetTable"] = dict(self._lmqs)

    def _keys(self) -> list[str]:
        return [*self._table, *(key for key in self._lmqs if key not in self._table)]

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the next offset to read, of an LMQ group too; None if there is none."""
        if not group.startswith(LMQ_PREFIX):
            return super().get(topic, group, queue_id)
        with self._lock:
            return self._lmqs.get(topic + JOINT + group)

    def offsets_of(self, topic: str, group: str) -> dict[int, int]:
        """Return a map from queue id to next offset; the offset of an LMQ group is at queue id 0."""
        if not group.startswith(LMQ_PREFIX):
            return super().offsets_of(topic, group)
        found = self.get(topic, group, 0)
        return {} if found is None else {0: found}

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set the next offset to read, of an LMQ group too."""
        if not group.startswith(LMQ_PREFIX):
            super().commit(topic, group, queue_id, offset)
            return
        key = check_key(topic, group)
        check_offset(queue_id, offset)
        with self._lock:
            self._set(key, 0, offset)
            self._count_commit(key, 0, offset)

    def _set(self, key: str, queue_id: int, offset: int) -> None:
        if key.split(JOINT)[1].startswith(LMQ_PREFIX):
            self._lmqs[key] = offset
        else:
            super()._set(key, queue_id, offset)

    def _drop(self, key: str) -> None:
        super()._drop(key)
        self._lmqs.pop(key, None)

    def _rows(self) -> Iterator[tuple[str, str, int, int]]:
        yield from super()._rows()
        for key, offset in self._lmqs.items():
            yield key, key.split(JOINT)[0], 0, offset


# A broker uses one of them, by its configuration.
OFFSETS_IN_FILES = (ConsumerOffsets, LmqConsumerOffsets)


def offsets_table(disk: Disk, folder: str) -> ConsumerOffsets:
    """Return the table in effect: that of the LMQ offset file if it exists, else the ordinary one."""
    has_lmqs = disk.stat(os.path.join(folder, LmqConsumerOffsets.file_name)) is not None
    return (LmqConsumerOffsets if has_lmqs else ConsumerOffsets)(disk, folder)


def _flat(document: Document) -> dict[Key, int]:
    """Return the offset of each key and queue id in a document to write."""
    found: dict[Key, int] = {}
    for key, offsets in document.get("offsetTable", {}).items():
        found.update(((key, queue_id), offset) for queue_id, offset in offsets.items())
    found.update(((key, 0), offset) for key, offset in document.get("lmqOffsetTable", {}).items())
    return found


def _pairs(keys: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (topic, group) of the keys with two parts."""
    for key in keys:
        parts = key.split(JOINT)
        if len(parts) == 2:
            yield parts[0], parts[1]


def check_key(topic: str, group: str) -> str:
    """Return the key of a topic and group. Raises `InvalidMessage` for names that would make it ambiguous."""
    if not topic or not group or JOINT in topic or JOINT in group:
        raise InvalidMessage(f"topic {topic!r} and group {group!r}: both need a name, without {JOINT}")
    return topic + JOINT + group


def check_offset(queue_id: int, offset: int) -> None:
    """Raise `InvalidMessage` for a queue id or offset that no queue has."""
    if not 0 <= queue_id <= QUEUE_ID_MAX or not 0 <= offset <= INT64_MAX:
        raise InvalidMessage(f"offset {offset} of queue {queue_id}: both count from 0")
