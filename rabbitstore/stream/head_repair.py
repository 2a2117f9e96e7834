"""Decide the epochs and times of chunks, which no checksum covers (docs/formats/rabbitmq-streams.md#recovery)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from . import layout
from .chunk import Chunk, View
from .index import IndexRecord, record_of

_Pair = tuple[int, int]  # the value in a chunk's head and the one in its index record


def settled(chunks: list[Chunk], records: list[IndexRecord]) -> list[Chunk]:
    """Return the chunks with the epochs and times that index and neighbours confirm.

    Where a chunk and its record differ, the epoch is right that fits between those of its neighbours, and the time that is
    nearer to the one before.
    """
    known = {(record.position, record.chunk_id): record for record in records}
    pairs = [(chunk, known.get((chunk.position, chunk.chunk_id)) or record_of(chunk)) for chunk in chunks]
    epochs = _epochs([(chunk.epoch, record.epoch) for chunk, record in pairs])
    times = _times([(chunk.timestamp_ms, record.timestamp_ms) for chunk, record in pairs])
    return [
        chunk._replace(epoch=epoch, timestamp_ms=time_ms) for chunk, epoch, time_ms in zip(chunks, epochs, times, strict=True)
    ]


def new_head(view: View, chunk: Chunk) -> bytes:
    """Return the first bytes of a chunk, up to its time and epoch, which are those of `chunk`."""
    first = bytes(view[chunk.position : chunk.position + layout.CHUNK_TIME_AT])
    return first + layout.CHUNK_TIME_AND_EPOCH.pack(chunk.timestamp_ms, chunk.epoch)


def _epochs(pairs: list[_Pair]) -> list[int]:
    """Choose of each pair; the epoch of a neighbour if that may be."""
    certain = _rising([(number, epoch) for number, (epoch, other) in enumerate(pairs) if epoch == other])
    found: list[int] = []
    for number, pair in enumerate(pairs):
        after = bisect_left(certain, (number, 0))
        high = certain[after][1] if after < len(certain) else max(pair)
        near = found[-1] if found else high
        fitting = [epoch for epoch in pair if (near if found else 1) <= epoch <= high]
        found.append(near if near in fitting or not fitting else min(fitting))
    return found


def _rising(epochs: list[_Pair]) -> list[_Pair]:
    """Return the longest part of the numbered epochs that never falls."""
    ends: list[int] = []  # the least last epoch of a part of each length, and the place of that epoch
    positions: list[int] = []
    before: list[int] = []
    for index, (_number, epoch) in enumerate(epochs):
        length = bisect_right(ends, epoch)
        before.append(positions[length - 1] if length else -1)
        ends[length : length + 1] = [epoch]
        positions[length : length + 1] = [index]
    found: list[_Pair] = []
    at = positions[-1] if positions else -1
    while at >= 0:
        found.append(epochs[at])
        at = before[at]
    return found[::-1]


def _times(pairs: list[_Pair]) -> list[int]:
    """Choose of each pair; times may go back a little between chunks."""
    sure = next((time_ms for time_ms, other in pairs if time_ms == other), 0)
    found: list[int] = []
    for pair in pairs:
        sure = min(pair, key=lambda time_ms: abs(time_ms - sure))
        found.append(sure)
    return found
