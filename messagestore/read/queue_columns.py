"""Read a queue's messages as Arrow batches; units give the positions, and the columns are filled from the log's bytes.

No Python object is created per message.  If there are enough messages, two batches are filled in parallel, the second on a
thread of its own, which ends before either is returned: the kernel fills them without the GIL.  Needs pyarrow (extra
`arrow`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog import ColumnBatch, CommitLog, StoredMessage
from commitlog._rows_cy import split_units
from commitlog._scan_cy import find_fillers
from commitlog.arrow_columns import checked_batch, decoded, schema
from commitlog.checks import CHECK_READ
from commitlog.columns import BATCH_ROWS, Batch
from commitlog.row_filter import RowFilter
from consumequeue import Queue
from consumequeue.layout import EXT_ADDRESS_MAX, TAGS_CODE_AT, UNIT, UNIT_SIZE
from storageio import DiskError, needs_extra
from storebytes.java_hash import java_hash_code

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BATCH_BYTES = 4 << 20  # of records, so that a batch stays in the cache; one record may be larger
Confirm = Callable[[Queue, int, int, int], StoredMessage | None]


@dataclass(frozen=True)
class Selection:
    """The columns to read, and which messages: all, or those with one of the tags that pass the row filter.

    With `decode_limit_bytes` bodies are decompressed, see `commitlog.arrow_columns.decoded`.
    """

    columns: Sequence[str]
    tags: frozenset[str] | None = None
    row_filter: RowFilter | None = None
    decode_limit_bytes: int | None = None

    @cached_property
    def tag_codes(self) -> np.ndarray[Any, Any]:
        """The codes that units of messages with one of the tags have."""
        import numpy as np

        return np.array(sorted(java_hash_code(tag) for tag in self.tags or ()), np.int64)


def read_queue_columns(
    log: CommitLog, queue: Queue | None, start: int, stop: int, selection: Selection, confirm: Confirm,
    low: Callable[[Queue], int],
) -> pa.RecordBatchReader:  # fmt: skip
    """Return selected messages from `start` to before `stop`; messages whose records left the log are skipped.

    `confirm(queue, queue_offset, physical_offset, size)` is called for a unit that points at no record of its size: it raises
    `StoreCorrupt`, or returns None if the record left the log meanwhile.  `low(queue)` returns where the queue begins now.
    """
    with needs_extra("arrow"):
        import pyarrow as pa  # takes 150 ms

    requested = schema(selection.columns)

    def pieces(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        chosen = replace(selection, columns=columns)
        return _pieces(log, queue, start, stop, chosen, confirm, low) if queue is not None else iter(())

    return pa.RecordBatchReader.from_batches(requested, decoded(pieces, selection.columns, selection.decode_limit_bytes))


def _pieces(
    log: CommitLog, queue: Queue, start: int, stop: int, selection: Selection, confirm: Confirm,
    low: Callable[[Queue], int],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Yield checked records of a queue, in order; each batch lies in one log file and is limited in rows and bytes."""
    at, stop = queue.unit_range(start, stop)
    while at < stop:
        units = queue.packed_units(at, min(stop - at, 2 * BATCH_ROWS))
        if units is None:  # a queue file was deleted in the meantime, perhaps by another process
            now = low(queue)
            if at >= now:
                return
            at = now
            continue
        made = _two_at_once(log, units, selection)
        for batch, done in made or [_piece(log, queue, at, units[: BATCH_ROWS * UNIT_SIZE], selection, confirm)]:
            if batch is not None and batch.num_rows:
                yield batch
            at += done


def _two_at_once(log: CommitLog, units: memoryview, selection: Selection) -> list[_Made]:
    """Fill the first two batches of these units in parallel.

    Returns none if there is no second batch, and stops at a unit that does not match its record.
    """
    first = _planned(log, units[: BATCH_ROWS * UNIT_SIZE], selection)
    rest = units[first.units * UNIT_SIZE :] if first is not None else units[:0]
    second = _planned(log, rest[: BATCH_ROWS * UNIT_SIZE], selection) if len(rest) else None
    if first is None or second is None:
        return []
    found: list[_Made] = []

    def fill() -> None:
        with suppress(Exception):  # filled again later, where the error is raised
            found.append(second.made(selection))

    beside = threading.Thread(target=fill, name="brokerstore-columns", daemon=True)
    beside.start()
    try:
        made = first.made(selection)
    finally:
        beside.join()
    return [each for each in (made, *(found if made.done == first.units else ())) if each.done]


