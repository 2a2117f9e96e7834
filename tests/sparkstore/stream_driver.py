"""A separate driver that streams from a store into another until it is killed: `python -m tests.sparkstore.stream_driver`."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from tests.sparkstore.sink_tools import SMALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def start(spark: SparkSession, name: str, source: str, sink: str) -> StreamingQuery:
    """Start the query, which is the same in every driver but for the name of the format that reads."""
    frame = spark.readStream.format(name).option("maxBytesPerTrigger", "8k").load(source)
    writer = frame.select("topic", "body", "keys").writeStream.format("brokerstore").options(**SMALL)
    return writer.option("checkpointLocation", f"{sink}-checkpoint").trigger(processingTime="0 seconds").start(sink)


def session() -> SparkSession:
    """Start a small Spark session, with the jar if there is one."""
    from pyspark.sql import SparkSession

    from sparkstore.jar import JARS, jar_path

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config(JARS, jar_path() or "")
    made: SparkSession = builder.config("spark.driver.memory", "512m").config("spark.driver.host", "127.0.0.1").getOrCreate()
    made.sparkContext.setLogLevel("FATAL")
    return made


def main(name: str, source: str, sink: str) -> None:
    """Run the query and print a line after two batches."""
    query = start(session(), name, source, sink)
    while len([progress for progress in query.recentProgress if progress["numInputRows"]]) < 2:
        time.sleep(0.02)
    print("two batches", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
