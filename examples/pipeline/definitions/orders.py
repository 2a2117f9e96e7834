"""The pipeline's tables and sink, declared: Spark decides what to run, and processes only new data.

Nothing is registered: Spark finds the format "brokerstore" on the Python path.  `spark-pipeline.yml` has the paths of the
stores.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, from_json, struct, sum, to_json

spark = SparkSession.active()
ORDERS = spark.conf.get("shop.orders")
PAID = spark.conf.get("shop.paid")


@dp.table
def orders() -> DataFrame:
    """Each message of the store once, in columns."""
    body = from_json(col("body").cast("string"), "order long, customer string, item string, cents long").alias("body")
    messages = spark.readStream.format("brokerstore").option("maxBytesPerTrigger", "32k").load(ORDERS)
    return messages.select("physical_offset", "store_timestamp_ms", col("tags").alias("state"), body).select(
        "physical_offset", "store_timestamp_ms", "state", "body.*"
    )


@dp.materialized_view
def revenue() -> DataFrame:
    """Value and number of paid orders, by item."""
    paid = spark.read.table("orders").where("state = 'paid'")
    return paid.groupBy("item").agg(count("order").alias("orders"), sum("cents").alias("cents"))


dp.create_sink(
    "paid_store",
    "brokerstore",
    {"path": PAID, "mappedFileSizeCommitLog": "1m", "maxHashSlotNum": "1000", "maxIndexNum": "4000"},
)


@dp.append_flow(target="paid_store")
def paid_orders() -> DataFrame:
    """Each paid order once, in a store of its own that a broker or an application can continue."""
    paid = spark.readStream.table("orders").where("state = 'paid'")
    text = to_json(struct("order", "customer", "cents")).alias("body")
    return paid.selectExpr("'paid-orders' topic", "array(customer) keys", "item tags", "order", "customer", "cents").select(
        "topic", "keys", "tags", text
    )
