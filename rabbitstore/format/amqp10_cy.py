"""Convert AMQP 1.0 messages to AMQP 0-9-1 without decoding each value (docs/formats/rabbitmq-streams.md#messages).

`amqp10_message` defines the conversion, and does it for every message that has something else: nested values, sections other
than the usual five, names and texts that are long or not ASCII, numbers of rare types, damage.
"""

from __future__ import annotations

from array import array

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]

if not cython.compiled:
    from storebytes._bytes_cy import (
        I64, Bool, I64s, Size, Source, Target, get_i16, get_i32, get_i64, i64s_of, is_same, is_same_at, put_bytes, put_decimal,
        source_of_bytes, take_bytes, target_of,
    )  # fmt: skip

CAPACITY: Size = 1 << 16
GROWTH: Size = 4  # most bytes of a property block for a byte of the sections
FIXED_MAX: Size = 512  # numbers as text, and fields that every block has
SHORT_MAX: Size = 255
NAMES_MAX: Size = 64  # of annotations and application properties
# Sections, by their descriptor without 0x70
HEADER: Size = 0
ANNOTATIONS: Size = 2
PROPERTIES: Size = 3
APPLICATION: Size = 4
DATA: Size = 5
SECTIONS: Size = 6
# Fields of the sections properties (13 of them) and header
MESSAGE_ID: Size = 0
USER_ID: Size = 1
REPLY_TO: Size = 4
CORRELATION_ID: Size = 5
CONTENT_TYPE: Size = 6
CONTENT_ENCODING: Size = 7
CREATION_TIME: Size = 9
GROUP_ID: Size = 10
PROPERTIES_MAX: Size = 13
DURABLE: Size = 13
PRIORITY: Size = 14
TTL: Size = 15
HEADER_MAX: Size = 5
FIELDS: Size = 18
# Codes of values
SMALL_DESCRIPTOR: Size = 0x53
NULL: Size = 0x40
UBYTE: Size = 0x50
BOOLEAN: Size = 0x56
DOUBLE: Size = 0x82
TIME: Size = 0x83
EMPTY_LIST: Size = 0x45
LIST: Size = 0xC0
MAP: Size = 0xC1
LARGE: Size = 0x10  # added for a size of four bytes instead of one
OTHER: Size = 127
ONE_BYTE: Size = 126  # which says how many bytes follow
FOUR_BYTES: Size = 125
_CODES = (
    (range(0x40, 0x45), 0), (range(0x50, 0x57), 1), (range(0x60, 0x62), 2), (range(0x70, 0x72), 4), (range(0x80, 0x84), 8),
    ((0xA0, 0xA1, 0xA3), 126), ((0xB0, 0xB1, 0xB3), 125),
)  # fmt: skip
# The bytes after the code of a value
WIDTHS: bytes = bytes(next((width for codes, width in _CODES if code in codes), 127) for code in range(256))
EXCHANGE: bytes = b"x-exchange"
ROUTING_KEY: bytes = b"x-routing-key"
FOR_CLIENTS: bytes = b"x-"
BASIC: bytes = b"x-basic-"
TYPE: bytes = b"x-basic-type"
CC: bytes = b"x-cc"
FILTER: bytes = b"x-stream-filter-value"
QUEUES: bytes = b"/queues/"
# (exchange, routing keys, property block, body, whether durable, filter value)
Converted = tuple[str, tuple[str, ...], bytes, bytes, bool, "str | None"]


