"""Decide where a log file is finished and where its records end; every reader of a log calls this."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Self

from ._scan_cy import Reader, scan
from .checks import BLANK, CHECK_POSITION, EMPTY, STOPS, TORN
from .entry_layout import ENTRY_BLANK_MAGIC
from .layout import BLANK_SIZE
from .mapped_file import MappedFile

PIECE_RECORDS = 8192
PIECE_BYTES = 16 << 20  # of a file mapped at a time


def is_whole_blank(head: memoryview | bytes, left: int) -> bool:
    """Return whether a blank, of which `head` has the size, covers the `left` bytes to the end of its file.

    In a DLedger log the size follows the magic.
    """
    size = int.from_bytes(head[:4], "big", signed=True)
    return (int.from_bytes(head[4:8], "big", signed=True) if size == ENTRY_BLANK_MAGIC else size) == left


def is_file_end(why: str, left: int, head: memoryview | bytes = b"", *, any_blank: bool = False) -> bool:
    """Return whether a walk that stopped because of `why` (`checks.STOPS`) is at the end of a finished file.

    `left` counts the bytes to the end of the file, and `head` holds them. A blank record must cover all of them
    (`docs/formats/commitlog.md#blank-record`): behind one of another size, records may follow. With `any_blank` its size does
    not count, as in RocketMQ's dispatcher. Fewer bytes than a blank record needs also end a file.
    """
    if why == STOPS[BLANK]:
        return any_blank or is_whole_blank(head, left)
    return left == 0 or (why == STOPS[TORN] and left < BLANK_SIZE)


def newer_record(file: MappedFile, at: int, last_ms: int) -> int:
    """Return the position of the first whole record at or behind `at` that was not stored before `last_ms`, or -1.

    A truncation leaves older records.
    """
    reader = Reader(file.view, file.start_offset)
    at = file.find_record(at)
    while at >= 0 and reader.store_time(at) < last_ms:
        at = file.find_record(at + reader.check(at, 0))
    return at


class FileCursor:
    """Walk over the records of one file by their headers, and find where they end.

    After the walk, `at` is the position behind the last record, or the file's size if a blank record follows; `last` is the
    position of the last record, -1 without one; `why` is the reason of the stop.
    """

    def __init__(
        self, file: MappedFile, at: int = 0, stop: int | None = None, *, last_ms: int = 0, past_damage: bool = False,
        past_zeros: bool = False,
    ) -> None:  # fmt: skip
        """Start at `at`, behind a record stored at `last_ms`; look at no byte from `stop` on.

        `past_damage` and `past_zeros` continue with the next record that is not older than the last good one.
        """
        self.file, self.at, self.last, self.why = file, at, -1, "full"
        self.is_finished = False
        self._stop = file.size_bytes if stop is None else stop
        self._last_ms = last_ms
        self._past_damage, self._past_zeros = past_damage, past_zeros

    @property
    def is_damaged(self) -> bool:
        """Return whether the walk stopped at a place where the records of a sound log do not end."""
        return not self.is_finished and self.why not in ("end", STOPS[EMPTY])

    def run(self) -> Self:
        """Walk to the end."""
        for _ in self.pieces():
            pass
        return self

    def pieces(self) -> Iterator[tuple[memoryview, memoryview]]:
        """Yield positions and sizes of records in a row. The view of the file is replaced for each piece."""
        ahead = self.at
        while ahead >= 0:
            self.at = ahead
            positions, sizes = self._scan()
            if positions:
                self.last = positions[-1]
                yield positions, sizes
            ahead = self.at if self.why == "full" else self._ahead()

    def _scan(self) -> tuple[memoryview, memoryview]:
        self.file.drop_map()  # the pages of a whole file would count as this process's memory
        view, base = self.file.view, self.file.start_offset
        stop = min(self._stop, self.at + PIECE_BYTES)
        positions, sizes = memoryview(array("q", bytes(8 * PIECE_RECORDS))), memoryview(array("i", bytes(4 * PIECE_RECORDS)))
        at, self.why, rows, _, _ = scan(view, self.at, stop, base, CHECK_POSITION, positions, sizes, before=self.last)
        if stop < self._stop and self.why in ("end", STOPS[TORN]):
            self.why = "full"
            if rows == 0:  # a record that is larger than the piece, or torn
                at, self.why, rows, _, _ = scan(
                    view, self.at, self._stop, base, CHECK_POSITION, positions[:1], sizes[:1], before=self.last
                )
        self.at = at
        return positions[:rows], sizes[:rows]

    def _ahead(self) -> int:
        """Return where the walk continues behind a place without a record, or -1."""
        view = self.file.view
        self.is_finished = is_file_end(self.why, len(view) - self.at, view[self.at :])
        if self.is_finished and self.why == STOPS[BLANK]:
            self.at = len(view)
        is_skipped = self._past_zeros if self.why == STOPS[EMPTY] else self._past_damage and self.why != "end"
        if self.is_finished or not is_skipped:
            return -1
        last_ms = self._last_ms if self.last < 0 else Reader(view, self.file.start_offset).store_time(self.last)
        return newer_record(self.file, self.at + 1, last_ms)
