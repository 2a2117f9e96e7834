"""Walk over every record of a log, continuing after damage.

`CommitLog` rejects a folder that RocketMQ would reject.  This module reads such a folder too: it reports damage and continues
with the next record that has its own offset and is not older than the last good one (older records are what a truncation
left).  Nothing is changed.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Generator, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from storageio import Disk, DiskError, Entry, Kind
from storebytes.finding import Finding, note

from ._message_cy import StoredMessage
from ._scan_cy import Reader, find_fillers, find_nonzero, scan
from .checks import BAD_ENTRY, BLANK, CHECK_ALL, CHECK_RECORD, EMPTY, STOPS, TORN
from .cursor import FileCursor, is_file_end, newer_record
from .entry_layout import ENTRY_HEADER_SIZE
from .findings import UNKNOWN_VERSION, Location, describe, step_start, unknown_version
from .layout import BLANK_SIZE, FILE_NAME_SIZE, RECORD_SIZE_MIN
from .mapped_file import MappedFile
from .offset_files import NFS_PREFIX, OFFSET_MAX, OffsetFile, common_file_size, file_name, holds_entries
from .unknown_version import find_unknown_version, fits_known_version

PIECE_RECORDS = 65536  # positions found in one call
HELD_MAX = 256  # maps of a log whose files a writer may delete; each costs a descriptor
ZEROS_PIECE = 16 << 20


LOG_FOLDER = "commitlog"
COMPACTED_LOGS = "compactionLog"  # the folder of a broker's compacted topics; below it are topics, and in those queues


class Piece(NamedTuple):
    """Consecutive whole records, all checked: bytes start..stop of `view`, which starts at physical offset `base`."""

    file: str
    view: memoryview
    base: int
    start: int
    stop: int
    positions: array[int]  # of the records in `view`
    protected: int  # records with a checksum over the whole record

    def messages(self) -> Iterator[StoredMessage]:
        """Yield each record as an object."""
        reader = Reader(self.view, self.base)
        at = self.start
        while at < self.stop:
            batch, at, why = reader.decode_range(at, self.stop, 256, 0)
            assert batch, why
            yield from batch

    def without_fillers(self) -> Iterator[Piece]:
        """Yield the parts between the filler records; `protected` stays that of the whole."""
        start, first = self.start, 0
        for row in find_fillers(self.view, self.positions):
            if row > first:
                last = self.positions[row - 1]
                stop = last + int.from_bytes(self.view[last : last + 4], "big")
                yield self._replace(start=start, stop=stop, positions=self.positions[first:row])
            first = row + 1
            start = self.positions[first] if first < len(self.positions) else self.stop
        if first < len(self.positions):
            yield self._replace(start=start, positions=self.positions[first:]) if first else self


class Blank(NamedTuple):
    """A valid blank record, which ends its file."""

    file: str
    offset: int
    size_bytes: int


class WalkEnd(NamedTuple):
    """The physical offset after the last record, that record, and the problem after it."""

    offset: int
    last: StoredMessage | None
    problem: Finding | None


Step = Piece | Blank | Finding


class LogFiles:
    """The files in the folders of a log, valid or not."""

    def __init__(
        self, disk: Disk, folders: list[str], file_size_bytes: int | None = None, *, end_offset: int | None = None
    ) -> None:
        """List the folders; open nothing.  The file size is detected from the files unless it is given.

        `end_offset` of a log that a writer appends to is where its whole records end (`growing.whole_end`).  Nothing after it
        is read, and files that retention deletes meanwhile are skipped.
        """
        self._disk = disk
        self.end_offset = end_offset
        self._held: list[MappedFile] | None = None
        self.folders = sorted(folders)
        self.is_compacted = all(_is_compacted(folder) for folder in folders)
        self.checks = checks_of(is_compacted=self.is_compacted)
        self.files: list[OffsetFile] = []
        self.strays: list[Finding] = []
        for folder in self.folders:
            for entry in disk.list(folder):
                self._add_entry(folder, entry)
        self.files.sort()
        self.file_size_bytes = file_size_bytes or common_file_size(self.files) or 0
        if end_offset is not None:
            self.files = [file for file in self.files if file.start_offset < end_offset]

    def _add_entry(self, folder: str, entry: Entry) -> None:
        """Add a file of the log or a stray; skip a folder, and what an NFS client keeps of a deleted file."""
        path = os.path.join(folder, entry.name)
        is_number = entry.name.isascii() and entry.name.isdigit() and int(entry.name[:30]) <= OFFSET_MAX
        if entry.kind is Kind.FILE and is_number:
            self.files.append(OffsetFile(int(entry.name), path, entry.size_bytes, entry.modified_ms))
        elif entry.kind is not Kind.FOLDER and not entry.name.startswith(NFS_PREFIX):
            found = repr(entry.name) if entry.kind is Kind.FILE else f"{entry.name!r}, no regular file"
            self.strays.append(Finding(path, 0, "stray_file", "regular files named by a decimal offset", found))

    def check(self) -> Iterator[Finding]:
        """Yield findings about names, sizes and gaps; what RocketMQ would refuse to load is a problem."""
        yield from self.strays
        for file in self.files:
            yield from self._check_file(file)
        for before, after in pairwise(self.files):
            if self.is_compacted:
                continue  # a compaction writes fewer files than it replaces
            expected = before.start_offset + self.file_size_bytes
            if after.start_offset > expected and after.start_offset % (self.file_size_bytes or 1) == 0:
                yield Finding(after.path, 0, "missing_file", file_name(expected), file_name(after.start_offset))
            elif after.start_offset == before.start_offset:
                yield Finding(after.path, 0, "double_file", "one file of this offset", before.path)

    def _check_file(self, file: OffsetFile) -> Iterator[Finding]:
        size = self.file_size_bytes
        name = os.path.basename(file.path)
        if len(name) != FILE_NAME_SIZE:
            yield note(file.path, 0, "short_name", file_name(file.start_offset), name)
        if size and file.start_offset % size:
            yield Finding(file.path, 0, "misnamed_file", f"a multiple of {size}", file.start_offset)
        if file.size_bytes == 0:
            expected = f"{size} bytes" if size else "a file with bytes"
            finding = Finding(file.path, 0, "empty_file", expected, "0 bytes")
            # RocketMQ deletes an empty last file at its start: a crash came between its creation and its allocation.
            # DLedger does not start with one.
            yield finding._replace(is_problem=file is not self.files[-1] or holds_entries(file.path))
        elif file.size_bytes != size:
            yield Finding(file.path, 0, "wrong_file_size", f"{size} bytes", f"{file.size_bytes} bytes")

    def walk(self) -> Iterator[Step]:
        """Yield the records of every file, and what is wrong between them."""
        if self.end_offset is None:
            files = (MappedFile.of(self._disk, found, writable=False) for found in self.files)
            return _LogWalk(files, None, is_compacted=self.is_compacted).steps()
        self.hold()
        held, self._held = self._held, None
        return _LogWalk(held or [], self.end_offset, is_compacted=self.is_compacted).steps()

    def hold(self) -> None:
        """Map the files for the next walk, newest first, so that none that a writer deletes is missing in the middle.

        Afterwards `files` starts with the oldest file that still exists.
        """
        held: list[MappedFile] = []
        try:
            for found in reversed([found for found in self.files if found.size_bytes]):
                held.append(MappedFile.of(self._disk, found, writable=False))
                if len(held) <= HELD_MAX:
                    _ = held[-1].view
        except DiskError as error:
            if error.errno != errno.ENOENT:
                raise
            held.pop()
        low = held[-1].start_offset if held else 0
        self.files = [file for file in self.files if file.start_offset >= low] if held else []
        self._held = held[::-1]

    def messages(self) -> Iterator[StoredMessage | Finding]:
        """Yield every message in log order, and what is wrong between them."""
        for step in self.walk():
            if isinstance(step, Piece):
                yield from step.messages()
            elif isinstance(step, Finding):
                yield step

    def end(self) -> WalkEnd:
        """Return the end of the records, by the headers of the last file that has any; fast, checks no checksum."""
        for found in reversed(self.files):
            if found.size_bytes == 0:
                continue
            file = MappedFile.of(self._disk, found, writable=False)
            end = _end_of(file, self._stop(file))
            if end.last is not None or end.problem is not None:
                return end
        return WalkEnd(self.files[0].start_offset if self.files else 0, None, None)

    def latest_ms(self) -> int:
        """Return the latest store time of the last record of each file, 0 without records; fast, checks no checksum.

        Times go back where a clock was set, or where a file is one of another store.
        """
        latest_ms = 0
        for found in self.files:
            if found.size_bytes:
                file = MappedFile.of(self._disk, found, writable=False)
                last = _end_of(file, self._stop(file)).last
                latest_ms = max(latest_ms, last.store_timestamp_ms if last is not None else 0)
        return latest_ms

    def _stop(self, file: MappedFile) -> int:
        """Return where the bytes of a file that are read end."""
        return file.size_bytes if self.end_offset is None else min(file.size_bytes, self.end_offset - file.start_offset)

    def first(self) -> StoredMessage | None:
        """Return the log's first record if it is a good one."""
        for file in self.files:
            try:
                found = self.message_at(file.start_offset)
            except DiskError as error:
                if self.end_offset is None or error.errno != errno.ENOENT:
                    raise
                continue  # a writer deleted it meanwhile
            return found if isinstance(found, StoredMessage) else None
        return None

    def step_offset(self, offset: int) -> int:
        """Return where a walk meets the record at a physical offset: at the header of its entry in a DLedger log."""
        found = self.find(offset)
        if found is None:
            return offset
        file = MappedFile.of(self._disk, found, writable=False)
        return found.start_offset + step_start(Location(file.view, offset - found.start_offset, found.start_offset))

    def find(self, offset: int) -> OffsetFile | None:
        """Return the file that holds a physical offset."""
        for file in self.files:
            if file.start_offset <= offset < file.start_offset + file.size_bytes:
                return file
        return None

    def fits_known_version(self, finding: Finding) -> bool:
        """Return whether all but the magic of a record of an unknown version is a whole record of a known one."""
        found = next(file for file in self.files if file.path == finding.file)
        file = MappedFile.of(self._disk, found, writable=False)
        return fits_known_version(file.view, finding.offset, file.start_offset)

    def message_at(self, offset: int) -> StoredMessage | Finding | None:
        """Return the record or entry that starts at a physical offset, or what is wrong with it; None outside of all files."""
        found = self.find(offset)
        if found is None:
            return None
        file = MappedFile.of(self._disk, found, writable=False)
        reader = Reader(file.view, file.start_offset)
        code = reader.check(offset - file.start_offset, self.checks)
        location = Location(file.view, offset - file.start_offset, file.start_offset)
        if code == BLANK:
            return Finding(file.path, location.at, "blank", "a record", f"a blank record of {location.integer(0)} bytes")
        if code == TORN and location.left < BLANK_SIZE:
            return Finding(file.path, location.at, STOPS[TORN], "a record", f"the last {location.left} bytes of the file")
        here = location.record if location.is_entry else location
        return reader.decode(here.at, 0) if code > 0 else describe(file.path, location, STOPS[code])

    def next_record(self, offset: int) -> int | None:
        """Return the physical offset of the first good record at or behind an offset, in its file or a later one.

        Bytes that are no record are searched to the end of their file; None behind the last record.
        """
        for found in self.files:
            if found.size_bytes and found.start_offset + found.size_bytes > offset:
                file = MappedFile.of(self._disk, found, writable=False)
                at = newer_record(file, max(0, offset - found.start_offset), 0)
                if 0 <= at < self._stop(file):
                    return found.start_offset + at
        return None


