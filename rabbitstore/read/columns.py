"""Messages of queues as Arrow batches: of intact segments of classic queues by a kernel, of all others from message objects.

The columns are the keys of the tool's JSON.  Properties are JSON text, because AMQP's are typed and nested; bodies are bytes.
Needs pyarrow (extra `arrow`).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from storageio import StoreCorrupt, StoreError, needs_extra

from ..format import properties as blocks
from ..format.entry_cy import IndexEntry
from .intact_segment_cy import IntactSegment
from .queue_folder import QueueFolder
from .stored_message import RabbitMessage
from .vhost_folder import VhostFolder

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

_CELLS: dict[str, Callable[[RabbitMessage], Any]] = {
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
    messages: Iterable[RabbitMessage],
    requested: pa.Schema,
    on_bad: Callable[[RabbitMessage, StoreCorrupt], object],
    rows_max: int = BATCH_ROWS,
    more: Mapping[str, Callable[[RabbitMessage], Any]] | None = None,
) -> Iterator[Built]:
    """Yield batches of all messages; only the columns of the schema are built, in its types.

    `on_bad` is called for a message whose properties are damaged, because they are decoded only here; the message is left out.
    `more` has the values of further columns.  The rows before an error come first.
    """
    builder = _Builder(requested, more or {})
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


def folder_batches(
    folder: VhostFolder,
    queue: str | None,
    requested: pa.Schema,
    on_bad: Callable[[RabbitMessage, StoreCorrupt], object],
    rows_max: int = BATCH_ROWS,
) -> Iterator[Built]:
    """Yield the batches of all columns for `folder.messages(queue)`; a kernel builds those of intact segments."""
    owners = (owner for owner in folder.queue_folders() if queue is None or owner.queue == queue)
    found = (built for owner in owners for built in _segment_batches(folder, owner, requested, on_bad))
    size = held = 0
    pieces: list[Built] = []
    try:
        for built in found:
            batch, messages = built.batch, built.messages
            while len(batch) or messages:
                taken = _rows_that_fit(batch, rows_max - held, BATCH_BYTES - size)
                part = batch.slice(0, taken)
                count = messages if taken == len(batch) else taken
                pieces.append(Built(part, count, _body_bytes(part)))
                batch, messages, held, size = batch.slice(taken), messages - count, held + taken, size + pieces[-1].size_bytes
                if held == rows_max or size >= BATCH_BYTES:
                    yield _joined(pieces)
                    pieces, held, size = [], 0, 0
    except StoreError:
        if pieces:
            yield _joined(pieces)
        raise
    if pieces:
        yield _joined(pieces)


def _rows_that_fit(batch: pa.RecordBatch, rows: int, capacity: int) -> int:
    """Return how many rows fill a batch that has room for so many, and for so many bytes of bodies before the last one."""
    import pyarrow.compute as pc

    if _body_bytes(batch) < capacity:
        return min(rows, len(batch))
    ends = pc.cumulative_sum(pc.binary_length(batch.column("body")).cast("int64"))
    return min(rows, len(batch), 1 + (pc.sum(pc.less(ends, capacity)).as_py() or 0))


def _body_bytes(batch: pa.RecordBatch) -> int:
    import pyarrow.compute as pc

    return pc.sum(pc.binary_length(batch.column("body"))).as_py() or 0


def _joined(pieces: list[Built]) -> Built:
    import pyarrow as pa

    if len(pieces) == 1:
        return pieces[0]
    batch = pa.concat_batches([piece.batch for piece in pieces])
    return Built(batch, sum(piece.messages for piece in pieces), sum(piece.size_bytes for piece in pieces))


def _segment_batches(
    folder: VhostFolder, owner: QueueFolder, requested: pa.Schema, on_bad: Callable[[RabbitMessage, StoreCorrupt], object]
) -> Iterator[Built]:
    bound = folder.redelivered_before(owner)
    names = owner.queue, owner.vhost or folder.vhost

    def batch_or_entries(segment: IntactSegment) -> pa.RecordBatch | list[IndexEntry]:
        batch = None if bound is None else _segment_batch(segment, names, bound, requested)
        return segment.entries() if batch is None else batch

    for part in owner.segments(folder.problems, batch_or_entries):
        if isinstance(part, list):
            yield from record_batches(folder.messages_of(owner, part), requested, on_bad)
        else:
            yield Built(part, len(part), 0)


def _segment_batch(part: IntactSegment, owner: tuple[str, str], bound: int, requested: pa.Schema) -> pa.RecordBatch | None:
    """Return the batch of a segment's messages; None when they have to be built one by one.

    `owner` is the queue and its virtual host; messages before the sequence number `bound` are redelivered.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    found = part.columns()
    try:
        json_texts = [] if found is None else list(map(_block_json, found.blocks))
    except StoreCorrupt:
        return None
    if found is None:
        return None
    count = found.messages
    numbers = [_integers(column) for column in found.numbers]
    route, block = (column.cast(pa.int32()) for column in numbers[5:])
    vhosts = [owner[1] if vhost is None else vhost.decode("utf-8", "replace") for vhost, _, _ in found.routes]
    exchanges = [exchange.decode("utf-8", "replace") for _, exchange, _ in found.routes]
    keys = [tuple(map(_text, keys)) for _, _, keys in found.routes]
    digits = pa.py_buffer(array("i", range(0, 32 * count + 1, 32)))
    values = {
        "queue": pa.repeat(_text(owner[0]), count),
        "vhost": pa.array(map(_text, vhosts), pa.string()).take(route),
        "seq_id": numbers[0],
        "msg_id": pa.Array.from_buffers(pa.string(), count, [None, digits, pa.py_buffer(found.ids)]),
        "persistent": numbers[4].cast(pa.bool_()),
        "acked": pa.repeat(False, count),
        "redelivered": pc.less(numbers[0], bound),
        "expiry_us": numbers[1],
        "size": numbers[2],
        "embedded": pa.repeat(True, count),
        "file": pa.repeat(found.file, count),
        "offset": numbers[3],
        "exchange": pa.array(map(_text, exchanges), pa.string()).take(route),
        "routing_keys": pa.array(keys, pa.list_(pa.string())).take(route),
        "properties": pa.array(json_texts, pa.string()).take(block),
        "body": pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(found.begins), pa.py_buffer(found.bodies)]),
    }
    return pa.RecordBatch.from_arrays([values[name] for name in requested.names], schema=requested)


