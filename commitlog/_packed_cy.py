"""Values of many messages, checked and in one buffer before the append lock is taken: their properties, or columns."""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import InvalidMessage

from ._message_cy import Message
from ._record_cy import Envelope
from .layout import NAME_END, PAIR_END

if not cython.compiled:
    from storebytes._bytes_cy import (
        I32, Bool, I64, I64s, Size, Source, Target, count_byte, i64s_of, java_hash, put_bytes, put_text, source_of,
        source_of_bytes, target_of, window,
    )  # fmt: skip

    from ._message_cy import put_keys_and_tags
    from ._record_cy import record_size

TYPICAL_SIZE = 64  # bytes of one message's properties
CHARACTER_SIZE_MAX = 4  # bytes of UTF-8


class Packed:
    """Property strings one after another; the string of message n ends at `_ends[n]`."""

    __slots__ = ("_bytes", "_capacity", "_ends", "_held", "_held_ends", "_used", "count")

    def __init__(self, count: Size) -> None:
        """Reserve entries for `count` messages; the byte buffer grows on demand."""
        self.count = 0
        self._used = 0
        self._held_ends = memoryview(array("q", bytes(8 * count)))
        self._ends: I64s = i64s_of(self._held_ends)
        self._capacity = TYPICAL_SIZE * count
        self._held = memoryview(bytearray(self._capacity))
        self._bytes: Target = target_of(self._held)

    def add(self, message: Message) -> Size:
        """Add the properties of the next message; return their size, or -1 if they are unusual or do not fit."""
        size: Size = put_keys_and_tags(message, self._bytes, self._used, self._capacity - self._used)
        return self._end(size) if size >= 0 else size

    def add_bytes(self, properties: bytes) -> Size:
        """Add encoded properties of the next message; return their size."""
        size: Size = len(properties)
        if self._used + size > self._capacity:
            self._grow(self._used + size)
        put_bytes(self._bytes, self._used, source_of_bytes(properties), 0, size)
        return self._end(size)

    def _end(self, size: Size) -> Size:
        """Record the end of one more message."""
        self._used += size
        self._ends[self.count] = self._used
        self.count += 1
        return size

    def _grow(self, least: Size) -> None:
        """Move the bytes to a larger buffer."""
        capacity: Size = 2 * self._capacity if 2 * self._capacity > least else 2 * least
        held: memoryview = memoryview(bytearray(capacity))
        put_bytes(target_of(held), 0, source_of(self._held), 0, self._used)
        self._held = held
        self._bytes = target_of(held)
        self._capacity = capacity


def first_other(values: list[Any], kind: Any, or_none: Bool) -> int:
    """Return the first row whose type is not exactly `kind`, nor None with `or_none`; -1 if there is none."""
    row: Size
    for row in range(len(values)):
        value: Any = values[row]
        if type(value) is not kind and not (or_none and value is None):
            return row
    return -1


def list_column(values: list[Any], name: str, null_is_empty: bool) -> tuple[memoryview, memoryview]:
    """Return (64-bit offsets, data) of a list of bytes or text; text becomes UTF-8.

    None becomes an empty value with `null_is_empty`.  Raises `InvalidMessage` for anything else.
    """
    count: Size = len(values)
    capacity: Size = 0
    row: Size
    for row in range(count):
        value: Any = values[row]
        if isinstance(value, bytes):
            capacity += len(value)
        elif isinstance(value, str):
            capacity += CHARACTER_SIZE_MAX * len(value)
        elif value is not None or not null_is_empty:
            raise InvalidMessage(f"{name}: a list of bytes or text wanted; row {row} is {type(value).__name__}")
    held: memoryview = memoryview(bytearray(capacity))
    held_offsets: memoryview = memoryview(array("q", bytes(8 * (count + 1))))
    data: Target = target_of(held)
    offsets: I64s = i64s_of(held_offsets)
    used: Size = 0
    size: Size
    for row in range(count):
        value = values[row]
        if isinstance(value, bytes):
            size = len(value)
            put_bytes(data, used, source_of_bytes(value), 0, size)
        else:
            size = put_text(data, used, capacity - used, value) if value is not None else 0
            if size < 0:
                raise InvalidMessage(f"{name}: row {row} cannot be encoded in UTF-8")
        used += size
        offsets[row + 1] = used
    return held_offsets, held


class PackedColumns:
    """Rows to append: the buffers, with checked offsets."""

    def __init__(
        self, body_offsets: Any, bodies: Any, keys: tuple[Any, Any] | None, tags: tuple[Any, Any] | None, properties: bytes
    ) -> None:
        """Raise `InvalidMessage` for offsets that decrease, leave the data or differ in number, and for separators in text."""
        self.body_offsets, self.bodies = _column("bodies", body_offsets, bodies)
        self.rows = len(self.body_offsets) - 1
        self.properties = properties
        self.has_keys, self.has_tags = keys is not None, tags is not None
        self.key_offsets, self.key_data = _column("keys", *keys) if keys else (self.body_offsets, self.bodies)
        self.tag_offsets, self.tag_data = _column("tags", *tags) if tags else (self.body_offsets, self.bodies)
        for name, offsets, data, given in (
            ("keys", self.key_offsets, self.key_data, keys), ("tags", self.tag_offsets, self.tag_data, tags),
        ):  # fmt: skip
            if len(offsets) - 1 != self.rows:
                raise InvalidMessage(f"{name}: {len(offsets) - 1} rows, bodies have {self.rows}")
            if given is not None:
                _check_text(name, offsets, data)
        self.body_size_max = _longest(self.body_offsets)
        self.properties_size_max = len(properties) + self._property_size(_longest(self.key_offsets), self.has_keys)
        self.properties_size_max += self._property_size(_longest(self.tag_offsets), self.has_tags)

    def _property_size(self, size: int, given: bool) -> int:
        """Return the size of KEYS or TAGS with two separators and the text, 0 without a text."""
        return size + 6 if given and size else 0

    def first_queue(self, queue_id: int, queues: int) -> int:
        """Return the queue of the first row."""
        if self.rows == 0:
            return queue_id
        return queue_of_row(0, queue_id, queues, self.has_keys, i64s_of(self.key_offsets), source_of(self.key_data))

    def row_size(self, row: int, envelope: Envelope) -> int:
        """Return the size of one row's record in bytes."""
        keys = self._property_size(self.key_offsets[row + 1] - self.key_offsets[row], self.has_keys)
        tags = self._property_size(self.tag_offsets[row + 1] - self.tag_offsets[row], self.has_tags)
        return record_size(envelope, self.body_offsets[row + 1] - self.body_offsets[row], len(self.properties) + keys + tags)


def _column(name: str, offsets: Any, data: Any) -> tuple[memoryview, memoryview]:
    """Return views of both buffers, after checking that offsets never decrease and stay inside the data."""
    held = memoryview(offsets)
    held_data = memoryview(data)
    if held.format not in ("q", "l") or held.itemsize != 8 or not held.c_contiguous or held.ndim != 1 or len(held) == 0:
        raise InvalidMessage(f"{name}: contiguous native 64-bit offsets wanted, one more than rows")
    if not held_data.c_contiguous:
        raise InvalidMessage(f"{name}: contiguous data wanted")
    held_data = held_data.cast("B") if held_data.nbytes else memoryview(b"")
    if not _are_offsets(held, len(held_data)):
        raise InvalidMessage(f"{name}: offsets fall, or leave the data")
    return held, held_data


def _check_text(name: str, offsets: memoryview, data: memoryview) -> None:
    """Reject separators in the used part of a text column."""
    start: Size = offsets[0]
    size: Size = offsets[len(offsets) - 1] - offsets[0]
    used: memoryview = data[start : start + size]
    text: Source = window(source_of(used), 0, size)
    if count_byte(text, size, NAME_END) or count_byte(text, size, PAIR_END):
        raise InvalidMessage(f"{name}: a value holds \\x01 or \\x02")


def _are_offsets(held: memoryview, data_size: Size) -> bool:
    """Return whether the offsets start at 0 or later, never decrease and end inside the data."""
    offsets: I64s = i64s_of(held)
    rows: Size = len(held) - 1
    row: Size
    if offsets[0] < 0 or offsets[rows] > data_size:
        return False
    for row in range(rows):
        if offsets[row] > offsets[row + 1]:
            return False
    return True


def _longest(held: memoryview) -> int:
    """Return the size of the longest row."""
    offsets: I64s = i64s_of(held)
    rows: Size = len(held) - 1
    row: Size
    longest: I64 = 0
    for row in range(rows):
        longest = max(longest, offsets[row + 1] - offsets[row])
    return longest


def queue_of_row(row: Size, queue_id: I32, queues: I32, has_keys: Bool, key_offsets: I64s, keys: Source) -> I32:
    """Return the queue of a row: `queue_id`, or one of so many queues by the row's key or in turn from `queue_id` on."""
    if queues == 0:
        return queue_id
    if has_keys and key_offsets[row + 1] > key_offsets[row]:
        return (java_hash(keys, key_offsets[row], key_offsets[row + 1] - key_offsets[row], 0) & 0x7FFFFFFF) % queues
    return (queue_id + row) % queues
