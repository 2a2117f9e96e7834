"""Rows, their staging as tasks do it, and the resulting logs.  Nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from messagestore import MessageStore
from sparkstore.sink.columns import Encoder
from sparkstore.sink.commit import commit_batch
from sparkstore.sink.options import SinkOptions, parse_sink_options
from sparkstore.sink.staging import PartWriter, SinkPart
from storageio import REAL_DISK, Disk

# Small files, so that tests fill several.
SMALL = {
    "mappedFileSizeCommitLog": "64k",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "queues": "3",
}
BATCH_ROWS = 10  # rows per Arrow batch, so that a part has several batches
KINDS = {"topic": "string", "body": "binary", "keys": "array<string>", "tags": "string", "properties": "map<string,string>"}
Row = dict[str, Any]


def options_for(root: Path | str, **more: str) -> SinkOptions:
    return parse_sink_options({"path": str(root), **SMALL, **more})


def one_queue(root: Path | str) -> SinkOptions:
    """Return options with one queue, so that a commit needs as few storage calls as possible."""
    return options_for(root, queues="1")


def rows_of(count: int, start: int = 0) -> list[Row]:
    """Return messages of two topics; every third has no key, every fourth no tag."""
    return [
        {
            "topic": f"topic-{number % 2}",
            "body": f"body {number} ".encode() * (1 + number % 5),
            "keys": None if number % 3 == 0 else [f"key-{number}", f"also-{number}"],
            "tags": None if number % 4 == 0 else f"tag{number % 4}",
            "properties": {"number": str(number)},
        }
        for number in range(start, start + count)
    ]


def arrow(rows: Sequence[Row], **kinds: Any) -> Any:
    """Return a record batch as Spark would give it to a task."""
    import pyarrow as pa

    known = {
        "topic": pa.string(), "body": pa.binary(), "queue_id": pa.int32(), "keys": pa.list_(pa.string()), "tags": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()), "flag": pa.int32(), "sys_flag": pa.int32(),
        "reconsume_times": pa.int32(), "born_timestamp_ms": pa.int64(), "born_host": pa.string(),
    } | kinds  # fmt: skip
    names = list(rows[0])
    columns = []
    for name in names:
        values = [row[name] for row in rows]
        if name == "properties":
            values = [None if value is None else list(value.items()) for value in values]
        columns.append(pa.array(values, known[name]))
    return pa.RecordBatch.from_arrays(columns, names=names)


def stage_rows(
    options: SinkOptions, sink_id: str, rows: Sequence[Row], partitions: int = 3, disk: Disk = REAL_DISK
) -> list[SinkPart]:
    """Stage the rows in this many parts, as tasks would."""
    parts = []
    for partition in range(partitions):
        own = rows[len(rows) * partition // partitions : len(rows) * (partition + 1) // partitions]
        encoder = Encoder(options.topic, options.config.max_message_size, f"partition {partition}")
        writer = PartWriter(disk, options.path, sink_id, partition)
        for at in range(0, len(own), BATCH_ROWS):
            writer.add(encoder.encode(arrow(own[at : at + BATCH_ROWS])))
        parts.append(writer.finish())
    return parts


def commit_rows(options: SinkOptions, sink_id: str, batch_id: int, rows: Sequence[Row], disk: Disk = REAL_DISK) -> Any:
    return commit_batch(options, sink_id, batch_id, stage_rows(options, sink_id, rows), disk=disk)


def logged(root: Path | str) -> list[Any]:
    """Return every message of a store in log order."""
    with MessageStore.open(str(root), "r") as store:
        return list(store.follow(timeout_s=0))


def bodies(root: Path | str) -> list[bytes]:
    return [message.body for message in logged(root)]


def left_behind(root: Path | str) -> list[str]:
    """Return the names of all staged files."""
    folder = Path(root) / "brokerstore" / "sink"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []
