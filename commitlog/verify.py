"""Verification of a log: every file, every record with all its checks, every blank record."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from storageio import REAL_DISK, Disk

from ._record_cy import is_protected
from ._scan_cy import Reader, count
from .findings import Finding, note
from .layout import CRC_DIGITS, CRC_NAME, CRC_SIZE, NAME_END, PAIR_END
from .walk import Blank, LogFiles, Piece

Progress = Callable[[int], None]
PROTECTED, DAMAGED, BARE, MALFORMED = range(4)  # what a record has in the place of the checksum property


class LogReport:
    """What verification found.

    `checked_to` is the offset up to which a log in use was checked, None for one at rest.
    `problems` is damage, `notes` is not: bytes that a truncation left behind the end, an empty last file, a tail that opening
    for writing would cut.  `records` counts good ones, `protected_records` those with a checksum over the whole record.
    """

    def __init__(self, files: LogFiles) -> None:
        """Nothing counted yet."""
        self.file_size_bytes = files.file_size_bytes
        self.files = len(files.files)
        self.size_bytes = sum(file.size_bytes for file in files.files)
        self.checked_to = files.end_offset
        self.records = 0
        self.protected_records = 0
        self.blanks = 0
        self.end_offset = files.files[0].start_offset if files.files else 0
        self.problems: list[Finding] = []
        self.notes: list[Finding] = []

    @property
    def is_ok(self) -> bool:
        """No damage."""
        return not self.problems

    def add(self, finding: Finding) -> None:
        """To the problems or to the notes."""
        (self.problems if finding.is_problem else self.notes).append(finding)

    def counts(self) -> dict[str, int]:
        """All figures, by name."""
        names = ("files", "file_size_bytes", "size_bytes", "records", "protected_records", "blanks", "end_offset")
        return {name: getattr(self, name) for name in names}


class Protection:
    """Reports records whose checksum property is damaged; it takes records in log order.

    A record is suspect when its last bytes are nearly such a property.  Between two records that have one it is also suspect
    when its properties are not whole pairs.  Any other record without the property is a note there: a broker does not write
    it, and a filler may have no room for it.
    """

    def __init__(self) -> None:
        """Start before the first record."""
        self._before = False
        self._bare: Finding | None = None

    def take(self, piece: Piece, protected: int, shift: int = 0) -> Iterator[Finding]:
        """Only a piece of both kinds needs a look at each record; of another its ends tell all.

        `shift`: where the piece's view begins in the file.
        """
        positions = piece.positions
        if protected in (0, len(positions)):
            positions = array("q", positions[:1]) + array("q", positions[-1:]) if len(positions) > 1 else positions
        for at in positions:
            state = self.look(piece.view, at)
            if state == DAMAGED:
                yield Finding(
                    piece.file, at + shift, "suspect_record", "a well-formed checksum over the record", "one with a wrong byte"
                )
            yield from self.next(piece.file, at + shift, state)

    @staticmethod
    def look(view: memoryview, at: int) -> int:
        """Return `PROTECTED`, `DAMAGED`, `BARE` or `MALFORMED` for the record at `at`."""
        size = int.from_bytes(view[at : at + 4], "big")
        if is_protected(view, at, size):
            return PROTECTED
        end = bytes(view[at + size - CRC_SIZE : at + size])
        return DAMAGED if _is_damaged_checksum(end) else BARE if _has_whole_pairs(view, at) else MALFORMED

    def next(self, file: str, at: int, state: int) -> Iterator[Finding]:
        """Take one record more; a finding is about the record before it."""
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
    """Whether a record's last bytes are the checksum property but for one of them, or for a part of its name."""
    names = sum(a == b for a, b in zip(end, CRC_NAME + bytes([NAME_END]), strict=False))
    good = names + sum(0x30 <= digit <= 0x39 for digit in end[-1 - CRC_DIGITS : -1]) + (end[-1:] == bytes([PAIR_END]))
    return good >= CRC_SIZE - 1 or 2 * names > len(CRC_NAME)


def _has_whole_pairs(view: memoryview, at: int) -> bool:
    """Whether every property has a name and a value.  RocketMQ may leave out what ends the last one."""
    message = Reader(view).decode(at, 0)
    pairs = (message.properties_raw or b"").removesuffix(bytes([PAIR_END])) if message is not None else b""
    return not pairs or all(pair.find(NAME_END) > 0 for pair in pairs.split(bytes([PAIR_END])))


def verify_log(
    folders: list[str], disk: Disk = REAL_DISK, file_size_bytes: int | None = None, progress: Progress | None = None, *,
    end_offset: int | None = None,
) -> LogReport:  # fmt: skip
    """Walk all files of a log's folders; never stops at damage, changes nothing.

    `progress` is called with the bytes that came to be behind the walk since it was called last.
    `end_offset`: of a log that a writer appends to, the end that `growing.whole_end` found; nothing behind it is checked.
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
            _, _, records, protected, _ = count(step.view, step.start, step.stop, step.base, 0)
            report.records += records
            report.protected_records += protected
            report.end_offset = step.base + step.stop
            for finding in protection.take(step, protected):
                report.add(finding)
        if progress is not None and not isinstance(step, Finding):
            progress(step.stop - step.start if isinstance(step, Piece) else step.size_bytes)
    return report
