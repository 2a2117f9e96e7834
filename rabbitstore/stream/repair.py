"""Plan the repair of a stream (docs/formats/rabbitmq-streams.md#recovery).

A damaged end is cut.  Offsets lost in the middle are covered by a tracking chunk without entries: the server counts its records
and delivers none of them, so every later message keeps its offset.  Indexes are made again from the segments.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat
from storebytes.finding import UNSUPPORTED, finding_of
from storebytes.plan import LATER_VERSION, Cost, Plan

from ..staging import Pieces, Staging, charge
from . import layout
from .check import check_stream
from .chunk import Chunk, View, read_records
from .folder import OpenSegment, StreamFolder
from .head_repair import new_head, settled
from .index import IndexRecord, record_of
from .scan import StreamScan
from .tracking import Tracking, apply_chunk, encode_snapshot

ADVICE = "put copies of the stream's segments in their place; dump and export read the messages that are left"
_COPIED = "compression"  # a batch that is not unpacked here is copied as it is
_RECORDS_MAX = (1 << 32) - 1
_INDEX_HEAD = layout.FILE_HEAD.pack(layout.INDEX_MAGIC, layout.FILE_VERSION)
_SEGMENT_HEAD = layout.FILE_HEAD.pack(layout.SEGMENT_MAGIC, layout.FILE_VERSION)


class _Part(NamedTuple):
    """A chunk of the new segment: `made` bytes, then a range of the old one."""

    record: IndexRecord
    start: int
    stop: int
    made: bytes = b""

    @property
    def size(self) -> int:
        return len(self.made) + self.stop - self.start


@dataclass
class _StreamRepair:
    """The repair of one stream while it is planned; `expected` is the next offset, `lost` counts the lost ones by segment."""

    folder: StreamFolder
    staging: Staging
    plan: Plan
    lost: dict[int, int] = field(default_factory=dict)
    tracking: Tracking = field(default_factory=Tracking)
    segment: int = 0
    expected: int | None = None
    epoch: int = 1
    timestamp_ms: int = 0

    def run(self) -> None:
        checked = check_stream(self.folder)
        self.plan.findings, self.plan.messages_kept = checked.problems, checked.messages
        unknown = [one for one in checked.problems if one.kind == UNSUPPORTED and not str(one.found).startswith(_COPIED)]
        is_behind = any(note.kind in ("index_behind", "torn_chunk") for note in checked.notes)
        if unknown or not (checked.problems or is_behind):
            self.plan.leave(unknown, LATER_VERSION)
            return
        numbers = self.folder.segments()
        for number, after in zip_longest(numbers, numbers[1:]):
            if self.folder.is_unwritten(number):
                continue
            with self.folder.open_segment(number, []) as segment:
                self._plan_segment(segment, after)
        for number in sorted(set(self.folder.numbers("index")) - set(numbers)):
            self._change("move_aside", self.folder.file(number, "index"), "missing_segment")
            if not numbers or not numbers[0] < number < numbers[-1]:  # elsewhere a filler counts its offsets
                self._count_lost(number, self.folder.index_records(number, []), number)
        for name in self.folder.unreadable_names():
            self._change("move_aside", f"{self.folder.relative}/{name}", "unreadable_name")
        for number, count in self.lost.items():
            prefix = self.folder.file(number, "").removesuffix(".")
            charge(self.plan.steps, prefix, Cost(stream_offsets_lost=count))

    def _change(self, kind: str, file: str, reason: str, pieces: Pieces | None = None) -> None:
        self.plan.add(kind, file, reason, partial(self.staging.stage, file, pieces))

    def _lose(self, segment: int, count: int) -> None:
        self.lost[segment] = self.lost.get(segment, 0) + count

    def _count_lost(self, segment: int, records: list[IndexRecord], start: int) -> None:
        """Count the offsets that an index names behind what is left; the number of records in its last chunk is lost too."""
        self._lose(segment, max([0, *(record.chunk_id + 1 - start for record in records)]))

    def _plan_segment(self, segment: OpenSegment, after: int | None) -> None:
        self.expected = self.segment = segment.number
        parts = list(self._parts(segment))
        if after is not None and after > self.expected:
            parts.append(self._filler(after, is_first=not parts))
        elif after is None and self._kinds(segment.file):
            self._count_lost(segment.number, segment.index_records, self.expected)
        index = self.folder.file(segment.number, "index")
        reason = self._kinds(segment.file) or self._kinds(index) or ("lost_offsets" if after else "torn_chunk")
        records = _located(parts)
        is_whole = segment.view[: layout.FILE_HEAD_SIZE] == _SEGMENT_HEAD and sum(part.size for part in parts) == (
            len(segment.view) - layout.FILE_HEAD_SIZE
        )
        if not is_whole or any(part.made for part in parts):
            pieces = partial(_segment_pieces, self.folder, segment.number, parts)
            self._change("rewrite_segment", segment.file, reason, pieces)
        self._plan_index(segment, records)

    def _plan_index(self, segment: OpenSegment, records: list[IndexRecord]) -> None:
        """Make the index again if its records differ, or if it ends with a part of one."""
        file = self.folder.file(segment.number, "index")
        kinds = self._kinds(file)
        if kinds or records != segment.index_records:
            self._change("make_index", file, kinds or "rewrite_segment", partial(_index_pieces, records))

    def _kinds(self, file: str) -> str:
        """Return the kinds of the problems of a file."""
        return ", ".join(dict.fromkeys(problem.kind for problem in self.plan.findings if problem.file == file))

    def _parts(self, segment: OpenSegment) -> Iterator[_Part]:
        """Yield the good chunks, with a filler for each range of lost offsets."""
        positions = [record.position for record in segment.index_records]
        scan = StreamScan(segment.view, segment.file, [], positions, segment.number)
        good = [chunk for chunk in scan.chunks() if _is_good(segment, chunk)]
        is_first = True
        for chunk, found in zip(settled(good, segment.index_records), good, strict=True):
            if self.expected is not None and chunk.chunk_id > self.expected:
                yield self._filler(chunk.chunk_id, is_first=is_first)
            is_first = False
            apply_chunk(self.tracking, segment.view, chunk, segment.file)
            self.expected, self.epoch, self.timestamp_ms = chunk.next_id, chunk.epoch, chunk.timestamp_ms
            head = b"" if chunk == found else new_head(segment.view, chunk)
            yield _Part(record_of(chunk), chunk.position + len(head), chunk.stop, head)

    def _filler(self, next_id: int, *, is_first: bool) -> _Part:
        """Return a chunk for the offsets before `next_id`: at a segment's start the state that the lost snapshot had."""
        assert self.expected is not None
        chunk_id, count = self.expected, next_id - self.expected
        if count > _RECORDS_MAX:
            raise StoreCorrupt("too many lost offsets", file=self.folder.relative, offset=0, expected=_RECORDS_MAX, found=count)
        is_snapshot = is_first and chunk_id > 0
        kind = layout.TRACKING_SNAPSHOT if is_snapshot else layout.TRACKING_DELTA
        body = encode_snapshot(self.tracking, chunk_id) if is_snapshot else b""
        self.expected = next_id
        self._lose(self.segment, count)
        record = IndexRecord(chunk_id, self.timestamp_ms, self.epoch, 0, kind)
        return _Part(record, 0, 0, tracking_chunk(record, count, body))


