"""Messages of queues as Arrow batches.  They are built from message objects, because no kernel builds columns of this format.

The columns are the keys of the tool's JSON.  Properties are JSON text, because AMQP's are typed and nested; bodies are bytes.
Needs pyarrow (extra `arrow`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
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
_BLOCKS_MAX = 4096  # different property blocks whose JSON is kept
_TEXTS = ("queue", "vhost", "msg_id", "file", "exchange", "properties")
_FLAGS = ("persistent", "acked", "redelivered", "embedded")

_CELLS: dict[str, Callable[[StoredMessage], Any]] = {
    "queue": lambda message: _text(message.queue),
    "vhost": lambda message: _text(message.vhost),
    "msg_id": lambda message: message.msg_id.hex(),
    "exchange": lambda message: _text(message.exchange),
    "routing_keys": lambda message: tuple(map(_text, message.routing_keys)),
}
_REPEATED = ("queue", "vhost", "file", "exchange", "routing_keys", "properties")  # one object is made for equal values


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
    builder = _Builder(wanted, more or {})
    count = size_bytes = 0
    try:
        for message in messages:
            count += 1
            size_bytes += len(message.body)
            try:
                builder.add(message)
            except StoreCorrupt as error:
                on_bad(message, error)
            if len(builder.messages) == rows_max or size_bytes >= BATCH_BYTES:
                yield Built(builder.take(), count, size_bytes)
                count = size_bytes = 0
    except StoreError:
        if builder.messages:
            yield Built(builder.take(), count, size_bytes)
        raise
    if count:
        yield Built(builder.take(), count, size_bytes)


class _Builder:
    """The messages of the next batch, which is built column by column."""

    def __init__(self, wanted: pa.Schema, more: Mapping[str, Callable[[StoredMessage], Any]]) -> None:
        self._wanted = wanted
        self._cells = {field.name: _cell(field, more) for field in wanted}
        self._has_properties = "properties" in self._cells
        self._json: dict[bytes, str] = {}  # of property blocks: most messages of a queue have equal ones
        self.messages: list[StoredMessage] = []
        self._properties: list[str] = []  # of these messages

    def add(self, message: StoredMessage) -> None:
        """Add a message; raise `StoreCorrupt`, and leave it out, if its properties are damaged."""
        if self._has_properties:
            block = message.content.properties_bin
            found = self._json.get(block)
            if found is None:
                if len(self._json) >= _BLOCKS_MAX:
                    self._json.clear()
                found = self._json[block] = json.dumps(to_json(message.properties))
            self._properties.append(found)
        self.messages.append(message)

    def take(self) -> pa.RecordBatch:
        """Return the batch and begin the next one."""
        import pyarrow as pa

        arrays = []
        for field in self._wanted:
            is_given = field.name == "properties"
            values = self._properties if is_given else list(map(self._cells[field.name], self.messages))
            arrays.append(_repeated(values, field.type) if field.name in _REPEATED else pa.array(values, field.type))
        self.messages, self._properties = [], []
        return pa.RecordBatch.from_arrays(arrays, schema=self._wanted)


def _repeated(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return a column with few different values."""
    import pyarrow as pa

    places: dict[Any, int] = {}
    rows = [places.setdefault(value, len(places)) for value in values]
    return pa.array(list(places), kind).take(pa.array(rows, pa.int32()))


def _cell(field: pa.Field, more: Mapping[str, Callable[[StoredMessage], Any]]) -> Callable[[StoredMessage], Any]:
    """Return what gives a column's value; null for one that other kinds of queues have."""
    import pyarrow as pa

    if field.name == "body" and pa.types.is_string(field.type):
        return lambda message: message.body.decode("utf-8", "replace")
    return more.get(field.name) or _CELLS.get(field.name) or _attribute(field.name)


def _attribute(name: str) -> Callable[[StoredMessage], Any]:
    """Return what gives an attribute, null for a message without it."""
    if name in StoredMessage.__dataclass_fields__:
        return attrgetter(name)
    return lambda message: getattr(message, name, None)


def _text(text: str) -> str:
    """Replace bytes that are not UTF-8 by U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
