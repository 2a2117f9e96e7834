"""Read a queue's folder: index entries of either version, by sequence number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from storageio import Disk, StoreCorrupt, UnsupportedFormat, read_head
from storageio.ahead import in_turn
from storebytes.finding import Finding, finding_of

from ..files import SMALL_SIZE_MAX, map_if_there, numbers_in, read_if_there
from ..format import layout
from ..format.entry_cy import IndexEntry
from ..format.index_v2 import V2Entry, check_head, cleared_entries, is_unwritten, read_chunk, read_index
from ..format.journal import JournalEntry, join_journal
from ..format.names import index_version, queue_folder_name, read_queue_name, split_part_name
from .entry_copies import HasMessage, drop_worse_copies, no_message
from .index_restore import Pair, SharedMessage, restored_end, restored_index, restored_start, unindexed
from .intact_segment_cy import IntactSegment, read_intact, read_intact_v2
from .queue_store import Chunk, QueueStore, is_persistent
from .salvage import read_journal_past_damage, read_segment_past_damage

Finish = Callable[[IntactSegment], Any]
_LOSSES = ("lost_index", "bad_index_head", "torn_index")  # after which entries are made from messages


class SharedStores(Protocol):
    """What a version-2 index asks about the message stores; `notes` are states that a kill leaves."""

    notes: list[Finding]

    def similar_id(self, msg_id: bytes) -> bytes | None:
        """Return the id of a stored message that differs in one byte; None when this id itself is stored, or none is."""

    def without_entry(self, queue: QueueFolder) -> list[SharedMessage]:
        """Return the messages of the persistent store that were routed to the queue and that no index names."""

    def is_in_persistent_store(self, msg_id: bytes) -> bool:
        """Return whether the persistent store, and not the transient one, has the message."""


class QueueFolder:
    """The name and the index entries of a queue's folder.

    `name` is the whole name, `queue` and `priority` its parts.  Without a valid `.queue_name`, `is_named` is false and the
    folder's own name is used.
    """

    def __init__(
        self,
        disk: Disk,
        vhost_path: str,
        folder: str,
        segment_entries: int,
        problems: list[Finding],
        has_message: HasMessage = no_message,
        stores: SharedStores | None = None,
    ) -> None:
        """Read the name.  `has_message` decides where journal and segment disagree about an entry.

        `stores` correct damaged entries of version 2.
        """
        self.disk = disk
        self.stores = stores
        self.has_message = has_message
        self.folder = folder
        self.relative = f"{layout.QUEUES_FOLDER}/{folder}"
        self.path = f"{vhost_path}/{self.relative}"
        self.segment_entries = segment_entries
        text = read_head(disk, f"{self.path}/{layout.QUEUE_NAME_FILE}", SMALL_SIZE_MAX)
        named = read_queue_name(text, folder) if text is not None else None
        self.is_named = named is not None and queue_folder_name(*named) == folder
        self.vhost, self.name = named if named is not None and self.is_named else ("", os.fsencode(folder))
        self.queue, self.priority = split_part_name(self.name)
        self.unknown_version = index_version(text) if self.is_named and index_version(text) not in (1, 2) else None
        self.version = 2 if numbers_in(disk, self.path, "qi") or (text or b"").endswith(b"INDEX: v2\n") else 1
        if not self.is_named and (text or not self.is_half_made):
            where = f"{self.relative}/{layout.QUEUE_NAME_FILE}"
            problems.append(Finding(where, 0, "bad_queue_name", "the name that the folder is named after", str(text)[:200]))

    def segment_numbers(self) -> list[int]:
        """Return the numbers of the segments that have a file."""
        return numbers_in(self.disk, self.path, "idx" if self.version == 1 else "qi")

    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(entry.size_bytes for entry in self.disk.list(self.path))

    @property
    def has_index(self) -> bool:
        """Whether the folder has files of an index of its version; an empty queue of version 2 has none."""
        return bool(self.segment_numbers()) or self.disk.stat(f"{self.path}/{layout.JOURNAL_NAME}") is not None

    @property
    def is_half_made(self) -> bool:
        """Whether a kill interrupted a declaration or deletion: there is no name, and every index file is empty."""
        files = (entry for entry in self.disk.list(self.path) if entry.name.endswith((".idx", ".jif", ".qi", ".qs")))
        return not self.is_named and not any(entry.size_bytes for entry in files)

    def entries(self, problems: list[Finding]) -> Iterator[IndexEntry]:
        """Yield all entries by sequence number, including acknowledged ones that are still in the files."""
        for part in self._segments(problems, map, IntactSegment.entries):
            yield from part

    def segments(self, problems: list[Finding], work: Finish = lambda segment: segment) -> Iterator[Any]:
        """Yield the same segment by segment: what `work` makes of an `IntactSegment`, and a list of the entries of any other.

        Two threads read, and work, ahead of the caller.
        """
        return self._segments(problems, in_turn, work)

    def counted(self, problems: list[Finding]) -> Iterator[IntactSegment | list[IndexEntry]]:
        """Yield the same; an `IntactSegment` has only whole messages, and has counted them."""
        return self.segments(problems, _counted)

    def _segments(self, problems: list[Finding], in_order: Any, finish: Finish) -> Iterator[Any]:
        return (self._segments_v1 if self.version == 1 else self._segments_v2)(problems, in_order, finish)

    def journal(self, problems: list[Finding]) -> dict[int, dict[int, JournalEntry]]:
        """Return the journal's entries by segment, then by sequence number."""
        where = f"{self.relative}/{layout.JOURNAL_NAME}"
        data = read_if_there(self.disk, f"{self.path}/{layout.JOURNAL_NAME}")
        if data and not any(data):  # none at all may be a power failure before the first entry in it was confirmed
            expected = "the entries since the last segment was written"
            problems.append(Finding(where, 0, "lost_journal", expected, f"{len(data)} zeros"))
        entries, _end = read_journal_past_damage(data or b"", where, problems)
        by_segment: dict[int, dict[int, JournalEntry]] = {}
        for seq_id, entry in entries.items():
            by_segment.setdefault(seq_id // self.segment_entries, {})[seq_id] = entry
        return by_segment

    def segment(self, number: int, problems: list[Finding]) -> dict[int, IndexEntry]:
        """Return a version-1 segment by relative number, without the journal."""
        where = f"{self.relative}/{number}.idx"
        data = read_if_there(self.disk, f"{self.path}/{number}.idx") or b""
        found, end = read_segment_past_damage(data, number * self.segment_entries, self.segment_entries, where, problems)
        if found and end < len(data) and not any(data[end:]):  # a power failure may leave them; 3.8 opens no queue then
            problems.append(Finding(where, end, "torn_segment", "an entry", f"{len(data) - end} zeros"))
        return found

    def _segments_v1(self, problems: list[Finding], in_order: Any, finish: Finish) -> Iterator[Any]:
        """Yield each segment: what `finish` makes of an intact one, and the entries of any other."""
        journal = self.journal(problems)
        numbers = sorted({*self.segment_numbers(), *journal})
        alone = in_order(lambda number: self._intact_v1(number, finish), [one for one in numbers if one not in journal])
        for number in numbers:
            found = next(alone) if number not in journal else None
            if found is None:
                joined = self.joined(number, journal.get(number, {}), problems)
                found = [joined[relative] for relative in sorted(joined)]
            yield found

    def _intact_v1(self, number: int, finish: Finish) -> Any:
        data = map_if_there(self.disk, f"{self.path}/{number}.idx") or b""
        found = read_intact(data, number, self.segment_entries, f"{self.relative}/{number}.idx") if data else None
        return None if found is None else finish(found)

    def joined(self, number: int, journal: dict[int, JournalEntry], problems: list[Finding]) -> dict[int, IndexEntry]:
        """Return a version-1 segment by relative number, with the journal's entries of this segment."""
        first = number * self.segment_entries
        in_file = self.segment(number, problems)
        if not in_file and not journal:
            self._report_lost_segment(number, problems)
        problems += (one.problem for one in drop_worse_copies(in_file, journal, first, self.has_message))
        return join_journal(in_file, journal, first)

    def _report_lost_segment(self, number: int, problems: list[Finding]) -> None:
        """Report a segment without entries, or of zeros: they are in no file, since a flush empties the journal after them."""
        data = read_if_there(self.disk, f"{self.path}/{number}.idx")
        if data is not None and not any(data):
            where = f"{self.relative}/{number}.idx"
            found = f"{len(data)} zeros" if data else "an empty file"
            problems.append(Finding(where, 0, "lost_index", "the entries of a segment", found))

    def _segments_v2(self, problems: list[Finding], in_order: Any, finish: Finish) -> Iterator[Any]:
        """Do the same for version 2."""
        numbers = sorted({*self.segment_numbers(), *self._store_numbers()})
        read = in_order(lambda number: self._read_v2(number, finish), numbers)
        for number, (index, stored, found) in zip(numbers, read, strict=True):
            self._note_v2(number, index, stored)
            if found is None:
                found = [self._from_v2(*pair, number) for pair in self.segment_v2(number, problems)]
            yield found

    def _read_v2(self, number: int, finish: Finish) -> tuple[bytes | None, memoryview | None, Any]:
        """Return the bytes of a version-2 segment's files, and what `finish` makes of an intact one."""
        index = read_if_there(self.disk, f"{self.path}/{number}.qi")
        stored = map_if_there(self.disk, f"{self.path}/{number}.qs")
        found = None
        if index is not None and stored is not None:
            found = read_intact_v2(index, stored, number, f"{self.relative}/{number}.qs")
        return index, stored, None if found is None else finish(found)

    def _note_v2(self, number: int, index: bytes | None, stored: memoryview | None) -> None:
        """Note what is no damage."""
        if index is not None:
            self._note_cleared(number, index, stored or memoryview(b""))
        if index is None or stored is None:
            return
        missing = None if self.stores is None or is_unwritten(index) else unindexed(index, stored)
        if missing is not None and self.stores is not None:
            found = f"{missing[1]} without one behind the last entry's"
            where = f"{self.relative}/{number}.qs"
            self.stores.notes.append(Finding(where, missing[0], "unindexed_message", "an entry for each message", found))

    def _note_cleared(self, number: int, index: bytes, stored: memoryview) -> None:
        """Note entries that look acknowledged and whose messages are there: a flipped bit of the status leaves these."""
        cleared = cleared_entries(index, number) if self.stores is not None else []
        taken = {row.location for row in read_index(index, number, "", [])} - {None} if cleared else set()
        found = [row for row in cleared if row.location not in taken and self._has_message(row, stored)]
        if found and self.stores is not None:
            where = f"{self.relative}/{number}.qi"
            text = f"status 0 beside a message, in {len(found)}: acknowledged, or damaged"
            self.stores.notes.append(Finding(where, found[0].offset, "cleared_status", "entries of zeros, or present", text))

    def _has_message(self, row: V2Entry, stored: memoryview) -> bool:
        if row.location is None:
            return row.msg_id is not None and self.stores is not None and self.stores.is_in_persistent_store(row.msg_id)
        with suppress(StoreCorrupt):
            return bool(read_chunk(stored, *row.location, ""))
        return False

    def _store_numbers(self) -> list[int]:
        """Return the numbers of the `.qs` files that have messages."""
        numbers = numbers_in(self.disk, self.path, "qs")
        entries = ((number, self.disk.stat(f"{self.path}/{number}.qs")) for number in numbers)
        return [number for number, entry in entries if entry is not None and entry.size_bytes > layout.V2_HEAD_SIZE]

    def segment_v2(self, number: int, problems: list[Finding]) -> list[Pair]:
        """Return the entries of a version-2 segment with their messages, None for those in the shared store.

        What is damaged is corrected where the right bytes are known; a lost part of the index is restored from the messages.
        """
        where, store_file = f"{self.relative}/{number}.qi", f"{self.relative}/{number}.qs"
        data = read_if_there(self.disk, f"{self.path}/{number}.qi")
        stored = read_if_there(self.disk, f"{self.path}/{number}.qs") or b""
        rows: list[V2Entry] = []
        known = len(problems)
        try:
            if data is None or (is_unwritten(data) and len(stored) > layout.V2_HEAD_SIZE):
                problems.append(Finding(where, 0, "lost_index", "the index of the messages in the .qs file", "none"))
            elif not is_unwritten(data):
                rows = read_index(data, number, where, problems)
            if stored and (not rows or any(row.location is not None for row in rows)):
                _check_store_head(stored, number, store_file, problems)
        except UnsupportedFormat as error:
            problems.append(finding_of(error, ""))
            return []
        is_damaged = any(problem.kind in _LOSSES for problem in problems[known:])
        store = QueueStore(stored, rows, store_file)
        is_durable = any(row.persistent for row in rows)
        found = []
        unwritten: list[Finding] = []
        for row in rows:
            pair = _with_message(row, store, where, problems, problems if self.stores is None else unwritten)
            if pair is not None:
                found.append((self._corrected(*pair, is_durable, where, problems), pair[1]))
        if self.stores is not None and len(problems) == known:
            self.stores.notes += unwritten
        else:  # the file is damaged, so nothing shows that it ends where the server stopped
            problems += (one._replace(kind="message_lost") for one in unwritten)
        return found + self._restored(number, data or b"", rows, store) if is_damaged else found

    def _restored(self, number: int, data: bytes, rows: list[V2Entry], store: QueueStore) -> list[Pair]:
        """Return entries in place of those that are lost with a part of the index, or with all of it."""
        if len(data) < layout.V2_HEAD_SIZE or not (rows or any(data)):
            return restored_index(number, store, [] if self.stores is None else self.stores.without_entry(self))
        if not any(data[: layout.V2_HEAD.size]):
            return restored_start(number, rows, store)
        whole, torn = divmod(len(data) - layout.V2_HEAD_SIZE, layout.V2_ENTRY.size)
        return restored_end(number, whole, rows, store) if torn else []

    def _corrected(self, row: V2Entry, chunk: Chunk | None, is_durable: bool, where: str, problems: list[Finding]) -> V2Entry:
        """Return the entry with the id and the flag that its message shows, and report a difference."""
        stores = self.stores
        similar = stores.similar_id(row.msg_id) if stores is not None and row.msg_id is not None else None
        if similar is not None and row.msg_id is not None:
            problems.append(Finding(where, row.offset, "bad_index_entry", f"message {similar.hex()}", row.msg_id.hex()))
            row = row._replace(msg_id=similar)
        if row.persistent:
            return row
        if chunk is not None:
            is_wrong = is_durable and is_persistent(chunk.term)
        else:
            is_wrong = stores is not None and row.msg_id is not None and stores.is_in_persistent_store(row.msg_id)
        if is_wrong:
            problems.append(Finding(where, row.offset, "bad_index_entry", "persistent, as its message", "transient"))
        return row._replace(persistent=is_wrong)

    def named_ids(self) -> Iterator[bytes]:
        """Yield the ids of the shared store's messages in the version-2 index, without looking for damage."""
        for number in self.segment_numbers() if self.version == 2 else []:
            data = read_if_there(self.disk, f"{self.path}/{number}.qi") or b""
            with suppress(UnsupportedFormat):
                yield from (row.msg_id for row in read_index(data, number, "", []) if row.msg_id is not None)

    def _from_v2(self, row: V2Entry, chunk: Chunk | None, number: int) -> IndexEntry:
        facts = row.expiry_us, row.size, row.persistent
        if chunk is None:
            file, offset = f"{self.relative}/{number}.qi", row.offset
            made = IndexEntry(row.seq_id, row.msg_id or b"", *facts, None, False, file, offset)
        else:
            made = IndexEntry(row.seq_id, b"", *facts, chunk.term, True, f"{self.relative}/{number}.qs", chunk.offset)
        made.delivered = True
        return made


def _counted(segment: IntactSegment) -> IntactSegment | list[IndexEntry]:
    return segment if segment.count_messages() else segment.entries()


def _check_store_head(data: bytes, number: int, file: str, problems: list[Finding]) -> None:
    try:
        check_head(data, layout.V2_STORE_MAGIC, number, file)
    except StoreCorrupt as error:
        problems.append(Finding(file, 0, "bad_index_head", str(error.expected), str(error.found)))


def _with_message(
    row: V2Entry, store: QueueStore, where: str, problems: list[Finding], notes: list[Finding]
) -> tuple[V2Entry, Chunk | None] | None:
    """Return an entry and its message; None, with a problem or a note added, when its own store does not have it."""
    if row.location is None:
        return row, None
    offset, length = row.location
    try:
        chunk = store.find(row)
    except StoreCorrupt as error:
        if store.is_unwritten(row):
            found = f"{store.file} ends before it: a killed server did not write the message, and drops it at its next start"
            notes.append(Finding(where, row.offset, "unwritten_message", f"{length} bytes of message", found))
        else:
            found = f"{store.file} at {offset}: {error.reason}"
            problems.append(Finding(where, row.offset, "message_lost", f"{length} bytes of message", found))
        return None
    if (chunk.offset, chunk.length) != row.location:
        expected = f"{chunk.length} bytes at {chunk.offset}"
        problems.append(Finding(where, row.offset, "bad_index_entry", expected, f"{length} bytes at {offset}"))
        row = row._replace(location=(chunk.offset, chunk.length))
    elif chunk.is_damaged:
        problems.append(Finding(store.file, offset, "bad_message_head", f"length {length} and its checksum", "others"))
    return row, chunk