def tracking_chunk(record: IndexRecord, count: int, body: bytes) -> bytes:
    """Encode a tracking chunk that takes up `count` offsets."""
    data = layout.ENTRY_HEAD.pack(len(body)) + body
    first = layout.CHUNK_MAGIC << 4 | layout.CHUNK_VERSION
    return (
        layout.CHUNK_HEAD.pack(
            first,
            record.kind,
            1,
            count,
            record.timestamp_ms,
            record.epoch,
            record.chunk_id,
            zlib.crc32(data),
            len(data),
            0,
            0,
            b"",
        )
        + data
    )


def _is_good(segment: OpenSegment, chunk: Chunk) -> bool:
    """Return whether the server can read a chunk to its end."""
    try:
        apply_chunk(Tracking(), segment.view, chunk, segment.file)
        if chunk.kind == layout.USER:
            read_records(segment.view, chunk, segment.file)
    except StoreCorrupt:
        return False
    except UnsupportedFormat:  # such as a compression
        return True
    return True


def _located(parts: list[_Part]) -> list[IndexRecord]:
    """Return the records of the index, with positions in the new segment."""
    at = layout.FILE_HEAD_SIZE
    found = []
    for part in parts:
        found.append(part.record._replace(position=at))
        at += part.size
    return found


def _segment_pieces(folder: StreamFolder, number: int, parts: list[_Part]) -> Iterator[View]:
    yield _SEGMENT_HEAD
    with folder.open_segment(number, []) as segment:
        for part in parts:
            yield part.made
            yield segment.view[part.start : part.stop]


def _index_pieces(records: list[IndexRecord]) -> Iterator[View]:
    yield _INDEX_HEAD
    yield b"".join(layout.INDEX_RECORD.pack(*record) for record in records)


def plan_stream(folder: StreamFolder, staging: Staging) -> tuple[Plan, int]:
    """Read a stream; return the plan, with damage that cannot be repaired, and the number of lost offsets."""
    repair = _StreamRepair(folder, staging, Plan(folder.path))
    try:
        repair.run()
    except StoreCorrupt as error:
        repair.plan.steps.clear()
        repair.plan.leave([finding_of(error, "lost_offsets")], ADVICE)
    return repair.plan, sum(repair.lost.values())
