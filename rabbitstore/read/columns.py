"""Messages of queues as Arrow batches.  They are built from message objects, because no kernel builds columns of this format.

The columns are the keys of the tool's JSON.  Properties are JSON text, because AMQP's are typed and nested; bodies are bytes.
Needs pyarrow (extra `arrow`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from storageio import StoreCorrupt, StoreError, needs_extra

from ..format.properties import to_json
from .stored_message import StoredMessage

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    "queue", "vhost", "seq_id", "msg_id", "persistent", "acked", "redelivered", "expiry_us", "size", "embedded", "file",
    "offset", "exchange", "routing_keys", "properties", "body",
)  # fmt: skip
BATCH_ROWS = 4096
BATCH_BYTES = 8 << 20  # of bodies in a batch; a single body may be larger
_TEXTS = ("queue", "vhost", "msg_id", "file", "exchange", "properties")
_FLAGS = ("persistent", "acked", "redelivered", "embedded")

_CELLS: dict[str, Callable[[StoredMessage], Any]] = {
    "queue": lambda message: _text(message.queue),
    "vhost": lambda message: _text(message.vhost),
    "msg_id": lambda message: message.msg_id.hex(),
    "exchange": lambda message: _text(message.exchange),
    "routing_keys": lambda message: [_text(key) for key in message.routing_keys],
    "properties": lambda message: json.dumps(to_json(message.properties)),
}


class Built(NamedTuple):
    """A batch, and the messages and bytes of bodies that it was built from."""

    batch: pa.RecordBatch
    messages: int
    size_bytes: int


def schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema of some columns."""
    with needs_extra("arrow"):
        import pyarrow as pa  # takes 150 ms

    unknown = set(columns) - set(COLUMNS)
    if unknown:
        raise ValueError(f"no such columns: {sorted(unknown)}")
    kinds: dict[str, Any] = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_FLAGS, pa.bool_())
    kinds |= {"routing_keys": pa.list_(pa.string()), "body": pa.binary()}
    return pa.schema([(name, kinds.get(name, pa.int64())) for name in columns])


def record_batches(
    messages: Iterable[StoredMessage],
    wanted: pa.Schema,
    on_bad: Callable[[StoredMessage, StoreCorrupt], object],
    rows_max: int = BATCH_ROWS,
    more: Mapping[str, Callable[[StoredMessage], Any]] | None = None,
) -> Iterator[Built]:
    """Yield batches of all messages; only the columns of the schema are built, in its types.

    `on_bad` is called for a message whose properties are damaged, because they are decoded only here; the message is left out.
    `more` has the values of further columns.  The rows before an error come first.
    """
    cells = [_cell(field, more or {}) for field in wanted]
    rows: list[list[Any]] = []
    count = size_bytes = 0
    try:
        for message in messages:
            count += 1
            size_bytes += len(message.body)
            try:
                rows.append([cell(message) for cell in cells])
            except StoreCorrupt as error:
                on_bad(message, error)
            if len(rows) == rows_max or size_bytes >= BATCH_BYTES:
                yield Built(_batch(rows, wanted), count, size_bytes)
                rows, count, size_bytes = [], 0, 0
    except StoreError:
        if rows:
            yield Built(_batch(rows, wanted), count, size_bytes)
        raise
    if count:
        yield Built(_batch(rows, wanted), count, size_bytes)


def _cell(field: pa.Field, more: Mapping[str, Callable[[StoredMessage], Any]]) -> Callable[[StoredMessage], Any]:
    """Return what gives a column's value; null for one that other kinds of queues have."""
    import pyarrow as pa

    if field.name == "body" and pa.types.is_string(field.type):
        return lambda message: message.body.decode("utf-8", "replace")
    return more.get(field.name) or _CELLS.get(field.name) or (lambda message: getattr(message, field.name, None))


def _text(text: str) -> str:
    """Replace bytes that are not UTF-8 by U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _batch(rows: list[list[Any]], wanted: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = zip(*rows, strict=True) if rows else ([] for _ in wanted)
    arrays = [pa.array(column, field.type) for field, column in zip(wanted, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
