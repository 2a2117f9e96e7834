"""`purge`, `requeue`, `topic delete` and `group delete`: changes of a RocketMQ store that may be in use.

A plan is made from the store as a reader sees it, and changes nothing. It is executed in the store of this process, or through
the process that serves the store to others.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from commitlog import Message, StoredMessage
from commitlog.topic_names import DEAD_PREFIX, RETRY_PREFIX
from messagestore import MessageStore
from messagestore.property_names import DELAY, FIRST_ID, FIRST_TOPIC, REAL_QUEUE, REAL_TOPIC, TIMERS, UNIQUE_KEY, WAIT
from storageio import REAL_DISK, InvalidMessage
from storebytes.plan import FREE, Cost, Plan

from ..filters import Filters
from ..output import Answer, count_text
from ..plans import change_answer
from .rocketmq_folder import RocketmqFolder
from .rocketmq_offsets import filled_queues
from .rocketmq_writing import Store, changing

REQUEUED = "REQUEUED-"  # before the id of a dead letter: the UNIQ_KEY of its copy, which shows that there is one
NOT_COPIED = frozenset({DELAY, FIRST_ID, FIRST_TOPIC, REAL_QUEUE, REAL_TOPIC, WAIT, "TAGS", "KEYS", *TIMERS})
OFFSETS_FILE = "config/consumerOffset.json"


class PlannedChange(NamedTuple):
    """One step of a plan, which gets the open store."""

    kind: str
    file: str
    reason: str
    run: Callable[[Store], str]
    cost: Cost = FREE


def _answer(folder: RocketmqFolder, changes: list[PlannedChange], apply: bool) -> Answer:
    """Return the plan, executed or not."""
    plan = Plan(folder.target.path)
    with contextlib.ExitStack() as opened:
        store = opened.enter_context(changing(folder)) if apply and changes else None
        for change in changes:
            run = (lambda: "") if store is None else partial(change.run, store)
            plan.add(change.kind, change.file, change.reason, run, change.cost)
            plan.messages_lost += change.cost.messages_lost
        if store is not None:
            plan.apply()
    return change_answer(plan, applied=apply)


def _lags(store: MessageStore, topic: str, group: str) -> dict[str, int]:
    """Return how many messages a group did not acknowledge, by `topic/queue`."""
    offsets = store.engine.consumer_offsets()
    bounds = {one: (store.min_offset(topic, one), store.max_offset(topic, one)) for one in filled_queues(store, topic)}
    lags = {one: offsets.waiting(topic, group, one, low, high) for one, (low, high) in bounds.items()}
    return {f"{topic}/{queue_id}": lag for queue_id, lag in lags.items() if lag}


def purge(folder: RocketmqFolder, topic: str, group: str | None, apply: bool) -> Answer:
    """Skip the messages of a topic that a group, or each of its groups, did not acknowledge."""
    folder.require_store()
    with folder.open_store() as store:
        _require_topic(store, topic)
        groups = store.engine.consumer_offsets().groups(topic) if group is None else [group]
        if not groups:
            raise InvalidMessage(f"topic {topic!r} has no group with an offset; name one with --group")
        lags = {one: _lags(store, topic, one) for one in groups}
    changes = [_purge_of(topic, one, found) for one, found in lags.items() if found]
    return _answer(folder, changes, apply)


def _purge_of(topic: str, group: str, lags: dict[str, int]) -> PlannedChange:
    total = sum(lags.values())
    reason = f"group {group} skips {count_text(total, 'message')} of {topic}"

    def run(store: Store) -> str:
        return f"{count_text(store.purge(topic, group), 'message')} skipped"

    return PlannedChange("set_offsets", OFFSETS_FILE, reason, run, Cost(messages_lost=total, lost_by_queue=lags))


def delete_topic(folder: RocketmqFolder, topic: str, apply: bool) -> Answer:
    """Delete a topic with its queues and offsets."""
    folder.require_store()
    with folder.open_store() as store:
        _require_topic(store, topic)
        queues = {
            f"{topic}/{one}": store.max_offset(topic, one) - store.min_offset(topic, one) for one in store.queue_ids(topic)
        }
        groups = store.engine.consumer_offsets().groups(topic)
    total = sum(queues.values())
    of_groups = f", and the offsets of {', '.join(groups)}" if groups else ""
    reason = f"{count_text(len(queues), 'queue')} with {count_text(total, 'message')}{of_groups}"

    def run(opened: Store) -> str:
        opened.delete_topic(topic)
        return "deleted"

    cost = Cost(messages_lost=total, lost_by_queue={queue: count for queue, count in queues.items() if count})
    return _answer(folder, [PlannedChange("delete_topic", f"consumequeue/{topic}", reason, run, cost)], apply)


def delete_group(folder: RocketmqFolder, group: str, apply: bool) -> Answer:
    """Delete a group with its offsets, settings and retries."""
    folder.require_store()
    with folder.open_store() as store:
        _require_group(folder, store, group)
        retry_topic = RETRY_PREFIX + group
        topics = [topic for topic in store.engine.consumer_offsets().topics(group) if topic != retry_topic]
        retries = _lags(store, retry_topic, group)
    reason = f"the offsets of group {group} in {', '.join(topics) or 'no topic'}, its settings and its retries"

    def run(opened: Store) -> str:
        opened.delete_group(group)
        return "deleted"

    cost = Cost(messages_lost=sum(retries.values()), lost_by_queue=retries)
    return _answer(folder, [PlannedChange("delete_group", OFFSETS_FILE, reason, run, cost)], apply)


def _require_group(folder: RocketmqFolder, store: MessageStore, group: str) -> None:
    """Raise `InvalidMessage` for a group without offsets, settings and retries."""
    from messagestore.broker.config.subscription_groups import SubscriptionGroups

    has_offsets = group in store.engine.consumer_offsets().groups() or RETRY_PREFIX + group in store.topics()
    if not has_offsets and group not in SubscriptionGroups(REAL_DISK, folder.facts.paths.config):
        raise InvalidMessage(f"{store.path}: no group {group!r}")


def _require_topic(store: MessageStore, topic: str) -> None:
    if topic not in store.topics():
        raise InvalidMessage(f"{store.path}: no topic {topic!r}")


def requeue(folder: RocketmqFolder, group: str, filters: Filters, apply: bool) -> Answer:
    """Put the dead letters of a group that pass the filters to their topics again, each once."""
    folder.require_store()
    dead_topic = DEAD_PREFIX + group
    record_filter = folder.record_filter(filters._replace(topic=None))
    chosen: defaultdict[str, list[StoredMessage]] = defaultdict(list)
    ends: dict[int, int] = {}
    with folder.open_store() as store:
        if dead_topic not in store.topics():
            _require_group(folder, store, group)
        committed = store.committed_offsets(dead_topic, group)
        for queue_id in filled_queues(store, dead_topic):
            start = ends[queue_id] = committed.get(queue_id, 0)
            for message in store.read(dead_topic, queue_id, start):
                origin = message.all_properties.get(FIRST_TOPIC, "")
                is_chosen = record_filter.accepts(message) and filters.topic in (None, origin)
                is_done = not origin or _is_requeued(store, origin, message)
                if is_chosen and not is_done:
                    chosen[origin].append(message)
                if (is_chosen or is_done) and ends[queue_id] == message.queue_offset:
                    ends[queue_id] += 1
        others = {topic: [one for one in store.engine.consumer_offsets().groups(topic) if one != group] for topic in chosen}
    changes = [_requeue_of(topic, group, messages, others[topic]) for topic, messages in sorted(chosen.items())]
    moved = {queue_id: end for queue_id, end in ends.items() if end != committed.get(queue_id, 0)}
    if moved:
        reason = f"group {group} is done with these of {dead_topic}"
        changes.append(PlannedChange("set_offsets", OFFSETS_FILE, reason, partial(_advance, dead_topic, group, moved)))
    return _answer(folder, changes, apply)


def _is_requeued(store: Store, topic: str, message: StoredMessage) -> bool:
    """Return whether a dead letter was put to its topic again."""
    return bool(store.query(topic, REQUEUED + message.message_id, max_count=1))


def _requeue_of(topic: str, group: str, messages: list[StoredMessage], others: list[str]) -> PlannedChange:
    also = f"; other groups get them again: {', '.join(others)}" if others else ""

    def run(store: Store) -> str:
        counts: Counter[bool] = Counter()
        for message in messages:
            is_done = _is_requeued(store, topic, message)
            counts[is_done] += 1
            if not is_done:
                store.put(_copy_of(message, topic))
        return f"{count_text(counts[False], 'message')} put"

    return PlannedChange("requeue", topic, f"{count_text(len(messages), 'dead letter')} of group {group}{also}", run)


def _copy_of(message: StoredMessage, topic: str) -> Message:
    """Return a dead letter as a new message of its topic, which is retried as often as any other."""
    properties = {name: value for name, value in message.properties.items() if name not in NOT_COPIED}
    return Message(
        topic, message.body, tags=message.tags, keys=message.keys or None, flag=message.flag,
        properties=properties | {UNIQUE_KEY: REQUEUED + message.message_id}, born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
    )  # fmt: skip


def _advance(topic: str, group: str, ends: dict[int, int], store: Store) -> str:
    for queue_id, end in ends.items():
        store.reset_offsets(topic, group, end, queues=[queue_id])
    return ""
