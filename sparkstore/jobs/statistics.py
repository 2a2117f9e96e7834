"""The job `stats`: messages, bytes and time range of each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import BadOption
from ..options import is_several
from ..schema import STORE_COLUMN
from ..source.reading import read_messages

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HOUR_MS = 3_600_000
BY = ("topic", "queue", "hour", "size", "key")
_COLUMNS = ("topic", "queue_id", "size", "store_timestamp_ms")


def stats(spark: SparkSession, path: str | Sequence[str], by: str = "topic", **options: object) -> DataFrame:
    """Return one row per topic; topic and queue; hour (`hour_ms`) and topic; size class (`size_below`); topic and key.

    Columns behind those: messages, size_bytes (of whole records), first_store_timestamp_ms, last_store_timestamp_ms, as the
    tool names them.  Of several stores each has rows of its own, with `store` before all.  Sorted by what it is by; by key,
    the most frequent first.
    """
    from pyspark.sql import functions as sql

    if by not in BY:
        raise BadOption(f"by: expected one of {', '.join(BY)}, found {by!r}")
    store = [STORE_COLUMN] if is_several(path) else []
    rows = read_messages(spark, path, [*_COLUMNS, *(["keys"] if by == "key" else []), *store], **options)
    if by == "key":
        rows = rows.withColumn("key", sql.explode("keys"))
    hour = (sql.floor(rows["store_timestamp_ms"] / HOUR_MS) * HOUR_MS).cast("bigint").alias("hour_ms")
    below = sql.pow(sql.lit(2), sql.floor(sql.log2(rows["size"])) + 1).cast("bigint").alias("size_below")
    columns: dict[str, list[Column | str]] = {
        "topic": ["topic"], "queue": ["topic", "queue_id"], "hour": [hour, "topic"], "size": [below], "key": ["topic", "key"],
    }  # fmt: skip
    grouping = [*store, *columns[by]]
    found = rows.groupBy(*grouping).agg(
        sql.count(sql.lit(1)).alias("messages"),
        sql.sum("size").alias("size_bytes"),
        sql.min("store_timestamp_ms").alias("first_store_timestamp_ms"),
        sql.max("store_timestamp_ms").alias("last_store_timestamp_ms"),
    )
    names = found.columns[: len(grouping)]
    return found.orderBy(sql.desc("messages"), *names) if by == "key" else found.orderBy(*names)
