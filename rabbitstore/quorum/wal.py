"""Walk the records of a write-ahead log (docs/formats/rabbitmq-quorum.md#write-ahead-log)."""

from __future__ import annotations

import re
import zlib
from collections import ChainMap
from collections.abc import Container, Iterator, MutableMapping
from dataclasses import dataclass, field

from storageio import StoreCorrupt, UnsupportedFormat
from storebytes.finding import Finding, finding_of

from . import layout

View = bytes | memoryview
_KNOWN = rb"[\x40\xc0].{2}.{8}\x00\x00.{6}\x00\x00\x00\x00.{4}"
_NAMED = rb"[\x00\x80].{2}\x00[\x01-\xff][A-Za-z0-9_]{8}"
_RECORD = re.compile(b"(?:" + _KNOWN + b"|" + _NAMED + b")", re.DOTALL)
_SEARCH_FACTOR = 4
_BLOCK_SIZE = 4096
_TORN_MIN = 13  # the server drops a bad record with fewer bytes behind it


@dataclass(frozen=True)
class WalRecord:
    """One record: `position` is its start, `at` that of its data."""

    uid: str
    index: int
    term: int
    position: int
    at: int
    size: int
    truncates: bool

    @property
    def stop(self) -> int:
        """Where the next record starts."""
        return self.at + self.size


