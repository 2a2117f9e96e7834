"""The JVM source returns the rows and errors of the Python source, for every folder, damage, column and condition."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from bench import spark_predicates
from bench.spark_equals_dump import names, real_folder
from commitlog import Message
from fuzz import jvm_ranges
from messagestore import MessageStore
from sparkstore import message_schema, read_messages
from sparkstore.jar import JVM_FORMAT, PYTHON_FORMAT, jar_path
from sparkstore.schema import MESSAGE_COLUMNS, TIMES
from sparkstore.spark_errors import find_store_error
from storageio import StoreError
from tests.amounts import amount

from .local import dumped, of_spark, rows
from .stores import SMALL, damage
from .test_predicates import term

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(jar_path() is None, reason="the jar is not built: make jvm"),
]
METRIC = "rowsReadByPython"
ROCKETMQ = [name for name in names() if not name.startswith("rabbit")]


def frame(spark: SparkSession, path: Any, **options: Any) -> DataFrame:
    return spark.read.format(JVM_FORMAT).options(**{name: str(value) for name, value in options.items()}).load(str(path))


def of_jvm(spark: SparkSession, path: Any, **options: Any) -> list[dict[str, Any]]:
    return of_spark(frame(spark, path, **options).collect())


def rows_by_python(found: DataFrame) -> int:
    """Return how many of the rows of a collected frame the JVM had read by Python."""
    plan: Any = found._jdf.queryExecution().executedPlan()
    return int(plan.collectLeaves().head().metrics().get(METRIC).get().value())


def error_of(spark: SparkSession, path: Any, **options: Any) -> str:
    with pytest.raises(Exception) as caught:
        of_jvm(spark, path, **options)
    found = find_store_error(str(caught.value))
    assert found is not None, caught.value
    return str(found)


def error_of_python(path: Any, **options: Any) -> str:
    with pytest.raises(StoreError) as caught:
        rows(path, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", ROCKETMQ)
def test_rows_of_every_folder(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Folders of real brokers, with damage as rows."""
    path = real_folder(name, tmp_path)
    for split_bytes in ("64k", "77777"):
        options = {"splitBytes": split_bytes, "badRecords": "report"}
        assert of_jvm(spark, path, **options) == rows(path, **options)


def test_healthy_records_are_decoded_in_java(spark: SparkSession, made: Path) -> None:
    """The rows come from the JVM, in order, for any split; a damaged record's range ends with Python's."""
    for split_bytes in ("0", "10000", "64k"):
        found = frame(spark, made, splitBytes=split_bytes)
        assert of_spark(found.collect()) == dumped(made)
        assert rows_by_python(found) == 0
    damage(made, dumped(made)[700])
    found = frame(spark, made, badRecords="report", splitBytes="20000")
    assert of_spark(found.collect()) == rows(made, badRecords="report", splitBytes="20000")
    assert 0 < rows_by_python(found) < 100


def test_counts_need_no_column(spark: SparkSession, made: Path) -> None:
    """Spark asks for no column.  Where damage is skipped the count is that of the rows; else bodies that nobody reads count."""
    expected = dumped(made)
    damage(made, expected[700])
    assert frame(spark, made).count() == len(expected)
    assert frame(spark, made, badRecords="skip", splitBytes="9000").count() == len(expected) - 1
    assert frame(spark, made, badRecords="report").count() == len(expected)


def test_errors_are_those_of_the_python_source(spark: SparkSession, made: Path) -> None:
    """Damage, options and columns; `sparkstore.plain_errors` finds the line."""
    for options in ({"topics": "t"}, {"splitBytes": "x"}, {"topic": "nosuch"}, {"badRecords": "maybe"}, {"queue": "q"}):
        assert error_of(spark, made, **options) == error_of_python(made, **options)
    assert error_of(spark, made / "none") == error_of_python(made / "none")
    damage(made, dumped(made)[700])
    expected = error_of_python(made)
    assert "bad body crc" in expected.lower() or "crc" in expected
    assert error_of(spark, made) == expected


