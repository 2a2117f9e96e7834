"""The lag of consumer groups in POP mode, for `ls`, `stats` and `report` of a RocketMQ folder."""

from __future__ import annotations

from typing import Any

from storageio import REAL_DISK, DiskError, StoreError

from ..output import Table, count_text, print_line, table_time
from .rocketmq_folder import RocketmqFolder

KEYS = ("topic", "group", "ready", "unacknowledged", "next_revive_ms")
Row = dict[str, Any]


def pop_rows(folder: RocketmqFolder, *, with_rocksdb: bool = True) -> list[Row]:
    """Return the lag of each group by topic; empty without POP consumers. An unreadable state is added as a problem."""
    from messagestore.broker.services.pop_state import read_pop_state

    facts = folder.facts
    if not facts.has("config") or not facts.has("consumequeue"):
        return []
    try:
        with folder.queues() as queues:
            found = read_pop_state(REAL_DISK, facts.path, folder.files(), queues, with_rocksdb=with_rocksdb)
    except DiskError:
        raise
    except StoreError as error:
        folder.add_unreadable("lag of POP consumers", error)
        return []
    if found.unreadable:
        print_line(f"brokerstore: {count_text(found.unreadable, 'message')} of POP consumers' state could not be read")
    return [dict(zip(KEYS, lag, strict=True)) for lag in found.lags]


def pop_keys_and_tables(folder: RocketmqFolder, only: str | None = None) -> tuple[Row, list[Table]]:
    """Return the JSON key and the table of the lags, of one topic if it is given; neither without POP consumers."""
    rows = [row for row in pop_rows(folder) if only in (None, row["topic"])]
    if not rows:
        return {}, []
    cells = [[*list(row.values())[:-1], table_time(row["next_revive_ms"]) if row["next_revive_ms"] else ""] for row in rows]
    return {"pop": rows}, [Table(("POP consumers of topic", "group", "ready", "unacknowledged", "next revived (UTC)"), cells)]
