"""Read a queue's folder: index entries of either version, by sequence number."""

from __future__ import annotations

from collections.abc import Iterator

from storageio import Disk, StoreCorrupt, UnsupportedFormat

from ..files import numbers_in, read_all, read_head, read_if_there
from ..format import layout
from ..format.entry_cy import IndexEntry
from ..format.index_v2 import V2Entry, check_head, read_chunk, read_index
from ..format.journal import JournalEntry, join_journal
from ..format.names import index_version, queue_folder_name, read_queue_name, split_part_name
from ..format.problems import Problem, to_problem
from .entry_copies import HasMessage, drop_worse_copies, no_message
from .salvage import read_journal_past_damage, read_segment_past_damage


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
        problems: list[Problem],
        has_message: HasMessage = no_message,
    ) -> None:
        """Read the name.  `has_message` decides where journal and segment disagree about an entry."""
        self.disk = disk
        self.has_message = has_message
        self.folder = folder
        self.relative = f"{layout.QUEUES_FOLDER}/{folder}"
        self.path = f"{vhost_path}/{self.relative}"
        self.segment_entries = segment_entries
        text = read_head(disk, f"{self.path}/{layout.QUEUE_NAME_FILE}")
        named = read_queue_name(text, folder) if text is not None else None
        self.is_named = named is not None and queue_folder_name(*named) == folder
        self.vhost, self.name = named if named is not None and self.is_named else ("", folder.encode())
        self.queue, self.priority = split_part_name(self.name)
        self.unknown_version = index_version(text) if self.is_named and index_version(text) not in (1, 2) else None
        self.version = 2 if numbers_in(disk, self.path, "qi") or (text or b"").endswith(b"INDEX: v2\n") else 1
        if not self.is_named and (text is not None or not self.is_half_made):
            where = f"{self.relative}/{layout.QUEUE_NAME_FILE}"
            problems.append(Problem(where, 0, "bad_queue_name", "the name that the folder is named after", str(text)[:200]))

    def segment_numbers(self) -> list[int]:
        """Return the numbers of the segments that have a file."""
        return numbers_in(self.disk, self.path, "idx" if self.version == 1 else "qi")

    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(entry.size_bytes for entry in self.disk.list(self.path))

    @property
    def is_half_made(self) -> bool:
        """Whether a kill interrupted a declaration or deletion: there is no name, and every index file is empty."""
        files = (entry for entry in self.disk.list(self.path) if entry.name.endswith((".idx", ".jif", ".qi", ".qs")))
        return not self.is_named and not any(entry.size_bytes for entry in files)

    def entries(self, problems: list[Problem]) -> Iterator[IndexEntry]:
        """Yield all entries by sequence number, including acknowledged ones that are still in the files."""
        return self._entries_v1(problems) if self.version == 1 else self._entries_v2(problems)

    def journal(self, problems: list[Problem]) -> dict[int, dict[int, JournalEntry]]:
        """Return the journal's entries by segment, then by sequence number."""
        where = f"{self.relative}/{layout.JOURNAL_NAME}"
        data = read_if_there(self.disk, f"{self.path}/{layout.JOURNAL_NAME}") or b""
        found, _end = read_journal_past_damage(data, where, problems)
        by_segment: dict[int, dict[int, JournalEntry]] = {}
        for seq_id, entry in found.items():
            by_segment.setdefault(seq_id // self.segment_entries, {})[seq_id] = entry
        return by_segment

    def segment(self, number: int, problems: list[Problem]) -> dict[int, IndexEntry]:
        """Return a version-1 segment by relative number, without the journal."""
        where = f"{self.relative}/{number}.idx"
        data = read_if_there(self.disk, f"{self.path}/{number}.idx") or b""
        return read_segment_past_damage(data, number * self.segment_entries, self.segment_entries, where, problems)[0]

    def _entries_v1(self, problems: list[Problem]) -> Iterator[IndexEntry]:
        journal = self.journal(problems)
        for number in sorted({*self.segment_numbers(), *journal}):
            joined = self.joined(number, journal.get(number, {}), problems)
            for relative in sorted(joined):
                yield joined[relative]

    def joined(self, number: int, journal: dict[int, JournalEntry], problems: list[Problem]) -> dict[int, IndexEntry]:
        """Return a version-1 segment by relative number, with the journal's entries of this segment."""
        first = number * self.segment_entries
        in_file = self.segment(number, problems)
        problems += (one.problem for one in drop_worse_copies(in_file, journal, first, self.has_message))
        return join_journal(in_file, journal, first)

    def _entries_v2(self, problems: list[Problem]) -> Iterator[IndexEntry]:
        for number in self.segment_numbers():
            where = f"{self.relative}/{number}.qi"
            first = number * layout.V2_SEGMENT_ENTRIES
            try:
                found = read_index(read_all(self.disk, f"{self.path}/{number}.qi"), first, where, problems)
            except (StoreCorrupt, UnsupportedFormat) as error:
                problems.append(to_problem(error, "bad_index_head"))
                continue
            store = self._queue_store(number, problems)
            for entry in found:
                made = self._from_v2(entry, store, number, problems) if store is not None or entry.msg_id is not None else None
                if made is not None:
                    yield made

    def _queue_store(self, number: int, problems: list[Problem]) -> bytes | None:
        """Return the bytes of `N.qs`; None, with a problem added, for an unsupported format."""
        data = read_if_there(self.disk, f"{self.path}/{number}.qs") or b""
        try:
            check_head(data, layout.V2_STORE_MAGIC, f"{self.relative}/{number}.qs")
        except UnsupportedFormat as error:
            problems.append(to_problem(error, ""))
            return None
        except StoreCorrupt:
            pass  # each message is checked on its own
        return data

    def _from_v2(self, entry: V2Entry, store: bytes | None, number: int, problems: list[Problem]) -> IndexEntry | None:
        facts = entry.expiry_us, entry.size, entry.persistent
        if entry.msg_id is not None:
            made = IndexEntry(entry.seq_id, entry.msg_id, *facts, None, False, f"{self.relative}/{number}.qi", entry.offset)
        else:
            assert entry.location is not None and store is not None
            where = f"{self.relative}/{number}.qs"
            try:
                term = read_chunk(store, *entry.location, where)
            except StoreCorrupt as error:
                found = f"{where} at {entry.location[0]}: {error.reason}"
                qi = f"{self.relative}/{number}.qi"
                problems.append(Problem(qi, entry.offset, "message_lost", f"{entry.location[1]} bytes of message", found))
                return None
            made = IndexEntry(entry.seq_id, b"", *facts, term, True, where, entry.location[0])
        made.delivered = True
        return made
