"""The index of one queue, version 2 (rabbit_classic_queue_index_v2; docs/formats/rabbitmq-index-v2.md).

There is no journal: `sync` appends new messages to `N.qs` and syncs it, then writes the entries into `N.qi` and syncs that.  So
an entry on disk has its message on disk.  A message that is published and acknowledged between two syncs is never written.  A
segment without unacknowledged entries is deleted: first its entries become zeros, so that no crash leaves an entry without its
message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from storageio import Disk, DiskError, Mode, StoreCorrupt
from storageio.invariants import check_invariants
from storebytes.finding import Finding

from ..files import numbers_in, read_if_there
from ..format import layout
from ..format.entry_cy import IndexEntry
from ..format.index_v2 import NO_ENTRY, V2Entry, encode_chunk, encode_entry, encode_head, is_unwritten, read_chunk, read_index
from ..read.entry_copies import HasMessage, no_message
from ..settings import IndexSettings
from .queue_index_base_cy import QueueIndexBase

_ENTRIES = layout.V2_SEGMENT_ENTRIES
_ZERO_RUN = bytes(64)  # a sector that never reached the disk leaves at least so many zeros


def _anything(_entry: IndexEntry) -> bool:
    return True


class _Publish(NamedTuple):
    """An entry that is not in its file; `order` is its place among the changes."""

    order: int
    msg_id: bytes
    expiry_us: int
    size: int
    persistent: bool
    term: bytes | None


class _V2Segment:
    """One segment: the changes that the next sync writes, and the number of unacknowledged entries."""

    __slots__ = ("acks", "has_file", "is_unread", "publishes", "store_bytes", "unacked")

    def __init__(self) -> None:
        self.unacked = 0
        self.publishes: dict[int, _Publish] = {}  # by relative number
        self.acks: dict[int, int] = {}  # of entries in the file: order by relative number
        self.has_file = False
        self.store_bytes = 0  # of `N.qs`
        self.is_unread = False  # `unacked` comes from a clean stop; the first read checks it


class QueueIndexV2(QueueIndexBase):
    """Version 2 of the index."""

    def __init__(self, disk: Disk, folder: str, settings: IndexSettings) -> None:
        """`folder` is the queue's folder; the first entry creates it."""
        super().__init__(disk, folder, settings, _ENTRIES, "qi")
        self._changes = 0  # publishes and acknowledgements so far
        self._written = 0  # of them on disk

    # --- changes

    def publish(self, seq_id: int, msg_id: bytes, expiry_us: int, size: int, persistent: bool, term: bytes | None) -> None:
        """Add a message; `term` embeds it."""
        number, relative = divmod(seq_id, _ENTRIES)
        segment = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = _V2Segment()
        self._changes += 1
        segment.publishes[relative] = _Publish(self._changes, msg_id, expiry_us, size, persistent, term)
        segment.unacked += 1
        self._held_bytes += len(term or b"")
        if self._held_bytes > self.settings.journal_bytes_max:
            self.flush()

    def acknowledge(self, seq_ids: Iterable[int]) -> None:
        """Acknowledge messages; each must be unacknowledged."""
        for seq_id in seq_ids:
            number, relative = divmod(seq_id, _ENTRIES)
            segment = self._segments[number]
            self._changes += 1
            dropped = segment.publishes.pop(relative, None)
            if dropped is None:
                segment.acks[relative] = self._changes
            else:
                self._held_bytes -= len(dropped.term or b"")
            segment.unacked -= 1

    @property
    def needs_sync(self) -> bool:
        """Whether a change is not yet on disk."""
        return self._written < self._changes

    def position(self) -> tuple[int, int]:
        """Return where the changes so far end, for a later `sync` up to here."""
        return 0, self._changes

    def sync(self, position: tuple[int, int] | None = None) -> None:
        """Make all changes durable, or those up to `position`.

        An entry must not reach the disk before its message.  So publishes after `position` are held back.
        """
        self._check_usable()
        limit = self._changes if position is None else position[1]
        if limit <= self._written:
            return
        try:
            self._write(limit)
        except DiskError as error:
            self._fail(error)
            raise
        self._written = limit

    def flush(self) -> None:
        """Write everything, after the messages that it refers to."""
        self._check_usable()
        if self.needs_sync and self.before_flush is not None:
            self.before_flush()
        self.sync()
        check_invariants(self.check)

    # --- writing

    def _write(self, limit: int) -> None:
        for number, segment in list(self._segments.items()):
            if segment.publishes or segment.acks:
                self._write_segment(number, segment, limit if segment.unacked else self._changes)
            if not segment.unacked:
                self._delete_segment(number, segment)

    def _write_segment(self, number: int, segment: _V2Segment, limit: int) -> None:
        new = {relative: one for relative, one in segment.publishes.items() if one.order <= limit}
        gone = [relative for relative, order in segment.acks.items() if order <= limit]
        if not new and not gone:
            return
        if not segment.has_file:
            self._create(number)
            segment.has_file = True
        locations = self._append_messages(number, segment, new)
        entries = {
            relative: encode_entry(one.persistent, one.msg_id, locations.get(relative), one.size, one.expiry_us)
            for relative, one in new.items()
        }
        entries |= dict.fromkeys(gone, NO_ENTRY)
        self._write_entries(number, entries)
        for relative, one in new.items():
            del segment.publishes[relative]
            self._held_bytes -= len(one.term or b"")
        for relative in gone:
            del segment.acks[relative]

    def _create(self, number: int) -> None:
        """Create the index file with its head, which is durable before any entry."""
        self.disk.make_folder(self.folder)
        self._put(f"{self.folder}/{number}.qi", 0, encode_head(layout.V2_INDEX_MAGIC, number))
        self.disk.sync_folder(self.folder)

    def _append_messages(self, number: int, segment: _V2Segment, new: dict[int, _Publish]) -> dict[int, tuple[int, int]]:
        """Append the embedded messages to the queue's store and sync it; return (offset, length) by relative number."""
        is_first = not segment.store_bytes
        parts = [encode_head(layout.V2_STORE_MAGIC, number)] if is_first else []
        at = segment.store_bytes or layout.V2_HEAD_SIZE
        found = {}
        for relative in sorted(new):
            term = new[relative].term
            if term is not None:
                found[relative] = at, len(term)
                parts.append(encode_chunk(term))
                at += layout.V2_CHUNK.size + len(term)
        if found:
            self._put(f"{self.folder}/{number}.qs", segment.store_bytes, b"".join(parts))
            if is_first:
                self.disk.sync_folder(self.folder)
            segment.store_bytes = at
        return found

    def _write_entries(self, number: int, entries: dict[int, bytes]) -> None:
        """Write entries into their places, neighbours together, and sync the file."""
        order = sorted(entries)
        with contextlib.closing(self.disk.open(f"{self.folder}/{number}.qi", Mode.CREATE)) as file:
            at = 0
            while at < len(order):
                run = [entries[order[at]]]
                while at + len(run) < len(order) and order[at + len(run)] == order[at] + len(run):
                    run.append(entries[order[at + len(run)]])
                file.write(_offset(order[at]), b"".join(run))
                at += len(run)
            file.sync()

    def _delete_segment(self, number: int, segment: _V2Segment) -> None:
        """Delete the files of a segment whose entries on disk are all acknowledged, the messages first."""
        if segment.store_bytes:
            self.disk.unlink(f"{self.folder}/{number}.qs")
            self.disk.sync_folder(self.folder)  # a store without an index is damage, an index of zeros is not
        if segment.has_file:
            self.disk.unlink(f"{self.folder}/{number}.qi")
        del self._segments[number]

    # --- reading

    def _parse(self, number: int, problems: list[Finding]) -> dict[int, IndexEntry]:
        path = f"{self.folder}/{number}.qi"
        data = read_if_there(self.disk, path) or b""
        if is_unwritten(data):
            return {}
        store = read_if_there(self.disk, f"{self.folder}/{number}.qs") or b""
        first = number * _ENTRIES
        rows = read_index(data, number, path, problems)
        return {row.seq_id - first: _from_row(row, store, f"{self.folder}/{number}", problems) for row in rows}

    def _reloaded(self, number: int, found: dict[int, IndexEntry]) -> dict[int, IndexEntry]:
        self._segments[number].unacked = len(found)
        return found

    def _published(self, number: int) -> dict[int, IndexEntry]:
        first, path = number * _ENTRIES, f"{self.folder}/{number}.qi"
        return {relative: _entry(first + relative, one, path) for relative, one in self._segments[number].publishes.items()}

    # --- opening and closing

    def load(
        self,
        keep: Callable[[IndexEntry], bool],
        _is_whole: Callable[[IndexEntry], bool] = _anything,
        _has_message: HasMessage = no_message,
    ) -> Iterator[IndexEntry]:
        """Yield every unacknowledged entry for which `keep` is true; acknowledge the others, and those without a message.

        A message that is torn, or behind its file's end, was never synced: the entry is dropped, with a problem.  Raise
        `StoreCorrupt` for other damage, which `recover` may repair.
        """
        self._find_failed_sync()
        for number in numbers_in(self.disk, self.folder, "qi"):
            yield from self._load_segment(number, keep)
        self._finish_load()

    def _load_segment(self, number: int, keep: Callable[[IndexEntry], bool]) -> Iterator[IndexEntry]:
        path = f"{self.folder}/{number}.qi"
        segment = self._segments[number] = _V2Segment()
        data = read_if_there(self.disk, path) or b""
        segment.has_file = not is_unwritten(data)
        entry = self.disk.stat(f"{self.folder}/{number}.qs")
        segment.store_bytes = entry.size_bytes if entry is not None else 0
        if segment.has_file:
            data = self._settle(path, data)
            self._settle_store(number)
        problems: list[Finding] = []
        found = self._parse(number, problems)
        _refuse_damage(problems)
        self.problems += problems
        slots = max(0, len(data) - layout.V2_HEAD_SIZE) // layout.V2_ENTRY.size
        self.next_seq_id = max(self.next_seq_id, number * _ENTRIES + min(slots, _ENTRIES))
        for relative in sorted(found):
            one = found[relative]
            if keep(one) and not (one.embedded and not one.term):
                segment.unacked += 1
                yield one
            else:
                self._changes += 1
                segment.acks[relative] = self._changes

    def _settle(self, path: str, data: bytes) -> bytes:
        """Make durable what a killed process wrote and may not have synced; cut a torn entry, which nobody confirmed."""
        whole = len(data) - (len(data) - layout.V2_HEAD_SIZE) % layout.V2_ENTRY.size
        with contextlib.closing(self.disk.open(path, Mode.WRITE)) as file:
            if whole < len(data):
                file.truncate(whole)
            if self._rewrites:
                file.write(0, data[:whole])
            file.sync()
        return data[:whole]

    def _settle_store(self, number: int) -> None:
        path = f"{self.folder}/{number}.qs"
        data = read_if_there(self.disk, path) if self._rewrites else None
        if self.disk.stat(path) is not None:
            with contextlib.closing(self.disk.open(path, Mode.WRITE)) as file:
                if data is not None:
                    file.write(0, data)
                file.sync()

    def _finish_load(self) -> None:
        if self.disk.stat(self.folder) is None:
            return
        for number in numbers_in(self.disk, self.folder, "qs"):
            if number not in self._segments:
                self._delete_empty_store(number)
        for number, segment in list(self._segments.items()):
            if not segment.unacked and not segment.acks:
                segment.has_file = True
                self._delete_segment(number, segment)
        self.disk.sync_folder(self.folder)
        self.sync()
        self._forget_failed_sync()

    def _delete_empty_store(self, number: int) -> None:
        """Delete a store without an index; raise `StoreCorrupt` when it has messages, since `recover` restores the index."""
        path = f"{self.folder}/{number}.qs"
        entry = self.disk.stat(path)
        if entry is not None and entry.size_bytes > layout.V2_HEAD_SIZE:
            found = "none: run recover"
            raise StoreCorrupt("messages without an index", file=path, offset=0, expected=f"{number}.qi", found=found)
        self.disk.delete(path)

    def resume(
        self,
        unacked: dict[int, int],
        next_seq_id: int,
        keep: Callable[[IndexEntry], bool] = _anything,
        _has_message: HasMessage = no_message,
    ) -> bool:
        """Continue from a clean stop with `unacked` entries by segment; return false when the files differ from the terms.

        This reads the oldest segment and that of the next publish; the others are read when they are needed.  Do not use the
        index when the result is false.
        """
        counts = {number: count for number, count in unacked.items() if count}
        numbers = numbers_in(self.disk, self.folder, "qi") if self.disk.stat(self.folder) is not None else []
        if not counts.keys() <= set(numbers):
            return False
        read_now = {min(counts, default=0), next_seq_id // _ENTRIES, *(set(numbers) - counts.keys())}
        for number in numbers:
            if number in read_now:
                if sum(1 for _ in self._load_segment(number, keep)) != counts.get(number, 0):
                    return False
            elif not self._trust(number, counts[number]):
                return False
        if self.next_seq_id > next_seq_id:
            return False
        self.next_seq_id = next_seq_id
        self._finish_load()
        return True

    def _trust(self, number: int, count: int) -> bool:
        """Take over the count of a segment; return whether its file is long enough."""
        index, store = (self.disk.stat(f"{self.folder}/{number}.{ending}") for ending in ("qi", "qs"))
        assert index is not None
        segment = self._segments[number] = _V2Segment()
        segment.unacked, segment.has_file, segment.is_unread = count, True, True
        segment.store_bytes = store.size_bytes if store is not None else 0
        return index.size_bytes >= _offset(count)

    def check(self) -> None:
        """Assert that the counts fit each other."""
        for segment in self._segments.values():
            assert segment.unacked >= len(segment.publishes)
            assert segment.has_file or not segment.acks
            assert self.needs_sync or (not segment.publishes and not segment.acks)

    def close(self) -> None:
        """Write everything that waits."""
        if self._failed is None:
            self.flush()


def _offset(relative: int) -> int:
    return layout.V2_HEAD_SIZE + relative * layout.V2_ENTRY.size


def _entry(seq_id: int, one: _Publish, file: str) -> IndexEntry:
    entry = IndexEntry(seq_id, one.msg_id, one.expiry_us, one.size, one.persistent, one.term, one.term is not None, file, 0)
    entry.delivered = True
    return entry


def _from_row(row: V2Entry, store: bytes, path: str, problems: list[Finding]) -> IndexEntry:
    """Return the entry with its embedded message; with an empty one, and a problem, when the message is not whole."""
    term = None
    if row.location is not None:
        try:
            term = read_chunk(store, *row.location, f"{path}.qs")
        except StoreCorrupt as error:
            start = row.location[0] + layout.V2_CHUNK.size
            data = store[start : start + row.location[1]]
            is_torn = len(data) < row.location[1] or _ZERO_RUN in data
            kind = "message_torn" if is_torn else "message_lost"
            problems.append(Finding(f"{path}.qi", row.offset, kind, f"{row.location[1]} bytes of message", error.reason))
            term = b""
    entry = IndexEntry(
        row.seq_id, row.msg_id or b"", row.expiry_us, row.size, row.persistent, term, term is not None, f"{path}.qi", row.offset
    )
    entry.delivered = True
    return entry


def _refuse_damage(problems: list[Finding]) -> None:
    """Raise `StoreCorrupt` for damage that `recover` may repair; an opening would drop the messages."""
    for one in problems:
        if one.kind not in ("message_torn", "transient_in_memory"):
            found = f"{one.found}: run recover"
            raise StoreCorrupt("damaged index", file=one.file, offset=one.offset, expected=one.expected, found=found)
