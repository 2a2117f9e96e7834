"""The job `stats`: messages, bytes and time range of each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import BadOption
from ..options import is_several
from ..schema import STORE_COLUMN
from ..source.reading import is_rabbit_folder, read_messages, read_rabbit
from ..spark_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HOUR_MS = 3_600_000
BY = ("topic", "queue", "hour", "size", "key")
RABBIT_BY = ("queue", "size", "key")
_COLUMNS = ("topic", "queue_id", "size", "store_timestamp_ms")
_RABBIT_COLUMNS = ("vhost", "queue", "type", "size", "persistent", "redelivered")


def stats(spark: SparkSession, path: str | Sequence[str], by: str | None = None, **options: object) -> DataFrame:
    """Return one row per topic; topic and queue; hour (`hour_ms`) and topic; size class (`size_below`); topic and key.

    Columns behind those: messages, size_bytes (of whole records), first_store_timestamp_ms, last_store_timestamp_ms, as the
    tool names them.  Of several stores each has rows of its own, with `store` before all.  Sorted by what it is by; by key,
    the most frequent first.

    A RabbitMQ folder is counted by queue (with `vhost` and `type`), size, or key (routing key), with messages, size_bytes (of
    bodies), and persistent and redelivered messages.
    """
    if by is not None and by not in BY:
        raise BadOption(f"by: expected one of {', '.join(BY)}, found {by!r}")
    with plain_errors():
        if is_rabbit_folder(spark, path, options):
            return _of_rabbit(spark, path, by or "queue", options)
    return _of_rocket(spark, path, by or "topic", options)


def _of_rocket(spark: SparkSession, path: str | Sequence[str], by: str, options: dict[str, object]) -> DataFrame:
    from pyspark.sql import functions as sql

    store = [STORE_COLUMN] if is_several(path) else []
    rows = read_messages(spark, path, [*_COLUMNS, *(["keys"] if by == "key" else []), *store], **options)
    if by == "key":
        rows = rows.withColumn("key", sql.explode("keys"))
    hour = (sql.floor(rows["store_timestamp_ms"] / HOUR_MS) * HOUR_MS).cast("bigint").alias("hour_ms")
    columns: dict[str, list[Column | str]] = {
        "topic": ["topic"], "queue": ["topic", "queue_id"], "hour": [hour, "topic"], "size": [_size_class(rows)],
        "key": ["topic", "key"],
    }  # fmt: skip
    return _counted(rows, [*store, *columns[by]], by, [
        sql.min("store_timestamp_ms").alias("first_store_timestamp_ms"),
        sql.max("store_timestamp_ms").alias("last_store_timestamp_ms"),
    ])  # fmt: skip


def _of_rabbit(spark: SparkSession, path: str | Sequence[str], by: str, options: dict[str, object]) -> DataFrame:
    from pyspark.sql import functions as sql

    if by not in RABBIT_BY:
        raise BadOption(f"by: a RabbitMQ folder is counted by {', '.join(RABBIT_BY)}, found {by!r}")
    store = [STORE_COLUMN] if is_several(path) else []
    rows = read_rabbit(spark, path, [*_RABBIT_COLUMNS, *(["routing_keys"] if by == "key" else []), *store], **options)
    if by == "key":
        rows = rows.withColumn("key", sql.explode("routing_keys"))
    columns: dict[str, list[Column | str]] = {
        "queue": ["vhost", "queue", "type"], "size": [_size_class(rows)], "key": ["vhost", "key"],
    }  # fmt: skip
    flags = [sql.sum(sql.col(name).cast("bigint")).alias(name) for name in ("persistent", "redelivered")]
    return _counted(rows, [*store, *columns[by]], by, flags)


def _size_class(rows: DataFrame) -> Column:
    """Return the power of two that the size is below."""
    from pyspark.sql import functions as sql

    power = sql.when(rows["size"] > 0, sql.floor(sql.log2(rows["size"])) + 1).otherwise(sql.lit(0))
    return sql.pow(sql.lit(2), power).cast("bigint").alias("size_below")


def _counted(rows: DataFrame, grouping: list[Column | str], by: str, more: list[Column]) -> DataFrame:
    """Count messages and bytes of each group, and compute `more`."""
    from pyspark.sql import functions as sql

    found = rows.groupBy(*grouping).agg(sql.count(sql.lit(1)).alias("messages"), sql.sum("size").alias("size_bytes"), *more)
    names = found.columns[: len(grouping)]
    return found.orderBy(sql.desc("messages"), *names) if by == "key" else found.orderBy(*names)
