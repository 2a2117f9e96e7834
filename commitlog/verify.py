"""Verification of a log: every file, every record with all checks, every blank record."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from storageio import REAL_DISK, Disk
from storebytes.finding import Finding, note

from ._record_cy import is_protected
from ._scan_cy import Reader
from .layout import CRC_DIGITS, CRC_NAME, CRC_SIZE, NAME_END, PAIR_END
from .walk import Blank, LogFiles, Piece, Step

Progress = Callable[[int], None]
PROTECTED, DAMAGED, BARE, MALFORMED = range(4)  # states of a record's checksum property


class LogReport:
    """The result of a verification.

    `checked_to` is the offset up to which a log in use was checked, None for a log at rest.  `problems` is damage.  `notes` is
    not: bytes that a truncation left after the end, an empty last file, a tail that opening for writing would cut.  `records`
    counts good records, `protected_records` those with a checksum over the whole record.
    """

    def __init__(self, files: LogFiles) -> None:
        """Create a report with no records counted."""
        self.file_size_bytes = files.file_size_bytes
        self.files = len(files.files)
        self.size_bytes = sum(file.size_bytes for file in files.files)
        self.checked_to = files.end_offset
        self.records = 0
        self.protected_records = 0
        self.blanks = 0
        self.last_store_timestamp_ms = 0  # of the last good record
        self.end_offset = files.files[0].start_offset if files.files else 0
        self.problems: list[Finding] = []
        self.notes: list[Finding] = []

    @property
    def is_ok(self) -> bool:
        """Whether no damage was found."""
        return not self.problems

    def add(self, finding: Finding) -> None:
        """Add a finding to the problems or to the notes."""
        (self.problems if finding.is_problem else self.notes).append(finding)

    def counts(self) -> dict[str, int]:
        """Return all counts by name."""
        names = ("files", "file_size_bytes", "size_bytes", "records", "protected_records", "blanks", "end_offset")
        return {name: getattr(self, name) for name in names}


class Protection:
    """Search for records whose checksum property is damaged; records are passed in log order.

    A record is suspect if its last bytes are nearly such a property.  Between two records that have one it is also suspect if
    its properties are not whole pairs.  Any other record without the property is a note there: brokers do not write one, and a
    filler record may have no room for it.
    """

    def __init__(self) -> None:
        """Start before the first record."""
        self._before = False
        self._bare: Finding | None = None

    def take(self, piece: Piece, protected: int, shift: int = 0) -> Iterator[Finding]:
        """Yield findings of a piece, of which `protected` records have the checksum.

        Each record is checked only in a piece of both kinds; otherwise its first and last record suffice.  `shift` is the
        position of the piece's view in the file.
        """
        positions = piece.positions
        if protected in (0, len(positions)):
            positions = array("q", positions[:1]) + array("q", positions[-1:]) if len(positions) > 1 else positions
        for at in positions:
            state = self.examine(piece.view, at)
            if state == DAMAGED:
                yield Finding(
                    piece.file, at + shift, "suspect_record", "a well-formed checksum over the record", "one with a wrong byte"
                )
            yield from self.next(piece.file, at + shift, state)

    @staticmethod
    def examine(view: memoryview, at: int) -> int:
        """Return `PROTECTED`, `DAMAGED`, `BARE` or `MALFORMED` for the record at `at`."""
        size = int.from_bytes(view[at : at + 4], "big")
        if is_protected(view, at, size):
            return PROTECTED
        end = bytes(view[at + size - CRC_SIZE : at + size])
        return DAMAGED if _is_damaged_checksum(end) else BARE if _has_whole_pairs(view, at) else MALFORMED

    def next(self, file: str, at: int, state: int) -> Iterator[Finding]:
        """Add the state of one more record; a finding is about the record before it."""
        here = state in (PROTECTED, DAMAGED)
        if here and self._bare is not None:
            yield self._bare
        self._bare = None
        if not here and self._before:
            expected = "a checksum over the record, as its neighbours have"
            self._bare = (
                note(file, at, "unprotected_record", expected, "none; the record is well-formed")
                if state == BARE
                else Finding(file, at, "suspect_record", expected, "no well-formed checksum")
            )
        self._before = here


def _is_damaged_checksum(end: bytes) -> bool:
    """Return whether a record's last bytes are the checksum property with one wrong byte, or with a part of its name."""
    names = sum(a == b for a, b in zip(end, CRC_NAME + bytes([NAME_END]), strict=False))
    good = names + sum(0x30 <= digit <= 0x39 for digit in end[-1 - CRC_DIGITS : -1]) + (end[-1:] == bytes([PAIR_END]))
    return good >= CRC_SIZE - 1 or 2 * names > len(CRC_NAME)


def _has_whole_pairs(view: memoryview, at: int) -> bool:
    """Return whether every property has a name and a value.  RocketMQ may omit the end of the last one."""
    message = Reader(view).decode(at, 0)
    pairs = (message.properties_raw or b"").removesuffix(bytes([PAIR_END])) if message is not None else b""
    return not pairs or all(pair.find(NAME_END) > 0 for pair in pairs.split(bytes([PAIR_END])))


def verify_log(
    folders: list[str], disk: Disk = REAL_DISK, file_size_bytes: int | None = None, progress: Progress | None = None, *,
    end_offset: int | None = None, observe: Callable[[Step], None] | None = None,
) -> LogReport:  # fmt: skip
    """Check all files of a log's folders without stopping at damage; nothing is changed.

    `progress` is called with the bytes walked since its last call, `observe` with each step of the walk.  `end_offset` of a log
    that a writer appends to is the result of `growing.whole_end`; nothing after it is checked.
    """
    files = LogFiles(disk, folders, file_size_bytes, end_offset=end_offset)
    report = LogReport(files)
    protection = Protection()
    for finding in files.check():
        report.add(finding)
    for step in files.walk():
        if isinstance(step, Finding):
            report.add(step)
        elif isinstance(step, Blank):
            report.blanks += 1
        else:
            report.records += len(step.positions)
            report.protected_records += step.protected
            report.end_offset = step.base + step.stop
            report.last_store_timestamp_ms = Reader(step.view, step.base).store_time(step.positions[-1])
            for finding in protection.take(step, step.protected):
                report.add(finding)
        if observe is not None:
            observe(step)
        if progress is not None and not isinstance(step, Finding):
            progress(step.stop - step.start if isinstance(step, Piece) else step.size_bytes)
    return report
