"""Find the ranges of the log that no index file covers, from the headers of the files.

A file covers the records from its first item's to its last item's.  RocketMQ and brokerstore begin a file where the one
before is full, so a range between two files that holds keys is missing: a file was lost, or a broker deleted its last files
after a kill and indexed only what it recovered.  A header of zeros covers nothing, and neither does a file whose items are
not of this log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commitlog import CHECK_POSITION, StoredMessage
from commitlog.layout import FOREVER_MS, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from indexfile import item_hash
from indexfile.layout import FIRST_ITEM
from storageio import StoreCorrupt

if TYPE_CHECKING:
    from commitlog import CommitLog
    from indexfile import Header, IndexFile, IndexFiles

    from ..parts import StoreParts

NOTHING = -1
TAG_ITEM = "T#"  # since RocketMQ 5.4, before the TAGS in the key of a further item


class CoveragePart:
    """A range of the log that may hold records with keys which the index lacks."""

    __slots__ = ("first_keyed", "known", "start", "stop", "walked")

    def __init__(self, start: int, known: int, stop: int) -> None:
        """Begin with the record at `start`, and end with the one at `stop`.

        `known` is the last record before the range that the index has, or `NOTHING`.  It may be the first of the range,
        because some of its keys may be missing.
        """
        self.start = start
        self.known = known
        self.stop = stop
        self.walked = start  # no record before this one has a key that the index lacks
        self.first_keyed = NOTHING  # the first record with keys that was found

    @property
    def is_done(self) -> bool:
        """Return whether the whole range is known to hold no key."""
        return self.first_keyed == NOTHING and self.walked >= self.stop

    def judge(self, offset: int, message: StoredMessage | None) -> None:
        """Take the next record of the range."""
        if self.first_keyed == NOTHING and self.known < offset < self.stop and message is not None and words_of(message):
            self.first_keyed = offset


def words_of(message: StoredMessage) -> list[str]:
    """Return the keys under which an index has a record."""
    if message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return []
    properties = message.all_properties
    return [word for word in (properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")) if word]


def has_tags(message: StoredMessage, topic: str, tags: str) -> bool:
    """Return whether a message has the topic and these tags, rather than only the same hash."""
    return message.topic == topic and message.tags == tags


def has_item(message: StoredMessage | None, code: int) -> bool:
    """Return whether an item with this key hash may belong to a record."""
    if message is None:
        return False
    words = [*words_of(message), TAG_ITEM + (message.tags or "")]
    return code in [item_hash(message.topic, word) for word in words]


def is_of_log(log: CommitLog, index: IndexFiles, log_end: int) -> bool:
    """Return whether the newest item belongs to a record of this log; another log's index may be sound in itself."""
    last = index.last_item(log_end)
    if last is None:
        return True
    code, offset = last
    return has_item(log.message_at(offset), code)


class IndexCoverage:
    """What the index files of one store cover.  It reads each file that is not the newest once."""

    def __init__(self, parts: StoreParts) -> None:
        """Set the fields without reading anything."""
        self._parts = parts
        self.listed: list[IndexFile] | None = None  # the files that were read
        self._ranges: dict[IndexFile, tuple[int, int] | None] = {}  # of files that are not the newest
        self._gaps: dict[tuple[int, int], CoveragePart] = {}
        self._excluded: set[IndexFile] = set()
        self._older_end = NOTHING  # the last record of all files but the newest
        self._newest: IndexFile | None = None  # if it covers anything

    def exclude(self, files: list[IndexFile]) -> bool:
        """Let damaged files cover nothing; return whether one of them is new."""
        new = set(files) - self._excluded
        self._excluded |= new
        self.listed = None
        return bool(new)

    def gaps(self) -> list[CoveragePart]:
        """Return the ranges before the end of the newest file that may hold keys which the index lacks, oldest first."""
        index = self._parts.index
        assert index is not None
        if index.listed is not self.listed:
            self._read(index.listed)
        return list(self._gaps.values())

    def end(self) -> int:
        """Return the last record that a file has, or `NOTHING`; call `gaps` first."""
        return max(self._older_end, self._newest.header.end_physical_offset if self._newest is not None else NOTHING)

    def _read(self, listed: list[IndexFile]) -> None:
        """Find the gaps between the files, and before the first one."""
        self._excluded &= set(listed)
        older, newest = listed[:-1], listed[-1] if listed else None
        headers = {file: _header_of(file) for file in older if file not in self._ranges}
        self._expect_reads(headers)
        self._ranges = {
            file: self._range_of(file, headers[file]) if file in headers else self._ranges[file] for file in older
        }  # fmt: skip
        own = self._range_of(newest, _header_of(newest)) if newest is not None else None
        self._newest = newest if own is not None and newest not in self._excluded else None
        self._older_end, gaps = NOTHING, {}
        at = self._parts.low_offset
        for file in older:
            found = self._ranges[file] if file not in self._excluded else None
            if found is not None and found[1] >= self._parts.low_offset:
                gaps[at, found[0]] = self._older_end
                at = self._older_end = max(at, found[1])
        if self._newest is not None and own is not None:
            gaps[at, own[0]] = self._older_end
        self._gaps = {
            key: part
            for key, known in gaps.items()
            if not self._is_adjacent(part := self._gaps.get(key) or CoveragePart(key[0], known, key[1]))
        }
        # A file that a writer is about to fill has no begin yet.
        self.listed = listed if own is not None or newest is None or not self._parts.abort_file.is_present else None

    def _expect_reads(self, headers: dict[IndexFile, Header | None]) -> None:
        """Let the system read the ends of all files and their records: one after the other, each waits for the disk."""
        records: set[int] = set()
        for file, header in headers.items() if len(headers) > 1 else ():
            if header is not None:
                file.expect_items([FIRST_ITEM, header.items_used])
                records |= {header.begin_physical_offset, header.end_physical_offset}
        self._parts.log.expect_lookups(records)

    def _is_adjacent(self, part: CoveragePart) -> bool:
        """Return whether no record lies between the ends of a range, or it begins where the next one ends."""
        if part.start >= part.stop:
            return True
        record = self._parts.log.message_at(part.known, CHECK_POSITION) if part.known != NOTHING else None
        return record is not None and record.physical_offset + record.size >= part.stop

    def _range_of(self, file: IndexFile, header: Header | None) -> tuple[int, int] | None:
        """Return the first and the last record of a file, None if it has no items or those of another log."""
        if header is None:
            return None
        first, last = header.begin_physical_offset, header.end_physical_offset
        if not header.items_used or not 0 <= first <= last < FOREVER_MS:
            return None
        low = self._parts.low_offset
        ends = {FIRST_ITEM: first, header.items_used: last}
        checked = [number for number, offset in ends.items() if offset >= low]
        try:
            items = zip(checked, file.items_at(checked), strict=True)
            is_ours = all(position >= ends[number] and self._is_item(code, position) for number, (code, position) in items)
        except StoreCorrupt:
            return None
        return (first, last) if is_ours else None

    def _is_item(self, code: int, position: int) -> bool:
        """Return whether an item has a key of the record at its offset."""
        return has_item(self._parts.log.message_at(position, CHECK_POSITION), code)


def _header_of(file: IndexFile) -> Header | None:
    """Return the header of a file, None if it is cut."""
    try:
        return file.header
    except StoreCorrupt:
        return None
