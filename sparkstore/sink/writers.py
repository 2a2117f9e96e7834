"""The sinks as Spark knows them: tasks stage, the driver's commit appends.

    messages.write.format("brokerstore").mode("append").save("/data/store")
    messages.writeStream.format("brokerstore").option("checkpointLocation", ...).start("/data/store")

Needs pyspark; what is done with the messages is in modules that do not (`sink_columns`, `staging`, `commit`).
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
from messagestore.foreign import refuse_unsupported
from storageio import REAL_DISK, Disk, Mode, StoreError, UnknownStore, random_bytes

from ..errors import BadOption
from .columns import Encoder, check_columns
from .commit import abort_batch, commit_batch
from .new_store import LOCK, is_absent, there_already
from .options import SinkOptions, check_sink_id, local_path, parse_sink_options
from .owner import check_owner
from .staging import Part, PartWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"  # Spark tells every task of a stream which query it works for
METADATA = "metadata"  # in a checkpoint: which query it belongs to
METADATA_BYTES_MAX = 1 << 16


@dataclass
class StagedPart(WriterCommitMessage):
    """What a task tells the commit."""

    sink_id: str
    part: Part
    query_id: str | None = None


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StoreBatchWriter:
    """The sink of `df.write`.  Raises a `StoreError` for what can be known to fail before any task runs."""
    parsed = _parse(options, schema, overwrite)
    return StoreBatchWriter(parsed)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StoreStreamWriter:
    """The sink of `df.writeStream`.  Raises as `batch_writer` does."""
    parsed = _parse(options, schema, overwrite)
    return StoreStreamWriter(parsed)


def _parse(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise BadOption("a log is only appended to: mode append, and outputMode append or update, wanted")
    parsed = parse_sink_options(options)
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, parsed.topic)
    check_target(parsed.path, is_new_store=parsed.is_new_store)
    return parsed


def check_target(path: str, disk: Disk = REAL_DISK, *, is_new_store: bool = False) -> None:
    """Raise `UnknownStore` for a folder of something else, `UnsupportedFormat` for a store that is not fully understood, and
    `StoreLocked` for one that is open now.
    """
    if is_absent(disk, path):
        return
    if is_new_store:
        raise there_already(path)
    kind = identify(path, disk).kind
    if kind is not FolderKind.ROCKETMQ:
        raise UnknownStore(f"{path}: a {kind.value} folder; the sink writes RocketMQ stores")
    refuse_unsupported(disk, path)
    disk.lock(os.path.join(path, LOCK)).release()


class StoreBatchWriter(DataSourceArrowWriter):
    """Of one job.  Spark makes one, and hands copies of it to tasks and to the commit."""

    disk: Disk = REAL_DISK

    def __init__(self, options: SinkOptions) -> None:
        """Without the option sinkId the job has an id that nobody had before."""
        self.options = options
        self.is_new_id = options.sink_id is None
        self.sink_id = options.sink_id or f"job-{random_bytes(16).hex()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage its messages."""
        return stage(self.disk, self.options, self.sink_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks are done."""
        commit_batch(
            self.options, self.sink_id, self.options.batch_id, _parts(messages), is_new_id=self.is_new_id, disk=self.disk
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task or the commit failed for good."""
        abort_batch(self.options, self.sink_id, disk=self.disk)


class StoreStreamWriter(DataSourceStreamArrowWriter):
    """Of one query.  Spark makes one for the tasks of each batch and another for each commit."""

    disk: Disk = REAL_DISK

    def __init__(self, options: SinkOptions) -> None:
        """The query's id is known to its tasks alone."""
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage its messages."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        sink_id = self.options.sink_id or query_id
        if sink_id is None:
            raise BadOption("this Spark does not say which query a task works for: give the option sinkId")
        staged = stage(self.disk, self.options, check_sink_id(sink_id), iterator)
        return replace(staged, query_id=query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """On the driver, when all tasks of a batch are done."""
        if self.options.sink_id is not None:
            for query_id in _query_ids(messages):
                check_owner(self.disk, self.options.path, self.options.sink_id, query_id)
        for sink_id in _sink_ids(messages):
            commit_batch(self.options, sink_id, batchId, _parts(messages), disk=self.disk)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """On the driver, when a task failed for good.  What no task that ended well names is found by the checkpoint."""
        told = self.options.sink_id or query_of(self.options.checkpoint, self.disk)
        for sink_id in _sink_ids(messages) | ({told} if told else set()):
            abort_batch(self.options, sink_id, disk=self.disk)


def stage(disk: Disk, options: SinkOptions, sink_id: str, batches: Iterator[pa.RecordBatch]) -> StagedPart:
    """One task's messages as a part; nothing is left of it where anything fails."""
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
    """Of the tasks that staged anything."""
    return {found.query_id for found in messages if isinstance(found, StagedPart) and found.part.rows and found.query_id}


def _parts(messages: list[WriterCommitMessage | None]) -> list[Part]:
    return [message.part for message in messages if isinstance(message, StagedPart)]


def query_of(checkpoint: str | None, disk: Disk = REAL_DISK) -> str | None:
    """The query id that a checkpoint on a mounted path belongs to; None where that cannot be told."""
    try:
        path = os.path.join(local_path(checkpoint or ""), METADATA)
        if not checkpoint or disk.stat(path) is None:
            return None
        file = disk.open(path, Mode.READ)
        try:
            return check_sink_id(str(json.loads(file.read(0, METADATA_BYTES_MAX))["id"]))
        finally:
            file.close()
    except (StoreError, ValueError, KeyError, TypeError):
        return None
