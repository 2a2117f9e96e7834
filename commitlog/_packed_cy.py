"""The properties of many messages in one buffer, encoded before the append lock is taken."""

from __future__ import annotations

from array import array

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ._message_cy import Message

if not cython.compiled:
    from storebytes._bytes_cy import (
        I64s, Size, Target, i64s_of, put_bytes, source_of, source_of_bytes, target_of,
    )  # fmt: skip

    from ._message_cy import put_keys_and_tags

TYPICAL_SIZE = 64  # bytes of one message's properties


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
