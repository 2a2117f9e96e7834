"""Verify a stream: every chunk, entry, tracking entry and index record (docs/formats/rabbitmq-streams.md#damage)."""

from __future__ import annotations

from typing import NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat
from storebytes.finding import Finding, finding_of

from . import layout
from .chunk import read_records
from .folder import OpenSegment, StreamFolder
from .index import IndexRecord, record_of
from .scan import StreamScan
from .tracking import Tracking, apply_chunk

_READABLE, _UNREADABLE = "a name without characters above U+00FF", "a name with which a server does not start the stream"


class CheckedStream(NamedTuple):
    """What a check found.  `notes` are states that a killed server leaves and repairs itself."""

    chunks: int
    messages: int
    problems: list[Finding]
    notes: list[Finding]


def check_stream(folder: StreamFolder) -> CheckedStream:
    """Read every segment and index."""
    problems: list[Finding] = []
    notes: list[Finding] = []
    numbers = folder.segments()
    counts = [0, 0]
    expected: int | None = None
    for number in numbers:
        is_last = number == numbers[-1]
        try:
            with folder.open_segment(number, notes if folder.is_unwritten(number) else problems) as segment:
                if expected is not None and number != expected:
                    problems.append(Finding(segment.file, 0, "lost_offsets", f"offset {expected}", f"offset {number}"))
                expected = _check_segment(segment, problems, notes if is_last else problems, counts)
        except UnsupportedFormat as error:
            problems.append(finding_of(error, ""))
            expected = None
    alone = sorted(set(folder.numbers("index")) - set(numbers))
    for number in alone:
        wrong = Finding(folder.file(number, "index"), 0, "missing_segment", "a segment for each index", "no file")
        is_next = number == (expected if numbers else alone[0]) and folder.has_empty_index(number)
        (notes if is_next and folder.deletes_lone_index else problems).append(wrong)
    for name in folder.unreadable_names():
        problems.append(Finding(f"{folder.relative}/{name}", 0, "unreadable_name", _READABLE, _UNREADABLE))
    return CheckedStream(counts[0], counts[1], list(dict.fromkeys(problems)), notes)


def _check_segment(segment: OpenSegment, problems: list[Finding], ahead: list[Finding], counts: list[int]) -> int | None:
    """Check one segment and its index; return the first offset of the next segment, None when it is not known."""
    positions = [record.position for record in segment.index_records]
    scan = StreamScan(segment.view, segment.file, problems, positions, segment.number, torn=ahead)
    found: list[IndexRecord] = []
    for chunk in scan.chunks():
        found.append(record_of(chunk))
        counts[0] += 1
        try:
            apply_chunk(Tracking(), segment.view, chunk, segment.file)
        except (StoreCorrupt, UnsupportedFormat) as error:
            problems.append(finding_of(error, "bad_tracking"))
        try:
            counts[1] += len(read_records(segment.view, chunk, segment.file)) if chunk.kind == layout.USER else 0
        except (StoreCorrupt, UnsupportedFormat) as error:
            problems.append(finding_of(error, "bad_chunk"))
    _compare(segment, found, problems, ahead)
    return scan.chunk_id if scan.position >= len(segment.view) else None


def _compare(segment: OpenSegment, chunks: list[IndexRecord], problems: list[Finding], ahead: list[Finding]) -> None:
    """Report where index and segment differ; the server writes a chunk, then its record."""
    file = segment.file.removesuffix("segment") + "index"
    whole = {record.position: record for record in chunks}
    for number, record in enumerate(segment.index_records):
        at = layout.FILE_HEAD_SIZE + number * layout.INDEX_RECORD.size
        other = whole.pop(record.position, None)
        if other is None:
            is_ahead = number == len(segment.index_records) - 1 and record.position >= len(segment.view)
            target = ahead if is_ahead else problems
            target.append(Finding(file, at, "index_ahead" if is_ahead else "bad_stream_index", "a chunk", f"{record}"))
        elif other != record:
            problems.append(Finding(file, at, "bad_stream_index", f"{other}", f"{record}"))
    is_unreadable = not segment.index_records and any(one.file == file for one in problems)
    left = [] if is_unreadable else list(whole.values())
    if left and ahead is not problems and left == chunks[-1:]:
        ahead.append(Finding(file, 0, "index_behind", f"{left[0]}", "no record; a server drops the chunk"))
        return
    for record in left:
        problems.append(Finding(file, 0, "bad_stream_index", f"{record}", "no record"))