def test_bad_records_of_every_kind(spark: SparkSession, made: Path) -> None:
    """Skipped, reported and refused, with small splits; the schema of a report has the column `problem`."""
    for row in random.Random(3).sample(dumped(made), 12):
        damage(made, row)
    for options in ({"badRecords": "skip"}, {"badRecords": "report"}, {"badRecords": "report", "checkCrc": "false"}):
        for split_bytes in ("0", "9000"):
            assert of_jvm(spark, made, splitBytes=split_bytes, **options) == rows(made, splitBytes=split_bytes, **options)
    reported = frame(spark, made, badRecords="report").select("topic", "problem.kind").where("kind is not null")
    assert reported.count() == 12


def test_forged_records_in_a_body(spark: SparkSession, forged: Path) -> None:
    """A split that begins inside a body full of records returns none of them."""
    for split_bytes in ("64", "500", "64k"):
        assert of_jvm(spark, forged, splitBytes=split_bytes) == rows(forged, splitBytes=split_bytes)


def test_unusual_records(spark: SparkSession, tmp_path: Path) -> None:
    """Long topics, other alphabets, IPv6 hosts, no checksum property, properties that are missing, and bodies of all sizes."""
    with MessageStore.open(tmp_path / "store", config=SMALL.but(enabled_append_prop_crc=False)) as store:
        for number in range(40):
            store.put(Message("t", bytes(number), tags=None if number % 2 else "маленький", keys=["键", "a"][: number % 3]))
        store.put(Message("t", b"x", born_host="[::1]:7"))
        store.put(Message("u" * 127, b"", properties={"a": "b c", "d": "\u20ac\U0001f600"}))
        store.put(Message("%RETRY%" + "u" * 200, b"long"))
        store.put(Message("t", b"after"))
    for split_bytes in ("0", "2000"):
        found = frame(spark, tmp_path / "store", splitBytes=split_bytes)
        assert of_spark(found.collect()) == rows(tmp_path / "store", splitBytes=split_bytes) == dumped(tmp_path / "store")
        assert 0 < rows_by_python(found) < 40
    for options in ({"key": "a"}, {"assign": '{"t": [0, 1]}'}, {"startingOffsets": "2000"}, {"bodyDecoding": "plain"}):
        assert of_jvm(spark, tmp_path / "store", **options) == rows(tmp_path / "store", **options)


