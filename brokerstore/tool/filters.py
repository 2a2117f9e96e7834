"""The filters of dump, tail and export, and how each kind of folder applies them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from commitlog import StoredMessage
    from commitlog.walk import Piece

I32_MAX = (1 << 31) - 1


class Filters(NamedTuple):
    """The filters of the command line; a message must pass each that is set.  Times and offsets are inclusive."""

    topic: str | None = None
    queue: str | None = None
    begin_ms: int | None = None  # of the store time
    end_ms: int | None = None
    from_offset: int | None = None  # queue offsets, or sequence numbers of RabbitMQ
    to_offset: int | None = None
    key: str | None = None  # RabbitMQ: a routing key
    tag: str | None = None
    properties: tuple[tuple[str, str], ...] = ()

    def accepts_delivery(self, message: Any) -> bool:
        """Return whether a message of a RabbitMQ queue passes; the queue itself was selected before."""
        return _is_within(message.seq_id, self.from_offset, self.to_offset) and (
            self.key is None or self.key in message.routing_keys
        )


class RecordFilter(NamedTuple):
    """`Filters` for records of a commit log."""

    topic: str | None = None
    queue_id: int | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    key: str | None = None
    tag: str | None = None
    properties: tuple[tuple[str, str], ...] = ()

    def accepts(self, message: StoredMessage) -> bool:
        """Return whether a record passes; cheap comparisons come first."""
        return (
            (self.topic is None or message.topic == self.topic)
            and (self.queue_id is None or message.queue_id == self.queue_id)
            and _is_within(message.store_timestamp_ms, self.begin_ms, self.end_ms)
            and _is_within(message.queue_offset, self.from_offset, self.to_offset)
            and (self.tag is None or message.tags == self.tag)
            and (self.key is None or self.key in message.keys or message.all_properties.get("UNIQ_KEY") == self.key)
            and all(message.all_properties.get(name) == value for name, value in self.properties)
        )

    def positions(self, piece: Piece) -> array[int]:
        """Return the positions of a piece's records that pass."""
        if self == RecordFilter():
            return piece.positions
        pairs = zip(piece.messages(), piece.positions, strict=True)
        return array("q", (position for message, position in pairs if self.accepts(message)))

    def rows(self, batch: Any) -> Any:
        """Return the rows that pass of an Arrow batch with the columns of `commitlog.arrow_columns`."""
        import pyarrow.compute as pc

        for name, value in (("topic", self.topic), ("queue_id", self.queue_id), ("tags", self.tag)):
            if value is not None:
                batch = batch.filter(pc.fill_null(pc.equal(batch.column(name), value), False))
        for name, low, high in (
            ("store_timestamp_ms", self.begin_ms, self.end_ms), ("queue_offset", self.from_offset, self.to_offset),
        ):  # fmt: skip
            for bound, compare in ((low, pc.greater_equal), (high, pc.less_equal)):
                if bound is not None:
                    batch = batch.filter(compare(batch.column(name).cast("int64"), bound))
        return self._rows_by_properties(batch)

    def _rows_by_properties(self, batch: Any) -> Any:
        """Keys and properties are lists, so they are compared row by row."""
        if self.key is None and not self.properties:
            return batch
        import pyarrow as pa

        keys = batch.column("keys").to_pylist()
        tables = [dict(pairs or ()) for pairs in batch.column("properties").to_pylist()]
        passing = [
            (self.key is None or self.key in (words or ()) or table.get("UNIQ_KEY") == self.key)
            and all(table.get(name) == value for name, value in self.properties)
            for words, table in zip(keys, tables, strict=True)
        ]
        return batch.filter(pa.array(passing, pa.bool_()))


def _is_within(value: int, low: int | None, high: int | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def is_utf8(text: str) -> bool:
    """Return whether no byte of the command line had to be escaped.

    >>> is_utf8("тема"), is_utf8("\\udcff")
    (True, False)
    """
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def queue_number(queue: str | None) -> int | None:
    """Parse a queue id of RocketMQ."""
    if queue is None:
        return None
    if not (queue.isascii() and queue.isdigit()) or len(queue) > 10 or int(queue) > I32_MAX:
        raise click.BadParameter(f"{queue!r} is not a queue id", param_hint="--queue")
    return int(queue)
