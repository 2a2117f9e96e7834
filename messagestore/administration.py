"""What an operator does to the topics and groups of a store that is open for writing: delete, purge, set offsets.

Each works while messages are put and consumed. Where offsets are set, consumers of the group begin at them. What they have in
hand then is no longer pending, so its acknowledgement returns False, and its redelivery depends on the new offset alone.

A topic is deleted in an order that a kill may interrupt anywhere: `deleted.json` decides which messages are gone, and the next
opening deletes queues that have no others.
"""

from __future__ import annotations

import contextlib
from datetime import datetime

from commitlog.topic_names import RETRY_PREFIX, is_virtual_topic
from consumequeue import Boundary
from storageio import InvalidMessage
from storageio.settings import check_type

from .broker.config.consumer_offsets import check_key
from .broker.config.topics import is_system_topic
from .engine import Engine
from .read.rebalance import GroupMember
from .recovery.queue_list import write_queue_list

_SKIP = "purge it for each of its groups"
_LET_GO = "add brokerstore.retention=limits to its attributes, so that no log file is kept for it"
OffsetTarget = str | int | datetime  # "first", "last", a queue offset, or the first message stored at or after a time


# Topics


def delete_topic(engine: Engine, topic: str) -> None:
    """Delete a topic, its queues, and all offsets in it."""
    with engine.administration:
        _check_topic(engine, topic)
        _refuse_consumers(f"topic {topic!r}", [one for one in _consumers(engine) if one.topic == topic])
        _delete_topic(engine, topic)


def _check_topic(engine: Engine, topic: str) -> None:
    """Raise `InvalidMessage` unless the topic exists and can be deleted."""
    check_existing(engine, topic)
    reason = ""
    known = engine.topics.get(topic)
    if is_system_topic(topic):
        reason = "it belongs to the store"
    elif is_virtual_topic(topic):
        reason = f"its messages are those of other topics; {_SKIP}"
    elif engine.derived.is_batch_topic(topic):
        reason = f"it has batch queues; {_SKIP}, and {_LET_GO}"
    elif known is not None and known.is_compacted:
        reason = f"it is compacted; {_SKIP}, and {_LET_GO}, or let a broker delete it"
    if reason:
        raise InvalidMessage(f"topic {topic!r} cannot be deleted: {reason}")


def _delete_topic(engine: Engine, topic: str) -> None:
    """Delete a topic. Records that are put from here on belong to a new topic of this name."""
    engine.admission.remove(topic)
    with engine.housekeeper.guard, engine.dispatcher.paused():
        with engine.log.appender.lock:
            before = engine.log.written_offset
            next_offsets = {queue_id: offset for queue_id, offset in engine.offsets.topic(topic).queues() if offset}
        engine.deleted.delete(topic, before, next_offsets, engine.low_offset)
        engine.routing.dedup.forget(topic, before)
        engine.consumer_offsets().delete_topic(topic)
        engine.consumer_offsets().persist()
        engine.queues.remove_topic(topic)
        write_queue_list(engine.disk, engine.paths.own, engine.queues)


# Groups


def delete_group(engine: Engine, group: str) -> None:
    """Delete a group: its offsets, its settings, and its retry topics. Dead letters stay."""
    with engine.administration:
        offsets, retry_topic = engine.consumer_offsets(), RETRY_PREFIX + group
        if not knows_group(engine, group):
            raise InvalidMessage(f"{engine.paths.root}: no group {group!r}")
        _refuse_consumers(f"group {group!r}", [one for one in _consumers(engine) if one.group == group])
        offsets.delete_group(group)
        offsets.persist()
        engine.retry_progresses.forget(group)
        engine.retries.groups.delete(group)
        engine.retries.groups.persist()
        for topic in (retry_topic, *_pop_retry_topics(engine, group)):
            if _exists(engine, topic):
                _delete_topic(engine, topic)


def _pop_retry_topics(engine: Engine, group: str) -> list[str]:
    """Return the retry topics of a group and a topic, unless the name is that of another group's own one."""
    names = (f"{group}_{topic}" for topic in engine.topics.names() if not topic.startswith(RETRY_PREFIX))
    return [RETRY_PREFIX + name for name in names if name not in engine.retries.groups]


def knows_group(engine: Engine, group: str) -> bool:
    """Return whether a group has offsets, settings or retries."""
    has_offsets = group in engine.consumer_offsets().groups()
    return has_offsets or group in engine.retries.groups or _exists(engine, RETRY_PREFIX + group)


