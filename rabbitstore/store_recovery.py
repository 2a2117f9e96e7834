"""How a message store is opened.

After a clean stop its own tables say where everything lies (`resume_store`).  Otherwise unfinished compactions are salvaged,
files scanned, locations rebuilt (`open_store`); reference counts are then not on the disk: the caller adds them up from the
queues' indexes.
"""

from __future__ import annotations

from typing import NamedTuple

from storageio import Disk, Mode, StoreCorrupt

from .clean_stop import CleanStop
from .content import is_message
from .paths import numbers_in, read_all
from .records import TERM_AT, Record, find_any_record, first_doubt, scan_records
from .scan_cy import frame
from .settings import StoreSettings
from .shared_store_cy import SharedStore
from .store_state_cy import FileSummary, place_records


def open_store(
    disk: Disk, folder: str, settings: StoreSettings, counts: dict[bytes, int], *, is_synced: bool = True
) -> tuple[SharedStore, set[bytes]]:
    """The store with `counts` references to each id, and the ids that no file holds.

    The current file is cut behind its last referenced record; a file without any is deleted.
    """
    disk.make_folder(folder)
    store = SharedStore(disk, folder, settings, is_synced=is_synced)
    for number in numbers_in(disk, folder, "rdt"):
        salvage(disk, folder, number)
    if is_synced:  # a process may have died between a file's making and the sync of its name
        disk.sync_folder(folder)
    numbers = numbers_in(disk, folder, "rdq")
    scans = {number: _scan(store, number) for number in numbers}
    _refuse_damage(store, scans, counts)
    for number in numbers:
        _load_file(store, number, scans[number], counts, is_last=number == numbers[-1])
    if numbers:
        store.resume_file(numbers[-1], store.files[numbers[-1]].file_size)
    else:
        store.start_file(0)
    return store, counts.keys() - store.locations.keys()


def resume_store(disk: Disk, folder: str, settings: StoreSettings, clean: CleanStop) -> SharedStore:
    """The store as the last stop left it; no message file is read."""
    store = SharedStore(disk, folder, settings, is_synced=True)
    for row in clean.summary:
        store.files.add(row.file, FileSummary(row.file_size, row.valid_total_size))
    store.locations = clean.locations
    if clean.summary:
        store.resume_file(clean.summary[-1].file, clean.summary[-1].file_size)
    else:
        store.start_file(0)
    for number in list(store.files):
        store.delete_if_empty(number)
    return store


class Framed(NamedTuple):
    """A file's size, its whole records as (id, offset, total size), and where the first bytes begin that none of them has."""

    size_bytes: int
    rows: list[tuple[bytes, int, int]]
    doubtful_from: int


def _scan(store: SharedStore, number: int) -> Framed:
    file = store.disk.open(store.path(number), Mode.READ)
    rows: list[tuple[bytes, int, int]] = []
    try:
        size = file.size()
        if size == 0:
            return Framed(0, rows, 0)
        held = file.map(size, writable=False)
        try:
            unmarked: list[int] = []
            stopped_at = frame(held.view, rows, unmarked)[1]
            return Framed(size, rows, first_doubt(rows, unmarked, stopped_at))
        finally:
            held.close()
    finally:
        file.close()


def _refuse_damage(store: SharedStore, scans: dict[int, Framed], counts: dict[bytes, int]) -> None:
    """`StoreCorrupt` when a referenced message lies behind bytes that no scan passes: opening would lose it.

    A torn tail has nothing whole behind it and is no damage.
    """
    torn = [(number, scan.doubtful_from) for number, scan in scans.items() if scan.doubtful_from < scan.size_bytes]
    if not torn:
        return
    missing = counts.keys() - {row[0] for scan in scans.values() for row in scan.rows}
    for number, offset in torn:
        rest = read_all(store.disk, store.path(number))[offset:]
        behind = find_any_record(rest, missing)
        if behind is not None:
            found = f"none, but message {behind.hex()} behind it: run recover"
            file = store.path(number)
            raise StoreCorrupt("damage before good records", file=file, offset=offset, expected="a record", found=found)


def _load_file(store: SharedStore, number: int, scan: Framed, counts: dict[bytes, int], *, is_last: bool) -> None:
    valid, end = place_records(scan.rows, counts, store.locations, number)
    size = scan.size_bytes
    if is_last:
        size = _cut_behind(store, number, size, end)
    elif not valid:
        store.disk.delete(store.path(number))
        return
    store.files.add(number, FileSummary(size, valid))


def _cut_behind(store: SharedStore, number: int, size: int, end: int) -> int:
    if end < size:
        file = store.disk.open(store.path(number), Mode.WRITE)
        try:
            file.truncate(end)
            file.sync()  # not needed for safety: the sync that confirms the next message in this file makes the cut durable too
        finally:
            file.close()
    return end


def salvage(disk: Disk, folder: str, number: int) -> None:
    """Join `N.rdt`, found at start, to `N.rdq`, then delete it.

    The server appends it whole; behind a torn or zeroed tail a scan would never reach it, so the file is cut there first:
    what is cut is a copy of what `N.rdt` holds, which was complete on the disk before the file was touched.  Until then the
    file has better copies, and a later copy counts: of each message only a copy that is better than the file's is joined.
    """
    target, source = f"{folder}/{number}.rdq", f"{folder}/{number}.rdt"
    file = disk.open(target, Mode.CREATE)
    try:
        size = file.size()
        known = read_all(disk, target)
        end = scan_records(known, target).valid_end
        good = _better_records(read_all(disk, source), known)
        if end < size and good:
            file.truncate(end)
        file.write(0, known[:end] + good)  # all of it: an earlier salvage may have died before its sync
        file.sync()
    finally:
        file.close()
    disk.sync_folder(folder)
    disk.delete(source)


def _better_records(data: bytes, known: bytes) -> bytes:
    """The records in `data` but for those of which `known` has the same or a better copy."""
    there = {record.msg_id: _goodness(known, record) for record in scan_records(known, "").records}
    records = [record for record in scan_records(data, "").records if there.get(record.msg_id, _NONE) < _goodness(data, record)]
    return b"".join(data[record.offset : record.offset + record.total_size] for record in records)


_NONE = (False, -1 << 62)


def _goodness(data: bytes, record: Record) -> tuple[bool, int]:
    """Whole messages before others; of two copies a crash left more zeros in the torn one."""
    term = data[record.offset + TERM_AT : record.offset + record.total_size - 1]
    return is_message(term, record.msg_id), -term.count(0)
