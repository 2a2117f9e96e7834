"""A message store: messages by id, reference-counted, in numbered append-only files.

Clients put messages into the cache of the current file and a mailbox; the owner (whoever calls `process`, `sync` or any
call that needs an answer) works the mailbox off, writes through a buffer and reports what is on the disk.  Nothing here
starts a thread: `RabbitStore` calls `sync` every 25 ms and `collector.collect` when there is garbage.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable

from storageio import Disk, DiskError, File, Mode, StoreCorrupt, StoreReadOnly

from .errors import StoreBroken
from .flying import Flying
from .layout import MSG_ID_SIZE, RECORD_HEAD, RECORD_MIN
from .records import RECORD_END, TERM_AT, check_record
from .settings import StoreSettings
from .store_state import Files, FileSummary, Location

OnDisk = Callable[[list[bytes]], None]
_READ_TRIES = 8


class StoreClient:
    """One user of a store, normally a queue.

    `on_disk` is told the ids whose writes are safe, also of those that a remove met.
    """

    def __init__(self, store: SharedStore, on_disk: OnDisk | None) -> None:
        """Made by `SharedStore.client`."""
        self.store = store
        self.flying = Flying()
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

    def remove(self, msg_ids: Iterable[bytes]) -> None:
        """Count one reference less to each."""
        self.store.client_remove(self, msg_ids)

    def contains(self, msg_id: bytes) -> bool:
        """Whether the store has it."""
        return self.store.contains(msg_id)


class SharedStore:
    """The store of one folder.  Open it with `store_recovery.open_store`."""

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
        self._mailbox: deque[tuple[StoreClient, bytes, bytes | None]] = deque()
        self._cache: dict[bytes, list] = {}  # type: ignore[type-arg]  # id: [term, writes not yet processed]
        self._buffer = bytearray()
        self._end = 0  # of the current file, buffer included
        self._open: dict[int, File] = {}
        self._to_confirm: set[StoreClient] = set()
        self._is_dirty = False
        self._failed: Exception | None = None

    # --- clients

    def client(self, on_disk: OnDisk | None = None) -> StoreClient:
        """A new user."""
        return StoreClient(self, on_disk)

    def client_write(self, client: StoreClient, messages: Iterable[tuple[bytes, bytes]]) -> None:
        """Put into cache and mailbox."""
        with self.lock:
            self._check_usable()
            cache, mailbox, started = self._cache, self._mailbox, client.flying.started
            for msg_id, term in messages:
                started(msg_id, 1)
                cached = cache.get(msg_id)
                if cached is None:
                    cache[msg_id] = [term, 1]
                else:
                    cached[1] += 1
                mailbox.append((client, msg_id, term))

    def client_remove(self, client: StoreClient, msg_ids: Iterable[bytes]) -> None:
        """Put into the mailbox."""
        with self.lock:
            self._check_usable()
            for msg_id in msg_ids:
                client.flying.started(msg_id, -1)
                self._mailbox.append((client, msg_id, None))

    def contains(self, msg_id: bytes) -> bool:
        """After all that was sent before."""
        with self.lock:
            self.process()
            location = self.locations.get(msg_id)
            return location is not None and location.ref_count > 0

    def read(self, msg_id: bytes) -> bytes | None:
        """The term from the cache or its file; beside the writer, and again when the file was moved meanwhile."""
        for _ in range(_READ_TRIES):
            with self.lock:
                cached = self._cache.get(msg_id)
                if cached is not None:
                    return cached[0]  # type: ignore[no-any-return]
                found = self._hold(msg_id)
            if found is None:
                return None
            location, file = found
            try:
                self.read_count += 1
                data = file.read(location[1], location[2])
            finally:
                self._let_go(location[0])
            if check_record(data, msg_id, location[2]):
                return data[TERM_AT:-1]
            with self.lock:
                now = self.locations.get(msg_id)
                if now is not None and (now.file, now.offset, now.total_size) == location:
                    raise _corrupt(file.path, location[1], msg_id, data)
        raise StoreBroken(f"message {msg_id.hex()} moved {_READ_TRIES} times during a read")

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
        summary.readers += 1
        return (location.file, location.offset, location.total_size), self.open_file(location.file)

    def _let_go(self, number: int) -> None:
        with self.lock:
            summary = self.files[number]
            summary.readers -= 1
            if summary.readers == 0:
                self.delete_if_empty(number)
                self.changed.notify_all()

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
                client, msg_id, term = mailbox.popleft()
                if term is not None:
                    self._meet_write(client, msg_id, term)
                elif client.flying.arrived(msg_id, -1):
                    self._remove(msg_id)

    def _meet_write(self, client: StoreClient, msg_id: bytes, term: bytes) -> None:
        if client.flying.arrived(msg_id, 1):
            location = self.locations.get(msg_id)
            if location is None:
                self._append(msg_id, term)
            else:
                self._count_one_more(location, msg_id, term)
        cached = self._cache.get(msg_id)
        if cached is not None:
            cached[1] -= 1
        client.waiting.append(msg_id)  # also when a remove met it: the writer waits for a confirm
        self._to_confirm.add(client)

    def _count_one_more(self, location: Location, msg_id: bytes, term: bytes) -> None:
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
        total = len(term) + RECORD_MIN
        self._buffer += RECORD_HEAD.pack(MSG_ID_SIZE + len(term), msg_id)
        self._buffer += term
        self._buffer += RECORD_END
        self.locations[msg_id] = Location(1, self.current, self._end, total)
        self._end += total
        files = self.files
        summary = files.by_number[self.current]
        summary.file_size += total
        summary.valid_total_size += total
        files.total_bytes += total
        files.valid_bytes += total
        if len(self._buffer) > self.settings.write_buffer_bytes:
            self.flush()
        if self._end >= self.settings.file_size_limit:
            self._roll()

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

    def remove_deferred(self) -> None:
        """The removes that waited for a file; the caller has unlocked it."""
        waiting, self.deferred = self.deferred, []
        for msg_id, _file in waiting:
            self._remove(msg_id)

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
        """Its descriptor is of no use any more."""
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
                start = self._end - len(self._buffer)
                with self._fatal():
                    self.open_file(self.current).write(start, self._buffer)
                self._buffer = bytearray()
                self._is_dirty = True

    def _roll(self) -> None:
        self.flush()
        with self._fatal():
            if self.is_synced:
                self.open_file(self.current).sync()
            before = self.current
            self.start_file(before + 1)
        self._cache = {msg_id: cached for msg_id, cached in self._cache.items() if cached[1] > 0}
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
            for client, ids in done:
                if client.on_disk is not None:
                    client.on_disk(ids)

    @contextlib.contextmanager
    def _fatal(self):  # type: ignore[no-untyped-def]
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
            for number in list(self._open):
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


def _corrupt(path: str, offset: int, msg_id: bytes, data: bytes) -> StoreCorrupt:
    return StoreCorrupt("not the record", file=path, offset=offset, expected=msg_id.hex(), found=data[:TERM_AT].hex())
