"""Reading queues whose units hold many messages (section 2.6): a reader gets one record for each batch."""

from __future__ import annotations

from collections.abc import Iterator

from consumequeue import BatchQueue, BatchUnit


def batches(queue: BatchQueue, offset: int) -> Iterator[BatchUnit]:
    """Units from the one that holds a queue offset on."""
    for index in range(queue.index_of(offset), queue.stop_index):
        unit = queue.unit(index)
        if unit is None:
            return
        yield unit


def bounds(queue: BatchQueue) -> tuple[int, int]:
    """(first queue offset, next one); 0 and 0 without units."""
    return max(queue.min_offset, 0), queue.max_offset
