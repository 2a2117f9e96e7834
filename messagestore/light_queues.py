"""Light queues made from the log again: a record names those it is in, and its number in each.

A light queue (`%LMQ%name`, queue id 0) holds records of other topics.  The property INNER_MULTI_DISPATCH names the queues,
INNER_MULTI_QUEUE_OFFSET the record's number in each, both separated by commas.
"""

from __future__ import annotations

from collections.abc import Iterator

from commitlog import CHECK_PLACE, CommitLog, StoredMessage
from commitlog.java_numbers import SCHEDULE_TOPIC
from consumequeue import ConsumeQueues
from consumequeue.layout import UNIT
from storebytes.java_hash import java_hash_code

from .broker_config.topics import LIGHT_PREFIX, SYSTEM_PREFIX

DISPATCH, OFFSETS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
RETRY_PREFIX = "%RETRY%"
_SEARCHED = 1 << 20
_OVERLAP = len(OFFSETS)


def light_places(message: StoredMessage) -> list[tuple[str, int]]:
    """(queue, its number there) of a record; none where the two lists do not fit together.

    The numbers may have gaps; a queue closes them when the units are appended.
    """
    properties = message.all_properties
    names, offsets = properties.get(DISPATCH), properties.get(OFFSETS)
    if names is None or offsets is None or not is_eligible(message.topic, names):
        return []
    pairs = list(zip(names.split(","), offsets.split(","), strict=False))
    if len(names.split(",")) != len(offsets.split(",")):
        return []
    return [(name, int(offset)) for name, offset in pairs if _is_light(name) and offset.isdecimal()]


def is_eligible(topic: str, names: str) -> bool:
    """Whether messages of a topic are in light queues at all (section 10); `names`: what INNER_MULTI_DISPATCH says."""
    return bool(names.strip()) and topic != SCHEDULE_TOPIC and not topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX))


def _is_light(name: str) -> bool:
    """A name that cannot be a folder's is passed over, as in a real store."""
    return name.startswith(LIGHT_PREFIX) and "/" not in name and "\0" not in name


def add_light_units(log: CommitLog, end_offset: int, queues: ConsumeQueues) -> int:
    """Append the units of every light queue, in log order; how many."""
    count = 0
    for message in _candidates(log, end_offset):
        tags_code = java_hash_code(message.tags) if message.tags else 0
        unit = UNIT.pack(message.physical_offset, message.size, tags_code)
        for name, offset in light_places(message):
            queues.get_or_add(name, 0).append_run(offset, unit)
            count += 1
    return count


def _candidates(log: CommitLog, end_offset: int) -> Iterator[StoredMessage]:
    """Messages of the files that have the property's name anywhere."""
    for file in log.queue.files:
        if file.start_offset < end_offset and _has_name(log.queue.view(file)):
            yield from log.messages(file.start_offset, min(file.end_offset, end_offset), CHECK_PLACE)


def _has_name(view: memoryview) -> bool:
    wanted = OFFSETS.encode()
    return any(wanted in bytes(view[at : at + _SEARCHED + _OVERLAP]) for at in range(0, len(view), _SEARCHED))
