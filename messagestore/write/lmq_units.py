"""Rebuild LMQs (light message queues) from the log (docs/formats/broker-topics.md#lmq).

An LMQ (`%LMQ%name`, queue id 0) holds records of other topics.  A record's property INNER_MULTI_DISPATCH has the names of its
queues, and INNER_MULTI_QUEUE_OFFSET its number in each, both separated by commas.
"""

from __future__ import annotations

from collections.abc import Iterator

from commitlog import CHECK_PLACE, CommitLog, StoredMessage
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from commitlog.topic_names import LMQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX
from consumequeue import ConsumeQueues, check_topic
from consumequeue.layout import UNIT
from storageio import InvalidMessage
from storebytes.java_hash import java_hash_code

from ..property_names import MULTI_DISPATCH, MULTI_QUEUE_OFFSET

NORMAL = (TRANSACTION_NONE, TRANSACTION_COMMIT)
_SEARCHED = 1 << 20
_OVERLAP = len(LMQ_PREFIX)
_DIGITS_MAX = 18  # of a queue offset


def lmq_offsets(message: StoredMessage) -> list[tuple[str, int]]:
    """Return (queue, number in it) of a record's LMQs; an empty list if the two properties do not match.

    The numbers may have gaps; a queue closes them when the units are appended.
    """
    properties = message.all_properties
    names, offsets = properties.get(MULTI_DISPATCH), properties.get(MULTI_QUEUE_OFFSET)
    if names is None or offsets is None or not is_eligible(message.topic, names):
        return []
    listed, numbers = names.split(","), offsets.split(",")
    if len(listed) != len(numbers):
        return []
    return [
        (name, int(offset)) for name, offset in zip(listed, numbers, strict=True) if _is_lmq_name(name) and _is_number(offset)
    ]


def all_lmq_offsets(message: StoredMessage) -> dict[tuple[str, int], int]:
    """Return the record's number in each LMQ by (queue, queue id), including its own topic if that is an LMQ.

    No client sends to an LMQ, but a filler for a lost record belongs to one (`repair.fillers`).
    """
    places = {(name, 0): number for name, number in reversed(lmq_offsets(message))}
    if message.topic.startswith(LMQ_PREFIX) and message.sys_flag & TRANSACTION_MASK in NORMAL:
        places[message.topic, message.queue_id] = message.queue_offset
    return places


def is_lmq(topic: str) -> bool:
    """Return whether a topic is an LMQ."""
    return topic.startswith(LMQ_PREFIX)


def _is_number(text: str) -> bool:
    """Return whether a text is a queue offset.

    The length is limited, because Python refuses numbers of thousands of digits.
    """
    return 0 < len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit()


def is_eligible(topic: str, names: str) -> bool:
    """Return whether messages of a topic enter LMQs; `names` is the property INNER_MULTI_DISPATCH."""
    return bool(names.strip()) and topic != SCHEDULE_TOPIC and not topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX))


def _is_lmq_name(name: str) -> bool:
    """Return whether a name can name a folder; RocketMQ skips other names too."""
    try:
        return name.startswith(LMQ_PREFIX) and bool(check_topic(name))
    except InvalidMessage:
        return False


def add_lmq_units(log: CommitLog, end_offset: int, queues: ConsumeQueues) -> int:
    """Append the units of every LMQ, in log order; return the number of units.

    Each goes to its queue's end, as in the running store: a name listed twice moves the numbers ahead of the positions, and
    after a restart lower numbers are given again.  Only the first record that the log still has is placed at its number.
    """
    count = 0
    for message in _candidates(log, end_offset):
        unit = lmq_unit(message)
        for (name, queue_id), number in all_lmq_offsets(message).items():
            queue = queues.get_or_add(name, queue_id)
            queue.append_run(queue.max_offset if queue.starts else number, unit)
            count += 1
    return count


def lmq_unit(message: StoredMessage) -> bytes:
    """Return the unit that each LMQ of a record has."""
    return UNIT.pack(message.physical_offset, message.size, java_hash_code(message.tags) if message.tags else 0)


def _candidates(log: CommitLog, end_offset: int) -> Iterator[StoredMessage]:
    """Yield the messages of the files that contain the name of an LMQ."""
    for file in log.queue.files:
        if file.start_offset < end_offset and names_lmqs(log.queue.view(file)):
            yield from log.messages(file.start_offset, min(file.end_offset, end_offset), CHECK_PLACE)


def names_lmqs(view: memoryview) -> bool:
    """Return whether the bytes contain the name of an LMQ."""
    wanted = LMQ_PREFIX.encode()
    return any(wanted in bytes(view[at : at + _SEARCHED + _OVERLAP]) for at in range(0, len(view), _SEARCHED))
