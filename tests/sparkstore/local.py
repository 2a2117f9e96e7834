"""What Spark would call, called directly: plans, tasks and commits run in this process, one after the other."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from brokerstore.identify import identify
from brokerstore.tool.message_json import message_json
from commitlog import StoredMessage
from commitlog.walk import LogFiles
from sparkstore.jobs import audit_source, auditing, reindex_source
from sparkstore.options import parse_read_options
from sparkstore.schema import message_schema
from sparkstore.source.data_source import BrokerStoreSource
from storageio import REAL_DISK

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def dumped(store: Path | str) -> list[dict[str, Any]]:
    """Return what `brokerstore dump --json` prints, in the source's form: bytes as body, no checksum property, times."""
    made = []
    for found in LogFiles(REAL_DISK, identify(str(store)).log_folders).messages():
        if isinstance(found, StoredMessage):
            row = message_json(found)
            row["body"] = b64decode(row.pop("body_base64"))
            row["properties"].pop("__CRC32#", None)
            for name in ("born", "store"):
                row[f"{name}_time"] = EPOCH + timedelta(milliseconds=row[f"{name}_timestamp_ms"])
            made.append(row)
    return made


def batches(path: Any, schema: Any = None, **options: Any) -> Iterator[pa.RecordBatch]:
    """Yield every batch of every task."""
    paths = {"path": str(path)} if isinstance(path, (str, Path)) else {"paths": json.dumps([str(part) for part in path])}
    source = BrokerStoreSource({**paths, **{name: str(value) for name, value in options.items()}})
    reader = source.reader(source.schema() if schema is None else schema)
    for partition in reader.partitions():
        yield from reader.read(partition)


def rows(path: Any, schema: Any = None, **options: Any) -> list[dict[str, Any]]:
    """Return every row, with maps as dictionaries."""
    made = [row for batch in batches(path, schema, **options) for row in batch.to_pylist()]
    for row in made:
        if isinstance(row.get("properties"), list):
            row["properties"] = dict(row["properties"])
    return made


def positions(path: Any, **options: Any) -> list[int]:
    """Return the physical offsets of all rows."""
    return [row["physical_offset"] for row in rows(path, message_schema(["physical_offset"]), **options)]


def audited(path: Any, **options: Any) -> auditing.AuditReport:
    """Return the report of an audit."""
    reader = audit_source._AuditReader({"path": str(path), **{name: str(value) for name, value in options.items()}})
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    found.sort(key=lambda row: tuple((row[name] is not None, row[name]) for name in auditing._ORDER))
    joined = auditing.join_runs(iter([audit_source._batch(found)] if found else []))
    return auditing._report([row for batch in joined for row in batch.to_pylist()])


def reindex(path: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Run map, merge and commit."""
    writer, messages = reindex_tasks(path, monkeypatch, **options)
    try:
        writer.commit(messages)
    except BaseException:
        writer.abort([*messages, None])
        raise


def reindex_tasks(path: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, list[Any]]:
    """Run map and merge; return the writer and the messages of its tasks."""
    requested = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    source = reindex_source.ReindexSource(requested)
    reader, writer = source.reader(None), source.writer(None, False)  # type: ignore[arg-type]
    messages: list[Any] = []
    try:
        packed = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        for target in sorted({row["target"] for row in packed}):
            mine = [row for row in packed if row["target"] == target]
            mine.sort(key=lambda row: (row["topic"] or "", -1 if row["queue_id"] is None else row["queue_id"], row["order"]))
            monkeypatch.setattr(reindex_source, "_attempt", lambda target=target: f"{target}-0")
            messages.append(writer.write(iter([pa.RecordBatch.from_pylist(mine)])))
    except BaseException:
        writer.abort([*messages, None])
        raise
    return writer, messages


def of_spark(rows: list[Any]) -> list[dict[str, Any]]:
    """Return Spark's rows as dictionaries; its times have no zone, and mean the local one."""
    made = [row.asDict(recursive=True) for row in rows]
    for row in made:
        row |= {name: value.astimezone(UTC) for name, value in row.items() if isinstance(value, datetime)}
    return made


def copied(store: Path, to: Path) -> Path:
    """Copy a store's folder."""
    shutil.copytree(store, to)
    return to


def parsed(**options: str) -> Any:
    """Parse options as the reader does."""
    return parse_read_options({"path": "/nowhere", **options})
