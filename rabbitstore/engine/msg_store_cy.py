"""A message store (rabbit_msg_store): messages by id, reference-counted, in numbered append-only files.

Clients put messages into the cache of the current file and into a mailbox.  Any call of `process`, `sync` or a method that
returns an answer handles the mailbox: it writes through a buffer.  Nothing here starts a thread:
the housekeeper calls `sync` and the collector.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import Disk, DiskError, File, Map, Mode, StoreClosed, StoreCorrupt, StoreReadOnly

from ..errors import StoreBroken
from ..format.layout import MSG_ID_SIZE, RECORD_END_MARK, RECORD_HEAD, RECORD_MIN, RECORD_OVERHEAD, RECORD_SIZE_BYTES
from ..format.rdq import RECORD_END, TERM_AT, check_record
from ..settings import StoreSettings
from .credit import Credit
from .msg_store_state_cy import Files, FileSummary, InFlight, RecordLocation

if not cython.compiled:
    from storebytes._bytes_cy import (
        I64,
        Bool,
        Size,
        Source,
        get_i64,
        is_same,
        source_of,
        source_of_bytes,
        take_bytes,
    )

_pack_head = RECORD_HEAD.pack
_Mail = tuple[Any, Any, Any]  # client, writes or None, removes or None


class StoreClient:
    """A client of a store, normally a queue."""

    __slots__ = ("credit", "in_flight", "is_dying", "store")

    def __init__(self, store: MsgStore) -> None:
        """Create it with `MsgStore.client`."""
        self.store = store
        self.in_flight = InFlight()
        self.credit = Credit(*store.settings.client_credit)
        self.is_dying = False

    def write(self, msg_id: bytes, term: bytes) -> None:
        """Store the message, or count one more reference to it."""
        self.write_many(((msg_id, term),))

    def write_many(self, messages: Iterable[tuple[bytes, bytes]]) -> None:
        """Call `write` for (id, term) pairs under one lock."""
        store = self.store
        batch: list[tuple[bytes, bytes]] = list(messages)
        counts: dict[bytes, int] = self.in_flight.counts
        cache: dict[bytes, bytes]
        sent: Size = 0
        with store.lock:
            store._check_usable()
            if self.is_dying:
                raise StoreClosed(f"{store.folder}: the client has terminated")
            cache = store._cache
            try:
                for msg_id, term in batch:
                    if msg_id in counts:
                        self.in_flight.started(msg_id, 1)
                    else:
                        counts[msg_id] = 1
                    cache[msg_id] = term
                    sent += 1
            finally:
                self.credit.sent(sent)
                store._mailbox.append((self, batch[:sent], None))

    def read(self, msg_id: bytes) -> bytes | None:
        """Return the term, or None for an unknown id."""
        return self.store.read(msg_id)

    def remove(self, msg_ids: Iterable[bytes]) -> None:
        """Release one reference to each message."""
        store = self.store
        batch: list[bytes] = list(msg_ids)
        counts: dict[bytes, int] = self.in_flight.counts
        sent: Size = 0
        with store.lock:
            store._check_usable()
            try:
                for msg_id in batch:
                    if msg_id in counts:
                        self.in_flight.started(msg_id, -1)
                    else:
                        counts[msg_id] = -1
                    sent += 1
            finally:
                store._mailbox.append((self, None, batch[:sent]))

    def terminate(self) -> None:
        """End the client: the store ignores its writes in the mailbox, but not its removes, which are of stored messages."""
        with self.store.lock:
            self.is_dying = True


class MsgStore:
    """The store of one folder.  Open it with `msg_store_recovery`."""

    __slots__ = (
        "_buffer", "_buffer_max", "_buffered_bytes", "_cache", "_end", "_failed", "_is_dirty", "_mailbox", "_maps",
        "_new_bytes", "_open", "_size_limit", "_sync_lock", "_views", "changed", "current", "deferred",
        "disk", "files", "folder", "is_synced", "locations", "lock", "read_count", "settings",
    )  # fmt: skip

    def __init__(self, disk: Disk, folder: str, settings: StoreSettings, *, is_synced: bool) -> None:
        """`is_synced` is false for the transient store, which confirms writes without a sync."""
        self.disk = disk
        self.folder = folder
        self.settings = settings
        self.is_synced = is_synced
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)  # a file was unlocked, or its last reader left
        self._sync_lock = threading.Lock()
        self.locations: dict[bytes, RecordLocation] = {}
        self.files = Files()
        self.current = -1
        self.deferred: list[tuple[bytes, int]] = []  # removes that wait for a locked file
        self.read_count = 0  # reads that went to a file
        self._mailbox: deque[_Mail] = deque()
        self._cache: dict[bytes, bytes] = {}  # the messages of the current file and the mailbox
        self._views: dict[int, memoryview] = {}  # of closed files
        self._maps: dict[int, Map] = {}
        self._new_bytes = 0  # appended, not yet in the summary
        self._buffer: list[bytes] = []  # parts of records, in order
        self._buffered_bytes = 0
        self._end = 0  # of the current file, buffer included
        self._open: dict[int, File] = {}
        self._is_dirty = False
        self._failed: Exception | None = None
        self._buffer_max: int = settings.write_buffer_bytes
        self._size_limit: int = settings.file_size_limit

    # --- clients

    def client(self) -> StoreClient:
        """Return a new client of this store."""
        return StoreClient(self)

    def contains(self, msg_id: bytes) -> bool:
        """Return whether the store has the message after handling the mailbox."""
        with self.lock:
            self.process()
            location = self.locations.get(msg_id)
            return location is not None and location.ref_count > 0

    def read(self, msg_id: bytes) -> bytes | None:
        """Return the term from the cache, from a closed file, or from the current file; None for an unknown id.

        The first two need no lock: the collector replaces files instead of changing them, and the map of an old file stays
        valid.  If the location changed meanwhile, the record does not match and is looked up again under the lock.
        """
        term = self._cache.get(msg_id)
        if term is not None:
            return term
        location = self.locations.get(msg_id)
        if location is not None and location.ref_count > 0:
            view = self._views.get(location.file)
            if view is not None:
                start: Size = location.offset
                total: Size = location.total_size
                if _is_record(view, msg_id, start, total):
                    return take_bytes(source_of(view), start + TERM_AT, total - TERM_AT - 1)
        return self._read_slowly(msg_id)

    def _read_slowly(self, msg_id: bytes) -> bytes | None:
        """Read from a file under its reader count; wait for the collector first."""
        with self.lock:
            found = self._acquire(msg_id)
        if found is None:
            return None
        (number, offset, total_size), file = found
        try:
            self.read_count += 1
            data = file.read(offset, total_size)  # the collector waits for readers
        finally:
            self._release(number)
        if not check_record(data, msg_id, total_size):
            raise _corrupt(file.path, offset, msg_id, data)
        return data[TERM_AT : len(data) - 1]

    def _acquire(self, msg_id: bytes) -> tuple[tuple[int, int, int], File] | None:
        """Return location and file and count a reader; wait while the collector has locked the file."""
        while True:
            location = self.locations.get(msg_id)
            if location is None or location.ref_count == 0:
                if not self._mailbox:
                    return None
                self.process()
                continue
            summary = self.files[location.file]
            if not summary.locked:
                break
            self.changed.wait()
        if location.file == self.current:
            self.flush()
        else:
            self._map_file(location.file, summary)
        summary.readers += 1
        return (location.file, location.offset, location.total_size), self.open_file(location.file)

    def _map_file(self, number: int, summary: FileSummary) -> None:
        """Map a closed file for `read`; the number of maps is limited."""
        if number not in self._views and summary.file_size:
            if len(self._views) >= self.settings.open_files_max:
                self._drop_view(next(iter(self._views)))
            held = self.open_file(number).map(summary.file_size, writable=False)
            self._views[number] = held.view
            self._maps[number] = held

    def _drop_view(self, number: int) -> None:
        if self._views.pop(number, None) is not None:
            self._maps.pop(number).close()

    def _release(self, number: int) -> None:
        with self.lock:
            summary = self.files[number]
            summary.readers -= 1
            if summary.readers == 0:
                self.changed.notify_all()  # before the deletion, which may fail
                self.delete_if_empty(number)

    # --- the mailbox

    @property
    def has_work(self) -> bool:
        """Whether `sync` has anything to do."""
        return bool(self._mailbox or self._buffer or self._is_dirty)

    def process(self) -> None:
        """Handle the mailbox.  Afterwards its writes are in the buffer or a file, not synced."""
        with self.lock:
            self._check_usable()
            mailbox = self._mailbox
            while mailbox:
                client, messages, msg_ids = mailbox.popleft()
                if messages is not None:
                    self._handle_writes(client, messages)
                else:
                    self._handle_removes(client, msg_ids)

    def _handle_writes(self, client: StoreClient, messages: Sequence[tuple[bytes, bytes]]) -> None:
        counts: dict[bytes, int] = client.in_flight.counts
        locations: dict[bytes, RecordLocation] = self.locations
        client.credit.handled(len(messages))
        if client.is_dying:
            self._ignore(client, messages)
            return
        for msg_id, term in messages:
            if counts.get(msg_id) == 1:
                del counts[msg_id]
            else:
                client.in_flight.arrived(msg_id, 1)  # a remove cancelled the write
                continue
            location = locations.get(msg_id)
            if location is None:
                self._append(msg_id, term)
            else:
                self._count_one_more(location, msg_id, term)
        self._settle_sizes()

    def _ignore(self, client: StoreClient, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """Drop the writes of a terminated client."""
        for msg_id, _term in messages:
            client.in_flight.arrived(msg_id, 1)
            if msg_id not in self.locations:
                self._cache.pop(msg_id, None)

    def _handle_removes(self, client: StoreClient, msg_ids: Sequence[bytes]) -> None:
        in_flight: InFlight = client.in_flight
        self._remove_all([msg_id for msg_id in msg_ids if in_flight.arrived(msg_id, -1)])

    def _count_one_more(self, location: RecordLocation, msg_id: bytes, term: bytes) -> None:
        self._settle_sizes()
        summary: FileSummary = self.files.by_number[location.file]
        if location.ref_count > 0:
            location.ref_count += 1
        elif summary.locked:
            self._append(msg_id, term)  # the collector does not copy a record without references
        else:
            location.ref_count = 1
            self.files.adjust(summary, location.total_size)

    def _append(self, msg_id: bytes, term: bytes) -> None:
        """Append a record to the current file; start a new file when it reaches the limit."""
        total: I64 = len(term) + RECORD_MIN
        buffer: list[bytes] = self._buffer
        buffer.append(_pack_head(total - RECORD_OVERHEAD, msg_id))
        buffer.append(term)
        buffer.append(RECORD_END)
        location = RecordLocation.__new__(RecordLocation)
        location.ref_count, location.file = 1, self.current
        location.offset, location.total_size = self._end, total
        self.locations[msg_id] = location
        self._end += total
        self._new_bytes += total
        self._buffered_bytes += total
        if self._buffered_bytes > self._buffer_max:
            self.flush()
        if self._end >= self._size_limit:
            self._roll()

    def _settle_sizes(self) -> None:
        """Add the appended bytes to the current file's summary."""
        if self._new_bytes:
            summary = self.files[self.current]
            new, self._new_bytes = self._new_bytes, 0
            self.files.resize(self.current, summary.file_size + new, summary.valid_total_size + new)

    def _remove(self, msg_id: bytes) -> None:
        location: RecordLocation | None = self.locations.get(msg_id)
        if location is None or location.ref_count == 0:
            raise StoreBroken(f"message {msg_id.hex()} was removed more often than written")
        if location.ref_count > 1:
            location.ref_count -= 1
            return
        summary: FileSummary = self.files.by_number[location.file]
        if summary.locked:
            self.deferred.append((msg_id, location.file))
            return
        location.ref_count = 0
        summary.dead.append(msg_id)
        self.files.adjust(summary, -location.total_size)
        if summary.valid_total_size == 0:
            self.delete_if_empty(location.file)

    def _remove_all(self, msg_ids: Sequence[bytes]) -> None:
        """Remove each message, then raise the first error of deleting an empty file."""
        failed: DiskError | None = None
        for msg_id in msg_ids:
            try:
                self._remove(msg_id)
            except DiskError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def remove_deferred(self) -> None:
        """Do the removes that waited for a locked file; the caller has unlocked it."""
        waiting, self.deferred = self.deferred, []
        self._remove_all([msg_id for msg_id, _file in waiting])

    def delete_if_empty(self, number: int) -> None:
        """Delete a file without references, unless it is current, locked or being read."""
        summary = self.files[number]
        if summary.valid_total_size or number == self.current or summary.locked or summary.readers:
            return
        self.drop_dead(number)
        self.files.remove(number)
        self.forget_file(number)
        self.disk.unlink(self.path(number))

    def drop_dead(self, number: int) -> None:
        """Remove the locations of count 0 in this file."""
        for msg_id in self.files[number].dead:
            location = self.locations.get(msg_id)
            if location is not None and location.ref_count == 0 and location.file == number:
                del self.locations[msg_id]

    # --- files

    def path(self, number: int, ending: str = "rdq") -> str:
        """Return the path of a numbered file."""
        return f"{self.folder}/{number}.{ending}"

    def open_file(self, number: int) -> File:
        """Open a file; the number of open files is limited to those in use and a few more."""
        file = self._open.get(number)
        if file is None:
            if len(self._open) >= self.settings.open_files_max:
                self._close_unused()
            file = self._open[number] = self.disk.open(self.path(number), Mode.WRITE)
        return file

    def _close_unused(self) -> None:
        for number in [number for number in self._open if number != self.current and not self.files[number].readers]:
            self._open.pop(number).close()

    def forget_file(self, number: int) -> None:
        """Close the file and its map."""
        self._drop_view(number)
        file = self._open.pop(number, None)
        if file is not None:
            file.close()

    def start_file(self, number: int) -> None:
        """Create an empty current file and make its name durable."""
        self._open[number] = self.disk.open(self.path(number), Mode.CREATE)
        self.files.add(number, FileSummary())
        self.current, self._end = number, 0
        if self.is_synced:
            self.disk.sync_folder(self.folder)

    def resume_file(self, number: int, size_bytes: int) -> None:
        """Make an existing file the current one and append to it."""
        self.current, self._end = number, size_bytes
        self.open_file(number)

    def flush(self) -> None:
        """Write the buffer to the current file."""
        with self.lock:
            if self._buffer:
                start = self._end - self._buffered_bytes
                with self._fatal():
                    self.open_file(self.current).write(start, b"".join(self._buffer))
                self._buffer.clear()  # in place, because `has_work` takes no lock
                self._buffered_bytes = 0
                self._is_dirty = True

    def _roll(self) -> None:
        self._settle_sizes()
        self.flush()
        with self._fatal():
            if self.is_synced:
                self.open_file(self.current).sync()
            before = self.current
            self.start_file(before + 1)
        locations: dict[bytes, RecordLocation] = self.locations
        cache: dict[bytes, bytes] = self._cache  # in place, because `read` takes no lock
        for msg_id in [msg_id for msg_id in cache if msg_id in locations]:  # the others are in the mailbox
            del cache[msg_id]
        self.delete_if_empty(before)

    def sync(self) -> None:
        """Make everything sent so far durable.

        Others can write meanwhile: the store's lock is not held during the sync.
        """
        with self._sync_lock:
            with self.lock:
                self.process()
                self.flush()
                number, is_dirty = self.current, self._is_dirty and self.is_synced
                self._is_dirty = False
                file = self.open_file(number)
                self.files[number].readers += 1
            try:
                if is_dirty:
                    with self._fatal():
                        file.sync()
            finally:
                self._release(number)
            self._check_usable()  # a concurrent roll may have got this file's sync error: the system reports it once

    @contextlib.contextmanager
    def _fatal(self) -> Iterator[None]:
        """Make the store read-only after a failed write or sync, since the state on disk is unknown."""
        try:
            yield
        except DiskError as error:
            self.fail(error)
            raise

    def fail(self, error: Exception) -> None:
        """Make the store read-only."""
        with self.lock:
            if self._failed is None:  # a thread may be raising the first error
                self._failed = error

    def _check_usable(self) -> None:
        if self._failed is not None:
            raise StoreReadOnly(f"{self.folder}: only readable after: {self._failed}") from self._failed

    def close(self) -> None:
        """Sync, then close all files."""
        try:
            if self._failed is None:
                self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close all files without a sync, as a dying process does."""
        with self.lock:
            for number in [*self._open, *self._views]:
                self.forget_file(number)

    def check(self) -> None:
        """Assert that locations and file summaries fit each other."""
        with self.lock:
            self.files.check()
            valid: dict[int, int] = dict.fromkeys(self.files, 0)
            for location in self.locations.values():
                if location.ref_count:
                    valid[location.file] += location.total_size
            assert valid == {number: self.files[number].valid_total_size for number in self.files}


@cython.cfunc
@cython.exceptval(check=False)
def _is_record(view: memoryview, msg_id: bytes, start: Size, total: Size) -> Bool:
    """Return whether the bytes are the whole record of this id."""
    stop: Size = start + total
    source: Source = source_of(view)
    if stop > len(view) or source[stop - 1] != RECORD_END_MARK or get_i64(source, start) != total - RECORD_OVERHEAD:
        return False
    return is_same(source, start + RECORD_SIZE_BYTES, MSG_ID_SIZE, source_of_bytes(msg_id), MSG_ID_SIZE)


def _corrupt(path: str, offset: int, msg_id: bytes, data: bytes) -> StoreCorrupt:
    return StoreCorrupt("not the expected record", file=path, offset=offset, expected=msg_id.hex(), found=data[:TERM_AT].hex())
