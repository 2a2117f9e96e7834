"""The row filters of the Spark source: from its options, and from the start position of a streaming query."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commitlog.row_filter import IN, MATCHES, Condition, RowFilter

from ..options import ReadOptions

if TYPE_CHECKING:
    from .start_position import StartPosition


def filter_of(options: ReadOptions) -> RowFilter:
    """Return the filter that the options describe."""
    made = []
    if options.topics is not None:
        made.append(Condition("topic", IN, tuple(sorted(options.topics))))
    if options.topic_pattern is not None:
        made.append(Condition("topic", MATCHES, options.topic_pattern))
    if options.queue_ids is not None:
        made.append(Condition("queue_id", IN, tuple(sorted(options.queue_ids))))
    if options.begin_ms is not None:
        made.append(Condition("store_timestamp_ms", "ge", options.begin_ms))
    if options.end_ms is not None:
        made.append(Condition("store_timestamp_ms", "lt", options.end_ms))
    keys = None if options.key is None else frozenset([options.key])
    return RowFilter(tuple(made), options.start.queues, options.stop.queues, options.queue_times, options.assigned, keys)


def filter_from(row_filter: RowFilter, starting: StartPosition) -> RowFilter:
    """Return the filter limited to the start position of a streaming query."""
    time = [] if starting.timestamp_ms is None else [Condition("store_timestamp_ms", "ge", starting.timestamp_ms)]
    return replace(row_filter.plus(time), queue_starts=starting.queues, queue_times=starting.queue_times)
