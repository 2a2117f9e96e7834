"""Columns in the types that Spark users expect, the choice of columns, and filters on times."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from commitlog import Message
from messagestore import MessageStore
from sparkstore import BadOption, UnknownColumn, message_schema
from sparkstore.options import option_texts
from sparkstore.source.batches import MS_MAX, _times
from sparkstore.source.data_source import BrokerStoreSource
from sparkstore.source.several_stores import stream_reader

from .local import EPOCH, dumped, rows
from .stores import SMALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
HOUR = timedelta(hours=1)
T0 = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def milliseconds(time: datetime) -> int:
    return (time - EPOCH) // timedelta(milliseconds=1)


@pytest.fixture
def hourly(tmp_path: Path) -> Path:
    """A store with twenty messages of 8 KiB an hour for twenty hours: several files, each of a few hours."""
    now = [0]
    with MessageStore.open(tmp_path / "hourly", config=SMALL, clock=lambda: now[0]) as store:
        for number in range(400):
            now[0] = milliseconds(T0 + HOUR * (number // 20)) + number % 20
            store.put(Message("t", bytes(8192), born_timestamp_ms=now[0] - 1))
    return tmp_path / "hourly"


def test_times_and_text_beside_the_stored_columns(made: Path) -> None:
    """The milliseconds stay, the timestamps are the same moments, and the body is text only if somebody asks for it."""
    found = rows(made, message_schema(["store_time", "store_timestamp_ms", "born_time", "body", "body_text"]))
    expected = dumped(made)
    assert [row["store_time"] for row in found] == [row["store_time"] for row in expected]
    assert [row["born_time"] for row in found] == [row["born_time"] for row in expected]
    assert [row["store_timestamp_ms"] for row in found] == [row["store_timestamp_ms"] for row in expected]
    assert [row["body_text"] for row in found] == [row["body"].decode("utf-8", "replace") for row in expected]
    assert "body_text" not in rows(made)[0]


def test_a_users_schema_with_timestamps(made: Path) -> None:
    """The columns of milliseconds may be declared as timestamps; a wrong type is still an error."""
    fields = [StructField("store_timestamp_ms", TimestampType()), StructField("store_time", TimestampType())]
    assert [(row["store_timestamp_ms"], row["store_time"]) for row in rows(made, StructType(fields))] == [
        (row["store_time"], row["store_time"]) for row in dumped(made)
    ]
    for name, kind in (("store_time", LongType()), ("queue_offset", TimestampType()), ("body_text", TimestampType())):
        with pytest.raises(UnknownColumn, match=f"column '{name}': expected"):
            rows(made, StructType([StructField(name, kind)]))
    assert StringType() == message_schema(["body_text"]).fields[0].dataType


def test_a_time_beyond_microseconds_is_null() -> None:
    """A forged record may have any 64 bits as its time."""
    kind = pa.timestamp("us", "UTC")
    found = _times(pa.array([0, MS_MAX, MS_MAX + 1, -MS_MAX - 1, (1 << 63) - 1], pa.int64()), kind).cast(pa.int64())
    assert found.to_pylist() == [0, MS_MAX * 1000, None, None, None]


def test_the_columns_option_selects_columns(made: Path, fixture_store: Any) -> None:
    """It chooses columns without a schema, in batch and stream, of both kinds of stores."""
    assert list(rows(made, columns="queue_id, body_text,topic")[0]) == ["queue_id", "body_text", "topic"]
    vhost = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    assert list(rows(vhost, columns="store,body_text")[0]) == ["body_text", "store"]
    with pytest.raises(UnknownColumn, match="unknown column 'subject'; the columns are topic"):
        rows(made, columns="subject")
    with pytest.raises(BadOption, match="option columns: the schema has the columns topic; give only one of the two"):
        rows(made, message_schema(["topic"]), columns="body")
    assert stream_reader({"path": str(made), "columns": "topic"}, message_schema(["topic"]))
    with pytest.raises(BadOption, match="option columns"):
        stream_reader({"path": str(made), "columns": "topic"}, message_schema(["body"]))


FILTERS: dict[Any, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq, GreaterThan: operator.gt, GreaterThanOrEqual: operator.ge, LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}  # fmt: skip


def test_random_conditions_on_times_equal_a_plain_filter(hourly: Path) -> None:
    """Bounds between two milliseconds are rounded to the right side; every condition is exact, so none goes back to Spark."""
    chance, expected = random.Random(26), dumped(hourly)
    for _ in range(200):
        kind = chance.choice(list(FILTERS))
        name = chance.choice(("store_time", "born_time", "store_timestamp_ms"))
        bound = chance.choice(expected)["store_time"] + timedelta(microseconds=chance.choice((-1000, -999, -1, 0, 0, 1, 999)))
        reader = BrokerStoreSource({"path": str(hourly), "pushFilters": "true"}).reader(message_schema(["physical_offset"]))
        assert list(reader.pushFilters([kind((name,), bound)])) == []
        found = [
            at for part in reader.partitions() for batch in reader.read(part) for at in batch["physical_offset"].to_pylist()
        ]
        compared = name.replace("_timestamp_ms", "_time")
        assert found == [row["physical_offset"] for row in expected if FILTERS[kind](row[compared], bound)], (kind, name, bound)


def test_a_list_of_times(hourly: Path) -> None:
    """A time that no millisecond equals matches nothing."""
    expected = dumped(hourly)
    times = (expected[3]["store_time"], expected[300]["store_time"], expected[5]["store_time"] + timedelta(microseconds=1))
    for values, requested in ((times, [3, 300]), (times[2:], [])):
        reader = BrokerStoreSource({"path": str(hourly), "pushFilters": "true"}).reader(message_schema(["physical_offset"]))
        assert list(reader.pushFilters([In(("store_time",), values)])) == []
        found = [
            at for part in reader.partitions() for batch in reader.read(part) for at in batch["physical_offset"].to_pylist()
        ]
        assert found == [expected[number]["physical_offset"] for number in requested]


def test_a_filter_on_the_store_time_reads_only_the_files_of_that_time(hourly: Path) -> None:
    """Files are skipped by the time of their first record, with ten minutes for a clock that was set back."""

    def files(*filters: Any) -> int:
        reader = BrokerStoreSource({"path": str(hourly), "pushFilters": "true"}).reader(message_schema(["topic"]))
        reader.pushFilters(list(filters))
        return len({part.value.file for part in reader.partitions()})

    every = files()
    middle = T0 + 10 * HOUR
    assert every > 40
    assert files(GreaterThanOrEqual(("store_time",), middle), LessThan(("store_time",), middle + HOUR)) <= 8
    assert files(GreaterThan(("born_time",), middle)) == every, "records are not ordered by the time of their client"
    assert files(EqualTo(("store_timestamp_ms",), milliseconds(middle))) <= 8


@pytest.mark.spark
def test_spark_pushes_a_filter_on_the_time(spark: SparkSession, hourly: Path) -> None:
    """`where` on a timestamp reaches the source; without the option a frame gives every row after a filtered query."""
    expected = dumped(hourly)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = spark.read.format("brokerstore-python").option("pushFilters", "true").load(str(hourly))
        late = pushed.where("store_time >= timestamp'2023-11-15 08:13:20Z' AND topic = 't'").select("physical_offset")
        plan = late._jdf.queryExecution().executedPlan().toString()
        assert late.count() == 200 and late.rdd.getNumPartitions() < 40
        assert "Filter (isnotnull(store_time" in plan and ">=" not in plan, plan
        frame = spark.read.format("brokerstore").option("columns", "store_time").load(str(hourly))
        assert frame.where("store_time >= timestamp'2023-11-15 08:13:20Z'").count() == 200
        assert frame.count() == len(expected) == 400, "Spark keeps the reader of a frame"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_time_as_the_value_of_an_option(hourly: Path) -> None:
    """Python's own times, with a zone; one between two milliseconds is rounded up."""
    begin = T0 + 10 * HOUR + timedelta(milliseconds=5, microseconds=1)
    given = option_texts({"startingTimestamp": begin, "endingTimestamp": T0 + 11 * HOUR})
    assert len(rows(hourly, **given)) == 14
    with pytest.raises(BadOption, match="option startingTimestamp"):
        option_texts({"startingTimestamp": begin.replace(tzinfo=None)})
