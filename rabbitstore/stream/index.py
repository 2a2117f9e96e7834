"""Decode the index of a segment (docs/formats/rabbitmq-streams.md#index)."""

from __future__ import annotations

from typing import NamedTuple

from storebytes.finding import Finding

from .chunk import Chunk, View, check_file_head
from .layout import FILE_HEAD_SIZE, INDEX_MAGIC, INDEX_RECORD


class IndexRecord(NamedTuple):
    """What the index has of one chunk."""

    chunk_id: int
    timestamp_ms: int
    epoch: int
    position: int
    kind: int


def read_index(data: View, file: str, problems: list[Finding]) -> list[IndexRecord]:
    """Return all whole records; raise `StoreCorrupt` or `UnsupportedFormat` for another file head."""
    check_file_head(data, INDEX_MAGIC, file)
    body = data[FILE_HEAD_SIZE:]
    rest = len(body) % INDEX_RECORD.size
    if rest:
        problems.append(Finding(file, len(data) - rest, "bad_stream_index", f"{INDEX_RECORD.size} bytes", f"{rest} bytes"))
    return list(map(IndexRecord._make, INDEX_RECORD.iter_unpack(body[: len(body) - rest])))


def record_of(chunk: Chunk) -> IndexRecord:
    """Return the record that the server writes for a chunk."""
    return IndexRecord(chunk.chunk_id, chunk.timestamp_ms, chunk.epoch, chunk.position, chunk.kind)
