# cython: auto_pickle=True
"""Messages to put, results of puts, stored messages, and encoding and decoding of properties."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import InvalidMessage, OutOfRange
from storebytes.source_signature import SourceSignature

from .hosts import decode_host
from .layout import BORN_HOST_V6, CRC_SIZE, NAME_END, PAIR_END, PROPERTIES_SIZE_MAX, STORE_HOST_V6
from .message_id import encode_message_id
from .status import PutStatus

if not cython.compiled:
    from storebytes._bytes_cy import (
        I32, Bool, Size, Source, Target, count_byte, encode_keys_and_tags, encode_pairs, find_byte, is_same,
        put_bytes, put_text, source_of_bytes, take_text, take_text_again,
    )  # fmt: skip

    from ._record_cy import holds_no_message

    def read_stored_inline(_kind: type) -> None:
        """Do nothing: the interpreter reads slots inline already."""


SPACE = 32
DECODE_AHEAD = 64
_CRC: Source = source_of_bytes(b"__CRC32#")
_KEYS: Source = source_of_bytes(b"KEYS")
_TAGS: Source = source_of_bytes(b"TAGS")
_KEYS_START: Source = source_of_bytes(b"KEYS\x01")
_TAGS_START: Source = source_of_bytes(b"TAGS\x01")
START_SIZE = 5
_decode_ahead: Size = 0  # how many further messages are fully decoded at the first access of a property
UNUSUAL = -1  # needs `encode_properties`
_KINDS: dict[str, type] = {
    "topic": str, "body": bytes, "tags": str, "properties": dict, "born_host": str, "store_host": str, "properties_raw": bytes,
}  # fmt: skip
_DEFAULTS: dict[str, object] = {
    "tags": None, "keys": None, "properties": None, "queue_id": -1, "flag": 0, "sys_flag": 0, "born_timestamp_ms": 0,
    "born_host": None, "store_host": None, "reconsume_times": 0, "prepared_transaction_offset": 0, "properties_raw": None,
}  # fmt: skip
DELAY = "DELAY"
DELIVER_MS = "TIMER_DELIVER_MS"
PRIORITY = "_SYS_MSG_PRIORITY_"
DEDUP_ID = "BROKERSTORE_DEDUP_ID"
TTL_MS = "BROKERSTORE_TTL_MS"
ONE_QUEUE = "priority, queue_id: give one of them, a priority chooses the queue"
ONE_DELAY = "delay, delay_level, deliver_at, and a property DELAY or TIMER_DELIVER_MS: give one of them"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNRESOLVED = "ms"  # ends a DELAY in milliseconds that the store has not replaced by a level or a timer yet
BODY_SHOWN = 32
ZERO: Any = 0
NO_QUEUE: Any = -1


@cython.freelist(1024)  # the messages of a `put_many` are alive at the same time
@cython.no_gc
@cython.cclass
class Message:
    """A message to put.

    With `queue_id` -1 the store chooses the queue.  `keys`, one or a list, must not contain spaces; tags, keys and properties
    must not contain \\x01 or \\x02. `properties_raw` replaces tags, keys and properties by a properties string in the log's
    format.  A zero `born_timestamp_ms` becomes the time of the put, a missing host that of the store.

    `delay` is a time from the put on, `deliver_at` a time (local time without a zone), `delay_level` the number of one of
    the store's delay levels. A delay that is no level's takes up to a second longer, as `deliver_at` does.

    `priority`, 0 or more, chooses the queue in a topic with priorities.  A second put with the same `dedup_id` writes nothing.
    `ttl` is a time from the put on, after which no consumer gets the message.  See `docs/howto/embed.md`.

    Messages with equal fields are equal; they can change, so they have no hash.
    """

    __slots__ = (
        "_key", "_keys", "body", "born_host", "born_timestamp_ms", "flag", "prepared_transaction_offset", "properties",
        "properties_raw", "queue_id", "reconsume_times", "store_host", "sys_flag", "tags", "topic",
    )  # fmt: skip

    __signature__ = SourceSignature()
    topic: str
    body: bytes
    tags: str | None
    born_host: str | None
    store_host: str | None
    properties: dict[str, str] | None
    properties_raw: bytes | None

    @cython.annotation_typing(False)  # which would turn a float into an int
    def __init__(
        self,
        topic: str,
        body: bytes,
        tags: str | None = None,
        keys: str | list[str] | None = None,
        properties: dict[str, str] | None = None,
        queue_id: int = -1,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str | None = None,
        store_host: str | None = None,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        properties_raw: bytes | None = None,
        delay: timedelta | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        priority: int | None = None,
        dedup_id: str | None = None,
        ttl: timedelta | None = None,
    ) -> None:
        """Raise `TypeError` for wrong types, `OutOfRange` for integers that do not fit their field."""
        if (
            type(topic) is not str or type(body) is not bytes or (tags is not None and type(tags) is not str)
            or (properties is not None and type(properties) is not dict)
            or (born_host is not None and type(born_host) is not str)
            or (store_host is not None and type(store_host) is not str)
            or (properties_raw is not None and type(properties_raw) is not bytes)
        ):  # fmt: skip
            raise TypeError(_wrong_kind((topic, body, tags, properties, born_host, store_host, properties_raw)))
        self.topic = topic
        self.body = body
        self._set_keys(keys)
        if not cython.compiled or self.tags is not tags:  # each change of None's reference count waits for the previous one
            self.tags = tags
        if not cython.compiled or self.properties is not properties:
            self.properties = properties
            if properties is not None:
                _check_properties(properties)
        if not cython.compiled or self.born_host is not born_host:
            self.born_host = born_host
        if not cython.compiled or self.store_host is not store_host:
            self.store_host = store_host
        if not cython.compiled or self.properties_raw is not properties_raw:
            self.properties_raw = properties_raw
        if (
            cython.compiled and flag is ZERO and sys_flag is ZERO and born_timestamp_ms is ZERO and reconsume_times is ZERO
            and prepared_transaction_offset is ZERO and (queue_id is NO_QUEUE or queue_id is ZERO)
        ):  # fmt: skip
            self.queue_id = -1 if queue_id is NO_QUEUE else 0  # the others are 0 in a new object
        else:
            self._set_numbers(queue_id, flag, sys_flag, born_timestamp_ms, reconsume_times, prepared_transaction_offset)
        if delay is not None or delay_level is not ZERO or deliver_at is not None:
            self._set_delay(delay, delay_level, deliver_at)
        if priority is not None or dedup_id is not None or ttl is not None:
            self._set_marks(priority, dedup_id, ttl)

    def _set_numbers(self, queue_id: Any, flag: Any, sys_flag: Any, born_ms: Any, reconsumed: Any, prepared: Any) -> I32:
        try:
            self.queue_id = _number("queue_id", queue_id, 31)
            self.flag = _number("flag", flag, 31)
            self.sys_flag = _number("sys_flag", sys_flag, 31)
            self.born_timestamp_ms = _number("born_timestamp_ms", born_ms, 63)
            self.reconsume_times = _number("reconsume_times", reconsumed, 31)
            self.prepared_transaction_offset = _number("prepared_transaction_offset", prepared, 63)
        except OverflowError as error:
            raise OutOfRange(f"a number of the message does not fit its field: {error}") from error
        return 0

    def _set_delay(self, delay: Any, level: Any, deliver_at: Any) -> None:
        """Set the property DELAY or TIMER_DELIVER_MS."""
        if deliver_at is not None and (delay is not None or level is not ZERO):
            raise InvalidMessage(ONE_DELAY)
        name: str = DELAY if deliver_at is None else DELIVER_MS
        text: str = _delay_text(delay, level) if deliver_at is None else _time_text(deliver_at)
        if self.properties is not None and (DELAY in self.properties or DELIVER_MS in self.properties):
            raise InvalidMessage(ONE_DELAY)
        self.properties = {**(self.properties or {}), name: text}

    def _set_marks(self, priority: Any, dedup_id: Any, ttl: Any) -> None:
        """Set the properties of priority, deduplication and time to live."""
        given: dict[str, str] = {}
        if priority is not None:
            given[PRIORITY] = _priority_text(priority)
            if self.queue_id >= 0:
                raise InvalidMessage(ONE_QUEUE)
        if dedup_id is not None:
            if type(dedup_id) is not str:
                raise TypeError(f"dedup_id: expected str, got {type(dedup_id).__name__}")
            given[DEDUP_ID] = dedup_id
        if ttl is not None:
            given[TTL_MS] = _ttl_text(ttl)
        before = self.properties or {}
        for name in given:
            if name in before:
                raise InvalidMessage(f"property {name}: given twice, as a property and by its own argument")
        self.properties = {**before, **given}

    @property
    def keys(self) -> list[str] | None:
        """All keys, None if there are none."""
        if self._key is None:
            return self._keys
        return [self._key] if self._key else None

    @keys.setter
    def keys(self, keys: str | list[str] | None) -> None:
        """Set one key, a list, or None."""
        self._set_keys(keys)

    def _set_keys(self, keys: Any) -> None:
        if type(keys) is str:
            self._key: str | None = keys
            self._keys: list[str] | None = None
        elif keys is None or type(keys) is list:
            self._key = None
            self._keys = keys
            if keys is not None:
                _check_keys(keys)
        else:
            raise TypeError(f"keys: expected str or a list of str, got {type(keys).__name__}")

    def _fields(self) -> tuple[Any, ...]:
        """Return the arguments that make an equal message."""
        return (
            self.topic, self.body, self.tags, self.keys, self.properties, self.queue_id, self.flag, self.sys_flag,
            self.born_timestamp_ms, self.born_host, self.store_host, self.reconsume_times, self.prepared_transaction_offset,
            self.properties_raw,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        """Return whether all fields are equal."""
        if type(other) is not Message:
            return NotImplemented
        return bool(self._fields() == other._fields())

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Copy and pickle by the fields, alike in both builds."""
        return Message, self._fields()

    def __repr__(self) -> str:
        """Return topic, body and the fields that are not at their default; a long body is cut."""
        body = repr(self.body[:BODY_SHOWN]) + (f"... ({len(self.body)} bytes)" if len(self.body) > BODY_SHOWN else "")
        fields = [f"{name}={getattr(self, name)!r}" for name, default in _DEFAULTS.items() if getattr(self, name) != default]
        return f"Message({', '.join([repr(self.topic), body, *fields])})"


