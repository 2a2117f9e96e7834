"""Read the version-2 index in a queue's folder: `N.qi`, and `N.qs` with the messages (docs/formats/rabbitmq-index-v2.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from storageio import StoreCorrupt, UnsupportedFormat, read_head
from storebytes.finding import Finding, finding_of

from ..files import map_if_there, numbers_in, read_if_there
from ..format import layout
from ..format.entry_cy import IndexEntry
from ..format.index_v2 import V2Entry, check_head, cleared_entries, is_unwritten, read_chunk, read_index
from .index_reader import Finish, IndexFolder
from .index_restore import Pair, restored_end, restored_index, restored_start, unindexed
from .intact_segment_cy import read_intact_v2
from .queue_store import QueueStore, StoredChunk, is_persistent

_UNINDEXED = "unindexed_message"
_LOSSES = ("lost_index", "bad_index_head", "torn_index", _UNINDEXED)  # after which entries are made from messages


class IndexV2:
    """Reads version 2 of an index."""

    def __init__(self, queue: IndexFolder) -> None:
        """`queue` is the folder; nothing is read yet."""
        self.queue = queue

    def segments(self, problems: list[Finding], in_order: Any, finish: Finish, first: int = 0) -> Iterator[Any]:
        """Yield each segment from the number `first` on: what `finish` makes of an intact one, and the entries of any other."""
        numbers = sorted(number for number in {*self.queue.segment_numbers(), *self._store_numbers()} if number >= first)
        read = in_order(lambda number: self._read(number, finish), numbers)
        for number, (index, stored, found) in zip(numbers, read, strict=True):
            self._record(number, index, stored)
            if found is None or self._lacks_entries(number, index):
                found = [self.entry_of(*pair, number) for pair in self.segment(number, problems)]
            yield found

    def _read(self, number: int, finish: Finish) -> tuple[bytes | None, memoryview | None, Any]:
        """Return the bytes of a segment's files, and what `finish` makes of an intact one."""
        index = read_if_there(self.queue.disk, f"{self.queue.path}/{number}.qi")
        stored = map_if_there(self.queue.disk, f"{self.queue.path}/{number}.qs")
        found = None
        if index is not None and stored is not None:
            found = read_intact_v2(index, stored, number, f"{self.queue.relative}/{number}.qs")
        return index, stored, None if found is None else finish(found)

    def _record(self, number: int, index: bytes | None, stored: memoryview | None) -> None:
        """Note what is no damage."""
        if index is not None:
            self._record_cleared(number, index, stored or memoryview(b""))
        if index is None or stored is None:
            return
        missing = None if self.queue.stores is None or is_unwritten(index) else unindexed(index, stored)
        if missing is not None and self.queue.stores is not None and not self._lacks_entries(number, index):
            found = f"{missing[1]} without one behind the last entry's"
            where = f"{self.queue.relative}/{number}.qs"
            self.queue.stores.notes.append(Finding(where, missing[0], _UNINDEXED, "an entry for each message", found))

    def _lacks_entries(self, number: int, index: bytes | None) -> bool:
        """Return whether the last stop was clean, and left more entries in a segment than it has."""
        if index is None or self.queue.stores is None:
            return False
        statuses = index[layout.V2_HEAD_SIZE :: layout.V2_ENTRY.size]
        return self.queue.stores.lacks_entries(self.queue.folder, number, len(statuses) - statuses.count(0))

    def is_cut(self, number: int) -> bool:
        """Return whether a segment's file is too short for the entries of a clean stop, or has none where it should have some.

        A file of zeros behind its head is not read where the terms of the stop count its entries.
        """
        path, stores = f"{self.queue.path}/{number}.qi", self.queue.stores
        entry = self.queue.disk.stat(path)
        capacity = max(0, entry.size_bytes - layout.V2_HEAD_SIZE) // layout.V2_ENTRY.size if entry is not None else 0
        if stores is None or not stores.was_stopped(self.queue.folder):
            return False
        is_short = stores.lacks_entries(self.queue.folder, number, capacity)
        return is_short or (not stores.has_terms and self._lacks_entries(number, read_if_there(self.queue.disk, path)))

    def _record_cleared(self, number: int, index: bytes, stored: memoryview) -> None:
        """Note entries that look acknowledged and whose messages are there: a flipped bit of the status leaves these."""
        cleared = cleared_entries(index, number) if self.queue.stores is not None else []
        taken = {row.location for row in read_index(index, number, "", [])} - {None} if cleared else set()
        found = [row for row in cleared if row.location not in taken and self._has_message(row, stored)]
        if found and self.queue.stores is not None:
            where = f"{self.queue.relative}/{number}.qi"
            text = f"status 0 beside a message, in {len(found)}: acknowledged, or damaged"
            self.queue.stores.notes.append(
                Finding(where, found[0].offset, "cleared_status", "entries of zeros, or present", text)
            )

    def _has_message(self, row: V2Entry, stored: memoryview) -> bool:
        if row.location is None:
            return (
                row.msg_id is not None
                and self.queue.stores is not None
                and self.queue.stores.is_in_persistent_store(row.msg_id)
            )
        with suppress(StoreCorrupt):
            return bool(read_chunk(stored, *row.location, ""))
        return False

    def _store_numbers(self) -> list[int]:
        """Return the numbers of the `.qs` files that have messages."""
        numbers = numbers_in(self.queue.disk, self.queue.path, "qs")
        entries = ((number, self.queue.disk.stat(f"{self.queue.path}/{number}.qs")) for number in numbers)
        return [number for number, entry in entries if entry is not None and entry.size_bytes > layout.V2_HEAD_SIZE]

    def segment(self, number: int, problems: list[Finding]) -> list[Pair]:
        """Return the entries of a segment with their messages, None for those in the shared store.

        What is damaged is corrected where the right bytes are known; a lost part of the index is restored from the messages.
        """
        where, store_file = f"{self.queue.relative}/{number}.qi", f"{self.queue.relative}/{number}.qs"
        data = read_if_there(self.queue.disk, f"{self.queue.path}/{number}.qi")
        stored = read_if_there(self.queue.disk, f"{self.queue.path}/{number}.qs") or b""
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
        store = QueueStore(stored, rows, store_file)
        if self._lacks_entries(number, data) and all(problem.kind != "lost_index" for problem in problems[known:]):
            problems += self._unindexed(number, data or b"", rows, store)
        is_damaged = any(problem.kind in _LOSSES for problem in problems[known:])
        is_durable = any(row.persistent for row in rows)
        found = []
        unwritten: list[Finding] = []
        for row in rows:
            pair = _with_message(row, store, where, problems, problems if self.queue.stores is None else unwritten)
            if pair is not None:
                found.append((self._corrected(*pair, is_durable, where, problems), pair[1]))
        stores = self.queue.stores
        if stores is not None and len(problems) == known and not stores.was_stopped(self.queue.folder):
            stores.notes += unwritten
        else:  # no kill came between an entry and its message, or damage hides whether one did
            problems += (one._replace(kind="message_lost") for one in unwritten)
        return found + self._restored(number, data or b"", rows, store) if is_damaged else found

    def _unindexed(self, number: int, data: bytes, rows: list[V2Entry], store: QueueStore) -> Iterator[Finding]:
        """Yield a problem if entries can be made for messages that the last clean stop had, and the index has not."""
        count = len(self._restored(number, data, rows, store))
        if count or not rows:
            found = f"none for {count}, which recover restores; acknowledged ones among them are delivered again"
            expected = "an entry for each message of a clean stop"
            yield Finding(f"{self.queue.relative}/{number}.qi", 0, _UNINDEXED, expected, found)

    def _restored(self, number: int, data: bytes, rows: list[V2Entry], store: QueueStore) -> list[Pair]:
        """Return entries in place of those that are lost with a part of the index, or with all of it."""
        lacks = self._lacks_entries(number, data)
        if len(data) < layout.V2_HEAD_SIZE or (not rows and (lacks or not any(data))):
            return restored_index(
                number, store, [] if self.queue.stores is None else self.queue.stores.without_entry(self.queue.queue)
            )
        if not any(data[: layout.V2_HEAD.size]):
            return restored_start(number, rows, store)
        whole, torn = divmod(len(data) - layout.V2_HEAD_SIZE, layout.V2_ENTRY.size)
        if lacks:  # the places behind the last entry may be those of the messages
            whole = rows[-1].seq_id % layout.V2_SEGMENT_ENTRIES + 1
        return restored_end(number, whole, rows, store) if torn or lacks else []

    def _corrected(
        self, row: V2Entry, chunk: StoredChunk | None, is_durable: bool, where: str, problems: list[Finding]
    ) -> V2Entry:
        """Return the entry with the id and the flag that its message shows, and report a difference."""
        stores = self.queue.stores
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
        """Yield the ids of the shared store's messages in the index, without looking for damage."""
        for number in self.queue.segment_numbers():
            data = read_if_there(self.queue.disk, f"{self.queue.path}/{number}.qi") or b""
            with suppress(UnsupportedFormat):
                yield from (row.msg_id for row in read_index(data, number, "", []) if row.msg_id is not None)

    def entry_of(self, row: V2Entry, chunk: StoredChunk | None, number: int) -> IndexEntry:
        """Return the entry of a row and its message, None for one in the shared store."""
        facts = row.expiry_us, row.size, row.persistent
        if chunk is None:
            file, offset = f"{self.queue.relative}/{number}.qi", row.offset
            made = IndexEntry(row.seq_id, row.msg_id or b"", *facts, None, False, file, offset)
        else:
            made = IndexEntry(row.seq_id, b"", *facts, chunk.term, True, f"{self.queue.relative}/{number}.qs", chunk.offset)
        made.delivered = True
        return made

    def unknown_heads(self) -> Iterator[Finding]:
        """Yield each `N.qi` and `N.qs` of another magic or version."""
        queue = self.queue
        for ending, magic in (("qi", layout.V2_INDEX_MAGIC), ("qs", layout.V2_STORE_MAGIC)):
            for number in numbers_in(queue.disk, queue.path, ending):
                file = f"{number}.{ending}"
                head = read_head(queue.disk, f"{queue.path}/{file}", layout.V2_HEAD_SIZE) or b""
                try:
                    if len(head) == layout.V2_HEAD_SIZE and any(head[: layout.V2_HEAD.size]):
                        check_head(head, magic, number, f"{queue.relative}/{file}")
                except UnsupportedFormat as error:
                    yield finding_of(error, "")
                except StoreCorrupt:
                    continue  # `verify` reports it


def _check_store_head(data: bytes, number: int, file: str, problems: list[Finding]) -> None:
    try:
        check_head(data, layout.V2_STORE_MAGIC, number, file)
    except StoreCorrupt as error:
        problems.append(Finding(file, 0, "bad_index_head", str(error.expected), str(error.found)))


def _with_message(
    row: V2Entry, store: QueueStore, where: str, problems: list[Finding], notes: list[Finding]
) -> tuple[V2Entry, StoredChunk | None] | None:
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
