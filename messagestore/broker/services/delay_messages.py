"""Convert delayed messages: to the form that waits in SCHEDULE_TOPIC_XXXX, and to the form delivered to their own topic."""

from __future__ import annotations

from commitlog import Message, StoredMessage
from commitlog._message_cy import UNRESOLVED
from commitlog.java_numbers import is_java_number
from commitlog.layout import QUEUES_MAX
from commitlog.topic_names import SCHEDULE_TOPIC
from storageio import InvalidMessage

from .admission import topic_problem
from .names import DELAY, REAL_QUEUE, REAL_TOPIC
from .putting import with_pairs


def delay_level(text: str, levels_ms: list[int]) -> int:
    """Return the level in a property DELAY, which may be the time of one of the levels.

    Raises `InvalidMessage` for a time that is none of them, and for text that no broker could read.
    """
    number = text.removesuffix(UNRESOLVED)
    if number != text and is_java_number(number, 64):
        if int(number) not in levels_ms:
            times = ", ".join(f"{time_ms / 1000:g}" for time_ms in levels_ms)
            raise InvalidMessage(f"a delay of {int(number) / 1000:g} s is no delay level of this store; levels in s: {times}")
        return levels_ms.index(int(number)) + 1
    if not is_java_number(text, 32):
        raise InvalidMessage(f"property {DELAY} is {text!r}: a number of 32 bits wanted")
    return int(text)


def scheduled(message: Message, raw: bytes, queue_id: int, level: int, levels: int) -> Message:
    """Return the message in its waiting form, with its own topic and queue as properties.

    A level above the last one is lowered to the last. `raw`: the message's properties as the log keeps them.
    """
    level = min(level, levels)
    pairs = {DELAY: str(level), REAL_TOPIC: message.topic, REAL_QUEUE: str(queue_id)}
    return Message(
        SCHEDULE_TOPIC, message.body, queue_id=level - 1, flag=message.flag, sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms, born_host=message.born_host, store_host=message.store_host,
        reconsume_times=message.reconsume_times, prepared_transaction_offset=message.prepared_transaction_offset,
        properties_raw=with_pairs(raw, pairs),
    )  # fmt: skip


def delivered(waiting: StoredMessage) -> Message | None:
    """Return the message for its own topic, with its properties kept; None if they do not name a topic and queue."""
    pairs = waiting.all_properties
    topic, queue = pairs.get(REAL_TOPIC), pairs.get(REAL_QUEUE, "")
    if topic is None or topic_problem(topic) or not is_java_number(queue, 32) or not 0 <= int(queue) < QUEUES_MAX:
        return None
    message = waiting.to_message()
    message.topic, message.queue_id = topic, int(queue)
    message.store_host = None
    message.prepared_transaction_offset = 0
    return message
