"""Decode the consume queues that a broker keeps in RocksDB.

Integers are big-endian, 01 is a separator. Column family `default`, a row for each unit:

    key    topic length (4) | 01 | topic | 01 | queue (4) | 01 | queue offset (8)
    value  log offset (8) | size (4) | tags code (8) | store time (8)

Column family `offset`, the last and the first unit of a queue:

    key    topic length (4) | 01 | topic | 01 | "max" or "min" | 01 | queue (4)
    value  log offset (8) | queue offset (8)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, Self

from consumequeue import ConsumeQueue, Unit
from storageio import StoreCorrupt

from .database import Database

UNITS, ENDS = "default", "offset"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"  # its max has 8 bytes: the log offset up to which queues are built
_UNIT = struct.Struct(">qiqq")
_END = struct.Struct(">qq")
_SEPARATOR = b"\x01"


class RocksdbUnit(NamedTuple):
    """One unit of a queue."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    tags_code: int
    store_timestamp_ms: int


class RocksdbEnd(NamedTuple):
    """The unit that a row of the column family `offset` names."""

    topic: str
    queue_id: int
    is_max: bool
    physical_offset: int
    queue_offset: int


def unit_key(topic: bytes, queue_id: int, queue_offset: int) -> bytes:
    """Return the key of a unit."""
    head = len(topic).to_bytes(4, "big") + _SEPARATOR + topic + _SEPARATOR
    return head + queue_id.to_bytes(4, "big") + _SEPARATOR + queue_offset.to_bytes(8, "big")


def unit_value(physical_offset: int, size_bytes: int, tags_code: int, store_timestamp_ms: int) -> bytes:
    """Return the value of a unit."""
    return _UNIT.pack(physical_offset, size_bytes, tags_code, store_timestamp_ms)


def end_row(topic: bytes, queue_id: int, is_max: bool, position: tuple[int, int] | int) -> tuple[bytes, bytes]:
    """Return the row of an end; `position` is log and queue offset of the unit, or the log offset of the checkpoint."""
    head = len(topic).to_bytes(4, "big") + _SEPARATOR + topic + _SEPARATOR
    key = head + (b"max" if is_max else b"min") + _SEPARATOR + queue_id.to_bytes(4, "big")
    return key, position.to_bytes(8, "big") if isinstance(position, int) else _END.pack(*position)


def read_units(database: Database) -> Iterator[RocksdbUnit]:
    """Yield every unit, sorted by length of the topic, topic, queue and offset. Raises `StoreCorrupt` for an unknown row."""
    for key, value in database.rows(UNITS):
        topic, rest = _topic(database, key)
        if len(rest) != 13 or rest[4:5] != _SEPARATOR or len(value) != _UNIT.size:
            raise _unknown(database, key, value)
        yield RocksdbUnit(topic, int.from_bytes(rest[:4], "big"), int.from_bytes(rest[5:], "big"), *_UNIT.unpack(value))


def unit_of(database: Database, topic: bytes, queue_id: int, queue_offset: int) -> RocksdbUnit | None:
    """Return one unit; None if there is none."""
    key = unit_key(topic, queue_id, queue_offset)
    value = database.get(UNITS, key)
    if value is None:
        return None
    if len(value) != _UNIT.size:
        raise _unknown(database, key, value)
    return RocksdbUnit(topic.decode("utf-8", "replace"), queue_id, queue_offset, *_UNIT.unpack(value))


def read_ends(database: Database) -> Iterator[RocksdbEnd]:
    """Yield the ends of all queues. Raises `StoreCorrupt` for an unknown row."""
    for key, value in database.rows(ENDS):
        topic, rest = _topic(database, key)
        kind, separator, queue_id = rest[:3], rest[3:4], rest[4:]
        if topic == CHECKPOINT_TOPIC and len(value) == 8:
            continue
        if kind not in (b"max", b"min") or separator != _SEPARATOR or len(queue_id) != 4 or len(value) != _END.size:
            raise _unknown(database, key, value)
        yield RocksdbEnd(topic, int.from_bytes(queue_id, "big"), kind == b"max", *_END.unpack(value))


def last_ends(database: Database) -> dict[tuple[str, int], RocksdbEnd]:
    """Return the last unit of each queue, by topic and queue id. Raises `StoreCorrupt` for an unknown row."""
    return {(end.topic, end.queue_id): end for end in read_ends(database) if end.is_max}


def queue_ends(database: Database) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first queue offset, and that behind the last unit, by topic and queue id; errors as in `read_ends`."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for end in read_ends(database):
        low, high = found.get((end.topic, end.queue_id), (0, 0))
        found[end.topic, end.queue_id] = (low, end.queue_offset + 1) if end.is_max else (end.queue_offset, high)
    return found


class RocksdbQueue:
    """One queue, with the interface of a queue in files."""

    def __init__(self, database: Database, topic: str, queue_id: int, min_offset: int, max_offset: int) -> None:
        """Create it for the units between two queue offsets."""
        self._database = database
        self._topic = topic.encode()
        self._queue_id = queue_id
        self.min_offset = min_offset
        self.max_offset = max_offset

    @classmethod
    def of(cls, database: Database, ends: dict[tuple[str, int], tuple[int, int]], topic: str, queue_id: int) -> Self | None:
        """Return the queue that has the given ends; None if there is none."""
        found = ends.get((topic, queue_id))
        return cls(database, topic, queue_id, *found) if found is not None else None

    def unit(self, queue_offset: int) -> Unit | None:
        """Return a unit; None if there is none."""
        found = unit_of(self._database, self._topic, self._queue_id, queue_offset)
        return Unit(found.physical_offset, found.size_bytes, found.tags_code) if found is not None else None

    def units(self, start: int) -> Iterator[tuple[int, Unit]]:
        """Yield offset and unit from an offset on."""
        for offset in range(max(start, self.min_offset), self.max_offset):
            unit = self.unit(offset)
            if unit is not None:
                yield offset, unit


AnyQueue = ConsumeQueue | RocksdbQueue


def _topic(database: Database, key: bytes) -> tuple[str, bytes]:
    """Return the topic of a key and what follows it."""
    size = int.from_bytes(key[:4], "big")
    end = 5 + size
    if key[4:5] != _SEPARATOR or key[end : end + 1] != _SEPARATOR:
        raise _unknown(database, key, b"")
    return key[5:end].decode("utf-8", "replace"), key[end + 1 :]


def _unknown(database: Database, key: bytes, value: bytes) -> StoreCorrupt:
    found = f"key {key[:80].hex()}, {len(value)} bytes"
    return StoreCorrupt("row of a consume queue", file=database.path, offset=0, expected="a unit or an end", found=found)
