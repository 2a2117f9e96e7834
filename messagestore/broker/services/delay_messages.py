"""Convert delayed messages: to the form that waits, by level or as a timer, and to the form delivered to their own topic."""

from __future__ import annotations

from typing import NamedTuple

from commitlog import UNRESOLVED, Message, StoredMessage, decode_properties, is_java_number
from commitlog.layout import QUEUES_MAX, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from commitlog.topic_names import SCHEDULE_TOPIC
from storageio import InvalidMessage
from storageio.settings import I64_MAX

from ...property_names import DELAY, REAL_QUEUE, REAL_TOPIC, TIMER_DELAY_MS, TIMER_DELAY_S, TIMER_DELIVER_MS, TIMERS
from ...timers.layout import DELETES, DELIVERED, DUE, ENQUEUED, PRECISION_MS, ROLLS, TIMER_TOPIC
from ...write.admission import folder_problem, internal_problem
from ...write.putting import with_pairs, without_pairs


class Delay(NamedTuple):
    """How a message waits: in a delay level, or as a timer that is due at a time; in neither way if both are 0."""

    level: int = 0
    due_ms: int = 0


def delay_of(message: Message, pairs: dict[str, str], levels_ms: list[int], now_ms: int) -> Delay:
    """Return how a put of a message with these properties waits (`docs/formats/put-rules.md#delays`).

    Raises `InvalidMessage` for text that no broker could read, and for the deletion of a timer that is due already.
    """
    text = pairs.get(DELAY, "0")
    number = text.removesuffix(UNRESOLVED)
    if number != text and is_java_number(number, 64):
        wait_ms = int(number)
        delay = Delay(levels_ms.index(wait_ms) + 1) if wait_ms in levels_ms else Delay(0, due_second(now_ms + wait_ms))
    elif not is_java_number(text, 32):
        raise InvalidMessage(f"property {DELAY} is {text!r}: a number of 32 bits wanted")
    elif int(text) > 0:
        delay = Delay(int(text))
    elif message.topic == TIMER_TOPIC or DUE in pairs:  # a timer already, or its delivered copy
        return Delay()
    else:
        delay = Delay(0, _timer_due_ms(pairs, now_ms))
    waits = message.topic != SCHEDULE_TOPIC and message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT)
    return delay if waits else Delay()


def deliver_ms(pairs: dict[str, str], now_ms: int) -> int | None:
    """Return the delivery time in a message's timer properties, None without one. Raises `InvalidMessage`."""
    for name, unit_ms, since_ms in ((TIMER_DELAY_S, 1000, now_ms), (TIMER_DELAY_MS, 1, now_ms), (TIMER_DELIVER_MS, 1, 0)):
        if name in pairs:
            if not is_java_number(pairs[name], 64):
                raise InvalidMessage(f"property {name} is {pairs[name]!r}: a number of 64 bits wanted")
            return since_ms + int(pairs[name]) * unit_ms
    return None


def _timer_due_ms(pairs: dict[str, str], now_ms: int) -> int:
    requested_ms = deliver_ms(pairs, now_ms)
    if requested_ms is None:
        return 0
    if requested_ms > now_ms:
        return due_second(requested_ms)
    if DELETES in pairs:
        raise InvalidMessage(f"property {DELETES}: the timer is due already")
    return 0


def due_second(time_ms: int) -> int:
    """Return TIMER_OUT_MS of a time: the second whose end is at the time or after it."""
    if time_ms > I64_MAX:
        raise InvalidMessage(f"a delivery time of {time_ms} ms: a number of 64 bits wanted")
    return (time_ms - 1) // PRECISION_MS * PRECISION_MS


def timed(message: Message, raw: bytes, queue_id: int, due_ms: int) -> Message:
    """Return the message in the form that waits as a timer, with its own topic and queue as properties."""
    pairs = {DUE: str(due_ms), REAL_TOPIC: message.topic, REAL_QUEUE: str(queue_id)}
    if UNRESOLVED in decode_properties(raw).get(DELAY, ""):
        raw = without_pairs(raw, (DELAY,))
        pairs = {TIMER_DELIVER_MS: str(due_ms + PRECISION_MS)} | pairs
    return _waiting(message, TIMER_TOPIC, 0, with_pairs(raw, pairs))


def rolled(waiting: StoredMessage, enqueued_ms: int, now_ms: int) -> Message:
    """Return the message of a timer that waits on in a later slot, as a new record."""
    times = waiting.properties.get(ROLLS, "0")
    message = waiting.to_message()
    message.store_host = None
    message.properties_raw = with_pairs(waiting.properties_raw, {
        ENQUEUED: str(enqueued_ms), ROLLS: str(int(times) + 1 if is_java_number(times, 32) else 1), DELIVERED: str(now_ms),
    })  # fmt: skip
    return message


def delivered_timer(waiting: StoredMessage, enqueued_ms: int, now_ms: int) -> Message | None:
    """Return the message of a timer for its own topic; None if its properties do not name a topic and queue."""
    message = delivered(waiting)
    if message is not None:
        raw = without_pairs(waiting.properties_raw, (REAL_TOPIC, REAL_QUEUE))
        message.properties_raw = with_pairs(raw, {ENQUEUED: str(enqueued_ms), DELIVERED: str(now_ms)})
    return message


def scheduled(message: Message, raw: bytes, queue_id: int, level: int, levels: int) -> Message:
    """Return the message in its waiting form, with its own topic and queue as properties.

    A level above the last one is lowered to the last. `raw`: the message's properties as the log keeps them.
    """
    level = min(level, levels)
    pairs = {DELAY: str(level), REAL_TOPIC: message.topic, REAL_QUEUE: str(queue_id)}
    return _waiting(message, SCHEDULE_TOPIC, level - 1, with_pairs(without_pairs(raw, TIMERS), pairs))


def _waiting(message: Message, topic: str, queue_id: int, raw: bytes) -> Message:
    return Message(
        topic, message.body, queue_id=queue_id, flag=message.flag, sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms, born_host=message.born_host, store_host=message.store_host,
        reconsume_times=message.reconsume_times, prepared_transaction_offset=message.prepared_transaction_offset,
        properties_raw=raw,
    )  # fmt: skip


def delivered(waiting: StoredMessage) -> Message | None:
    """Return the message for its own topic, with its properties kept; None if they do not name a topic and queue."""
    pairs = waiting.all_properties
    topic, queue = pairs.get(REAL_TOPIC), pairs.get(REAL_QUEUE, "")
    if topic is None or folder_problem(topic) or internal_problem(topic):  # a decision about a transaction cannot wait
        return None
    if not is_java_number(queue, 32) or not 0 <= int(queue) < QUEUES_MAX:
        return None
    message = waiting.to_message()
    message.topic, message.queue_id = topic, int(queue)
    message.store_host = None
    message.prepared_transaction_offset = 0
    return message
