"""Find the end of the log when a store is opened for writing.

After a clean stop `brokerstore/clean.json` has the end, or a scan of the last file finds it.  After an unclean stop the scan
begins at the newest file that the checkpoint covers.  Everything behind the last whole record is a crash tail
(`docs/explanation/torn-tail-and-damage.md`): it is copied beside the store, zeroed in the log, and logged.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from commitlog import CHECK_ALL, CommitLog, MappedFile, Stop
from commitlog.checks import BLANK, EMPTY
from commitlog.cursor import is_file_end
from commitlog.layout import BLANK_SIZE
from storageio import Disk, DiskError, File, StoreCorrupt, free_path, keep

from ..checkpoint import TIMESTAMP_MAX_MS, Checkpoint, is_time, start_file
from ..clean_stop import CleanStop, clean_stop_ms
from ..paths import OWN_FOLDER

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

LOG = logging.getLogger(f"brokerstore.{__name__}")
CUT_PIECE = 1 << 20
READ_MAX = 32 << 20  # bytes that are read sooner than the system drops their pages, which other processes may have mapped
WALKERS = 2  # with more, memory is the bottleneck
WALK_ALONE_MAX = 64 << 20  # bytes that one thread walks before two are started


class LogEnd(NamedTuple):
    """The position at which a writer appends next."""

    offset: int
    store_timestamp_ms: int  # of the last record, 0 if there is none
    dispatch_from: int  # queues and index may lack the records from here on
    last_offset: int = -1  # where the last record begins, -1 if there is none
    has_tail: bool = False  # a crash tail follows, to be cut


def still_holds(log: CommitLog, clean_stop: CleanStop) -> bool:
    """Return whether the log ends where `clean.json` says: the last record is there, and zeros or a new file follow."""
    if clean_stop.last_offset < 0:
        return clean_stop.end_offset == max(log.min_offset, 0) and not any(
            log.check(file.start_offset) > 0 for file in log.queue.files
        )
    size = log.check(clean_stop.last_offset, CHECK_ALL)
    if size <= 0:
        return False
    end = clean_stop.last_offset + size
    if end == clean_stop.end_offset:
        file = log.queue.find(end)
        return file is None or log.check(end) == EMPTY or file.end_offset - end < BLANK_SIZE
    return log.queue.end_offset == clean_stop.end_offset and log.check(end) == BLANK


def end_after_clean_stop(log: CommitLog, clean_stop: CleanStop | None) -> LogEnd:
    """Return the end after a clean stop.  Raises `StoreCorrupt` if the log does not end as a clean stop leaves it."""
    if clean_stop is not None and still_holds(log, clean_stop):
        return LogEnd(
            clean_stop.end_offset, _store_time(log, clean_stop.last_offset), clean_stop.end_offset, clean_stop.last_offset
        )
    stop = log.find_end()
    return LogEnd(stop.offset, _store_time(log, stop.last_offset), stop.offset, stop.last_offset)


def torn_end(log: CommitLog) -> LogEnd | None:
    """Return the end of the records before a torn one, None if newer records follow it."""
    first = start_file(log, TIMESTAMP_MAX_MS)
    if first is None:
        return None
    stop = _walk(log, first)
    end = LogEnd(stop.offset, _store_time(log, stop.last_offset), first.start_offset, stop.last_offset, has_tail=True)
    try:
        refuse_hole(log, end)
    except StoreCorrupt:
        return None
    return end


def refuse_hole(log: CommitLog, end: LogEnd) -> None:
    """Raise `StoreCorrupt` if records follow the end that a scan found after a clean stop, and queues point at them.

    All of them were on the disk.  If no queue points there, a broker may have cut them without erasing them.
    """
    _refuse_damage(log, Stop(end.offset, "empty", 0, 0), end.store_timestamp_ms, TIMESTAMP_MAX_MS, 0)


def _store_time(log: CommitLog, offset: int) -> int:
    """Return the store time of the record at an offset; 0 for no record or an impossible time."""
    stored_ms = log.readers.store_time(offset)
    return stored_ms if is_time(stored_ms) else 0


def end_after_crash(log: CommitLog, checkpoint: Checkpoint, clean_stop: CleanStop | None) -> LogEnd:
    """Find the end after an unclean stop.  Raises `StoreCorrupt` for damage to safely stored data.

    `note` is that of a clean stop, if no process has opened the store for writing since.
    """
    first = start_file(log, checkpoint.min_timestamp_ms)
    if first is None:
        return LogEnd(0, 0, 0)
    stop = _walk(log, first)
    last_ms = _store_time(log, stop.last_offset)
    has_tail = any(True for _ in used_behind(log, stop.offset))
    if has_tail:
        log.refuse_unknown_version(stop.offset)
        stopped_at = clean_stop.end_offset if clean_stop is not None and clean_stop_ms(clean_stop, log.message_at) else 0
        _refuse_damage(log, stop, last_ms, max(0, checkpoint.values.log_timestamp_ms), stopped_at)
    return LogEnd(stop.offset, last_ms, first.start_offset, stop.last_offset, has_tail)


def _walk(log: CommitLog, first: MappedFile) -> Stop:
    """Walk whole records from the start of a file to the first position without one, across files."""
    records = protected = 0
    last = -1
    stop = Stop(first.start_offset, "empty", 0, 0)
    for file, stop in _stops(log, [file for file in log.queue.files if file.start_offset >= first.start_offset]):
        records, protected = records + stop.records, protected + stop.protected
        last = max(last, stop.last_offset)
        at, left = stop.offset - file.start_offset, file.end_offset - stop.offset
        if stop.why != "end" and not is_file_end(stop.why, left, log.queue.view(file)[at:]):
            break
        stop = stop._replace(offset=file.end_offset)
    return Stop(stop.offset, stop.why, records, protected, last)


def _stops(log: CommitLog, files: list[MappedFile]) -> Iterator[tuple[MappedFile, Stop]]:
    """Yield each file with the stop of its walk, in order.  A walk keeps a core busy, so two threads walk large logs."""
    used_sizes = [_used_size(file) for file in files[-2:]]
    if sum(used_sizes) < WALK_ALONE_MAX:
        yield from ((file, log.walk_file(file)) for file in files)
        return
    from concurrent.futures import ThreadPoolExecutor

    walkers = ThreadPoolExecutor(WALKERS, thread_name_prefix="brokerstore-walk")
    try:
        if len(files) == 1:
            yield files[0], _walk_halves(log, files[0], used_sizes[0] // 2, walkers)
        else:
            yield from zip(files, walkers.map(log.walk_file, files), strict=True)
    finally:  # also if the first of a thousand files ends the walk
        walkers.shutdown(cancel_futures=True)


def _used_size(file: MappedFile) -> int:
    """Return the size of the part of a file that was ever written, as the file system reports it."""
    return max((stop for _, stop in file.pieces_of_data(0, CUT_PIECE)), default=0)


def _walk_halves(log: CommitLog, file: MappedFile, position: int, walkers: ThreadPoolExecutor) -> Stop:
    """Walk both halves of a file in parallel.  The second counts only if the first ends exactly where it begins."""
    middle = log.find_record(file.start_offset + position)
    if not file.start_offset < middle < file.end_offset:
        return log.walk_file(file)
    second = walkers.submit(log.walk_file, file, middle)
    first = log.walk_file(file, stop=middle)
    if first.offset == middle and first.why == "end":
        return _joined(first, second.result())
    return _joined(first, log.walk_file(file, first.offset))  # from its end, or from the record across the middle


def _joined(first: Stop, second: Stop) -> Stop:
    """Join two walks, the second of which continues the first."""
    return second._replace(
        records=first.records + second.records,
        protected=first.protected + second.protected,
        last_offset=max(first.last_offset, second.last_offset),
    )


def _refuse_damage(log: CommitLog, stop: Stop, last_ms: int, safe_ms: int, stopped_at: int) -> None:
    """Raise `StoreCorrupt` if a whole record behind the bad position was certainly on the disk: damage, not a torn tail.

    That holds for records stored at or before `safe_ms`, and for those before `stopped_at`, where a clean stop ended the log,
    because the next record may have been stored in the same millisecond.
    """
    at = stop.offset
    while (at := log.find_record(at)) >= 0:
        message = log.message_at(at)
        is_safe = message is not None and (message.store_timestamp_ms <= safe_ms or at < stopped_at)
        if message is not None and is_safe and last_ms <= message.store_timestamp_ms:
            file = log.queue.find(stop.offset) or log.queue.files[0]
            raise StoreCorrupt(
                f"{stop.why}, with safely stored records behind it; see `brokerstore recover`",
                file=file.path,
                offset=stop.offset - file.start_offset,
                expected="a record",
                found=f"a record stored at {message.store_timestamp_ms} at physical offset {at}",
            )
        at += message.size if message else 1


def cut_tail(log: CommitLog, offset: int, disk: Disk, root: str, *, keep_backup: bool = True) -> int:
    """Copy what lies behind `offset` beside the store and zero it durably; return how many bytes were not zero.

    Zeroing comes before any new write, so that stale records never follow a new one.
    """
    kept = 0
    for file, start, end in used_behind(log, offset):
        kept += end - start
        if keep_backup:
            keep_cut(disk, root, file.start_offset + start, file.view[start:end])
        for at in range(start, end, CUT_PIECE):
            file.write(at, bytes(min(CUT_PIECE, end - at)))
        file.set_positions(file.size_bytes)
        file.flushed = 0
        file.flush()
    if kept:
        LOG.warning("cut a crash tail of %d bytes at physical offset %d; kept in %s", kept, offset, OWN_FOLDER)
    return kept


def put_aside(file: MappedFile, disk: Disk, root: str) -> None:
    """Move a whole file of the log beside the store: a copy would need as much space, which a full disk does not have.

    A file on another file system is copied and deleted; one without data is only deleted.
    """
    if end := _last_used(file, 0):
        kept = free_path(disk, _cut_stem(root, file.start_offset))
        disk.make_folder(os.path.dirname(kept))
        try:
            disk.rename(file.path, kept)
            disk.sync_folder(os.path.dirname(kept))
            file.close()
            return
        except DiskError as error:
            if error.errno != errno.EXDEV:
                raise
        keep_cut(disk, root, file.start_offset, file.view[:end])
    file.delete()


def used_behind(log: CommitLog, offset: int) -> Iterator[tuple[MappedFile, int, int]]:
    """Yield each file with data behind a physical offset, with the start and end position of that data."""
    for file in log.queue.files:
        start = max(0, offset - file.start_offset)
        if sum(stop - at for at, stop in file.pieces_of_data(start, CUT_PIECE)) > READ_MAX:
            file.forget_zeros(start)
        end = _last_used(file, start) if start < file.size_bytes else start
        if end > start:
            yield file, start, end


_ZEROS = bytes(CUT_PIECE)


def _last_used(file: MappedFile, start: int) -> int:
    """Return the position behind the last byte that is not zero, or `start`.  Holes of the file are not read."""
    for at, stop in reversed(file.pieces_of_data(start, CUT_PIECE)):
        data = bytes(file.view[at:stop])
        if data != _ZEROS[: len(data)]:  # ten times as fast as stripping
            return at + len(data.rstrip(b"\0"))
    return start


def keep_cut(disk: Disk, root: str, offset: int, data: memoryview) -> None:
    """Keep cut bytes in a file named after the physical offset of the first.  An earlier file is never overwritten."""
    keep_written(disk, root, offset, lambda file: file.write(0, data))


def keep_written(disk: Disk, root: str, offset: int, write: Callable[[File], object]) -> None:
    """Keep cut bytes that `write` writes into the file."""
    keep(disk, free_path(disk, _cut_stem(root, offset)), write)


def _cut_stem(root: str, offset: int) -> str:
    return os.path.join(root, OWN_FOLDER, f"cut-{offset:020d}-")
