"""Promises of a real Spark over whole stores: rows, memory of workers, and no partial result of bad input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from bench.spark_equals_dump import SOURCES
from commitlog import Message
from messagestore import MessageStore
from sparkstore import read_messages
from sparkstore.errors import DataLost, UnknownColumn
from sparkstore.jobs import export
from sparkstore.spark_errors import JobError, plain_errors
from storageio import StoreCorrupt, UnknownStore

from .local import dumped, of_spark
from .stores import SMALL, damage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
WORKER_BYTES_MAX = 400_000_000


def test_rows_equal_the_dump_with_several_files_and_uneven_splits(spark: SparkSession, made: Path) -> None:
    """All columns of every row are equal; nothing is lost or repeated."""
    assert len(list((made / "commitlog").iterdir())) > 10
    found = read_messages(spark, str(made), splitBytes="40009").orderBy("physical_offset").collect()
    assert of_spark(found) == dumped(made)


def test_a_pattern_of_folders_with_the_store_of_each_row(spark: SparkSession, made: Path) -> None:
    """The pattern matches two stores and not the third."""
    for name in ("made-2", "other"):
        with MessageStore.open(made.parent / name, config=SMALL) as store:
            store.put_many([Message("t", b"x") for _ in range(7)])
    frame = spark.read.format("brokerstore").load(f"{made.parent}/made*")
    assert frame.schema.names[-1] == "store"
    counts = {row["store"]: row["count"] for row in frame.groupBy("store").count().collect()}
    assert counts == {str(made): 1500, str(made.parent / "made-2"): 7}


def workers_bytes(spark: SparkSession) -> dict[int, int]:
    """Return the peak memory of each Python worker of this session, as the kernel counts it."""
    parents, found = {}, {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                status = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines())
                parents[int(entry.name)] = int(status["PPid"])
                if b"-m\0pyspark." in (entry / "cmdline").read_bytes():
                    found[int(entry.name)] = int(status.get("VmHWM", "0").split()[0]) * 1024
        except OSError:
            continue

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return {pid: size for pid, size in found.items() if is_ours(pid)}


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux says how much memory a process had")
def test_a_worker_stays_under_400_megabytes(spark: SparkSession, tmp_path: Path) -> None:
    """One task reads a larger file with bodies of 1 MiB: batches are limited by bytes, not only by rows."""
    size, path = 1 << 20, tmp_path / "big"
    with MessageStore.open(path, config=SMALL.but(mapped_file_size_commit_log=440 << 20)) as store:
        for number in range(420):
            store.put(Message("t", bytes([number % 251]) * size))
    read = spark.read.format(SOURCES[0]).option("splitBytes", "0")  # the JVM source needs no worker
    frame = read.load(str(path)).selectExpr("length(body) size")
    assert frame.rdd.getNumPartitions() == 1
    assert [tuple(row) for row in frame.groupBy("size").count().collect()] == [(size, 420)]
    found = workers_bytes(spark)
    assert found and max(found.values()) > 60_000_000, "the workers were seen"
    assert max(found.values()) < WORKER_BYTES_MAX, found


def no_store(path: Path) -> tuple[type, str]:
    for entry in (path / "commitlog").iterdir():
        entry.unlink()
    (path / "commitlog").rmdir()
    return UnknownStore, str(path)


def damaged_record(path: Path) -> tuple[type, str]:
    file, at = damage(path, next(row for row in dumped(path)[900:] if len(row["body"]) == 300))
    return StoreCorrupt, f"{file} at byte {at}"


def torn_tail(path: Path) -> tuple[type, str]:
    """Leave what a writer killed within a record leaves: the size without the rest."""
    last, file = dumped(path)[-1], sorted((path / "commitlog").iterdir())[-1]
    (path / "abort").touch()
    (path / "brokerstore" / "clean.json").unlink()
    at = last["physical_offset"] % 65536 + last["size"]
    with file.open("r+b") as log:
        log.seek(at)
        log.write((500).to_bytes(4, "big") + bytes.fromhex("daa320a7"))
    return StoreCorrupt, f"{file} at byte {at}"


def results(folder: Path) -> list[Path]:
    """Return the result files; an aborted job may leave others in `_temporary`."""
    found = [path.relative_to(folder) for path in folder.rglob("*.parquet")]
    return [path for path in found if not any(part.startswith(("_", ".")) for part in path.parts)]


@pytest.mark.parametrize("spoil", [no_store, damaged_record, torn_tail], ids=lambda spoil: spoil.__name__)
def test_bad_input_is_one_error_and_no_partial_result(spark: SparkSession, made: Path, tmp_path: Path, spoil: Any) -> None:
    """The error has kind, file and offset, and there is no output."""
    kind, text = spoil(made)
    with pytest.raises(JobError) as caught:
        export(spark, str(made), str(tmp_path / "out"), splitBytes="100000")
    assert caught.value.kind is kind and text in str(caught.value)
    assert not results(tmp_path / "out"), "no partial result"


def test_an_unknown_column_is_one_error_and_no_partial_result(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    """The error comes before any task."""
    with pytest.raises(JobError) as caught, plain_errors():
        frame = spark.read.format("brokerstore").schema("topic string, colour string").load(str(made))
        frame.write.parquet(str(tmp_path / "out"))
    assert caught.value.kind is UnknownColumn and "colour" in str(caught.value)
    assert not results(tmp_path)


def test_a_file_that_vanishes_while_it_is_read(spark: SparkSession, made: Path, tmp_path: Path) -> None:
    """The error names the file and leaves no partial result; with failOnDataLoss=false the file is skipped."""
    from .killing_source import VanishingSource

    spark.dataSource.register(VanishingSource)
    expected = dumped(made)
    first, second = sorted((made / "commitlog").iterdir())[:2]
    with pytest.raises(JobError) as caught, plain_errors():
        spark.read.format("brokerstore_vanishing").load(str(made)).write.parquet(str(tmp_path / "out"))
    assert caught.value.kind is DataLost and str(first) in str(caught.value)
    assert not results(tmp_path / "out")
    lost = spark.read.format("brokerstore_vanishing").option("failOnDataLoss", "false").load(str(made))
    kept = int(second.name) + 65536
    assert lost.count() == sum(row["physical_offset"] >= kept for row in expected)
