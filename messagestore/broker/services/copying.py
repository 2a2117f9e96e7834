"""Copy selected topics into a new store, which may have files of other sizes.

Records are appended in log order with all their fields: queue, queue offset, times, hosts, flags, properties. Committed
consumer offsets therefore stay valid. They are copied as well, with the entries of topics.json and subscriptionGroup.json, and
with the progress of delayed messages and timers, if their topics are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from commitlog import LogPaths, PutStatus
from commitlog.topic_names import SCHEDULE_TOPIC, is_virtual_topic
from commitlog.walk import LogFiles
from storageio import InvalidMessage, PutRejected

from ...derive.kinds import is_dispatched
from ...timers.layout import TIMER_TOPIC
from ...timers.rebuild_timers import rebuild_timers
from ..config.delay_offsets import DelayOffsets
from ..config.subscription_groups import SubscriptionGroups
from ..config.topics import BATCH_QUEUES, QUEUE_TYPE
from .delay_resume import delivered_since

if TYPE_CHECKING:
    from commitlog import StoredMessage

    from ...parts import StoreParts
    from ...write.admission import Admission


class Copied(NamedTuple):
    """A report of what was copied."""

    messages: int
    topics: list[str]
    groups: list[str]


class CopyClock:
    """The target's clock, which returns the store time of the record that is being copied."""

    def __init__(self) -> None:
        """Start at 0, before the first record."""
        self.now_ms = 0

    def __call__(self) -> int:
        """Return the current time in milliseconds."""
        return self.now_ms


def copy_topics(
    source: StoreParts,
    target: StoreParts,
    admission: Admission,
    clock: CopyClock,
    topics: Iterable[str],
    progress: Callable[[int], None] | None = None,
) -> Copied:
    """Copy all records, offsets and groups of these topics.

    `target` is new and uses `clock`. Queues of other topics' records come with these. Raises `PutRejected` if a put fails.
    """
    requested = list(dict.fromkeys(topics))
    for topic in requested:
        if not is_virtual_topic(topic):
            _prepare(source, target, admission, topic)
    count = 0
    for message in _records(source, set(requested)):
        clock.now_ms = message.store_timestamp_ms
        offsets = target.offsets
        if is_dispatched(message):
            offsets.set_next_offset(message.topic, message.queue_id, message.queue_offset)
        result = target.log.appender.append(message.to_message(), message.queue_id)
        if result.status is not PutStatus.PUT_OK:
            raise PutRejected(result.status, str(result.reason), count) from result.cause
        count += 1
        if progress is not None:
            progress(1)
    target.settle()
    _copy_progress(source, target, requested)
    return Copied(count, requested, _copy_groups(source, target, requested))


def check_topics(source: StoreParts, topics: Iterable[str]) -> None:
    """Raise `InvalidMessage` for a topic that the source does not have."""
    known = {*source.lookup.topics(), *source.topics.names()}
    for topic in topics:
        if topic not in known:
            raise InvalidMessage(f"no topic {topic!r}; there are {', '.join(sorted(known)) or 'none'}")


def _prepare(source: StoreParts, target: StoreParts, admission: Admission, topic: str) -> None:
    """Create the topic in the target as the source's topics.json describes it."""
    config = source.topics.get(topic)
    if config is not None:
        target.topics.put(config)
    queue_ids = source.lookup.queue_ids(topic)
    admission.admit(topic, max(queue_ids, default=0) + 1)
    if source.derived.is_batch_topic(topic):
        admission.set_attributes(topic, {QUEUE_TYPE: BATCH_QUEUES})


def _records(source: StoreParts, requested: set[str]) -> Iterable[StoredMessage]:
    """Return the records of these topics in log order; with a running writer, those dispatched so far."""
    end = source.dispatch_limit() if source.writable else None
    return (message for message in source.log.messages(None, end) if message.topic in requested)


def _copy_progress(source: StoreParts, target: StoreParts, topics: list[str]) -> None:
    """Copy how far delayed messages and timers are delivered, so that whoever opens the copy delivers none again.

    Deliveries that the file of the source does not count, and those of timers, are found in the copied log.
    """
    if SCHEDULE_TOPIC in topics:
        levels = DelayOffsets(source.disk, source.paths.config).levels()
        table = DelayOffsets(target.disk, target.paths.config)
        for level, offset in levels.items():
            table.set(level, max(0, min(offset, target.lookup.end_of(SCHEDULE_TOPIC, level - 1))))
        for level, offset in delivered_since(target, table).items():
            table.set(level, offset)
        table.persist()
    queue = target.queues.get(TIMER_TOPIC, 0)
    if TIMER_TOPIC in topics and queue is not None:
        target.log.flush()
        files = LogFiles(target.disk, LogPaths.parse(target.disk, target.paths.commit_log).folders)
        rebuild_timers(target.disk, target.paths, files, queue, keeps=False)


def _copy_groups(source: StoreParts, target: StoreParts, topics: list[str]) -> list[str]:
    """Copy the offsets and subscription entries of the groups that have read the topics; return the groups.

    Offsets are clamped to the end of the copied queue: a queue whose records all left the log begins at 0 in the copy. They are
    written to the same file as in the source, because a broker reads only one of the two offset files.
    """
    offsets = source.consumer_offsets()  # with a writer, includes commits not yet in the file
    groups = SubscriptionGroups(source.disk, source.paths.config)
    copied_groups = SubscriptionGroups(target.disk, target.paths.config)
    found = sorted({group for topic in topics for group in offsets.groups(topic)})
    table = type(offsets)(target.disk, target.paths.config)
    for group in found:
        for topic in topics:
            for queue_id, offset in offsets.offsets_of(topic, group).items():
                table.commit(topic, group, queue_id, min(offset, target.lookup.end_of(topic, queue_id)))
        known = groups.get(group)
        if known is not None:
            copied_groups.put(known)
    copied_groups.persist()
    table.persist()
    return found
