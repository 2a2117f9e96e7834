"""A message store: messages by id, reference-counted, in numbered append-only files.

Clients put messages into the cache of the current file and a mailbox; the owner (whoever calls `process`, `sync` or any
call that needs an answer) works the mailbox off, writes through a buffer and reports what is on the disk.  Nothing here
starts a thread: `RabbitStore` calls `sync` every 25 ms and `collector.collect` when there is garbage.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import Disk, DiskError, File, Map, Mode, StoreClosed, StoreCorrupt, StoreReadOnly

from .content import Content, decode_content
from .content_cy import Fields, split_term
from .credit import Credit
from .errors import StoreBroken
from .flying_cy import Flying
from .layout import MSG_ID_SIZE, RECORD_END_MARK, RECORD_HEAD, RECORD_MIN, RECORD_OVERHEAD, RECORD_SIZE_BYTES
from .records import RECORD_END, TERM_AT, check_record
from .settings import StoreSettings
from .store_state_cy import Files, FileSummary, Location

if not cython.compiled:
    from storebytes._bytes_cy import (
        I64,
        SOURCE_HASH,
        Bool,
        Size,
        Source,
        get_i64,
        is_same,
        source_of,
        source_of_bytes,
        take_bytes,
    )

    from .content_cy import split_at

OnDisk = Callable[[list[bytes]], None]
_pack_head = RECORD_HEAD.pack
_Mail = tuple[Any, Any, Any]  # client, writes or None, removes or None


class StoreClient:
    """One user of a store, normally a queue.

    `on_disk` is told the ids whose writes are safe, also of those that a remove met.
    """

    __slots__ = ("credit", "flying", "is_dying", "on_disk", "store", "waiting")

    def __init__(self, store: SharedStore, on_disk: OnDisk | None) -> None:
        """Made by `SharedStore.client`."""
        self.store = store
        self.flying = Flying()
        self.credit = Credit(*store.settings.client_credit)
        self.is_dying = False
        self.on_disk = on_disk
        self.waiting: list[bytes] = []  # written, not yet synced

    def write(self, msg_id: bytes, term: bytes) -> None:
        """Store the message, or count one more reference to it."""
        self.store.client_write(self, ((msg_id, term),))

    def write_many(self, messages: Iterable[tuple[bytes, bytes]]) -> None:
        """`write` for (id, term) pairs under one lock."""
        self.store.client_write(self, messages)

    def read(self, msg_id: bytes) -> bytes | None:
        """The term, None for an id that is not there."""
        return self.store.read(msg_id)

    def read_contents(self, msg_ids: Iterable[bytes]) -> list[Content | None]:
        """The messages, None for an id that is not there; `StoreCorrupt` for one that is damaged."""
        return self.store.read_contents(msg_ids)

    def remove(self, msg_ids: Iterable[bytes]) -> None:
        """Count one reference less to each."""
        self.store.client_remove(self, msg_ids)

    def contains(self, msg_id: bytes) -> bool:
        """Whether the store has it."""
        return self.store.contains(msg_id)

    def die(self) -> None:
        """The user is gone: writes of it that the owner meets from now on are ignored, since nobody would ever remove them."""
        self.store.client_dies(self)


class SharedStore:
    """The store of one folder.  Open it with `store_recovery.open_store`."""

    __slots__ = (
        "_buffer", "_buffer_max", "_buffered_bytes", "_cache", "_end", "_failed", "_is_dirty", "_mailbox", "_maps",
        "_new_bytes", "_open", "_size_limit", "_sync_lock", "_to_confirm", "_views", "changed", "current", "deferred",
        "disk", "files", "folder", "is_synced", "locations", "lock", "read_count", "settings",
    )  # fmt: skip

    def __init__(self, disk: Disk, folder: str, settings: StoreSettings, *, is_synced: bool) -> None:
        """`is_synced` is false for the transient store, which is never synced and whose writes are confirmed unsynced."""
        self.disk = disk
        self.folder = folder
        self.settings = settings
        self.is_synced = is_synced
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)  # a file was unlocked, or its last reader left
        self._sync_lock = threading.Lock()
        self.locations: dict[bytes, Location] = {}
        self.files = Files()
        self.current = -1
        self.deferred: list[tuple[bytes, int]] = []  # removes that wait for a locked file
        self.read_count = 0  # reads that went to a file
        self._mailbox: deque[_Mail] = deque()
        self._cache: dict[bytes, bytes] = {}  # what the current file and the mailbox hold
        self._views: dict[int, memoryview] = {}  # of closed files
        self._maps: dict[int, Map] = {}
        self._new_bytes = 0  # appended, not yet in the summary
        self._buffer: list[bytes] = []  # parts of records, in order
        self._buffered_bytes = 0
        self._end = 0  # of the current file, buffer included
        self._open: dict[int, File] = {}
        self._to_confirm: set[StoreClient] = set()
        self._is_dirty = False
        self._failed: Exception | None = None
        self._buffer_max: int = settings.write_buffer_bytes
        self._size_limit: int = settings.file_size_limit

    # --- clients

    def client(self, on_disk: OnDisk | None = None) -> StoreClient:
        """A new user."""
        return StoreClient(self, on_disk)

    def client_write(self, client: StoreClient, messages: Iterable[tuple[bytes, bytes]]) -> None:
        """Put into cache and mailbox."""
        batch: list[tuple[bytes, bytes]] = list(messages)
        counts: dict[bytes, int] = client.flying.counts
        sent: Size = 0
        with self.lock:
            self._check_usable()
            if client.is_dying:
                raise StoreClosed(f"{self.folder}: the client is dead")
            cache: dict[bytes, bytes] = self._cache
            try:
                for msg_id, term in batch:
                    if msg_id in counts:
                        client.flying.started(msg_id, 1)
                    else:
                        counts[msg_id] = 1
                    cache[msg_id] = term
                    sent += 1
            finally:
                client.credit.sent(sent)
                self._mailbox.append((client, batch[:sent], None))

    def client_remove(self, client: StoreClient, msg_ids: Iterable[bytes]) -> None:
        """Put into the mailbox."""
        batch: list[bytes] = list(msg_ids)
        counts: dict[bytes, int] = client.flying.counts
        sent: Size = 0
        with self.lock:
            self._check_usable()
            try:
                for msg_id in batch:
                    if msg_id in counts:
                        client.flying.started(msg_id, -1)
                    else:
                        counts[msg_id] = -1
                    sent += 1
            finally:
                self._mailbox.append((client, None, batch[:sent]))

    def client_dies(self, client: StoreClient) -> None:
        """Its writes that wait in the mailbox count for nothing; its removes are of what was stored, and count."""
        with self.lock:
            client.is_dying = True

    def contains(self, msg_id: bytes) -> bool:
        """After all that was sent before."""
        with self.lock:
            self.process()
            location = self.locations.get(msg_id)
            return location is not None and location.ref_count > 0

    def read(self, msg_id: bytes) -> bytes | None:
        """The term from the cache, from a file that is closed, or from the current one.

        No lock is taken for the first two: the collector never changes a file, it puts another in its place, and the map of
        the old one stays good.  What fits no more (the place was read while it changed) is looked up again under the lock.
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

    def read_contents(self, msg_ids: Iterable[bytes]) -> list[Content | None]:
        """`read` for many, each taken apart where it lies: the body is copied once."""
        found: list[Content | None] = []
        for msg_id in msg_ids:
            fields = self._fields(msg_id)
            if fields is not None:
                found.append(tuple.__new__(Content, fields))  # without the check of their number, which is right
                continue
            term = self.read(msg_id)
            found.append(None if term is None else decode_content(term, file=self.folder))
        return found

    def _fields(self, msg_id: bytes) -> Fields | None:
        """The fields of a message in the cache or a closed file; None when `read` has to look for it."""
        term = self._cache.get(msg_id)
        if term is not None:
            return split_term(term)
        location = self.locations.get(msg_id)
        if location is None or location.ref_count == 0:
            return None
        view = self._views.get(location.file)
        start: Size = location.offset
        total: Size = location.total_size
        if view is None or not _is_record(view, msg_id, start, total):
            return None
        return split_at(source_of(view), start + TERM_AT, start + total - 1)

    def _read_slowly(self, msg_id: bytes) -> bytes | None:
        """Through the owner: waits for the collector, then reads beside the writer."""
        with self.lock:
            found = self._hold(msg_id)
        if found is None:
            return None
        (number, offset, total_size), file = found
        try:
            self.read_count += 1
            data = file.read(offset, total_size)  # nobody moves it meanwhile: the collector waits for readers
        finally:
            self._let_go(number)
        if not check_record(data, msg_id, total_size):
            raise _corrupt(file.path, offset, msg_id, data)
        return data[TERM_AT : len(data) - 1]

    def _hold(self, msg_id: bytes) -> tuple[tuple[int, int, int], File] | None:
        """The location as it is now, its file counted as read; waits while the collector has the file."""
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
        """Have a closed file's bytes at hand for `read`; a bounded set."""
        if number not in self._views and summary.file_size:
            if len(self._views) >= self.settings.open_files_max:
                self._drop_view(next(iter(self._views)))
            held = self.open_file(number).map(summary.file_size, writable=False)
            self._views[number] = held.view
            self._maps[number] = held

    def _drop_view(self, number: int) -> None:
        if self._views.pop(number, None) is not None:
            self._maps.pop(number).close()

    def _let_go(self, number: int) -> None:
        with self.lock:
            summary = self.files[number]
            summary.readers -= 1
            if summary.readers == 0:
                self.changed.notify_all()  # before what may fail: those who wait go on when the lock is free
                self.delete_if_empty(number)

    # --- the owner

    @property
    def has_work(self) -> bool:
        """Whether anything waits for `sync`."""
        return bool(self._mailbox or self._to_confirm or self._buffer or self._is_dirty)

    def process(self) -> None:
        """Work the mailbox off.  Writes lie in the buffer or a file afterwards, unsynced."""
        with self.lock:
            self._check_usable()
            mailbox = self._mailbox
            while mailbox:
                client, messages, msg_ids = mailbox.popleft()
                if messages is not None:
                    self._meet_writes(client, messages)
                else:
                    self._meet_removes(client, msg_ids)

    def _meet_writes(self, client: StoreClient, messages: Sequence[tuple[bytes, bytes]]) -> None:
        counts: dict[bytes, int] = client.flying.counts
        locations: dict[bytes, Location] = self.locations
        waiting: list[bytes] = client.waiting
        client.credit.handled(len(messages))
        if client.is_dying:
            self._ignore(client, messages)
            return
        for msg_id, term in messages:
            if counts.get(msg_id) == 1:
                del counts[msg_id]
            else:
                client.flying.arrived(msg_id, 1)
                waiting.append(msg_id)  # a remove met it, but the writer waits for a confirm
                continue
            location = locations.get(msg_id)
            if location is None:
                self._append(msg_id, term)
            else:
                self._count_one_more(location, msg_id, term)
            waiting.append(msg_id)
        self._settle_sizes()
        self._to_confirm.add(client)

    def _ignore(self, client: StoreClient, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """Writes of a dead client: as if they had never been sent."""
        for msg_id, _term in messages:
            client.flying.arrived(msg_id, 1)
            if msg_id not in self.locations:
                self._cache.pop(msg_id, None)

    def _meet_removes(self, client: StoreClient, msg_ids: Sequence[bytes]) -> None:
        self._remove_all([msg_id for msg_id in msg_ids if client.flying.arrived(msg_id, -1)])

    def _count_one_more(self, location: Location, msg_id: bytes, term: bytes) -> None:
        self._settle_sizes()
        summary = self.files[location.file]
        if location.ref_count > 0:
            location.ref_count += 1
        elif summary.locked:
            self._append(msg_id, term)  # the collector has already left it out
        else:
            location.ref_count = 1
            self.files.adjust(summary, location.total_size)

    def _append(self, msg_id: bytes, term: bytes) -> None:
        """At the current file's end; rolls behind a record that reaches the limit."""
        total: I64 = len(term) + RECORD_MIN
        buffer: list[bytes] = self._buffer
        buffer.append(_pack_head(total - RECORD_OVERHEAD, msg_id))
        buffer.append(term)
        buffer.append(RECORD_END)
        location = Location.__new__(Location)
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
        """Add what was appended to the current file's summary."""
        if self._new_bytes:
            summary = self.files[self.current]
            new, self._new_bytes = self._new_bytes, 0
            self.files.resize(self.current, summary.file_size + new, summary.valid_total_size + new)

    def _remove(self, msg_id: bytes) -> None:
        location = self.locations.get(msg_id)
        if location is None or location.ref_count == 0:
            raise StoreBroken(f"message {msg_id.hex()} was removed more often than written")
        if location.ref_count > 1:
            location.ref_count -= 1
            return
        summary = self.files[location.file]
        if summary.locked:
            self.deferred.append((msg_id, location.file))
            return
        location.ref_count = 0
        summary.dead.append(msg_id)
        self.files.adjust(summary, -location.total_size)
        self.delete_if_empty(location.file)

    def _remove_all(self, msg_ids: Sequence[bytes]) -> None:
        """Each of them, though a file without messages could not be deleted; the first error is raised in the end."""
        failed: DiskError | None = None
        for msg_id in msg_ids:
            try:
                self._remove(msg_id)
            except DiskError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def remove_deferred(self) -> None:
        """The removes that waited for a file; the caller has unlocked it."""
        waiting, self.deferred = self.deferred, []
        self._remove_all([msg_id for msg_id, _file in waiting])

    def delete_if_empty(self, number: int) -> None:
        """Delete a file that nothing refers to, unless somebody has it."""
        summary = self.files[number]
        if summary.valid_total_size or number == self.current or summary.locked or summary.readers:
            return
        self.drop_dead(number)
        self.files.take_out(number)
        self.forget_file(number)
        self.disk.delete(self.path(number))

    def drop_dead(self, number: int) -> None:
        """Forget the ids of count 0 whose bytes go away with this file."""
        for msg_id in self.files[number].dead:
            location = self.locations.get(msg_id)
            if location is not None and location.ref_count == 0 and location.file == number:
                del self.locations[msg_id]

    # --- files

    def path(self, number: int, ending: str = "rdq") -> str:
        """Of a numbered file."""
        return f"{self.folder}/{number}.{ending}"

    def open_file(self, number: int) -> File:
        """From a bounded set of open files; those being read or written stay open."""
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
        """Its descriptor and map are of no use any more."""
        self._drop_view(number)
        file = self._open.pop(number, None)
        if file is not None:
            file.close()

    def start_file(self, number: int) -> None:
        """A new, empty, current file whose name is on the disk."""
        self._open[number] = self.disk.open(self.path(number), Mode.CREATE)
        self.files.add(number, FileSummary())
        self.current, self._end = number, 0
        if self.is_synced:
            self.disk.sync_folder(self.folder)

    def resume_file(self, number: int, size_bytes: int) -> None:
        """Go on behind what a file already holds."""
        self.current, self._end = number, size_bytes
        self.open_file(number)

    def flush(self) -> None:
        """Hand the buffer to the system."""
        with self.lock:
            if self._buffer:
                start = self._end - self._buffered_bytes
                with self._fatal():
                    self.open_file(self.current).write(start, b"".join(self._buffer))
                self._buffer = []
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
        locations: dict[bytes, Location] = self.locations
        self._cache = {msg_id: term for msg_id, term in self._cache.items() if msg_id not in locations}  # the mailbox's
        self.delete_if_empty(before)

    def sync(self) -> None:
        """All that was sent before is on the disk afterwards, and its clients are told.

        The store's lock is not held while the disk works, so others go on writing.
        """
        with self._sync_lock:
            with self.lock:
                self.process()
                self.flush()
                done = [(client, client.waiting) for client in self._to_confirm]
                for client, _ids in done:
                    client.waiting = []
                self._to_confirm.clear()
                number, is_dirty = self.current, self._is_dirty and self.is_synced
                self._is_dirty = False
                file = self.open_file(number)
                self.files[number].readers += 1
            try:
                if is_dirty:
                    with self._fatal():
                        file.sync()
            finally:
                self._let_go(number)
            self._check_usable()  # a roll beside this may have met the error of this very file: the system tells it once
            for client, ids in done:
                if client.on_disk is not None:
                    client.on_disk(ids)

    @contextlib.contextmanager
    def _fatal(self) -> Iterator[None]:
        """After a failed write or sync nobody knows what is on the disk: the store only reads from here on."""
        try:
            yield
        except DiskError as error:
            self._failed = error
            raise

    def fail(self, error: Exception) -> None:
        """Refuse every change from here on."""
        self._failed = error

    def _check_usable(self) -> None:
        if self._failed is not None:
            raise StoreReadOnly(f"{self.folder}: only readable after: {self._failed}") from self._failed

    def close(self) -> None:
        """Sync, then give the descriptors back."""
        try:
            if self._failed is None:
                self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give the descriptors back without a sync, as a dying process does."""
        with self.lock:
            for number in [*self._open, *self._views]:
                self.forget_file(number)

    def check(self) -> None:
        """Locations and summaries agree; for tests."""
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
    """Whether the record of this id is there, whole."""
    stop: Size = start + total
    source: Source = source_of(view)
    if stop > len(view) or source[stop - 1] != RECORD_END_MARK or get_i64(source, start) != total - RECORD_OVERHEAD:
        return False
    return is_same(source, start + RECORD_SIZE_BYTES, MSG_ID_SIZE, source_of_bytes(msg_id), MSG_ID_SIZE)


def _corrupt(path: str, offset: int, msg_id: bytes, data: bytes) -> StoreCorrupt:
    return StoreCorrupt("not the record", file=path, offset=offset, expected=msg_id.hex(), found=data[:TERM_AT].hex())


def is_compiled() -> bool:
    """Which build runs."""
    return cython.compiled


def source_hash() -> int:
    """Of the source this was built from; 0 when plain."""
    return SOURCE_HASH
