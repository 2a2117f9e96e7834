"""Make entries of a version-2 index that is lost, wholly or in part, from the messages themselves.

A message has its id, its time of arrival and its routing keys, but no sequence number: the order is that of arrival.  Nothing
tells acknowledged messages apart while their bytes are still there, so they are delivered again.
"""

from __future__ import annotations

from typing import NamedTuple

from storageio import StoreCorrupt

from ..format.index_v2 import V2Entry
from ..format.layout import V2_CHUNK, V2_ENTRY, V2_HEAD_SIZE, V2_LOCATION, V2_QUEUE_STORE, V2_SEGMENT_ENTRIES
from ..format.terms import Atom
from ..format.terms_cy import decode
from .queue_store import QueueStore, StoredChunk, body_size, is_persistent

Pair = tuple[V2Entry, StoredChunk | None]
_ARRIVAL = Atom("rts")


class SharedMessage(NamedTuple):
    """A message of the shared store that no index names."""

    msg_id: bytes
    arrival_ms: int
    size: int


def arrival_ms(term: bytes) -> int:
    """Return when a message arrived; 0 if its term does not have it."""
    try:
        found = decode(term)
    except StoreCorrupt:
        return 0
    annotations = found[3] if isinstance(found, tuple) and len(found) == 4 else None
    arrival = annotations.get(_ARRIVAL) if isinstance(annotations, dict) else None
    return arrival if isinstance(arrival, int) else 0


def unindexed(index: bytes, stored: bytes | memoryview) -> tuple[int, int] | None:
    """Return the offset in `N.qs` of the first message behind that of the last entry in `N.qi`, and how many lack an entry.

    Messages are in the order of their entries, so more messages than places behind that entry show that entries are missing:
    the index was cut, or a killed `RabbitStore` had written messages before their entries.  None without any.
    """
    at = V2_HEAD_SIZE + (len(index) - V2_HEAD_SIZE) // V2_ENTRY.size * V2_ENTRY.size
    positions, start = 0, V2_HEAD_SIZE
    while at > V2_HEAD_SIZE:
        at -= V2_ENTRY.size
        status, _flags, _reserved, kind, location, _size, _expiry = V2_ENTRY.unpack_from(index, at)
        if status and kind == V2_QUEUE_STORE:
            offset, length, _zero = V2_LOCATION.unpack(location)
            start = offset + V2_CHUNK.size + length
            break
        positions += 1
    position, count = start, 0
    while position + V2_CHUNK.size < len(stored) and count <= V2_SEGMENT_ENTRIES:
        position += V2_CHUNK.size + V2_CHUNK.unpack_from(stored, position)[0]
        count += position <= len(stored)
    return (start, count - positions) if count > positions else None


def restored_start(number: int, rows: list[V2Entry], store: QueueStore) -> list[Pair]:
    """Return entries for the messages before the first entry's in `N.qs`: the first sector of the index is lost."""
    first = number * V2_SEGMENT_ENTRIES
    positions = rows[0].seq_id - first if rows else V2_SEGMENT_ENTRIES
    stop = min((row.location[0] for row in rows if row.location is not None), default=len(store.data))
    chunks = [chunk for chunk in store.free if chunk.offset < stop]
    return [_pair(number, position, chunk) for position, chunk in enumerate(chunks[:positions])]


def restored_end(number: int, positions_used: int, rows: list[V2Entry], store: QueueStore) -> list[Pair]:
    """Return entries for the messages behind the last entry's in `N.qs`: the index is cut."""
    start = max((row.location[0] for row in rows if row.location is not None), default=0)
    chunks = [chunk for chunk in store.free if chunk.offset > start][: V2_SEGMENT_ENTRIES - positions_used]
    return [_pair(number, positions_used + position, chunk) for position, chunk in enumerate(chunks)]


def restored_index(number: int, store: QueueStore, shared: list[SharedMessage]) -> list[Pair]:
    """Return entries for all messages in `N.qs` and those of the shared store, by their time of arrival."""
    timed: list[tuple[int, StoredChunk | SharedMessage]] = []
    last = 0
    for chunk in store.free:
        last = max(last, arrival_ms(chunk.term))  # the order of the file counts where the clock went back
        timed.append((last, chunk))
    timed += ((one.arrival_ms, one) for one in shared)
    timed.sort(key=lambda pair: pair[0])
    return [_pair(number, position, found) for position, (_arrival, found) in enumerate(timed[:V2_SEGMENT_ENTRIES])]


def _pair(number: int, position: int, found: StoredChunk | SharedMessage) -> Pair:
    seq_id, offset = number * V2_SEGMENT_ENTRIES + position, V2_HEAD_SIZE + position * V2_ENTRY.size
    if isinstance(found, SharedMessage):
        return V2Entry(seq_id, True, found.msg_id, None, found.size, 0, offset), None
    location = found.offset, found.length
    return V2Entry(seq_id, is_persistent(found.term), None, location, body_size(found.term), 0, offset), found
