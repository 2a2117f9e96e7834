"""`brokerstore/acks`: what groups of an open store have acknowledged, in a mapped file that a killed process leaves complete.

    0     header: magic; process id of the writer, 0 after a clean stop; process id of the next writer while it takes over
    24    rows, each a multiple of 8 bytes:
          queue  kind 1, size of the key, queue id, CRC of these and the key; next offset to read; offset in
                 `consumerOffset.json`; offset that is being written there; `topic@group`
          done   kind 2, number of the queue's row, CRC; offset of a message that is acknowledged before an earlier one
          reset  kind 3, number of the queue's row, CRC; what was done and handed before counts no more
          handed kind 4, as done; offset of a message that a consumer with a visibility time has
          back   kind 5, as done; offset of a message that the consumer gave back, or that a client no longer has
          lease  kind 6, number of the queue's row, CRC; its id; next offset to read; offset to hand out next
          taken  kind 7, size of a text, number of the queue's row, CRC of these, the offset and the text; offset of a
                 message that a client of a server has; until when, in the text

The offsets of a queue change in place, with one store of 8 bytes each, and the other rows are appended.  A process with a lease
stores the two offsets of its row itself, so an acknowledgement needs no request.  The owner of the store ends a lease with 0 in
place of its id, and then -1 less the next offset that it found: what is stored later does not count.  A file whose store
a broker has opened since, and the row of a queue whose offset in `consumerOffset.json` is another one, do not count: then the
broker's offset holds (docs/formats/store-folder.md#acknowledgements).
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from zlib import crc32

from storageio import Disk, DiskError, File, Kind, Map, Mode, random_bytes

LOG = logging.getLogger(f"brokerstore.{__name__}")
NAME = "acks"
MAGIC = b"BSACKS01"
HEAD = struct.Struct("=8sqq")
KIND = struct.Struct("=H")
QUEUE = struct.Struct("=HHiIIqqq")
QUEUE_CHECKED = struct.Struct("=HHi")
DONE = struct.Struct("=HHIIIq")
DONE_CHECKED = struct.Struct("=HIq")
QUEUE_ROW, DONE_ROW, RESET_ROW, HANDED_ROW, BACK_ROW, LEASE_ROW, TAKEN_ROW = 1, 2, 3, 4, 5, 6, 7
LEASE = struct.Struct("=qqq")  # behind the first words of a row of a lease, which are those of DONE
LEASE_AT = DONE.size - 8
WORD = struct.Struct("=q")
ENDING_TRIES, ENDING_S = 1000, 0.001
TAKEN_CHECKED = struct.Struct("=HHIq")
SIZE_MIN = 1 << 20
SIZE_MAX = 1 << 30
GROWTH = 4  # a file that is written again has so many times the size of its rows
NO_OFFSET = -1  # the group has none in `consumerOffset.json`
Key = tuple[str, int]  # topic@group, and queue id


@dataclass
class AckedQueue:
    """What a group has acknowledged of a queue."""

    key: str
    queue_id: int
    next_offset: int
    saved: int = NO_OFFSET
    saving: int = NO_OFFSET
    done: set[int] = field(default_factory=set)
    handed: set[int] = field(default_factory=set)  # neither acknowledged nor given back
    taken: dict[int, bytes] = field(default_factory=dict)  # by offset, of messages that clients of a server have
    number: int = 0  # of its row among those of queues
    at: int = 0  # of its offsets, in words of 8 bytes
    has_done_rows: bool = False  # or rows of leases, even if the next offset has passed all of them
    leased: int = 0  # next offset by the rows of leases
    leases: list[int] = field(default_factory=list)  # positions of the ids of those that are not over


@dataclass(eq=False)
class QueueLease:
    """What a process that does not own the store may change: how far it took and acknowledged messages of a queue."""

    key: Key
    id: int
    position: int
    next_offset: int = 0  # as stored last; 0 before the first acknowledgement
    at: int = 0  # of its id, in words of 8 bytes
    is_open: bool = True


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // 8) * 8


def _done_row(kind: int, number: int, offset: int) -> bytes:
    return DONE.pack(kind, 0, number, crc32(DONE_CHECKED.pack(kind, number, offset)), 0, offset)


def _taken_row(number: int, offset: int, text: bytes) -> bytes:
    crc = crc32(text, crc32(TAKEN_CHECKED.pack(TAKEN_ROW, len(text), number, offset)))
    return DONE.pack(TAKEN_ROW, len(text), number, crc, 0, offset) + text.ljust(_padded(len(text)), b"\0")


def read_acks(disk: Disk, folder: str, process_id: int | None) -> list[AckedQueue]:
    """Return the queues in the file of `folder`, which the process that wrote the abort file (None: there is none) has left.

    A file of another process, or none, has no queues; damage ends the rows that are read.
    """
    path = os.path.join(folder, NAME)
    found = disk.stat(path)
    if found is None or found.kind is not Kind.FILE or not HEAD.size <= found.size_bytes <= SIZE_MAX:
        return []
    with disk.open(path, Mode.READ) as file:
        data = file.read(0, found.size_bytes)
    magic, writer, next_writer = HEAD.unpack_from(data)
    if magic != MAGIC or (process_id or 0) not in (writer, next_writer):
        return []
    queues: list[AckedQueue] = []
    at = HEAD.size
    while at + DONE.size <= len(data):
        (kind,) = KIND.unpack_from(data, at)
        row = _read_queue(data, at) if kind == QUEUE_ROW else None
        if row is not None:
            row.number = len(queues)
            queues.append(row)
            at += QUEUE.size + _padded(len(row.key.encode(errors="surrogatepass")))
        elif DONE_ROW <= kind <= LEASE_ROW and _read_done(data, at, queues):
            at += DONE.size if kind != LEASE_ROW else LEASE_AT + LEASE.size
        elif kind == TAKEN_ROW and (size := _read_taken(data, at, queues)):
            at += size
        else:
            break
    for queue in queues:
        queue.next_offset = max(queue.next_offset, queue.leased)
        queue.taken = {offset: queue.taken[offset] for offset in sorted(queue.taken) if offset >= queue.next_offset}
        queue.done = {offset for offset in queue.done if offset >= queue.next_offset}
        queue.handed = {offset for offset in queue.handed - queue.done if offset >= queue.next_offset}
    return queues


def _read_queue(data: bytes, at: int) -> AckedQueue | None:
    if at + QUEUE.size > len(data):
        return None
    kind, size, queue_id, crc, _, next_offset, saved, saving = QUEUE.unpack_from(data, at)
    key = data[at + QUEUE.size : at + QUEUE.size + size]
    if len(key) != size or crc != crc32(key, crc32(QUEUE_CHECKED.pack(kind, size, queue_id))):
        return None
    return AckedQueue(key.decode(errors="surrogatepass"), queue_id, next_offset, saved, saving)


def _read_done(data: bytes, at: int, queues: list[AckedQueue]) -> bool:
    kind, _, number, crc, _, offset = DONE.unpack_from(data, at)
    is_lease = kind == LEASE_ROW
    if crc != crc32(DONE_CHECKED.pack(kind, number, 0 if is_lease else offset)) or number >= len(queues):
        return False
    queue = queues[number]
    if is_lease:
        if at + LEASE_AT + LEASE.size > len(data):
            return False
        lease_id, next_offset, _ = LEASE.unpack_from(data, at + LEASE_AT)
        queue.leased = max(queue.leased, next_offset if lease_id >= 0 else -1 - lease_id)
        queue.leases += [at + LEASE_AT] * (lease_id >= 0)
    elif kind == RESET_ROW:
        queue.leased = 0
        queue.done.clear()
        queue.handed.clear()
        queue.taken.clear()
    elif kind == DONE_ROW:
        queue.done.add(offset)
        queue.taken.pop(offset, None)
    elif kind == HANDED_ROW:
        queue.handed.add(offset)
    else:
        queue.handed.discard(offset)
        queue.taken.pop(offset, None)
    return True


def end_leases(disk: Disk, folder: str, queues: Iterable[AckedQueue]) -> None:
    """End the leases that the last writer left open in the file of `folder`; then `read_acks` returns what counts."""
    positions = [position for queue in queues for position in queue.leases]
    if positions:
        with disk.open(os.path.join(folder, NAME), Mode.WRITE) as file:
            for position in positions:
                file.write(position, WORD.pack(0))
                (next_offset,) = WORD.unpack(file.read(position + WORD.size, WORD.size))
                file.write(position, WORD.pack(-1 - next_offset))


def _read_taken(data: bytes, at: int, queues: list[AckedQueue]) -> int:
    """Note a message that a client has, and return the size of its row; 0 if it is damaged."""
    kind, size, number, crc, _, offset = DONE.unpack_from(data, at)
    text = data[at + DONE.size : at + DONE.size + size]
    if len(text) != size or crc != crc32(text, crc32(TAKEN_CHECKED.pack(kind, size, number, offset))) or number >= len(queues):
        return 0
    queues[number].taken[offset] = text
    return DONE.size + _padded(size)


class AckFile:
    """The file of a store that is open for writing.  One thread at a time changes it; any thread may `sync`."""

    def __init__(self, disk: Disk, folder: str, process_id: int, queues: Iterable[AckedQueue] = ()) -> None:
        """Take over the `queues` of the last file.  Nothing is written before the first change, if there are none."""
        self.saved: Mapping[Key, int] = {}  # the offsets in `consumerOffset.json`
        self._disk = disk
        self._folder = folder
        self._path = os.path.join(folder, NAME)
        self._process_id = process_id
        self._queues: dict[Key, AckedQueue] = {(one.key, one.queue_id): one for one in queues}
        self._file: File | None = None
        self._map: Map | None = None
        self._words: memoryview | None = None  # of the map, by 8 bytes
        self._end = 0
        self._leases: list[QueueLease] = []
        self._changes = self._synced = 0
        self._syncing, self._ending = threading.Lock(), threading.Lock()
        self._is_failed = False
        if self._queues:
            self._write_again()
        elif disk.stat(self._path) is not None:
            self._delete()

    def record(self, key: Key, next_offset: int) -> None:
        """Set the next offset of a queue."""
        queue = self._queues.get(key)
        if queue is None:
            saved = self.saved.get(key, NO_OFFSET)
            self._append_queue(AckedQueue(*key, next_offset, saved, saved))
            return
        if next_offset < queue.next_offset:
            for lease in self._leases_of(key):
                self.end_lease(lease)
            self.forget_done(key)
        else:
            if next_offset - queue.next_offset <= len(queue.done):
                queue.done.difference_update(range(queue.next_offset, next_offset))
            elif queue.done:  # a client may commit any offset
                queue.done = {offset for offset in queue.done if offset >= next_offset}
            if queue.handed:
                queue.handed = {offset for offset in queue.handed if offset >= next_offset}
            while queue.taken and (first := next(iter(queue.taken))) < next_offset:
                del queue.taken[first]
        queue.next_offset = next_offset
        self._changes += 1
        self._store(queue.at, next_offset)

    def add_done(self, key: Key, offset: int) -> None:
        """Record that a message is acknowledged although an earlier one is not."""
        queue = self._known(key)
        queue.handed.discard(offset)
        queue.taken.pop(offset, None)
        if offset >= queue.next_offset and offset not in queue.done:
            queue.done.add(offset)
            queue.has_done_rows = True
            self._append(_done_row(DONE_ROW, queue.number, offset))

    def _known(self, key: Key) -> AckedQueue:
        if key not in self._queues:
            self.record(key, max(self.saved.get(key, 0), 0))
        return self._queues[key]

    def add_handed(self, key: Key, offsets: Iterable[int]) -> None:
        """Record that a consumer has messages: if neither `add_done`, `record` nor `give_back` follows, it was killed."""
        queue = self._known(key)
        for offset in offsets:
            if offset >= queue.next_offset and offset not in queue.handed:
                queue.handed.add(offset)
                queue.has_done_rows = True
                self._append(_done_row(HANDED_ROW, queue.number, offset))

    def give_back(self, key: Key, offsets: Iterable[int]) -> None:
        """Record that a consumer does not have messages any more."""
        queue = self._queues.get(key)
        for offset in offsets if queue is not None and (queue.handed or queue.taken) else ():
            assert queue is not None
            if offset in queue.handed or offset in queue.taken:
                queue.handed.discard(offset)
                queue.taken.pop(offset, None)
                self._append(_done_row(BACK_ROW, queue.number, offset))

    def add_taken(self, key: Key, taken: Mapping[int, bytes]) -> None:
        """Record that clients of a server have messages, and until when; what was recorded of one before is replaced."""
        queue = self._known(key)
        queue.has_done_rows = True
        for offset, text in taken.items():
            queue.taken[offset] = text
            self._append(_taken_row(queue.number, offset, text))

    def taken(self, key: Key) -> dict[int, bytes]:
        """Return the messages of a queue that clients have, by offset."""
        queue = self._queues.get(key)
        return {} if queue is None else dict(queue.taken)

    def is_handed(self, key: Key, offset: int) -> bool:
        """Return whether a consumer got a message and neither acknowledged it nor gave it back."""
        queue = self._queues.get(key)
        return queue is not None and offset in queue.handed

    def forget_done(self, key: Key) -> None:
        """Forget which messages of a queue are acknowledged before an earlier one: they are delivered again."""
        queue = self._queues.get(key)
        if queue is not None and queue.has_done_rows:
            queue.done.clear()
            queue.handed.clear()
            queue.taken.clear()
            queue.has_done_rows = False
            self._append(_done_row(RESET_ROW, queue.number, 0))

    def done(self, key: Key) -> set[int]:
        """Return the offsets of messages that are acknowledged before an earlier one."""
        queue = self._queues.get(key)
        return set() if queue is None else set(queue.done)

    # Leases

    def lease(self, key: Key, position: int) -> QueueLease | None:
        """Let another process store how far it took and acknowledged a queue; None if the file cannot be written."""
        queue = self._known(key)
        if self._map is None or self._end + LEASE_AT + LEASE.size > len(self._map.view):
            self._write_again()
        if self._map is None:
            return None
        lease = QueueLease(key, int.from_bytes(random_bytes(7)) + 1, position)
        head = _done_row(LEASE_ROW, queue.number, 0)[:LEASE_AT]
        self._append(head + LEASE.pack(lease.id, 0, position))
        lease.at = (self._end - LEASE.size) // 8
        queue.has_done_rows = True
        self._leases.append(lease)
        return lease

    def end_lease(self, lease: QueueLease) -> None:
        """End a lease: what the other process stores from now on does not count, and it sees that."""
        if lease.is_open:
            with self._ending:  # the processor reads what was stored only behind a lock
                self._store(lease.at, 0)
            self._take(lease)
            self._store(lease.at, -1 - lease.next_offset)
            lease.is_open = False
            self._leases.remove(lease)

    def leases(self) -> list[QueueLease]:
        """Take what other processes stored, and return the open leases."""
        for lease in self._leases:
            self._take(lease)
        return self._leases

    def _take(self, lease: QueueLease) -> None:
        if self._words is not None:
            lease.next_offset, lease.position = self._words[lease.at + 1], self._words[lease.at + 2]
        if lease.next_offset > self._queues[lease.key].next_offset:
            self.record(lease.key, lease.next_offset)

    def _leases_of(self, *keys: Key) -> list[QueueLease]:
        return [lease for lease in self._leases if lease.key in keys]

    def drop(self, keys: Iterable[str]) -> None:
        """Forget the queues of some keys."""
        gone = set(keys)
        for lease in self._leases_of(*(key for key in self._queues if key[0] in gone)):
            self.end_lease(lease)
        kept = {key: queue for key, queue in self._queues.items() if key[0] not in gone}
        if len(kept) != len(self._queues):
            self._queues = kept
            self._write_again()

    def begin_save(self, offsets: Mapping[Key, int]) -> None:
        """Record the offsets that `consumerOffset.json` is going to have."""
        for key, queue in self._queues.items():
            queue.saving = offsets.get(key, NO_OFFSET)
            self._store(queue.at + 2, queue.saving)

    def end_save(self) -> None:
        """Record that `consumerOffset.json` has these offsets."""
        for queue in self._queues.values():
            queue.saved = queue.saving
            self._store(queue.at + 1, queue.saved)
        if self._is_failed:
            self._write_again()

    def sync(self) -> None:
        """Return when every change made before the call is on the disk; one sync covers all callers that wait."""
        expected = self._changes
        with self._syncing:
            if self._synced < expected and self._file is not None:
                reached = self._changes
                self._file.sync()
                self._synced = reached

    def close(self, *, is_clean: bool) -> None:
        """Close the file; after a clean stop delete it, unless it has messages in hand or acknowledgements out of order."""
        if self._map is None:
            return
        for lease in list(self._leases):
            self.end_lease(lease)
        if is_clean:
            for key, queue in self._queues.items():
                self.give_back(key, list(queue.handed))  # nobody was killed
            self._store(1, 0)
            self._store(2, 0)
            self.sync()
        self._release()
        if is_clean and not any(queue.done or queue.taken for queue in self._queues.values()):
            self._delete()

    # The file

    def _store(self, word: int, value: int) -> None:
        """Store one word, which a kill leaves old or new."""
        if self._words is not None:
            self._words[word] = value

    def _append_queue(self, queue: AckedQueue) -> None:
        queue.number = len(self._queues)
        self._queues[queue.key, queue.queue_id] = queue
        self._append(self._queue_row(queue, self._end))

    def _queue_row(self, queue: AckedQueue, at: int) -> bytes:
        key = queue.key.encode(errors="surrogatepass")
        queue.at = (at + QUEUE_CHECKED.size + 8) // 8
        crc = crc32(key, crc32(QUEUE_CHECKED.pack(QUEUE_ROW, len(key), queue.queue_id)))
        head = QUEUE.pack(QUEUE_ROW, len(key), queue.queue_id, crc, 0, queue.next_offset, queue.saved, queue.saving)
        return head + key.ljust(_padded(len(key)), b"\0")

    def _append(self, row: bytes) -> None:
        """Append a row; write the whole file again if it is full."""
        self._changes += 1
        if self._is_failed:  # `end_save` tries again
            return
        if self._map is None or self._end + len(row) > len(self._map.view):
            self._write_again()
            return
        self._map.view[self._end : self._end + len(row)] = row
        self._end += len(row)

    def _write_again(self) -> None:
        """Replace the file by one with the rows that still count; without space go on without a file."""
        try:
            with self._syncing:
                self._replace()
        except DiskError as error:
            self._release()
            if not self._is_failed:
                LOG.error("%s: a kill will repeat what is acknowledged from now on: %s", self._path, error)
            self._is_failed = True
        else:
            if self._is_failed:
                LOG.warning("%s: a kill repeats nothing that is acknowledged", self._path)
            self._is_failed = False

    def _replace(self) -> None:
        for lease in list(self._leases):
            self.end_lease(lease)
        # While a process opens the store, the abort file still names the one before, which the last file's header has.
        header = _read_header(self._disk, self._path) or (MAGIC, self._process_id, self._process_id)
        rows = bytearray(HEAD.pack(*header))
        for number, queue in enumerate(self._queues.values()):
            queue.number = number
            queue.has_done_rows = bool(queue.done or queue.handed or queue.taken)
            rows += self._queue_row(queue, len(rows))
        for queue in self._queues.values():
            for offset in sorted(queue.done):
                rows += _done_row(DONE_ROW, queue.number, offset)
            for offset in sorted(queue.handed):
                rows += _done_row(HANDED_ROW, queue.number, offset)
            for offset, text in queue.taken.items():
                rows += _taken_row(queue.number, offset, text)
        size = max(SIZE_MIN, -(-GROWTH * len(rows) // SIZE_MIN) * SIZE_MIN)
        self._disk.make_folder(self._folder)
        fresh = f"{self._path}.new"
        if self._disk.stat(fresh) is not None:
            self._disk.delete(fresh)
        with self._disk.open(fresh, Mode.CREATE) as file:
            file.allocate(size)
            file.write(0, bytes(rows))
            file.sync()
        self._release()
        self._disk.rename(fresh, self._path)
        self._disk.sync_folder(self._folder)
        self._file = self._disk.open(self._path, Mode.WRITE)
        self._map = self._file.map(size, writable=True)
        self._words = self._map.view.cast("q")
        self._end = len(rows)
        self._synced = self._changes

    def _release(self) -> None:
        self._words = None
        if self._map is not None:
            self._map.close()
        if self._file is not None:
            self._file.close()
        self._map = self._file = None

    def _delete(self) -> None:
        found = self._disk.stat(self._path)
        if found is not None and found.kind is Kind.FILE:
            self._disk.delete(self._path)


class LeasedWords:
    """The offsets of a lease, in the process that has it."""

    def __init__(self, file: File, words: memoryview, lease_id: int, at: int) -> None:
        """Take the file and the words of its map."""
        self.sync = file.sync  # of what is stored; where the lease is open afterwards, it was of the file that counts
        self._words = words
        self._id, self._at = lease_id, at

    @property
    def is_open(self) -> bool:
        """Whether what was stored before counts.  A lock must be released between the store and this."""
        return self._words[self._at] == self._id

    def counts(self, offset: int) -> bool:
        """Return whether a next offset that was stored counts: the lease is open, or was when the owner ended it."""
        for _ in range(ENDING_TRIES):
            found = self._words[self._at]
            if found:
                return found == self._id or -1 - found >= offset
            time.sleep(ENDING_S)  # the owner reads the offset at this moment
        return False

    def store_next_offset(self, offset: int) -> None:
        """Acknowledge every message before an offset."""
        self._words[self._at + 1] = offset

    def store_position(self, offset: int) -> None:
        """Take the messages before an offset."""
        self._words[self._at + 2] = offset


class LeasedFile:
    """The file of acknowledgements in processes that do not own the store."""

    def __init__(self, disk: Disk, folder: str) -> None:
        """Map the file at first use."""
        self._disk = disk
        self._path = os.path.join(folder, NAME)
        self._file: File | None = None  # nobody closes it: a lease may sync it until it is not used any more
        self._words = memoryview(bytearray(HEAD.size)).cast("q")

    def find(self, lease_id: int, at: int) -> LeasedWords | None:
        """Return the words of a lease; None if it is over."""
        if not self._has(lease_id, at):
            try:
                file = self._disk.open(self._path, Mode.WRITE)
            except DiskError:
                return None
            self._file, self._words = file, file.map(file.size(), writable=True).view.cast("q")
        return (
            LeasedWords(self._file, self._words, lease_id, at) if self._file is not None and self._has(lease_id, at) else None
        )

    def _has(self, lease_id: int, at: int) -> bool:
        return at + 3 <= len(self._words) and self._words[at] == lease_id


def take_over(disk: Disk, folder: str, before: int | None, process_id: int) -> None:
    """Record who opens the store next, before the abort file names it: a kill in between leaves the file valid.

    `before`: the process that the abort file names still. A file that is not of this process is deleted: the next writer's
    name would make it valid.
    """
    path = os.path.join(folder, NAME)
    header = _read_header(disk, path)
    if header is None:
        return
    if header[0] != MAGIC or (before or 0) not in header[1:]:
        disk.delete(path)
        return
    _write_header(disk, path, before or 0, process_id, syncs=True)


def end_take_over(disk: Disk, folder: str, process_id: int) -> None:
    """Record that the abort file names the writer. Without a sync, because a power failure leaves a valid header too."""
    path = os.path.join(folder, NAME)
    if _read_header(disk, path) is not None:
        _write_header(disk, path, process_id, process_id, syncs=False)


def _read_header(disk: Disk, path: str) -> tuple[bytes, int, int] | None:
    """Return magic and process ids of the file, or None if there is no such file."""
    found = disk.stat(path)
    if found is None or found.kind is not Kind.FILE or found.size_bytes < HEAD.size:
        return None
    with disk.open(path, Mode.READ) as file:
        magic, writer, next_writer = HEAD.unpack(file.read(0, HEAD.size))
    return magic, writer, next_writer


def _write_header(disk: Disk, path: str, writer: int, next_writer: int, *, syncs: bool) -> None:
    with disk.open(path, Mode.WRITE) as file:
        file.write(0, HEAD.pack(MAGIC, writer, next_writer))
        if syncs:
            file.sync()
