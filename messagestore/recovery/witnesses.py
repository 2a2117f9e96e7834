"""What the parts of a folder say about how far its log reaches.

Queue units, index headers, `clean.json` and the checkpoint each name messages, or the time of one.  If one of them names a
message behind the last record, the log has lost its end: a file was removed, is an older copy, or is on a disk that is not
mounted.  The positions behind the end must not be used again while such a part is there: it would lead to other messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from commitlog import CommitLog
from consumequeue import BatchQueues, ConsumeQueues
from indexfile import IndexFiles

from ..checkpoint import Checkpoint
from .log_end import CleanStop, LogEnd, clean_path

FILES_WITH_TIMES = 2  # files at the end of the log in which a record as new as the checkpoint is looked for


class Claim(NamedTuple):
    """One part of a folder that names something behind the end of the log."""

    file: str
    names: str  # what it names


def claims_behind(
    root: str, log_end: LogEnd, queues: ConsumeQueues, batch: BatchQueues, index: IndexFiles | None,
    clean_stop: CleanStop | None,
) -> Iterator[Claim]:  # fmt: skip
    """Yield the parts that name a message behind the end of the log."""
    end = log_end.offset
    for queue in queues:
        if queue.max_physical_offset > end:
            yield Claim(queue.folder, f"a record that ends at {queue.max_physical_offset}")
    for batch_queue in batch:
        if batch_queue.max_physical_offset >= end:
            yield Claim(batch_queue.folder, f"a record at {batch_queue.max_physical_offset}")
    offset = last_indexed(index)
    if index is not None and offset >= max(end, 0) and not know_last_record(queues, batch, log_end.last_offset):
        yield Claim(index.files[-1].path, f"a record at {offset}")
    if clean_stop is not None and clean_stop.end_offset > end:
        yield Claim(clean_path(root), f"a log that ended at {clean_stop.end_offset}")


def know_last_record(queues: ConsumeQueues, batch: BatchQueues, last_offset: int) -> bool:
    """Return whether a queue has a unit of the log's last record.

    RocketMQ cuts queues, but not the index, when it finds a torn tail.  So items behind the end say nothing if the queues agree
    with the log.
    """
    ends = [queues.max_physical_offset(), *(queue.max_physical_offset + 1 for queue in batch)]
    return 0 <= last_offset < max(ends)


def last_indexed(index: IndexFiles | None) -> int:
    """Return the physical offset of the last item, -1 without one that header and item agree on."""
    header = index.last_header() if index is not None else None
    if index is None or header is None or not header.items_used or index.has_other_sizes:
        return -1
    last = index.last_item(header.end_physical_offset + 1)
    return last[1] if last is not None and last[1] == header.end_physical_offset else -1


def lacks_synced_records(log: CommitLog, end: LogEnd, checkpoint: Checkpoint) -> bool:
    """Return whether the checkpoint says that a record was synced which is newer than all that are left.

    Times may go back when a clock is set, so every record of the last files is looked at before the checkpoint is believed.
    """
    synced_ms = checkpoint.values.log_timestamp_ms
    if synced_ms <= end.store_timestamp_ms:
        return False
    files = [file for file in log.queue.files if file.start_offset < end.offset][-FILES_WITH_TIMES:]
    at = files[0].start_offset if files else end.offset
    while 0 <= (at := log.find_record(at)) < end.offset:
        message = log.message_at(at)
        if message is not None and message.store_timestamp_ms >= synced_ms:
            return False
        at += message.size if message is not None else 1
    return True
