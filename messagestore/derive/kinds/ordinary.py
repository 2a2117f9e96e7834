"""Ordinary queues: a unit of 20 bytes for each message (docs/formats/consumequeue.md). The kernel makes the units.

A unit in a file may differ from what the kernel makes, if another kind has put something in place of the tags code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from commitlog import StoredMessage
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from consumequeue import ConsumeQueue, ConsumeQueues
from consumequeue.layout import UNIT, UNIT_SIZE
from storageio import InvalidMessage, StoreCorrupt
from storebytes.java_hash import java_hash_code

# What the kernel does with the records of a queue.
ORDINARY = 0
IGNORED = 1  # its records enter no queue
ELSEWHERE = 2  # the caller makes the units of its records
SCHEDULED = 3  # its units hold the due time of the message

IsRight = Callable[[bytes, bytes], bool]


def is_dispatched(message: StoredMessage) -> bool:
    """Return whether a record enters queues: it is neither a prepared message nor a rollback."""
    return message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT)


def tags_code(message: StoredMessage) -> int:
    """Return the hash of a message's tags, which its units contain."""
    return java_hash_code(message.tags) if message.tags else 0


def unit_differences(queue: ConsumeQueue, first: int, units: bytes, is_right: IsRight) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield (queue offset, expected unit, found unit) where a queue's files differ from `units`, which begin at `first`.

    `is_right` decides whether a found unit is correct although it differs from the expected one.
    """
    at, stop = first, first + len(units) // UNIT_SIZE
    while at < stop and (rest := queue.rest(at * UNIT_SIZE)) is not None:
        expected = units[(at - first) * UNIT_SIZE :]
        count = min(len(rest), len(expected)) // UNIT_SIZE
        if bytes(rest[: count * UNIT_SIZE]) != expected[: count * UNIT_SIZE]:  # a view is compared byte by byte
            for position in range(count):
                part = slice(position * UNIT_SIZE, (position + 1) * UNIT_SIZE)
                if rest[part] != expected[part] and not is_right(bytes(rest[part]), expected[part]):
                    yield at + position, expected[part], bytes(rest[part])
        at += count
    if at < stop:
        yield at, units[(at - first) * UNIT_SIZE :][:UNIT_SIZE], b""


def unit_text(data: bytes) -> str:
    """Return a unit as readable text."""
    if not data:
        return "no unit"
    physical_offset, size_bytes, code = UNIT.unpack(data)
    return f"physical offset {physical_offset}, {size_bytes} bytes, tags code {code}"


def keep_ends(old: ConsumeQueues, made: ConsumeQueues, log_min_offset: int) -> None:
    """Copy the last unit of queues whose records all left the log: nothing else tells the offset of their next message.

    If such a queue began again at 0, consumers with higher offsets would skip its next messages.
    """
    for queue in old:
        with contextlib.suppress(StoreCorrupt, InvalidMessage):  # an unreadable queue has no end to keep
            last = queue.read_unit((queue.max_offset - 1) * UNIT_SIZE)
            if last and queue.is_expired(log_min_offset) and made.get(queue.topic, queue.queue_id) is None:
                made.get_or_add(queue.topic, queue.queue_id).append_run(queue.max_offset - 1, last)


def refuse_earlier_ends(old: ConsumeQueues, made: ConsumeQueues) -> None:
    """Raise `StoreCorrupt` if a queue names messages behind the last one that the log has."""
    for queue in old:
        with contextlib.suppress(InvalidMessage):
            new = made.get(queue.topic, queue.queue_id)
            end = new.max_offset if new is not None else 0
            if queue.max_offset > end:
                raise StoreCorrupt(
                    "the log lacks messages of a queue; see `brokerstore recover`", file=queue.folder, offset=end * UNIT_SIZE,
                    expected=f"records of {queue.max_offset} units", found=f"those of {end}",
                )  # fmt: skip
