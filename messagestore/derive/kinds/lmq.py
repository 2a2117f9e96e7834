"""LMQs (light message queues): queues that hold records of other topics (docs/formats/broker-topics.md#lmq).

A record's property INNER_MULTI_DISPATCH has the names of its queues (`%LMQ%name`, queue id 0), and INNER_MULTI_QUEUE_OFFSET its
number in each, both separated by commas. `broker.services.multi_puts` assigns the numbers. The units are made wherever a record
has numbers, whatever the configuration, and are checked and rebuilt by what is here.
"""

from __future__ import annotations

from collections.abc import Iterator

from commitlog import StoredMessage
from commitlog.topic_names import LMQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX
from consumequeue import ConsumeQueues, check_topic
from consumequeue.layout import UNIT
from storageio import InvalidMessage

from ...property_names import MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from .ordinary import tags_code

_LISTS = MULTI_QUEUE_OFFSET.encode()
_DIGITS_MAX = 18  # of a queue offset


def listed_queues(message: StoredMessage) -> list[tuple[str, int]]:
    """Return (queue, number in it) of a record's LMQs; an empty list if the two properties do not match.

    The numbers may have gaps; a queue closes them when the units are appended.
    """
    if _LISTS not in message.properties_raw:
        return []
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


def queue_keys_of(message: StoredMessage) -> Iterator[tuple[str, int, int]]:
    """Yield topic, queue id and offset in the record's own queue, then in each LMQ that it names."""
    yield message.topic, message.queue_id, message.queue_offset
    for topic, number in listed_queues(message):
        yield topic, 0, number


def other_units(message: StoredMessage) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield topic, queue id, number and unit of a record in each LMQ, including its own topic if that is one.

    No client sends to an LMQ, but a filler for a lost record belongs to one (`repair.fillers`).
    """
    numbers = {(name, 0): number for name, number in reversed(listed_queues(message))}
    if _is_lmq_name(message.topic):
        numbers[message.topic, message.queue_id] = message.queue_offset
    if numbers:
        unit = UNIT.pack(message.physical_offset, message.size, tags_code(message))
        for (topic, queue_id), number in numbers.items():
            yield topic, queue_id, number, unit


def add_to_other_queues(queues: ConsumeQueues, message: StoredMessage) -> None:
    """Append a unit to each LMQ of a record, at the queue's end, unless it is there.

    Readers see the position; the number in the record is only where the unit was meant to be: a name listed twice moves the
    numbers ahead of the positions, and after a restart lower numbers are given again. Only the first record that the log still
    has is placed at its number.
    """
    for topic, queue_id, number, unit in other_units(message):
        queue = queues.get_or_add(topic, queue_id)
        if message.physical_offset + message.size > queue.max_physical_offset:
            queues.append_run(queue, queue.max_offset if queue.starts else number, unit)


def is_eligible(topic: str, names: str) -> bool:
    """Return whether messages of a topic enter LMQs; `names` is the property INNER_MULTI_DISPATCH."""
    return bool(names.strip()) and topic != SCHEDULE_TOPIC and not topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX))


def _is_number(text: str) -> bool:
    """Return whether a text is a queue offset.

    The length is limited, because Python refuses numbers of thousands of digits.
    """
    return 0 < len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit()


def _is_lmq_name(name: str) -> bool:
    """Return whether a name can name a folder; RocketMQ skips other names too."""
    try:
        return name.startswith(LMQ_PREFIX) and bool(check_topic(name))
    except InvalidMessage:
        return False
