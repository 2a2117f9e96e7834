"""Chosen topics into a new store, which may have files of other sizes.

Records are put in the order of the log with all that they hold: queue, queue offset, times, hosts, flags, properties.  So
offsets that consumers committed stay true, and go along with what topics.json and subscriptionGroup.json say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from commitlog import PutStatus
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from storageio import InvalidMessage, PutRejected

from ..config.subscription_groups import SubscriptionGroups
from ..config.topics import BATCH_QUEUES, QUEUE_TYPE
from .names import LIGHT_PREFIX

if TYPE_CHECKING:
    from commitlog import StoredMessage

    from ...parts import StoreParts
    from .admission import Admission


class Copied(NamedTuple):
    """What went over."""

    messages: int
    topics: list[str]
    groups: list[str]


class CopyClock:
    """The target's clock: the store time of the record that is copied."""

    def __init__(self) -> None:
        """No record yet."""
        self.now_ms = 0

    def __call__(self) -> int:
        """Milliseconds."""
        return self.now_ms


def copy_topics(
    source: StoreParts,
    target: StoreParts,
    admission: Admission,
    clock: CopyClock,
    topics: Iterable[str],
    progress: Callable[[int], None] | None = None,
) -> Copied:
    """Everything of these topics.  `target` is new and runs with `clock`.  Light queues come with the records they hold."""
    wanted = list(dict.fromkeys(topics))
    for topic in wanted:
        if not topic.startswith(LIGHT_PREFIX):
            _prepare(source, target, admission, topic)
    count = 0
    for message in _records(source, set(wanted)):
        clock.now_ms = message.store_timestamp_ms
        offsets = target.offsets
        if _is_queued(message):
            offsets.set_next_offset(message.topic, message.queue_id, message.queue_offset)
        result = target.log.appender.append(message.to_message(), message.queue_id)
        if result.status is not PutStatus.PUT_OK:
            raise PutRejected(result.status, str(result.reason), count)
        count += 1
        if progress is not None:
            progress(1)
    target.settle()
    return Copied(count, wanted, _copy_groups(source, target, wanted))


def check_topics(source: StoreParts, topics: Iterable[str]) -> None:
    """Raise `InvalidMessage` for one that is not there."""
    known = {*source.queues.topics(), *source.derived.batch.topics(), *source.topics.names()}
    for topic in topics:
        if topic not in known:
            raise InvalidMessage(f"no topic {topic!r}; there are {', '.join(sorted(known)) or 'none'}")


def _prepare(source: StoreParts, target: StoreParts, admission: Admission, topic: str) -> None:
    """The topic as topics.json has it."""
    config = source.topics.get(topic)
    if config is not None:
        target.topics.put(config)
    queue_ids = source.queues.queue_ids(topic) or source.derived.batch.queue_ids(topic)
    admission.admit(topic, max(queue_ids, default=0) + 1)
    if source.derived.is_batch_topic(topic):
        admission.set_attributes(topic, {QUEUE_TYPE: BATCH_QUEUES})


def _is_queued(message: StoredMessage) -> bool:
    return message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT)


def _records(source: StoreParts, wanted: set[str]) -> Iterable[StoredMessage]:
    """Of these topics, in the log's order.  Of a store that nobody writes, or up to where its writer is now."""
    end = source.dispatch_limit() if source.writable else None
    return (message for message in source.log.messages(None, end) if message.topic in wanted)


def _copy_groups(source: StoreParts, target: StoreParts, topics: list[str]) -> list[str]:
    """Offsets of the copied topics, and what is said of the groups that have them.

    None lies behind its queue's end: one whose records all left the log begins at 0 in the copy.  They stand in the file that
    they stood in: a broker with light queues reads its own alone.
    """
    offsets = source.consumer_offsets()  # of a writer: with what is committed and not yet in the file
    groups = SubscriptionGroups(source.disk, source.places.config)
    copied_groups = SubscriptionGroups(target.disk, target.places.config)
    found = sorted({group for topic in topics for group in offsets.groups(topic)})
    table = type(offsets)(target.disk, target.places.config)
    for group in found:
        for topic in topics:
            for queue_id, offset in offsets.offsets_of(topic, group).items():
                table.commit(topic, group, queue_id, min(offset, _end(target, topic, queue_id)))
        known = groups.get(group)
        if known is not None:
            copied_groups.put(known)
    copied_groups.persist()
    table.persist()
    return found


def _end(target: StoreParts, topic: str, queue_id: int) -> int:
    """Of a queue of the copy.  A record of many counts as all of them, which the counter of its append does not know."""
    batch = target.derived.batch.get(topic, queue_id)
    return batch.max_offset if batch is not None else target.offsets.next_offset(topic, queue_id)
