"""`ls` on a RocketMQ folder: from its queues, or from the log where there are none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from brokerstore.identify import FolderKind
from commitlog import StoredMessage
from commitlog.findings import Finding
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from storageio import REAL_DISK, DiskError, StoreError

from .codes import CLEAN, PROBLEM
from .log_commands import good_messages
from .output import emit_json, finding_text, say, table
from .target import Target

LIGHT_PREFIX = "%LMQ%"
KEYS = ("topic", "queue_id", "min_offset", "max_offset", "messages")
Row = dict[str, Any]


def list_queues(target: Target, as_json: bool, only: str | None = None) -> int:
    """Every queue, or those of one topic; then the topics as topics.json has them, where there is one."""
    told: list[Finding] = []
    incomplete: Row = {}
    files = target.files()
    if target.kind is FolderKind.ROCKETMQ and target.has("consumequeue"):
        for finding in files.check():
            if finding.is_problem:
                told.append(finding)
                say(f"brokerstore: {finding_text(finding)}")
        rows = list(_rows_of_queues(target, max(0, files.files[0].start_offset if files.files else 0), told))
        incomplete = _incomplete(target)
    else:
        rows = _rows_of_log(target, told)
    topics = _topics(target)
    if only is not None:
        rows, topics = ([one for one in found if one["topic"] == only] for found in (rows, topics))
    if as_json:
        emit_json({"queues": rows, "topics": topics} | incomplete)
    else:
        table(KEYS, [list(row.values()) for row in rows])
        seen = {row["topic"] for row in rows}
        without = [[topic["topic"]] for topic in topics if topic["topic"] not in seen]
        if without:
            table(("topics without a queue",), without)
    return PROBLEM if told else CLEAN


def _incomplete(target: Target) -> Row:
    """What the answer adds where a killed writer left messages that no queue has yet; the store is opened only then."""
    if not target.has("abort") or target.is_in_use:
        return {}
    from .queue_commands import incomplete_keys, open_store

    try:
        with open_store(target) as store:
            return incomplete_keys(store)
    except StoreError as error:
        say(f"brokerstore: incomplete: the queues were not compared with the log: {error}")
        return {"undispatched_messages": None}


def _row(topic: str, queue_id: int, low: int, high: int, messages: int) -> Row:
    return dict(zip(KEYS, (topic, queue_id, low, high, messages), strict=True))


def _rows_of_queues(target: Target, log_min_offset: int, told: list[Finding]) -> Iterator[Row]:
    """From the queue files; a queue that cannot be read is said, and the others are shown."""
    from consumequeue import ConsumeQueues, find_file_size
    from consumequeue.layout import FILE_SIZE_DEFAULT

    folder = os.path.join(target.path, "consumequeue")
    size = target.settings.get("mapped_file_size_consume_queue") or find_file_size(REAL_DISK, folder) or FILE_SIZE_DEFAULT
    queues = ConsumeQueues(REAL_DISK, folder, writable=False, file_size_bytes=size)
    try:
        for topic in queues.topics():
            for queue_id in queues.queue_ids(topic):
                queue = queues.get(topic, queue_id)
                assert queue is not None
                try:
                    low = queue.correct_min_offset(log_min_offset)
                    yield _row(topic, queue_id, low, queue.max_offset, queue.max_offset - low)
                except DiskError:
                    raise
                except StoreError as error:
                    told.append(Finding(queue.folder, 0, "unreadable", "queue files", str(error)))
                    say(f"brokerstore: {error}")
    finally:
        queues.close()


def _rows_of_log(target: Target, told: list[Finding]) -> list[Row]:
    """What the log dispatches: prepared and rolled-back messages are in no queue, those of deleted topics neither."""
    found: dict[tuple[str, int], list[int]] = {}
    is_deleted = _deleted(target)
    for message in good_messages(target.files(), told):
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            for topic, queue_id, number in _places(message):
                row = found.setdefault((topic, queue_id), [number, 0, 0])
                row[2] += 1
                row[1] = row[0] + row[2] if topic.startswith(LIGHT_PREFIX) else number + 1  # light queues close gaps
    return [_row(*lane, *row) for lane, row in sorted(found.items()) if not is_deleted(lane[0])]


def _places(message: StoredMessage) -> Iterator[tuple[str, int, int]]:
    """Its own queue, and the light queues that it names."""
    yield message.topic, message.queue_id, message.queue_offset
    if b"INNER_MULTI_DISPATCH" in message.properties_raw:
        from messagestore.write.lmq_units import light_places

        for name, number in dict(light_places(message)).items():  # a queue named twice gets the record once
            yield name, 0, number


def _deleted(target: Target) -> Any:
    if target.kind is not FolderKind.ROCKETMQ or not target.has("config"):
        return lambda _topic: False
    from messagestore.broker.config.topics import Topics, is_deleted

    topics = Topics(REAL_DISK, os.path.join(target.path, "config"))
    return lambda topic: is_deleted(topics, topic)


def _topics(target: Target) -> list[Row]:
    """What topics.json says."""
    if target.kind is not FolderKind.ROCKETMQ or not target.has("config"):
        return []
    from messagestore.broker.config.topics import Topics

    topics = Topics(REAL_DISK, os.path.join(target.path, "config"))
    found = [config for name in topics.names() if (config := topics.get(name)) is not None]
    return [
        {"topic": one.name, "read_queues": one.read_queues, "write_queues": one.write_queues, "perm": one.perm} for one in found
    ]
