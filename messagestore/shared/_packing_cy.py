"""The bytes of messages and of results between processes that share a store.

A message is a row of numbers (`_FIXED`), the sizes of its texts (4 bytes each), the texts in UTF-8, its encoded properties and
its body. Texts: topic, then tags, hosts, keys, and names and values of properties, as far as the mask has them.

The results of messages that were put together are a byte with the size of the store's host, the host, and for each message a
row of numbers (`_ROW`). If the row's first number is not 0, it is the size of an error's frame, which follows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from commitlog._message_cy import Message, PutResult, decode_properties, encode_properties
from commitlog.status import PutStatus
from storageio import InvalidMessage, StoreError

from ..property_names import UNIQUE_KEY
from ..write.putting import with_pairs

if not cython.compiled:
    from storebytes._bytes_cy import I32, I64, Size

TEXTS_MAX = 1 << 16
TAGS, BORN_HOST, STORE_HOST, KEYS, PROPERTIES, RAW = 1, 2, 4, 8, 16, 32  # mask: fields of a message that are not None
_FIXED = struct.Struct(">iiiiqqHHHII")  # numbers of a message; mask, keys, properties; sizes of raw properties and body
_ROW = struct.Struct(">IiqqqIi")  # size of an error; queue, queue offset, physical offset, time, size, count of messages
_SIZES = [struct.Struct(f">{count}I") for count in range(32)]
FIXED_SIZE, ROW_SIZE = _FIXED.size, _ROW.size
OK = PutStatus.PUT_OK


class BadFrame(StoreError):
    """Bytes that are no frame of this protocol."""


def pack_message(message: Message, unique_key: str) -> bytes:
    """Return the bytes of a message, with this UNIQ_KEY unless it has one."""
    if type(message) is not Message:
        raise TypeError(f"a Message is wanted, not {type(message).__name__}")
    try:
        return _pack_message(message, unique_key)
    except (AttributeError, TypeError, UnicodeEncodeError) as error:
        encode_properties(message)  # raises what a put in one process does
        raise InvalidMessage(str(error)) from error


@cython.cfunc
def _pack_message(message: Message, unique_key: str) -> bytes:
    mask: I32 = 0
    texts: list[Any] = [message.topic]
    if message.tags is not None:
        mask |= TAGS
        texts.append(message.tags)
    if message.born_host is not None:
        mask |= BORN_HOST
        texts.append(message.born_host)
    if message.store_host is not None:
        mask |= STORE_HOST
        texts.append(message.store_host)
    keys: list[str] | None = message.keys
    key_count: Size = 0
    if keys is not None:
        mask |= KEYS
        key_count = len(keys)
        texts += keys
    raw: bytes | None = message.properties_raw
    properties: dict[str, str] | None = message.properties
    pair_count: Size = 0
    if raw is not None:
        mask |= RAW
        if UNIQUE_KEY not in decode_properties(raw):
            raw = with_pairs(raw, {UNIQUE_KEY: unique_key})
    elif properties is None or UNIQUE_KEY not in properties:
        properties = {**(properties or {}), UNIQUE_KEY: unique_key}
    if properties is not None:
        mask |= PROPERTIES
        pair_count = len(properties)
        for name, value in properties.items():
            texts.append(name)
            texts.append(value)
    encoded: list[bytes] = [text.encode() for text in texts]
    if len(encoded) > TEXTS_MAX:
        raise InvalidMessage(f"a message with {len(encoded)} keys and properties")
    fixed = _FIXED.pack(
        message.queue_id, message.flag, message.sys_flag, message.reconsume_times, message.born_timestamp_ms,
        message.prepared_transaction_offset, mask, key_count, pair_count, 0 if raw is None else len(raw), len(message.body),
    )  # fmt: skip
    sizes = _sizes_of(len(encoded)).pack(*map(len, encoded))
    return b"".join([fixed, sizes, *encoded, b"" if raw is None else raw, message.body])


def _sizes_of(count: int) -> struct.Struct:
    return _SIZES[count] if count < len(_SIZES) else struct.Struct(f">{count}I")


def unpack_message(data: bytes, at: int) -> tuple[Message, int]:
    """Return the message at a position and where the next one begins. Raises `BadFrame`."""
    try:
        found: tuple[Message, int] = _unpack_message(data, at)
        return found
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise BadFrame(f"no message at byte {at} of {len(data)}: {error}") from error


@cython.cfunc
def _unpack_message(data: bytes, at: Size) -> Any:
    start: Size = at
    row = _FIXED.unpack_from(data, at)
    queue_id, flag, sys_flag, reconsume_times, born_ms, prepared, mask, key_count, pair_count, raw_size, body_size = row
    single: Size = 1 + (mask & (TAGS | BORN_HOST | STORE_HOST)).bit_count()
    count: Size = single + key_count + 2 * pair_count
    sizes = _sizes_of(count).unpack_from(data, at + FIXED_SIZE)
    at += FIXED_SIZE + 4 * count
    end: I64 = at + raw_size + body_size
    for size in sizes:
        end += size
    if end > len(data):
        raise BadFrame(f"a message at byte {start} that ends behind byte {len(data)}")
    texts: list[str] = []
    stop: Size
    for size in sizes:
        stop = at + size
        texts.append(data[at:stop].decode("utf-8"))
        at = stop
    names = iter(texts)
    topic = next(names)
    tags = next(names) if mask & TAGS else None
    born_host = next(names) if mask & BORN_HOST else None
    store_host = next(names) if mask & STORE_HOST else None
    keys = texts[single : single + key_count] if mask & KEYS else None
    properties = None
    if mask & PROPERTIES:
        pairs = texts[single + key_count :]
        properties = dict(zip(pairs[::2], pairs[1::2], strict=True))
    stop = at + raw_size
    raw = data[at:stop] if mask & RAW else None
    at = stop
    stop = at + body_size
    message = Message(
        topic, data[at:stop], tags, keys, properties, queue_id, flag, sys_flag, born_ms, born_host, store_host, reconsume_times,
        prepared, raw,
    )  # fmt: skip
    return message, stop


def unpack_messages(data: bytes, at: int = 0) -> list[Message]:
    """Return the messages from a position to the end."""
    found = []
    while at < len(data):
        message, at = unpack_message(data, at)
        found.append(message)
    return found


def pack_results(outcomes: list[PutResult | Exception], pack_error: Callable[[Exception], bytes]) -> bytes:
    """Return the bytes of what each of several puts returned or raised."""
    rows: list[bytes] = [b""]
    host: bytes = b""
    for outcome in outcomes:
        if isinstance(outcome, PutResult):
            result: PutResult = outcome
            host = result.store_host
            rows.append(
                _ROW.pack(
                    0, result.queue_id, result.queue_offset, result.physical_offset, result.store_timestamp_ms,
                    result.size_bytes, result.message_count,
                )
            )  # fmt: skip
        else:
            error = pack_error(outcome)
            rows.append(_ROW.pack(len(error), 0, 0, 0, 0, 0, 0))
            rows.append(error)
    rows[0] = bytes((len(host),)) + host
    return b"".join(rows)


def unpack_results(data: bytes, unpack_error: Callable[[bytes], Exception]) -> list[PutResult | Exception]:
    """Return what each of several puts returned or raised. Raises `BadFrame`."""
    found: list[PutResult | Exception] = []
    size: Size = len(data)
    at: Size = 1 + data[0] if size else 0
    host: bytes = data[1:at]
    while at < size:
        if size - at < ROW_SIZE:
            raise BadFrame(f"results that end within a row at byte {at}")
        error_size, queue_id, queue_offset, physical_offset, time_ms, size_bytes, count = _ROW.unpack_from(data, at)
        at += ROW_SIZE
        if error_size:
            stop: Size = at + error_size
            found.append(unpack_error(data[at:stop]))
            at = stop
            continue
        result: PutResult = PutResult.__new__(PutResult)
        result.status, result.reason, result.store_host = OK, None, host
        result.queue_id, result.queue_offset, result.physical_offset = queue_id, queue_offset, physical_offset
        result.store_timestamp_ms, result.size_bytes, result.message_count = time_ms, size_bytes, count
        found.append(result)
    return found
