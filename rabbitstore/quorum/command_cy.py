"""Read enqueue commands of plain messages without making their terms (docs/formats/rabbitmq-quorum.md#replay).

`terms_cy.decode`, `message.info_of` and `message.read_content` define what an entry means, and read every one that has another
form: other commands, message protocols, annotations that change the message, tags that today's servers do not write, damage.
"""

from __future__ import annotations

from array import array

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ..format.layout import MC_AFTER_BLOCK, MC_FALSE, MC_START, MC_TRUE
from ..format.terms import Opaque
from ..read.json_cy import LineWriter
from .entries_cy import Run

if not cython.compiled:
    from storebytes._bytes_cy import (
        I64, Bool, I64s, Size, Source, get_i32, i64s_of, is_same, source_of, source_of_bytes, take_bytes,
    )  # fmt: skip

START: bytes = b"\x83h\x04w\x04$usrt\x00\x00\x00\x01w\x02ts"
ENQUEUE: bytes = b"h\x04w\x01e"
MESSAGE: bytes = MC_START
AFTER_BLOCK: bytes = MC_AFTER_BLOCK
TRUE_TERM: bytes = MC_TRUE
FALSE_TERM: bytes = MC_FALSE
SIZES: bytes = b"h\x02"
NOTIFY: bytes = b"h\x03w\x06notify"
PROCESS: Size = 88
ATOM: Size = 119
BINARY: Size = 109
LIST: Size = 108
NIL: Size = 106
MAP: Size = 116
HEAD_SIZE: Size = 5  # tag and 32-bit length
PROCESS_TAIL: Size = 12  # bytes of a process behind its node
NAME_MAX: Size = 3
FOLLOWING_MAX: Size = 4096
# Annotations by the bytes of their names
EXCHANGE: Size = 0x78  # x
ROUTING_KEYS: Size = 0x726B  # rk
DURABLE: Size = 0x64  # d
PRIORITY: Size = 0x70  # p
TIME: Size = 0x7473  # ts
TTL: Size = 0x74746C  # ttl
RECEIVED: Size = 0x727473  # rts
INDEX_BITS = 44
SIZE_MAX = 1 << 19  # of a body whose size is in the same number as its index
_SHIFT: Size = INDEX_BITS
_INDEX_MASK: I64 = (1 << INDEX_BITS) - 1
_SIZE_MAX: I64 = SIZE_MAX
# (virtual host, exchange, routing keys, property block, body, no id, whether durable), the fields of `message.Content`
Fields = tuple[str, str, tuple[str, ...], bytes, bytes, bytes, bool]


