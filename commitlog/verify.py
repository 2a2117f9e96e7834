"""Verification of a log: every file, every record with all its checks, every blank record."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from storageio import REAL_DISK, Disk

from ._record_cy import is_protected
from ._scan_cy import count
from .findings import Finding
from .layout import CRC_DIGITS, CRC_NAME, CRC_SIZE, NAME_END, PAIR_END
from .walk import Blank, LogFiles, Piece

Progress = Callable[[int], None]


class LogReport:
    """What verification found.

    `problems` is damage, `notes` is not: bytes that a truncation left behind the end, an empty last file, a tail that opening
    for writing would cut.  `records` counts good ones, `protected_records` those with a checksum over the whole record.
    """

    def __init__(self, files: LogFiles) -> None:
        """Nothing counted yet."""
        self.file_size_bytes = files.file_size_bytes
        self.files = len(files.files)
        self.size_bytes = sum(file.size_bytes for file in files.files)
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
    """Which records lost their checksum property to damage; it takes them in log order.

    A record without one is simply unprotected; between two protected ones it is suspect, and so is one that ends in all but
    one byte of such a property.
    """

    def __init__(self) -> None:
        """No record yet."""
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
            here, is_hurt = self.look(piece.view, at)
            if is_hurt:
                yield Finding(
                    piece.file, at + shift, "suspect_record", "a well-formed checksum over the record", "one with a wrong byte"
                )
            yield from self.next(piece.file, at + shift, here or is_hurt)

    @staticmethod
    def look(view: memoryview, at: int) -> tuple[bool, bool]:
        """Whether the record there has the property, and whether it has one with a wrong byte."""
        size = int.from_bytes(view[at : at + 4], "big")
        here = is_protected(view, at, size)
        return here, not here and _is_hurt_checksum(bytes(view[at + size - CRC_SIZE : at + size]))

    def next(self, file: str, at: int, here: bool) -> Iterator[Finding]:
        """One record more; what is found is the one before."""
        if here and self._bare is not None:
            yield self._bare
        expected = "a checksum over the record, as its neighbours have"
        is_bare = not here and self._before
        self._bare = Finding(file, at, "suspect_record", expected, "no well-formed checksum") if is_bare else None
        self._before = here


def _is_hurt_checksum(end: bytes) -> bool:
    """Whether a record's last bytes are the checksum property but for one of them, or for what ends the property before it."""
    good = sum(a == b for a, b in zip(end, CRC_NAME + bytes([NAME_END]), strict=False))
    good += sum(0x30 <= digit <= 0x39 for digit in end[-1 - CRC_DIGITS : -1]) + (end[-1:] == bytes([PAIR_END]))
    return good >= CRC_SIZE - 1


def verify_log(
    folders: list[str], disk: Disk = REAL_DISK, file_size_bytes: int | None = None, progress: Progress | None = None
) -> LogReport:
    """Walk all files of a log's folders; never stops at damage, changes nothing.

    `progress` is called with the bytes that came to be behind the walk since it was called last.
    """
    files = LogFiles(disk, folders, file_size_bytes)
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
