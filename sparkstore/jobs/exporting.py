"""The job `export`: write Parquet files partitioned by topic and day."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import BadOption
from ..options import is_several
from ..schema import MESSAGE_COLUMNS, RABBIT_COLUMNS, STORE_COLUMN
from ..source.reading import is_rabbit_folder, read_messages, read_rabbit
from ..spark_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VARIANT = "variant"
UNREPEATED = ("body", "message_id", "physical_offset")  # their values are unique, so a dictionary would not pay off


class Exported(NamedTuple):
    """The content of `out` after the export, including what an appending export found there.

    `size_bytes` is the sum of the column `size`, None where that is not among the columns.
    """

    out: str
    messages: int
    size_bytes: int | None
    files: int


def export(
    spark: SparkSession,
    path: str | Sequence[str],
    out: str,
    *,
    columns: Iterable[str] | None = None,
    json: str | None = None,
    mode: str = "error",
    compression: str = "zstd",
    is_rabbit: bool | None = None,
    **options: object,
) -> Exported:
    """Write to `out`: folders `topic=.../day=yyyy-mm-dd` (UTC, of the store time), or `queue=...` of a RabbitMQ folder.

    `columns`: fewer than all; those that say where a message goes are there in any case, and of several stores the column
    `store`.  `json`: a schema as text, or "variant", adds a column `json` with the parsed body; null where it is
    no JSON.  `mode` is Spark's; `options` are the source's.  Files appear when the job is whole.  `is_rabbit` says what the
    paths are; None finds out.
    """
    with plain_errors():
        is_rabbit = is_rabbit_folder(spark, path, options) if is_rabbit is None else is_rabbit
    requested = _columns(path, columns, is_rabbit)
    if json is not None and "body" not in requested:
        raise BadOption("columns: add body, which is needed to parse it as JSON")
    with plain_errors():
        if is_rabbit:
            rows, folders = read_rabbit(spark, path, requested, **options), ["queue"]
        else:
            rows, folders = with_day(read_messages(spark, path, requested, **options)), ["topic", "day"]
        rows = _parsed(rows, json) if json is not None else rows
        writer = rows.write.mode(mode).option("compression", compression)
        for name in UNREPEATED:
            writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
        writer.partitionBy(*folders).parquet(out)
        return _summary(spark, rows, out)


def _columns(path: str | Sequence[str], columns: Iterable[str] | None, is_rabbit: bool) -> list[str]:
    """Return the requested columns and those that the partitions need."""
    every, needed = (RABBIT_COLUMNS, ["queue"]) if is_rabbit else (MESSAGE_COLUMNS, ["topic", "store_timestamp_ms"])
    several = [STORE_COLUMN] if is_several(path) else []
    return list(dict.fromkeys([*(every if columns is None else columns), *needed, *several]))


def _summary(spark: SparkSession, rows: DataFrame, out: str) -> Exported:
    """Read the result back; everything except the sum comes from the files' footers."""
    from pyspark.sql import functions as sql

    found = spark.read.schema(rows.schema).parquet(out)
    size = sql.coalesce(sql.sum("size"), sql.lit(0)) if "size" in found.columns else sql.lit(None)
    row = found.agg(sql.count(sql.lit(1)).alias("messages"), size.alias("size_bytes")).collect()[0]
    return Exported(out, row["messages"], row["size_bytes"], len(found.inputFiles()))


def with_day(rows: DataFrame) -> DataFrame:
    """Add the UTC day of the store time as a date that does not depend on the session's time zone."""
    from pyspark.sql import functions as sql

    days = sql.floor(rows["store_timestamp_ms"] / 86_400_000).cast("int")
    return rows.withColumn("day", sql.date_add(sql.lit("1970-01-01").cast("date"), days))


def _parsed(rows: DataFrame, json: str) -> DataFrame:
    from pyspark.sql import functions as sql

    text = sql.try_validate_utf8(rows["body"].cast("string"))  # null for invalid UTF-8
    parsed = sql.try_parse_json(text) if json == VARIANT else sql.from_json(text, json)
    return rows.withColumn("json", parsed)
