"""`stats`: how many messages and bytes, from when to when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from commitlog import StoredMessage
from commitlog.findings import Finding

from .codes import CLEAN, PROBLEM
from .log_commands import good_messages
from .output import emit_json, in_use_keys, progress, say_in_use, table, time_text
from .target import Target

HOUR_MS = 3_600_000
KEYS = ("messages", "size_bytes", "first_store_timestamp_ms", "last_store_timestamp_ms")
_NAMES = {"queue": ("topic", "queue_id"), "hour": ("hour_ms", "topic")}


def show_stats(target: Target, as_json: bool, by: str, quiet: bool = False) -> int:
    """One row a topic and queue, or an hour and topic; sizes are those of whole records."""
    told: list[Finding] = []
    files = target.files()
    with progress("stats", sum(file.size_bytes for file in files.files), wanted=not quiet) as advance:
        rows = _rows(good_messages(files, told, advance), by)
    names = (*_NAMES[by], *KEYS)
    found = [dict(zip(names, (*lane, *row), strict=True)) for lane, row in sorted(rows.items())]
    total = {"messages": sum(row[0] for row in rows.values()), "size_bytes": sum(row[1] for row in rows.values())}
    if as_json:
        emit_json({"queues" if by == "queue" else "hours": found, "total": total} | in_use_keys(files.end_offset))
    else:
        table(names, [[time_text(cell) if name.endswith("_ms") else cell for name, cell in row.items()] for row in found])
    say_in_use(files.end_offset)
    return PROBLEM if told else CLEAN


def _rows(messages: Iterable[StoredMessage], by: str) -> dict[tuple[Any, Any], list[int]]:
    """Messages, bytes, first and last time of each lane."""
    rows: dict[tuple[Any, Any], list[int]] = {}
    for message in messages:
        stored_ms = message.store_timestamp_ms
        lane = (message.topic, message.queue_id) if by == "queue" else (stored_ms // HOUR_MS * HOUR_MS, message.topic)
        row = rows.setdefault(lane, [0, 0, stored_ms, stored_ms])
        row[0] += 1
        row[1] += message.size
        row[2], row[3] = min(row[2], stored_ms), max(row[3], stored_ms)
    return rows
