"""Build results of refused puts, and edit properties in the form that the log keeps."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any

from commitlog import Message, PutResult, PutStatus, decode_properties, delete_property, first_other
from storageio import DiskFull, InvalidMessage, PutRejected, StoreFull

from ..property_names import SPECIAL
from .running_flags import RunningFlags

_SPECIAL_RAW = tuple(name.encode() + b"\x01" for name in SPECIAL)
SPACE_POLL_S = 0.05  # how often a put that waits for space is tried
Marks = tuple[int | None, str | None, timedelta | None]
FIELDS_TWICE = "a Message has its fields itself: put(message), or put(topic, body, ...)"


def message_of(
    message: Any, body: bytes | None, tags: str | None, keys: str | list[str] | None, properties: dict[str, str] | None,
    queue_id: int, delay: timedelta | None, delay_level: int, deliver_at: datetime | None, marks: Marks | None = None,
) -> Message:  # fmt: skip
    """Return the message that the arguments of a put describe. Raises `TypeError` for others than a message or its fields.

    `marks`: priority, dedup_id and ttl, unless all of them are None.
    """
    if type(message) is str:
        if body is None:
            raise TypeError("body: expected bytes, got None")
        more: dict[str, Any] = {"delay": delay, "delay_level": delay_level, "deliver_at": deliver_at}
        if marks is not None:
            more |= {"priority": marks[0], "dedup_id": marks[1], "ttl": marks[2]}
        return Message(message, body, tags, keys, properties, queue_id, **more)
    if type(message) is not Message:
        raise TypeError(f"message: expected Message or a topic, got {type(message).__name__}")
    given = (body, tags, keys, properties, queue_id, delay, delay_level, deliver_at, marks)
    if given != (None, None, None, None, -1, None, 0, None, None):
        raise TypeError(FIELDS_TWICE)
    return message


def marks_of(priority: int | None, dedup_id: str | None, ttl: timedelta | None) -> Marks | None:
    """Return the `marks` of a message for `message_of`."""
    return None if priority is None and dedup_id is None and ttl is None else (priority, dedup_id, ttl)


def messages_of(
    messages: Any, bodies: Sequence[bytes] | None, tags: Sequence[str | None] | None, keys: Sequence[str | None] | None,
    queue_id: int,
) -> list[Message]:  # fmt: skip
    """Return the messages that the arguments of `put_many` describe: given, or a topic with bodies, tags and keys."""
    if type(messages) is not str:
        if (bodies, tags, keys, queue_id) != (None, None, None, -1):
            raise TypeError(FIELDS_TWICE)
        return messages  # type: ignore[no-any-return]
    check_rows(bodies, tags, keys)
    rows = zip(bodies or (), tags or repeat(None), keys or repeat(None), strict=False)
    return [Message(messages, body, tag, key, None, queue_id) for body, tag, key in rows]


def check_rows(bodies: Any, tags: Any, keys: Any) -> None:
    """Raise `TypeError` or `InvalidMessage` unless these are bodies, and as many tags and keys, with None for a missing one."""
    for name, column, kind in (("bodies", bodies, bytes), ("tags", tags, str), ("keys", keys, str)):
        if column is None and kind is str:
            continue
        if not isinstance(column, list | tuple):
            raise TypeError(f"{name}: expected a list, got {type(column).__name__}")
        other = first_other(list(column), kind, kind is str)
        if other >= 0:
            raise TypeError(f"{name}: expected {kind.__name__}, got {type(column[other]).__name__} in it")
        if len(column) != len(bodies):
            raise InvalidMessage(f"{name}: {len(column)} rows, bodies have {len(bodies)}")
    if not bodies:
        raise InvalidMessage("no messages")


def is_special_raw(raw: bytes) -> bool:
    """Return whether encoded properties may have a SPECIAL one; never False if they have."""
    for name in _SPECIAL_RAW:  # noqa: SIM110  a generator costs three times as much, for every member of a batch
        if name in raw:
            return True
    return False


def has_property(message: Message, name: str) -> bool:
    """Return whether a message has a property, encoded or not."""
    raw = message.properties_raw
    return name in (message.properties or ()) if raw is None else name in decode_properties(raw)


def refused(status: PutStatus, reason: str) -> PutResult:
    """Return the result of a put that wrote nothing."""
    result: PutResult = PutResult.__new__(PutResult)
    result.status, result.reason, result.cause, result.message_count = status, reason, None, 0
    result.physical_offset = result.queue_offset = result.queue_id = -1
    result.store_timestamp_ms = result.size_bytes = 0
    result.store_host = b"\0" * 8
    return result


def refused_by(flags: RunningFlags, root: str) -> PutResult:
    """Return the result of a put that the running flags refuse; its cause is a `DiskFull` if only space is missing."""
    result = refused(PutStatus.SERVICE_NOT_AVAILABLE, flags.reason or "the store takes no puts")
    if flags.lacks_space:
        result.cause = no_space(flags.reason, root)
    return result


def rejection(result: PutResult) -> PutRejected:
    """Return the error for a refused put; its cause is the disk's error, if there was one."""
    kind = StoreFull if isinstance(result.cause, DiskFull) else PutRejected
    error = kind(result.status, result.reason or "", result.message_count)
    error.__cause__ = result.cause
    return error