class Converter:
    """Converts one message after another, in buffers of its own."""

    __slots__ = (
        "_buffer",
        "_capacity",
        "_fields",
        "_fields_held",
        "_flags",
        "_known",
        "_names",
        "_names_held",
        "_sections",
        "_sections_held",
        "_source",
        "block",
        "block_size",
        "body_at",
        "body_size",
        "code",
        "count",
        "exchange",
        "filter_value",
        "is_durable",
        "key",
        "size",
        "start",
        "type_at",
    )  # fmt: skip

    def __init__(self) -> None:
        """Make buffers that grow with the messages."""
        self._sections_held = memoryview(array("q", bytes(8 * SECTIONS)))
        self._sections: I64s = i64s_of(self._sections_held)
        self._fields_held = memoryview(array("q", bytes(8 * 3 * FIELDS)))
        self._fields: I64s = i64s_of(self._fields_held)
        self._names_held = memoryview(array("q", bytes(8 * 2 * NAMES_MAX)))
        self._names: I64s = i64s_of(self._names_held)
        self._reserve(CAPACITY)

    def _reserve(self, capacity: Size) -> None:
        self._buffer: memoryview = memoryview(bytearray(capacity))
        self.block: Target = target_of(self._buffer)
        self._capacity = capacity

    def convert(self, data: bytes) -> Converted | None:
        """Return what `amqp10_message.to_content` makes of a message; None for one that has to be decoded."""
        source: Source = source_of_bytes(data)
        if not self.read(source, 0, len(data)):
            return None
        keys = () if self.key is None else (self.key,)
        body = take_bytes(source, self.body_at, self.body_size)
        block = take_bytes(self.block, 0, self.block_size)
        return self.exchange, keys, block, body, self.is_durable, self.filter_value

    def read(self, source: Source, at: Size, stop: Size) -> Bool:
        """Convert the message in at..stop of a source; return False for one that has to be decoded.

        After True, the body is at `body_at` in the source, and the property block in `block` until the next message.
        """
        need: Size
        durable: Size
        self._source: Source = source
        if not self._find_sections(at, stop):
            return False
        if self._take(self._sections[DATA], stop) < 0:
            return False
        self.body_at = self.start
        self.body_size = self.size
        need = GROWTH * (stop - at - self.size) + FIXED_MAX
        if need > self._capacity:
            self._reserve(need)
        if not self._read_section(HEADER, DURABLE, HEADER_MAX, stop) or not self._read_section(
            PROPERTIES, 0, PROPERTIES_MAX, stop
        ):
            return False
        durable = self._durable()
        if durable < 0 or not self._block(durable, stop):
            return False
        self.is_durable = durable == 1
        return True

    # Reading; each of these returns -1 or False for what is left to `amqp10_message`

    def _find_sections(self, at: Size, stop: Size) -> Bool:
        """Note where the value of each section is; there has to be one section with data."""
        section: Size = 0
        while section < SECTIONS:
            self._sections[section] = -1
            section += 1
        while at < stop:
            if stop - at < 4 or self._source[at] or self._source[at + 1] != SMALL_DESCRIPTOR:
                return False
            section = self._source[at + 2] - 0x70
            if section < 0 or section >= SECTIONS or section == 1 or self._sections[section] >= 0:
                return False
            at += 3
            self._sections[section] = at
            if section == DATA:
                at = self._take(at, stop)
                if at < 0 or self.code & 0xF:
                    return False
            else:
                at = self._open(at, stop, MAP if section == ANNOTATIONS or section == APPLICATION else LIST)
                if at < 0:
                    return False
                at = self.start + self.size
        at = self._sections[DATA]
        return at >= 0

    def _take(self, at: Size, stop: Size) -> Size:
        """Set code, start and size of the plain value at `at`; return where it ends."""
        if at >= stop:
            return -1
        width: Size = WIDTHS[self._source[at]]
        self.code = self._source[at]
        at += 1
        if width == OTHER:
            return -1
        if width == ONE_BYTE:
            if at >= stop:
                return -1
            width = self._source[at]
            at += 1
        elif width == FOUR_BYTES:
            if stop - at < 4:
                return -1
            width = get_i32(self._source, at)
            at += 4
        if width < 0 or width > stop - at:
            return -1
        self.start = at
        self.size = width
        return at + width

    def _open(self, at: Size, stop: Size, kind: Size) -> Size:
        """Set count, start and size of the elements of the list or map at `at`; return where the first one is."""
        if at >= stop:
            return -1
        code: Size = self._source[at]
        size: Size
        at += 1
        self.count = self.size = 0
        self.start = at
        if code == EMPTY_LIST and kind == LIST:
            return at
        if code == kind:
            if stop - at < 2:
                return -1
            size = self._source[at] - 1
            self.count = self._source[at + 1]
            at += 2
        elif code == kind + LARGE:
            if stop - at < 8:
                return -1
            size = get_i32(self._source, at)
            size -= 4
            self.count = get_i32(self._source, at + 4)
            at += 8
        else:
            return -1
        if size < 0 or size > stop - at or self.count < 0 or self.count > size:
            return -1
        self.start = at
        self.size = size
        return at

    def _read_section(self, section: Size, first: Size, most: Size, stop: Size) -> Bool:
        """Keep code, start and size of the elements of a list from field `first` on; absent ones are null."""
        index: Size = 0
        count: Size
        end: Size
        at: Size = self._sections[section]
        while index < most:
            self._fields[3 * (first + index)] = NULL
            index += 1
        if at < 0:
            return True
        at = self._open(at, stop, LIST)
        count = self.count
        end = at + self.size
        if at < 0 or count > most:
            return False
        index = 0
        while index < count:
            at = self._take(at, end)
            if at < 0:
                return False
            self._fields[3 * (first + index)] = self.code
            self._fields[3 * (first + index) + 1] = self.start
            self._fields[3 * (first + index) + 2] = self.size
            index += 1
        return at == end

    def _load(self, field: Size) -> None:
        """Set code, start and size of a field."""
        self.code = self._fields[3 * field]
        self.start = self._fields[3 * field + 1]
        self.size = self._fields[3 * field + 2]

    def _durable(self) -> Size:
        """Return 1 if the message is durable or does not say, 0 if it is not, -1 for another value."""
        self._load(DURABLE)
        if self.code == NULL or self.code == 0x41:
            return 1
        if self.code == 0x42:
            return 0
        if self.code == BOOLEAN:
            return 1 if self._source[self.start] else 0
        return -1

    def _is_text(self) -> Bool:
        """Return whether the value is a string, or a symbol, of ASCII."""
        kind: Size = self.code & 0xEF
        at: Size = self.start
        end: Size = self.start + self.size
        if kind != 0xA1 and kind != 0xA3:
            return False
        while at < end:
            if self._source[at] > 127:
                return False
            at += 1
        return True

    def _is_integer(self) -> Bool:
        code: Size = self.code
        if 0x50 <= code < BOOLEAN or code == 0x43 or code == 0x44:
            return True
        return code == 0x60 or code == 0x61 or code == 0x70 or code == 0x71 or code == 0x80 or code == 0x81

    def _integer(self) -> I64:
        """Return the value of an integer; one of 64 bits without a sign wraps."""
        code: Size = self.code
        number: I64 = 0
        if self.size == 1:
            number = self._source[self.start]
            if number > 127 and (code == 0x51 or code == 0x54 or code == 0x55):
                number -= 256
        elif self.size == 2:
            number = get_i16(self._source, self.start)
            if code == 0x60:
                number &= 0xFFFF
        elif self.size == 4:
            number = get_i32(self._source, self.start)
            if code == 0x70:
                number &= 0xFFFFFFFF
        elif self.size == 8:
            number = get_i64(self._source, self.start)
        return number

    def _equals(self, text: bytes) -> Bool:
        size: Size = len(text)
        return self.size == size and is_same(self._source, self.start, size, source_of_bytes(text), size)

    def _begins(self, text: bytes) -> Bool:
        size: Size = len(text)
        return self.size >= size and is_same(self._source, self.start, size, source_of_bytes(text), size)

    # Writing; the room was checked before

    def _byte(self, byte: Size) -> None:
        self.block[self.block_size] = byte
        self.block_size += 1

    def _big(self, number: I64, width: Size) -> None:
        """Write a number with its highest byte first."""
        shift: Size = 8 * (width - 1)
        while shift >= 0:
            self._byte((number >> shift) & 0xFF)
            shift -= 8

    def _copy(self) -> None:
        put_bytes(self.block, self.block_size, self._source, self.start, self.size)
        self.block_size += self.size

    def _flag(self, index: Size) -> None:
        """Note that the block has a property; `index` is its place in `properties.FIELDS`."""
        self._flags |= 0x8000 >> index

    def _block(self, durable: Size, stop: Size) -> Bool:
        """Write the property block of the message, in the order of `properties.FIELDS`."""
        self._flags = 0
        self.block_size = 2
        self.exchange = ""
        self.key: str | None = None
        self.filter_value: str | None = None
        self.type_at = -1
        if not self._short(CONTENT_TYPE, 0) or not self._short(CONTENT_ENCODING, 1) or not self._headers(stop):
            return False
        self._flag(3)
        self._byte(2 if durable else 1)
        self._load(PRIORITY)
        if self.code == UBYTE:
            self._flag(4)
            self._copy()
        elif self.code != NULL:
            return False
        if not self._identifier(CORRELATION_ID, 5) or not self._reply_to():
            return False
        self._load(TTL)
        if self.code != NULL:
            if not self._is_integer() or not self._number(7):
                return False
        if not self._identifier(MESSAGE_ID, 8) or not self._timestamp():
            return False
        if self.type_at >= 0:
            self._take(self.type_at, stop)
            if not self._short_value(10):
                return False
        self._load(USER_ID)
        if self.code != NULL:
            if self.code != 0xA0 or self.size > SHORT_MAX:
                return False
            self._flag(11)
            self._byte(self.size)
            self._copy()
        if not self._short(GROUP_ID, 12):
            return False
        self.block[0] = self._flags >> 8
        self.block[1] = self._flags & 0xFF
        return True

    def _short(self, field: Size, index: Size) -> Bool:
        """Write a field as a short string."""
        self._load(field)
        return self.code == NULL or self._short_value(index)

    def _short_value(self, index: Size) -> Bool:
        if self.size > SHORT_MAX or not self._is_text():
            return False
        self._flag(index)
        self._byte(self.size)
        self._copy()
        return True

    def _number(self, index: Size) -> Bool:
        """Write an integer as a short string."""
        number: I64 = self._integer()
        start: Size = self.block_size
        if number < 0:
            return False
        self._flag(index)
        self.block_size = put_decimal(self.block, start + 1, number)
        self.block[start] = self.block_size - start - 1
        return True

    def _identifier(self, field: Size, index: Size) -> Bool:
        """Write a message's id, or the one that it answers."""
        self._load(field)
        if self.code == NULL:
            return True
        return self._number(index) if self._is_integer() else self._short_value(index)

    def _reply_to(self) -> Bool:
        self._load(REPLY_TO)
        if self.code == NULL:
            return True
        return not self._begins(QUEUES) and self._short_value(6)

    def _timestamp(self) -> Bool:
        """Write the time in seconds; one before 1970 is left out."""
        self._load(CREATION_TIME)
        if self.code == NULL:
            return True
        if self.code != TIME:
            return False
        number: I64 = get_i64(self._source, self.start)
        if number >= 0:
            self._flag(9)
            self._big(number // 1000, 8)
        return True

    def _headers(self, stop: Size) -> Bool:
        """Write the table of headers, unless it is empty: annotations for clients, then the application's properties."""
        start: Size = self.block_size
        size: Size
        self.block_size += 4
        self._known = 0
        if not self._map(ANNOTATIONS, stop) or not self._map(APPLICATION, stop):
            return False
        size = self.block_size - start - 4
        if size:
            self._flag(2)
            self.block_size = start
            self._big(size, 4)
            self.block_size += size
        else:
            self.block_size = start
        return True

    def _map(self, section: Size, stop: Size) -> Bool:
        """Write the pairs of a section."""
        left: Size
        end: Size
        at: Size = self._sections[section]
        if at < 0:
            return True
        at = self._open(at, stop, MAP)
        left = self.count
        end = at + self.size
        if at < 0 or left % 2:
            return False
        while left > 0:
            at = self._take(at, end)
            if at < 0 or self.size > SHORT_MAX or not self._is_text() or not self._is_new():
                return False
            at = self._annotation(at, end) if section == ANNOTATIONS else self._header(at, end)
            if at < 0:
                return False
            left -= 2
        return at == end

    def _is_new(self) -> Bool:
        """Keep a name; return whether neither section had it before."""
        index: Size = 0
        if self._known == NAMES_MAX:
            return False
        while index < self._known:
            if self._names[2 * index + 1] == self.size:
                if is_same_at(self._source, self._names[2 * index], self.size, self._source, self.start):
                    return False
            index += 1
        self._names[2 * index] = self.start
        self._names[2 * index + 1] = self.size
        self._known += 1
        return True

    def _annotation(self, at: Size, end: Size) -> Size:
        """Take the annotation whose name was read: a part of the route, a property, or a header."""
        is_exchange: Bool = self._equals(EXCHANGE)
        is_filter: Bool = self._equals(FILTER)
        if is_exchange or self._equals(ROUTING_KEY):
            at = self._take(at, end)
            if at < 0 or self.code & 0xEF != 0xA1:
                return -1
            if is_exchange:
                self.exchange = self._text()
            else:
                self.key = self._text()
            return at
        if self._equals(CC):
            return -1
        if self._equals(TYPE):
            self.type_at = at
            return self._take(at, end)
        if self._begins(BASIC) or not self._begins(FOR_CLIENTS):
            return self._take(at, end)
        at = self._header(at, end)
        if is_filter and at >= 0:
            if not self._is_text():
                return -1
            self.filter_value = self._text()
        return at

    def _text(self) -> str:
        return take_bytes(self._source, self.start, self.size).decode("utf-8", "surrogateescape")

    def _header(self, at: Size, end: Size) -> Size:
        """Write the name that was read and the value after it, as `amqp10_message.to_header` converts it."""
        code: Size
        number: I64
        self._byte(self.size)
        self._copy()
        at = self._take(at, end)
        if at < 0:
            return -1
        code = self.code
        if code == NULL:
            self._byte(86)  # V
        elif code == 0x41 or code == 0x42:
            self._byte(116)  # t
            self._byte(0x42 - code)
        elif code == BOOLEAN:
            self._byte(116)
            self._byte(1 if self._source[self.start] else 0)
        elif self._is_integer():
            number = self._integer()
            if -0x80000000 <= number < 0x80000000:
                self._byte(73)  # I
                self._big(number, 4)
            else:
                self._byte(108)  # l
                self._big(number, 8)
        elif code == DOUBLE:
            if get_i16(self._source, self.start) & 0x7FF0 == 0x7FF0:  # no number
                return -1
            self._byte(100)  # d
            self._copy()
        elif code == TIME:
            number = get_i64(self._source, self.start)
            self._byte(84)  # T
            self._big(number // 1000 if number > 0 else 0, 8)
        elif code & 0xEF == 0xA0 or self._is_text():
            self._byte(83)  # S
            self._big(self.size, 4)
            self._copy()
        else:
            return -1
        return at
