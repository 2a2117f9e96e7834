"""The state of a message store in memory: the location of each id, a summary of each file, and what is in flight."""

from __future__ import annotations

from collections.abc import Iterator

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ..errors import StoreBroken
from ..format.layout import RECORD_MIN

if not cython.compiled:
    from storebytes._bytes_cy import I64, Bool


class RecordLocation:
    """The location of a message.  With a count of 0 it stays until its file is compacted or deleted: a write may revive it."""

    __slots__ = ("file", "offset", "ref_count", "total_size")

    def __init__(self, ref_count: int, file: int, offset: int, total_size: int) -> None:
        """Create it; `offset` and `total_size` are those of the whole record."""
        self.ref_count = ref_count
        self.file = file
        self.offset = offset
        self.total_size = total_size


class FileSummary:
    """A file: referenced bytes, all bytes, neighbours, lock and readers."""

    __slots__ = ("dead", "file_size", "is_damaged", "left", "locked", "readers", "right", "valid_total_size")

    def __init__(self, file_size: int = 0, valid_total_size: int = 0) -> None:
        """Create it without neighbours, unlocked, without readers."""
        self.file_size = file_size
        self.valid_total_size = valid_total_size
        self.left: int | None = None
        self.right: int | None = None
        self.locked = False
        self.is_damaged = False  # a scan does not find every referenced record: the collector skips the file
        self.readers = 0
        self.dead: list[bytes] = []  # ids whose count reached 0 in this file; some may have been revived


class Files:
    """The file summaries by number, ascending, with the sums of their sizes."""

    __slots__ = ("by_number", "total_bytes", "valid_bytes")

    def __init__(self) -> None:
        """Create it without files."""
        self.by_number: dict[int, FileSummary] = {}
        self.total_bytes = 0
        self.valid_bytes = 0

    def __getitem__(self, number: int) -> FileSummary:
        """Return the summary of a file."""
        return self.by_number[number]

    def __contains__(self, number: int) -> bool:
        """Return whether there is a file of this number."""
        return number in self.by_number

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers, ascending."""
        return iter(self.by_number)

    def add(self, number: int, summary: FileSummary) -> None:
        """Add a file with the highest number."""
        last = next(reversed(self.by_number), None)
        assert last is None or last < number, "file numbers only grow"
        summary.left = last
        if last is not None:
            self.by_number[last].right = number
        self.by_number[number] = summary
        self.total_bytes += summary.file_size
        self.valid_bytes += summary.valid_total_size

    def remove(self, number: int) -> FileSummary:
        """Remove a file and join its neighbours."""
        summary = self.by_number.pop(number)
        if summary.left is not None:
            self.by_number[summary.left].right = summary.right
        assert summary.right is not None, "the last file is the current one and is never removed"
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

    def adjust(self, summary: FileSummary, valid_delta: I64) -> None:
        """Change the number of referenced bytes of one file."""
        summary.valid_total_size += valid_delta
        self.valid_bytes += valid_delta
        assert 0 <= summary.valid_total_size <= summary.file_size, "a file refers to more than it holds"

    def check(self) -> None:
        """Assert that sums and neighbours are right."""
        numbers = list(self.by_number)
        assert numbers == sorted(numbers)
        assert self.total_bytes == sum(summary.file_size for summary in self.by_number.values())
        assert self.valid_bytes == sum(summary.valid_total_size for summary in self.by_number.values())
        for left, right in zip([None, *numbers], [*numbers, None], strict=True):
            assert left is None or self.by_number[left].right == right
            assert right is None or self.by_number[right].left == left


class InFlight:
    """Writes and removes of one client in the mailbox, by message id (docs/formats/rabbitmq-queue.md#in-flight-writes).

    A write counts +1, a remove -1; handling it subtracts that again.  A count of 0 that is still present means that a write
    and a remove cancel each other: both are skipped.  Any other count is an error of the caller.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        """Create it with nothing in flight."""
        self.counts: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return the number of ids in the mailbox."""
        return len(self.counts)

    def started(self, msg_id: bytes, difference: I64) -> None:
        """Count a write (+1) or a remove (-1) of an id that is already in flight; the caller counts the first one."""
        counts = self.counts
        known = counts[msg_id]
        if known + difference not in (0, difference):
            raise StoreBroken(f"message {msg_id.hex()}: a second {'write' if difference > 0 else 'remove'} in flight")
        counts[msg_id] = known + difference

    def arrived(self, msg_id: bytes, difference: I64) -> Bool:
        """Handle a write (+1) or a remove (-1); return whether it takes effect."""
        counts = self.counts
        known = counts.get(msg_id)
        if known == difference:
            del counts[msg_id]
            return True
        if known == 0:
            del counts[msg_id]
        return False


def locate_records(
    rows: list[tuple[bytes, int, int]], counts: dict[bytes, int], locations: dict[bytes, RecordLocation], number: int
) -> tuple[int, int]:
    """Store the location of each referenced record of file `number`, unless an earlier file has the id.

    Of several copies in one file the last counts.  Return the referenced bytes, and where the last of them ends.
    """
    valid: I64 = 0
    end: I64 = 0
    known: RecordLocation | None
    for msg_id, offset, total in rows:
        count = counts.get(msg_id)
        if count is None:
            continue
        known = locations.get(msg_id)
        if known is None:
            locations[msg_id] = RecordLocation(count, number, offset, total)
        elif known.file == number:
            valid -= known.total_size
            known.offset, known.total_size = offset, total
        else:
            continue
        valid += total
        end = offset + total
    return valid, end


def resume_rows(
    rows: list[tuple[bytes, int, int, int, int]], sizes: dict[int, int], locations: dict[bytes, RecordLocation]
) -> tuple[dict[int, int], int]:
    """Store the locations of a clean stop, given as (id, references, file, offset, total size).

    Return the referenced bytes by file, and the number of the first impossible row (outside of its file, or a repeated id),
    or -1.  Ids without references are skipped: no scan has proven their records whole, so no write may revive them.
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
            locations[msg_id] = RecordLocation(ref_count, number, offset, total)
            valid[number] += total
    return valid, -1
