"""A Python source that takes no time, to measure what its rows cost in Spark itself.

It is a module of its own, because Spark's workers import it by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from sparkstore.options import parse_read_options
from sparkstore.schema import message_schema
from sparkstore.source.batches import ReadRequest, record_batches
from sparkstore.source.splits import LogSplit, plan_log
from sparkstore.source.stores import find_stores
from sparkstore.source.worker import settled


def read_floor(spark: Any, path: str, columns: tuple[str, ...]) -> Any:
    """Return a frame with as many rows of the same columns, from a source that does nothing."""
    spark.dataSource.register(FloorSource)
    return spark.read.format(FloorSource.name()).schema(message_schema(columns)).load(path)


class FloorSource(DataSource):
    """A source whose tasks return one prepared batch again and again."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "floor"

    def reader(self, schema: Any) -> DataSourceReader:
        """Return a reader, which needs only the size of the store."""
        return FloorReader(self.options["path"], tuple(schema.names))


class FloorReader(DataSourceReader):
    """A reader with as many tasks as the store has splits, and equal parts of the rows."""

    def __init__(self, path: str, columns: tuple[str, ...]) -> None:
        self.path, self.columns = path, columns

    def partitions(self) -> list[InputPartition]:
        """Return the number of rows of each task."""
        rows, splits = count_rows(self.path), len(_splits(self.path))
        return [InputPartition(rows * (part + 1) // splits - rows * part // splits) for part in range(splits)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the batches of one task."""
        return settled(self._batches(partition.value))

    def _batches(self, rows: int) -> Iterator[Any]:
        batch = first_batch(self.path, self.columns)
        for _ in range(rows // batch.num_rows):
            yield batch
        yield batch.slice(0, rows % batch.num_rows)


@cache
def first_batch(path: str, columns: tuple[str, ...]) -> Any:
    """Return the store's first batch in Spark's types; each worker makes it once."""
    return next(record_batches(_splits(path)[0], _request(path, columns)))


@cache
def count_rows(path: str) -> int:
    """Return the number of rows in the store."""
    return sum(batch.num_rows for split in _splits(path) for batch in record_batches(split, _request(path, ("size",))))


def _request(path: str, columns: tuple[str, ...]) -> ReadRequest:
    return ReadRequest.of(parse_read_options({"path": path}), message_schema(columns))


def _splits(path: str) -> list[LogSplit]:
    options = parse_read_options({"path": path})
    return plan_log(find_stores(options.paths)[0], options)
