"""Streams of the JVM source: the rows, batches and checkpoints of the Python source's streams."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from bench.spark_equals_dump import real_folder
from sparkstore import message_schema
from sparkstore.jar import JVM_FORMAT, PYTHON_FORMAT
from sparkstore.source.several_stores import stream_reader
from storageio import StoreError

from .local import dumped, of_spark
from .stores import damage
from .test_jvm_source import METRIC, ROCKETMQ, pytestmark  # noqa: F401 - the same marks
from .test_streaming import T0, Clock, expected_of, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

Run = Callable[..., "StreamingQuery"]


@pytest.fixture
def streamed(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    """Return a function that streams a store to its end with a source, into a folder of Parquet files."""

    def run(source: str, root: Any, out: str, **options: str) -> StreamingQuery:
        frame = spark.readStream.format(source).options(**options).load(str(root))
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / f"{out}-checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / out))
        assert query.awaitTermination(300)
        return query

    yield run
    for query in spark.streams.active:
        query.stop()


def rows_in(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a folder of Parquet files by physical offset."""
    found = of_spark(spark.read.parquet(str(folder)).collect())
    return sorted(found, key=lambda row: row["physical_offset"])


def offsets(checkpoint: Path) -> dict[str, str]:
    """Return the source's offset after each batch, as text."""
    files = {path.name: path.read_text() for path in (checkpoint / "offsets").iterdir() if path.name.isdecimal()}
    return {name: text.splitlines()[-1] for name, text in files.items()}


def rows_by_python(query: StreamingQuery) -> int:
    """Return how many rows of the last batch the JVM had read by Python."""
    last: Any = query._jsq.streamingQuery().lastExecution()
    return int(last.executedPlan().collectLeaves().head().metrics().get(METRIC).get().value())


@pytest.mark.parametrize("name", ROCKETMQ)
def test_rows_and_checkpoint_of_every_folder(spark: SparkSession, tmp_path: Path, streamed: Run, name: str) -> None:
    """Folders of real brokers: the same rows, and the same offsets in the checkpoint."""
    path = real_folder(name, tmp_path)
    options = {"maxBytesPerTrigger": "20k", "badRecords": "report", "splitBytes": "7000"}
    for source in (PYTHON_FORMAT, JVM_FORMAT):
        streamed(source, path, source, **options)
    assert rows_in(spark, tmp_path / JVM_FORMAT) == rows_in(spark, tmp_path / PYTHON_FORMAT)
    assert offsets(tmp_path / f"{JVM_FORMAT}-checkpoint") == offsets(tmp_path / f"{PYTHON_FORMAT}-checkpoint")


def test_each_source_continues_a_checkpoint_of_the_other(spark: SparkSession, tmp_path: Path, streamed: Run) -> None:
    """A query changes its source twice: no message is lost or repeated, and no run makes a batch without rows."""
    clock = Clock()
    for turn, source in enumerate(itertools.islice(itertools.cycle((PYTHON_FORMAT, JVM_FORMAT)), 3)):
        fill(tmp_path / "store", 60, 60 * turn, clock=clock)
        query = streamed(source, tmp_path / "store", "out", maxOffsetsPerTrigger="25")
        assert [progress["numInputRows"] for progress in query.recentProgress] == [25, 25, 10]
        assert len(streamed(source, tmp_path / "store", "out", maxOffsetsPerTrigger="25").recentProgress) <= 1
    bodies = [bytes(row["body"]) for row in rows_in(spark, tmp_path / "out")]
    assert bodies == expected_of(180)
    assert len(offsets(tmp_path / "out-checkpoint")) == 9


@pytest.mark.parametrize(
    ("options", "by_python"),
    [
        ({"startingTimestamp": str(T0 + 3050)}, 0),
        ({"startingOffsets": '{"topic-0": {"0": 12}, "topic-1": {"0": 20}}'}, 43),
        ({"topic": "topic-1"}, 0),
        ({"endingTimestamp": str(T0 + 4050)}, 0),
    ],
)
def test_options_of_a_stream(
    spark: SparkSession, tmp_path: Path, streamed: Run, options: dict[str, str], by_python: int
) -> None:
    """The start by time is decided in Java, those of queues by Python, in every batch; a resumed query keeps its own start."""
    clock = Clock()
    fill(tmp_path / "store", 75, clock=clock)
    for source in (PYTHON_FORMAT, JVM_FORMAT):
        query = streamed(source, tmp_path / "store", source, **options)
    assert rows_by_python(query) == by_python
    fill(tmp_path / "store", 25, 75, clock=clock)
    for source in (JVM_FORMAT, PYTHON_FORMAT):
        streamed(source, tmp_path / "store", source, **options)
    assert rows_in(spark, tmp_path / JVM_FORMAT) == rows_in(spark, tmp_path / PYTHON_FORMAT) != []
    assert offsets(tmp_path / f"{JVM_FORMAT}-checkpoint") == offsets(tmp_path / f"{PYTHON_FORMAT}-checkpoint")


def test_damage_and_several_stores(spark: SparkSession, tmp_path: Path, made: Path, streamed: Run) -> None:
    """Damage is reported by Python; the stores of one query have offsets of their own."""
    damage(made, dumped(made)[700])
    stores = tmp_path / "stores"
    fill(stores / "other", 30)
    made.rename(stores / "made")
    for source in (PYTHON_FORMAT, JVM_FORMAT):
        query = streamed(source, stores / "*", source, badRecords="report", splitBytes="64k")
    found, expected = (rows_in(spark, tmp_path / source) for source in (JVM_FORMAT, PYTHON_FORMAT))
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert len({row["store"] for row in found}) == 2
    assert sum(row["problem"] is not None for row in found) == 1
    assert 0 < rows_by_python(query) < 200
    assert offsets(tmp_path / f"{JVM_FORMAT}-checkpoint") == offsets(tmp_path / f"{PYTHON_FORMAT}-checkpoint")


def test_errors_of_a_stream(tmp_path: Path, streamed: Run) -> None:
    """A wrong option ends the query with the message of the Python source's stream reader."""
    fill(tmp_path / "store", 3)
    wrong = ({"maxBytesPerTrigger": "x"}, {"maxTriggerDelay": "1"}, {"topic": "none"}, {"startingOffsets": "early"})
    for number, options in enumerate(wrong):
        with pytest.raises(StoreError) as expected:
            stream_reader({"path": str(tmp_path / "store"), **options}, message_schema()).initialOffset()
        with pytest.raises(Exception, match=re.escape(str(expected.value))):
            streamed(JVM_FORMAT, tmp_path / "store", str(number), **options)