def test_brokerstore_is_the_source_that_fits(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    """Java reads healthy logs; the Python source of the same name, which the jar hides, reads what it selects, and writes."""
    found = read_messages(spark, made, ["topic", "store_timestamp_ms"], topic="topic-1", startingTimestamp=1)
    assert rows_by_python(found) == 0
    assert {row["topic"] for row in of_spark(found.collect())} == {"topic-1"}
    assert found.count() == sum(row["topic"] == "topic-1" for row in dumped(made))
    by_key = read_messages(spark, made, key="only-7")
    assert of_spark(by_key.collect()) == rows(made, key="only-7")
    by_name = spark.read.format(PYTHON_FORMAT).load(str(made))
    assert of_spark(by_name.collect()) == dumped(made)
    of_rabbit = spark.read.format("brokerstore").load(str(real_folder("rabbitmq4-clean", tmp_path)))
    assert of_rabbit.count() > 0
    for frame_of_python in (by_key, by_name, of_rabbit):
        assert JVM_FORMAT not in frame_of_python._jdf.queryExecution().toString()
    found.selectExpr("topic", "cast(topic AS binary) AS body").write.format("brokerstore").mode("append").save(
        f"{tmp_path}/copy"
    )
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW copied USING brokerstore OPTIONS (path '{tmp_path}/copy')")
    copied = spark.sql("SELECT topic, body FROM copied")
    assert rows_by_python(copied) == 0
    assert [bytes(row["body"]) for row in of_spark(copied.collect())] == [b"topic-1"] * found.count()


def test_object_stores_are_read_by_python(spark: SparkSession, made: Path) -> None:
    """Paths with a protocol go through fsspec, whose driver every process of the cluster must have."""
    found = spark.read.format("brokerstore").option("splitBytes", "64k").load(f"local://{made}")
    assert JVM_FORMAT not in found._jdf.queryExecution().toString()
    assert of_spark(found.collect()) == dumped(made)
    by_name = frame(spark, f"local://{made}", splitBytes="64k")
    assert of_spark(by_name.collect()) == dumped(made)
    assert rows_by_python(by_name) == len(dumped(made))


def test_conditions_and_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Random selections equal Spark's own over the rows of the Python source."""
    spark_predicates.make(tmp_path / "store", 600)
    expected, chance = dumped(tmp_path / "store"), random.Random(44)
    whole = spark.read.format(PYTHON_FORMAT).load(str(tmp_path / "store")).persist()
    try:
        for number in range(amount(40, 400)):
            where = chance.choice((" AND ", " OR ")).join(term(chance, expected)[1] for _ in range(chance.randint(1, 3)))
            where = where.replace("TIMESTAMPTZ", "TIMESTAMP")
            columns = chance.sample(list(MESSAGE_COLUMNS), chance.randint(1, 5))
            split_bytes = chance.choice(("64k", "77777", "1g", "0"))
            found = frame(spark, tmp_path / "store", splitBytes=split_bytes).where(where).select(*columns)
            assert found.collect() == whole.where(where).select(*columns).collect(), (number, where, columns)
    finally:
        whole.unpersist()


def test_a_zero_in_topic_or_properties(spark: SparkSession, tmp_path: Path) -> None:
    """No checksum covers them without the property of the whole record, so a zero there is the only sign of lost bytes."""
    with MessageStore.open(tmp_path / "store", config=SMALL.but(enabled_append_prop_crc=False)) as store:
        for text in ("zero", "plain", "other"):
            store.put(Message(f"in-{text}", b"body", keys=[f"key-{text}"]))
    (file,) = (path for path in (tmp_path / "store" / "commitlog").iterdir() if path.name.isdecimal())
    whole = file.read_bytes()
    for sign in (b"in-zero", b"key-plain"):
        file.write_bytes(whole.replace(sign, b"\0" + sign[1:]))
        for options in ({"badRecords": "report"}, {"badRecords": "report", "checkCrc": "false"}):
            found = frame(spark, tmp_path / "store", **options)
            assert of_spark(found.collect()) == rows(tmp_path / "store", **options)
            assert rows_by_python(found) > 0


def test_fuzzed_ranges(spark: SparkSession, tmp_path: Path) -> None:
    """Flip bytes in every file of a log: each is a range, and each must have the rows and findings of the Python source."""
    chance = random.Random(11)
    config = SMALL.but(mapped_file_size_commit_log=8192)
    for has_crc in (True, False):
        with MessageStore.open(tmp_path / f"whole-{has_crc}", config=config.but(enabled_append_prop_crc=has_crc)) as store:
            for number in range(700):
                body = chance.randbytes(chance.choice((0, 1, 40, 300, 1500)))
                store.put(Message(f"topic-{number % 3}", body, tags="paid" if number % 2 else None, keys=[f"k{number}", "b"]))
    for number in range(8):
        path = tmp_path / "damaged"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / f"whole-{number % 2 == 0}", path)
        for file in sorted((path / "commitlog").iterdir()):
            data = bytearray(file.read_bytes())
            for _ in range(chance.randint(0, 3)):
                at = chance.randrange(len(data))
                data[at] = chance.choice((0, 1, 2, 0x80, 0xFF, data[at] ^ 1 << chance.randrange(8)))
            file.write_bytes(data)
        options = {
            "badRecords": "report",
            "splitBytes": chance.choice(("0", "3000")),
            "checkCrc": ("auto", "false")[number // 2 % 2],
        }
        schema = message_schema([name for name in MESSAGE_COLUMNS if name not in TIMES], problem=True)
        found = spark.read.format(JVM_FORMAT).options(**options).schema(schema).load(str(path))
        assert of_spark(found.collect()) == rows(path, schema, **options), (number, options)


def test_fuzzed_ranges_without_spark(tmp_path: Path) -> None:
    """Damaged ranges have the rows of the Python source up to the record where Java stops; a wrong row is noticed."""
    done = list(jvm_ranges.compare(amount(4000, 1_000_000), 44, tmp_path))[-1]
    assert done.ranges > done.ended > done.ranges // 4
    assert done.rows > done.ranges
