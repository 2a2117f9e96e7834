"""In a real Spark: planned beside the driver, read and written by its workers, tasks retried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from messagestore.mending.verification import verify_store
from sparkstore import BadOption, message_schema, read_messages, read_meta
from sparkstore.jobs import audit, compact, export, reindex, stats
from sparkstore.spark_errors import JobError, find_store_error, plain_errors
from storageio import StoreCorrupt, UnknownStore

from .conftest import ROOT
from .local import copied, dumped, tree
from .stores import SMALL, damage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def collected(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.orderBy("physical_offset").collect()]


def test_the_format_is_found_and_rows_equal_the_dump(spark: SparkSession, fixture_store: Any) -> None:
    """Without registration, through the thin module; splits inside files; every column."""
    store = fixture_store("plain").store
    frame = spark.read.format("brokerstore").option("splitBytes", "50001").load(str(store))
    assert frame.schema == message_schema()
    assert collected(frame) == dumped(store)


def test_sql_filters_and_several_stores(spark: SparkSession, made: Path, fixture_store: Any) -> None:
    """`USING brokerstore`; conditions pushed down, and not; a list of folders and a pattern."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW messages USING brokerstore OPTIONS (path '{made}')")
    truth = dumped(made)
    query = "SELECT count(*) n FROM messages WHERE topic = 'topic-1' AND queue_offset >= 30 AND tags = 'paid'"
    wanted = sum(1 for row in truth if row["topic"] == "topic-1" and row["queue_offset"] >= 30 and row["tags"] == "paid")
    assert spark.sql(query).first()[0] == wanted > 0  # type: ignore[index]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = spark.read.format("brokerstore").option("pushFilters", "true").load(str(made))
        pushed.createOrReplaceTempView("messages")
        assert spark.sql(query).first()[0] == wanted  # type: ignore[index]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    other = str(fixture_store("propcrc").store)
    counts = {
        row["store"]: row["count"]
        for row in read_messages(spark, [str(made), other], ["store"]).groupBy("store").count().collect()
    }
    assert counts == {str(made): len(truth), other: len(dumped(other))}


def test_an_error_names_file_and_offset_and_no_row_comes(spark: SparkSession, made: Path) -> None:
    """Damage, an unknown column, an unknown option, no store: what Spark throws holds our words."""
    file, at = damage(made, next(row for row in dumped(made)[700:] if len(row["body"]) == 300))
    with pytest.raises(JobError) as caught, plain_errors():
        spark.read.format("brokerstore").load(str(made)).collect()
    assert caught.value.kind is StoreCorrupt and f"{file} at byte {at}" in str(caught.value)
    with pytest.raises(JobError, match="no column 'nonsense'"), plain_errors():
        spark.read.format("brokerstore").schema("nonsense string").load(str(made)).collect()
    with pytest.raises(JobError, match="no option 'colour'"), plain_errors():
        read_meta(spark, str(made), colour="red").collect()
    with pytest.raises(JobError, match="no such folder") as caught, plain_errors():
        spark.read.format("brokerstore").load("/nowhere/at/all").collect()
    assert caught.value.kind is UnknownStore
    told = spark.read.format("brokerstore").option("badRecords", "report").load(str(made))
    assert told.where("problem is not null").count() == 1
    assert find_store_error("ValueError: something else") is None