def _is_compacted(folder: str) -> bool:
    """Return whether a folder is the log of one queue of a compacted topic (`docs/formats/rocketmq-compaction.md`)."""
    return os.path.basename(os.path.dirname(os.path.dirname(os.path.abspath(folder)))) == COMPACTED_LOGS


def checks_of(*, is_compacted: bool) -> int:
    """Return the checks of a record. The checksum over a whole record is that of the original, which had another place."""
    return CHECK_ALL & ~CHECK_RECORD if is_compacted else CHECK_ALL


class _LogWalk:
    """The state of one walk over all files."""

    def __init__(self, files: Iterable[MappedFile], end_offset: int | None, *, is_compacted: bool) -> None:
        self._files = files
        self._is_compacted = is_compacted
        self._checks = checks_of(is_compacted=is_compacted)
        self._end = end_offset
        self._last_ms = 0  # store time of the last good record
        self._entry = (-1, 0)  # index and term of the last entry of a DLedger log, index -1 if it is not known
        self._open: list[Finding] = []  # zeros that end the log, unless a later file has records
        self._tail: Finding | None = None  # a bad position with no good record after it so far

    def steps(self) -> Iterator[Step]:
        for file in self._files:
            if file.size_bytes and self._is_there(file):
                yield from self._file(file)
        if self._tail is not None:
            expected, ends = "newer records behind a bad place", "none: the end of the log, behind which a record was torn"
            yield note(self._tail.file, self._tail.offset, "tail", expected, ends)

    def _is_there(self, file: MappedFile) -> bool:
        """Return False for a file that a writer deleted; too many files for `hold` are not protected from that."""
        try:
            return bool(file.view)
        except DiskError as error:
            if self._end is None or error.errno != errno.ENOENT:
                raise
            return False

    def _file(self, file: MappedFile) -> Iterator[Step]:
        """Yield the steps of one file; each turn advances, so there are at most as many turns as bytes."""
        view, at, before = file.view, 0, -1
        stop = file.size_bytes if self._end is None else min(file.size_bytes, self._end - file.start_offset)
        file.expect_sequential()
        while at < stop:
            piece, why = _piece(file, at, self._checks, stop=stop, before=before)
            if piece.positions:
                yield from self._resume(piece)
                yield from self._order(piece)
                yield piece
                before = piece.positions[-1]
            location = Location(view, piece.stop, file.start_offset)
            if why == "full":
                at = piece.stop
            elif why == "end" or (why == STOPS[TORN] and is_file_end(why, location.left, view[location.at :])):
                break
            else:
                at = yield from self._report_stop(file, location, why, stop)
                before = -1
                self._entry = (-1, 0)
                assert at > location.at, "a walk goes forward"
        file.close()

    def _resume(self, piece: Piece) -> Iterator[Finding]:
        """Handle good records: what looked like the end before them was not."""
        if not self._is_compacted:  # there zeros end any file
            yield from self._open
        self._open, self._tail = [], None
        self._last_ms = Reader(piece.view, piece.base).store_time(piece.positions[-1])

    def _order(self, piece: Piece) -> Iterator[Finding]:
        """Report a file of the wrong kind of log, or whose first entry does not follow the last one of the file before."""
        ends = piece.positions[0], piece.positions[-1]
        first, last = (Location(piece.view, at - ENTRY_HEADER_SIZE, piece.base) for at in ends)
        if piece.start == 0 and first.at < 0 and holds_entries(piece.file):
            yield describe(piece.file, first._replace(at=0), STOPS[BAD_ENTRY])
        elif piece.start == 0 and first.at == 0 and os.path.basename(os.path.dirname(piece.file)) == LOG_FOLDER:
            yield Finding(piece.file, 0, STOPS[BAD_ENTRY], "a record", "the header of a DLedger entry")
        elif piece.start == 0 and first.at == 0 and self._entry[0] >= 0:
            index, term = first.entry
            if index != self._entry[0] + 1 or term < self._entry[1]:
                yield describe(piece.file, first, STOPS[BAD_ENTRY])
        self._entry = last.entry if last.at >= 0 and last.is_entry else (-1, 0)

    def _report_stop(self, file: MappedFile, location: Location, why: str, stop: int) -> Generator[Step, None, int]:
        """Report what is at the position; return where to continue."""
        is_growing = stop < file.size_bytes
        if self._end is None and why == STOPS[EMPTY]:
            _forget_zeros(file, location.at)
        if is_file_end(why, location.left, location.view[location.at :]):
            yield Blank(file.path, location.at, location.left)
            if self._end is None:  # beside a writer the descriptor for this search may be gone
                yield from _stale_bytes(file, location.at + BLANK_SIZE)
            return file.size_bytes
        finding = describe(file.path, location, why)
        # The smallest record has a topic of one letter: what is nearer lies inside of the damaged one, a record in its body.
        is_header = finding.kind == STOPS[BAD_ENTRY]  # its record may be whole
        is_record = not is_header and location.is_entry
        nearest = ENTRY_HEADER_SIZE if is_header else RECORD_SIZE_MIN + 1 + (ENTRY_HEADER_SIZE if is_record else 0)
        ahead = newer_record(file, location.at + nearest, self._last_ms)
        ahead = -1 if ahead >= stop else ahead
        if why != STOPS[EMPTY]:
            yield finding
            self._tail = None if ahead >= 0 or finding.kind == UNKNOWN_VERSION else finding
        elif ahead >= 0:
            yield finding
        else:
            self._open.append(finding)
            if not is_growing:
                yield from _stale_bytes(file, location.at)
        if self._end is None:
            yield from self._unknown_after(file, location, ahead)
        return ahead if ahead >= 0 else file.size_bytes

    def _unknown_after(self, file: MappedFile, location: Location, ahead: int) -> Iterator[Finding]:
        """Yield a record of an unknown version between a bad position and the next good record: no opening cuts it off."""
        inside = find_unknown_version(file, location.at + 1, ahead if ahead >= 0 else None)
        if inside >= 0:
            self._tail = None
            yield unknown_version(file.path, Location(location.view, inside, location.base))


