"""The index of one queue, version 1, for writing (format page, section 3).

Every publish (with the delivered mark that 3.10 adds) and acknowledgement goes to the journal; `sync` makes the journal
durable.  `flush` appends what is new to the segments, syncs them, and only then empties the journal, so that a crash
between the two leaves entries twice, which the replay takes as one.  What was published and acknowledged between two
flushes never reaches a segment.  A segment without unacknowledged entries is deleted at the flush.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from struct import Struct

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import SECTOR_SIZE, Disk, DiskError, File, Mode, StoreError, StoreReadOnly, replace_file

from .behind import read_journal_past, refuse_lost_entries
from .copies import HasMessage, drop_worse_copies, no_message
from .entry_cy import IndexEntry
from .journal import JournalEntry, join_journal
from .layout import (
    JOURNAL_ACKNOWLEDGED,
    JOURNAL_DELIVERED,
    JOURNAL_HEAD,
    JOURNAL_NAME,
    JOURNAL_PUBLISH_SIZE,
    JOURNAL_PUBLISH_TRANSIENT,
    PUBLISH_BODY,
    QUEUE_NAME_FILE,
    SEGMENT_HEAD,
    SEGMENT_MARK,
    SEGMENT_PERSISTENT,
    SEGMENT_PUBLISH,
)
from .names import numbered
from .paths import numbers_in, read_if_there
from .problems import Problem
from .segment_cy import read_segment, write_segment
from .settings import IndexSettings

if not cython.compiled:
    from storebytes._bytes_cy import I64, SOURCE_HASH, Bool


_LOG = logging.getLogger("brokerstore")
DOUBT_NAME = "sync_failed"
_PUBLISH = Struct(JOURNAL_HEAD.format + PUBLISH_BODY.format[1:])  # as the journal has it
assert _PUBLISH.size == JOURNAL_PUBLISH_SIZE
_pack_publish = _PUBLISH.pack
_pack_mark = JOURNAL_HEAD.pack
_TRANSIENT = JOURNAL_PUBLISH_TRANSIENT << 62
_DELIVERED = JOURNAL_DELIVERED << 62
_ACKNOWLEDGED = JOURNAL_ACKNOWLEDGED << 62
_ENTRY_MIN = SEGMENT_HEAD.size * 2 + PUBLISH_BODY.size  # of an unacknowledged entry: publish and delivered mark


def _anything(_entry: IndexEntry) -> bool:
    return True


class _Segment:
    """One segment: what the next flush will add to its file, and how many entries nobody has acknowledged."""

    __slots__ = ("acks", "has_file", "is_unread", "must_replace", "publishes", "size_bytes", "unacked")

    def __init__(self) -> None:
        self.unacked = 0
        self.publishes: dict[int, tuple[bool, bytes, bytes]] = {}  # relative number: persistent, journal entry, term
        self.acks: list[int] = []  # of entries that the file has
        self.has_file = False
        self.size_bytes = 0  # of the file
        self.must_replace = False  # the file is damaged, or lacks delivered marks: written anew, the old one kept as .bak
        self.is_unread = False  # `unacked` is what a clean stop noted; the first read checks it


class QueueIndex:
    """Open it with `open_index`.  Not for two threads at once: the queue that owns it holds a lock."""

    __slots__ = (
        "_buffer",
        "_bytes_max",
        "_entries",
        "_entries_max",
        "_failed",
        "_flushes",
        "_held_bytes",
        "_is_dirty",
        "_is_doubtful",
        "_journal",
        "_journal_bytes",
        "_per_segment",
        "_rewrites",
        "_segments",
        "before_flush",
        "disk",
        "folder",
        "miscounted",
        "next_seq_id",
        "problems",
        "read_count",
        "settings",
    )

    def __init__(self, disk: Disk, folder: str, settings: IndexSettings) -> None:
        """`folder` is the queue's; it is made with the first entry."""
        self.disk = disk
        self.folder = folder
        self.settings = settings
        self._per_segment = settings.segment_entries
        self._entries_max = settings.journal_entries_max
        self._bytes_max = settings.journal_bytes_max
        self.before_flush: Callable[[], None] | None = None  # makes the messages durable that entries name
        self.next_seq_id = 0
        self.read_count = 0  # segment files read
        self.miscounted = 0  # entries that were found, less those that a clean stop had noted; its reader sets it to 0
        self.problems: list[Problem] = []  # of segments that are not what a clean stop had noted
        self._segments: dict[int, _Segment] = {}
        self._buffer = bytearray()  # journal bytes not yet written
        self._journal: File | None = None
        self._failed: DiskError | None = None
        self._journal_bytes = 0
        self._entries = 0  # since the last flush
        self._held_bytes = 0
        self._is_dirty = False  # written to the journal, not synced
        self._is_doubtful = False  # the journal was emptied or written by a process that may have died before its sync
        self._rewrites = False  # a sync failed before: what the system shows may not be on the disk
        self._flushes = 0

    # --- changes

    def publish(self, seq_id: I64, msg_id: bytes, expiry_us: I64, size: I64, persistent: Bool, term: bytes | None) -> None:
        """A new message; `term` embeds it."""
        number: I64 = seq_id
        number = number // self._per_segment
        segment: _Segment | None = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = _Segment()
        term = term or b""
        size_bytes: I64 = len(term)
        head = _pack_publish(seq_id if persistent else _TRANSIENT | seq_id, msg_id, expiry_us, size, size_bytes)
        buffer: bytearray = self._buffer
        buffer += head
        if size_bytes:
            buffer += term
        buffer += _pack_mark(_DELIVERED | seq_id)
        segment.publishes[seq_id - number * self._per_segment] = persistent, head, term
        segment.unacked += 1
        self._entries += 2
        self._held_bytes += size_bytes
        if self._entries > self._entries_max or self._held_bytes > self._bytes_max:
            self.flush()

    def acknowledge(self, seq_ids: Iterable[int]) -> None:
        """Messages that are done with; each must be unacknowledged."""
        segment: _Segment
        number: I64
        count: I64 = 0
        buffer: bytearray = self._buffer
        for seq_id in seq_ids:
            buffer += _pack_mark(_ACKNOWLEDGED | seq_id)
            number = seq_id
            number = number // self._per_segment
            segment = self._segments[number]
            relative = seq_id - number * self._per_segment
            if segment.publishes.pop(relative, None) is None:
                segment.acks.append(relative)
            segment.unacked -= 1
            count += 1
        self._entries += count
        if self._entries > self._entries_max:
            self.flush()

    @property
    def needs_sync(self) -> bool:
        """Whether anything is not yet on the disk."""
        return bool(self._buffer) or self._is_dirty

    # --- the journal

    def _open_journal(self) -> File:
        if self._journal is None:
            self.disk.make_folder(self.folder)
            self._journal = self.disk.open(f"{self.folder}/{JOURNAL_NAME}", Mode.CREATE)
            self.disk.sync_folder(self.folder)
        return self._journal

    def _write_journal(self, size_bytes: int) -> None:
        self._check_usable()
        if size_bytes > 0:
            try:
                self._open_journal().write(self._journal_bytes, self._buffer[:size_bytes])
            except DiskError as error:
                self._fail(error)
                raise
            self._journal_bytes += size_bytes
            del self._buffer[:size_bytes]
            self._is_dirty = True

    def _fail(self, error: DiskError) -> None:
        """For good.  After a failed sync the next opening, before the machine's, is told to write again what it finds."""
        self._failed = error
        if error.operation.startswith("sync"):
            with contextlib.suppress(StoreError):
                self.disk.open(f"{self.folder}/{DOUBT_NAME}", Mode.CREATE).close()

    def _check_usable(self) -> None:
        """After a failed write or sync nobody knows what is on the disk: nothing is changed from there on."""
        if self._failed is not None:
            raise StoreReadOnly(f"{self.folder}: only readable after: {self._failed}") from self._failed

    def position(self) -> tuple[int, int]:
        """Where the changes so far end: for `sync`, once the messages they name are on the disk."""
        return self._flushes, self._journal_bytes + len(self._buffer)

    def sync(self, position: tuple[int, int] | None = None) -> None:
        """All changes so far, or up to `position`, survive a crash afterwards.

        An entry must not reach the disk before its message: an opening could not tell that message, never confirmed, from a
        lost one.  So what came after `position` is held back.
        """
        flushes, end = position or self.position()
        size_bytes = end - self._journal_bytes if flushes == self._flushes else 0
        if size_bytes > 0 and self._would_look_torn(size_bytes):
            self.flush()
            return
        self._write_journal(size_bytes)
        if self._is_dirty:
            try:
                self._open_journal().sync()
            except DiskError as error:
                self._fail(error)
                raise
            self._is_dirty = False

    def _would_look_torn(self, size_bytes: int) -> bool:
        """Whether the journal, with so much of the buffer, would end as one whose last mark lost its low bytes."""
        behind = (self._journal_bytes + size_bytes) % SECTOR_SIZE
        return behind < JOURNAL_HEAD.size and self._buffer.count(0, size_bytes - behind, size_bytes) == behind > 0

    def flush(self) -> None:
        """Move everything from the journal to the segments."""
        self._check_usable()
        if self._entries and self.before_flush is not None:
            self.before_flush()
        try:
            self._flush()
        except DiskError as error:
            self._fail(error)
            raise

    def _flush(self) -> None:
        made_file = False
        for number in [number for number, segment in self._segments.items() if segment.publishes or segment.acks]:
            segment = self._segments[number]
            if segment.unacked:
                made_file = made_file or not segment.has_file
                self._append(number, segment)
        if self._delete_done() or made_file:
            self.disk.sync_folder(self.folder)
        self._empty_journal()

    def _delete_done(self) -> bool:
        """Delete the files of segments without unacknowledged entries; whether there was one."""
        done = [number for number, segment in self._segments.items() if not segment.unacked]
        gone = [number for number in done if self._segments.pop(number).has_file]
        for number in gone:
            self.disk.delete(f"{self.folder}/{number}.idx")
        return bool(gone)

    def _append(self, number: int, segment: _Segment) -> None:
        path, data = f"{self.folder}/{number}.idx", _segment_bytes(segment)
        if segment.must_replace:
            replace_file(self.disk, f"{path}.bak", read_if_there(self.disk, path) or b"")  # a copy: the file is never away
            replace_file(self.disk, path, data)
            segment.must_replace, segment.size_bytes = False, 0
        elif (segment.size_bytes + len(data)) % SECTOR_SIZE == 1 and data.endswith(b"\0"):  # would look like a torn mark
            data = self._waiting_of(number, path, segment.size_bytes, data)
            replace_file(self.disk, path, data)
            segment.size_bytes = 0
        else:
            self._append_bytes(path, segment.size_bytes, data)
        segment.has_file = True
        segment.size_bytes += len(data)
        segment.publishes.clear()
        segment.acks.clear()

    def _waiting_of(self, number: int, path: str, size_bytes: int, data: bytes) -> bytes:
        """A segment written anew with what is not acknowledged: it ends otherwise then."""
        entries = self.settings.segment_entries
        whole = (read_if_there(self.disk, path) or b"")[:size_bytes] + data + b"\xff"  # so that its end is believed
        found = read_segment(whole, number * entries, entries, path, [])[0]
        return write_segment({relative: entry for relative, entry in found.items() if not entry.acked})

    def _settle_segment(self, path: str, data: bytes, *, is_journalled: bool) -> None:
        """Have on the disk what a killed process wrote, and may not have synced.

        What the journal has too goes from there as soon as this is loaded, so that is written again; so is everything after a
        failed sync, since no later one brings such pages to the disk.
        """
        if is_journalled or self._rewrites:
            self._append_bytes(path, 0, data)
            return
        file = self.disk.open(path, Mode.WRITE)
        try:
            file.sync()
        finally:
            file.close()

    def _append_bytes(self, path: str, offset: int, data: bytes) -> None:
        self.disk.make_folder(self.folder)
        file = self.disk.open(path, Mode.CREATE)
        try:
            file.write(offset, data)
            file.sync()
        finally:
            file.close()

    def _empty_journal(self) -> None:
        """What the buffer still holds is in the segments by now."""
        self._buffer = bytearray()
        if self._journal_bytes or self._is_doubtful:
            self._is_doubtful = False
            journal = self._open_journal()
            journal.truncate(0)
            journal.sync()
        self._journal_bytes = self._entries = self._held_bytes = 0
        self._is_dirty = False
        self._flushes += 1

    # --- reading

    def segment_end(self, seq_id: int) -> int:
        """The first sequence number of the next segment."""
        entries = self.settings.segment_entries
        return seq_id - seq_id % entries + entries

    def read(self, start: int, stop: int) -> list[IndexEntry]:
        """What is not acknowledged of start..stop, by sequence number; both ends in one segment's reach."""
        entries = self.settings.segment_entries
        number = start // entries
        first = number * entries
        assert stop <= first + entries, "one segment a read"
        segment = self._segments.get(number)
        if segment is None:
            return []
        found = self._read_file(number, segment)
        segment = self._segments[number]
        path = f"{self.folder}/{JOURNAL_NAME}"
        for relative in segment.acks:
            found.pop(relative, None)
        for relative, (persistent, head, term) in segment.publishes.items():
            found[relative] = _entry_of(first + relative, persistent, head, term, path)
        low, high = start - first, stop - first
        return [found[relative] for relative in sorted(found) if low <= relative < high]

    def _read_file(self, number: int, segment: _Segment) -> dict[int, IndexEntry]:
        """The unacknowledged entries of the file."""
        if not segment.has_file:
            return {}
        self.read_count += 1
        path = f"{self.folder}/{number}.idx"
        data = (read_if_there(self.disk, path) or b"")[: segment.size_bytes]
        problems: list[Problem] = []
        entries = self.settings.segment_entries
        found = read_segment(data, number * entries, entries, path, problems)[0]
        waiting = {relative: entry for relative, entry in found.items() if not entry.acked}
        if segment.is_unread:
            segment.is_unread = False
            if problems or len(waiting) != segment.unacked:
                return self._load_anew(number, segment.unacked)
        return waiting

    def _load_anew(self, number: int, noted: int) -> dict[int, IndexEntry]:
        """The entries of a segment that is not what the last stop noted; the difference is named and counted."""
        found = {entry.seq_id % self.settings.segment_entries: entry for entry in self._load_segment(number, {}, _anything)}
        self.miscounted += len(found) - noted
        path = f"{self.folder}/{number}.idx"
        self.problems.append(Problem(path, 0, "bad_recovery_terms", f"{noted} entries", str(len(found))))
        _LOG.warning("%s: %d entries, and the last stop noted %d", path, len(found), noted)
        return found

    def bounds(self) -> tuple[int, int]:
        """(first sequence number of the oldest segment with anything in it, next sequence number)."""
        numbers = [number for number, segment in self._segments.items() if segment.unacked]
        first = min(numbers) * self.settings.segment_entries if numbers else self.next_seq_id
        return first, self.next_seq_id

    @property
    def unacked(self) -> int:
        """Entries that nobody has acknowledged."""
        return sum(segment.unacked for segment in self._segments.values())

    def unacked_by_segment(self) -> dict[int, int]:
        """The same by segment number, without those that have none."""
        return {number: segment.unacked for number, segment in self._segments.items() if segment.unacked}

    # --- opening and closing

    def load(
        self,
        keep: Callable[[IndexEntry], bool],
        is_whole: Callable[[IndexEntry], bool] = _anything,
        has_message: HasMessage = no_message,
    ) -> Iterator[IndexEntry]:
        """Replay the journal, yielding every entry that is not acknowledged and that `keep` wants; others are acknowledged.

        `is_whole` says whether an entry's message was written to its end: what a crash tore is dropped.  `has_message` says
        whether a message store has an id; it is asked only where journal and segment disagree about an entry.
        The journal is in the segments afterwards, and torn tails are gone: a segment that is not whole is written anew.
        """
        journal = self._read_journal(is_whole)
        self._rewrites = self.disk.stat(f"{self.folder}/{DOUBT_NAME}") is not None
        for number in sorted({*numbers_in(self.disk, self.folder, "idx"), *journal}):
            yield from self._load_segment(number, journal.get(number, {}), keep, has_message)
        self._finish_load()

    def _read_journal(self, is_whole: Callable[[IndexEntry], bool]) -> dict[int, dict[int, JournalEntry]]:
        """The journal's entries by segment, then by sequence number."""
        path = f"{self.folder}/{JOURNAL_NAME}"
        journal, _end = read_journal_past(read_if_there(self.disk, path) or b"", path, [], is_whole)
        by_segment: dict[int, dict[int, JournalEntry]] = {}
        for seq_id, late in journal.items():
            by_segment.setdefault(seq_id // self.settings.segment_entries, {})[seq_id] = late
        self._entries = len(journal)
        return by_segment

    def resume(
        self,
        unacked: dict[int, int],
        next_seq_id: int,
        keep: Callable[[IndexEntry], bool] = _anything,
        has_message: HasMessage = no_message,
    ) -> bool:
        """Go on where a clean stop left off: `unacked` entries by segment, as its terms have them, all of which `keep` wants.

        Read are the oldest segment, the one that the next publish goes to, and those that the journal touches; the others
        when they are needed.  False when the files are not what the terms tell; then nobody should go on with this index.
        """
        sizes = self._segment_sizes()
        noted = {number: count for number, count in unacked.items() if count}
        journal = self._read_journal(_anything)
        first_last = {min(noted, default=0), next_seq_id // self.settings.segment_entries}
        read_now = {*journal, *(number for number in first_last if number in sizes)}
        if {*sizes, *journal} - read_now != noted.keys() - read_now:
            return False
        if not all(sizes[number] >= noted[number] * _ENTRY_MIN for number in noted.keys() - read_now):
            return False
        for number in sorted({*noted, *read_now}):
            if number in read_now:
                loaded = self._load_segment(number, journal.get(number, {}), keep, has_message)
                if sum(1 for _ in loaded) != noted.get(number, 0):
                    return False
            else:
                segment = self._segments[number] = _Segment()
                segment.unacked, segment.size_bytes = noted[number], sizes[number]
                segment.has_file = segment.is_unread = True
        if self.next_seq_id > next_seq_id:
            return False
        self.next_seq_id = next_seq_id
        self._finish_load()
        return True

    def _segment_sizes(self) -> dict[int, int]:
        """Bytes by number of the segments that have a file."""
        found = ((numbered(entry.name, "idx"), entry.size_bytes) for entry in self.disk.list(self.folder))
        return {number: size_bytes for number, size_bytes in found if number is not None}

    def _load_segment(
        self,
        number: int,
        journal: dict[int, JournalEntry],
        keep: Callable[[IndexEntry], bool],
        has_message: HasMessage = no_message,
    ) -> Iterator[IndexEntry]:
        entries = self.settings.segment_entries
        first = number * entries
        path = f"{self.folder}/{number}.idx"
        data = read_if_there(self.disk, path)
        problems: list[Problem] = []
        in_file, end = read_segment(data or b"", first, entries, path, problems)
        if problems:
            refuse_lost_entries(data or b"", first, entries, path, journal)
        segment = self._segments[number] = _Segment()
        segment.has_file = data is not None
        segment.size_bytes = len(data or b"")
        is_cut = end < segment.size_bytes  # zeros of a write that only the size survived: nothing behind them is ever read
        is_torn = self._drop_worse_copies(in_file, journal, first, has_message)
        segment.must_replace = bool(problems) or is_cut or is_torn or not all(entry.delivered for entry in in_file.values())
        known = {relative for relative, entry in in_file.items() if not entry.acked and not segment.must_replace}
        joined = join_journal(in_file, journal, first)
        highest = max((*joined, *(seq_id - first for seq_id in journal)), default=-1)
        self.next_seq_id = max(self.next_seq_id, first + highest + 1)
        for relative in sorted(joined):
            entry = joined[relative]
            if not entry.acked and keep(entry):
                segment.unacked += 1
                if relative not in known:
                    segment.publishes[relative] = entry.persistent, _head_of(entry), entry.term or b""
                yield entry
            elif relative in known:
                segment.acks.append(relative)
        if segment.must_replace and segment.unacked:
            self._append(number, segment)
        elif data:
            self._settle_segment(path, data, is_journalled=bool(journal))

    def _drop_worse_copies(
        self, in_file: dict[int, IndexEntry], journal: dict[int, JournalEntry], first: int, has_message: HasMessage
    ) -> bool:
        """Return whether an entry of the segment went, as after a crash; a damaged journal is reported."""
        differing = drop_worse_copies(in_file, journal, first, has_message)
        for problem, journal_counts in differing:
            if not journal_counts:
                self.problems.append(problem)
                _LOG.warning("%s at byte %d: %s: expected %s, found %s", *problem)
        return any(one.journal_counts for one in differing)

    def _finish_load(self) -> None:
        if self.disk.stat(self.folder) is not None:
            self.disk.sync_folder(self.folder)
        entry = self.disk.stat(f"{self.folder}/{JOURNAL_NAME}")
        self._journal_bytes = entry.size_bytes if entry is not None else 0
        self._is_doubtful = entry is not None
        new = sum(len(segment.publishes) + len(segment.acks) for segment in self._segments.values())
        self._entries = max(self._entries, new)
        self.flush()
        if self._rewrites:
            self._rewrites = False
            self.disk.delete(f"{self.folder}/{DOUBT_NAME}")

    def close(self) -> None:
        """Flush, then give the descriptor back."""
        try:
            if self._failed is None:
                self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give the descriptor back as a dying process does."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def delete(self) -> None:
        """Remove every file of the queue and its folder, for good.

        The name goes when all else is gone: a crash must not leave messages of a queue that nobody can name.
        """
        self.abandon()
        if self.disk.stat(self.folder) is None:
            return
        names = [entry.name for entry in self.disk.list(self.folder)]
        for name in names:
            if name != QUEUE_NAME_FILE:
                self.disk.delete(f"{self.folder}/{name}")
        self.disk.sync_folder(self.folder)
        if QUEUE_NAME_FILE in names:
            self.disk.delete(f"{self.folder}/{QUEUE_NAME_FILE}")
        self.disk.delete_folder(self.folder)
        self.disk.sync_folder(self.folder.rpartition("/")[0] or ".")


def _segment_bytes(segment: _Segment) -> bytes:
    """Publishes with their delivered marks, then acknowledgements."""
    pack = SEGMENT_HEAD.pack
    parts = []
    for relative, (persistent, head, term) in segment.publishes.items():
        parts.append(pack(SEGMENT_PUBLISH | (SEGMENT_PERSISTENT if persistent else 0) | relative))
        parts.append(head[JOURNAL_HEAD.size :])
        parts.append(term)
        parts.append(pack(SEGMENT_MARK | relative))
    parts.extend(pack(SEGMENT_MARK | relative) for relative in segment.acks)
    return b"".join(parts)


def _entry_of(seq_id: int, persistent: bool, head: bytes, term: bytes, file: str) -> IndexEntry:
    _head, msg_id, expiry_us, size, embedded = _PUBLISH.unpack(head)
    entry = IndexEntry(seq_id, msg_id, expiry_us, size, persistent, term or None, embedded > 0, file, 0)
    entry.delivered = True
    return entry


def _head_of(entry: IndexEntry) -> bytes:
    head = entry.seq_id if entry.persistent else _TRANSIENT | entry.seq_id
    return _PUBLISH.pack(head, entry.msg_id, entry.expiry_us, entry.size, len(entry.term or b""))


def is_compiled() -> bool:
    """Which build runs."""
    return cython.compiled


def source_hash() -> int:
    """Of the source this was built from; 0 when plain."""
    return SOURCE_HASH
