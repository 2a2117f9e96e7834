"""Messages as lines of ASCII JSON, made from their fields without a dictionary for each message.

The keys and their order are those of `StoredMessage.to_json`, which are fixed.  What is rare in a property block is left to
the caller: damage, floats, decimals, names and long strings that are not UTF-8, a name twice in a table, deep nesting.
"""

from __future__ import annotations

from array import array
from json import dumps
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ..format.entry_cy import IndexEntry
from ..format.properties import FIELDS

if not cython.compiled:
    from storebytes._bytes_cy import (
        I64, Bool, I64s, Size, Source, Target, get_i16, get_i32, get_i64, has_bytes, i64s_of, is_same_at, put_base64,
        put_bytes, put_decimal, put_hex, put_json_text, source_of_bytes, target_of, window,
    )  # fmt: skip

CAPACITY: Size = 1 << 20
LINE_MAX: Size = 1 << 12  # a line's keys, numbers and id
GROWTH: Size = 8  # most characters for a byte of a property block
NAMES_MAX: Size = 128  # in the tables that enclose one another
DEPTH_MAX: Size = 16
TEXTS_MAX: Size = 4096  # of the parts that repeat from message to message
NUMBER_MAX = 1 << 62
QUOTE: Size = 34
COMMA: Size = 44
COLON: Size = 58
OPEN: Size = 91
CLOSE: Size = 93
OPEN_TABLE: Size = 123
CLOSE_TABLE: Size = 125
REPLACED: bytes = b"\\ufffd"  # in place of bytes that are not UTF-8
TRUE: bytes = b"true"
FALSE: bytes = b"false"
NULL: bytes = b"null"
BASE64: bytes = b'{"base64":"'
NAMES: list[bytes] = [b'"%s":' % name.encode() for name, _ in FIELDS]
KINDS: bytes = "".join(kind for _, kind in FIELDS).encode()
FIELD_COUNT: Size = len(FIELDS)
SEQ_ID: bytes = b',"seq_id":'
MSG_ID: bytes = b',"msg_id":"'
PERSISTENT: bytes = b'","persistent":'
ACKED: bytes = b',"acked":'
REDELIVERED: bytes = b',"redelivered":'
EXPIRY: bytes = b',"expiry_us":'
SIZE: bytes = b',"size":'
EMBEDDED: bytes = b',"embedded":'
OFFSET: bytes = b',"offset":'
PROPERTIES: bytes = b',"properties":{'
BODY: bytes = b'},"body_base64":"'


