"""Find undecided half messages from the broker's queues alone (`docs/formats/broker-topics.md#transactions`).

A half message is decided when an op record names its queue offset. Two more cases count: op records are written after the
decision, so after a kill a committed message may be in its topic without an op record; and a check puts a half message again,
so the decision may name an earlier copy. Copies share their UNIQ_KEY and born time. Two different messages with the same
UNIQ_KEY are two transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from commitlog import StoredMessage
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK
from commitlog.topic_names import HALF_TOPIC, OP_TOPIC

from ...property_names import (
    CHECK_TIMES,
    IMMUNITY_S,
    PRODUCER_GROUP,
    REAL_QUEUE,
    REAL_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_ID,
    UNIQUE_KEY,
)
from ...rocksdb.queues import AnyQueue
from ...rocksdb.store_rows import stored_transactions
from .broker_queues import broker_queues

if TYPE_CHECKING:
    from ...parts import StoreParts

NOWHERE = -1
OFFSETS_MAX = 1 << 16  # offsets read from one op record
FIRST_COPY = "TRAN_PREPARED_QUEUE_OFFSET"  # property: a broker put it again before it was old enough to be checked
Family = tuple[str, int]  # transaction id and time born, which a half message, its copies and its committed message share


class HalfMessage(NamedTuple):
    """A message that was prepared and is neither committed nor rolled back."""

    queue_offset: int  # in the queue of half messages
    message: StoredMessage  # as stored in the half topic
    checks: int | None = None  # as RocksDB counts them; else the record has the number

    @property
    def transaction_id(self) -> str:
        """Return the producer's transaction id; empty if the record has none."""
        pairs = self.message.all_properties
        return pairs.get(TRANSACTION_ID) or pairs.get(UNIQUE_KEY, "")

    @property
    def producer_group(self) -> str:
        """Return the producer group that can decide the transaction."""
        return self.message.all_properties.get(PRODUCER_GROUP, "")

    @property
    def topic(self) -> str:
        """Return the topic of a commit; empty if the record does not name one."""
        return self.message.all_properties.get(REAL_TOPIC, "")

    @property
    def queue_id(self) -> int:
        """Return the queue id of a commit; -1 if the record does not name one."""
        return self._number(REAL_QUEUE, -1)

    @property
    def is_dispatched_to(self) -> bool:
        """Return whether the record names the topic and queue of a commit."""
        return bool(self.topic) and self.queue_id >= 0

    @property
    def check_times(self) -> int:
        """Return how often the producer was asked about the message."""
        return self._number(CHECK_TIMES, 0) if self.checks is None else self.checks

    def age_before_check_ms(self, default: int) -> int:
        """Return the age from which the producer is asked: the producer's own choice, else `default`."""
        seconds = self._number(IMMUNITY_S, -1)
        return default if seconds < 0 else seconds * 1000

    def _number(self, name: str, default: int) -> int:
        text = self.message.all_properties.get(name, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else default


class OpRecord(NamedTuple):
    """An op record: the half messages that it marks as decided."""

    queue_offset: int
    half_offsets: list[int]
    end_offset: int  # physical offset behind the record


def undecided(parts: StoreParts) -> list[HalfMessage]:
    """Return the half messages that nobody decided, oldest first, of a store that may be open for reading only.

    A broker with transRocksDBEnable keeps a row for each of them. Raises `MissingExtra` without the package that reads RocksDB.
    """
    in_rows = {}
    for row in stored_transactions(parts.disk, parts.paths.root) or ():
        if (message := parts.log.message_at(row.log_offset)) is not None:
            in_rows[row.log_offset] = HalfMessage(message.queue_offset, message, row.checks)
    with broker_queues(parts, HALF_TOPIC, OP_TOPIC) as queues:
        halves, _, ends = read_transactions(parts, queues.get((HALF_TOPIC, 0)), queues.get((OP_TOPIC, 0)))
    in_queue = {half.message.physical_offset: half for half in halves if half.queue_offset not in ends}
    return [half for _, half in sorted((in_queue | in_rows).items())]


def half_messages(parts: StoreParts, queue: AnyQueue | None, start: int) -> Iterator[HalfMessage]:
    """Yield the half messages from a queue offset on."""
    for position, unit in queue.units(start) if queue is not None else ():
        message = parts.log.message_at(unit.physical_offset)
        if message is not None:
            yield HalfMessage(position, message)


def op_records(parts: StoreParts, queue: AnyQueue | None, since_ms: int) -> list[OpRecord]:
    """Return the op records stored at or after a time, in queue order."""
    found: list[OpRecord] = []
    for position in range(queue.max_offset - 1, queue.min_offset - 1, -1) if queue is not None else ():
        unit = queue.unit(position) if queue is not None else None
        message = parts.log.message_at(unit.physical_offset) if unit is not None else None
        if message is None:
            continue
        if message.store_timestamp_ms < since_ms:
            break
        found.append(OpRecord(position, _offsets(message.body), message.physical_offset + message.size))
    return found[::-1]


def read_transactions(
    parts: StoreParts, half_queue: AnyQueue | None, op_queue: AnyQueue | None
) -> tuple[list[HalfMessage], list[OpRecord], dict[int, int]]:
    """Return the half messages from the group's offset on, the op records about them, and what `decided` returns."""
    start = parts.consumer_offsets().get(HALF_TOPIC, TRANSACTION_GROUP, 0) or 0
    halves = list(half_messages(parts, half_queue, start))
    since_ms = min(map(_decided_from_ms, halves), default=parts.now_ms())
    ops = op_records(parts, op_queue, since_ms)
    return halves, ops, decided(parts, half_queue, halves, ops)


def _decided_from_ms(half: HalfMessage) -> int:
    """Return the earliest time in milliseconds that an op record about a half message can have.

    Copies keep the born time of the first half message, which comes from a producer whose clock may be ahead.
    """
    return min(half.message.born_timestamp_ms, half.message.store_timestamp_ms)


def _offsets(body: bytes) -> list[int]:
    """Return the numbers in the body of an op record, each followed by a comma."""
    parts = body.split(b",", OFFSETS_MAX)[:OFFSETS_MAX]
    return [int(part) for part in parts if part.isdigit() and len(part) < 19]


def decided(parts: StoreParts, queue: AnyQueue | None, halves: list[HalfMessage], ops: list[OpRecord]) -> dict[int, int]:
    """Return, for each decided half message, its queue offset and the physical end of the record that proves the decision."""
    shown: dict[int, int] = {offset: op.end_offset for op in ops for offset in op.half_offsets}
    by_family: dict[Family, list[tuple[HalfMessage, int]]] = {}
    for half in _named(parts, queue, halves, list(shown)):
        by_family.setdefault(family(half), []).append((half, shown[half.queue_offset]))
    ends = {half.queue_offset: _decided_end(parts, half, shown, by_family.get(family(half), [])) for half in halves}
    _pass_over_earlier(halves, ends)
    return {offset: end for offset, end in ends.items() if end is not None}


def _decided_end(
    parts: StoreParts, half: HalfMessage, shown: dict[int, int], relatives: list[tuple[HalfMessage, int]]
) -> int | None:
    """Return the end of the op record about the half message or a copy of it, or of the committed message; else None."""
    if half.queue_offset in shown:
        return shown[half.queue_offset]
    for other, end in relatives:
        if are_copies(half, other):
            return end
    return _committed_end(parts, half)


def _pass_over_earlier(halves: list[HalfMessage], ends: dict[int, int | None]) -> None:
    """Mark earlier copies as decided at the end of the latest copy; otherwise each would be committed again after a kill."""
    later: dict[Family, HalfMessage] = {}
    for half in reversed(halves):
        copy = later.get(family(half))
        if copy is not None and copy.check_times >= half.check_times and are_copies(half, copy):
            if ends[half.queue_offset] is None:
                ends[half.queue_offset] = copy.message.physical_offset + copy.message.size
        else:
            later[family(half)] = half


def family(half: HalfMessage) -> Family:
    """Return what a half message shares with its copies."""
    return half.transaction_id, half.message.born_timestamp_ms


def are_copies(one: HalfMessage, other: HalfMessage) -> bool:
    """Return whether one half message is the other put again.

    A check increases the check count; a broker may add the property `FIRST_COPY`.
    """
    if not one.transaction_id or family(one) != family(other):
        return False
    is_put_back = FIRST_COPY in one.message.all_properties or FIRST_COPY in other.message.all_properties
    return is_put_back or one.check_times != other.check_times


def _named(parts: StoreParts, queue: AnyQueue | None, halves: list[HalfMessage], offsets: list[int]) -> Iterator[HalfMessage]:
    """Yield the half messages that op records name, including those before the given ones."""
    known = {half.queue_offset: half for half in halves}
    for offset in offsets:
        if offset in known:
            yield known[offset]
            continue
        unit = queue.unit(offset) if queue is not None and offset >= queue.min_offset else None
        message = parts.log.message_at(unit.physical_offset) if unit is not None else None
        if message is not None:
            yield HalfMessage(offset, message)


def _committed_end(parts: StoreParts, half: HalfMessage) -> int | None:
    """Return the physical end of the message that the half message became; None if it was not committed."""
    topic, key = half.topic, half.message.all_properties.get(UNIQUE_KEY)
    if key and parts.index is not None:
        candidates: Iterable[int] = parts.index.select(topic, key, parts.config.max_msgs_num_batch)
    else:  # all of its own queue that were stored after it
        candidates = parts.lookup.records_from(topic, half.queue_id, half.message.physical_offset)
    for message in filter(None, map(parts.log.message_at, candidates)):
        if message.sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT or message.topic != topic:
            continue
        is_its_own = message.prepared_transaction_offset == half.message.physical_offset
        # a committed message keeps the properties of its half message
        if is_its_own or are_copies(half, HalfMessage(NOWHERE, message)):
            return message.physical_offset + message.size
    return None
