"""Which messages a command takes: the filters that dump, tail and export share."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from commitlog import StoredMessage
from commitlog.walk import Piece


class Wanted(NamedTuple):
    """Every field that is given has to fit.  Times and offsets are inclusive."""

    topic: str | None = None
    queue_id: int | None = None
    begin_ms: int | None = None  # stored then or later
    end_ms: int | None = None
    from_offset: int | None = None  # queue offsets
    to_offset: int | None = None
    key: str | None = None
    tag: str | None = None
    properties: tuple[tuple[str, str], ...] = ()

    def takes(self, message: StoredMessage) -> bool:
        """Whether the message is one of them; the cheap questions first."""
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
        """Of those of a piece's records."""
        if self == Wanted():
            return piece.positions
        pairs = zip(piece.messages(), piece.positions, strict=True)
        return array("q", (position for message, position in pairs if self.takes(message)))

    def rows(self, batch: Any) -> Any:
        """The same of an Arrow batch with the columns of `commitlog.arrow_columns`."""
        import pyarrow.compute as pc

        for name, value in (("topic", self.topic), ("queue_id", self.queue_id), ("tags", self.tag)):
            if value is not None:
                batch = batch.filter(pc.fill_null(pc.equal(batch.column(name), value), False))
        for name, low, high in (
            ("store_timestamp_ms", self.begin_ms, self.end_ms), ("queue_offset", self.from_offset, self.to_offset),
        ):  # fmt: skip
            column = batch.column(name).cast("int64") if low is not None or high is not None else None
            if low is not None:
                batch, column = _both(batch, column, pc.greater_equal(column, low))
            if high is not None:
                batch, column = _both(batch, column, pc.less_equal(column, high))
        return self._by_words(batch)

    def _by_words(self, batch: Any) -> Any:
        """Keys and properties, row by row: they are lists."""
        if self.key is None and not self.properties:
            return batch
        import pyarrow as pa

        keys = batch.column("keys").to_pylist()
        tables = [dict(pairs or ()) for pairs in batch.column("properties").to_pylist()]
        fits = [
            (self.key is None or self.key in (words or ()) or table.get("UNIQ_KEY") == self.key)
            and all(table.get(name) == value for name, value in self.properties)
            for words, table in zip(keys, tables, strict=True)
        ]
        return batch.filter(pa.array(fits, pa.bool_()))


def _both(batch: Any, column: Any, fits: Any) -> tuple[Any, Any]:
    return batch.filter(fits), column.filter(fits)


def _is_within(value: int, low: int | None, high: int | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


class RabbitWanted(NamedTuple):
    """The filters that a RabbitMQ folder's messages answer."""

    queue: str | None = None
    from_offset: int | None = None  # sequence numbers
    to_offset: int | None = None
    key: str | None = None  # a routing key

    def takes(self, message: Any) -> bool:
        """Of a message of the queue."""
        is_there = _is_within(message.seq_id, self.from_offset, self.to_offset)
        return is_there and (self.key is None or self.key in message.routing_keys)
