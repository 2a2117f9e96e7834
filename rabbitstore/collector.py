"""The collector: merges two neighbouring files whose referenced bytes fit one, and deletes the right one.

Lock both; wait for their readers; write what is referenced of the left, then of the right, into `N.rdt`; sync it; rename
it over the left file; update the locations; delete the right file; unlock.

The server tidies the left file in place instead (through the same `.rdt`), which leaves a torn or zeroed tail when it is
killed in the middle.  With the rename the left file is at every moment all old or all new, and a crash leaves data
duplicated, never lost: before the rename a partial `.rdt` of messages that still lie where they were, after it a right
file whose messages the left one has too.  RabbitMQ's own recovery sorts out both.
"""

from __future__ import annotations

import logging

from storageio import DiskError, File, Mode

from .layout import RECORD_END_MARK
from .records import Record, scan_records
from .shared_store_cy import SharedStore
from .store_state_cy import FileSummary

_LOG = logging.getLogger("brokerstore")
_COPY_BYTES = 4 * 1024 * 1024


def choose(store: SharedStore) -> tuple[int, int | None] | None:
    """(left, right) of the next merge, (file, None) for one to be rewritten alone, None when nothing is to do."""
    settings, files = store.settings, store.files
    garbage = files.total_bytes - files.valid_bytes
    is_large = files.total_bytes > settings.collect_above_files * settings.file_size_limit
    if is_large and garbage > settings.garbage_fraction * files.total_bytes:
        pair = _first_pair(store)
        if pair is not None:
            return pair
    return _worst_file(store)


def _is_free(store: SharedStore, number: int) -> bool:
    summary = store.files[number]
    return number != store.current and not summary.locked and not summary.is_damaged and summary.valid_total_size > 0


def _first_pair(store: SharedStore) -> tuple[int, int | None] | None:
    for number in store.files:
        right = store.files[number].right
        if right is None or not _is_free(store, number) or not _is_free(store, right):
            continue
        if store.files[number].valid_total_size + store.files[right].valid_total_size <= store.settings.file_size_limit:
            return number, right
    return None


def _worst_file(store: SharedStore) -> tuple[int, int | None] | None:
    """The stricter rule: a closed file with more garbage than the setting, together with its neighbour if both fit one."""
    bound = store.settings.file_garbage_fraction
    if bound is None:
        return None
    for number in store.files:
        summary = store.files[number]
        if _is_free(store, number) and summary.file_size - summary.valid_total_size > bound * summary.file_size:
            return number, _fitting_neighbour(store, summary)
    return None


def _fitting_neighbour(store: SharedStore, summary: FileSummary) -> int | None:
    right = summary.right
    if right is None or not _is_free(store, right):
        return None
    fits = summary.valid_total_size + store.files[right].valid_total_size <= store.settings.file_size_limit
    return right if fits else None


def collect(store: SharedStore, merges_max: int = 1 << 30) -> int:
    """Merge until the settings are met; the number of merges."""
    for done in range(merges_max):
        if not collect_one(store):
            return done
    return merges_max


def collect_one(store: SharedStore) -> bool:
    """One merge, if there is one to do."""
    while numbers := _lock_next(store):
        try:
            live = {number: _live(store, number) for number in numbers}
            if _leave_damaged(store, live):
                _unlock(store, numbers)
                continue
            moved = _merge(store, live)
        except BaseException:
            _unlock(store, numbers)
            raise
        _install(store, numbers, moved)
        return True
    return False


def _lock_next(store: SharedStore) -> list[int]:
    """The files of the next merge, locked and without readers; none when nothing is to do."""
    with store.lock:
        pair = choose(store)
        numbers = [number for number in pair or () if number is not None]
        for number in numbers:
            store.files[number].locked = True
        while any(store.files[number].readers for number in numbers):
            store.changed.wait()
        return numbers


def _leave_damaged(store: SharedStore, live: dict[int, list[Record]]) -> bool:
    """Whether a file lacks some of its referenced records: damage hides them from the scan, and a merge would drop them.

    Such a file stays as it is until it is recovered.
    """
    found = False
    for number, records in live.items():
        summary = store.files[number]
        seen = sum(record.total_size for record in records)
        if seen != summary.valid_total_size:
            found = summary.is_damaged = True
            _LOG.warning("%s: %d of %d valid bytes found: not collected", store.path(number), seen, summary.valid_total_size)
    return found


def _unlock(store: SharedStore, numbers: list[int]) -> None:
    with store.lock:
        for number in numbers:
            if number in store.files:
                store.files[number].locked = False
        store.changed.notify_all()  # before what may fail: those who wait go on when the lock is free
        store.remove_deferred()


def _live(store: SharedStore, number: int) -> list[Record]:
    """The file's records that are referenced where they lie."""
    file = store.disk.open(store.path(number), Mode.READ)
    try:
        held = file.map(store.files[number].file_size, writable=False)
        try:
            records = scan_records(held.view, file.path).records
        finally:
            held.close()
    finally:
        file.close()
    found = []
    with store.lock:
        for record in records:
            location = store.locations.get(record.msg_id)
            if location is not None and location.ref_count and (location.file, location.offset) == (number, record.offset):
                found.append(record)
    return found


Moved = list[tuple[Record, int, int]]  # record, file it was in, new offset


def _merge(store: SharedStore, live: dict[int, list[Record]]) -> Moved:
    """Write the left file anew with all that is referenced; on return the disk has it under its name."""
    left = next(iter(live))
    moved: Moved = []
    fresh = store.disk.open(store.path(left, "rdt"), Mode.CREATE)
    try:
        fresh.truncate(0)
        end = 0
        for number, records in live.items():
            source = store.disk.open(store.path(number), Mode.READ)
            try:
                end = _copy(source, fresh, records, end, number, moved)
            finally:
                source.close()
        if store.is_synced:
            fresh.sync()
    finally:
        fresh.close()
    store.disk.rename(store.path(left, "rdt"), store.path(left))
    return moved


def _copy(source: File, target: File, live: list[Record], end: int, number: int, moved: Moved) -> int:
    """Copy runs of neighbouring records; the new end."""
    at = 0
    while at < len(live):
        run = [live[at]]
        size = live[at].total_size
        while at + len(run) < len(live) and size < _COPY_BYTES and live[at + len(run)].offset == live[at].offset + size:
            run.append(live[at + len(run)])
            size += run[-1].total_size
        data = source.read(live[at].offset, size)
        assert len(data) == size and data[-1] == RECORD_END_MARK, "a scanned record changed under the collector"
        target.write(end, data)
        moved.extend((record, number, end + record.offset - live[at].offset) for record in run)
        end += size
        at += len(run)
    return end


def _install(store: SharedStore, numbers: list[int], moved: Moved) -> None:
    """The left file is new on the disk: make memory agree, then delete the right one."""
    try:
        if store.is_synced:
            store.disk.sync_folder(store.folder)
    except DiskError as error:
        store.fail(error)
        raise
    finally:
        with store.lock:
            _update(store, numbers, moved)
            _unlock(store, numbers)
    for number in numbers[1:]:
        store.disk.delete(store.path(number))


def _update(store: SharedStore, numbers: list[int], moved: Moved) -> None:
    left = numbers[0]
    for number in numbers:
        store.drop_dead(number)
        store.files[number].dead.clear()
        store.forget_file(number)
    valid = 0
    for record, number, offset in moved:
        location = store.locations[record.msg_id]
        assert (location.file, location.offset) == (number, record.offset)
        location.file, location.offset = left, offset
        valid += record.total_size
    for number in numbers[1:]:
        store.files.take_out(number)
    store.files.resize(left, valid, valid)
