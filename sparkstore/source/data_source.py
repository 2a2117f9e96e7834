"""The Spark data source "brokerstore": batch and stream readers, batch and stream writers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from commitlog.row_filter import IN, Condition
from storageio import StoreError

from ..options import REPORT, ReadOptions, by_our_names, parse_read_options, refuse_foreign_options
from ..schema import RABBIT_COLUMNS, check_schema, message_schema, named_schema, rabbit_schema
from .batches import ReadRequest, record_batches
from .queue_starts import check_queues_exist, with_group_offsets
from .splits import LogSplit, RabbitSplit, plan_log, plan_rabbit
from .stores import find_stores
from .time_filter import by_milliseconds, narrowed
from .worker import one_line_errors, settled

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "brokerstore"
STARTING = "startingoffsets"
_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "eq",
    GreaterThan: "gt",
    GreaterThanOrEqual: "ge",
    LessThan: "lt",
    LessThanOrEqual: "le",
    In: IN,
}


@one_line_errors
class BrokerStoreSource(DataSource):
    """The data source; Spark creates it in a process beside the driver.  It accesses a store only when a method needs it."""

    @property
    def shows_trace(self) -> bool:
        """Return whether errors come with a stack."""
        return str(self.options.get("trace", "")).lower() == "true"

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return all columns for this kind of store, with `store` and `problem` where the options make them useful."""
        given = by_our_names(self.options)
        given.pop(STARTING, None)  # a stream has more values of it
        options = parse_read_options(given, also=given)
        make = rabbit_schema if find_stores(options.paths)[0].is_rabbit else message_schema
        if options.columns is not None:
            return named_schema(options.columns, make)
        return make(store=options.has_store_column, problem=options.bad_records == REPORT)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader.  Raises `BadOption` and `UnknownColumn`."""
        options = parse_read_options(self.options)
        return (PushdownReader if options.push_filters else BrokerStoreReader)(options, schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802  (Spark's name)
        """Return the stream reader, or one whose calls raise the error that prevented it.

        Spark 4.3 replaces an error of this method by an `UnboundLocalError` of its own.
        """
        from .several_stores import stream_reader
        from .streaming import FailedStreamReader

        try:
            return stream_reader(self.options, schema)
        except StoreError as error:
            return FailedStreamReader(error, self.shows_trace)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return the batch writer."""
        from ..sink.writers import StoreBatchWriter, parse_target

        return StoreBatchWriter(parse_target(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802  (Spark's name)
        """Return the stream writer."""
        from ..sink.writers import StoreStreamWriter, parse_target

        return StoreStreamWriter(parse_target(self.options, schema, overwrite))


@one_line_errors
class BrokerStoreReader(DataSourceReader):
    """Plans splits beside the driver and reads them in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Check paths, schema and options before anything is read."""
        self._options = options
        self.shows_trace = options.shows_trace
        self._stores = find_stores(options.paths)
        is_rabbit = self._stores[0].is_rabbit
        check_schema(schema, RABBIT_COLUMNS if is_rabbit else None, options)
        refuse_foreign_options(options, is_rabbit=is_rabbit)
        if not is_rabbit:
            check_queues_exist(self._stores, options)
            self._options = options = with_group_offsets(self._stores, options)
        self.request = ReadRequest.of(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return one partition per split."""
        splits: list[LogSplit | RabbitSplit] = []
        for store in self._stores:
            splits += plan_rabbit(store, self._options) if store.is_rabbit else plan_log(store, self._options)
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a split in a task; Spark turns an empty plan into a partition without a split."""
        split = partition.value
        return iter(()) if split is None else settled(split_batches(split, self.request))


@one_line_errors
class PushdownReader(BrokerStoreReader):
    """A reader that also takes conditions of `where(...)`.

    It is a separate class because Spark rejects every read of a reader that has `pushFilters` while
    `spark.sql.python.filterPushdown.enabled` is false, as it is by default.  Spark 4.3 keeps the planned reader of a DataFrame:
    after a query with pushed conditions, one without any would return only the rows of the first.  So the option is off by
    default whatever that setting is.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        """Take filters that a row filter decides exactly and return the rest; return all if Spark must judge problem rows."""
        taken, rest = [], []
        for found in filters:
            condition = _condition(found)
            if condition is None:
                rest.append(found)
            else:
                taken.append(condition)
        self.take(taken)
        return filters if self._options.bad_records == REPORT else rest

    def take(self, conditions: list[Condition]) -> None:
        """Read only what meets the conditions, which a row filter decides exactly."""
        self._options = narrowed(self._options, conditions)
        request = self.request
        self.request = ReadRequest(request.schema, request.options, request.row_filter.plus(conditions))


def split_batches(split: LogSplit | RabbitSplit, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Read a split of either kind."""
    if isinstance(split, RabbitSplit):
        from .rabbit_batches import rabbit_batches

        return rabbit_batches(split, request)
    return record_batches(split, request)


def _condition(found: Filter) -> Condition | None:
    """Convert a filter to a condition, or return None for one that Spark has to evaluate."""
    name = _OPERATORS.get(type(found))
    if name is None:
        return None
    attribute: tuple[str, ...] = getattr(found, "attribute", ())
    value = tuple(found.value) if isinstance(found, In) else getattr(found, "value", None)
    condition = by_milliseconds(Condition(attribute[0], name, value)) if len(attribute) == 1 else None
    return condition if condition is not None and condition.is_known else None
