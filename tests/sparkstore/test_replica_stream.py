"""A stream from a folder that a replica writes, while it follows a live master."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from commitlog import Message
from rocketlink import Replica
from tests.rocketlink.test_replica import Master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Writer(threading.Thread):
    """Puts numbered messages into the master's store until it is stopped."""

    def __init__(self, master: Master) -> None:
        super().__init__()
        self.master, self.count, self.stopped = master, 0, threading.Event()

    def run(self) -> None:
        """Put a few messages at a time, over several log files."""
        while not self.stopped.wait(0.05):
            for _ in range(5):
                self.master.store.put(Message("numbers", b"%d" % self.count, queue_id=self.count % 2))
                self.count += 1
            self.master.tell()


def until_it_read(query: StreamingQuery, seen: int) -> None:
    """Wait until the query read more than `seen` rows."""
    deadline = time.monotonic() + 300
    while rows_of(query) <= seen and query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    assert rows_of(query) > seen, query.exception()


def rows_of(query: StreamingQuery) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def test_each_message_of_the_master_is_in_the_stream_once(spark: SparkSession, tmp_path: Path) -> None:
    """The stream reads beside the replica; the replica stops and starts, and the query is started again from its checkpoint."""

    def start(**trigger: Any) -> StreamingQuery:
        frame = spark.readStream.format("brokerstore").option("columns", "topic,body").load(str(tmp_path / "replica"))
        stream = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "progress"))
        return stream.trigger(**trigger).start(str(tmp_path / "out"))

    with Master(tmp_path / "master") as master:
        follow: Callable[[], Replica] = lambda: Replica(  # noqa: E731
            "127.0.0.1", master.broker.port, tmp_path / "replica", from_start=True
        )
        writer = Writer(master)
        writer.start()
        try:
            with follow():
                query = start(processingTime="0 seconds")
                until_it_read(query, 0)
            query.stop()
            with follow() as replica:
                query = start(processingTime="0 seconds")
                until_it_read(query, 0)
                query.stop()
                writer.stopped.set()
                writer.join()
                assert replica.wait(master.tell(), 60)
        finally:
            writer.stopped.set()
            writer.join()
        start(availableNow=True).awaitTermination()
    found = sorted(int(row["body"]) for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert found == list(range(writer.count))
