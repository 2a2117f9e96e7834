"""Offsets, and messages by key, time or id."""

from __future__ import annotations

from commitlog import StoredMessage
from consumequeue import Boundary
from messagestore import MessageStore

from ..remoting.codes import QUERY_NOT_FOUND, SUCCESS, SYSTEM_ERROR
from ..remoting.frames import Command
from .fields import number

FOUND_MAX = 1024
TAG_TYPE = "T"  # the others are `K` and `U` for keys and unique keys, which share an index


class Lookups:
    """Answers from queues, index and the table of offsets."""

    def __init__(self, store: MessageStore) -> None:
        """Create it for a store that is open for writing."""
        self._store = store
        self._engine = store.engine

    def committed_offset(self, request: Command) -> Command:
        """Answer with a group's offset.

        As in a real broker, an unknown group begins at 0 while the queue still has its first message.
        """
        fields = request.fields
        topic, queue_id = fields.get("topic", ""), number(fields, "queueId")
        found = self._store.committed_offsets(topic, fields.get("consumerGroup", "")).get(queue_id)
        if found is None and self._store.min_offset(topic, queue_id) == 0:
            found = 0
        if found is None:
            return request.answer(QUERY_NOT_FOUND, remark="the group has no offset for the queue")
        return request.answer(SUCCESS, {"offset": str(found)})

    def commit_offset(self, request: Command) -> Command:
        """Set a group's offset."""
        fields = request.fields
        self._engine.consumer_offsets().commit(
            fields.get("topic", ""), fields.get("consumerGroup", ""), number(fields, "queueId", None),
            number(fields, "commitOffset", None),
        )  # fmt: skip
        return request.answer(SUCCESS)

    def max_offset(self, request: Command) -> Command:
        """Answer with the offset of the next message of a queue."""
        found = self._store.max_offset(request.fields.get("topic", ""), number(request.fields, "queueId"))
        return request.answer(SUCCESS, {"offset": str(found)})

    def min_offset(self, request: Command) -> Command:
        """Answer with the offset of the oldest message of a queue."""
        found = self._store.min_offset(request.fields.get("topic", ""), number(request.fields, "queueId"))
        return request.answer(SUCCESS, {"offset": str(found)})

    def offset_by_time(self, request: Command) -> Command:
        """Answer with the queue offset for a store time."""
        fields = request.fields
        boundary = Boundary.UPPER if fields.get("boundaryType", "").upper() == "UPPER" else Boundary.LOWER
        found = self._store.offset_by_time(
            fields.get("topic", ""), number(fields, "queueId"), number(fields, "timestamp", None), boundary
        )
        return request.answer(SUCCESS, {"offset": str(found)})

    def query(self, request: Command) -> Command:
        """Answer with the messages of a topic that have a key, or the tags that clients since 5.4 may name instead."""
        fields = request.fields
        begin_ms, end_ms = number(fields, "beginTimestamp"), number(fields, "endTimestamp", (1 << 63) - 1)
        count = min(max(0, number(fields, "maxNum", 32)), FOUND_MAX)
        query = self._store.query_tag if fields.get("indexType") == TAG_TYPE else self._store.query
        found = query(fields.get("topic", ""), fields.get("key", ""), begin_ms, end_ms, count)
        if not found:
            return request.answer(QUERY_NOT_FOUND, remark="no message has the key in this time")
        newest = found[-1]
        updated = {
            "indexLastUpdateTimestamp": str(newest.store_timestamp_ms),
            "indexLastUpdatePhyoffset": str(newest.physical_offset),
        }
        return request.answer(SUCCESS, updated, b"".join(self._record(message) for message in found))

    def view(self, request: Command) -> Command:
        """Answer with the message at a physical offset."""
        message = self._store.message_at(number(request.fields, "offset", None))
        if message is None:
            return request.answer(SYSTEM_ERROR, remark=f"no message at offset {request.fields.get('offset')}")
        return request.answer(SUCCESS, body=self._record(message))

    def _record(self, message: StoredMessage) -> bytes:
        view = self._engine.log.select(message.physical_offset, message.size)
        return b"" if view is None else bytes(view)
