"""A real Spark: planning beside the driver, reading and writing in workers, repeated tasks."""

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

from bench.spark_equals_dump import SOURCES
from commitlog import Message
from messagestore import MessageStore
from messagestore.config import DELAY_LEVELS
from messagestore.repair.verification import verify_store
from sparkstore import BadOption, MissingColumn, message_schema, read_messages, read_meta
from sparkstore.jar import jar_path
from sparkstore.jobs import audit, compact, export, reindex, stats
from sparkstore.spark_errors import JobError, find_store_error, plain_errors
from storageio import StoreCorrupt, UnknownStore
from tests.helpers import contents

from .conftest import ROOT
from .local import copied, dumped, of_spark
from .stores import SMALL, damage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = 1_700_000_000_000
SINK = {"mappedFileSizeCommitLog": "1m", "maxHashSlotNum": "100", "maxIndexNum": "40000"}

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def collected(frame: Any) -> list[dict[str, Any]]:
    return of_spark(frame.orderBy("physical_offset").collect())


def test_the_format_is_found_and_rows_equal_the_dump(spark: SparkSession, fixture_store: Any) -> None:
    """The format needs no registration; splits within files give every column."""
    store = fixture_store("plain").store
    frame = spark.read.format("brokerstore").option("splitBytes", "50001").load(str(store))
    assert frame.schema == message_schema()
    assert collected(frame) == dumped(store)


def test_sql_filters_and_several_stores(spark: SparkSession, made: Path, fixture_store: Any) -> None:
    """`USING brokerstore` works, conditions are pushed down, and a list of folders gives the store of each row."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW messages USING brokerstore OPTIONS (path '{made}')")
    expected = dumped(made)
    query = "SELECT count(*) n FROM messages WHERE topic = 'topic-1' AND queue_offset >= 30 AND tags = 'paid'"
    requested = sum(1 for row in expected if row["topic"] == "topic-1" and row["queue_offset"] >= 30 and row["tags"] == "paid")
    assert spark.sql(query).first()[0] == requested > 0  # type: ignore[index]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = spark.read.format("brokerstore-python").option("pushFilters", "true").load(str(made))
        pushed.createOrReplaceTempView("messages")
        assert spark.sql(query).first()[0] == requested  # type: ignore[index]
        plan = pushed.where("topic = 'topic-1' AND queue_offset >= 30 AND tags = 'paid'")._jdf.queryExecution().executedPlan()
        left = next(line for line in plan.toString().splitlines() if "Filter" in line)
        assert "= paid" in left and "topic-1" not in left and ">=" not in left, "Spark filters what was pushed"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    other = str(fixture_store("propcrc").store)
    counts = {
        row["store"]: row["count"]
        for row in read_messages(spark, [str(made), other], ["store"]).groupBy("store").count().collect()
    }
    assert counts == {str(made): len(expected), other: len(dumped(other))}


def test_an_error_has_file_and_offset_and_returns_no_rows(spark: SparkSession, made: Path) -> None:
    """Spark's exception contains our message for damage and wrong columns, options and paths."""
    file, at = damage(made, next(row for row in dumped(made)[700:] if len(row["body"]) == 300))
    with pytest.raises(JobError) as caught, plain_errors():
        spark.read.format("brokerstore").load(str(made)).collect()
    assert caught.value.kind is StoreCorrupt and f"{file} at byte {at}" in str(caught.value)
    with pytest.raises(JobError, match="unknown column 'nonsense'"), plain_errors():
        spark.read.format("brokerstore").schema("nonsense string").load(str(made)).collect()
    with pytest.raises(JobError, match="unknown option 'colour'"), plain_errors():
        read_meta(spark, str(made), colour="red").collect()
    with pytest.raises(JobError, match="no such folder") as caught, plain_errors():
        spark.read.format("brokerstore").load("/nowhere/at/all").collect()
    assert caught.value.kind is UnknownStore
    reported = spark.read.format("brokerstore").option("badRecords", "report").load(str(made))
    assert reported.where("problem is not null").count() == 1
    assert find_store_error("ValueError: something else") is None


