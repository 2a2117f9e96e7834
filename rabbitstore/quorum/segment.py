"""Decode a segment of a queue's log (docs/formats/rabbitmq-quorum.md#segment)."""

from __future__ import annotations

import zlib
from struct import Struct

from storageio import StoreCorrupt, UnsupportedFormat
from storebytes.finding import Finding, finding_of

from . import layout
from .entries import cut_runs
from .entries_cy import EntryRun, take_entries
from .wal import View


def read_segment(view: memoryview, file: str, problems: list[Finding]) -> list[EntryRun]:
    """Return the good entries; raise `UnsupportedFormat` for another version.  A wrong magic alone hides no entry.

    A file that ends before or in the index has zeros there: the server had only created it.
    """
    layouts = _check_head(view, file, problems)
    found: list[EntryRun] = []
    if layouts is None:
        return found
    entry, max_count = layouts
    start = layout.SEGMENT_HEAD.size
    stop = start + min(max_count, (len(view) - start) // entry.size) * entry.size
    data_at = start + max_count * entry.size
    at = take_entries(view, start, stop, data_at, entry.size, found, file)
    while at < stop and any(bytes(view[at:stop])):
        index, term, offset, size, crc = entry.unpack_from(view, at)
        problem = _problem_of(view, offset, size, crc, data_at)
        if max(index, term) > layout.NUMBER_MAX:
            problem = f"index {index}, term {term}"
        if not any(bytes(view[at : at + entry.size])):
            problems.append(Finding(file, at, "bad_segment_entry", "an entry", "zeros before other entries"))
        elif problem:
            problems.append(Finding(file, at, "bad_segment_entry", f"entry {index} with its CRC", problem))
        else:  # it replaces those from its index on
            cut_runs(found, index)
            at -= entry.size
        at = take_entries(view, at + entry.size, stop, data_at, entry.size, found, file)
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
