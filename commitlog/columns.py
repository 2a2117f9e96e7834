"""Records as NumPy integer columns, one bounded batch at a time.

`read_fixed` returns dictionaries of arrays of the fixed fields; `arrow_columns.read_columns` returns Arrow batches with text
and bodies too.  No Python object is created for a message, and only the current batch of the log is held.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from storageio import StoreCorrupt

from ._record_cy import check
from ._rows_cy import Columns
from ._scan_cy import find_fillers, scan
from .buffer_pool import BUFFER_POOL
from .checks import BLANK, CHECK_ALL, EMPTY, STOPS, TORN
from .commit_log import CommitLog, Stop
from .fields import LONG, NUMBERS

if TYPE_CHECKING:
    import numpy as np

BATCH_ROWS = 8192
BATCH_BYTES = 16 << 20  # bytes of records; a single record may be larger
ALL_NUMBERS = tuple(field.name for field in NUMBERS)  # in the order of the record


class Batch(NamedTuple):
    """Consecutive records of one file: their positions in `view`, which starts at physical offset `base`."""

    view: memoryview
    base: int
    positions: np.ndarray[Any, np.dtype[np.int64]]
    sizes: np.ndarray[Any, np.dtype[np.int32]]


def batches(
    source: CommitLog | memoryview | bytes | bytearray,
    start: int | None = None,
    stop: int | None = None,
    *,
    checks: int = CHECK_ALL,
    base: int = 0,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[Batch]:
    """Yield batches of the records from `start` on that end by `stop`, of a log or of a buffer that starts at `base`.

    All offsets are physical.  Raises `StoreCorrupt` at the first position that is not a record, a blank or zeros.
    """
    if isinstance(source, CommitLog):
        for file in source.queue.files:
            first = max(file.start_offset, start or 0)
            last = file.end_offset if stop is None else min(file.end_offset, stop)
            if first >= last:
                continue
            view = source.queue.view(file)
            end = yield from _walk(view, file.start_offset, first, last, checks, batch_rows, batch_bytes)
            if end.why == STOPS[EMPTY]:
                return
            if end.why != "end" and not source.is_end(end) and not _is_cut(view, file.start_offset, end, checks):
                raise source.problem(end)
        return
    view = memoryview(source).cast("B")
    last = base + len(view) if stop is None else stop
    end = yield from _walk(view, base, base if start is None else start, last, checks, batch_rows, batch_bytes)
    if end.why not in ("end", STOPS[BLANK], STOPS[EMPTY]) and not _is_cut(view, base, end, checks):
        raise StoreCorrupt(end.why, file="buffer", offset=end.offset - base, expected="a record", found=end.why)


def _is_cut(view: memoryview, base: int, end: Stop, checks: int) -> bool:
    """Return whether a walk met a record that only `stop` cuts off."""
    return end.why == STOPS[TORN] and check(view, end.offset - base, len(view), base, checks) != TORN


def _walk(
    view: memoryview, base: int, start: int, stop: int, checks: int, batch_rows: int, batch_bytes: int
) -> Generator[Batch, None, Stop]:
    """Yield batches of one range; return where and why it ended."""
    import numpy as np  # 80 ms

    at, end, why = start - base, stop - base, "full"
    while why == "full":
        positions, sizes = np.empty(batch_rows, np.int64), np.empty(batch_rows, np.int32)
        after, why, rows, _, _ = scan(view, at, end, base, checks, positions, sizes)
        done = 0
        while done < rows:
            ends = positions[done:rows] + sizes[done:rows] - positions[done]
            count = max(1, int(np.searchsorted(ends, batch_bytes, "right")))
            yield Batch(view, base, positions[done : done + count], sizes[done : done + count])
            done += count
        at = after
    return Stop(base + at, why, 0, 0)


def row_batches(view: memoryview, base: int, starts: Sequence[int], stop: int) -> Iterator[Batch]:
    """Yield batches of bounded size of consecutive records, given the start of each in `view` and the end of the last one."""
    import numpy as np  # 80 ms

    positions = np.asarray(starts, np.int64)
    sizes = np.append(positions[1:], stop) - positions
    if len(positions) > 1:  # in a DLedger log a header precedes each record but, behind damage, the first
        sizes[:-1] -= int(sizes[0]) - int.from_bytes(view[starts[0] : starts[0] + 4], "big")
    done = 0
    while done < len(positions):
        ends = positions[done : done + BATCH_ROWS] + sizes[done : done + BATCH_ROWS] - positions[done]
        count = max(1, int(np.searchsorted(ends, BATCH_BYTES, "right")))
        part = slice(done, done + count)
        yield Batch(view, base, positions[part], sizes[part].astype(np.int32))
        done += count


def without_fillers(batch: Batch) -> Batch:
    """Return a batch without filler records; the same one if it has none."""
    import numpy as np  # 80 ms

    fillers = find_fillers(batch.view, batch.positions)
    if not fillers:
        return batch
    kept = np.delete(np.arange(len(batch.positions)), fillers)
    return batch._replace(positions=batch.positions[kept], sizes=batch.sizes[kept])


class NumberColumns:
    """The requested numbers of a batch: columns of 64-bit numbers in one block, those of 32-bit ones in another."""

    def __init__(self, names: Iterable[str], rows: int) -> None:
        """Take the memory; names of other fields are ignored."""
        self.by_name: dict[str, np.ndarray[Any, Any]] = {}
        arguments: list[Any] = []
        for listed, locations, kind in _blocks(frozenset(names)):
            block = BUFFER_POOL.take(kind.itemsize * rows * len(listed)).view(kind)
            for at, name in enumerate(listed):
                self.by_name[name] = block[rows * at : rows * (at + 1)]
            arguments += (block, locations)
        wide, wide_positions, narrow, narrow_positions = arguments
        self.arguments = rows, wide, wide_positions, narrow, narrow_positions  # of the kernel's columns


@cache
def _blocks(names: frozenset[str]) -> list[tuple[list[str], np.ndarray[Any, Any], np.dtype[Any]]]:
    """Return names, offsets in a record and type of the requested 64-bit columns, and of the 32-bit ones."""
    import numpy as np  # 80 ms

    made = []
    for kind, is_long in ((np.dtype(np.int64), True), (np.dtype(np.int32), False)):
        listed = [field for field in NUMBERS if field.name in names and (field.kind == LONG) is is_long]
        made.append(([field.name for field in listed], np.array([field.at for field in listed], np.int32), kind))
    return made


def fixed_columns(batch: Batch, names: Iterable[str] = ALL_NUMBERS) -> dict[str, np.ndarray[Any, Any]]:
    """Return the named numbers of a batch.  Raises `ValueError` if a row's position has no record."""

    names, rows = list(names), len(batch.positions)
    numbers = NumberColumns(names, rows)
    kernel = Columns(*numbers.arguments)
    filled = kernel.fill(batch.view, batch.base, batch.positions, batch.sizes, rows, 0)
    refuse_missing(batch, filled)
    return {name: numbers.by_name[name] for name in names}


def refuse_missing(batch: Batch, filled: int) -> None:
    """Raise `ValueError` if not all rows of a batch could be filled."""
    if filled < len(batch.positions):
        raise ValueError(f"row {filled}: no record lies at {batch.positions[filled]}")


def read_fixed(
    source: CommitLog | memoryview | bytes | bytearray, start: int | None = None, stop: int | None = None, **options: Any
) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Yield a dictionary of NumPy arrays for each batch; the arguments are those of `batches`."""
    for batch in batches(source, start, stop, **options):
        yield fixed_columns(batch)
