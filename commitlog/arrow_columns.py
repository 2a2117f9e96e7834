"""Records as Arrow batches: the columns of the tool's JSON, text and bodies included.  Needs pyarrow (extra `arrow`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from storageio import needs_extra

from .column_batch import ColumnBatch
from .columns import Batch, batches, refuse_missing
from .commit_log import CommitLog
from .fields import BODY, COLUMNS, FIELDS, HEX, HOST, INT, KEYS, LONG, PROPERTIES

if TYPE_CHECKING:
    import pyarrow as pa


def schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema: hosts and magic (8 hex digits) are dictionaries, missing tags are null, missing keys an empty list."""
    return _schema(tuple(columns))


@cache
def _schema(columns: tuple[str, ...]) -> pa.Schema:
    with needs_extra("arrow"):
        import pyarrow as pa  # 150 ms

    named = pa.dictionary(pa.int32(), pa.string())
    types = {INT: pa.int32(), LONG: pa.int64(), HEX: named, HOST: named, KEYS: pa.list_(pa.string()), BODY: pa.binary()}
    types[PROPERTIES] = pa.map_(pa.string(), pa.string())
    unknown = set(columns) - set(COLUMNS)
    if unknown:
        raise ValueError(f"no such columns: {sorted(unknown)}")
    kinds = {field.name: field.kind for field in FIELDS}
    return pa.schema([pa.field(name, types.get(kinds[name], pa.string())) for name in columns])


def read_columns(
    source: CommitLog | memoryview | bytes | bytearray,
    start: int | None = None,
    stop: int | None = None,
    *,
    columns: Sequence[str] = COLUMNS,
    **options: Any,
) -> pa.RecordBatchReader:
    """Read the given columns of a log or a buffer as Arrow batches.  `options` are those of `columns.batches`."""
    with needs_extra("arrow"):
        import pyarrow as pa  # 150 ms

    requested = schema(columns)
    made: Iterator[Any] = (record_batch(batch, columns) for batch in batches(source, start, stop, **options))
    return pa.RecordBatchReader.from_batches(requested, made)


def record_batch(batch: Batch, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """Return the given columns of one batch, which owns its bytes.  Raises `ValueError` if a row's position has no record."""
    made = checked_batch(batch, columns, 0)
    if columns:
        refuse_missing(batch, made.num_rows)
    return made


def checked_batch(batch: Batch, columns: Sequence[str], checks: int, most: int | None = None) -> pa.RecordBatch:
    """Return the columns of the rows before the first that is not a record of its size or does not pass `checks`.

    `most`: the bytes of the batch's records, if known.
    """
    import pyarrow as pa  # 150 ms

    filled = ColumnBatch(batch, columns, checks, most)
    return pa.RecordBatch.from_arrays([filled.column(name) for name in columns], schema=_schema(tuple(columns)))
