"""How a message store is opened: unfinished compactions salvaged, files scanned, locations rebuilt.

Reference counts are not on the disk: the caller adds them up from the queues' indexes.
"""

from __future__ import annotations

from storageio import Disk, File, Mode

from .paths import numbers_in, read_all
from .records import Record, scan_records
from .settings import StoreSettings
from .shared_store_cy import SharedStore
from .store_state_cy import FileSummary, Location


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
    numbers = numbers_in(disk, folder, "rdq")
    for number in numbers:
        _load_file(store, number, counts, is_last=number == numbers[-1])
    if numbers:
        store.resume_file(numbers[-1], store.files[numbers[-1]].file_size)
    else:
        store.start_file(0)
    return store, counts.keys() - store.locations.keys()


def _load_file(store: SharedStore, number: int, counts: dict[bytes, int], *, is_last: bool) -> None:
    file = store.disk.open(store.path(number), Mode.WRITE)
    try:
        size = file.size()
        chosen = _referenced(file, size, counts, store.locations)
        if is_last:
            size = _cut_behind(file, size, chosen)
    finally:
        file.close()
    if not chosen and not is_last:
        store.disk.delete(store.path(number))
        return
    for record in chosen.values():
        store.locations[record.msg_id] = Location(counts[record.msg_id], number, record.offset, record.total_size)
    store.files.add(number, FileSummary(size, sum(record.total_size for record in chosen.values())))


def _referenced(file: File, size: int, counts: dict[bytes, int], known: dict[bytes, Location]) -> dict[bytes, Record]:
    """The file's records that somebody refers to and no earlier file has; of copies the one at the highest offset."""
    if size == 0:
        return {}
    held = file.map(size, writable=False)
    try:
        records = scan_records(held.view, file.path).records
    finally:
        held.close()
    return {record.msg_id: record for record in records if record.msg_id in counts and record.msg_id not in known}


def _cut_behind(file: File, size: int, chosen: dict[bytes, Record]) -> int:
    end = max((record.offset + record.total_size for record in chosen.values()), default=0)
    if end < size:
        file.truncate(end)
        file.sync()
    return end


def salvage(disk: Disk, folder: str, number: int) -> None:
    """Join `N.rdt`, found at start, to `N.rdq`, then delete it.

    The server appends it whole; behind a torn or zeroed tail a scan would never reach it, so the file is cut there first:
    what is cut is a copy of what `N.rdt` holds, which was complete on the disk before the file was touched.
    """
    target, source = f"{folder}/{number}.rdq", f"{folder}/{number}.rdt"
    data = read_all(disk, source)
    good = data[: scan_records(data, source).valid_end]
    file = disk.open(target, Mode.CREATE)
    try:
        size = file.size()
        end = scan_records(file.read(0, size), target).valid_end
        if good:
            if end < size:
                file.truncate(end)
            file.write(end, good)
            file.sync()
    finally:
        file.close()
    disk.sync_folder(folder)
    disk.delete(source)
