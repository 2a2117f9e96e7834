"""Whether batch queues say what the log says: every record of a topic that has them against the next unit of its queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commitlog import StoredMessage
from commitlog.findings import Finding
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from commitlog.walk import LogFiles
from consumequeue import BatchQueues, BatchUnit

from ..side_queues import batch_unit

PROBLEMS_MAX = 100
Lane = tuple[str, int]


def batch_problems(files: LogFiles, batch: BatchQueues, is_batch_topic: Callable[[str], bool]) -> Iterator[Finding]:
    """Units that are missing, wrong, or of no record; at most so many."""
    units: dict[Lane, Iterator[BatchUnit]] = {}
    low = files.files[0].start_offset if files.files else 0
    found = 0
    for message in files.messages():
        if found == PROBLEMS_MAX or isinstance(message, Finding) or not _is_in_one(message, is_batch_topic):
            continue
        lane = message.topic, message.queue_id
        if lane not in units:
            units[lane] = _units(batch, lane, low)
        wanted, unit = batch_unit(message), next(units[lane], None)
        if unit != wanted:
            found += 1
            where = f"{batch.folder}/{message.topic}/{message.queue_id}"
            yield Finding(where, message.physical_offset, "batch_unit", str(wanted), "none" if unit is None else str(unit))
            units[lane] = _units(batch, lane, message.physical_offset + 1)  # in step again
    for lane, rest in units.items():
        if (ahead := next(rest, None)) is not None:
            yield Finding(
                f"{batch.folder}/{lane[0]}/{lane[1]}", ahead.physical_offset, "dangling_batch_unit", "a record", str(ahead)
            )


def _is_in_one(message: StoredMessage, is_batch_topic: Callable[[str], bool]) -> bool:
    is_queued = message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT)
    return is_queued and is_batch_topic(message.topic) and batch_unit(message).is_valid


def _units(batch: BatchQueues, lane: Lane, low: int) -> Iterator[BatchUnit]:
    """Those of records that the log still has."""
    queue = batch.get(*lane)
    return (unit for unit in queue.units() if unit.physical_offset >= low) if queue is not None else iter(())
