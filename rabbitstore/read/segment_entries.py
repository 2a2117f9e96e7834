"""The number of entries in a segment: what `.config` says, or what the files show when it is damaged or wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from storageio import Disk, DiskError, Kind, Mode
from storebytes.finding import Finding

from ..files import numbers_in, read_all
from ..format.layout import (
    QUEUES_FOLDER,
    SEGMENT_ENTRIES_MAX,
    SEGMENT_ENTRIES_NEW,
    SEGMENT_ENTRIES_OLD,
    SEGMENT_HEAD,
    SEGMENT_RELATIVE,
)
from ..format.names import numbered, read_segment_entries
from ..format.segment_cy import read_segment
from ..format.tables import RecoveryRow
from .index_v1 import IndexV1
from .queue_folder import QueueFolder

Terms = Mapping[str, RecoveryRow]  # of the last stop, by queue folder


def detect_segment_entries(disk: Disk, path: str, config: bytes | None, terms: Terms) -> tuple[int, bool]:
    """Return the entries in a segment, and whether `config`, the bytes of `.config`, has this number."""
    above = f"{path}/{QUEUES_FOLDER}"
    entries = read_segment_entries(config)
    if entries is None:
        return _guess(disk, path), False
    if _shows_larger_segments(disk, above, entries):
        return SEGMENT_ENTRIES_OLD, False
    highest = {name: max(numbers_in(disk, f"{above}/{name}", "idx"), default=0) for name in terms}
    if _is_beyond(highest, entries, terms) and not _is_beyond(highest, SEGMENT_ENTRIES_NEW, terms):
        return SEGMENT_ENTRIES_NEW, False
    return entries, True


def _is_beyond(highest: dict[str, int], entries: int, terms: Terms) -> bool:
    """Return whether a queue's highest segment begins after its next sequence number of the last stop."""
    known = ((number * entries, terms[name].next_seq_id) for name, number in highest.items())
    return any(next_seq_id is not None and first > next_seq_id for first, next_seq_id in known)


def _shows_larger_segments(disk: Disk, above: str, entries: int) -> bool:
    """Return whether a file proves that segments are larger than `entries`.

    Such a file is valid as a segment of the largest size and has several whole entries with higher relative numbers.  Only
    files whose first or last entry is that high are read: RabbitMQ writes the highest number first, brokerstore last.
    """
    if entries >= SEGMENT_ENTRIES_MAX or disk.stat(above) is None:
        return False
    for folder in disk.list(above):
        with contextlib.suppress(DiskError):  # somebody deletes the queue meanwhile; its reader reports other errors
            names = disk.list(f"{above}/{folder.name}") if folder.kind is Kind.FOLDER else []
            files = [f"{above}/{folder.name}/{entry.name}" for entry in names if numbered(entry.name, "idx") is not None]
            if any(_ends_beyond(disk, file, entries) and _is_larger_segment(read_all(disk, file), entries) for file in files):
                return True
    return False


def _ends_beyond(disk: Disk, path: str, entries: int) -> bool:
    with contextlib.closing(disk.open(path, Mode.READ)) as file:
        heads = [file.read(at, SEGMENT_HEAD.size) for at in (0, max(0, file.size() - SEGMENT_HEAD.size))]
    numbers = [SEGMENT_HEAD.unpack(head)[0] for head in heads if len(head) == SEGMENT_HEAD.size]
    return any(number & SEGMENT_RELATIVE >= entries for number in numbers)


def _is_larger_segment(data: bytes, entries: int) -> bool:
    problems: list[Finding] = []
    found, end = read_segment(data, 0, SEGMENT_ENTRIES_MAX, "", problems)
    beyond = sum(relative >= entries and entry.delivered for relative, entry in found.items())
    return end == len(data) and not problems and beyond > 1


def _guess(disk: Disk, path: str) -> int:
    """Return the old number when an entry's relative number is too high for the new one."""
    above = f"{path}/{QUEUES_FOLDER}"
    for entry in disk.list(above) if disk.stat(above) else []:
        if entry.kind is not Kind.FOLDER:
            continue
        folder = QueueFolder(disk, path, entry.name, SEGMENT_ENTRIES_OLD, [])
        for number in folder.segment_numbers() if folder.format.segment_entries is None else []:
            if any(relative >= SEGMENT_ENTRIES_NEW for relative in IndexV1(folder).segment(number, [])):
                return SEGMENT_ENTRIES_OLD
    return SEGMENT_ENTRIES_NEW
