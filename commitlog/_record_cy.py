"""Write and check one record.  Nothing here raises or allocates (docs/formats/commitlog.md#record)."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import SECTOR_SIZE

from .checks import (
    BAD_BODY_CRC, BAD_BODY_SIZE, BAD_ENTRY, BAD_MAGIC, BAD_PROPERTIES_SIZE, BAD_RECORD_CRC, BAD_SIZE, BAD_TOPIC_SIZE, BLANK,
    CHECK_ALL, CHECK_BODY, CHECK_POSITION, CHECK_RECORD, EMPTY, MISPLACED, ONE_CHECKSUM, TORN, TORN_PROPERTIES,
)  # fmt: skip
from .entry_layout import (
    ENTRY_BLANK_MAGIC, ENTRY_BODY_SIZE_AT, ENTRY_HEADER_SIZE, ENTRY_MAGIC, ENTRY_POSITION_AT, ENTRY_SIZE_AT,
)  # fmt: skip
from .layout import (
    BLANK_SIZE, BODY_AT, BODY_CRC_AT, BORN_HOST_AT, BORN_HOST_V6, BORN_TIME_AT, CRC_MASK, CRC_NAME, CRC_SIZE,
    FILLER_BODY_SIZE_MAX, FILLER_FLAGS, FLAG_AT, HOST_GROWTH, MAGIC_AT, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, NAME_END,
    PAIR_END, PHYSICAL_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECORD_SIZE_MIN, SIZE_AT, STORE_HOST_V6, STORE_TIME_AT,
    SYS_FLAG_AT, TRANSACTION_MASK, TRANSACTION_ROLLBACK,
)  # fmt: skip

if not cython.compiled:
    from storebytes._bytes_cy import (
        I32, I64, U32, Bool, Nothing, Size, Source, Target, get_i16, get_i32, get_i64, is_same_at, publish_i32,
        put_bytes, put_i16, put_i32, put_i64, source_of_bytes, target_of,
    )  # fmt: skip
    from storebytes._crc_cy import crc32, crc32_more

ZERO = 48  # the ASCII digit 0
HALF = 100_000  # five of the checksum's ten digits
LOST_SIZE_MIN = 12  # more zeros than a text ends with; fewer leave the checksum's name in place
CRC_NAME_SIZE = len(CRC_NAME)  # compared and copied as the literal 8: with a constant size the compiler needs no call
_CRC_NAME: Source = source_of_bytes(CRC_NAME)


class Envelope:
    """The part of a record that many records can share: everything but body, properties, offsets and store time.

    `topic` has its length in front, one byte for `magic` V1 and two for V2.  With `with_crc` each record gets the checksum
    property over the whole record; the properties passed in must not contain one.
    """

    __slots__ = (
        "_born_host", "_born_size", "_held", "_scratch", "_store_host", "_store_size", "_topic", "_topic_size", "born_host",
        "born_timestamp_ms", "flag", "magic", "prepared_transaction_offset", "queue_id", "reconsume_times", "store_host",
        "sys_flag", "topic", "with_crc",
    )  # fmt: skip

    def __init__(self, born_host: bytes, store_host: bytes, with_crc: bool) -> None:
        """Take hosts of 8 or 20 bytes."""
        self._held = memoryview(bytearray(8))
        self._scratch: Target = target_of(self._held)
        self.queue_id = 0
        self.flag = 0
        self.sys_flag = 0
        self.reconsume_times = 0
        self.born_timestamp_ms = 0
        self.prepared_transaction_offset = 0
        self.with_crc = with_crc
        self.set_topic(b"\x00", MAGIC_V1)
        self.set_hosts(born_host, store_host)

    def set_hosts(self, born_host: bytes, store_host: bytes) -> None:
        """Keep the bytes and their addresses."""
        self.born_host = born_host
        self.store_host = store_host
        self._born_host: Source = source_of_bytes(born_host)
        self._store_host: Source = source_of_bytes(store_host)
        self._born_size = len(born_host)
        self._store_size = len(store_host)

    def set_topic(self, topic: bytes, magic: I32) -> None:
        """Keep the bytes and their address."""
        self.topic = topic
        self.magic = magic
        self._topic: Source = source_of_bytes(topic)
        self._topic_size = len(topic)


def record_size(envelope: Envelope, body_size: Size, properties_size: Size) -> Size:
    """Return the size of a record in bytes, its checksum property included."""
    trailer: Size = CRC_SIZE if envelope.with_crc else 0
    return (
        BODY_AT
        + 2
        + envelope._born_size
        + envelope._store_size
        - 16
        + body_size
        + envelope._topic_size
        + properties_size
        + trailer
    )


def write_record(
    out: Target, start: Size, base: I64, envelope: Envelope, queue_offset: I64, store_ms: I64, body: Source, body_start: Size,
    body_size: Size, properties: Source, properties_size: Size,
) -> Size:  # fmt: skip
    """Write one record at `start` of a file that begins at physical offset `base`; return its size.

    The caller must ensure that `record_size` bytes fit.  The size field is stored last, so a concurrent reader of the map sees
    no record or a whole one.
    """
    size: Size = record_size(envelope, body_size, properties_size)
    all_properties: Size = properties_size + (CRC_SIZE if envelope.with_crc else 0)
    put_i32(out, start + MAGIC_AT, envelope.magic)
    put_i32(out, start + BODY_CRC_AT, crc32(body, body_start, body_size) if body_size else 0)
    put_i32(out, start + QUEUE_ID_AT, envelope.queue_id)
    put_i32(out, start + FLAG_AT, envelope.flag)
    put_i64(out, start + QUEUE_OFFSET_AT, queue_offset)
    put_i64(out, start + PHYSICAL_OFFSET_AT, base + start)
    put_i32(out, start + SYS_FLAG_AT, envelope.sys_flag)
    put_i64(out, start + BORN_TIME_AT, envelope.born_timestamp_ms)
    at: Size = start + BORN_HOST_AT
    _put_host(out, at, envelope._born_host, envelope._born_size)
    at += envelope._born_size
    put_i64(out, at, store_ms)
    at += 8
    _put_host(out, at, envelope._store_host, envelope._store_size)
    at += envelope._store_size
    put_i32(out, at, envelope.reconsume_times)
    put_i64(out, at + 4, envelope.prepared_transaction_offset)
    put_i32(out, at + 12, body_size)
    at += 16
    put_bytes(out, at, body, body_start, body_size)
    at += body_size
    put_bytes(out, at, envelope._topic, 0, envelope._topic_size)
    at += envelope._topic_size
    put_i16(out, at, all_properties)
    put_bytes(out, at + 2, properties, 0, properties_size)
    if envelope.with_crc:
        _write_trailer(out, start, size, envelope)
    publish_i32(out, start + SIZE_AT, size)
    return size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_host(out: Target, at: Size, host: Source, size: Size) -> Nothing:
    """Copy a host; nearly all have eight bytes, and with a constant size the compiler needs no call."""
    if size == 8:
        put_bytes(out, at, host, 0, 8)
    else:
        put_bytes(out, at, host, 0, size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_trailer(out: Target, start: Size, size: Size, envelope: Envelope) -> Nothing:
    """Write the checksum property: CRC of everything before it, ten digits, least significant first.

    See docs/formats/commitlog.md#the-whole-record-checksum.
    """
    at: Size = start + size - CRC_SIZE
    put_i32(envelope._scratch, 0, size)
    crc: U32 = crc32_more(crc32_more(0, envelope._scratch, 0, 4), out, start + 4, size - CRC_SIZE - 4) & CRC_MASK
    low: U32 = crc % HALF  # two independent chains of divisions, which run in parallel
    high: U32 = crc // HALF
    put_bytes(out, at, _CRC_NAME, 0, 8)
    at += CRC_NAME_SIZE
    out[at] = NAME_END
    stop: Size = at + 5
    while at < stop:
        at += 1
        out[at] = ZERO + low % 10
        out[at + 5] = ZERO + high % 10
        low //= 10
        high //= 10
    out[at + 6] = PAIR_END


def write_blank(out: Target, at: Size, left: Size) -> Nothing:
    """Fill the `left` bytes (at least BLANK_SIZE) at the end of a file with a blank record.

    See docs/formats/commitlog.md#blank-record.
    """
    put_i32(out, at + MAGIC_AT, MAGIC_BLANK)
    publish_i32(out, at + SIZE_AT, left)


def growth(source: Source, at: Size) -> Size:
    """Return how many bytes IPv6 hosts shift the fields after both hosts."""
    sys_flag: I32 = get_i32(source, at + SYS_FLAG_AT)
    return (HOST_GROWTH if sys_flag & BORN_HOST_V6 else 0) + (HOST_GROWTH if sys_flag & STORE_HOST_V6 else 0)


def store_time_of(source: Source, at: Size) -> I64:
    """Return the store time of a record in ms."""
    is_long: Bool = (get_i32(source, at + SYS_FLAG_AT) & BORN_HOST_V6) != 0
    return get_i64(source, at + STORE_TIME_AT + (HOST_GROWTH if is_long else 0))


def holds_no_message(sys_flag: I32, body_size: Size) -> Bool:
    """Return whether a record is a filler, which holds no message (docs/formats/commitlog.md#filler-records).

    It is a batch whose body is too short for a message, or one that was rolled back, which no producer can do.
    """
    if sys_flag & FILLER_FLAGS != FILLER_FLAGS:
        return False
    return body_size <= FILLER_BODY_SIZE_MAX or sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK


def is_filler_at(source: Source, at: Size, limit: Size) -> Bool:
    """Return whether a record at a position, which may be wrong, is a filler."""
    if at < 0 or at + RECORD_SIZE_MIN + 2 * HOST_GROWTH > limit:
        return False
    return holds_no_message(get_i32(source, at + SYS_FLAG_AT), get_i32(source, at + growth(source, at) + BODY_AT - 4))


def topic_position(source: Source, at: Size) -> Size:
    """Return the position of the topic's length in a checked record."""
    body_at: Size = at + growth(source, at) + BODY_AT
    return body_at + get_i32(source, body_at - 4)


def topic_size_size(source: Source, at: Size) -> Size:
    """Return the size of the topic's length: one byte in V1, two in V2."""
    return 2 if get_i32(source, at + MAGIC_AT) == MAGIC_V2 else 1


def topic_size_at(source: Source, at: Size, position: Size) -> Size:
    """Return the topic's length at `position` in a checked record."""
    if get_i32(source, at + MAGIC_AT) == MAGIC_V2:
        return get_i16(source, position)
    size: Size = source[position]
    return size


def has_trailer(source: Source, end: Size, properties_size: Size) -> Bool:
    """Return whether the properties that end at `end` end in a well-formed checksum property."""
    if properties_size < CRC_SIZE or source[end - 1] != PAIR_END or source[end - 12] != NAME_END:
        return False
    if properties_size > CRC_SIZE and source[end - CRC_SIZE - 1] != PAIR_END:
        return False
    at: Size = end - 11
    while at < end - 1:
        if source[at] < ZERO or source[at] > ZERO + 9:
            return False
        at += 1
    return is_same_at(source, end - CRC_SIZE, 8, _CRC_NAME, 0)


def carries_checksum(source: Source, at: Size, size: Size) -> Bool:
    """Return whether a checked record carries the checksum property."""
    if source[at + size - 1] != PAIR_END:
        return False
    position: Size = topic_position(source, at)
    position += topic_size_size(source, at) + topic_size_at(source, at, position)
    return has_trailer(source, at + size, get_i16(source, position))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _trailer_value(source: Source, end: Size) -> I64:
    """Return the number in a well-formed checksum property."""
    value: I64 = 0
    at: Size = end - 2
    while at > end - 12:
        value = value * 10 + (source[at] - ZERO)
        at -= 1
    return value


def check_record(source: Source, at: Size, stop: Size, base: I64, checks: I32) -> Size:
    """Return the size of the record at `at`, or the code of what is found instead.

    No length is trusted before `stop` has bounded it.  `base` is the physical offset of the buffer's first byte.
    """
    left: Size = stop - at
    if left < BLANK_SIZE:
        return TORN
    size: Size = get_i32(source, at + SIZE_AT)
    magic: I32 = get_i32(source, at + MAGIC_AT)
    if magic == MAGIC_BLANK:
        return BLANK
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        if size == ENTRY_BLANK_MAGIC and magic >= BLANK_SIZE:
            return BLANK
        return EMPTY if magic == 0 and size == 0 else BAD_MAGIC
    if size < RECORD_SIZE_MIN:
        return BAD_SIZE
    if size > left:
        return TORN
    grown: Size = growth(source, at)
    extra: Size = 1 if magic == MAGIC_V2 else 0
    space: Size = size - RECORD_SIZE_MIN - grown - extra
    if space < 0:
        return BAD_SIZE
    body_at: Size = at + BODY_AT + grown
    body_size: Size = get_i32(source, body_at - 4)
    if body_size < 0 or body_size > space:
        return BAD_BODY_SIZE
    position: Size = body_at + body_size
    topic_size: Size = get_i16(source, position) if extra else source[position]
    if topic_size < 0 or topic_size > space - body_size or (topic_size > 127 and not extra):
        return BAD_TOPIC_SIZE
    properties_size: Size = get_i16(source, position + 1 + extra + topic_size)
    if properties_size != space - body_size - topic_size:
        return BAD_PROPERTIES_SIZE
    if checks & CHECK_POSITION and get_i64(source, at + PHYSICAL_OFFSET_AT) != base + at:
        return MISPLACED
    if checks & CHECK_POSITION and (get_i32(source, at + QUEUE_ID_AT) < 0 or get_i64(source, at + QUEUE_OFFSET_AT) < 0):
        return MISPLACED  # no valid queue position
    has_crc: Bool = (checks & CHECK_RECORD) != 0 and has_trailer(source, at + size, properties_size)
    if has_crc and checks & ONE_CHECKSUM and crc32(source, at, size - CRC_SIZE) == _trailer_value(source, at + size):
        return size
    if checks & CHECK_BODY and body_size > 0 and crc32(source, body_at, body_size) != get_i32(source, at + BODY_CRC_AT):
        return BAD_BODY_CRC
    if checks & CHECK_RECORD:
        if has_crc:
            if crc32(source, at, size - CRC_SIZE) != _trailer_value(source, at + size):
                return BAD_RECORD_CRC
        elif _lost_trailer(source, at + size, properties_size) or _lost_sector(
            source, at, position + 1 + extra, at + size, base
        ):
            return BAD_RECORD_CRC
        elif properties_size > 0 and source[at + size - 1] == 0:
            return TORN_PROPERTIES  # like a lost sector, but less than one
    return size


def check_step(source: Source, at: Size, stop: Size, base: I64, checks: I32) -> Size:
    """Return `check_record` of the record at `at`; if the header of an entry precedes it, of the entry, header included."""
    left: Size = stop - at
    if left < BLANK_SIZE or get_i32(source, at) != ENTRY_MAGIC:
        return check_record(source, at, stop, base, checks)
    if left < ENTRY_HEADER_SIZE:
        return TORN
    body_size: Size = get_i32(source, at + ENTRY_BODY_SIZE_AT)
    if get_i32(source, at + ENTRY_SIZE_AT) != ENTRY_HEADER_SIZE + body_size or body_size < 0:
        return BAD_ENTRY
    if get_i64(source, at + ENTRY_POSITION_AT) != base + at:
        return BAD_ENTRY
    if body_size > left - ENTRY_HEADER_SIZE:
        return TORN
    if body_size < RECORD_SIZE_MIN or get_i32(source, at + ENTRY_HEADER_SIZE) != body_size:
        return BAD_ENTRY
    size: Size = check_record(source, at + ENTRY_HEADER_SIZE, stop, base, checks)
    if size <= 0:
        return BAD_ENTRY if size == BLANK else size
    return ENTRY_HEADER_SIZE + size


def record_in(source: Source, at: Size) -> Size:
    """Return the position of the record of a checked step."""
    return at + ENTRY_HEADER_SIZE if get_i32(source, at) == ENTRY_MAGIC else at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _lost_trailer(source: Source, end: Size, properties_size: Size) -> Bool:
    """Return whether only the name of the checksum is left: the sector with its digits never reached the disk."""
    if properties_size < CRC_SIZE or source[end - 12] != NAME_END or (source[end - 1] != 0 and source[end - 11] != 0):
        return False
    return is_same_at(source, end - CRC_SIZE, 8, _CRC_NAME, 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _lost_sector(source: Source, at: Size, start: Size, end: Size, base: I64) -> Bool:
    """Return whether a sector that holds topic or properties is zero in the part that the record at `at` fills.

    A torn write of a record with a checksum can leave the body whole and the checksum itself lost.  Without this check the
    record would pass for one without a checksum, its properties cut short.
    """
    low: Size = start - (base + start) % SECTOR_SIZE
    while low < end:
        first: Size = low if low > at else at
        stop: Size = low + SECTOR_SIZE if low + SECTOR_SIZE < end else end
        if stop - first >= LOST_SIZE_MIN and source[first] == 0 and source[stop - 1] == 0:
            while first < stop and source[first] == 0:
                first += 1
            if first == stop:
                return True
        low += SECTOR_SIZE
    return False


def check(buffer: bytes | bytearray | memoryview, at: int, stop: int, base: int = 0, checks: int = CHECK_ALL) -> int:
    """Return `check_step` of a Python buffer: a size, or one of the codes of `checks`."""
    held: memoryview = memoryview(buffer).cast("B")
    if not 0 <= at <= stop <= len(held):
        raise ValueError(f"{at}..{stop} is not inside the buffer of {len(held)} bytes")
    source: Source = target_of(held)
    begin: I64 = base
    checks_made: I32 = checks
    return check_step(source, at, stop, begin, checks_made)


def is_protected(buffer: bytes | bytearray | memoryview, at: int, size: int) -> bool:
    """Return whether a record carries the checksum property."""
    held: memoryview = memoryview(buffer).cast("B")
    if not 0 <= at <= at + size <= len(held) or size < RECORD_SIZE_MIN:
        raise ValueError(f"{at} and {size} more bytes are not inside the buffer of {len(held)} bytes")
    source: Source = target_of(held)
    if check_record(source, at, at + size, 0, 0) != size:
        raise ValueError(f"no record of {size} bytes lies at {at}")
    return bool(carries_checksum(source, at, size))
