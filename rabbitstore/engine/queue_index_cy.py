"""The index of one queue, version 1 (rabbit_queue_index; docs/formats/rabbitmq-index.md).

Every publish (with the delivered mark that 3.10 adds) and acknowledgement goes to the journal; `sync` makes the journal
durable.  `flush` appends new entries to the segments, syncs them, and only then empties the journal: a crash between the two
leaves entries twice, and the replay merges them.  A message that is published and acknowledged between two flushes never
reaches a segment.  A flush deletes each segment without unacknowledged entries.
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
from storageio import SECTOR_SIZE, Disk, DiskError, File, Mode, replace_file
from storageio.invariants import check_invariants

from ..files import numbers_in, read_if_there
from ..format.entry_cy import IndexEntry
from ..format.journal import JournalEntry, join_journal
from ..format.layout import (
    JOURNAL_ACKNOWLEDGED,
    JOURNAL_DELIVERED,
    JOURNAL_HEAD,
    JOURNAL_NAME,
    JOURNAL_PUBLISH_SIZE,
    JOURNAL_PUBLISH_TRANSIENT,
    PUBLISH_BODY,
    SEGMENT_HEAD,
    SEGMENT_MARK,
    SEGMENT_PERSISTENT,
    SEGMENT_PUBLISH,
)
from ..format.names import numbered
from storebytes.finding import Finding
from ..format.segment_cy import read_segment, write_segment
from ..read.entry_copies import HasMessage, drop_worse_copies, no_message
from ..read.salvage import read_journal_past_damage, refuse_lost_entries
from ..settings import IndexSettings
from .queue_index_base_cy import QueueIndexBase

if not cython.compiled:
    from storebytes._bytes_cy import I64, Bool, Size, Target, put_i64, target_of


_LOG = logging.getLogger("brokerstore")
_PUBLISH = Struct(JOURNAL_HEAD.format + PUBLISH_BODY.format[1:])  # as the journal has it
assert _PUBLISH.size == JOURNAL_PUBLISH_SIZE
_pack_publish = _PUBLISH.pack
_pack_mark = JOURNAL_HEAD.pack
_TRANSIENT = JOURNAL_PUBLISH_TRANSIENT << 62
_DELIVERED = JOURNAL_DELIVERED << 62
_ACKNOWLEDGED = JOURNAL_ACKNOWLEDGED << 62
_ACKNOWLEDGED_SIGNED = (JOURNAL_ACKNOWLEDGED - 4) << 62  # the same bits
_MARKS_BYTES = 128 * JOURNAL_HEAD.size
_ENTRY_MIN = SEGMENT_HEAD.size * 2 + PUBLISH_BODY.size  # bytes of an unacknowledged entry: publish and delivered mark


def _anything(_entry: IndexEntry) -> bool:
    return True


class _Segment:
    """One segment: the entries that the next flush appends, and the number of unacknowledged entries."""

    __slots__ = ("acks", "has_file", "is_unread", "must_replace", "publishes", "size_bytes", "unacked")

    def __init__(self) -> None:
        self.unacked = 0
        self.publishes: dict[int, tuple[bool, bytes, bytes]] = {}  # by relative number: persistent, journal entry, term
        self.acks: list[int] = []  # of entries in the file
        self.has_file = False
        self.size_bytes = 0  # of the file
        self.must_replace = False  # the file is damaged or lacks delivered marks: rewrite it, keep the old one as .bak
        self.is_unread = False  # `unacked` comes from a clean stop; the first read checks it


class QueueIndex(QueueIndexBase):
    """Version 1 of the index."""

    __slots__ = (
        "_buffer", "_bytes_max", "_entries", "_entries_max", "_flushes", "_is_dirty", "_journal", "_journal_bytes",
        "_journal_may_be_unsynced", "_loaded_end", "_marks",
    )  # fmt: skip

    def __init__(self, disk: Disk, folder: str, settings: IndexSettings) -> None:
        """`folder` is the queue's folder; the first entry creates it."""
        super().__init__(disk, folder, settings, settings.segment_entries, "idx")
        self._entries_max = settings.journal_entries_max
        self._bytes_max = settings.journal_bytes_max
        self._buffer = bytearray()  # journal bytes not yet written
        self._marks = memoryview(bytearray(_MARKS_BYTES))  # scratch space of `acknowledge`
        self._journal: File | None = None
        self._journal_bytes = 0
        self._entries = 0  # since the last flush
        self._is_dirty = False  # written to the journal, not synced
        self._journal_may_be_unsynced = False  # a process may have died between changing it and its sync
        self._flushes = 0
        self._loaded_end = -1  # of the journal's entries at the load; -1 if it is damaged

    # --- changes

    def publish(self, seq_id: I64, msg_id: bytes, expiry_us: I64, size: I64, persistent: Bool, term: bytes | None) -> None:
        """Add a message; `term` embeds it."""
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
        """Acknowledge messages; each must be unacknowledged."""
        segment: _Segment | None = None
        first: I64 = 0  # of the segment
        relative: I64
        number: I64
        size: Size = 0
        marks: Target = target_of(self._marks)
        buffer: bytearray = self._buffer
        try:
            for seq_id in seq_ids:
                number = seq_id
                relative = number - first
                if segment is None or relative < 0 or relative >= self._per_segment:
                    segment = self._segments[number // self._per_segment]
                    first = number - number % self._per_segment
                    relative = number - first
                if not segment.publishes or segment.publishes.pop(relative, None) is None:
                    segment.acks.append(relative)
                segment.unacked -= 1
                self._entries += 1
                if size == _MARKS_BYTES:
                    buffer += self._marks
                    size = 0
                put_i64(marks, size, _ACKNOWLEDGED_SIGNED | number)
                size += 8
        finally:
            buffer += self._marks[:size]
        if self._entries > self._entries_max:
            self.flush()

    @property
    def needs_sync(self) -> bool:
        """Whether a change is not yet on disk."""
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

    def position(self) -> tuple[int, int]:
        """Return where the changes so far end, for a later `sync` up to here."""
        return self._flushes, self._journal_bytes + len(self._buffer)

    def sync(self, position: tuple[int, int] | None = None) -> None:
        """Make all changes durable, or those up to `position`.

        An entry must not reach the disk before its message: an opening could not distinguish the unconfirmed message from a
        lost one.  So entries after `position` are held back.
        """
        flushes, end = position or self.position()
        size_bytes = end - self._journal_bytes if flushes == self._flushes else 0
        if size_bytes > 0 and self._would_read_as_torn(size_bytes):
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

    def _would_read_as_torn(self, size_bytes: int) -> bool:
        """Return whether the journal, with so much of the buffer, would end with what looks like a torn mark."""
        excess = (self._journal_bytes + size_bytes) % SECTOR_SIZE  # bytes in the last sector
        return excess < JOURNAL_HEAD.size and self._buffer.count(0, size_bytes - excess, size_bytes) == excess > 0

    def flush(self) -> None:
        """Move all entries from the journal to the segments."""
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
        check_invariants(self.check)

    def _delete_done(self) -> bool:
        """Delete the files of segments without unacknowledged entries; return whether there were any."""
        done = [number for number, segment in self._segments.items() if not segment.unacked]
        gone = [number for number in done if self._segments.pop(number).has_file]
        for number in gone:
            self.disk.unlink(f"{self.folder}/{number}.idx")
        return bool(gone)

    def _append(self, number: int, segment: _Segment) -> None:
        path, data = f"{self.folder}/{number}.idx", _segment_bytes(segment)
        if segment.must_replace:
            replace_file(self.disk, f"{path}.bak", read_if_there(self.disk, path) or b"")  # a copy: the file always exists
            replace_file(self.disk, path, data)
            segment.must_replace, segment.size_bytes = False, 0
        elif (segment.size_bytes + len(data)) % SECTOR_SIZE == 1 and data.endswith(b"\0"):  # would look like a torn mark
            data = self._unacked_of(number, path, segment.size_bytes, data)
            replace_file(self.disk, path, data)
            segment.size_bytes = 0
        else:
            self.disk.make_folder(self.folder)
            self._put(path, segment.size_bytes, data)
        segment.has_file = True
        segment.size_bytes += len(data)
        segment.publishes.clear()
        segment.acks.clear()

    def _unacked_of(self, number: int, path: str, size_bytes: int, data: bytes) -> bytes:
        """Return the segment with unacknowledged entries only: it then has another end."""
        entries = self.settings.segment_entries
        whole = (read_if_there(self.disk, path) or b"")[:size_bytes] + data + b"\xff"  # so that its end does not look torn
        found = read_segment(whole, number * entries, entries, path, [])[0]
        return write_segment({relative: entry for relative, entry in found.items() if not entry.acked})

    def _settle_segment(self, path: str, data: bytes, *, is_journalled: bool) -> None:
        """Make durable what a killed process wrote and may not have synced.

        Entries that are also in the journal are written again, since the journal is emptied next.  After a failed sync
        everything is: a later sync does not write such pages.
        """
        if is_journalled or self._rewrites:
            self._put(path, 0, data)
            return
        with contextlib.closing(self.disk.open(path, Mode.WRITE)) as file:
            file.sync()

    def _empty_journal(self) -> None:
        """Empty the journal and the buffer; the segments have all entries."""
        self._buffer.clear()  # in place, because `needs_sync` takes no lock
        if self._journal_bytes or self._journal_may_be_unsynced:
            self._journal_may_be_unsynced = False
            journal = self._open_journal()
            journal.truncate(0)
            journal.sync()
        self._journal_bytes = self._entries = self._held_bytes = 0
        self._is_dirty = False
        self._flushes += 1

    # --- reading

    def _parse(self, number: int, problems: list[Finding]) -> dict[int, IndexEntry]:
        path, entries = f"{self.folder}/{number}.idx", self.settings.segment_entries
        data = (read_if_there(self.disk, path) or b"")[: self._segments[number].size_bytes]
        found = read_segment(data, number * entries, entries, path, problems)[0]
        return {relative: entry for relative, entry in found.items() if not entry.acked}

    def _reloaded(self, number: int, found: dict[int, IndexEntry]) -> dict[int, IndexEntry]:
        return {entry.seq_id % self._per_segment: entry for entry in self._load_segment(number, {}, _anything)}

    def _published(self, number: int) -> dict[int, IndexEntry]:
        first, path = number * self._per_segment, f"{self.folder}/{JOURNAL_NAME}"
        publishes = self._segments[number].publishes
        return {
            relative: _entry_of(first + relative, persistent, head, term, path)
            for relative, (persistent, head, term) in publishes.items()
        }

    # --- opening and closing

    def load(
        self,
        keep: Callable[[IndexEntry], bool],
        is_whole: Callable[[IndexEntry], bool] = _anything,
        has_message: HasMessage = no_message,
    ) -> Iterator[IndexEntry]:
        """Replay the journal; yield every unacknowledged entry for which `keep` is true, and acknowledge the others.

        Entries for which `is_whole` is false are torn and dropped.  `has_message` (whether a message store has an id) decides
        where journal and segment disagree about an entry.  Afterwards the journal is empty, and every segment with a torn tail
        or other damage is rewritten.
        """
        journal = self._read_journal(is_whole)
        self._find_failed_sync()
        for number in sorted({*numbers_in(self.disk, self.folder, "idx"), *journal}):
            yield from self._load_segment(number, journal.get(number, {}), keep, has_message)
        self._finish_load()

    def _read_journal(self, is_whole: Callable[[IndexEntry], bool]) -> dict[int, dict[int, JournalEntry]]:
        """Return the journal's entries by segment, then by sequence number."""
        path = f"{self.folder}/{JOURNAL_NAME}"
        problems: list[Finding] = []
        journal, end = read_journal_past_damage(read_if_there(self.disk, path) or b"", path, problems, is_whole)
        self._loaded_end = -1 if problems else end
        by_segment: dict[int, dict[int, JournalEntry]] = {}
        for seq_id, logged in journal.items():
            by_segment.setdefault(seq_id // self.settings.segment_entries, {})[seq_id] = logged
        self._entries = len(journal)
        return by_segment

    def resume(
        self,
        unacked: dict[int, int],
        next_seq_id: int,
        keep: Callable[[IndexEntry], bool] = _anything,
        has_message: HasMessage = no_message,
    ) -> bool:
        """Continue from a clean stop with `unacked` entries by segment; return false when the files differ from the terms.

        This reads the oldest segment, the segment of the next publish, and those that the journal touches; the others are
        read when they are needed.  Do not use the index when the result is false.
        """
        sizes = self._segment_sizes()
        counts = {number: count for number, count in unacked.items() if count}
        journal = self._read_journal(_anything)
        first_last = {min(counts, default=0), next_seq_id // self.settings.segment_entries}
        read_now = {*journal, *(number for number in first_last if number in sizes)}
        if {*sizes, *journal} - read_now != counts.keys() - read_now:
            return False
        if not all(sizes[number] >= counts[number] * _ENTRY_MIN for number in counts.keys() - read_now):
            return False
        for number in sorted({*counts, *read_now}):
            if number in read_now:
                loaded = self._load_segment(number, journal.get(number, {}), keep, has_message)
                if sum(1 for _ in loaded) != counts.get(number, 0):
                    return False
            else:
                segment = self._segments[number] = _Segment()
                segment.unacked, segment.size_bytes = counts[number], sizes[number]
                segment.has_file = segment.is_unread = True
        if self.next_seq_id > next_seq_id:
            return False
        self.next_seq_id = next_seq_id
        self._finish_load()
        return True

    def _segment_sizes(self) -> dict[int, int]:
        """Return the sizes of the segment files by number."""
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
        problems: list[Finding] = []
        in_file, end = read_segment(data or b"", first, entries, path, problems)
        if problems:
            refuse_lost_entries(data or b"", first, entries, path, journal)
        segment = self._segments[number] = _Segment()
        segment.has_file = data is not None
        segment.size_bytes = len(data or b"")
        is_cut = end < segment.size_bytes  # a write of which only the size survived left zeros: no reader passes them
        is_torn = self._drop_worse_copies(in_file, journal, first, has_message)
        segment.must_replace = bool(problems) or is_cut or is_torn or not all(entry.delivered for entry in in_file.values())
        kept: set[int] = set()
        known = {relative for relative, entry in in_file.items() if not entry.acked and not segment.must_replace}
        joined = join_journal(in_file, journal, first)
        highest = max((*joined, *(seq_id - first for seq_id in journal)), default=-1)
        self.next_seq_id = max(self.next_seq_id, first + highest + 1)
        for relative in sorted(joined):
            entry = joined[relative]
            if not entry.acked and keep(entry):
                segment.unacked += 1
                kept.add(entry.seq_id)
                if relative not in known:
                    segment.publishes[relative] = entry.persistent, _head_of(entry), entry.term or b""
                yield entry
            elif relative in known:
                segment.acks.append(relative)
        self._complete_journal(journal, kept)
        if segment.must_replace and segment.unacked:
            self._append(number, segment)
        elif data:
            self._settle_segment(path, data, is_journalled=bool(journal))

    def _complete_journal(self, journal: dict[int, JournalEntry], kept: set[int]) -> None:
        """Add the marks that the next flush brings to a segment, before it changes.

        After a kill in between, RabbitMQ starts no queue whose journal has fewer marks of a message than the segment, or a
        delivery of a message that is gone (docs/formats/rabbitmq-index.md#reading).
        """
        marks = bytearray()
        for seq_id, logged in journal.items():
            if logged.acked:
                continue
            if not logged.delivered:
                marks += _pack_mark(_DELIVERED | seq_id)
            if seq_id not in kept:
                marks += _pack_mark(_ACKNOWLEDGED | seq_id)
        if marks and self._loaded_end >= 0:
            file = self._open_journal()
            file.truncate(self._loaded_end)
            file.write(self._loaded_end, marks)
            file.sync()
            self._loaded_end += len(marks)

    def _drop_worse_copies(
        self, in_file: dict[int, IndexEntry], journal: dict[int, JournalEntry], first: int, has_message: HasMessage
    ) -> bool:
        """Return whether an entry of the segment was dropped, as after a crash; report a damaged journal."""
        differing = drop_worse_copies(in_file, journal, first, has_message)
        for problem, journal_counts in differing:
            if not journal_counts:
                self.problems.append(problem)
                _LOG.warning("%s at byte %d: %s: expected %s, found %s", *problem.as_dict().values())
        return any(one.journal_counts for one in differing)

    def _finish_load(self) -> None:
        if self.disk.stat(self.folder) is not None:
            self.disk.sync_folder(self.folder)
        entry = self.disk.stat(f"{self.folder}/{JOURNAL_NAME}")
        self._journal_bytes = entry.size_bytes if entry is not None else 0
        self._journal_may_be_unsynced = entry is not None
        new = sum(len(segment.publishes) + len(segment.acks) for segment in self._segments.values())
        self._entries = max(self._entries, new)
        self.flush()
        self._forget_failed_sync()

    def check(self) -> None:
        """Assert that the segments' counts and sizes fit each other."""
        for segment in self._segments.values():
            in_file = segment.unacked - len(segment.publishes) + len(segment.acks)
            assert segment.unacked >= 0 and 0 <= in_file * _ENTRY_MIN <= segment.size_bytes
            assert segment.has_file or not segment.size_bytes

    def close(self) -> None:
        """Flush, then close the journal."""
        try:
            if self._failed is None:
                self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the journal without writing anything, as a dying process does."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None


def _segment_bytes(segment: _Segment) -> bytes:
    """Encode publishes with their delivered marks, then acknowledgements."""
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