class LineWriter:
    """A buffer of JSON lines; `size` is how many bytes it holds.

    `head`, `file`, `route` and `more` are parts of the next line, as `text` returns them.
    """

    __slots__ = (
        "_buffer",
        "_capacity",
        "_names",
        "_names_held",
        "_out",
        "_texts",
        "at",
        "file",
        "head",
        "is_acked",
        "is_embedded",
        "is_redelivered",
        "more",
        "route",
        "size",
        "source",
        "stop",
    )  # fmt: skip

    def __init__(self) -> None:
        """Start with an empty buffer."""
        self._texts: dict[Any, bytes] = {}
        self._names_held = memoryview(array("q", [0] * NAMES_MAX))
        self._names: I64s = i64s_of(self._names_held)
        self.size = 0
        self.head = self.file = self.route = self.more = b""
        self._buffer: memoryview = memoryview(b"")
        self._grow(CAPACITY)

    def _grow(self, capacity: Size) -> None:
        """Take a larger buffer, with what the present one holds."""
        buffer = bytearray(capacity)
        buffer[: self.size] = self._buffer[: self.size]
        self._buffer = memoryview(buffer)
        self._out: Target = target_of(self._buffer)
        self._capacity = capacity

    def take(self) -> memoryview:
        """Return the lines, which are valid until the next one is added, and start again."""
        found: memoryview = self._buffer[: self.size]
        self.size = 0
        return found

    def add_line(self, line: bytes) -> None:
        """Add a finished line."""
        if len(line) > self._capacity - self.size:
            self._grow(2 * self._capacity + len(line))
        self._raw(line)

    def add(self, message: Any) -> bool:
        """Add the line of a message; return whether it was one that this kernel writes."""
        content = message.content
        body: bytes = content.body
        block: bytes = content.properties_bin
        seq_id = message.seq_id
        expiry_us = message.expiry_us
        offset = message.offset
        if not (0 <= seq_id < NUMBER_MAX and 0 <= expiry_us < NUMBER_MAX and 0 <= offset < NUMBER_MAX):
            return False
        names: tuple[str, ...] = message.MORE
        self.head = self.text((message.queue, content.vhost), 0)
        self.file = self.text(message.file, 1)
        self.route = self.text((content.exchange, content.routing_keys), 2)
        self.more = self.text((names, message.more()), 3) if names else b""
        self.is_acked = message.acked
        self.is_embedded = message.embedded
        self.is_redelivered = message.redelivered
        self.source = source_of_bytes(block)
        self.at = 0
        self.stop = len(block)
        return self.line(
            seq_id, content.msg_id, message.persistent, expiry_us, message.size, offset, source_of_bytes(body), 0, len(body)
        )

    def add_entry(self, entry: IndexEntry, content: Any, queue: str, file: str, offset: I64, is_redelivered: Bool) -> bool:
        """Add the line of a classic queue's message by its index entry; `file` and `offset` are those of a `StoredMessage`.

        Return whether it was one that this kernel writes.
        """
        body: bytes = content[4]
        block: bytes = content[3]
        if entry.seq_id < 0 or entry.expiry_us < 0 or offset < 0:
            return False
        if entry.seq_id >= NUMBER_MAX or entry.expiry_us >= NUMBER_MAX or offset >= NUMBER_MAX:
            return False
        self.head = self.text((queue, content[0]), 0)
        self.file = self.text(file, 1)
        self.route = self.text((content[1], content[2]), 2)
        self.more = b""
        self.is_acked = entry.acked
        self.is_embedded = entry.term is not None
        self.is_redelivered = is_redelivered
        self.source = source_of_bytes(block)
        self.at = 0
        self.stop = len(block)
        return self.line(
            entry.seq_id, content[5], entry.persistent, entry.expiry_us, entry.size, offset, source_of_bytes(body), 0, len(body)
        )

    def set_shared(self, queue: Any, file: str, more: Any, is_embedded: Bool) -> None:
        """Set what the lines of messages in one file share that were neither delivered nor acknowledged.

        `queue` is name and virtual host, `more` the keys and values that only this type of queue has.
        """
        self.head = self.text(queue, 0)
        self.file = self.text(file, 1)
        self.more = self.text(more, 3)
        self.is_acked = self.is_redelivered = False
        self.is_embedded = is_embedded

    def line(
        self, seq_id: I64, msg_id: bytes, is_persistent: Bool, expiry_us: I64, size: I64, offset: I64, body: Source,
        body_at: Size, body_size: Size,
    ) -> Bool:  # fmt: skip
        """Add the line of a message whose other parts are set; the property block is at..stop of `source`."""
        fixed: Size = len(self.head) + len(self.file) + len(self.route) + len(self.more) + 2 * len(msg_id) + LINE_MAX
        need: Size = fixed + GROWTH * (self.stop - self.at) + body_size // 3 * 4 + 4
        start: Size = self.size
        if need > self._capacity - start:
            self._grow(2 * self._capacity + need)
        self._raw(self.head)
        self._number(SEQ_ID, seq_id)
        self._raw(MSG_ID)
        self.size = put_hex(self._out, self.size, source_of_bytes(msg_id), 0, len(msg_id), False)
        self._flag(PERSISTENT, is_persistent)
        self._flag(ACKED, self.is_acked)
        self._flag(REDELIVERED, self.is_redelivered)
        self._number(EXPIRY, expiry_us)
        self._number(SIZE, size)
        self._flag(EMBEDDED, self.is_embedded)
        self._raw(self.file)
        self._number(OFFSET, offset)
        self._raw(self.route)
        self._raw(PROPERTIES)
        if not self._block():
            self.size = start
            return False
        self._raw(BODY)
        self.size = put_base64(self._out, self.size, body, body_at, body_size)
        self._byte(QUOTE)
        self._raw(self.more)
        self._raw(b"}\n")
        return True

    def text(self, key: Any, part: Size) -> bytes:
        """Return a part of a line that repeats; `part` names its form, because two forms may have equal keys."""
        found: bytes | None = self._texts.get((part, key))
        if found is None:
            if len(self._texts) >= TEXTS_MAX:
                self._texts.clear()
            found = self._texts[part, key] = _PARTS[part](key).replace("\x7f", "\\u007f").encode("ascii")
        return found

    # Writing; the room was checked before

    def _raw(self, text: bytes) -> None:
        size: Size = len(text)
        put_bytes(self._out, self.size, source_of_bytes(text), 0, size)
        self.size += size

    def _byte(self, byte: Size) -> None:
        self._out[self.size] = byte
        self.size += 1

    def _number(self, name: bytes, number: I64) -> None:
        self._raw(name)
        self.size = put_decimal(self._out, self.size, number)

    def _flag(self, name: bytes, is_set: Bool) -> None:
        self._raw(name)
        self._raw(TRUE if is_set else FALSE)

    # The property block (`rabbitstore.format.properties`); each method returns False for what the caller has to write

    def _block(self) -> Bool:
        """Write the properties of the whole block."""
        if self.stop - self.at < 2:
            return False
        flags: Size = get_i16(self.source, self.at) & 0xFFFF
        if flags & 1:
            return False
        self.at += 2
        index: Size = 0
        is_first: Bool = True
        while index < FIELD_COUNT:
            if flags & (0x8000 >> index):
                if not is_first:
                    self._byte(COMMA)
                is_first = False
                self._raw(NAMES[index])
                if not self._field(KINDS[index]):
                    return False
            index += 1
        return self.at == self.stop

    def _field(self, kind: Size) -> Bool:
        """Write the value of a property: a short string, a table, an octet or a time."""
        if kind == 115:  # s
            return self._short(False)
        if kind == 70:  # F
            return self._table(0, 0)
        return self._integer(66 if kind == 111 else 84)  # o, T

    def _short(self, is_strict: Bool) -> Bool:
        """Write a short string; a strict one has to be UTF-8."""
        if self.stop - self.at < 1:
            return False
        size: Size = self.source[self.at]
        self.at += 1
        return self._quoted(size, is_strict)

    def _long(self) -> Size:
        """Return the size of a long string, which begins at the position; -1 if it is cut."""
        if self.stop - self.at < 4:
            return -1
        size: Size = get_i32(self.source, self.at)
        self.at += 4
        return size if 0 <= size <= self.stop - self.at else -1

    def _quoted(self, size: Size, is_strict: Bool) -> Bool:
        if size < 0 or size > self.stop - self.at:
            return False
        self._byte(QUOTE)
        start: Size = self.size
        self.size = put_json_text(self._out, start, self.source, self.at, size)
        made: Size = self.size - start
        self.at += size
        self._byte(QUOTE)
        return not (is_strict and made > size and has_bytes(window(self._out, start, made), made, source_of_bytes(REPLACED), 6))

    def _table(self, names: Size, depth: Size) -> Bool:
        """Write a table; the names of those around it are the first `names`."""
        size: Size = self._long()
        if size < 0:
            return False
        after: Size = self.stop
        first: Size = names
        self.stop = self.at + size
        self._byte(OPEN_TABLE)
        while self.at < self.stop:
            if names > first:
                self._byte(COMMA)
            if names == NAMES_MAX or self._is_known(first, names):
                return False
            self._names[names] = self.at
            names += 1
            if not self._short(True):
                return False
            self._byte(COLON)
            if not self._value(names, depth + 1):
                return False
        self._byte(CLOSE_TABLE)
        self.stop = after
        return True

    def _is_known(self, first: Size, names: Size) -> Bool:
        """Return whether the table has the name at the position already."""
        size: Size = self.source[self.at]
        if size >= self.stop - self.at:
            return True
        while first < names:
            at: Size = self._names[first]
            if self.source[at] == size and is_same_at(self.source, at, size + 1, self.source, self.at):
                return True
            first += 1
        return False

    def _array(self, names: Size, depth: Size) -> Bool:
        size: Size = self._long()
        if size < 0:
            return False
        after: Size = self.stop
        is_first: Bool = True
        self.stop = self.at + size
        self._byte(OPEN)
        while self.at < self.stop:
            if not is_first:
                self._byte(COMMA)
            is_first = False
            if not self._value(names, depth + 1):
                return False
        self._byte(CLOSE)
        self.stop = after
        return True

    def _value(self, names: Size, depth: Size) -> Bool:
        """Write a header's value after its type code."""
        if depth > DEPTH_MAX or self.at >= self.stop:
            return False
        code: Size = self.source[self.at]
        self.at += 1
        if code == 83:  # S
            return self._quoted(self._long(), True)
        if code == 70:  # F
            return self._table(names, depth)
        if code == 65:  # A
            return self._array(names, depth)
        if code == 116:  # t
            return self._octet_flag()
        if code == 86:  # V
            self._raw(NULL)
            return True
        return self._bytes() if code == 120 else self._integer(code)

    def _octet_flag(self) -> Bool:
        if self.at < self.stop and self.source[self.at] < 2:
            self._raw(TRUE if self.source[self.at] else FALSE)
            self.at += 1
            return True
        return self._integer(66)

    def _bytes(self) -> Bool:
        size: Size = self._long()
        if size < 0:
            return False
        self._raw(BASE64)
        self.size = put_base64(self._out, self.size, self.source, self.at, size)
        self.at += size
        self._byte(QUOTE)
        self._byte(CLOSE_TABLE)
        return True

    def _integer(self, code: Size) -> Bool:
        """Write a number of one of the types b, B, s, u, I, i, l and T."""
        at: Size = self.at
        left: Size = self.stop - at
        number: I64 = 0
        size: Size = 8
        if code == 98 or code == 66:
            size = 1
        elif code == 115 or code == 117:
            size = 2
        elif code == 73 or code == 105:
            size = 4
        elif code != 108 and code != 84:
            return False
        if left < size:
            return False
        if size == 1:
            number = self.source[at]
            if code == 98 and number > 127:
                number -= 256
        elif size == 2:
            number = get_i16(self.source, at)
            if code == 117:
                number &= 0xFFFF
        elif size == 4:
            number = get_i32(self.source, at)
            if code == 105:
                number &= 0xFFFFFFFF
        else:
            number = get_i64(self.source, at)
            if code == 84 and number < 0:  # unsigned, and too large
                return False
        self.at += size
        self.size = put_decimal(self._out, self.size, number)
        return True


def _head(key: tuple[str, str]) -> str:
    return f'{{"queue":{dumps(key[0])},"vhost":{dumps(key[1])}'


def _file(name: str) -> str:
    return f',"file":{dumps(name)}'


def _route(key: tuple[str, tuple[str, ...]]) -> str:
    keys = [one.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for one in key[1]]
    return f',"exchange":{dumps(key[0])},"routing_keys":{dumps(keys, separators=(",", ":"))}'


def _more(keys: tuple[tuple[str, ...], tuple[Any, ...]]) -> str:
    return "," + dumps(dict(zip(*keys, strict=True)), separators=(",", ":")).removeprefix("{").removesuffix("}")


_PARTS = (_head, _file, _route, _more)
