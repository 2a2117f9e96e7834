"""The collector (rabbit_msg_store_gc): merge two neighbouring files into one (docs/formats/rabbitmq-rdq.md#garbage-collection).

It locks both files, waits for their readers, writes the referenced records of the left, then of the right file into `N.rdt`,
syncs it, renames it over the left file, updates the locations, unlocks the files, and deletes the right file.

The server compacts the left file in place instead, which leaves a torn or zeroed tail when it is killed.  With the rename the
left file is either all old or all new, and a crash duplicates data but never loses it: before the rename it leaves a partial
`.rdt` of messages that are still in their files, after it a right file whose messages the left one has too.  RabbitMQ's own
recovery handles both.
"""

from __future__ import annotations

import logging
from contextlib import closing

from storageio import DiskError, File, Mode
from storageio.invariants import check_invariants

from ..files import mapped
from ..format.layout import RECORD_END_MARK
from ..format.rdq import StoreRecord, scan_records
from .msg_store_cy import MsgStore
from .msg_store_state_cy import FileSummary

_LOG = logging.getLogger(f"brokerstore.{__name__}")
_COPY_BYTES = 4 * 1024 * 1024


def choose(store: MsgStore) -> tuple[int, int | None] | None:
    """Return (left, right) of the next merge, (file, None) for a file to rewrite alone, or None."""
    settings, files = store.settings, store.files
    garbage = files.total_bytes - files.valid_bytes
    is_large = files.total_bytes > settings.collect_above_files * settings.file_size_limit
    if is_large and garbage > settings.garbage_fraction * files.total_bytes:
        pair = _first_pair(store)
        if pair is not None:
            return pair
    return _worst_file(store)


def _is_free(store: MsgStore, number: int) -> bool:
    summary = store.files[number]
    return number != store.current and not summary.locked and not summary.is_damaged and summary.valid_total_size > 0


def _first_pair(store: MsgStore) -> tuple[int, int | None] | None:
    for number in store.files:
        right = store.files[number].right
        if right is None or not _is_free(store, number) or not _is_free(store, right):
            continue
        if store.files[number].valid_total_size + store.files[right].valid_total_size <= store.settings.file_size_limit:
            return number, right
    return None


def _worst_file(store: MsgStore) -> tuple[int, int | None] | None:
    """Return the first file with more garbage than `file_garbage_fraction`, and its neighbour if both fit one file."""
    bound = store.settings.file_garbage_fraction
    if bound is None:
        return None
    for number in store.files:
        summary = store.files[number]
        if _is_free(store, number) and summary.file_size - summary.valid_total_size > bound * summary.file_size:
            return number, _fitting_neighbour(store, summary)
    return None


def _fitting_neighbour(store: MsgStore, summary: FileSummary) -> int | None:
    right = summary.right
    if right is None or not _is_free(store, right):
        return None
    fits = summary.valid_total_size + store.files[right].valid_total_size <= store.settings.file_size_limit
    return right if fits else None


def collect(store: MsgStore, merges_max: int = 1 << 30) -> int:
    """Merge until the settings are met; return the number of merges."""
    for done in range(merges_max):
        if not collect_one(store):
            return done
    return merges_max


def collect_one(store: MsgStore) -> bool:
    """Do one merge; return whether there was one to do."""
    while numbers := _lock_next(store):
        try:
            live = {number: _live(store, number) for number in numbers}
            if _mark_damaged(store, live):
                _unlock(store, numbers)
                continue
            moved = _merge(store, live)
        except BaseException:
            _unlock(store, numbers)
            raise
        _install(store, numbers, moved)
        return True
    return False


def _lock_next(store: MsgStore) -> list[int]:
    """Lock the files of the next merge and wait for their readers; return an empty list when nothing is to do."""
    with store.lock:
        pair = choose(store)
        numbers = [number for number in pair or () if number is not None]
        for number in numbers:
            store.files[number].locked = True
        while any(store.files[number].readers for number in numbers):
            store.changed.wait()
        return numbers


def _mark_damaged(store: MsgStore, live: dict[int, list[StoreRecord]]) -> bool:
    """Mark files of which the scan missed referenced records, which a merge would drop; return whether there are any.

    Such a file is not collected until `recover` has repaired it.
    """
    found = False
    for number, records in live.items():
        summary = store.files[number]
        seen = sum(record.total_size for record in records)
        if seen != summary.valid_total_size:
            found = summary.is_damaged = True
            _LOG.warning("%s: %d of %d valid bytes found: not collected", store.path(number), seen, summary.valid_total_size)
    return found


def _unlock(store: MsgStore, numbers: list[int]) -> None:
    with store.lock:
        for number in numbers:
            if number in store.files:
                store.files[number].locked = False
        store.changed.notify_all()  # before the removes, which may fail
        store.remove_deferred()


def _live(store: MsgStore, number: int) -> list[StoreRecord]:
    """Return the file's records whose locations are in it."""
    with mapped(store.disk, store.path(number)) as view:
        records = scan_records(view, store.path(number)).records
    found = []
    with store.lock:
        for record in records:
            location = store.locations.get(record.msg_id)
            if location is not None and location.ref_count and (location.file, location.offset) == (number, record.offset):
                found.append(record)
    return found


Moved = list[tuple[StoreRecord, int, int]]  # record, old file, new offset


def _merge(store: MsgStore, live: dict[int, list[StoreRecord]]) -> Moved:
    """Replace the left file by one with all referenced records; return what moved."""
    left = next(iter(live))
    moved: Moved = []
    with closing(store.disk.open(store.path(left, "rdt"), Mode.CREATE)) as fresh:
        fresh.truncate(0)
        end = 0
        for number, records in live.items():
            with closing(store.disk.open(store.path(number), Mode.READ)) as source:
                end = _copy(source, fresh, records, end, number, moved)
        if store.is_synced:
            fresh.sync()
    store.disk.rename(store.path(left, "rdt"), store.path(left))
    return moved


def _copy(source: File, target: File, live: list[StoreRecord], end: int, number: int, moved: Moved) -> int:
    """Copy runs of neighbouring records; return the target's new end."""
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


def _install(store: MsgStore, numbers: list[int], moved: Moved) -> None:
    """Update the locations after the rename, then delete the right file."""
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
    check_invariants(store.check)


def _update(store: MsgStore, numbers: list[int], moved: Moved) -> None:
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
        store.files.remove(number)
    store.files.resize(left, valid, valid)