def purge(engine: Engine, topic: str, group: str | None) -> int:
    """Set the offsets of a group, or of every group of the topic, behind the last message; return how many were skipped."""
    with engine.administration:
        check_existing(engine, topic)
        known = {*engine.consumer_offsets().groups(topic), *(one.group for one in _consumers(engine) if one.topic == topic)}
        groups = sorted(known) if group is None else [group]
        if not groups:
            raise InvalidMessage(f"topic {topic!r} has no group whose messages could be skipped; name one, or delete the topic")
        skipped = 0
        for one in groups:
            waiting = _waiting(engine, topic, one)
            _set_offsets(engine, topic, one, "last", None)
            skipped += waiting
        return skipped


def reset_offsets(engine: Engine, topic: str, group: str, to: OffsetTarget, queue_ids: list[int] | None) -> dict[int, int]:
    """Set the offsets of a group; return them by queue id."""
    with engine.administration:
        check_existing(engine, topic)
        return _set_offsets(engine, topic, group, to, queue_ids)


def _set_offsets(
    engine: Engine, topic: str, group: str, to: OffsetTarget, queue_ids: list[int] | None
) -> dict[int, int]:  # fmt: skip
    """Set and save the offsets of a group while no consumer of it can acknowledge."""
    check_key(topic, group)
    engine.settle()
    known = engine.lookup.queue_ids(topic)
    chosen = known if queue_ids is None else queue_ids
    if not set(chosen) <= set(known):
        raise InvalidMessage(f"topic {topic!r} has messages in the queues {known}, not in {sorted(set(chosen) - set(known))}")
    found = {queue_id: target_offset(engine, topic, queue_id, to) for queue_id in chosen}
    offsets = engine.consumer_offsets()
    with contextlib.ExitStack() as held:
        for consumer in _consumers(engine):
            if (consumer.topic, consumer.group) == (topic, group):
                held.enter_context(consumer.restarting())
        for queue_id, offset in found.items():
            offsets.reset(topic, group, queue_id, offset)
        if topic.startswith(RETRY_PREFIX):
            engine.retry_progresses.forget(group)
    engine.persist_offsets()
    engine.progress.notify()
    return found


def target_offset(engine: Engine, topic: str, queue_id: int, to: OffsetTarget) -> int:
    """Return a queue offset that a target names; raise `InvalidMessage` for one outside the queue."""
    low, high = engine.lookup.bounds(topic, queue_id)
    if isinstance(to, datetime):
        queue = engine.lookup.get(topic, queue_id)
        time_ms = int(to.timestamp() * 1000)
        return low if queue is None else queue.offset_by_time(time_ms, Boundary.LOWER, engine.log.readers, engine.low_offset)
    if to in ("first", "last"):
        return low if to == "first" else high
    if isinstance(to, bool) or not isinstance(to, int):
        raise ValueError(f"to={to!r}: 'first', 'last', a queue offset, or a datetime")
    if not low <= to <= high:
        raise InvalidMessage(f"queue {queue_id} of {topic} has offsets {low} to {high}, not {to}")
    return to


def _waiting(engine: Engine, topic: str, group: str) -> int:
    """Return how many messages a group did not acknowledge."""
    engine.settle()
    offsets, lookup = engine.consumer_offsets(), engine.lookup
    return sum(offsets.waiting(topic, group, one, *lookup.bounds(topic, one)) for one in lookup.queue_ids(topic))


# Consumers


def _consumers(engine: Engine) -> list[GroupMember]:
    """Return the open consumers, also those of retry topics."""
    return list(engine.open_consumers)


def _refuse_consumers(what: str, using: list[GroupMember]) -> None:
    if using:
        names = ", ".join(sorted({f"group {one.group!r} on topic {one.topic!r}" for one in using}))
        raise InvalidMessage(f"{what} is in use by open consumers: {names}")


def _exists(engine: Engine, topic: str) -> bool:
    return topic in engine.topics or bool(engine.lookup.queue_ids(topic))


def check_existing(engine: Engine, topic: str) -> None:
    """Raise `InvalidMessage` for a topic that does not exist."""
    check_type("topic", topic, str)
    if not _exists(engine, topic):
        raise InvalidMessage(f"{engine.paths.root}: no topic {topic!r}")
