"""Read enqueue commands of plain messages without making their terms (docs/formats/rabbitmq-quorum.md#replay).

`content_cy` finds the parts of the message.  `terms_cy.decode`, `message.info_of` and `message.read_content` read every entry
of another form: other commands, message protocols, annotations that change the message, tags that today's servers do not
write, damage.
"""

from __future__ import annotations

from array import array

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ..format.content_cy import Fields, ContentParts
from ..format.terms import Opaque
from ..read.json_cy import LineWriter
from .entries_cy import EntryRun

if not cython.compiled:
    from storebytes._bytes_cy import (
        I64, Bool, I64s, Size, Source, get_i32, i64s_of, is_same, source_of, source_of_bytes, take_bytes,
    )  # fmt: skip

    from ..format.content_cy import after_number, container_end, take_binary, take_body, take_keys

START: bytes = b"\x83h\x04w\x04$usrt\x00\x00\x00\x01w\x02ts"
ENQUEUE: bytes = b"h\x04w\x01e"
SIZES: bytes = b"h\x02"
NOTIFY: bytes = b"h\x03w\x06notify"
PROCESS: Size = 88
ATOM: Size = 119
LIST: Size = 108
HEAD_SIZE: Size = 5  # tag and 32-bit length
PROCESS_TAIL: Size = 12  # bytes of a process behind its node
FOLLOWING_MAX: Size = 4096
INDEX_BITS = 44
SIZE_MAX = 1 << 19  # of a body whose size is in the same number as its index
_SHIFT: Size = INDEX_BITS
_INDEX_MASK: I64 = (1 << INDEX_BITS) - 1
_SIZE_MAX: I64 = SIZE_MAX


