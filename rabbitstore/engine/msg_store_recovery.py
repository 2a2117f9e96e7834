"""Open a message store: from the tables of a clean stop, or by a scan of its files.

A scan does not find reference counts, since they are on disk only after a clean stop: the caller counts index entries.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from storageio import Disk, Mode, StoreCorrupt
from storageio.invariants import check_invariants

from ..files import mapped, numbers_in, read_all
from ..format.rdq import find_any_record, first_unframed, frame_records
from ..repair.compaction import recover_crashed_compaction
from ..settings import StoreSettings
from .clean_stop import RabbitCleanStop
from .msg_store_cy import MsgStore
from .msg_store_state_cy import FileSummary, locate_records


def open_store(
    disk: Disk, folder: str, settings: StoreSettings, counts: dict[bytes, int], *, is_synced: bool = True
) -> tuple[MsgStore, set[bytes]]:
    """Scan the files; return a store with `counts` references to each id, and the ids that no file has.

    The current file is cut after its last referenced record; any other file without one is deleted.
    """
    disk.make_folder(folder)
    store = MsgStore(disk, folder, settings, is_synced=is_synced)
    for number in numbers_in(disk, folder, "rdt"):
        recover_crashed_compaction(disk, folder, number)
    if is_synced:  # a process may have died after it created a file and before it synced the name
        disk.sync_folder(folder)
    numbers = numbers_in(disk, folder, "rdq")
    scans = {number: _scan(store, number) for number in numbers}
    _refuse_damage(store, scans, counts)
    for number in numbers:
        _load_file(store, number, scans[number], counts, is_last=number == numbers[-1])
    _resume_last(store)
    check_invariants(store.check)
    return store, counts.keys() - store.locations.keys()


def resume_store(disk: Disk, folder: str, settings: StoreSettings, clean: RabbitCleanStop) -> MsgStore:
    """Open the store as the last stop left it, without reading a message file."""
    store = MsgStore(disk, folder, settings, is_synced=True)
    for row in clean.summary:
        store.files.add(row.file, FileSummary(row.file_size, row.valid_total_size))
    store.locations = clean.locations
    _resume_last(store)
    for number in list(store.files):
        store.delete_if_empty(number)
    check_invariants(store.check)
    return store


def _resume_last(store: MsgStore) -> None:
    last = max(store.files, default=None)
    if last is None:
        store.start_file(0)
    else:
        store.resume_file(last, store.files[last].file_size)


class _Scan(NamedTuple):
    """A file's size, its whole records as (id, offset, total size), and where the first bytes outside of them begin."""

    size_bytes: int
    rows: list[tuple[bytes, int, int]]
    unframed_from: int


def _scan(store: MsgStore, number: int) -> _Scan:
    with mapped(store.disk, store.path(number)) as view:
        rows, unmarked, _valid_end, stopped_at = frame_records(view)
        return _Scan(len(view), rows, first_unframed(rows, unmarked, stopped_at))


def _refuse_damage(store: MsgStore, scans: dict[int, _Scan], counts: dict[bytes, int]) -> None:
    """Raise `StoreCorrupt` when a referenced message follows damage: opening would lose it.

    A torn tail has no whole record after it and is not damage.
    """
    torn = [(number, scan.unframed_from) for number, scan in scans.items() if scan.unframed_from < scan.size_bytes]
    if not torn:
        return
    missing = counts.keys() - {row[0] for scan in scans.values() for row in scan.rows}
    for number, offset in torn:
        file = store.path(number)
        msg_id = find_any_record(read_all(store.disk, file)[offset:], missing)
        if msg_id is not None:
            found = f"damage, and message {msg_id.hex()} after it: run recover"
            raise StoreCorrupt("damage before whole records", file=file, offset=offset, expected="a record", found=found)


def _load_file(store: MsgStore, number: int, scan: _Scan, counts: dict[bytes, int], *, is_last: bool) -> None:
    valid, end = locate_records(scan.rows, counts, store.locations, number)
    size = scan.size_bytes
    if is_last:
        size = _cut(store, number, size, end)
    elif not valid:
        store.disk.delete(store.path(number))
        return
    store.files.add(number, FileSummary(size, valid))


def _cut(store: MsgStore, number: int, size: int, end: int) -> int:
    if end < size:
        with closing(store.disk.open(store.path(number), Mode.WRITE)) as file:
            file.truncate(end)
            file.sync()  # not needed for safety: the sync of the next message in this file makes the cut durable too
    return end
