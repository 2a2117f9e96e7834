"""What a message store keeps in memory: where each id lies, and one summary a file."""

from __future__ import annotations

from collections.abc import Iterator

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from .layout import RECORD_MIN

if not cython.compiled:
    from storebytes._bytes_cy import I64, SOURCE_HASH


class Location:
    """Where a message lies.  A count of 0 stays until its file is compacted or deleted: a later write revives it."""

    __slots__ = ("file", "offset", "ref_count", "total_size")

    def __init__(self, ref_count: int, file: int, offset: int, total_size: int) -> None:
        """`offset` and `total_size` are of the whole record."""
        self.ref_count = ref_count
        self.file = file
        self.offset = offset
        self.total_size = total_size


class FileSummary:
    """One file: bytes that are referenced, bytes in all, its neighbours, who holds it."""

    __slots__ = ("dead", "file_size", "is_damaged", "left", "locked", "readers", "right", "valid_total_size")

    def __init__(self, file_size: int = 0, valid_total_size: int = 0) -> None:
        """Alone, unlocked, unread."""
        self.file_size = file_size
        self.valid_total_size = valid_total_size
        self.left: int | None = None
        self.right: int | None = None
        self.locked = False
        self.is_damaged = False  # a scan does not find all that is referenced: the collector leaves it alone
        self.readers = 0
        self.dead: list[bytes] = []  # ids whose count reached 0 in this file; some may have been revived


class Files:
    """The summaries by file number, ascending, with their sums."""

    def __init__(self) -> None:
        """Empty."""
        self.by_number: dict[int, FileSummary] = {}
        self.total_bytes = 0
        self.valid_bytes = 0

    def __getitem__(self, number: int) -> FileSummary:
        """The summary of a file that is there."""
        return self.by_number[number]

    def __contains__(self, number: int) -> bool:
        """Whether the file is there."""
        return number in self.by_number

    def __iter__(self) -> Iterator[int]:
        """The numbers, ascending."""
        return iter(self.by_number)

    def add(self, number: int, summary: FileSummary) -> None:
        """At the right end."""
        last = next(reversed(self.by_number), None)
        assert last is None or last < number, "file numbers only grow"
        summary.left = last
        if last is not None:
            self.by_number[last].right = number
        self.by_number[number] = summary
        self.total_bytes += summary.file_size
        self.valid_bytes += summary.valid_total_size

    def take_out(self, number: int) -> FileSummary:
        """The file is gone; its neighbours meet."""
        summary = self.by_number.pop(number)
        if summary.left is not None:
            self.by_number[summary.left].right = summary.right
        assert summary.right is not None, "the last file is the current one, which stays"
        self.by_number[summary.right].left = summary.left
        self.total_bytes -= summary.file_size
        self.valid_bytes -= summary.valid_total_size
        return summary

    def resize(self, number: int, file_size: int, valid_total_size: int) -> None:
        """Set both sizes of one file."""
        summary = self.by_number[number]
        self.total_bytes += file_size - summary.file_size
        self.valid_bytes += valid_total_size - summary.valid_total_size
        summary.file_size = file_size
        summary.valid_total_size = valid_total_size

    def adjust(self, summary: FileSummary, valid_delta: int) -> None:
        """More or fewer referenced bytes."""
        summary.valid_total_size += valid_delta
        self.valid_bytes += valid_delta
        assert 0 <= summary.valid_total_size <= summary.file_size, "a file refers to more than it holds"

    def check(self) -> None:
        """Sums and neighbours agree; for tests."""
        numbers = list(self.by_number)
        assert numbers == sorted(numbers)
        assert self.total_bytes == sum(summary.file_size for summary in self.by_number.values())
        assert self.valid_bytes == sum(summary.valid_total_size for summary in self.by_number.values())
        for left, right in zip([None, *numbers], [*numbers, None], strict=True):
            assert left is None or self.by_number[left].right == right
            assert right is None or self.by_number[right].left == left


def place_records(
    rows: list[tuple[bytes, int, int]], counts: dict[bytes, int], locations: dict[bytes, Location], number: int
) -> tuple[int, int]:
    """Give each record of file `number` with references its location, unless a file before has the id.

    Of several copies in one file the last counts.  Returns the bytes that are referenced, and where the last of them ends.
    """
    valid: I64 = 0
    end: I64 = 0
    known: Location | None
    for msg_id, offset, total in rows:
        count = counts.get(msg_id)
        if count is None:
            continue
        known = locations.get(msg_id)
        if known is None:
            locations[msg_id] = Location(count, number, offset, total)
        elif known.file == number:
            valid -= known.total_size
            known.offset, known.total_size = offset, total
        else:
            continue
        valid += total
        end = offset + total
    return valid, end


def resume_rows(
    rows: list[tuple[bytes, int, int, int, int]], sizes: dict[int, int], locations: dict[bytes, Location]
) -> tuple[dict[int, int], int]:
    """Give each id with references the location that a clean stop noted: (id, references, file, offset, total size).

    Returns the bytes that are referenced by file, and the number of the first row that cannot be: outside of its file, or of
    an id that has one; -1 without one.  Ids without references are left out: nobody revives what no scan has seen to be whole.
    """
    valid: dict[int, int] = dict.fromkeys(sizes, 0)
    ref_count: I64
    offset: I64
    total: I64
    size: I64
    at: I64
    for at, (msg_id, ref_count, number, offset, total) in enumerate(rows):
        size = sizes.get(number, -1)
        if ref_count < 0 or offset < 0 or total < RECORD_MIN or offset > size - total or msg_id in locations:
            return valid, at
        if ref_count:
            locations[msg_id] = Location(ref_count, number, offset, total)
            valid[number] += total
    return valid, -1


def is_compiled() -> bool:
    """Which build runs."""
    return cython.compiled


def source_hash() -> int:
    """Of the source this was built from; 0 when plain."""
    return SOURCE_HASH
