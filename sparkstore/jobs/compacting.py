"""`compact`: the last message of each key, into a new store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storageio import REAL_DISK, UnknownStore

from ..reading import FORMAT, read_messages
from ..spark_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = (
    "topic", "queue_id", "body", "keys", "tags", "properties", "flag", "sys_flag", "reconsume_times", "born_timestamp_ms",
    "born_host",
)  # fmt: skip


def compact(
    spark: SparkSession,
    path: str,
    out: str,
    *,
    keep_unkeyed: bool = True,
    sink: dict[str, str] | None = None,
    **options: object,
) -> int:
    """Write to `out`, which must not be there; the number of messages.

    A message stays if no later one of its topic has one of its keys; one without a key stays unless `keep_unkeyed` is false.
    They keep topic, queue, order and all of their own; the new store gives each a new queue offset.  `sink`: options of the
    sink, as sizes of the new store's files; `options`: of the source.
    """
    from pyspark.sql import functions as sql

    if REAL_DISK.stat(out) is not None:
        raise UnknownStore(f"{out}: something is there already; a new store is wanted")
    with plain_errors():
        places = read_messages(spark, path, ["topic", "keys", "physical_offset"], **options)
        keyed = places.withColumn("key", sql.explode("keys"))
        last = keyed.groupBy("topic", "key").agg(sql.max("physical_offset").alias("physical_offset")).select("physical_offset")
        if keep_unkeyed:
            last = last.union(places.where(sql.size("keys") == 0).select("physical_offset"))
        whole = read_messages(spark, path, (*KEPT, "physical_offset"), **options)
        kept = whole.join(last.distinct(), "physical_offset", "left_semi").orderBy("physical_offset").select(*KEPT)
        kept.write.format(FORMAT).options(**(sink or {})).mode("append").save(out)
        return read_messages(spark, out, ["queue_id"]).count()