class _Made(NamedTuple):
    """A batch, if there is one, and the number of units that are done with it."""

    batch: pa.RecordBatch | None
    done: int


def _piece(log: CommitLog, queue: Queue, at: int, units: memoryview, selection: Selection, confirm: Confirm) -> _Made:
    """Return a batch of the first units, from one log file, up to the first unit that points at no record."""
    physical, size, _ = UNIT.unpack_from(units)
    for is_confirmed in (False, True):
        planned = _planned(log, units, selection)
        made = planned.made(selection) if planned is not None else None
        if made is not None and made.done:
            return made
        if not is_confirmed and physical >= log.min_offset:
            confirm(queue, at, physical, size)
    return _Made(None, max(1, _count_before(units, log.min_offset)))


class _Planned(NamedTuple):
    """A batch to fill: the records of `units` units that point into one file, or of those of them at the places `chosen`."""

    batch: Batch
    size_bytes: int | None
    units: int
    chosen: np.ndarray[Any, Any] | None

    def made(self, selection: Selection) -> _Made:
        """Fill the batch with its records, up to the first invalid one; fewer units are done if there is one."""
        if selection.row_filter is None:
            batch = checked_batch(self.batch, selection.columns, CHECK_READ, self.size_bytes)
            return _Made(batch, self._done(batch.num_rows))
        rows = ColumnBatch(self.batch, (), CHECK_READ, self.size_bytes).rows  # no filter reads an unchecked record
        checked = self.batch._replace(positions=self.batch.positions[:rows], sizes=self.batch.sizes[:rows])
        return _Made(checked_batch(selection.row_filter.apply(checked), selection.columns, 0), self._done(rows))

    def _done(self, rows: int) -> int:
        """Return how many units are done if this number of records is valid."""
        if rows == len(self.batch.positions):
            return self.units
        return rows if self.chosen is None else int(self.chosen[rows])


def _planned(log: CommitLog, units: memoryview, selection: Selection) -> _Planned | None:
    """Plan a batch without filler records, whose flags alone are read; return None if the first unit points into no file."""
    import numpy as np  # takes 80 ms

    opened = _open(log, UNIT.unpack_from(units)[0])
    if opened is None:
        return None
    count = len(units) // UNIT_SIZE
    positions, sizes = np.empty(count, np.int64), np.empty(count, np.int32)
    rows, total = split_units(units, UNIT_SIZE, opened.base, len(opened.view), BATCH_BYTES, positions, sizes)
    if not rows:
        return None
    batch = Batch(opened.view, opened.base, positions[:rows], sizes[:rows])
    fillers = find_fillers(opened.view, batch.positions)
    if selection.tags is None and not fillers:
        return _Planned(batch, total, rows, None)
    chosen = np.arange(rows) if selection.tags is None else _tagged(units[: rows * UNIT_SIZE], selection)
    chosen = np.setdiff1d(chosen, fillers) if fillers else chosen
    return _Planned(batch._replace(positions=positions[chosen], sizes=sizes[chosen]), None, rows, chosen)


def _tagged(units: memoryview, selection: Selection) -> np.ndarray[Any, Any]:
    """Return the places of units whose message may have one of the tags; an extended unit is not read."""
    import numpy as np

    codes = np.frombuffer(units, np.uint8).reshape(-1, UNIT_SIZE)[:, TAGS_CODE_AT:].copy().view(">i8").ravel()
    return np.flatnonzero(np.isin(codes, selection.tag_codes) | (codes <= EXT_ADDRESS_MAX))


def _count_before(units: memoryview, physical_offset: int) -> int:
    """Return how many leading units point below a physical offset."""
    count = 0
    for physical, _, _ in UNIT.iter_unpack(units):
        if physical >= physical_offset:
            break
        count += 1
    return count


class _Opened(NamedTuple):
    """A log file that was found and mapped."""

    base: int
    view: memoryview


def _open(log: CommitLog, physical_offset: int) -> _Opened | None:
    """Map the file of a physical offset; return None if there is none."""
    file = log.queue.find(physical_offset)
    try:
        return None if file is None else _Opened(file.start_offset, log.queue.view(file))
    except DiskError:  # deleted in the meantime
        return None
