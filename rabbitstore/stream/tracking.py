"""Decode tracking entries: consumers' offsets and publishers' sequences (docs/formats/rabbitmq-streams.md#tracking)."""

from __future__ import annotations

from dataclasses import dataclass, field

from storageio import StoreCorrupt, UnsupportedFormat

from . import layout
from .chunk import Chunk, View


@dataclass
class Tracking:
    """The stored state of consumers and publishers; the keys are names that they chose."""

    offsets: dict[str, int] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    timestamps: dict[str, int] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget all consumers and publishers."""
        for part in (self.offsets, self.sequences, self.timestamps):
            part.clear()

    def update(self, other: Tracking) -> None:
        """Take over what a later chunk has."""
        self.offsets |= other.offsets
        self.sequences |= other.sequences
        self.timestamps |= other.timestamps


def apply_chunk(state: Tracking, view: View, chunk: Chunk, file: str) -> None:
    """Change the state by the trailer of a user chunk, by a delta, or replace it by a snapshot."""
    if chunk.kind == layout.USER:
        state.update(read_tracking(view, chunk.trailer_at, chunk.stop, file))
        return
    found = _read_data(view, chunk, file)
    if chunk.kind == layout.TRACKING_SNAPSHOT:
        state.clear()
    state.update(found)


def _read_data(view: View, chunk: Chunk, file: str) -> Tracking:
    """Decode the single entry of a tracking chunk."""
    start = chunk.data_at + layout.ENTRY_HEAD.size
    size = layout.ENTRY_HEAD.unpack_from(view, chunk.data_at)[0]
    if start + size != chunk.trailer_at:
        expected = f"1 entry of {chunk.trailer_at - start} bytes"
        raise StoreCorrupt("wrong tracking chunk", file=file, offset=chunk.data_at, expected=expected, found=size)
    return read_tracking(view, start, chunk.trailer_at, file, is_snapshot=chunk.kind == layout.TRACKING_SNAPSHOT)


def read_tracking(view: View, at: int, stop: int, file: str, *, is_snapshot: bool = False) -> Tracking:
    """Decode entries back to back; each takes at least ten bytes."""
    found = Tracking()
    parts = (found.sequences, found.offsets, found.timestamps)
    while at < stop:
        if at + layout.TRACKING_HEAD.size > stop:
            raise _cut(file, at, stop)
        kind, size = layout.TRACKING_HEAD.unpack_from(view, at)
        if kind >= len(parts):
            raise UnsupportedFormat("tracking type", file=file, offset=at, found=kind, supported="0, 1, 2")
        has_chunk_id = is_snapshot and kind == layout.SEQUENCE
        start = at + layout.TRACKING_HEAD.size + size
        value_at = start + (layout.TRACKING_VALUE.size if has_chunk_id else 0)
        if value_at + layout.TRACKING_VALUE.size > stop:
            raise _cut(file, at, stop)
        name = bytes(view[start - size : start]).decode("utf-8", "replace")
        parts[kind][name] = layout.TRACKING_VALUE.unpack_from(view, value_at)[0]
        at = value_at + layout.TRACKING_VALUE.size
    return found


def _cut(file: str, at: int, stop: int) -> StoreCorrupt:
    return StoreCorrupt("tracking entry is cut", file=file, offset=at, expected="a whole entry", found=f"{stop - at} bytes")


def encode_snapshot(state: Tracking, chunk_id: int) -> bytes:
    """Encode the state as the entry of a snapshot; sequences get `chunk_id` as the chunk that they are from."""
    found = bytearray()
    for name, value in state.sequences.items():
        found += _head(layout.SEQUENCE, name) + layout.TRACKING_SEQUENCE.pack(chunk_id, value)
    for kind, values in ((layout.OFFSET, state.offsets), (layout.TIMESTAMP, state.timestamps)):
        for name, value in values.items():
            found += _head(kind, name) + layout.TRACKING_VALUE.pack(value)
    return bytes(found)


def _head(kind: int, name: str) -> bytes:
    text = name.encode()[: layout.NAME_SIZE_MAX]
    return layout.TRACKING_HEAD.pack(kind, len(text)) + text
