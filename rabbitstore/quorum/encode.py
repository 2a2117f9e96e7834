"""Encode write-ahead logs, segments and log entries (docs/formats/rabbitmq-quorum.md#recovery)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from os import fsencode
from typing import Any

from storageio import StoreCorrupt

from ..format.terms import Atom, encode
from ..format.terms_cy import read_parts
from . import layout
from .message import BODY_FIELD
from .wal import View

SEGMENT_ENTRIES = 4096
_VERSION = b"\x83"
_UNDEFINED = b"w\x09undefined"
_DELIVERY_COUNT = b"w\x0edelivery_count"
FIRST_ENTRY = _VERSION + _UNDEFINED


@dataclass(frozen=True)
class LogRecord:
    """A record to write; `truncates` voids what the queue's log has from `index` on."""

    uid: str
    index: int
    term: int
    data: View
    truncates: bool = False


@dataclass(frozen=True)
class LogEntry:
    """An entry to write to a segment; `data` makes its bytes when they are needed."""

    index: int
    term: int
    data: Callable[[], View]


def wal_pieces(records: Iterable[LogRecord]) -> Iterator[View]:
    """Yield a write-ahead log; each writer's first record names it."""
    yield layout.WAL_MAGIC + bytes((layout.WAL_VERSION,))
    writers: dict[str, int] = {}
    for record in records:
        is_known = record.uid in writers
        word = writers.setdefault(record.uid, len(writers) + 1)
        word |= (layout.KNOWN_BIT if is_known else 0) | (layout.TRUNCATE_BIT if record.truncates else 0)
        head = word.to_bytes(layout.WRITER_SIZE, "big")
        if not is_known:
            name = fsencode(record.uid)
            head += layout.ID_SIZE.pack(len(name)) + name
        position = layout.WAL_RECORD.pack(0, 0, record.index, record.term)[layout.CHECKED_AT :]
        checksum = zlib.adler32(record.data, zlib.adler32(position))
        yield head + layout.WAL_RECORD.pack(checksum, len(record.data), record.index, record.term)
        yield record.data


def segment_pieces(entries: list[LogEntry]) -> Iterator[View]:
    """Yield a segment of version 2; the data of each entry is made twice, because the index before it has its CRC."""
    version, shape = max(layout.SEGMENT_ENTRY.items())
    yield layout.SEGMENT_HEAD.pack(layout.SEGMENT_MAGIC, version, SEGMENT_ENTRIES)
    index = bytearray(shape.size * SEGMENT_ENTRIES)
    at = layout.SEGMENT_HEAD.size + len(index)
    for number, entry in enumerate(entries):
        data = entry.data()
        shape.pack_into(index, number * shape.size, entry.index, entry.term, at, len(data), zlib.crc32(data))
        at += len(data)
    yield bytes(index)
    for entry in entries:
        yield entry.data()


def new_leader(time_ms: int, version: int) -> bytes:
    """Encode the entry by which a leader sets the version of the queue machine."""
    return encode((Atom("noop"), {Atom("ts"): time_ms}, version))


def update_config(time_ms: int, config: dict[Any, Any]) -> bytes:
    """Encode the entry that sets a queue's limits."""
    return encode((Atom("$usr"), {Atom("ts"): time_ms}, (Atom("update_config"), config), Atom("noreply")))


def plain_enqueue(data: bytes, delivery_count: int, file: str) -> bytes:
    """Turn an entry with a message into an enqueue that belongs to no process, so that no number before it can be missing.

    The message and its time stay byte for byte; a delivery count becomes one of its annotations.
    """
    outer = read_parts(data, 1, file)
    command = read_parts(data, outer[2][0], file) if len(outer) == 4 else []
    at = BODY_FIELD.get((_atom(data, command[0]), len(command))) if command else None
    if at is None:
        raise StoreCorrupt("not a message", file=file, offset=0, expected="an enqueue", found=f"{len(command)} fields")
    message = _slice(data, command[at])
    if delivery_count:
        message = _with_count(message, delivery_count, file)
    parts = (b"w\x07enqueue", _UNDEFINED, _UNDEFINED, message)
    return b"".join((_VERSION, b"h\x04w\x04$usr", _slice(data, outer[1]), b"h\x04", *parts, b"w\x07noreply"))


def _slice(data: bytes, bounds: tuple[int, int]) -> bytes:
    return data[bounds[0] : bounds[1]]


def _atom(data: bytes, bounds: tuple[int, int]) -> str:
    """Return the text of an atom with a short head."""
    return data[bounds[0] + (2 if data[bounds[0]] in b"ws" else 3) : bounds[1]].decode("utf-8", "replace")


def _with_count(message: bytes, count: int, file: str) -> bytes:
    """Set the annotation that the server takes a new message's delivery count from; only a container has annotations."""
    fields = read_parts(message, 0, file)
    if len(fields) != 4 or message[fields[3][0] : fields[3][0] + 1] != b"t":
        return message
    parts = [_slice(message, bounds) for bounds in read_parts(message, fields[3][0], file)]
    pairs = [
        (key, value)
        for key, value in zip(parts[::2], parts[1::2], strict=True)
        if _atom(key, (0, len(key))) != "delivery_count"
    ]
    pairs.append((_DELIVERY_COUNT, encode(count)[1:]))
    annotations = b"t" + len(pairs).to_bytes(4, "big") + b"".join(key + value for key, value in pairs)
    return message[: fields[3][0]] + annotations
