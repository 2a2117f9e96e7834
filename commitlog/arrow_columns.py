"""Records as Arrow batches: the columns of the tool's JSON, text and bodies included.  Needs pyarrow (extra `arrow`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from storageio import needs_extra

from .column_batch import ColumnBatch
from .columns import BATCH_BYTES, Batch, batches, refuse_missing
from .commit_log import CommitLog
from .compression import decompress
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
    decode_limit_bytes: int | None = None,
    **options: Any,
) -> pa.RecordBatchReader:
    """Read the given columns of a log or a buffer as Arrow batches.  `options` are those of `columns.batches`.

    Bodies are as stored; with `decode_limit_bytes` they are decompressed, see `decoded`.
    """
    with needs_extra("arrow"):
        import pyarrow as pa  # 150 ms

    requested = schema(columns)

    def made(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return (record_batch(batch, names) for batch in batches(source, start, stop, **options))

    return pa.RecordBatchReader.from_batches(requested, decoded(made, columns, decode_limit_bytes))


def decoded(
    made: Callable[[Sequence[str]], Iterator[pa.RecordBatch]], columns: Sequence[str], limit_bytes: int | None
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Return the batches that `made` makes of the columns; with a limit, bodies are decompressed.

    Raises `StoreCorrupt` with the physical offset of a record whose body is not one whole frame or is longer than the limit.
    """
    if limit_bytes is None or "body" not in columns:
        return made(columns)
    if not isinstance(limit_bytes, int) or isinstance(limit_bytes, bool) or limit_bytes < 0:
        raise ValueError(f"decode_limit_bytes: a number of bytes expected, found {limit_bytes!r}")
    needed = tuple(dict.fromkeys((*columns, "sys_flag", "physical_offset")))
    return (part for batch in made(needed) for part in _decoded(batch, columns, limit_bytes))


def _decoded(batch: pa.RecordBatch, columns: Sequence[str], limit_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts of bounded size, however much its bodies grow."""
    first, bodies, size_bytes = 0, list[bytes](), 0
    rows = zip(*(batch.column(name).to_pylist() for name in ("body", "sys_flag", "physical_offset")), strict=True)
    for row, (body, sys_flag, offset) in enumerate(rows):
        whole = decompress(body, sys_flag, limit=limit_bytes, offset=offset)
        if bodies and size_bytes + len(whole) > BATCH_BYTES:
            yield _with_bodies(batch.slice(first, len(bodies)), bodies, columns)
            first, bodies, size_bytes = row, [], 0
        bodies.append(whole)
        size_bytes += len(whole)
    yield _with_bodies(batch.slice(first, len(bodies)), bodies, columns)


def _with_bodies(batch: pa.RecordBatch, bodies: list[bytes], columns: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa  # 150 ms

    at = batch.schema.get_field_index("body")
    return batch.set_column(at, batch.schema.field(at), pa.array(bodies, pa.binary())).select(list(columns))


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
