"""Append the new messages of a store to a Delta Lake or Iceberg table: `python feed.py STORE TABLE [--format iceberg]`.

Each run reads what was added since the last one, in batches of about `--max-bytes` of the log.  A batch and its number are one
commit of the table.  A batch that Spark repeats after a kill finds its number in the table and is skipped, so that each message
is in the table once.  A new checkpoint is a new query, which appends every message again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

import sparkstore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "topic,queue_id,queue_offset,physical_offset,store_time,tags,body"
BODY = "order long, customer string, item string, cents long"
DELTA_SPARK = "io.delta:delta-spark_4.2_2.13:4.4.0"  # the newest release; there is none for Spark 4.3
NAMESPACE = "shop"


def to_delta(batch: DataFrame, number: int, query: str, table: Path) -> bool:
    """Append with delta-rs, through the driver's memory; return False if the table has the batch."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    if DeltaTable.is_deltatable(str(table)):
        last = DeltaTable(str(table)).transaction_version(query)
        if last is not None and last >= number:
            return False
    properties = CommitProperties(app_transactions=[Transaction(query, number)])
    write_deltalake(str(table), batch.toArrow(), mode="append", commit_properties=properties)
    return True


def to_delta_spark(batch: DataFrame, number: int, query: str, table: Path) -> None:
    """Append with Delta's own writer, in the executors; it skips a batch that the table has, without saying so."""
    options = {"txnAppId": query, "txnVersion": str(number)}
    batch.write.format("delta").options(**options).mode("append").save(str(table))


def to_iceberg(batch: DataFrame, number: int, query: str, table: Path) -> bool:
    """Append with PyIceberg, through the driver's memory; return False if the table has the batch."""
    rows, name = batch.toArrow(), f"brokerstore.batch.{query}"
    catalog = iceberg_catalog(table)
    catalog.create_namespace_if_not_exists(NAMESPACE)
    found = catalog.create_table_if_not_exists((NAMESPACE, table.name), schema=rows.schema)
    if int(found.properties.get(name, -1)) >= number:
        return False
    with found.transaction() as change:  # rows and number in one commit; the number outlives expired snapshots
        change.append(rows)
        change.set_properties({name: str(number)})
    return True


def iceberg_catalog(table: Path) -> Any:
    """Return the catalogue beside a table, a SQLite file.  A real lake has a REST catalogue here."""
    from pyiceberg.catalog.sql import SqlCatalog

    folder = table.absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    return SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


WRITERS: dict[str, Callable[[DataFrame, int, str, Path], bool | None]] = {
    "delta": to_delta,
    "delta-spark": to_delta_spark,
    "iceberg": to_iceberg,
}


def start_session(kind: str) -> SparkSession:
    """Start Spark, with the jars of Delta Lake if its own writer is used."""
    settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
    if kind == "delta-spark":
        if not pyspark.__version__.startswith("4.2."):
            raise SystemExit(f"{DELTA_SPARK} needs Spark 4.2, found {pyspark.__version__}: use --format delta")
        settings |= {
            "spark.jars.packages": DELTA_SPARK,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    return sparkstore.session("local[2]", settings=settings)


def feed(spark: SparkSession, store: str, table: Path, kind: str, max_bytes: str) -> None:
    """Append what the table lacks, and wait until it is complete."""
    source = spark.readStream.format("brokerstore").option("columns", COLUMNS).option("maxBytesPerTrigger", max_bytes)
    body = f"from_json(string(body), '{BODY}')"
    rows = source.load(store).selectExpr("* EXCEPT (body)", f"{body} AS body").selectExpr("* EXCEPT (body)", "body.*")

    def write(batch: DataFrame, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        is_new = WRITERS[kind](batch, number, query, table)
        print(f"{table.name}: batch {number} {'is in the table already' if is_new is False else 'appended'}", flush=True)

    checkpoint = table.with_name(f"{table.name}-checkpoint")
    stream = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    stream.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("table", type=Path, help="folder of the table; Iceberg's catalogue is beside it")
    parser.add_argument("--format", choices=sorted(WRITERS), default="delta")
    parser.add_argument("--max-bytes", default="64m", help="bytes of the log in one batch")
    arguments = parser.parse_args()
    feed(start_session(arguments.format), arguments.store, arguments.table, arguments.format, arguments.max_bytes)
