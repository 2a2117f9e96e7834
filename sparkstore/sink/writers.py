"""Spark's batch and stream writers: tasks stage messages, the driver's commit appends them.

    messages.write.format("brokerstore").mode("append").save("/data/store")
    messages.writeStream.format("brokerstore").option("checkpointLocation", ...).start("/data/store")

Only this module of the package needs pyspark; `columns`, `staging` and `commit` do not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from brokerstore.identify import FolderKind, identify
from messagestore.folder import FolderFacts
from storageio import REAL_DISK, Disk, Mode, StoreError, UnknownStore, random_bytes

from ..errors import BadOption
from ..source.worker import one_line_errors
from .columns import Encoder, check_columns
from .commit import abort_batch, commit_batch
from .new_store import LOCK, is_absent, there_already
from .options import SinkOptions, check_sink_id, local_path, parse_sink_options
from .owner import check_owner
from .staging import PartWriter, SinkPart

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"  # a local property that Spark sets in every task of a stream
METADATA = "metadata"  # the file in a checkpoint that contains the query id
METADATA_BYTES_MAX = 1 << 16


@dataclass
class StagedPart(WriterCommitMessage):
    """The message from a task to the commit."""

    sink_id: str
    part: SinkPart
    query_id: str | None = None


def parse_target(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    """Parse the options of a writer.  Raises a `StoreError` for errors that are detectable before any task runs."""
    if overwrite:
        raise BadOption("a log cannot be overwritten: use mode append, or outputMode append or update")
    parsed = parse_sink_options(options)
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, parsed.topic)
    check_target(parsed.path, is_new_store=parsed.is_new_store)
    return parsed


def check_target(path: str, disk: Disk = REAL_DISK, *, is_new_store: bool = False) -> None:
    """Check that the sink can write to a folder.

    Raises `UnknownStore` for another kind of folder, `UnsupportedFormat` for a store with unsupported features, and
    `StoreLocked` for one that another process has open.
    """
    if is_absent(disk, path):
        return
    if is_new_store:
        raise there_already(path)
    kind = identify(path, disk).kind
    if kind is not FolderKind.ROCKETMQ:
        raise UnknownStore(f"{path}: a {kind.value} folder; the sink writes RocketMQ stores")
    FolderFacts(path, disk).refuse_unsupported()
    disk.lock(os.path.join(path, LOCK)).release()


@one_line_errors
class StoreBatchWriter(DataSourceArrowWriter):
    """The writer of one job; Spark passes copies of it to the tasks and to the commit."""

    disk: Disk = REAL_DISK

    def __init__(self, options: SinkOptions) -> None:
        """Choose a random sink id if the option sinkId is not given."""
        self.options = options
        self.shows_trace = options.shows_trace
        self.is_new_id = options.sink_id is None
        self.sink_id = options.sink_id or f"job-{random_bytes(16).hex()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the messages of a task."""
        return stage(self.disk, self.options, self.sink_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the parts of all tasks; runs on the driver."""
        commit_batch(
            self.options, self.sink_id, self.options.batch_id, _parts(messages), is_new_id=self.is_new_id, disk=self.disk
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the parts after a task or the commit failed; runs on the driver."""
        abort_batch(self.options, self.sink_id, disk=self.disk)


@one_line_errors
class StoreStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one query; Spark creates one for the tasks of each batch and another for each commit."""

    disk: Disk = REAL_DISK

    def __init__(self, options: SinkOptions) -> None:
        """Keep the options; only tasks know the query's id."""
        self.options = options
        self.shows_trace = options.shows_trace

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the messages of a task."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        sink_id = self.options.sink_id or query_id
        if sink_id is None:
            raise BadOption("this version of Spark does not give tasks their query id: set the option sinkId")
        staged = stage(self.disk, self.options, check_sink_id(sink_id), iterator)
        return replace(staged, query_id=query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Append the parts of a batch; runs on the driver."""
        if self.options.sink_id is not None:
            for query_id in _query_ids(messages):
                check_owner(self.disk, self.options.path, self.options.sink_id, query_id)
        for sink_id in _sink_ids(messages):
            commit_batch(self.options, sink_id, batchId, _parts(messages), disk=self.disk)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Delete the parts of a failed batch; the checkpoint names the sink id if no task reported one."""
        sink_name = self.options.sink_id or query_of(self.options.checkpoint, self.disk)
        for sink_id in _sink_ids(messages) | ({sink_name} if sink_name else set()):
            abort_batch(self.options, sink_id, disk=self.disk)


def stage(disk: Disk, options: SinkOptions, sink_id: str, batches: Iterator[pa.RecordBatch]) -> StagedPart:
    """Stage the messages of one task as a part, and delete it if anything fails."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    encoder = Encoder(options.topic, options.config.max_message_size, f"partition {partition}")
    writer = PartWriter(disk, options.path, sink_id, partition)
    try:
        for batch in batches:
            writer.add(encoder.encode(batch))
        return StagedPart(sink_id, writer.finish())
    except BaseException:
        writer.discard()
        raise


def _sink_ids(messages: list[WriterCommitMessage | None]) -> set[str]:
    return {message.sink_id for message in messages if isinstance(message, StagedPart)}


def _query_ids(messages: list[WriterCommitMessage | None]) -> set[str]:
    """Return the query ids of the tasks that staged rows."""
    return {found.query_id for found in messages if isinstance(found, StagedPart) and found.part.rows and found.query_id}


def _parts(messages: list[WriterCommitMessage | None]) -> list[SinkPart]:
    return [message.part for message in messages if isinstance(message, StagedPart)]


def query_of(checkpoint: str | None, disk: Disk = REAL_DISK) -> str | None:
    """Return the query id in a checkpoint on a mounted path, or None if it cannot be read."""
    try:
        path = os.path.join(local_path(checkpoint or ""), METADATA)
        if not checkpoint or disk.stat(path) is None:
            return None
        with disk.open(path, Mode.READ) as file:
            return check_sink_id(str(json.loads(file.read(0, METADATA_BYTES_MAX))["id"]))
    except (StoreError, ValueError, KeyError, TypeError):
        return None
