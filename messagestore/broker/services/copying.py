"""Copy selected topics into a new store, which may have files of other sizes.

Records are appended in log order with all their fields: queue, queue offset, times, hosts, flags, properties. Committed
consumer offsets therefore stay valid. They are copied as well, with what the files of `config/` have about the topics and their
groups, and with the progress of delayed messages, timers and transactions, if their topics are copied, and what groups in POP
mode have in hand of the topics.

Queues are derived from the copied log, so those of the source may be in RocksDB, and may lack units.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from commitlog import LogPaths, PutStatus
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK
from commitlog.topic_names import HALF_TOPIC, SCHEDULE_TOPIC, is_virtual_topic
from commitlog.walk import LogFiles
from storageio import InvalidMessage, MissingExtra, PutRejected

from ...compaction import copy_compacted
from ...derive.kinds import is_dispatched
from ...folder_contents import POP_STORE, queues_databases
from ...property_names import TRANSACTION_GROUP
from ...rocksdb.database import open_database
from ...rocksdb.pop_rows import PopRow, stored_pop_rows, write_pop_rows
from ...rocksdb.queues import last_ends
from ...timers.layout import TIMER_TOPIC
from ...timers.rebuild_timers import rebuild_timers
from ...timers.timer_log import TimerLog
from ...timers.undelivered import WaitingTimers
from ..config.config_files import ConfigFile, Document
from ..config.consumer_offsets import JOINT
from ..config.delay_offsets import DelayOffsets
from ..config.subscription_groups import SubscriptionGroups
from ..config.topics import BATCH_QUEUES, QUEUE_TYPE
from .delay_resume import delivered_since

if TYPE_CHECKING:
    from commitlog import Message, PutResult, StoredMessage

    from ...parts import StoreParts
    from ...write.admission import Admission


# Tables by topic, or by topic and group, that are copied as they are: a broker's settings and state of its consumers.
_TABLES = (
    ("consumerFilter.json", "filterDataByTopic"),
    ("messageRequestMode.json", "messageRequestModeMap"),
    ("consumerOrderInfo.json", "table"),  # what ordered consumers in POP mode have taken and acknowledged
)


class Copied(NamedTuple):
    """A report of what was copied.

    `unread` names parts of the folder that the copy lacks, because the package that reads them is missing.
    """

    messages: int
    topics: list[str]
    groups: list[str]
    unread: list[str]


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
    topics: Iterable[str] | None,
    progress: Callable[[int], None] | None = None,
) -> Copied:
    """Copy all records, offsets and groups of these topics, or of all.

    `target` is new and uses `clock`. Queues of other topics' records come with these. Raises `PutRejected` if a put fails.
    """
    progress_before = _Progress(source)  # later, a writer may count what is behind the copied end of the log
    queues = _queues(source)
    requested = list(dict.fromkeys(topics)) if topics is not None else sorted(queues)
    for topic in requested:
        if not is_virtual_topic(topic):
            _prepare(source, target, admission, topic, queues.get(topic, ()))
    records = _CopiedRecords(source, set(requested), progress_before)
    count = 0
    for message in records.requested():
        clock.now_ms = message.store_timestamp_ms
        offsets = target.offsets
        if is_dispatched(message):
            offsets.set_next_offset(message.topic, message.queue_id, message.queue_offset)
        result = target.log.appender.append(records.moved(message), message.queue_id)
        if result.status is not PutStatus.PUT_OK:
            raise PutRejected(result.status, str(result.reason), count) from result.cause
        records.add(message, result)
        count += 1
        if progress is not None:
            progress(1)
    target.settle()
    _copy_progress(source, target, requested, progress_before, records)
    _copy_tables(source, target, requested)
    if rows := [row for row in progress_before.pop_rows if row.topic in set(requested)]:
        write_pop_rows(target.disk, target.paths.root, rows)
    if not is_used_by_broker(source):
        copy_compacted(source.disk, source.paths.root, target.paths.root, requested)
    groups = _copy_groups(source, target, requested, progress_before, every=topics is None)
    return Copied(count, requested, groups, progress_before.unread)


def check_topics(source: StoreParts, topics: Iterable[str]) -> None:
    """Raise `InvalidMessage` for a topic that the source does not have."""
    known = _queues(source)
    for topic in topics:
        if topic not in known:
            raise InvalidMessage(f"no topic {topic!r}; there are {', '.join(sorted(known)) or 'none'}")


def _queues(source: StoreParts) -> dict[str, list[int]]:
    """Return the ids of the queues with messages, in files or in RocksDB, of every topic; topics.json may have more."""
    found = {topic: source.lookup.queue_ids(topic) for topic in source.lookup.topics()}
    for name in queues_databases(source.disk, source.paths.root) if not found else ():  # else they are in files as well
        with open_database(os.path.join(source.paths.root, name)) as database:
            for topic, queue_id in last_ends(database):
                found.setdefault(topic, []).append(queue_id)
    return {topic: [] for topic in source.topics.names()} | found


def _prepare(source: StoreParts, target: StoreParts, admission: Admission, topic: str, queue_ids: Iterable[int]) -> None:
    """Create the topic in the target as the source's topics.json describes it."""
    config = source.topics.get(topic)
    if config is not None:
        target.topics.put(config)
    admission.admit(topic, max(queue_ids, default=0) + 1)
    if source.derived.is_batch_topic(topic):
        admission.set_attributes(topic, {QUEUE_TYPE: BATCH_QUEUES})