@cython.cfunc
def _check_keys(keys: list[Any]) -> bool:
    for key in keys:
        if not isinstance(key, str):
            raise TypeError(f"keys: expected a list of str, got {type(key).__name__} in it")
    return True


@cython.cfunc
def _check_properties(properties: dict[Any, Any]) -> bool:
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            wrong = value if isinstance(name, str) else name
            raise TypeError(f"properties: expected names and values of str, got {type(wrong).__name__}")
    return True


def _delay_text(delay: Any, level: Any) -> str:
    """Return the property DELAY: a level, or milliseconds that the store replaces by a level."""
    if type(level) is not int:
        raise TypeError(f"delay_level: expected int, got {type(level).__name__}")
    if delay is None:
        if not 0 < level < 1 << 31:
            raise OutOfRange(f"delay_level: {level} is no level; levels begin at 1")
        return str(level)
    if not isinstance(delay, timedelta):
        raise TypeError(f"delay: expected timedelta, got {type(delay).__name__}")
    if level:
        raise InvalidMessage(ONE_DELAY)
    if delay < timedelta():
        raise OutOfRange(f"delay: {delay} is negative")
    time_ms = -(-delay // timedelta(milliseconds=1))
    return f"{time_ms}{UNRESOLVED}" if time_ms else "0"


def _time_text(deliver_at: Any) -> str:
    """Return the property TIMER_DELIVER_MS."""
    if not isinstance(deliver_at, datetime):
        raise TypeError(f"deliver_at: expected datetime, got {type(deliver_at).__name__}")
    time_ms = -(-(deliver_at.astimezone(UTC) - EPOCH) // timedelta(milliseconds=1))
    if time_ms < 0:
        raise OutOfRange(f"deliver_at: {deliver_at} is before 1970")
    return str(time_ms)


def _priority_text(priority: Any) -> str:
    """Return the property of a priority."""
    if type(priority) is not int:
        raise TypeError(f"priority: expected int, got {type(priority).__name__}")
    if not 0 <= priority < 1 << 31:
        raise OutOfRange(f"priority: {priority} is not a number from 0 to 2147483647")
    return str(priority)


def _ttl_text(ttl: Any) -> str:
    """Return the property of a time to live, in milliseconds."""
    if not isinstance(ttl, timedelta):
        raise TypeError(f"ttl: expected timedelta, got {type(ttl).__name__}")
    if ttl <= timedelta():
        raise OutOfRange(f"ttl: {ttl} is over when the message is put")
    return str(-(-ttl // timedelta(milliseconds=1)))


@cython.cfunc
def _number(name: str, number: Any, bits: Size) -> Any:
    """Return a number; raise `TypeError` for anything else, even for what C would round."""
    if not isinstance(number, int):
        raise TypeError(f"{name}: expected int, got {type(number).__name__}")
    if not cython.compiled and not -(1 << bits) <= number < 1 << bits:
        raise OverflowError(f"{name}: {number} does not fit {bits + 1} bits")
    return number


def _wrong_kind(values: tuple[Any, ...]) -> str:
    """Return which of the values of `_KINDS` has a wrong type; only topic and body must be given."""
    for (name, kind), value in zip(_KINDS.items(), values, strict=True):
        if type(value) is not kind and (value is not None or name in ("topic", "body")):
            return f"{name}: expected {kind.__name__}, got {type(value).__name__}"
    raise AssertionError("no value has a wrong type")  # pragma: no cover


def encode_properties(message: Message) -> bytes:
    """Encode keys, tags and properties as `name 1 value 2 ...`, each pair terminated (docs/formats/commitlog.md#properties).

    Raises `InvalidMessage` for what could not be read back: separators inside, empty names, values or keys, spaces in keys.
    """
    raw: bytes | None = message.properties_raw
    keys: list[str] | None = _keys_of(message)
    properties: dict[str, str] | None = message.properties
    if raw is not None:
        if keys or message.tags or properties:
            raise InvalidMessage("properties_raw stands for tags, keys and properties: give one or the other")
        return raw
    if not keys and not message.tags and not properties:
        return b""
    texts: list[str]
    encoded: bytes
    pairs: Size
    try:
        if properties:
            texts = _texts_of(message)
            encoded = encode_pairs(texts)
            pairs = len(texts) // 2
        else:
            encoded = encode_keys_and_tags(_key_text(keys), message.tags or None)
            pairs = (1 if keys else 0) + (1 if message.tags else 0)
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidMessage(f"tags, keys and properties are text: {error}") from error
    source: Source = source_of_bytes(encoded)
    if count_byte(source, len(encoded), NAME_END) != pairs or count_byte(source, len(encoded), PAIR_END) != pairs:
        raise InvalidMessage("a tag, key or property holds \\x01 or \\x02")
    _check_pairs(encoded, len(keys) - 1 if keys else -1)
    return encoded


def put_keys_and_tags(message: Message, out: Target, at: Size, capacity: Size) -> Size:
    """Write what `encode_properties` returns at `at` without creating an object; return its size.

    Returns UNUSUAL if the properties are raw, invalid, parsed as numbers by RocketMQ, or larger than `capacity` bytes; the
    bytes written then have no meaning.
    """
    properties: dict[Any, Any] | None = message.properties  # its items are not trusted: nothing here may raise
    if message.properties_raw is not None:
        return UNUSUAL
    if properties:
        if "DELAY" in properties or "INNER_BASE" in properties or "INNER_NUM" in properties or "__CRC32#" in properties:
            return UNUSUAL
    start: Size = at
    stop: Size = at + capacity
    if message._key or message._keys:
        if capacity < START_SIZE:
            return UNUSUAL
        put_bytes(out, at, _KEYS_START, 0, START_SIZE)
        at = _put_keys(message, out, at + START_SIZE, stop)
        if at < 0:
            return UNUSUAL
    if message.tags:
        if stop - at < START_SIZE:
            return UNUSUAL
        put_bytes(out, at, _TAGS_START, 0, START_SIZE)
        at += START_SIZE
        at = _put_word(out, at, stop, message.tags, PAIR_END, PAIR_END)
        if at < 0:
            return UNUSUAL
    if properties:
        for name, value in properties.items():
            at = _put_word(out, at, stop, name, PAIR_END, NAME_END)
            if at >= 0:
                at = _put_word(out, at, stop, value, PAIR_END, PAIR_END)
            if at < 0:
                return UNUSUAL
    return at - start


@cython.cfunc
@cython.exceptval(check=False)
def _put_keys(message: Message, out: Target, at: Size, stop: Size) -> Size:
    """Write one key or several, separated by spaces; return the position after them, or UNUSUAL."""
    if message._key is not None:
        return _put_word(out, at, stop, message._key, SPACE, PAIR_END)
    keys: list[Any] = message._keys  # type: ignore[assignment]
    for key in keys:
        at = _put_word(out, at, stop, key, SPACE, SPACE)
        if at < 0:
            return UNUSUAL
    out[at - 1] = PAIR_END
    return at


@cython.cfunc
@cython.exceptval(check=False)
def _put_word(out: Target, at: Size, stop: Size, text: Any, also: I32, end: I32) -> Size:
    """Write a name, value or key, and the byte `end` after it; return the position after both.

    Returns UNUSUAL if the text is empty, does not fit, or contains a separator or the byte `also`.
    """
    if type(text) is not str:
        return UNUSUAL
    size: Size = put_text(out, at, stop - at - 1, text)
    if size <= 0 or not _is_word(out, at, size, also):
        return UNUSUAL
    out[at + size] = end
    return at + size + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_word(source: Source, at: Size, size: Size, also: I32) -> Bool:
    """Return whether the range contains neither a separator nor `also`."""
    stop: Size = at + size
    while at < stop:
        if source[at] <= SPACE and (source[at] == NAME_END or source[at] == PAIR_END or source[at] == also):
            return False
        at += 1
    return True


@cython.cfunc
def _keys_of(message: Message) -> list[str]:
    """Return the keys of a message, None if there are none."""
    return message.keys  # type: ignore[return-value]


@cython.cfunc
def _key_text(keys: list[str] | None) -> str:
    """Return the keys as one text, None if there are none."""
    if not keys:
        return None  # type: ignore[return-value]
    return keys[0] if len(keys) == 1 else " ".join(keys)


@cython.cfunc
def _texts_of(message: Message) -> list[str]:
    """Return [name, value, name, value, ...] of keys, tags and properties."""
    texts: list[str] = []
    keys: list[str] | None = _keys_of(message)
    if keys:
        texts.append("KEYS")
        texts.append(_key_text(keys))
    if message.tags:
        texts.append("TAGS")
        texts.append(message.tags)
    if message.properties:  # pragma: no branch - not called for a message without properties
        for name, value in message.properties.items():
            texts.append(name)
            texts.append(value)
    return texts


@cython.cfunc
def _check_pairs(encoded: bytes, key_spaces: Size) -> bool:
    """Reject an empty name or value, which readers would drop, and a key with a space."""
    source: Source = source_of_bytes(encoded)
    size: Size = len(encoded)
    at: Size = 0
    while at < size:
        middle: Size = find_byte(source, at, size, NAME_END)
        end: Size = find_byte(source, middle, size, PAIR_END)
        if middle == at or end == middle + 1:
            raise InvalidMessage("a tag, key or property has an empty name or value: no reader would see it")
        if key_spaces >= 0:
            if _count_between(source, middle + 1, end) != key_spaces:
                raise InvalidMessage("a key is empty or holds a space: it would be read as other keys")
            key_spaces = -1
        at = end + 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count_between(source: Source, at: Size, end: Size) -> Size:
    """Count the spaces in a range; return -1 if one is first, last or doubled, which would make an empty key."""
    count: Size = 0
    last: Size = at - 1
    while at < end:
        if source[at] == SPACE:
            if at - last == 1 or at == end - 1:
                return -1
            count += 1
            last = at
        at += 1
    return count


def decode_properties(raw: bytes, with_crc: bool = True) -> dict[str, str]:
    """Return the pairs of a properties string; of equal names the last one counts (docs/formats/commitlog.md#properties).

    `with_crc=False` omits RocketMQ's checksum property.
    """
    found: dict[str, str] = {}
    source: Source = source_of_bytes(raw)
    size: Size = len(raw)
    at: Size = 0
    needs_crc: Bool = with_crc
    while at < size:
        end: Size = find_byte(source, at, size, PAIR_END)
        middle: Size = find_byte(source, at, end, NAME_END)
        if at < middle < end - 1:
            if is_same(source, at, middle - at, _KEYS, 4):
                found["KEYS"] = take_text(source, middle + 1, end - middle - 1)
            elif is_same(source, at, middle - at, _TAGS, 4):
                found["TAGS"] = take_text_again(source, middle + 1, end - middle - 1)
            elif needs_crc or not is_same(source, at, middle - at, _CRC, 8):
                found[take_text_again(source, at, middle - at)] = take_text(source, middle + 1, end - middle - 1)
        at = end + 1
    return found


@cython.cfunc
def _last_value(raw: bytes, name: Source, name_size: Size) -> str | None:
    """Return the value that `decode_properties` returns for one name."""
    source: Source = source_of_bytes(raw)
    start: Size = -1
    stop: Size = -1
    size: Size = len(raw)
    at: Size = 0
    while at < size:
        end: Size = find_byte(source, at, size, PAIR_END)
        middle: Size = find_byte(source, at, end, NAME_END)
        if at < middle < end - 1 and is_same(source, at, middle - at, name, name_size):
            start = middle + 1
            stop = end
        at = end + 1
    return None if start < 0 else take_text(source, start, stop - start)


def delete_property(raw: bytes, name: bytes) -> bytes:
    """Return `raw` without the pairs of that name (docs/formats/commitlog.md#properties)."""
    kept = []
    at = 0
    while at < len(raw):
        end = raw.find(b"\x02", at)
        stop = len(raw) if end < 0 else end + 1
        if not raw.startswith(name + b"\x01", at):
            kept.append(raw[at:stop])
        at = stop
    return b"".join(kept)


@cython.freelist(256)
@cython.no_gc
@cython.cclass
class PutResult:
    """The result of a put.  For several messages the offsets are those of the first one."""

    __slots__ = (
        "cause", "message_count", "physical_offset", "queue_id", "queue_offset", "reason", "size_bytes", "status",
        "store_host", "store_timestamp_ms",
    )  # fmt: skip

    status: PutStatus
    reason: str | None  # set if the status is not PUT_OK
    cause: Exception | None  # the disk's error, if it is the reason
    physical_offset: int
    queue_id: int
    queue_offset: int
    store_timestamp_ms: int
    store_host: bytes
    size_bytes: int
    message_count: int

    @property
    def is_duplicate(self) -> bool:
        """Whether nothing was written, because the store has a message with this `dedup_id`: the offsets are that message's."""
        return self.message_count == 0 and self.status is PutStatus.PUT_OK

    @property
    def message_id(self) -> str:
        """The offset id: 32 characters, 56 with an IPv6 store host."""
        return encode_message_id(self.store_host, self.physical_offset)

    def __repr__(self) -> str:
        """Return status, offsets and message count."""
        return (
            f"PutResult({self.status.name}, physical_offset={self.physical_offset}, queue_id={self.queue_id}, "
            f"queue_offset={self.queue_offset}, messages={self.message_count})"
        )


@cython.freelist(1024)  # the messages of one read are alive at the same time
@cython.no_gc
@cython.cclass
class StoredMessage:
    """A message read from the log.  It owns its bytes."""

    __slots__ = (
        "_born_high", "_born_low", "_properties", "_store_high", "_store_low", "_was_read", "body", "body_crc", "born_port",
        "born_timestamp_ms", "flag", "magic", "physical_offset", "prepared_transaction_offset", "properties_raw", "queue_id",
        "queue_offset", "reconsume_times", "size", "store_port", "store_timestamp_ms", "sys_flag", "topic",
    )  # fmt: skip

    topic: str
    body: bytes
    properties_raw: bytes
    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    sys_flag: int
    reconsume_times: int
    queue_offset: int
    physical_offset: int
    born_timestamp_ms: int
    born_port: int
    store_timestamp_ms: int
    store_port: int
    prepared_transaction_offset: int
    _born_high: int
    _born_low: int
    _store_high: int
    _store_low: int
    _properties: dict[str, str] | None
    _was_read: Bool  # its tags or keys were read before

    @property
    def is_filler(self) -> bool:
        """Whether the record holds no message: recovery wrote it in place of a lost one, or to fill a hole."""
        return holds_no_message(self.sys_flag, len(self.body))

    @property
    def all_properties(self) -> dict[str, str]:
        """All pairs, including RocketMQ's checksum property."""
        return decode_properties(self.properties_raw)

    @property
    def properties(self) -> dict[str, str]:
        """All pairs except the checksum; the same dictionary every time, created on first use."""
        return self._pairs()

    def _pairs(self) -> dict[str, str]:
        global _decode_ahead
        with cython.critical_section(self):
            if self._properties is None:
                _decode_ahead = DECODE_AHEAD if self._was_read else max(0, _decode_ahead - 1)
                self._properties = decode_properties(self.properties_raw, False)
            return self._properties

    def _is_first_read(self) -> Bool:
        """Return whether to extract one property from the bytes, because this is the first access to the message.

        A second access decodes all properties, and makes the following messages decode theirs at the first access.
        """
        if self._properties is not None or self._was_read or _decode_ahead > 0:
            return False
        self._was_read = True
        return True

    @property
    def tags(self) -> str | None:
        """The value of the TAGS property."""
        if self._is_first_read():
            return _last_value(self.properties_raw, _TAGS, 4)
        return self._pairs().get("TAGS")

    @property
    def keys(self) -> list[str]:
        """The words of the KEYS property."""
        text: str | None
        if self._is_first_read():
            text = _last_value(self.properties_raw, _KEYS, 4)
        else:
            text = self._pairs().get("KEYS")
        if text is None:
            return []
        if " " not in text:
            return [text]
        return [key for key in text.split(" ") if key]

    @property
    def born_host_bytes(self) -> bytes:
        """The born host as stored, 8 or 20 bytes."""
        return _host_bytes(self._born_high, self._born_low, self.born_port, bool(self.sys_flag & BORN_HOST_V6))

    @property
    def store_host_bytes(self) -> bytes:
        """The store host as stored, 8 or 20 bytes."""
        return _host_bytes(self._store_high, self._store_low, self.store_port, bool(self.sys_flag & STORE_HOST_V6))

    @property
    def born_host(self) -> str:
        """The born host as `ip:port`, IPv6 in brackets."""
        return decode_host(self.born_host_bytes)

    @property
    def store_host(self) -> str:
        """The store host as `ip:port`, IPv6 in brackets."""
        return decode_host(self.store_host_bytes)

    @property
    def message_id(self) -> str:
        """The offset id of the record."""
        return encode_message_id(self.store_host_bytes, self.physical_offset)

    def decoded_body(self) -> bytes:
        """Return the body, decompressed if the system flag says so, with the errors of `commitlog.compression.decompress`."""
        from commitlog.compression import decompress  # zlib is seldom needed

        return decompress(self.body, self.sys_flag, offset=self.physical_offset)

    def to_message(self) -> Message:
        """Return a message for another put, with the same raw properties, times and hosts."""
        return Message(
            self.topic,
            self.body,
            queue_id=self.queue_id,
            flag=self.flag,
            sys_flag=self.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
            born_timestamp_ms=self.born_timestamp_ms,
            born_host=self.born_host,
            store_host=self.store_host,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
            properties_raw=self.properties_raw,
        )

    def __repr__(self) -> str:
        """Return topic, offsets and body size."""
        return (
            f"StoredMessage({self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, body={len(self.body)} bytes)"
        )


def _host_bytes(high: int, low: int, port: int, is_v6: bool) -> bytes:
    """Return the stored bytes of a host from its integers."""
    address = (low & 0xFFFFFFFF).to_bytes(4, "big") if not is_v6 else ((high & ALL_64) << 64 | low & ALL_64).to_bytes(16, "big")
    return address + (port & 0xFFFFFFFF).to_bytes(4, "big")


ALL_64 = (1 << 64) - 1


assert PROPERTIES_SIZE_MAX > CRC_SIZE
read_stored_inline(StoredMessage)


def any_has(messages: list[StoredMessage], mark: bytes) -> bool:
    """Return whether the encoded properties of any message contain `mark`."""
    message: StoredMessage
    sought: Source = source_of_bytes(mark)
    size: Size = len(mark)
    for message in messages:
        if _has(source_of_bytes(message.properties_raw), len(message.properties_raw), sought, size):
            return True
    return False


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _has(source: Source, stop: Size, sought: Source, size: Size) -> Bool:
    """Return whether the bytes contain others; `in` would create a view of each for every message of a page."""
    at: Size = 0
    while stop - at >= size:
        at = find_byte(source, at, stop, sought[0])
        if stop - at >= size and is_same(source, at, size, sought, size):
            return True
        at += 1
    return False


def without_fillers(messages: list[StoredMessage]) -> list[StoredMessage]:
    """Return the messages that are no fillers; the same list if there is no filler."""
    message: StoredMessage
    for message in messages:
        if holds_no_message(message.sys_flag, len(message.body)):
            return [one for one in messages if not one.is_filler]
    return messages