def test_reindex_with_a_task_killed_in_the_middle(
    spark: SparkSession, fixture_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies during the merge; the second attempt gives the bytes of the real broker."""
    real = fixture_store("plain").store
    store = copied(real, tmp_path / "store")
    for path in (store / "consumequeue").rglob("*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    from sparkstore.jobs import reindex_source

    flag = tmp_path / "killed"
    killer = _killer(reindex_source.ReindexSource, str(flag))
    monkeypatch.setattr(reindex_source, "ReindexSource", killer)
    reindex(spark, str(store), splitBytes="300000", delayLevels=DELAY_LEVELS)  # the units no longer show them
    assert flag.exists(), "a worker was killed"
    assert contents(store / "consumequeue") == contents(real / "consumequeue")
    assert contents(store / "index") == contents(real / "index")
    assert not [path for path in (store / "brokerstore").iterdir() if path.name.startswith("rebuild-spark")]


def _killer(source: Any, flag: str) -> Any:
    """Return a source whose first writing task ends the process after its input was read."""

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

    Killer.__module__ = "__main__"  # pickled by value, since workers cannot import the tests
    return Killer


def test_audit_on_spark(spark: SparkSession, made: Path) -> None:
    """The counts are those of the engine's verification, and the problems are a data frame."""
    report = audit(spark, str(made), splitBytes="100000")
    assert report.is_ok and report.counts["messages"] == verify_store(str(made), SMALL).counts()["records"]
    file, at = damage(made, next(row for row in dumped(made)[500:] if len(row["body"]) == 300))
    problems = audit(spark, str(made), splitBytes="100000").to_frame(spark).collect()
    assert (file, at, "bad_body_crc") in {(row["file"], row["offset"], row["kind"]) for row in problems}


def test_stats_are_those_of_the_dump(spark: SparkSession, made: Path) -> None:
    """Statistics by queue, key, hour, size and topic equal a plain count."""
    expected = dumped(made)
    for row in stats(spark, str(made), "queue").collect():
        mine = [one for one in expected if (one["topic"], one["queue_id"]) == (row["topic"], row["queue_id"])]
        assert (row["messages"], row["size_bytes"]) == (len(mine), sum(one["size"] for one in mine))
        assert row["first_store_timestamp_ms"] == mine[0]["store_timestamp_ms"]
    keys = {(row["topic"], row["key"]): row["messages"] for row in stats(spark, str(made), "key").collect()}
    assert keys["topic-1", "k3"] == sum(1 for one in expected if one["topic"] == "topic-1" and "k3" in one["keys"])
    groupings: dict[str, Any] = {
        "hour": lambda row: (row["store_timestamp_ms"] // 3_600_000 * 3_600_000, row["topic"]),
        "size": lambda row: (1 << row["size"].bit_length(),),
        "topic": lambda row: (row["topic"],),
    }
    for by, key_of in groupings.items():
        groups: dict[Any, list[dict[str, Any]]] = {}
        for row in expected:
            groups.setdefault(key_of(row), []).append(row)
        requested = [(*key, *_facts(groups[key])) for key in sorted(groups)]
        assert [tuple(row) for row in stats(spark, str(made), by).collect()] == requested
    other = str(copied(made, made.parent / "made-2"))
    both = stats(spark, [str(made), other], "topic").collect()
    assert [(row["store"], row["topic"], row["messages"]) for row in both] == [
        (store, f"topic-{number}", 500) for store in (str(made), other) for number in range(3)
    ]
    with pytest.raises(BadOption):
        stats(spark, str(made), "colour")


def _facts(rows: list[dict[str, Any]]) -> tuple[int, int, int, int]:
    """Return count, bytes, first time and last time of messages."""
    times = [row["store_timestamp_ms"] for row in rows]
    return len(rows), sum(row["size"] for row in rows), min(times), max(times)


def test_export_partitions_by_topic_and_day(spark: SparkSession, fixture_store: Any, tmp_path: Path) -> None:
    """The files hold the same messages, and the result has their number and size."""
    store, out = fixture_store("plain").store, tmp_path / "out"
    reported = export(spark, str(store), str(out))
    found = spark.read.parquet(str(out))
    expected = dumped(store)
    files = len(list(out.rglob("*.parquet")))
    assert reported == (str(out), len(expected), sum(row["size"] for row in expected), files) and files > 1
    assert collected(found.select(list(expected[0]))) == expected
    days = {str(row["day"]) for row in found.select("day").distinct().collect()}
    assert days == {"2023-11-14"}
    assert (out / "topic=SpreadTopic" / "day=2023-11-14").is_dir()
    before = contents(out)
    with pytest.raises(Exception, match="exists"):
        export(spark, str(store), str(out))
    assert contents(out) == before


BODIES = [b'{"n": 5, "s": "x"}', b"no JSON", b"\xff\xfe", b'{"n": "text"}', b"[1, 2]"]


@pytest.fixture
def of_json(tmp_path: Path) -> Path:
    """A store with JSON bodies and others."""
    with MessageStore.open(tmp_path / "json", config=SMALL) as store:
        store.put_many([Message("t", body, queue_id=0) for body in BODIES])
    return tmp_path / "json"


def test_bodies_as_json(spark: SparkSession, of_json: Path, tmp_path: Path) -> None:
    """A valid body gives a struct, any other null; one bad body used to end the job."""
    out = str(tmp_path / "out")
    reported = export(spark, str(of_json), out, json="n int", columns=["body", "queue_offset"])
    assert reported[:3] == (out, 5, None)
    found = spark.read.parquet(out).orderBy("queue_offset")
    assert found.columns == ["body", "queue_offset", "store_timestamp_ms", "json", "topic", "day"]
    assert [row["json"] and row["json"]["n"] for row in found.collect()] == [5, None, None, None, None]


def test_export_of_several_stores(spark: SparkSession, of_json: Path, tmp_path: Path) -> None:
    """Each row has its store; it used to be missing."""
    other = copied(of_json, tmp_path / "json-2")
    export(spark, f"{tmp_path}/json*", str(tmp_path / "out"))
    rows = spark.read.parquet(str(tmp_path / "out")).groupBy("store").count().collect()
    assert {row["store"]: row["count"] for row in rows} == {str(of_json): 5, str(other): 5}


def test_compact_of_several_stores(spark: SparkSession, tmp_path: Path) -> None:
    """Stores share physical offsets, so messages must be compared by time: superseded ones used to be kept."""
    for name, now_ms in (("a", T0), ("b", T0 + 1000)):
        with MessageStore.open(tmp_path / name, config=SMALL, clock=lambda now_ms=now_ms: now_ms) as store:
            for number, key in enumerate(["k", f"{name}-1", "k", "", "x"] if name == "a" else ["x", f"{name}-1", "y", "k", ""]):
                store.put(Message("t", f"{name}{number}".encode(), keys=[key] if key else [], queue_id=0))
    assert compact(spark, [str(tmp_path / "b"), str(tmp_path / "a")], str(tmp_path / "new"), sink=SINK) == 7
    assert [row["body"] for row in dumped(tmp_path / "new")] == [b"a1", b"a3", b"b0", b"b1", b"b2", b"b3", b"b4"]


def test_compact_keeps_the_last_message_of_each_key(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    """The order is kept, and the new store verifies."""
    expected, last = dumped(made), {}
    for row in expected:
        last.update({(row["topic"], key): row["physical_offset"] for key in row["keys"]})
    kept = [row for row in expected if not row["keys"] or row["physical_offset"] in last.values()]
    count = compact(spark, str(made), str(tmp_path / "new"), sink=SINK)
    assert count == len(kept) < len(expected)
    found = dumped(tmp_path / "new")
    same = ("topic", "queue_id", "body", "keys", "tags")
    assert [[row[name] for name in same] for row in found] == [[row[name] for name in same] for row in kept]
    assert verify_store(str(tmp_path / "new")).is_ok
    before = contents(tmp_path / "new")
    with pytest.raises(JobError, match="the folder is not empty") as caught:
        compact(spark, str(made), str(tmp_path / "new"))
    assert caught.value.kind is UnknownStore and contents(tmp_path / "new") == before


def test_over_spark_connect(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    """All jobs work against a local Connect server, with data frames alone; with the jar that reads by Java."""
    pytest.importorskip("grpc")
    script, jar = tmp_path / "client.py", jar_path() or ""
    script.write_text(
        textwrap.dedent(f"""
        import json
        from pyspark.sql import SparkSession
        from sparkstore import read_messages
        from sparkstore.jobs import audit, compact, export, reindex, stats
        spark = (SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
                 .config("spark.sql.shuffle.partitions", "2").config("spark.driver.memory", "1g")
                 .config("spark.jars", {jar!r}).getOrCreate())
        path, out = {str(made)!r}, {str(tmp_path / "parquet")!r}
        rows = read_messages(spark, path, ["physical_offset"]).count()
        assert spark.read.format({SOURCES[-1]!r}).load(path).where("size > 0").count() == rows
        report = audit(spark, path)
        made = reindex(spark, path)
        again = audit(spark, path)
        exported = export(spark, path, out)
        try:
            compact(spark, path, path)
        except Exception as error:
            refused = [type(error).__name__, "the folder is not empty" in str(error)]
        print("FOUND", json.dumps([type(spark).__module__, rows, report.is_ok, again.is_ok, stats(spark, path).count(),
                                   exported.messages, made.units, made.items, *refused]))
        spark.stop()
        """)
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment.pop("SPARK_CONNECT_MODE_ENABLED", None)
    reported = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False, cwd=tmp_path
    )
    lines = [line for line in reported.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, reported.stderr[-3000:]
    assert json.loads(lines[0][6:]) == ["pyspark.sql.connect.session", 1500, True, True, 3, 1500, 1500, 1500, "JobError", True]


def test_the_command_line(spark: SparkSession, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results go to stdout, diagnostics to stderr, and the exit codes are the tool's."""
    from sparkstore.__main__ import main

    assert main(["audit", str(made), "--json"]) == 0
    reported = capsys.readouterr()
    assert json.loads(reported.out)["ok"] is True and "audit: done in" in reported.err
    assert main(["stats", str(made), "--by", "topic"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[:2] == ["topic", "messages"]
    assert main(["reindex", str(made), "consumequeue"]) == 0
    assert main(["audit", "/nowhere"]) == 3
    assert "no such folder" in capsys.readouterr().err
    assert main(["audit", str(made), "-o", "topic=x"]) == 2
    with MessageStore.open(made, config=SMALL):
        assert main(["reindex", str(made)]) == 4
    damage(made, next(row for row in dumped(made)[500:] if len(row["body"]) == 300))
    assert main(["audit", str(made)]) == 1
    assert "bad body crc" in capsys.readouterr().out
    with pytest.raises(JobError) as caught:
        reindex(spark, str(made))
    assert caught.value.kind is StoreCorrupt


def reported_by(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, list[str]]:
    """Return exit code, results and the diagnostic lines without durations."""
    from sparkstore.__main__ import main

    code = main([str(argument) for argument in arguments])
    reported = capsys.readouterr()
    return (
        code,
        reported.out,
        [line for line in reported.err.splitlines() if line.startswith("sparkstore:") or "Traceback" in line],
    )


def test_options_of_the_command_line(
    spark: SparkSession, of_json: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], fixture_store: Any
) -> None:
    """Each option has its effect."""
    out = tmp_path / "out"
    code, reported, _ = reported_by(
        capsys, "export", of_json, "--to", out, "--columns", "body", "--body-json", "variant", "--json"
    )
    assert code == 0 and json.loads(reported) == {"out": str(out), "messages": 5, "size_bytes": None, "files": 1}
    found = spark.read.parquet(str(out))
    assert set(found.columns) == {"topic", "day", "store_timestamp_ms", "body", "json"}
    numbers = found.selectExpr("try_variant_get(json, '$.n', 'int') n").where("n is not null").collect()
    assert [row["n"] for row in numbers] == [5]
    for mode, messages in (("append", 10), ("ignore", 10), ("overwrite", 5)):
        assert reported_by(capsys, "export", of_json, "--to", out, "--columns", "body", "--mode", mode)[0] == 0
        assert spark.read.schema("body binary").parquet(str(out)).count() == messages
    vhost = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    assert reported_by(capsys, "export", vhost, "--to", tmp_path / "rabbit", "--rabbit", "--columns", "msg_id,size")[0] == 0
    assert set(spark.read.parquet(str(tmp_path / "rabbit")).columns) == {"queue", "msg_id", "size"}
    code, reported, _ = reported_by(capsys, "reindex", of_json, "--json")
    assert (code, json.loads(reported)["units"], json.loads(reported)["items"]) == (0, 5, 0)
    with MessageStore.open(of_json, config=SMALL) as store:
        store.put(Message("t", b"keyed", keys=["k"], queue_id=0))
    code, reported, _ = reported_by(capsys, "compact", of_json, "--to", tmp_path / "compacted", "--drop-unkeyed", "--json")
    assert code == 0 and [row["body"] for row in dumped(tmp_path / "compacted")] == [b"keyed"]


def test_wrong_use_of_the_command_line(
    spark: SparkSession, of_json: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It used to print two tracebacks and exit as after a crash."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    new = tmp_path / "new"
    for text, arguments in (
        ("already exists", ("export", of_json, "--to", tmp_path / "there")),
        ("PARSE", ("export", of_json, "--to", new, "--body-json", "struct<n")),
        ("columns: add body", ("export", of_json, "--to", new, "--body-json", "n int", "--columns", "keys")),
        ("unknown column 'nonsense'", ("export", of_json, "--to", new, "--columns", "nonsense")),
        ("option tasks: 1 to", ("audit", of_json, "--tasks", "0")),
        ("option tasks: 1 to", ("reindex", of_json, "--tasks", "0")),
        ("expected name=value", ("stats", of_json, "-o", "topic")),
        ("option vhost", ("stats", of_json, "-o", "vhost=x")),
    ):
        code, reported, printed = reported_by(capsys, *arguments)
        assert (code, reported, len(printed)) == (2, "", 1), (arguments, printed)
        assert text in printed[0] and not new.exists()
    with pytest.raises(JobError) as caught, plain_errors():
        spark.sql("SELECT 't' topic").write.format("brokerstore").mode("append").save(str(new))
    assert caught.value.kind is MissingColumn


def test_export_and_audit_of_rabbitmq_folders(spark: SparkSession, fixture_store: Any, tmp_path: Path) -> None:
    """The export is partitioned by queue and holds the folder's messages."""
    folder = str(fixture_store("rabbitmq-clean").folder.parent / "vhost")
    export(spark, folder, str(tmp_path / "out"), is_rabbit=True)
    found = spark.read.parquet(str(tmp_path / "out"))
    expected = spark.read.format("brokerstore").load(folder)
    columns = sorted(expected.columns)
    assert sorted(map(repr, found.select(columns).collect())) == sorted(map(repr, expected.select(columns).collect()))
    assert found.count() > 100 and found.select("queue").distinct().count() == len(list((tmp_path / "out").glob("queue=*")))
    assert audit(spark, folder).is_ok
