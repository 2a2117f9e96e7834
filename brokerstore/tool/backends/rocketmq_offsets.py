"""`offsets` of a RocketMQ store."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from brokerstore.identify import FolderKind
from consumequeue import Boundary
from messagestore import MessageStore, SharedStore
from messagestore.broker.config.consumer_offsets import ConsumerOffsets, offsets_table
from messagestore.folder import refuse_unknown_end
from storageio import REAL_DISK, InvalidMessage, UnknownStore

from ..output import Answer, Table
from .rocketmq_folder import RocketmqFolder
from .rocketmq_rocksdb import queue_rows
from .rocketmq_writing import changing

KEYS = ("group", "topic", "queue_id", "offset", "min_offset", "max_offset", "lag")
HEADERS = {"queue_id": "queue", "min_offset": "min offset", "max_offset": "max offset", "new_offset": "new offset"}
Row = dict[str, Any]


def _table(folder: RocketmqFolder) -> ConsumerOffsets:
    """Return the offsets in effect; raise the error of a file that a broker would replace by an empty table."""
    table = offsets_table(REAL_DISK, os.path.join(folder.target.path, "config"))
    if table.damage is not None and table.is_lost:
        raise table.damage
    return table


def show(folder: RocketmqFolder, group: str | None, topic: str | None) -> Answer:
    """List one row a group, topic and queue."""
    if folder.facts.kind is FolderKind.ROCKSDB:
        return _answer(list(_rows(_RocksdbEnds(folder), _table(folder), group, topic)), {})
    with folder.open_store() as store:
        incomplete = folder.incomplete_keys(store)
        _table(folder)
        offsets = store.engine.consumer_offsets()  # with what a writer acknowledged since it wrote the file
        return _answer(list(_rows(store, offsets, group, topic)), incomplete)


class _RocksdbEnds:
    """The ends of queues in RocksDB, with the methods that a row needs of a store."""

    def __init__(self, folder: RocketmqFolder) -> None:
        """Read the first and last offset of each queue."""
        found = queue_rows(folder)
        if found is None:
            raise UnknownStore(f"{folder.target.path}: the queues in RocksDB cannot be read")
        self._ends = {(topic, queue_id): (low, high) for topic, queue_id, low, high, _ in found}

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues."""
        return sorted(queue_id for name, queue_id in self._ends if name == topic)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue, 0 for an unknown one."""
        return self._ends.get((topic, queue_id), (0, 0))[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the next offset of a queue, 0 for an unknown one."""
        return self._ends.get((topic, queue_id), (0, 0))[1]


def lag_rows(folder: RocketmqFolder) -> list[Row]:
    """Return the rows of every group."""
    rows: list[Row] = show(folder, None, None).facts["offsets"]
    return rows


def _rows(store: MessageStore | _RocksdbEnds, offsets: ConsumerOffsets, group: str | None, topic: str | None) -> Iterator[Row]:
    queue_ids = functools.cache(lambda topic: filled_queues(store, topic))  # it lists folders, and each group asks again
    for one_group, one_topic in offsets.pairs():
        if group in (None, one_group) and topic in (None, one_topic):
            known = offsets.offsets_of(one_topic, one_group)
            for queue_id in sorted({*known, *queue_ids(one_topic)}):
                row = _row(store, one_group, one_topic, queue_id, known.get(queue_id))
                yield row | {"lag": offsets.waiting(one_topic, one_group, queue_id, row["min_offset"], row["max_offset"])}


def filled_queues(store: MessageStore | _RocksdbEnds, topic: str) -> list[int]:
    """Return the ids of a topic's queues that ever had a message."""
    return [queue_id for queue_id in store.queue_ids(topic) if store.max_offset(topic, queue_id)]


def _row(store: MessageStore | SharedStore | _RocksdbEnds, group: str, topic: str, queue_id: int, offset: int | None) -> Row:
    """An offset of None means that the group committed nothing of this queue and has yet to read all of it."""
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    lag = max(0, high - max(low, offset or 0))
    return dict(zip(KEYS, (group, topic, queue_id, offset, low, high, lag), strict=True))


def reset(
    folder: RocketmqFolder, what: tuple[str, str, int | None], where: str | None, time_ms: int | None, apply: bool
) -> Answer:  # fmt: skip
    """Set the offsets of a group for every queue of a topic, or for one; without `apply` show them beside the present ones."""
    group, topic, only = what
    path = folder.target.path
    folder.require_store()
    folder.facts.refuse_unsupported()
    refuse_unknown_end(folder.files())
    with folder.open_store() as store:  # before the lock, which would make the store one in use
        incomplete = folder.incomplete_keys(store)
    if apply and folder.is_in_use:
        return _reset_in_use(folder, what, where, time_ms, incomplete)
    with contextlib.ExitStack() as held:
        if apply:
            held.callback(REAL_DISK.lock(os.path.join(path, "lock")).release)
        store = held.enter_context(folder.open_store())
        known = filled_queues(store, topic)
        queue_ids = known if only is None else [only]
        if not queue_ids or not set(queue_ids) <= set(known):
            raise InvalidMessage(f"topic {topic!r} has the queues {known}")
        offsets = _table(folder)
        planned = {queue_id: _offset(store, topic, queue_id, where, time_ms) for queue_id in queue_ids}
        if apply:
            for queue_id, offset in planned.items():
                offsets.commit(topic, group, queue_id, offset)
            offsets.persist()
        present = offsets.offsets_of(topic, group)
        rows = [_row(store, group, topic, queue_id, present.get(queue_id)) for queue_id in queue_ids]
    if apply:
        return _answer(rows, incomplete | {"applied": True})
    rows = [row | {"new_offset": planned[row["queue_id"]]} for row in rows]
    answer = _answer(rows, incomplete | {"applied": False})
    return answer._replace(text=["Nothing was changed; --apply executes the plan.", *answer.text])


def _reset_in_use(
    folder: RocketmqFolder, what: tuple[str, str, int | None], where: str | None, time_ms: int | None, incomplete: Row
) -> Answer:  # fmt: skip
    """Set the offsets through the process that serves the store; its consumers begin there."""
    group, topic, only = what
    to = {"earliest": "first", "latest": "last"}.get(where or "") or (where and int(where))
    target = to if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC)
    with changing(folder) as store:
        done = store.reset_offsets(topic, group, target or 0, queues=None if only is None else [only])
        rows = [_row(store, group, topic, queue_id, offset) for queue_id, offset in sorted(done.items())]
    return _answer(rows, incomplete | {"applied": True})


def _offset(store: MessageStore, topic: str, queue_id: int, where: str | None, time_ms: int | None) -> int:
    """Return the offset to set; raise `InvalidMessage` for one outside the queue."""
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    if time_ms is not None:
        return store.offset_by_time(topic, queue_id, time_ms, Boundary.LOWER)
    if where in ("earliest", "latest"):
        return low if where == "earliest" else high
    offset = int(where or 0)
    if not low <= offset <= high:
        raise InvalidMessage(f"queue {queue_id} of {topic} has offsets {low} to {high}, not {offset}")
    return offset


def _answer(rows: list[Row], incomplete: Row) -> Answer:
    cells = [["none" if value is None else value for value in row.values()] for row in rows]
    headers = [HEADERS.get(key, key) for key in (rows[0] if rows else KEYS)]
    return Answer({"offsets": rows} | incomplete, [Table(headers, cells)])
