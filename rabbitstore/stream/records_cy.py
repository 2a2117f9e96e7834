"""The single messages of a chunk without sub-batches: as records, and as JSON lines (docs/formats/rabbitmq-streams.md#segment).

`chunk.read_records` reads every other chunk, and says what is wrong with it.  `message.to_message` and
`StreamMessage.to_json` define the lines, and make those of every message that is left here.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ..format.amqp10_cy import Converter
from ..read.json_cy import LineWriter

if not cython.compiled:
    from storebytes._bytes_cy import I64, Bool, Size, Source, get_i32, source_of, take_bytes

ENTRY_HEAD: Size = 4


class StreamRecord:
    """One message: `position` is that of its entry in the segment; messages of one sub-batch share it."""

    __slots__ = ("data", "offset", "position")

    def __init__(self, offset: I64, position: I64, data: bytes) -> None:
        """Describe a message of a sub-batch."""
        self.offset = offset
        self.position = position
        self.data = data


class SingleMessages:
    """A walk over the entries of a chunk that has no sub-batch; `left` is their number."""

    __slots__ = ("_at", "_offset", "_stop", "_view", "left")

    def __init__(self, view: memoryview, at: Size, stop: Size, entries: Size, offset: I64) -> None:
        """Start at the first entry, whose message has an offset; nothing is left of a chunk with anything else."""
        self._view = view
        self._at = at
        self._stop = stop
        self._offset = offset
        self.left = entries if self._is_single(entries) else 0

    def _is_single(self, entries: Size) -> Bool:
        at: Size = self._at
        size: Size
        if at < 0 or self._stop > len(self._view):
            return False
        source: Source = source_of(self._view)
        while entries > 0:
            if self._stop - at < ENTRY_HEAD:
                return False
            size = get_i32(source, at)  # negative for a sub-batch
            if size < 0 or size > self._stop - at - ENTRY_HEAD:
                return False
            at += ENTRY_HEAD + size
            entries -= 1
        return at == self._stop

    def take(self) -> StreamRecord:
        """Return the next message."""
        source: Source = source_of(self._view)
        size: Size = get_i32(source, self._at)
        found: StreamRecord = StreamRecord.__new__(StreamRecord)
        found.offset = self._offset
        found.position = self._at
        found.data = take_bytes(source, self._at + ENTRY_HEAD, size)
        self._at += ENTRY_HEAD + size
        self._offset += 1
        self.left -= 1
        return found

    def write_lines(self, lines: LineWriter, converter: Converter, queue: str, more: Any, capacity: Size) -> None:
        """Write lines until one is left to the caller, or `capacity` bytes are full.

        `queue` is the routing key of a message without one.  `more` has the keys that only streams have, and the values of
        a message without a filter value.  The caller has set the parts of a line that all of them share.
        """
        source: Source = source_of(self._view)
        size: Size
        is_first: Bool = True
        exchange: str = ""
        key: Any = None
        filter_value: Any = None
        while self.left > 0 and lines.size < capacity:
            size = get_i32(source, self._at)
            if not converter.read(source, self._at + ENTRY_HEAD, self._at + ENTRY_HEAD + size):
                return
            if is_first or converter.exchange != exchange or converter.key != key:
                exchange = converter.exchange
                key = converter.key
                lines.route = lines.text((exchange, (queue if key is None else key,)), 2)
            if converter.filter_value != filter_value:
                filter_value = converter.filter_value
                lines.more = lines.text((more[0], (*more[1][:-1], filter_value)), 3)
            is_first = False
            lines.source = converter.block
            lines.at = 0
            lines.stop = converter.block_size
            if not lines.line(
                self._offset, b"", True, 0, converter.body_size, self._at, source, converter.body_at, converter.body_size
            ):
                return
            self._at += ENTRY_HEAD + size
            self._offset += 1
            self.left -= 1


def single_records(view: memoryview, at: Size, stop: Size, entries: Size, offset: I64) -> list[StreamRecord] | None:
    """Return the messages in at..stop of a segment, `entries` of them; None if there is anything else."""
    walk: SingleMessages = SingleMessages(view, at, stop, entries, offset)
    return [walk.take() for _ in range(entries)] if walk.left else None
