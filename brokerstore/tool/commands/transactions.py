"""`transactions`: the prepared messages of a RocketMQ store that nobody committed or rolled back."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from storageio import REAL_DISK

from ..options import JSON, store_command
from ..output import Answer, Table, count_text, show, table_time

if TYPE_CHECKING:
    from messagestore.broker.services.half_messages import HalfMessage

    from ..backends.rocketmq_folder import RocketmqFolder

HEADERS = ("at", "topic/queue", "prepared (UTC)", "age", "checks", "producer group", "transaction")


@store_command(
    "transactions",
    "transactions orders-store",
    "transactions orders-store --older-than 600 --json",
    rocketmq_only=True,
)
@JSON
@click.option(
    "--older-than", "older_than_s", type=click.FloatRange(0), default=0, metavar="SECONDS",
    help="Only those that were prepared at least so long ago.",
)  # fmt: skip
def transactions(backend: RocketmqFolder, as_json: bool, older_than_s: float) -> int:
    """List transactions that nobody has decided.

    Each row has the offset of the half message, where a commit would put it, its age, how often its producer was asked, and the
    producer group that can decide it.
    """
    with backend.open_log_reader() as store:
        incomplete = backend.incomplete_keys(store) if backend.facts.is_store else {}  # RocksDB has the queues
        found = store.undecided_transactions(int(older_than_s * 1000))
    now_ms = REAL_DISK.now_ms()
    rows = [_row(half, now_ms) for half in found]
    shown = [
        (row["physical_offset"], f"{row['topic']}/{row['queue_id']}", table_time(half.message.born_timestamp_ms),
         timedelta(seconds=_age_s(half, now_ms)), row["checks"], row["producer_group"], row["transaction_id"])
        for row, half in zip(rows, found, strict=True)
    ]  # fmt: skip
    heading = count_text(len(rows), "undecided transaction")
    return show(Answer({"transactions": rows} | incomplete, [heading, *([Table(HEADERS, shown)] if rows else [])]), as_json)


def _age_s(half: HalfMessage, now_ms: int) -> int:
    """Return the seconds since the producer prepared a message; 0 if its clock is ahead."""
    return max(0, now_ms - half.message.born_timestamp_ms) // 1000


def _row(half: HalfMessage, now_ms: int) -> dict[str, object]:
    return {
        "topic": half.topic, "queue_id": half.queue_id, "physical_offset": half.message.physical_offset,
        "half_topic": half.message.topic, "half_offset": half.queue_offset, "transaction_id": half.transaction_id,
        "producer_group": half.producer_group, "checks": half.check_times,
        "born_timestamp_ms": half.message.born_timestamp_ms, "store_timestamp_ms": half.message.store_timestamp_ms,
        "age_s": _age_s(half, now_ms),
    }  # fmt: skip