class CommandReader:
    """Reads one entry after another.

    After `read` returned True, `pid` is the publisher, `number` its sequence number and `size` that of the body.
    With `counts_properties` the sizes that `follow` returns have those of the properties, too.
    `priority` and `ttl_ms` are -1 for a message without them.
    """

    __slots__ = (
        "_exchange", "_exchange_bytes", "_keys", "_keys_bytes", "_parts", "_pid_bytes", "_source", "_stop",
        "counts_properties", "number", "pid", "priority", "properties_size", "size", "time_ms", "ttl_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        """Remember no route and no publisher."""
        self._exchange: str = ""
        self._exchange_bytes: bytes = b""
        self._keys: tuple[str, ...] = ()
        self._keys_bytes: bytes = b""
        self._parts: ContentParts = ContentParts()
        self._pid_bytes: bytes = b""
        self.pid = Opaque(PROCESS, b"")
        self.time_ms = 0
        self.counts_properties = False

    def read(self, view: memoryview, at: Size, size: Size) -> bool:
        """Return whether the data of an entry is the enqueue command of a plain message."""
        if at < 0 or size < 0 or size > len(view) - at:
            return False
        parts: ContentParts = self._parts
        self._source: Source = source_of(view)
        self._stop = at + size
        at = self._number(self._after(at, START))
        self.time_ms = parts.value
        at = self._number(self._after(at, ENQUEUE))
        self.number = parts.value
        at = container_end(parts, self._source, at, self._stop)
        self.priority = parts.priority
        self.ttl_ms = parts.ttl_ms
        if at < 0 or self.priority < -1 or self.ttl_ms < -1:
            return False
        at = self._number(self._after(at, SIZES))
        self.properties_size = parts.value
        at = self._number(at)
        self.size = parts.value
        return self._is_process_to_end(self._number(self._after(at, NOTIFY)))

    def content(self, vhost: str) -> Fields:
        """Return the fields of the content of the entry that was read; its view has to be open still."""
        parts: ContentParts = self._parts
        self._take_route()
        block, body = take_binary(self._source, parts.block_at), take_body(self._source, parts.body_at)
        return vhost, self._exchange, self._keys, block, body, b"", parts.is_durable

    def _take_route(self) -> Bool:
        """Keep exchange and routing keys of the entry; return whether they differ from those of the one before."""
        parts: ContentParts = self._parts
        exchange, keys = self._exchange_bytes, self._keys_bytes
        is_other: Bool = False
        at: Size = parts.exchange_at + HEAD_SIZE
        size: Size = get_i32(self._source, parts.exchange_at + 1)
        if not is_same(self._source, at, size, source_of_bytes(exchange), len(exchange)):
            exchange = self._exchange_bytes = take_bytes(self._source, at, size)
            self._exchange = exchange.decode("utf-8", "replace")
            is_other = True
        at = parts.keys_at
        size = parts.keys_end - at
        if not is_same(self._source, at, size, source_of_bytes(keys), len(keys)):
            self._keys_bytes = take_bytes(self._source, at, size)
            self._keys = take_keys(self._source, at)
            is_other = True
        return is_other

    def write_lines(self, lines: LineWriter, run: EntryRun, numbers: array[int], at: Size, capacity: Size) -> Size:
        """Write the lines of ready messages, each an index and a size as one number, from `at` on.

        Return where the first one is that is left: in another run, of another form, or behind `capacity` bytes.
        The caller has set the parts of a line that all of them share.
        """
        held: memoryview = memoryview(numbers)
        found: I64s = i64s_of(held)
        count: Size = len(numbers)
        index: I64
        position: I64
        parts: ContentParts = self._parts
        body_at: Size
        body_size: Size
        is_first: Bool = True
        while at < count and lines.size < capacity:
            index = found[at] & _INDEX_MASK
            if found[at] < 0 or index < run.first or index >= run.stop:
                break
            position = run.position(index)
            if not self.read(run.view, position, run.size(index)):
                break
            if self._source[parts.body_at] != LIST or get_i32(self._source, parts.body_at + 1) != 1:
                break
            if self._take_route() or is_first:
                lines.route = lines.text((self._exchange, self._keys), 2)
                is_first = False
            lines.source = self._source
            lines.at = parts.block_at + HEAD_SIZE
            lines.stop = lines.at + get_i32(self._source, parts.block_at + 1)
            body_at = parts.body_at + 2 * HEAD_SIZE
            body_size = get_i32(self._source, parts.body_at + HEAD_SIZE + 1)
            if not lines.line(index, b"", parts.is_durable, 0, body_size, position, self._source, body_at, body_size):
                break
            at += 1
        return at

    def follow(self, run: EntryRun, index: I64, stop: I64, number: I64) -> array[int]:
        """Return the plain messages from an entry on that the publisher of the one before sent: index and size as one number.

        `number` is the publisher's next one.  Messages that have a priority or expire end the sequence, and so do large ones.
        """
        capacity: Size = min(stop - index, FOLLOWING_MAX)
        found = array("q", bytes(8 * capacity))
        held: memoryview = memoryview(found)
        numbers: I64s = i64s_of(held)
        pid = self.pid
        count: Size = 0
        size: I64
        time_ms: I64 = self.time_ms
        while count < capacity and self.read(run.view, run.position(index), run.size(index)):
            size = self.size + self.properties_size if self.counts_properties else self.size
            if self.pid is not pid or self.number != number or self.priority >= 0 or self.ttl_ms >= 0 or size >= _SIZE_MAX:
                break
            numbers[count] = (size << _SHIFT) | index
            time_ms = self.time_ms
            number += 1
            count += 1
            index += 1
        self.time_ms = time_ms
        return found[:count]

    # Each of these takes the start of a part and returns its end, or -1 for another form; a start of -1 has no part

    def _after(self, at: Size, expected: bytes) -> Size:
        size: Size = len(expected)
        if at < 0 or size > self._stop - at or not is_same(self._source, at, size, source_of_bytes(expected), size):
            return -1
        return at + size

    def _number(self, at: Size) -> Size:
        """Set `value` of the parts to the integer at `at`, which is not negative."""
        at = after_number(self._parts, self._source, at, self._stop)
        return at if self._parts.value >= 0 else -1

    def _is_process_to_end(self, at: Size) -> Bool:
        """Keep the process that takes up the rest of the data; most messages have that of the one before."""
        size: Size = self._stop - at
        known: bytes = self._pid_bytes
        if at < 0 or size < 3 or self._source[at] != PROCESS or self._source[at + 1] != ATOM:
            return False
        if size != 3 + self._source[at + 2] + PROCESS_TAIL:
            return False
        if not is_same(self._source, at + 1, size - 1, source_of_bytes(known), len(known)):
            self._pid_bytes = take_bytes(self._source, at + 1, size - 1)
            self.pid = Opaque(PROCESS, self._pid_bytes)
        return True