@dataclass
class WalScan:
    """One walk over a write-ahead log; `notes` has a tail that the server drops silently.

    `folders` are the known names of writers.  `lost` gets writer and index of each bad record whose head shows them.
    """

    view: memoryview
    file: str
    problems: list[Finding]
    notes: list[Finding]
    folders: Container[str] = ()
    lost: list[tuple[str, int]] = field(default_factory=list)
    writers: dict[int, str] = field(default_factory=dict)
    position: int = layout.WAL_HEAD_SIZE
    budget: int = field(init=False)

    def __post_init__(self) -> None:
        """Limit the bytes that a search may check."""
        self.budget = _SEARCH_FACTOR * len(self.view)

    def records(self) -> Iterator[WalRecord]:
        """Yield every whole record; raise `UnsupportedFormat` for another version."""
        self._check_head()
        while self.position < len(self.view):
            if not self.view[self.position] and self._is_zero_to_end():
                return
            try:
                record = self._read(self.position, self.writers)
            except StoreCorrupt as error:
                if not self._continue_after(error):
                    return
                continue
            self.position = record.stop
            yield record

    def _check_head(self) -> None:
        head = bytes(self.view[: layout.WAL_HEAD_SIZE])
        if len(head) < layout.WAL_HEAD_SIZE or head[:-1] != layout.WAL_MAGIC:
            error = StoreCorrupt(
                "wrong head", file=self.file, offset=0, expected=layout.WAL_MAGIC, found=head or "an empty file"
            )
            self.problems.append(finding_of(error, "bad_wal_head"))
        elif head[-1] != layout.WAL_VERSION:
            supported = str(layout.WAL_VERSION)
            raise UnsupportedFormat("log version", file=self.file, offset=4, found=self.view[4], supported=supported)

    def word_of(self, record: WalRecord) -> int:
        """Return the first bytes of the records that follow one of the same writer."""
        word = int.from_bytes(self.view[record.position : record.position + layout.WRITER_SIZE], "big")
        return word & layout.WRITER_MASK | layout.KNOWN_BIT

    def _is_zero_to_end(self) -> bool:
        """Return whether only zeros follow: a preallocated file, or pages that a power cut lost."""
        for at in range(self.position, len(self.view), _BLOCK_SIZE):
            if any(bytes(self.view[at : min(at + _BLOCK_SIZE, len(self.view))])):
                return False
        count = len(self.view) - self.position
        self.notes.append(Finding(self.file, self.position, "wal_zeros", "a record", f"{count} zeros"))
        return True

    def _bad(self, reason: str, at: int, expected: object, found: object) -> StoreCorrupt:
        return StoreCorrupt(reason, file=self.file, offset=at, expected=expected, found=found)

    def _read(self, position: int, writers: MutableMapping[int, str]) -> WalRecord:
        """Decode and check the record at a position; a record with a name adds it to `writers`."""
        word = int.from_bytes(self.view[position : position + layout.WRITER_SIZE], "big")
        at, uid = position + layout.WRITER_SIZE, writers.get(word & layout.WRITER_MASK)
        if not word & layout.KNOWN_BIT:
            at, uid = self._name(at)
        if uid is None:
            raise self._bad("unknown writer", position, "a writer that was named before", word & layout.WRITER_MASK)
        left = len(self.view) - at - layout.WAL_RECORD.size
        if left < 0:
            raise self._bad("record is cut", position, f"{layout.WAL_RECORD.size} bytes", left + layout.WAL_RECORD.size)
        checksum, size, index, term = layout.WAL_RECORD.unpack_from(self.view, at)
        if size > left:
            raise self._bad("record is cut", position, f"{size} bytes", f"{left} bytes")
        stop = at + layout.WAL_RECORD.size + size
        found = zlib.adler32(self.view[at + layout.CHECKED_AT : stop]) if checksum else 0
        if found != checksum:
            raise self._bad("wrong checksum of a record", position, f"{checksum:08x}", f"{found:08x}")
        if max(index, term) > layout.NUMBER_MAX:
            raise self._bad("wrong number of a record", position, f"at most {layout.NUMBER_MAX}", max(index, term))
        writers[word & layout.WRITER_MASK] = uid
        return WalRecord(uid, index, term, position, stop - size, size, bool(word & layout.TRUNCATE_BIT))

    def _name(self, at: int) -> tuple[int, str]:
        if at + layout.ID_SIZE.size > len(self.view):
            raise self._bad("record is cut", at, "a name", f"{len(self.view) - at} bytes")
        size = layout.ID_SIZE.unpack_from(self.view, at)[0]
        at += layout.ID_SIZE.size
        if not 0 < size <= layout.ID_SIZE_MAX:
            raise self._bad("wrong size of a name", at, f"1 to {layout.ID_SIZE_MAX} bytes", size)
        return at + size, bytes(self.view[at : at + size]).decode("utf-8", "replace")

    def _continue_after(self, error: StoreCorrupt) -> bool:
        """Report a bad record and move to the next good one; return whether there is one."""
        self._keep_head()
        found = self._next_record()
        is_torn = found is None and self._is_torn()
        problem = finding_of(error, "torn_wal_entry" if is_torn else "bad_wal_entry")
        (self.notes if is_torn else self.problems).append(problem)
        if found is None:
            return False
        self.position = found
        return True

    def _keep_head(self) -> None:
        """Take writer and index from a bad record: its data may be what is damaged, and no later record has the name."""
        word = int.from_bytes(self.view[self.position : self.position + layout.WRITER_SIZE], "big")
        at, uid = self.position + layout.WRITER_SIZE, self.writers.get(word & layout.WRITER_MASK)
        try:
            if not word & layout.KNOWN_BIT:
                at, uid = self._name(at)
        except StoreCorrupt:
            return
        if uid is None or at + layout.WAL_RECORD.size > len(self.view):
            return
        if uid in self.folders:
            self.writers.setdefault(word & layout.WRITER_MASK, uid)
        self.lost.append((uid, layout.WAL_RECORD.unpack_from(self.view, at)[2]))

    def _is_torn(self) -> bool:
        """Return whether the server drops what follows as a torn write."""
        at = self.position + layout.WRITER_SIZE
        if at + layout.WAL_RECORD.size > len(self.view):
            return True
        if not self.view[self.position] & 0x40:
            at = min(at + 2 + int.from_bytes(self.view[at : at + 2], "big"), len(self.view))
        size = int.from_bytes(self.view[at + 4 : at + 8], "big")
        rest = bytes(self.view[min(at + layout.WAL_RECORD.size + size, len(self.view)) :])
        return len(rest) < _TORN_MIN or not any(rest)

    def _next_record(self) -> int | None:
        """Return the position of the next whole record that has a checksum."""
        at = self.position + 1
        while self.budget > 0:
            match = _RECORD.search(self.view, at)
            if match is None:
                return None
            if self._is_record(match.start()):
                return match.start()
            at = match.start() + 1
        self.problems.append(Finding(self.file, at, "bad_wal_entry", "a record", "search limit reached"))
        return None

    def _is_record(self, position: int) -> bool:
        writers = ChainMap({}, self.writers)
        try:
            record = self._read_within_budget(position, writers)
        except StoreCorrupt:
            return False
        return record is not None

    def _read_within_budget(self, position: int, writers: MutableMapping[int, str]) -> WalRecord | None:
        word = int.from_bytes(self.view[position : position + layout.WRITER_SIZE], "big")
        at = position + layout.WRITER_SIZE
        if not word & layout.KNOWN_BIT:
            at, _uid = self._name(at)
        checksum, size = layout.WAL_RECORD.unpack_from(self.view, at)[:2] if at + 24 <= len(self.view) else (0, 0)
        if not checksum or size > min(self.budget, len(self.view) - at):
            return None
        self.budget -= size + layout.WAL_RECORD.size
        return self._read(position, writers)