@lru_cache(_BLOCKS_MAX)
def _block_json(block: bytes) -> str:
    """Return the JSON of a property block: most messages of a queue have equal ones."""
    return json.dumps(blocks.to_json(blocks.decode(block)))


def _integers(column: memoryview) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(column)])


class _Builder:
    """The messages of the next batch, which is built column by column."""

    def __init__(self, requested: pa.Schema, more: Mapping[str, Callable[[RabbitMessage], Any]]) -> None:
        self._requested = requested
        self._cells = {field.name: _cell(field, more) for field in requested}
        self._has_properties = "properties" in self._cells
        self.messages: list[RabbitMessage] = []
        self._properties: list[str] = []  # of these messages

    def add(self, message: RabbitMessage) -> None:
        """Add a message; raise `StoreCorrupt`, and leave it out, if its properties are damaged."""
        if self._has_properties:
            self._properties.append(_block_json(message.content.properties_bin))
        self.messages.append(message)

    def take(self) -> pa.RecordBatch:
        """Return the batch and begin the next one."""
        import pyarrow as pa

        arrays = []
        for field in self._requested:
            is_given = field.name == "properties"
            values = self._properties if is_given else list(map(self._cells[field.name], self.messages))
            arrays.append(_repeated(values, field.type) if field.name in _REPEATED else pa.array(values, field.type))
        self.messages, self._properties = [], []
        return pa.RecordBatch.from_arrays(arrays, schema=self._requested)


def _repeated(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return a column with few different values."""
    import pyarrow as pa

    positions: dict[Any, int] = {}
    rows = [positions.setdefault(value, len(positions)) for value in values]
    return pa.array(list(positions), kind).take(pa.array(rows, pa.int32()))


def _cell(field: pa.Field, more: Mapping[str, Callable[[RabbitMessage], Any]]) -> Callable[[RabbitMessage], Any]:
    """Return what gives a column's value; null for one that other kinds of queues have."""
    import pyarrow as pa

    if field.name == "body" and pa.types.is_string(field.type):
        return lambda message: message.body.decode("utf-8", "replace")
    return more.get(field.name) or _CELLS.get(field.name) or _attribute(field.name)


def _attribute(name: str) -> Callable[[RabbitMessage], Any]:
    """Return what gives an attribute, null for a message without it."""
    if name in RabbitMessage.__dataclass_fields__:
        return attrgetter(name)
    return lambda message: getattr(message, name, None)


def _text(text: str) -> str:
    """Replace bytes that are not UTF-8 by U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
