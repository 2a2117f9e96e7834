"""One page of a RocketMQ queue or log, forward or back, without counting the messages before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commitlog import StoredMessage

from ..filters import queue_number
from ..hints import NoSuchMessage
from ..output import print_line
from . import PAGE_BYTES, MessagePage, PageRequest
from .rocketmq_folder import RocketmqFolder

if TYPE_CHECKING:
    from commitlog.walk import LogFiles

BACK_BYTES = 64 << 10  # of log that a page in front of an offset is first looked for in


def queue_page(folder: RocketmqFolder, requested: PageRequest) -> MessagePage:
    """Return messages of a queue by queue offset; raise `NoSuchMessage` for an unknown queue."""
    from messagestore import GetStatus

    topic, queue_id = str(requested.topic), queue_number(requested.queue or "0") or 0
    found: list[StoredMessage] = []
    with folder.open_store() as store:
        folder.incomplete_keys(store)
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if not high and not folder.facts.has("consumequeue"):
            print_line("brokerstore: the folder has no queues; the page of the log has every message")
        elif not high and topic not in store.topics():
            raise NoSuchMessage(f"{folder.target.path}: there is no topic {topic!r}", "the page of queues lists the topics")
        stop = high if requested.before is None else min(high, requested.before)
        begin = max(low, requested.start or 0) if requested.before is None else max(low, stop - requested.max_count)
        at, size = begin, 0
        while len(found) < requested.max_count and at < stop and size < PAGE_BYTES:
            page = store.get(topic, queue_id, at, min(requested.max_count - len(found), stop - at), max_bytes=PAGE_BYTES)
            if page.status is not GetStatus.FOUND and page.next_offset <= at:
                break
            found += page.messages
            size += sum(len(message.body) for message in page.messages)
            at = page.next_offset
    return MessagePage(found, begin if begin > low else None, at if at < high else None)


def log_page(folder: RocketmqFolder, requested: PageRequest) -> MessagePage:
    """Return messages of the log by physical offset."""
    files = folder.files()
    low = files.files[0].start_offset if files.files else 0
    if requested.before is None:
        start = files.next_record(max(low, requested.start or 0))
        found = [] if start is None else _from(folder, files, start, None, requested.max_count)
    else:
        width, found = BACK_BYTES, []
        before = min(requested.before, files.end().offset)
        while len(found) < requested.max_count and width < 2 * PAGE_BYTES:
            start = files.next_record(max(low, before - width))
            is_before = start is not None and start < before
            found = _from(folder, files, start or 0, before, None)[-requested.max_count :] if is_before else []
            if before - width <= low:
                break
            width *= 4
    if not found:
        return MessagePage([], None, None)
    first, last = found[0].physical_offset, found[-1]
    return MessagePage(found, first if first > low else None, files.next_record(last.physical_offset + last.size))


def offset_by_time(folder: RocketmqFolder, moment_ms: int) -> int:
    """Return the physical offset of the first record of the log stored at or after a time, or where the log ends.

    The search is binary: store times go up in a log, unless a clock was set back.
    """
    files = folder.files()
    low, high = files.files[0].start_offset if files.files else 0, files.end().offset
    while low < high:
        middle = (low + high) // 2
        at = files.next_record(middle)
        message = None if at is None or at >= high else files.message_at(at)
        if not isinstance(message, StoredMessage) or message.store_timestamp_ms >= moment_ms:
            high = middle
        else:
            low = message.physical_offset + message.size
    return low


def _from(folder: RocketmqFolder, files: LogFiles, start: int, stop: int | None, max_count: int | None) -> list[StoredMessage]:
    """Return good records from the one at `start` on, to before `stop`; damage between them is skipped."""
    found: list[StoredMessage] = []
    at: int | None = start
    size = 0
    while (
        at is not None and (stop is None or at < stop) and (max_count is None or (len(found) < max_count and size < PAGE_BYTES))
    ):
        message = files.message_at(at)
        if isinstance(message, StoredMessage):
            if folder.accepts(message):
                found.append(message)
                size += message.size
            at += message.size
        else:
            at = files.next_record(at + 1)
    return found
