"""What the scans of both engines share: rows that other programs take as an Arrow stream, and how their filters are given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Offsets = int | Mapping[Any, int]  # one number for all queues, or one for each


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows.  `RecordBatch.from_pylist` would import pandas if installed: 150 ms."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


class ArrowTable:
    """Rows as a table: it has `__arrow_c_stream__`, so polars, DuckDB, pandas 3 and pyarrow read it directly.

        polars.DataFrame(scan)        pandas.DataFrame.from_arrow(scan)        pyarrow.table(scan)
        duckdb.sql("select count(*) from scan")

    Each read starts again.
    """

    schema: pa.Schema

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one read."""
        raise NotImplementedError

    def __arrow_c_schema__(self) -> object:
        """Return the schema, as the Arrow PyCapsule interface describes it."""
        capsule: object = self.schema.__arrow_c_schema__()
        return capsule

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a new stream of the rows, as the Arrow PyCapsule interface describes it."""
        capsule: object = self.reader().__arrow_c_stream__(requested_schema)
        return capsule

    def reader(self) -> pa.RecordBatchReader:
        """Return a new reader of the rows. Its errors have the library's types; those of a stream are texts."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_pandas(self, **options: Any) -> Any:
        """Return the rows as a pandas table, also with pandas 2; `options` are those of `pyarrow.Table.to_pandas`."""
        return self.reader().read_all().to_pandas(**options)


def offset_of(given: Offsets | None, queue: object, default: int) -> int:
    """Return the number that was given for a queue."""
    if given is None:
        return default
    return given if isinstance(given, int) else given.get(queue, default)


def word_set(given: str | Iterable[str] | None, name: str) -> frozenset[str] | None:
    """Return one text or several as a set; `name` is the argument's, for the error."""
    if given is None:
        return None
    words = frozenset([given] if isinstance(given, str) else given)
    wrong = [word for word in words if not isinstance(word, str)]
    if wrong:
        raise TypeError(f"{name}: text expected, found {type(wrong[0]).__name__}")
    return words
