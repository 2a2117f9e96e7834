"""Messages from a file of JSON Lines or Parquet, as `brokerstore export` writes them or with fewer columns, into a store.

A row needs `topic` and `body_base64` (JSON Lines) or `body` (Parquet; text in JSON Lines); `queue_id` is 0 when absent.
`tags`, `keys`, `properties`, `flag`, `born_timestamp_ms`, `born_host` and `reconsume_times` are taken over; where a row lay
in the old store is not.  Rows keep their order within a queue.

A second run goes on behind the first: a queue that holds the file's first rows already gets the rest, one that holds other
messages is refused before anything of it is put.
"""

from __future__ import annotations

import binascii
import json
import os
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any

from brokerstore.identify import FolderKind
from brokerstore.migrate import Moved
from brokerstore.write_target import check_write_target
from commitlog import Message
from messagestore import MessageStore, StoreConfig
from storageio import InvalidMessage, MissingExtra, StoreCorrupt, UnknownStore

BATCH = 256
LINE_SIZE_MAX = 1 << 30  # a body of 512 MiB in base64 and what goes with it
PARQUET_ROWS = 1024
DERIVED = ("TAGS", "KEYS", "__CRC32#")  # in `properties` of an export; they have columns of their own
Row = dict[str, Any]
Lane = tuple[str, int]


def import_file(
    path: str, target: str, *, config: StoreConfig | None = None, progress: Callable[[int], None] | None = None
) -> Moved:
    """Put every row.  Raises `StoreCorrupt` with the row's number for what is no message, `InvalidMessage` for other messages.

    `progress` is called with the number of rows looked at.
    """
    check_write_target(target, FolderKind.ROCKETMQ)
    moved = Moved()
    with MessageStore.open(target, "a", config) as store:
        lanes: dict[Lane, _Lane] = {}
        batch: list[Message] = []
        for number, row in enumerate(_rows(path), 1):
            message = _message(row, path, number)
            lane = lanes.setdefault((message.topic, message.queue_id), _Lane(store, message))
            if lane.has(message):
                moved.skipped += 1
            else:
                batch.append(message)
            if len(batch) == BATCH:
                moved.messages += store.put_many(batch).message_count
                batch = []
            if progress is not None:
                progress(1)
        if batch:
            moved.messages += store.put_many(batch).message_count
        moved.queues = len(lanes)
        store.flush()
    return moved


class _Lane:
    """A queue of the target: the messages it had when the import began, looked at one by one."""

    def __init__(self, store: MessageStore, first: Message) -> None:
        self._name = f"{first.topic}/{first.queue_id}"
        is_there = first.topic in store.topics() and first.queue_id in store.queue_ids(first.topic)
        self._present = store.read(first.topic, first.queue_id) if is_there else iter(())

    def has(self, message: Message) -> bool:
        """Whether the queue's next message is this one; it has no next one when it has to be put."""
        found = next(self._present, None)
        if found is None:
            self._present = iter(())
            return False
        if found.body == message.body and found.tags == message.tags and found.keys == (message.keys or []):
            return True
        raise InvalidMessage(
            f"{self._name} holds another message than the file at its number {found.queue_offset}: import into a new store"
        )


def _rows(path: str) -> Iterator[Row]:
    """By the file's ending."""
    if not os.path.isfile(path):
        raise UnknownStore(f"{path}: no such file")
    if path.endswith(".parquet"):
        return _parquet_rows(path)
    if path.endswith((".jsonl", ".ndjson", ".json")):
        return _json_rows(path)
    raise UnknownStore(f"{path}: a .jsonl or .parquet file is wanted")


def _json_rows(path: str) -> Iterator[Row]:
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(LINE_SIZE_MAX):
            number += 1
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise _wrong(path, number, "a JSON object in one line", str(error)) from error
            if not isinstance(row, dict):
                raise _wrong(path, number, "a JSON object", type(row).__name__)
            yield row


def _parquet_rows(path: str) -> Iterator[Row]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise MissingExtra("this needs the 'arrow' extra: pip install 'brokerstore[arrow]'") from error
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(PARQUET_ROWS):
                for row in batch.to_pylist():
                    row["properties"] = dict(row.get("properties") or ())
                    yield row
    except pa.ArrowInvalid as error:
        raise StoreCorrupt("not a Parquet file", file=path, offset=0, expected="Parquet", found=str(error)) from error


def _wrong(path: str, number: int, expected: str, found: str) -> StoreCorrupt:
    return StoreCorrupt("row", file=path, offset=number, expected=expected, found=found[:200])


def _message(row: Row, path: str, number: int) -> Message:
    """Of a row; everything in it is a stranger's."""
    try:
        body = row["body_base64"] if "body_base64" in row else row["body"]
        properties = {name: value for name, value in (row.get("properties") or {}).items() if name not in DERIVED}
        return Message(
            row["topic"], _body(body, is_base64="body_base64" in row), tags=row.get("tags"), keys=list(row.get("keys") or []),
            properties=properties, queue_id=int(row.get("queue_id") or 0), flag=int(row.get("flag") or 0),
            born_timestamp_ms=int(row.get("born_timestamp_ms") or 0), born_host=row.get("born_host"),
            reconsume_times=int(row.get("reconsume_times") or 0),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, binascii.Error) as error:
        raise _wrong(path, number, "topic, body or body_base64, and fields of their types", repr(error)) from error


def _body(body: Any, *, is_base64: bool) -> bytes:
    if is_base64:
        return b64decode(body, validate=True)
    return bytes(body, "utf-8") if isinstance(body, str) else bytes(memoryview(body))
