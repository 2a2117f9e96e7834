"""Decode a segment of a queue's log (docs/formats/rabbitmq-quorum.md#segment)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from struct import Struct

from storageio import StoreCorrupt, UnsupportedFormat
from storebytes.finding import Finding, finding_of

from . import layout
from .entries_cy import Run, read_intact
from .wal import View


@dataclass(frozen=True)
class SegmentEntry:
    """An entry of the log in a segment: `at` is the position of its data."""

    index: int
    term: int
    at: int
    size: int


def read_segment(view: View, file: str, problems: list[Finding]) -> dict[int, SegmentEntry]:
    """Return the good entries by index; raise `UnsupportedFormat` for another version.  A wrong magic alone hides no entry.

    A file that ends before or in the index has zeros there: the server had only created it.
    """
    layouts = _check_head(view, file, problems)
    if layouts is None:
        return {}
    entry, max_count = layouts
    start = layout.SEGMENT_HEAD.size
    count = min(max_count, (len(view) - start) // entry.size)
    region = bytes(view[start : start + count * entry.size])
    found: dict[int, SegmentEntry] = {}
    for number in range(count):
        at = number * entry.size
        index, term, offset, size, crc = entry.unpack_from(region, at)
        if not any(region[at : at + entry.size]):
            if not any(region[at:]):
                break
            problems.append(Finding(file, start + at, "bad_segment_entry", "an entry", "zeros before other entries"))
            continue
        problem = _problem_of(view, offset, size, crc, start + max_count * entry.size)
        if max(index, term) > layout.NUMBER_MAX:
            problem = f"index {index}, term {term}"
        if problem:
            problems.append(Finding(file, start + at, "bad_segment_entry", f"entry {index} with its CRC", problem))
            continue
        while found and next(reversed(found)) >= index:
            found.popitem()
        found[index] = SegmentEntry(index, term, offset, size)
    return found


def read_segment_runs(view: memoryview, file: str, problems: list[Finding]) -> list[Run]:
    """Return the good entries as runs; raise the same errors."""
    layouts = _check_head(view, file, [])
    if layouts is not None and bytes(view[:4]) == layout.SEGMENT_MAGIC:
        entry, max_count = layouts
        runs = read_intact(view, 2 if entry is layout.SEGMENT_ENTRY[2] else 1, max_count, file)
        if runs is not None:
            return runs
    found: list[Run] = []
    for one in read_segment(view, file, problems).values():
        if not found or (found[-1].stop, found[-1].term) != (one.index, one.term) or not found[-1].append(one.at, one.size):
            found.append(Run(one.index, one.term, view, file))
            found[-1].append(one.at, one.size)
    return found


def _check_head(view: View, file: str, problems: list[Finding]) -> tuple[Struct, int] | None:
    if len(view) < layout.SEGMENT_HEAD.size:
        if any(bytes(view)) and not layout.SEGMENT_MAGIC.startswith(bytes(view[:4])):
            raise StoreCorrupt("wrong magic", file=file, offset=0, expected=layout.SEGMENT_MAGIC, found=bytes(view[:4]))
        return None
    magic, version, max_count = layout.SEGMENT_HEAD.unpack_from(view)
    if magic != layout.SEGMENT_MAGIC:
        error = StoreCorrupt("wrong magic", file=file, offset=0, expected=layout.SEGMENT_MAGIC, found=magic)
        if version not in layout.SEGMENT_ENTRY:
            raise error
        problems.append(finding_of(error, "bad_segment_head"))
    if version not in layout.SEGMENT_ENTRY:
        raise UnsupportedFormat("segment version", file=file, offset=4, found=version, supported="1, 2")
    return layout.SEGMENT_ENTRY[version], max_count


def _problem_of(view: View, offset: int, size: int, crc: int, data_at: int) -> str:
    """Return what is wrong with an entry's data; an empty text for nothing."""
    if offset < data_at or offset + size > len(view):
        return f"data at {offset}, {size} bytes"
    found = zlib.crc32(view[offset : offset + size])
    return "" if found == crc else f"CRC {found:08x} instead of {crc:08x}"
