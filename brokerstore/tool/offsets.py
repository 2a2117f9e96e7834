"""`offsets`: how far consumer groups have read."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

from consumequeue import Boundary
from messagestore import MessageStore
from messagestore.broker.config.consumer_offsets import ConsumerOffsets, offsets_table
from messagestore.foreign import refuse_unknown_end, refuse_unsupported
from storageio import REAL_DISK, InvalidMessage

from .codes import CLEAN
from .escapes import quote
from .output import emit_json, say, table
from .queue_commands import incomplete_keys, open_store
from .target import Target

KEYS = ("group", "topic", "queue_id", "offset", "min_offset", "max_offset", "lag")
Row = dict[str, Any]


def _tables(target: Target) -> list[ConsumerOffsets]:
    return [offsets_table(REAL_DISK, os.path.join(target.path, "config"))]


def show(target: Target, as_json: bool, group: str | None, topic: str | None) -> int:
    """One row a group, topic and queue."""
    rows, incomplete = _lags(target, group, topic)
    if not rows and (group is not None or topic is not None):
        what = " and ".join(f"{name} {value!r}" for name, value in (("group", group), ("topic", topic)) if value is not None)
        say(f"brokerstore: no offsets of {what}; run: brokerstore offsets show {quote(target.path)}  (all of them)")
    _emit(rows, as_json, incomplete)
    return CLEAN


def lag_rows(target: Target, group: str | None = None, topic: str | None = None) -> list[Row]:
    """With the names of `KEYS`."""
    return _lags(target, group, topic)[0]


def _lags(target: Target, group: str | None, topic: str | None) -> tuple[list[Row], Row]:
    """Rows, and what the answer adds where the queues lack messages."""
    with open_store(target) as store:
        incomplete = incomplete_keys(store)
        return [row for offsets in _tables(target) for row in _rows(store, offsets, group, topic)], incomplete


def _rows(store: MessageStore, offsets: ConsumerOffsets, group: str | None, topic: str | None) -> Iterator[Row]:
    queue_ids = functools.cache(store.queue_ids)  # asked again for each group, and it looks at folders
    for one_group, one_topic in offsets.pairs():
        if group in (None, one_group) and topic in (None, one_topic):
            known = offsets.offsets_of(one_topic, one_group)
            for queue_id in sorted({*known, *queue_ids(one_topic)}):
                yield _row(store, one_group, one_topic, queue_id, known.get(queue_id))


def _row(store: MessageStore, group: str, topic: str, queue_id: int, offset: int | None) -> Row:
    """`offset` None: the group committed nothing of this queue, and has all of it before it."""
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    lag = max(0, high - max(low, offset or 0))
    return dict(zip(KEYS, (group, topic, queue_id, offset, low, high, lag), strict=True))


def reset(
    target: Target, as_json: bool, what: tuple[str, str, int | None], where: str | None, time_ms: int | None
) -> int:  # fmt: skip
    """Set the offsets of a group for every queue of a topic, or one; holding the store's lock."""
    group, topic, only = what
    target.need_store()
    refuse_unsupported(REAL_DISK, target.path, target.settings.get("store_path_commit_log"))
    refuse_unknown_end(target.files())
    with open_store(target) as store:  # before the lock: a store in use is not looked at
        incomplete = incomplete_keys(store)
    lock = REAL_DISK.lock(os.path.join(target.path, "lock"))
    try:
        with open_store(target) as store:
            queue_ids = store.queue_ids(topic) if only is None else [only]
            if not queue_ids or not set(queue_ids) <= set(store.queue_ids(topic)):
                raise InvalidMessage(f"topic {topic!r} has the queues {store.queue_ids(topic)}")
            offsets = _tables(target)[0]
            for queue_id in queue_ids:
                offsets.commit(topic, group, queue_id, _place(store, topic, queue_id, where, time_ms))
            offsets.persist()
            rows = [row for row in _rows(store, offsets, group, topic) if row["queue_id"] in queue_ids]
    finally:
        lock.release()
    _emit(rows, as_json, incomplete)
    return CLEAN


def _place(store: MessageStore, topic: str, queue_id: int, where: str | None, time_ms: int | None) -> int:
    """Inside of what the queue has."""
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    if time_ms is not None:
        return store.offset_by_time(topic, queue_id, time_ms, Boundary.LOWER)
    if where in ("earliest", "latest"):
        return low if where == "earliest" else high
    offset = int(where or 0)
    if not low <= offset <= high:
        raise InvalidMessage(f"queue {queue_id} of {topic} has offsets {low} to {high}, not {offset}")
    return offset


def _emit(rows: list[Row], as_json: bool, incomplete: Row) -> None:
    if as_json:
        emit_json({"offsets": rows} | incomplete)
    else:
        table(KEYS, [["none" if value is None else value for value in row.values()] for row in rows])
