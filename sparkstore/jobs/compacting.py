"""The job `compact`: copy the last message of each key to a new store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..options import is_several, option_texts
from ..source.reading import FORMAT, read_messages
from ..spark_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = (
    "topic", "queue_id", "body", "keys", "tags", "properties", "flag", "sys_flag", "reconsume_times", "born_timestamp_ms",
    "born_host",
)  # fmt: skip
ROW_ID = ["store", "physical_offset"]  # physical offsets of different stores overlap


def compact(
    spark: SparkSession,
    path: str | Sequence[str],
    out: str,
    *,
    keep_unkeyed: bool = True,
    sink: dict[str, str] | None = None,
    **options: object,
) -> int:
    """Write a compacted copy to `out`, which must not exist; return the number of messages.

    A message stays if no later one of its topic has one of its keys; one without a key stays unless `keep_unkeyed` is false.
    The last is the one at the greatest physical offset; of several stores the one stored last.  They keep topic, queue, order
    and all of their own; the new store gives each a new queue offset.  `sink`: options of the sink, as sizes of the new
    store's files; `options`: of the source.
    """
    from pyspark.sql import functions as sql

    order = ["store_timestamp_ms", *ROW_ID] if is_several(path) else ROW_ID
    with plain_errors():
        rows = read_messages(spark, path, list(dict.fromkeys(["topic", "keys", *order])), **options)
        keyed = rows.withColumn("key", sql.explode("keys"))
        last = keyed.groupBy("topic", "key").agg(sql.max(sql.struct(*order)).alias("last"))
        kept = last.select(*(f"last.{name}" for name in ROW_ID))
        if keep_unkeyed:
            kept = kept.union(rows.where(sql.size("keys") == 0).select(*ROW_ID))
        whole = read_messages(spark, path, list(dict.fromkeys([*KEPT, *order])), **options)
        found = whole.join(kept.distinct(), ROW_ID, "left_semi").orderBy(*order).select(*KEPT)
        found.write.format(FORMAT).options(**{**option_texts(sink or {}), "newStore": "true"}).mode("append").save(out)
        return read_messages(spark, out, ["queue_id"]).count()
