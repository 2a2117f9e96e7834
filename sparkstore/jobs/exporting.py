"""`export`: Parquet, partitioned by topic and day."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..reading import read_messages, read_rabbit
from ..schema import MESSAGE_COLUMNS
from ..spark_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VARIANT = "variant"
UNREPEATED = ("body", "message_id", "physical_offset")  # a dictionary of their values would be made and thrown away


def export(
    spark: SparkSession,
    path: str | Sequence[str],
    out: str,
    *,
    columns: Iterable[str] | None = None,
    json: str | None = None,
    mode: str = "error",
    compression: str = "zstd",
    is_rabbit: bool = False,
    **options: object,
) -> None:
    """Write to `out`: folders `topic=.../day=yyyy-mm-dd` (UTC, of the store time), or `queue=...` of a RabbitMQ folder.

    `columns`: fewer than all.  `json`: a schema as text, or "variant", adds a column `json` with the parsed body; null where
    it is no JSON.  `mode` is Spark's; `options` are the source's.  Files appear when the job is whole.
    """
    with plain_errors():
        if is_rabbit:
            rows, lanes = read_rabbit(spark, path, columns, **options), ["queue"]
        else:
            wanted = dict.fromkeys([*(MESSAGE_COLUMNS if columns is None else columns), "topic", "store_timestamp_ms"])
            rows, lanes = with_day(read_messages(spark, path, list(wanted), **options)), ["topic", "day"]
        rows = _parsed(rows, json) if json is not None else rows
        writer = rows.write.mode(mode).option("compression", compression)
        for name in UNREPEATED:
            writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
        writer.partitionBy(*lanes).parquet(out)


def with_day(rows: DataFrame) -> DataFrame:
    """With the day, in UTC, that each message was stored on: a date that does not hang on the session's time zone."""
    from pyspark.sql import functions as sql

    days = sql.floor(rows["store_timestamp_ms"] / 86_400_000).cast("int")
    return rows.withColumn("day", sql.date_add(sql.lit("1970-01-01").cast("date"), days))


def _parsed(rows: DataFrame, json: str) -> DataFrame:
    from pyspark.sql import functions as sql

    text = sql.try_validate_utf8(rows["body"].cast("string"))  # null for what is no text
    parsed = sql.try_parse_json(text) if json == VARIANT else sql.from_json(text, json)
    return rows.withColumn("json", parsed)
