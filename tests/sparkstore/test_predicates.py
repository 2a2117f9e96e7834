"""Random conditions against DuckDB: in Spark over the exported Parquet, and pushed down to the source."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from bench import spark_predicates
from bench.spark_equals_dump import SOURCES
from sparkstore import message_schema
from sparkstore.jobs import export
from sparkstore.source.data_source import BrokerStoreSource

from .local import batches, dumped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
MESSAGES = 600
SIGNS: dict[Any, str] = {EqualTo: "=", GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<="}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predicates") / "store"
    spark_predicates.make(path, MESSAGES)
    return path


def term(chance: random.Random, expected: list[dict[str, Any]]) -> tuple[Filter, str]:
    """Return a condition as Spark passes it to the source, and as SQL."""
    name = chance.choice(("topic", "queue_id", "queue_offset", "size", "store_timestamp_ms", "store_time"))
    value = chance.choice(expected)[name]
    if name in ("topic", "queue_id") and chance.random() < 0.3:
        values = tuple(chance.choice(expected)[name] for _ in range(3))
        return In((name,), values), f"{name} IN ({', '.join(map(literal, values))})"
    kind = EqualTo if name == "topic" else chance.choice(list(SIGNS))
    return kind((name,), value), f"{name} {SIGNS[kind]} {literal(value)}"


def literal(value: Any) -> str:
    if isinstance(value, int | str):
        return repr(value)
    return f"TIMESTAMPTZ '{value.isoformat(' ')}'"


def test_conjunctions_pushed_down_equal_duckdb(store: Path, tmp_path: Path) -> None:
    """The source takes every term, and the split size does not matter."""
    duckdb = pytest.importorskip("duckdb")
    names = ["topic", "queue_id", "queue_offset", "size", "store_timestamp_ms", "store_time", "physical_offset"]
    pq.write_table(pa.Table.from_batches(batches(store, message_schema(names))), tmp_path / "rows.parquet")
    rows = duckdb.connect()
    rows.execute(f"CREATE TABLE stored AS SELECT * FROM '{tmp_path}/rows.parquet'")
    chance, expected = random.Random(26), dumped(store)
    schema = message_schema(["physical_offset"])
    for _ in range(200):
        terms = [term(chance, expected) for _ in range(chance.randint(1, 3))]
        options = {"path": str(store), "pushFilters": "true", "splitBytes": chance.choice(("64k", "77777", "1m", "1g", "0"))}
        reader = BrokerStoreSource(options).reader(schema)
        assert list(reader.pushFilters([found for found, _ in terms])) == []
        found = [at for part in reader.partitions() for batch in reader.read(part) for at in batch.column(0).to_pylist()]
        where = " AND ".join(sql for _, sql in terms)
        requested = rows.execute(f"SELECT physical_offset FROM stored WHERE {where} ORDER BY 1").fetchall()
        assert found == [position for (position,) in requested], where


@pytest.mark.parametrize("source", SOURCES)
def test_some_conditions_in_spark_equal_duckdb(spark: SparkSession, store: Path, tmp_path: Path, source: str) -> None:
    """`make spark-night` compares a thousand."""
    pytest.importorskip("duckdb")
    export(spark, str(store), str(tmp_path / "out"))
    try:
        conditions = spark_predicates.Conditions(spark, store, tmp_path / "out", source)
        conditions.compare(12, 7)
        assert (conditions.problems, len(conditions.seconds)) == ([], 12)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
