"""Checks of a log while a writer appends to it: find its end first, then check what is before it."""

from __future__ import annotations

import errno
from collections.abc import Callable

from storageio import REAL_DISK, Disk, DiskError

from ._message_cy import StoredMessage
from .verify import LogReport, Progress, verify_log
from .walk import Blank, LogFiles, Piece, Step

TRIES = 10  # a file may be deleted between listing and opening it


def whole_end(disk: Disk, folders: list[str], file_size_bytes: int | None = None, *, thorough: bool = False) -> int:
    """Return a physical offset after the last whole record; nothing before it changes any more, except by retention.

    The last record is skipped if not all of its bytes are there yet.  The headers of the last file are used; with `thorough`,
    and if a header is damaged, a walk over it, which also counts records after damage.
    """
    for attempt in range(TRIES):
        try:
            return _end(LogFiles(disk, folders, file_size_bytes), thorough=thorough)
        except DiskError as error:
            if error.errno != errno.ENOENT or attempt == TRIES - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def verify_growing_log(
    folders: list[str], disk: Disk = REAL_DISK, file_size_bytes: int | None = None, progress: Progress | None = None, *,
    observe: Callable[[Step], None] | None = None,
) -> LogReport:  # fmt: skip
    """Verify a log up to its present end, as `verify_log` does.

    Only problems that two walks find are reported: the first may list files while some of them are deleted.
    """
    end_offset = whole_end(disk, folders, file_size_bytes, thorough=True)
    report = verify_log(folders, disk, file_size_bytes, progress, end_offset=end_offset, observe=observe)
    if report.problems:
        again = verify_log(folders, disk, file_size_bytes, end_offset=end_offset).problems
        report.problems = [problem for problem in report.problems if problem in again]
    return report


def _end(files: LogFiles, *, thorough: bool) -> int:
    if len(files.files) > 1 and files.files[-1].size_bytes != files.file_size_bytes:
        files.files.pop()  # being created
    end = files.end()
    if thorough or end.problem is not None:
        return _end_by_walk(files)
    if end.last is None or isinstance(files.message_at(end.last.physical_offset), StoredMessage):
        return end.offset
    return files.step_offset(end.last.physical_offset)


def _end_by_walk(files: LogFiles) -> int:
    """Return the end of the last file that has any record."""
    listed = files.files
    for file in reversed(listed):
        end = file.start_offset
        files.files = [file] if file.size_bytes else []
        for step in files.walk():
            if isinstance(step, Piece) and step.positions:
                end = step.base + step.stop
            elif isinstance(step, Blank):
                end = file.start_offset + file.size_bytes
        if end > file.start_offset:
            return end
    return listed[0].start_offset if listed else 0
