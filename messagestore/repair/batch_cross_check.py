"""Compare batch queues with the log: each record of a batch topic must match the next unit of its queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from commitlog import StoredMessage
from commitlog.findings import Finding
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from commitlog.walk import LogFiles
from consumequeue import BatchQueues, BatchUnit

from ..broker.config.topics import Topics
from ..write.derived_queues import batch_unit

PROBLEMS_MAX = 100  # problems reported for one queue
NO_NUMBERS = "batch_numbers"  # a kind of problem that a rebuild does not fix
QueueKey = tuple[str, int]


def batch_problems(files: LogFiles, batch: BatchQueues, is_batch_topic: Callable[[str], bool]) -> Iterator[Finding]:
    """Yield missing, wrong and dangling units, and records with invalid numbers.

    At most `PROBLEMS_MAX` wrong units are reported per queue.
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
    for queue_key, rest in units.items():
        if found[queue_key] < PROBLEMS_MAX and (ahead := next(rest, None)) is not None:
            yield Finding(
                f"{batch.folder}/{queue_key[0]}/{queue_key[1]}",
                ahead.physical_offset,
                "dangling_batch_unit",
                "a record",
                str(ahead),
            )


def batch_messages(files: LogFiles, is_batch_topic: Callable[[str], bool]) -> Iterator[StoredMessage]:
    """Yield the records that belong in batch queues, in log order."""
    for message in files.messages():
        if isinstance(message, Finding) or not is_batch_topic(message.topic):
            continue
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            yield message


def batch_topics(topics: Topics | None, batch: BatchQueues) -> Callable[[str], bool] | None:
    """Return a predicate for topics with batch queues, by attribute or by folder; without a readable table, by folder.

    None if there are no such topics; the log need not be scanned then.
    """
    configs = [topics.get(name) for name in topics.names()] if topics is not None else []
    named = {config.name for config in configs if config is not None and config.is_batch}
    return (lambda topic: topic in named or batch.knows(topic)) if named or batch.is_used else None


def _units(batch: BatchQueues, queue_key: QueueKey, low: int) -> Iterator[BatchUnit]:
    """Return the units of records that the log still has."""
    queue = batch.get(*queue_key)
    return (unit for unit in queue.units() if unit.physical_offset >= low) if queue is not None else iter(())