def _piece(file: MappedFile, at: int, checks: int, *, stop: int, before: int) -> tuple[Piece, str]:
    """Return consecutive records from `at` on, behind the one at `before`, and why there are no more."""
    view = file.view
    positions = array("q", bytes(8 * min(PIECE_RECORDS, (stop - at) // BLANK_SIZE + 1)))
    where, why, rows, protected, _ = scan(
        view, at, stop, file.start_offset, checks, positions, count_protected=True, before=before
    )
    return Piece(file.path, view, file.start_offset, at, where, positions[:rows], protected), why


def _end_of(file: MappedFile, stop: int) -> WalkEnd:
    """Return the end of the records of one file, of which the bytes before `stop` are read."""
    cursor = FileCursor(file, stop=stop).run()
    location = Location(file.view, cursor.at, file.start_offset)
    last = Reader(file.view, file.start_offset).decode(cursor.last, 0) if cursor.last >= 0 else None
    problem = describe(file.path, location, cursor.why) if cursor.is_damaged else None
    return WalkEnd(file.start_offset + cursor.at, last, problem)


def _forget_zeros(file: MappedFile, start: int) -> None:
    """Drop cached pages of a range that was never written, so that it need not be searched; data that follows is kept."""
    stop = min(start + ZEROS_PIECE, file.size_bytes)
    pieces = file.pieces_of_data(start, ZEROS_PIECE) if start < stop else ()  # a hole that is read through the map takes memory
    if all(low >= stop or find_nonzero(file.view, low, min(high, stop)) < 0 for low, high in pieces):
        file.forget_zeros(start)


def _stale_bytes(file: MappedFile, start: int) -> Iterator[Finding]:
    """Yield a note if bytes after the end are not zero, as a truncation leaves them."""
    view = file.view
    for low, high in file.pieces_of_data(start, ZEROS_PIECE) if start < file.size_bytes else ():
        first = find_nonzero(view, low, high)
        if first >= 0:
            yield note(file.path, first, "stale_bytes", "zeros behind the end", bytes(view[first : first + 16]).hex(" "))
            return