class _Progress:
    """How far the source has delivered delayed messages, and its groups have read."""

    def __init__(self, source: StoreParts) -> None:
        """Read it; with a writer it includes commits that are not in the file yet."""
        self.levels = DelayOffsets(source.disk, source.paths.config).levels()
        self.offsets = source.consumer_offsets()
        self.document = self.offsets.document()
        # after the offsets: of a running broker, a message that is taken now comes twice, and none is lost
        self.pop_rows: list[PopRow] = []
        self.unread: list[str] = []
        try:
            self.pop_rows = stored_pop_rows(source.disk, source.paths.root)
        except MissingExtra:
            self.unread.append(POP_STORE)
        self.halves_from = self.offsets.get(HALF_TOPIC, TRANSACTION_GROUP, 0) or 0


class _CopiedRecords:
    """The records of the source, and what the target needs to know of those that are not copied or that lie elsewhere."""

    def __init__(self, source: StoreParts, topics: set[str], progress: _Progress) -> None:
        """Create it for these topics; nothing is read yet."""
        self._source = source
        self._topics = topics
        self._timers = WaitingTimers() if TIMER_TOPIC in topics else None
        self._halves_from = progress.halves_from
        self._halves: dict[int, int] = {}  # physical offset of a half message in the source -> in the target

    def requested(self) -> Iterable[StoredMessage]:
        """Yield the records of the topics in log order; with a running writer, those dispatched so far."""
        end = self._source.dispatch_limit() if self._source.writable else None
        for message in self._source.log.messages(None, end):
            if self._timers is not None:
                self._timers.add(message)
            if message.topic in self._topics:
                yield message

    def moved(self, message: StoredMessage) -> Message:
        """Return the message of a record; a committed one names its half message where that is in the target."""
        made = message.to_message()
        if self._halves and message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
            at = message.prepared_transaction_offset
            made.prepared_transaction_offset = self._halves.get(at, at)
        return made

    def add(self, message: StoredMessage, copied: PutResult) -> None:
        """Keep where a half message is now; those that the group has passed are decided, and nobody asks for them."""
        if message.topic == HALF_TOPIC and message.queue_offset >= self._halves_from:
            self._halves[message.physical_offset] = copied.physical_offset

    def waiting_timers(self) -> set[int]:
        """Return the queue offsets of the timers without a delivery, also of those whose topic is not copied."""
        return {timer.queue_offset for timer in self._timers.timers()} if self._timers is not None else set()