class CommandReader:
    """Reads one entry after another.

    After `read` returned True, `pid` is the publisher, `number` its sequence number and `size` that of the body.
    `priority` and `ttl_ms` are -1 for a message without them.
    """

    __slots__ = (
        "_block_at", "_block_size", "_body_at", "_exchange", "_exchange_at", "_exchange_bytes", "_exchange_size", "_fragments",
        "_keys", "_keys_at", "_keys_bytes", "_keys_size", "_pid_bytes", "_source", "_stop", "_value", "is_durable", "number",
        "pid", "priority", "size", "time_ms", "ttl_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        """Remember no route and no publisher."""
        self._exchange: str = ""
        self._exchange_bytes: bytes = b""
        self._keys: tuple[str, ...] = ()
        self._keys_bytes: bytes = b""
        self._pid_bytes: bytes = b""
        self.pid = Opaque(PROCESS, b"")
        self._value = self.time_ms = 0

    def read(self, view: memoryview, at: Size, size: Size) -> bool:
        """Return whether the data of an entry is the enqueue command of a plain message."""
        if at < 0 or size < 0 or size > len(view) - at:
            return False
        self._source: Source = source_of(view)
        self._stop = at + size
        at = self._number(self._after(at, START))
        self.time_ms = self._value
        at = self._number(self._after(at, ENQUEUE))
        self.number = self._value
        at = self._after(at, MESSAGE)
        self._block_at = at + HEAD_SIZE
        at = self._binary(at)
        self._block_size = self._value
        at = self._after(at, AFTER_BLOCK)
        self._body_at = at
        at = self._binaries(at)
        self._fragments = self._value
        at = self._number(self._after(self._annotations(at), SIZES))
        at = self._number(at)
        self.size = self._value
        at = self._number(self._after(at, NOTIFY))
        return self._is_process_to_end(at)

    def content(self, vhost: str) -> Fields:
        """Return the fields of the content of the entry that was read; its view has to be open still."""
        self._take_route()
        block = take_bytes(self._source, self._block_at, self._block_size)
        return vhost, self._exchange, self._keys, block, self._body(), b"", self.is_durable

    def _take_route(self) -> Bool:
        """Keep exchange and routing keys of the entry; return whether they differ from those of the one before."""
        exchange, keys = self._exchange_bytes, self._keys_bytes
        is_other: Bool = False
        if not is_same(self._source, self._exchange_at, self._exchange_size, source_of_bytes(exchange), len(exchange)):
            exchange = self._exchange_bytes = take_bytes(self._source, self._exchange_at, self._exchange_size)
            self._exchange = exchange.decode("utf-8", "replace")
            is_other = True
        if not is_same(self._source, self._keys_at, self._keys_size, source_of_bytes(keys), len(keys)):
            self._keys_bytes = take_bytes(self._source, self._keys_at, self._keys_size)
            self._keys = tuple([key.decode("utf-8", "surrogateescape") for key in self._taken(self._keys_at)])
            is_other = True
        return is_other

    def write_lines(self, lines: LineWriter, run: Run, numbers: array[int], at: Size, room: Size) -> Size:
        """Write the lines of ready messages, each an index and a size as one number, from `at` on.

        Return where the first one is that is left: in another run, of another form, or behind `room` bytes.
        The caller has set the parts of a line that all of them share.
        """
        held: memoryview = memoryview(numbers)
        found: I64s = i64s_of(held)
        count: Size = len(numbers)
        index: I64
        place: I64
        body_at: Size
        body_size: Size
        is_first: Bool = True
        while at < count and lines.size < room:
            index = found[at] & _INDEX_MASK
            if found[at] < 0 or index < run.first or index >= run.stop:
                break
            place = run.place(index)
            if not self.read(run.view, place, run.size(index)) or self._fragments != 1:
                break
            if self._take_route() or is_first:
                lines.route = lines.text((self._exchange, self._keys), 2)
                is_first = False
            lines.source = self._source
            lines.at = self._block_at
            lines.stop = self._block_at + self._block_size
            body_at = self._body_at + 2 * HEAD_SIZE
            body_size = get_i32(self._source, self._body_at + HEAD_SIZE + 1)
            if not lines.line(index, b"", self.is_durable, 0, body_size, place, self._source, body_at, body_size):
                break
            at += 1
        return at

    def follow(self, run: Run, index: I64, stop: I64, number: I64) -> array[int]:
        """Return the plain messages from an entry on that the publisher of the one before sent: index and size as one number.

        `number` is the publisher's next one.  Messages that have a priority or expire end the sequence, and so do large ones.
        """
        room: Size = min(stop - index, FOLLOWING_MAX)
        found = array("q", bytes(8 * room))
        held: memoryview = memoryview(found)
        numbers: I64s = i64s_of(held)
        pid = self.pid
        count: Size = 0
        time_ms: I64 = self.time_ms
        while count < room and self.read(run.view, run.place(index), run.size(index)):
            if self.pid is not pid or self.number != number or self.priority >= 0 or self.ttl_ms >= 0 or self.size >= _SIZE_MAX:
                break
            numbers[count] = (self.size << _SHIFT) | index
            time_ms = self.time_ms
            number += 1
            count += 1
            index += 1
        self.time_ms = time_ms
        return found[:count]

    def _body(self) -> bytes:
        """Return the body, whose fragments are in reverse order."""
        if self._fragments != 1:
            return b"".join(reversed(self._taken(self._body_at)))
        return take_bytes(self._source, self._body_at + 2 * HEAD_SIZE, get_i32(self._source, self._body_at + HEAD_SIZE + 1))

    def _taken(self, at: Size) -> list[bytes]:
        """Return the elements of a list that was read."""
        found: list[bytes] = []
        size: Size
        if self._source[at] == NIL:
            return found
        left: Size = get_i32(self._source, at + 1)
        at += HEAD_SIZE
        while left > 0:
            size = get_i32(self._source, at + 1)
            found.append(take_bytes(self._source, at + HEAD_SIZE, size))
            at += HEAD_SIZE + size
            left -= 1
        return found

    # Each of these takes the start of a part and returns its end, or -1 for another form; a start of -1 has no part

    def _after(self, at: Size, wanted: bytes) -> Size:
        size: Size = len(wanted)
        if at < 0 or size > self._stop - at or not is_same(self._source, at, size, source_of_bytes(wanted), size):
            return -1
        return at + size

    def _number(self, at: Size) -> Size:
        """Set `_value` to the integer, which is not negative, at `at`."""
        left: Size = self._stop - at
        size: Size
        left_bytes: Size
        tag: Size
        value: I64 = 0
        if at < 0 or left < 2:
            return -1
        tag = self._source[at]
        if tag == 97:
            self._value = self._source[at + 1]
            return at + 2
        if tag == 98 and left >= 5:
            value = get_i32(self._source, at + 1)
            self._value = value
            return at + 5 if value >= 0 else -1
        size = self._source[at + 1]
        if tag != 110 or size > 7 or left < 3 + size or self._source[at + 2]:
            return -1
        at += 3
        left_bytes = size
        while left_bytes > 0:
            left_bytes -= 1
            value = (value << 8) | self._source[at + left_bytes]
        self._value = value
        return at + size

    def _binary(self, at: Size) -> Size:
        """Set `_value` to the size of the binary at `at`."""
        if at < 0 or self._stop - at < HEAD_SIZE or self._source[at] != BINARY:
            return -1
        size: Size = get_i32(self._source, at + 1)
        self._value = size
        return at + HEAD_SIZE + size if 0 <= size <= self._stop - at - HEAD_SIZE else -1

    def _binaries(self, at: Size) -> Size:
        """Set `_value` to the number of elements of the list of binaries at `at`."""
        if at >= 0 and at < self._stop and self._source[at] == NIL:
            self._value = 0
            return at + 1
        if at < 0 or self._stop - at < HEAD_SIZE or self._source[at] != LIST:
            return -1
        count: Size = get_i32(self._source, at + 1)
        left: Size = count
        at += HEAD_SIZE
        while left > 0 and at >= 0:
            at = self._binary(at)
            left -= 1
        self._value = count
        return at + 1 if count > 0 and 0 <= at < self._stop and self._source[at] == NIL else -1

    def _annotations(self, at: Size) -> Size:
        """Keep the annotations of a message; those of other names than these change it."""
        left: Size
        name: Size
        start: Size
        self._exchange_at = self._keys_at = self.priority = self.ttl_ms = -1
        self.is_durable = True
        if at < 0 or self._stop - at < HEAD_SIZE or self._source[at] != MAP:
            return -1
        left = get_i32(self._source, at + 1)
        at += HEAD_SIZE
        if left < 0:
            return -1
        while left > 0 and at >= 0:
            left -= 1
            name = self._name(at)
            if name < 0:
                return -1
            at += 2 + self._source[at + 1]
            start = at
            if name == EXCHANGE:
                at = self._binary(at)
                self._exchange_at = start + HEAD_SIZE
                self._exchange_size = self._value
            elif name == ROUTING_KEYS:
                at = self._binaries(at)
                self._keys_at = start
                self._keys_size = at - start
            elif name == DURABLE:
                at = self._after(start, TRUE_TERM)
                self.is_durable = at >= 0
                if at < 0:
                    at = self._after(start, FALSE_TERM)
            elif name == PRIORITY or name == TTL or name == TIME or name == RECEIVED:
                at = self._number(at)
                if name == PRIORITY:
                    self.priority = self._value
                elif name == TTL:
                    self.ttl_ms = self._value
            else:
                return -1
        return at if self._exchange_at >= 0 and self._keys_at >= 0 else -1

    def _name(self, at: Size) -> Size:
        """Return the bytes of the short name at `at` as a number."""
        name: Size = 0
        index: Size = 0
        size: Size
        if self._stop - at < 2 or self._source[at] != ATOM:
            return -1
        size = self._source[at + 1]
        if size > NAME_MAX or size > self._stop - at - 2:
            return -1
        while index < size:
            name = (name << 8) | self._source[at + 2 + index]
            index += 1
        return name

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