def no_space(reason: str, file: str = "") -> DiskFull:
    """Return the error of a store that takes no puts for lack of space, although the system has not refused a write."""
    return DiskFull("put", file, errno.ENOSPC, reason)


def put_when_free(put: Callable[[], PutResult], block_s: float) -> PutResult:
    """Try a put until it finds space, at most for `block_s` seconds; return or raise what the last try does."""
    deadline = time.monotonic() + block_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            result = put()
            if left_s <= 0 or not isinstance(result.cause, DiskFull):
                return result
        except StoreFull:
            if left_s <= 0:
                raise
        time.sleep(min(SPACE_POLL_S, max(left_s, 0)))


class BulkPut:
    """A put of many messages that goes on with those that found no space."""

    def __init__(self, messages: list[Message], block_s: float) -> None:
        """Begin with all of them; `block_s`: seconds to wait for space."""
        self.left = list(messages)
        self._deadline = time.monotonic() + block_s
        self._first: PutResult | None = None

    def add(self, result: PutResult) -> float:
        """Add the result of a put of `left` with `check=False`; return how long to wait before the next one, 0 at the end."""
        lacks_space = result.status is not PutStatus.PUT_OK and isinstance(result.cause, DiskFull)
        if lacks_space:
            self.left = self.left[result.message_count :]
        if self._first is None or self._first.message_count == 0:
            self._first = result
        else:
            self._first.status, self._first.reason, self._first.cause = result.status, result.reason, result.cause
            self._first.message_count += result.message_count
        return min(SPACE_POLL_S, max(self._deadline - time.monotonic(), 0)) if lacks_space else 0

    def finish(self, check: bool) -> PutResult:
        """Return the result of all puts together, or raise its refusal."""
        assert self._first is not None
        if check and self._first.status is not PutStatus.PUT_OK:
            raise rejection(self._first)
        return self._first


def put_many_when_free(
    put: Callable[[list[Message]], PutResult], messages: list[Message], check: bool, block_s: float
) -> PutResult:  # fmt: skip
    """Put messages with `put`, which does not raise a refusal; wait for space, at most for `block_s` seconds in all."""
    bulk = BulkPut(messages, block_s)
    while pause_s := bulk.add(put(bulk.left)):
        time.sleep(pause_s)
    return bulk.finish(check)


def encoded_pairs(pairs: dict[str, str]) -> bytes:
    """Return properties as the log keeps them (`docs/formats/commitlog.md#properties`). Raises `InvalidMessage`."""
    for name, value in pairs.items():
        if not name or not value or "\x01" in name + value or "\x02" in name + value:
            raise InvalidMessage(f"property {name!r} with value {value!r}: both need text without \\x01 and \\x02")
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()


def with_pairs(raw: bytes, pairs: dict[str, str]) -> bytes:
    """Return encoded properties with these set at the end; all others keep their order."""
    raw = without_pairs(raw, tuple(pairs))
    if raw and not raw.endswith(b"\x02"):
        raw += b"\x02"
    return raw + encoded_pairs(pairs)


def without_pairs(raw: bytes, names: tuple[str, ...]) -> bytes:
    """Return encoded properties without some of them."""
    for name in names:
        raw = delete_property(raw, name.encode())
    return raw


def with_properties(message: Message, raw: bytes) -> Message:
    """Return the same message with other properties."""
    return Message(
        message.topic, message.body, queue_id=message.queue_id, flag=message.flag, sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms, born_host=message.born_host, store_host=message.store_host,
        reconsume_times=message.reconsume_times, prepared_transaction_offset=message.prepared_transaction_offset,
        properties_raw=raw,
    )  # fmt: skip
