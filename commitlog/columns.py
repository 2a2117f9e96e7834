"""Records as NumPy integer columns, one bounded batch at a time, on top of the scan kernels.

`read_fixed` returns dictionaries of arrays of the fixed fields; `arrow_columns.read_columns` returns Arrow batches with text
and bodies too.  No Python object is created for a message, and only the current batch of the log is held.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from storageio import StoreCorrupt

from ._record_cy import check
from ._scan_cy import fill_fixed, find_fillers, scan
from .checks import BLANK, CHECK_ALL, EMPTY, STOPS, TORN
from .commit_log import CommitLog, Stop

if TYPE_CHECKING:
    import numpy as np

BATCH_ROWS = 8192
BATCH_BYTES = 16 << 20  # bytes of records; a single record may be larger

# The fields that `fill_fixed` writes, in its order.
FIXED: tuple[tuple[str, str], ...] = (
    ("size", "i4"),
    ("magic", "i4"),
    ("body_crc", "i4"),
    ("queue_id", "i4"),
    ("flag", "i4"),
    ("queue_offset", "i8"),
    ("physical_offset", "i8"),
    ("sys_flag", "i4"),
    ("born_timestamp_ms", "i8"),
    ("store_timestamp_ms", "i8"),
    ("reconsume_times", "i4"),
    ("prepared_transaction_offset", "i8"),
)


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
        after, why, rows = scan(view, at, end, base, checks, positions, sizes)
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


def fixed_columns(batch: Batch) -> dict[str, np.ndarray[Any, Any]]:
    """Return every fixed field of a batch by its name in `FIXED`."""
    import numpy as np  # 80 ms

    made = {name: np.empty(len(batch.positions), kind) for name, kind in FIXED}
    fill_fixed(batch.view, batch.positions, len(batch.positions), list(made.values()))
    return made


def read_fixed(
    source: CommitLog | memoryview | bytes | bytearray, start: int | None = None, stop: int | None = None, **options: Any
) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Yield a dictionary of NumPy arrays for each batch; the arguments are those of `batches`."""
    for batch in batches(source, start, stop, **options):
        yield fixed_columns(batch)
