"""Pending timers of a RocketMQ store, for `ls`, `stats`, `verify`, `report` and `info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storageio import REAL_DISK, DiskError, StoreError

from ..output import Table, count_text, print_line, table_time, time_text
from .rocketmq_folder import RocketmqFolder

if TYPE_CHECKING:
    from messagestore.folder import FolderFacts
    from messagestore.timers.pending import PendingTimers

KEYS = ("topic", "timers", "next_due_ms", "last_due_ms")
HEADERS = ("timers of topic", "timers", "next due (UTC)", "last due (UTC)")
Row = dict[str, Any]


def in_wheel(facts: FolderFacts) -> Row | None:
    """Return how many timers wheel and RocksDB have and when the next is due; None without either. No message is read."""
    from messagestore.rocksdb.store_rows import stored_timers
    from messagestore.timers.layout import PRECISION_MS, TimerCheckpoint, slot_s
    from messagestore.timers.wheel import read_timer_checkpoint, used_slots

    stored = stored_timers(REAL_DISK, facts.path)
    if not facts.has("timerwheel") and stored is None:
        return None
    check = read_timer_checkpoint(REAL_DISK, facts.path) or TimerCheckpoint()
    slots = [slot for slot in used_slots(REAL_DISK, facts.path) if slot.due_s >= slot_s(check.last_read_ms)]
    rows = stored.pending() if stored is not None else []
    due_ms = [*(slot.due_s * PRECISION_MS for slot in slots), *(row.due_ms for row in rows)]
    return {"pending": sum(slot.units for slot in slots) + len(rows), "next_due_ms": min(due_ms, default=None)}


def in_rocksdb(facts: FolderFacts) -> Row | None:
    """Return how many transactions are open; None unless the broker keeps them in RocksDB."""
    from messagestore.rocksdb.store_rows import stored_transactions

    found = stored_transactions(REAL_DISK, facts.path)
    return None if found is None else {"open": len(found)}


def in_wheel_text(found: Row) -> str:
    """Return the same for people."""
    text = f"{found['pending']} pending"
    return text if found["next_due_ms"] is None else f"{text}, next due {time_text(found['next_due_ms'])}"


def pending(folder: RocketmqFolder) -> PendingTimers | None:
    """Count the pending timers by topic; None without timer files, or if they are unreadable, which is a problem."""
    from messagestore.timers.layout import TIMER_TOPIC
    from messagestore.timers.pending import pending_timers

    facts = folder.facts
    if not facts.has("timerlog") and not facts.has("timerwheel") and not facts.contents.has_rocksdb_rows:
        return None
    try:
        with folder.queues() as queues:
            found = pending_timers(REAL_DISK, facts.path, folder.files(), queues.get(TIMER_TOPIC, 0))
    except DiskError:
        raise
    except StoreError as error:
        folder.add_unreadable("timers", error)
        return None
    if found.unreadable:
        text = f"{count_text(found.unreadable, 'timer')} without a message in the log"
        print_line(f"brokerstore: {text}; run: brokerstore verify {facts.path}")
    return found


def keys_and_tables(folder: RocketmqFolder, only: str | None = None) -> tuple[Row, list[Table]]:
    """Return the JSON keys and the tables of the pending timers, of one topic if it is given."""
    found = pending(folder)
    if found is None:
        return {}, []
    topics = [one for one in found.topics if only in (None, one.topic)]
    rows = [dict(zip(KEYS, (one.topic, one.timers, one.next_due_ms, one.last_due_ms), strict=True)) for one in topics]
    shown = [(one.topic, one.timers, table_time(one.next_due_ms), table_time(one.last_due_ms)) for one in topics]
    return {"timers": rows}, [Table(HEADERS, shown)] if topics else []
