"""`top` of a RocketMQ store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count as numbers
from typing import Any

from messagestore import MessageStore, Metrics
from messagestore.shared.store import workers
from storageio import REAL_DISK, process_text

from ..output import Answer, Table, count_text, size_text, time_text
from .rocketmq_folder import RocketmqFolder

TOPIC_KEYS = ("topic", "queues", "messages", "messages_per_s")
GROUP_KEYS = ("group", "topic", "lag", "acknowledged_per_s", "oldest_s", "deliveries", "unacknowledged", "processes")
TOPIC_HEADERS = (*TOPIC_KEYS[:-1], "put/s")
GROUP_HEADERS = ("group", "topic", "lag", "acknowledged/s", "oldest", "deliveries", "in hand", "workers")
Row = dict[str, Any]


def views(folder: RocketmqFolder, interval_s: float, count: int | None) -> Iterator[Answer]:
    """Yield a view after each interval."""
    with folder.open_store() as store:
        before = store.metrics()
        for _ in numbers() if count is None else range(count):
            REAL_DISK.sleep(interval_s)
            now = store.metrics()
            yield view(folder, store, before, now)
            before = now


def view(folder: RocketmqFolder, store: MessageStore, before: Metrics, now: Metrics) -> Answer:
    """Return the state of a store, with rates since `before`."""
    seconds = max(0.001, (now.time_ms - before.time_ms) / 1000)
    topics, groups = _topics(before, now, seconds), _groups(before, now, seconds)
    _add_oldest(store, now, groups)
    _add_workers(folder, groups)
    facts: Row = {
        "time_ms": now.time_ms,
        "in_use": folder.is_in_use,
        "messages": sum(row["messages"] for row in topics),
        "messages_per_s": _rate(now.messages_put - before.messages_put, seconds),
        "bytes_per_s": _rate(now.dispatched_offset - before.dispatched_offset, seconds),
        "log_bytes": now.log_bytes,
        "queue_bytes": now.queue_bytes,
        "index_bytes": now.index_bytes,
        "free_bytes": now.free_bytes,
        "topics": topics,
        "groups": groups,
    }
    tables = [
        Table(TOPIC_HEADERS, [list(row.values()) for row in topics]), Table(GROUP_HEADERS, [_cells(row) for row in groups])
    ]  # fmt: skip
    return Answer(facts, [*_heading(folder, facts), *(table for table in tables if table.rows)], folder.code)


def _heading(folder: RocketmqFolder, facts: Row) -> list[str]:
    state = "in use" if facts["in_use"] else "not in use"
    return [
        f"{folder.target.path}  {time_text(facts['time_ms'])}  {state}",
        f"{count_text(facts['messages'], 'message')}, {facts['messages_per_s']} put/s, {size_text(facts['bytes_per_s'])}/s",
        f"files: log {size_text(facts['log_bytes'])}, queues {size_text(facts['queue_bytes'])}, "
        f"index {size_text(facts['index_bytes'])}; free {size_text(facts['free_bytes'])}",
    ]


def _rate(difference: int, seconds: float) -> int:
    """Return a number a second; 0 after a recovery cut the log."""
    return round(max(0, difference) / seconds)


def _topics(before: Metrics, now: Metrics, seconds: float) -> list[Row]:
    """Return one row a topic, the busiest first."""
    put_before: defaultdict[str, int] = defaultdict(int)
    for queue in before.queues:
        put_before[queue.topic] += queue.max_offset
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for queue in now.queues:
        row = sums[queue.topic]
        row[0], row[1], row[2] = row[0] + 1, row[1] + queue.messages, row[2] + queue.max_offset
    rows = [
        (topic, queues, messages, _rate(put - put_before[topic], seconds)) for topic, (queues, messages, put) in sums.items()
    ]
    return [dict(zip(TOPIC_KEYS, row, strict=True)) for row in sorted(rows, key=lambda row: (-row[3], -row[2], row[0]))]


def _groups(before: Metrics, now: Metrics, seconds: float) -> list[Row]:
    """Return one row a group and topic, the largest lag first."""
    acked_before: defaultdict[tuple[str, str], int] = defaultdict(int)
    for group in before.groups:
        acked_before[group.group, group.topic] += group.committed_offset
    sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for group in now.groups:
        row = sums[group.group, group.topic]
        row[0], row[1] = row[0] + group.lag, row[1] + group.committed_offset
    rows = [(*pair, lag, _rate(acked - acked_before[pair], seconds)) for pair, (lag, acked) in sums.items()]
    return [dict(zip(GROUP_KEYS, row, strict=False)) for row in sorted(rows, key=lambda row: (-row[2], row[0], row[1]))]


def _add_oldest(store: MessageStore, now: Metrics, groups: list[Row]) -> None:
    """Add the age of the oldest message that a group did not acknowledge, and how often it was delivered before."""
    lacking = [group for group in now.groups if group.lag]
    for row in groups:
        waiting = []
        for one in lacking:
            if (one.group, one.topic) == (row["group"], row["topic"]):
                start = max(one.committed_offset, store.min_offset(one.topic, one.queue_id))
                waiting += list(store.read(one.topic, one.queue_id, start, start + 1))
        oldest = min(waiting, key=lambda message: message.store_timestamp_ms, default=None)
        row["oldest_s"] = None if oldest is None else max(0, now.time_ms - oldest.store_timestamp_ms) // 1000
        row["deliveries"] = None if oldest is None else oldest.reconsume_times


def _add_workers(folder: RocketmqFolder, groups: list[Row]) -> None:
    """Add the processes that consume, and how many messages they have in hand, if the store is shared."""
    found = workers(folder.target.path)
    for row in groups:
        mine = [one for one in found if (one.group, one.topic) == (row["group"], row["topic"])]
        row["unacknowledged"] = sum(one.unacknowledged for one in mine)
        row["processes"] = sorted({one.process_id for one in mine})


def _cells(row: Row) -> list[Any]:
    """Return a row of the table of groups."""
    names = "; ".join(process_text(number).rstrip(",") for number in row["processes"])
    oldest = "" if row["oldest_s"] is None else f"{row['oldest_s']} s"
    deliveries = "" if row["deliveries"] is None else row["deliveries"]
    shown = [row["group"], row["topic"], row["lag"], row["acknowledged_per_s"], oldest, deliveries]
    return [*shown, row["unacknowledged"], names or "none known"]