def test_reindex_with_a_task_killed_in_the_middle(
    spark: SparkSession, fixture_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies in the middle of the merge; the second attempt makes the bytes of the real broker."""
    real = fixture_store("plain").store
    store = copied(real, tmp_path / "store")
    for path in (store / "consumequeue").rglob("*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    from sparkstore.jobs import reindex_source

    flag = tmp_path / "killed"
    killer = _killer(reindex_source.ReindexSource, str(flag))
    monkeypatch.setattr(reindex_source, "ReindexSource", killer)
    reindex(spark, str(store), splitBytes="300000")
    assert flag.exists(), "a worker was killed"
    assert tree(store / "consumequeue") == tree(real / "consumequeue")
    assert tree(store / "index") == tree(real / "index")
    assert not [path for path in (store / "brokerstore").iterdir() if path.name.startswith("rebuild-spark")]


def _killer(source: Any, flag: str) -> Any:
    """The same source, whose first writing task dies with half of its work done."""

    class Killer(source):  # type: ignore[misc]
        def writer(self, schema: Any, overwrite: bool) -> Any:
            made = super().writer(schema, overwrite)
            whole = made.write

            def write(batches: Any) -> Any:
                if not os.path.exists(flag):
                    open(flag, "w").close()
                    list(batches)
                    os._exit(1)
                return whole(batches)

            made.write = write
            return made

    Killer.__module__ = "__main__"  # pickled by value: workers have no tests
    return Killer


def test_audit_on_spark(spark: SparkSession, made: Path) -> None:
    """The same as the engine's own verification; a frame of problems."""
    report = audit(spark, str(made), splitBytes="100000")
    assert report.is_ok and report.counts["messages"] == verify_store(str(made), SMALL).counts()["records"]
    file, at = damage(made, next(row for row in dumped(made)[500:] if len(row["body"]) == 300))
    problems = audit(spark, str(made), splitBytes="100000").to_frame(spark).collect()
    assert (file, at, "bad_body_crc") in {(row["file"], row["offset"], row["kind"]) for row in problems}


def test_stats_are_those_of_the_dump(spark: SparkSession, made: Path) -> None:
    """By queue, key, hour, size and topic."""
    truth = dumped(made)
    for row in stats(spark, str(made), "queue").collect():
        mine = [one for one in truth if (one["topic"], one["queue_id"]) == (row["topic"], row["queue_id"])]
        assert (row["messages"], row["size_bytes"]) == (len(mine), sum(one["size"] for one in mine))
        assert row["first_store_timestamp_ms"] == mine[0]["store_timestamp_ms"]
    keys = {(row["topic"], row["key"]): row["messages"] for row in stats(spark, str(made), "key").collect()}
    assert keys["topic-1", "k3"] == sum(1 for one in truth if one["topic"] == "topic-1" and "k3" in one["keys"])
    for by, column in (("hour", "hour_ms"), ("size", "size_below"), ("topic", "topic")):
        rows = stats(spark, str(made), by).collect()
        assert sum(row["messages"] for row in rows) == len(truth) and all(row[column] for row in rows)
    with pytest.raises(BadOption):
        stats(spark, str(made), "colour")


def test_export_partitions_by_topic_and_day(spark: SparkSession, fixture_store: Any, tmp_path: Path) -> None:
    """What is read back is what was there; a body that is JSON is a struct."""
    store, out = fixture_store("plain").store, tmp_path / "out"
    export(spark, str(store), str(out), json="struct<no_such_field:string>")
    found = spark.read.parquet(str(out))
    truth = dumped(store)
    assert collected(found.select(list(truth[0]))) == truth
    days = {str(row["day"]) for row in found.select("day").distinct().collect()}
    assert days == {"2023-11-14"}
    assert (out / "topic=SpreadTopic" / "day=2023-11-14").is_dir()
    before = tree(out)
    with pytest.raises(Exception, match="exists"):
        export(spark, str(store), str(out))
    assert tree(out) == before


def test_compact_keeps_the_last_message_of_each_key(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    """In the old order; a store that verifies."""
    truth, last = dumped(made), {}
    for row in truth:
        last.update({(row["topic"], key): row["physical_offset"] for key in row["keys"]})
    kept = [row for row in truth if not row["keys"] or row["physical_offset"] in last.values()]
    sizes = {"mappedFileSizeCommitLog": "1m", "maxHashSlotNum": "100", "maxIndexNum": "40000"}
    count = compact(spark, str(made), str(tmp_path / "new"), sink=sizes)
    assert count == len(kept) < len(truth)
    found = dumped(tmp_path / "new")
    same = ("topic", "queue_id", "body", "keys", "tags")
    assert [[row[name] for name in same] for row in found] == [[row[name] for name in same] for row in kept]
    assert verify_store(str(tmp_path / "new")).is_ok
    with pytest.raises(UnknownStore, match="there already"):
        compact(spark, str(made), str(tmp_path / "new"))


def test_over_spark_connect(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    """A server of its own on this machine: source, audit, stats, export and reindex through DataFrames alone."""
    pytest.importorskip("grpc")
    script = tmp_path / "client.py"
    script.write_text(
        textwrap.dedent(f"""
        import json
        from pyspark.sql import SparkSession
        from sparkstore import read_messages
        from sparkstore.jobs import audit, export, reindex, stats
        spark = (SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
                 .config("spark.sql.shuffle.partitions", "2").config("spark.driver.memory", "1g").getOrCreate())
        path, out = {str(made)!r}, {str(tmp_path / "parquet")!r}
        rows = read_messages(spark, path, ["physical_offset"]).count()
        report = audit(spark, path)
        reindex(spark, path)
        again = audit(spark, path)
        export(spark, path, out)
        print("FOUND", json.dumps([type(spark).__module__, rows, report.is_ok, again.is_ok, stats(spark, path).count(),
                                   spark.read.parquet(out).count()]))
        spark.stop()
        """)
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment.pop("SPARK_CONNECT_MODE_ENABLED", None)
    told = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False, cwd=tmp_path
    )
    lines = [line for line in told.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, told.stderr[-3000:]
    assert json.loads(lines[0][6:]) == ["pyspark.sql.connect.session", 1500, True, True, 3, 1500]


def test_the_command_line(spark: SparkSession, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In this session: results on stdout, talk on stderr, the tool's exit codes."""
    from sparkstore.__main__ import main

    assert main(["audit", str(made), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["ok"] is True and "audit: done in" in told.err
    assert main(["stats", str(made), "--by", "topic"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[:2] == ["topic", "messages"]
    assert main(["reindex", str(made), "consumequeue"]) == 0
    assert main(["audit", "/nowhere"]) == 3
    assert "no such folder" in capsys.readouterr().err
    assert main(["audit", str(made), "-o", "topic=x"]) == 2
    from messagestore import MessageStore

    with MessageStore.open(made, config=SMALL):
        assert main(["reindex", str(made)]) == 4
    damage(made, next(row for row in dumped(made)[500:] if len(row["body"]) == 300))
    assert main(["audit", str(made)]) == 1
    assert "bad body crc" in capsys.readouterr().out
    with pytest.raises(JobError) as caught:
        reindex(spark, str(made))
    assert caught.value.kind is StoreCorrupt


def test_export_and_audit_of_rabbitmq_folders(spark: SparkSession, fixture_store: Any, tmp_path: Path) -> None:
    """Partitioned by queue; what is read back is what the folder holds."""
    folder = str(fixture_store("rabbitmq-clean").folder.parent / "vhost")
    export(spark, folder, str(tmp_path / "out"), is_rabbit=True)
    found = spark.read.parquet(str(tmp_path / "out"))
    truth = spark.read.format("brokerstore").load(folder)
    assert sorted(row["msg_id"] for row in found.select("msg_id").collect()) == sorted(row["msg_id"] for row in truth.collect())
    assert audit(spark, folder).is_ok
