"""Which half messages are undecided, told by what lies in the broker's queues alone (section 9).

A half message is decided when an op record names its queue offset.  That is not all: op records are written after the
decision, so after a kill a committed message may lie in its topic and no op record tell of it; and a check puts a half message
again, so that the decision may name an earlier copy.  Copies share their UNIQ_KEY.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from commitlog import StoredMessage
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK

from .names import (
    CHECK_TIMES,
    HALF_TOPIC,
    OP_TOPIC,
    PRODUCER_GROUP,
    REAL_QUEUE,
    REAL_TOPIC,
    TRANSACTION_ID,
    UNIQUE_KEY,
)

if TYPE_CHECKING:
    from ..engine import Engine

OFFSETS_MAX = 1 << 16  # of one op record


class HalfMessage(NamedTuple):
    """A message that was prepared and is neither committed nor rolled back."""

    queue_offset: int  # in the queue of half messages
    message: StoredMessage  # as it lies there

    @property
    def transaction_id(self) -> str:
        """The producer's; empty where the record has none."""
        pairs = self.message.all_properties
        return pairs.get(TRANSACTION_ID) or pairs.get(UNIQUE_KEY, "")

    @property
    def producer_group(self) -> str:
        """Who can decide."""
        return self.message.all_properties.get(PRODUCER_GROUP, "")

    @property
    def topic(self) -> str:
        """Where a commit puts it."""
        return self.message.all_properties.get(REAL_TOPIC, "")

    @property
    def queue_id(self) -> int:
        """Where a commit puts it; -1 where the record does not say."""
        text = self.message.all_properties.get(REAL_QUEUE, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1

    @property
    def check_times(self) -> int:
        """How often somebody was asked."""
        text = self.message.all_properties.get(CHECK_TIMES, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


class OpRecord(NamedTuple):
    """Half messages that were decided."""

    queue_offset: int
    half_offsets: list[int]
    end_offset: int  # physical, behind the record


def half_messages(engine: Engine, start: int) -> Iterator[HalfMessage]:
    """From a queue offset on."""
    queue = engine.queues.get(HALF_TOPIC, 0)
    for place, unit in queue.units(start) if queue is not None else ():
        message = engine.log.message_at(unit.physical_offset)
        if message is not None:
            yield HalfMessage(place, message)


def op_records(engine: Engine, since_ms: int) -> list[OpRecord]:
    """Those stored at or after a time, in their order."""
    queue = engine.queues.get(OP_TOPIC, 0)
    found: list[OpRecord] = []
    for place in range(queue.max_offset - 1, queue.min_offset - 1, -1) if queue is not None else ():
        unit = queue.unit(place) if queue is not None else None
        message = engine.log.message_at(unit.physical_offset) if unit is not None else None
        if message is None:
            continue
        if message.store_timestamp_ms < since_ms:
            break
        found.append(OpRecord(place, _offsets(message.body), message.physical_offset + message.size))
    return found[::-1]


def _offsets(body: bytes) -> list[int]:
    """Numbers with a comma behind each."""
    parts = body.split(b",", OFFSETS_MAX)[:OFFSETS_MAX]
    return [int(part) for part in parts if part.isdigit() and len(part) < 19]


def decided(engine: Engine, halves: list[HalfMessage], ops: list[OpRecord]) -> dict[int, int]:
    """Queue offset of each decided half message to where the record that shows it ends."""
    shown: dict[int, int] = {offset: op.end_offset for op in ops for offset in op.half_offsets}
    by_id: dict[str, int] = {}
    for half in _named(engine, halves, list(shown)):
        if half.transaction_id:
            by_id[half.transaction_id] = shown[half.queue_offset]
    found = {}
    for half in halves:
        end = shown.get(half.queue_offset, by_id.get(half.transaction_id))
        if end is None:
            end = _committed_end(engine, half)
        if end is not None:
            found[half.queue_offset] = end
    return found


def _named(engine: Engine, halves: list[HalfMessage], offsets: list[int]) -> Iterator[HalfMessage]:
    """The half messages that op records name, those before the given ones too."""
    known = {half.queue_offset: half for half in halves}
    queue = engine.queues.get(HALF_TOPIC, 0)
    for offset in offsets:
        if offset in known:
            yield known[offset]
            continue
        unit = queue.unit(offset) if queue is not None and offset >= queue.min_offset else None
        message = engine.log.message_at(unit.physical_offset) if unit is not None else None
        if message is not None:
            yield HalfMessage(offset, message)


def _committed_end(engine: Engine, half: HalfMessage) -> int | None:
    """Where the committed message ends that a half message became; None when it became none."""
    topic, key = half.topic, half.message.all_properties.get(UNIQUE_KEY)
    candidates = _by_key(engine, topic, key) if key and engine.index is not None else _behind(engine, half)
    for message in candidates:
        pairs = message.all_properties
        is_commit = message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT and message.topic == topic
        if is_commit and (pairs.get(UNIQUE_KEY) == key or message.prepared_transaction_offset == half.message.physical_offset):
            return message.physical_offset + message.size
    return None


def _by_key(engine: Engine, topic: str, key: str) -> Iterator[StoredMessage]:
    assert engine.index is not None
    for offset in engine.index.select(topic, key, engine.config.max_msgs_num_batch, 0, (1 << 63) - 1):
        message = engine.log.message_at(offset)
        if message is not None:
            yield message


def _behind(engine: Engine, half: HalfMessage) -> Iterator[StoredMessage]:
    """Without an index or a key: everything that came into the half message's own queue after it."""
    queue = engine.queues.get(half.topic, half.queue_id)
    for _, unit in queue.units(queue.find_physical(half.message.physical_offset)) if queue is not None else ():
        message = engine.log.message_at(unit.physical_offset)
        if message is not None:
            yield message