def is_used_by_broker(source: StoreParts) -> bool:
    """Return whether another process has the store, which may be a broker that replaces compacted files at any time."""
    return not source.writable and source.disk.is_locked(os.path.join(source.paths.root, "lock"))


def _copy_progress(
    source: StoreParts, target: StoreParts, topics: list[str], progress: _Progress, records: _CopiedRecords
) -> None:  # fmt: skip
    """Copy how far delayed messages and timers are delivered, so that whoever opens the copy delivers none again.

    Deliveries of delayed messages that the file of the source does not count are found in the copied log, those of timers in
    the source's.
    """
    if SCHEDULE_TOPIC in topics:
        table = DelayOffsets(target.disk, target.paths.config)
        for level, offset in progress.levels.items():
            table.set(level, max(0, min(offset, target.lookup.end_of(SCHEDULE_TOPIC, level - 1))))
        for level, offset in delivered_since(target, table).items():
            table.set(level, offset)
        table.persist()
    queue = target.queues.get(TIMER_TOPIC, 0)
    if TIMER_TOPIC in topics and queue is not None:
        target.log.flush()
        files = LogFiles(target.disk, LogPaths.parse(target.disk, target.paths.commit_log).folders)
        size = target.config.mapped_file_size_timer_log or TimerLog(source.disk, source.paths.root).file_size_bytes
        waiting = records.waiting_timers()
        rebuild_timers(target.disk, target.paths, files, queue, keeps=False, log_file_size=size, waiting=waiting)


def _copy_tables(source: StoreParts, target: StoreParts, topics: list[str]) -> None:
    """Copy the entries of these topics in the tables that only a broker uses. Raises `StoreCorrupt` for an unreadable file."""
    for name, member in _TABLES:
        document = ConfigFile(source.disk, os.path.join(source.paths.config, name)).load().document
        kept = _of_topics(document.get(member), topics)
        if kept:
            ConfigFile(target.disk, os.path.join(target.paths.config, name)).save(document | {member: kept})


def _copy_groups(
    source: StoreParts, target: StoreParts, topics: list[str], progress: _Progress, *, every: bool
) -> list[str]:  # fmt: skip
    """Copy the offsets and subscription entries of the groups that have read the topics; return the groups.

    With `every`, groups without an offset are copied as well. Offsets are clamped to the end of the copied queue: a queue whose
    records all left the log begins at 0 in the copy. They are written to the same file as in the source, because a broker reads
    only one of the two offset files.
    """
    document = progress.document
    kept = {name: _of_topics(document.get(name), topics) for name in ("offsetTable", "lmqOffsetTable") if name in document}
    if any(kept.values()):
        table = type(progress.offsets)(target.disk, target.paths.config)
        table.replace(document | kept)
        table.clamp(target.lookup.end_of)
        table.persist()
    found = sorted({group for topic in topics for group in progress.offsets.groups(topic)})
    groups = SubscriptionGroups(source.disk, source.paths.config).document()
    entries = {name: entry for name, entry in groups["subscriptionGroupTable"].items() if every or name in found}
    forbidden = groups["forbiddenTable"]
    if entries:
        copied = SubscriptionGroups(target.disk, target.paths.config)
        kept_forbidden = {name: topics for name, topics in forbidden.items() if name in entries}
        copied.replace(groups | {"subscriptionGroupTable": entries, "forbiddenTable": kept_forbidden})
        copied.persist()
    return found


def _of_topics(table: object, topics: Sequence[str]) -> Document:
    """Return the entries of a table whose key is one of the topics, alone or before a group."""
    names = set(topics)
    found = table.items() if isinstance(table, dict) else ()
    return {key: entry for key, entry in found if str(key).partition(JOINT)[0] in names}
