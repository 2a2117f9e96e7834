"""Compare batch queues with the log: each record of a batch topic must match the next unit of its queue."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Iterator

from commitlog import StoredMessage
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from commitlog.walk import LogFiles
from consumequeue import BatchQueues, BatchUnit
from storebytes.finding import Finding

from ..broker.config.topics import Topics
from ..write.derived_queues import batch_unit
from .excluded_topics import has_topics, topics_of_batches

PROBLEMS_MAX = 100  # problems reported for one queue
NO_NUMBERS = "batch_numbers"  # a kind of problem that a rebuild does not fix
QueueKey = tuple[str, int]


def batch_problems(
    files: LogFiles, batch: BatchQueues, is_batch_topic: Callable[[str], bool], topics: Topics | None = None
) -> Iterator[Finding]:  # fmt: skip
    """Yield missing, wrong and dangling units, and records with invalid numbers.

    At most `PROBLEMS_MAX` wrong units are reported per queue. A queue without records whose topic the table `topics` lacks is
    dangling too: RocketMQ does not load the store.
    """
    units: dict[QueueKey, Iterator[BatchUnit]] = {}
    low = files.files[0].start_offset if files.files else 0
    found: Counter[QueueKey] = Counter()
    for message in batch_messages(files, is_batch_topic):
        queue_key, wanted = (message.topic, message.queue_id), batch_unit(message)
        where = f"{batch.folder}/{message.topic}/{message.queue_id}"
        if not wanted.is_valid:
            yield Finding(where, message.physical_offset, NO_NUMBERS, "the numbers of its messages", "none that can be")
            # skip a unit written before the record was damaged
            units[queue_key] = _units(batch, queue_key, message.physical_offset + 1)
            continue
        if queue_key not in units:
            units[queue_key] = _units(batch, queue_key, low)
        unit = next(units[queue_key], None) if found[queue_key] < PROBLEMS_MAX else wanted
        if unit != wanted:
            found[queue_key] += 1
            yield Finding(where, message.physical_offset, "batch_unit", str(wanted), "none" if unit is None else str(unit))
            units[queue_key] = _units(batch, queue_key, message.physical_offset + 1)  # resynchronize behind this record
    others = _without_records(files, batch, units.keys(), low)
    for queue_key, rest in (units | others).items():
        where = f"{batch.folder}/{queue_key[0]}/{queue_key[1]}"
        if found[queue_key] < PROBLEMS_MAX and (ahead := next(rest, None)) is not None:
            yield Finding(where, ahead.physical_offset, "dangling_batch_unit", "a record", str(ahead))
        elif queue_key in others and topics is not None and has_topics(topics) and topics.get(queue_key[0]) is None:
            yield Finding(where, 0, "dangling_batch_queue", "a topic in the table of topics", "none")


def _without_records(
    files: LogFiles, batch: BatchQueues, known: Container[QueueKey], low: int
) -> dict[QueueKey, Iterator[BatchUnit]]:  # fmt: skip
    """Return the units of other queues than the known ones that point into the log.

    Such a queue was copied here: RocketMQ does not load a store with batch queues of a topic that has no attribute for them.
    """
    others = [(queue.topic, queue.queue_id) for queue in batch if (queue.topic, queue.queue_id) not in known]
    end = files.end().offset if others else 0
    return {queue_key: (unit for unit in _units(batch, queue_key, low) if unit.physical_offset < end) for queue_key in others}


def batch_messages(files: LogFiles, is_batch_topic: Callable[[str], bool]) -> Iterator[StoredMessage]:
    """Yield the records that belong in batch queues, in log order."""
    for message in files.messages():
        if isinstance(message, Finding) or not is_batch_topic(message.topic):
            continue
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            yield message


def batch_topics(topics: Topics | None, batch: BatchQueues, *, searches_log: bool) -> Callable[[str], bool] | None:
    """Return a predicate for topics with batch queues, as `with_batch_queues` does.

    None if there are no such topics; the log need not be scanned then. `searches_log` is whether it may have batches of topics
    that neither the table nor a folder names.
    """
    configs = [topics.get(name) for name in topics.names()] if topics is not None else []
    named = {config.name for config in configs if config is not None and config.is_batch}
    if searches_log and not has_topics(topics):
        named |= topics_of_batches(batch.disk, os.path.dirname(batch.folder))
    return (lambda topic: topic in named or batch.knows(topic)) if named or batch.is_used else None


def _units(batch: BatchQueues, queue_key: QueueKey, low: int) -> Iterator[BatchUnit]:
    """Return the units of records that the log still has."""
    queue = batch.get(*queue_key)
    return (unit for unit in queue.units() if unit.physical_offset >= low) if queue is not None else iter(())
