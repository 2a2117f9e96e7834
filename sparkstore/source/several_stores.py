"""A stream over several stores: one stream reader for each, whose offsets are kept by the path of the store.

Limits apply to each store.  A store that a later run names in addition begins where a new query would; Spark records that
position first, so that a batch planned again is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from storageio import UnknownStore

from ..errors import BadOption
from ..options import by_our_names, paths_of
from .stores import FoundStore
from .streaming import STARTING, BrokerStreamReader, followed_stores
from .worker import one_line_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

LOG = logging.getLogger(f"brokerstore.{__name__}")
STORES = "stores"
OF_ONE_STORE = ("startingGroup", "startingOffsetsByTimestamp", "endingOffsets", "assign")
Offset = dict[str, Any]


def stream_reader(options: Mapping[str, str], schema: StructType) -> BrokerStreamReader | StoresStreamReader:
    """Return the reader of the stores that the path names.  Raises `BadOption`, `UnknownColumn` and `UnknownStore`."""
    stores = followed_stores(paths_of(options))
    if len(stores) == 1:
        return BrokerStreamReader(options, schema, stores[0], stores)
    return StoresStreamReader(options, schema, stores)


@one_line_errors
class StoresStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of several stores."""

    def __init__(self, options: Mapping[str, str], schema: StructType, stores: list[FoundStore]) -> None:
        """Raises `BadOption` for an option that means a place in one store, and what `BrokerStreamReader` raises."""
        given = by_our_names(options)
        starting = given.get(STARTING.lower(), "earliest").lower()
        named = [name for name in OF_ONE_STORE if name.lower() in given] + [STARTING] * (starting not in ("earliest", "latest"))
        if named:
            raise BadOption(
                f"option {named[0]}: it means a place in one store; start a stream for each of the {len(stores)} stores"
            )
        self._readers = {store.path: BrokerStreamReader(options, schema, store, stores) for store in stores}
        self._first = next(iter(self._readers.values()))
        self.shows_trace = self._first.shows_trace
        self.request = self._first.request

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name)
        """Return the start of a query without a checkpoint."""
        return {STORES: {path: reader.initialOffset() for path, reader in self._readers.items()}}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  (Spark's name)
        """Return the end of the next batch."""
        begun = self._begun(start)
        return {
            STORES: {
                path: reader.latestOffset(begun[path], limit) if path in begun else reader.initialOffset()
                for path, reader in self._readers.items()
            }
        }

    def _begun(self, offset: Offset) -> dict[str, Offset]:
        """Return the offset of each store.  Raises `BadOption` for another checkpoint, `UnknownStore` for a store left out."""
        found = offset.get(STORES)
        if not isinstance(found, dict):
            raise BadOption(
                f"checkpoint: expected offsets of {STORES!r}, found {offset!r}; give this query a checkpoint of its own"
            )
        for path in found.keys() - self._readers.keys():
            if self._first.fails_on_data_loss:
                raise UnknownStore(f"{path}: the query has read this store, and its path does not name it any more")
            LOG.warning("%s: the query does not read this store any more", path)
        return {path: offset for path, offset in found.items() if path in self._readers}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """Return the limit of each store."""
        return self._first.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Limit this run to the records that are durable now."""
        for reader in self._readers.values():
            reader.prepareForTriggerAvailableNow()

    def reportLatestOffset(self) -> Offset:  # noqa: N802  (Spark's name)
        """Return what each store reports."""
        return {STORES: {path: reader.reportLatestOffset() for path, reader in self._readers.items()}}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan the splits of a batch; a store that joins with it has none yet."""
        begun, ended = self._begun(start), self._begun(end)
        return [
            split
            for path, reader in self._readers.items()
            if path in begun and path in ended
            for split in reader.partitions(begun[path], ended[path])
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a split, which names its store, in a task."""
        return self._first.read(partition)
