"""A sink that dies at every storage call, with its machine, or with its staged parts: each message is written once."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from messagestore import MessageStore
from sparkstore.sink.commit import Committed, abort_batch, begun_commits, commit_batch, finish_commits
from sparkstore.sink.staging import SinkPart
from storageio import DiskError, StoreError
from storageio.testing import Call, CountingDisk, FailingDisk
from tests.sparkstore import stream_driver
from tests.sparkstore.kill_commit import matters
from tests.sparkstore.sink_tools import SMALL, bodies, commit_rows, left_behind, logged, rows_of, stage_rows
from tests.sparkstore.sink_tools import one_queue as options_for
from tests.sparkstore.test_streaming import FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

SINK = "query-1"
TRIES = 3
FIRST, SECOND = rows_of(20), rows_of(45, start=20)
EXPECTED = [row["body"] for row in FIRST + SECOND]


def commit_until(root: Path, disk: object, rows: list[dict[str, object]] = SECOND) -> Committed | None:
    """Commit the second batch on a disk that may fail; return None if it did."""
    options = options_for(root)
    parts = stage_rows(options, SINK, rows)
    try:
        return commit_batch(options, SINK, 1, parts, disk=disk)  # type: ignore[arg-type]
    except StoreError:
        return None


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if possible, because the tests do hundreds of commits with dozens of syncs each."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def begun(work: Path) -> Path:
    """A store with the first batch."""
    commit_rows(options_for(work / "begun"), SINK, 0, FIRST)
    return work / "begun"


def calls_of_a_commit(begun: Path, work: Path) -> list[Call]:
    disk = CountingDisk()
    shutil.copytree(begun, work / "counted")
    assert commit_until(work / "counted", disk) == Committed(45, 0)
    shutil.rmtree(work / "counted")
    return disk.calls


def those_that_matter(calls: list[Call]) -> list[int]:
    """Return the numbers of the calls before which a kill may leave a state of its own."""
    return [number for number, call in enumerate(calls, 1) if matters(*call)]


@pytest.mark.parametrize("for_ever", [False, True], ids=["one call fails", "the disk is gone from there on"])
def test_a_commit_that_fails_at_any_call_is_repeated(begun: Path, work: Path, for_ever: bool) -> None:
    """Whichever call failed, each message is there once and in order, and nothing is left staged."""
    calls = calls_of_a_commit(begun, work)
    assert {"write", "sync", "rename", "delete", "create", "map"} <= {call.operation for call in calls}
    tried = those_that_matter(calls) if for_ever else range(1, len(calls) + 1, 2)
    failed = 0
    for number in tried:
        root = work / "tried"
        shutil.copytree(begun, root)
        failed += commit_until(root, FailingDisk(number, for_ever=for_ever)) is None
        again = commit_until(root, FailingDisk(0))
        assert again is not None, f"call {number}, {calls[number - 1]}"
        assert bodies(root) == EXPECTED, f"call {number}, {calls[number - 1]}"
        assert left_behind(root) == [], f"call {number}, {calls[number - 1]}"
        shutil.rmtree(root)
    assert failed > len(tried) // 2


@pytest.mark.parametrize("for_ever", [False, True], ids=["one call fails", "the disk is gone from there on"])
def test_a_first_commit_that_fails_at_any_call(work: Path, for_ever: bool) -> None:
    """It used to leave an empty store, which the next job took for an existing one."""
    options, counted, outcomes = options_for(work / "store"), CountingDisk(), set()
    commit_batch(options, "job", 0, stage_rows(options, "job", rows_of(6)), disk=counted)
    shutil.rmtree(work / "store")
    for number in range(1, len(counted.calls) + 1, 3):
        parts = stage_rows(options, "job", rows_of(6))
        try:
            commit_batch(options, "job", 0, parts, disk=FailingDisk(number, for_ever=for_ever))
        except StoreError:
            abort_batch(options, "job")
        whole = work / "store" / "commitlog"
        is_begun = bool(begun_commits(options.path))
        outcome = "begun" if is_begun else "some" if whole.exists() and bodies(options.path) else "none"
        outcomes.add(outcome)
        assert outcome != "none" or for_ever or not (work / "store").exists(), counted.calls[number - 1]
        if outcome == "none":
            assert commit_rows(options, "job", 0, rows_of(6)) == Committed(6, 0)
        elif is_begun:
            commit_rows(options, "job", 0, rows_of(6))
        assert bodies(options.path) == [row["body"] for row in rows_of(6)]
        shutil.rmtree(work / "store")
    assert outcomes >= {"none", "begun"}


def test_rows_in_another_order_the_second_time(begun: Path, work: Path) -> None:
    """A commit that has begun is completed with its own parts, whatever the order of the recomputed rows."""
    calls = calls_of_a_commit(begun, work)
    shuffled = random.Random(1).sample(SECOND, len(SECOND))
    begun_and_died = 0
    for number in those_that_matter(calls)[::2]:
        root = work / "tried"
        shutil.copytree(begun, root)
        commit_until(root, FailingDisk(number, for_ever=True))
        before = len(bodies(root)) - len(FIRST)
        begun_and_died += 0 < before < len(SECOND)
        assert commit_until(root, FailingDisk(0), shuffled) is not None
        found = bodies(root)
        assert sorted(found) == sorted(EXPECTED), f"call {number}, {calls[number - 1]}"
        assert found == EXPECTED or before == 0, f"call {number}, {calls[number - 1]}"
        shutil.rmtree(root)
    assert begun_and_died, "no run died in the middle of its messages"


def test_the_folder_of_staged_parts_is_lost_with_the_crash(begun: Path, work: Path) -> None:
    """The log alone shows how far the batch came, so the same rows are each written once."""
    calls = calls_of_a_commit(begun, work)
    in_the_middle = 0
    for number in those_that_matter(calls)[::2]:
        root = work / "tried"
        shutil.copytree(begun, root)
        commit_until(root, FailingDisk(number, for_ever=True))
        in_the_middle += len(FIRST) < len(bodies(root)) < len(EXPECTED)
        shutil.rmtree(root / "brokerstore")
        assert commit_until(root, FailingDisk(0)) is not None
        assert bodies(root) == EXPECTED, f"call {number}, {calls[number - 1]}"
        shutil.rmtree(root)
    assert in_the_middle, "no run died in the middle of its messages"


@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
def test_a_commit_killed_at_every_call(begun: Path, work: Path) -> None:
    """After SIGKILL before any storage call the next process continues; `kill_commit.py` forks a child per call."""
    reported = subprocess.run(
        [sys.executable, "-m", "tests.sparkstore.kill_commit", str(begun), str(work / "killed")],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert reported.returncode == 0, reported.stderr
    killed, whole = map(int, reported.stdout.split())
    assert killed > 40
    assert whole == killed


def test_a_batch_is_completed_after_the_log_lost_unsynced_records(begun: Path) -> None:
    """After a power failure between append and sync the log is shorter, but the parts still exist."""
    options = options_for(begun)

    class DiesBeforeSync(FailingDisk):
        def before(self, operation: str, path: str) -> None:
            if operation == "sync" and "commitlog" in path:
                raise DiskError(operation, path, 5, "the machine dies here")

    with pytest.raises(StoreError):
        commit_batch(options, SINK, 1, stage_rows(options, SINK, SECOND), disk=DiesBeforeSync(0))
    assert begun_commits(str(begun)).keys() == {SINK}
    messages = logged(begun)
    assert len(messages) == len(EXPECTED)
    _cut_log(begun, messages[33].physical_offset)
    assert commit_rows(options, SINK, 1, SECOND) == Committed(len(EXPECTED) - 33, 13)
    assert bodies(begun) == EXPECTED


def _cut_log(root: Path, offset: int) -> None:
    """Write zeros from a physical offset on, as pages that never reached the disk read."""
    for path in sorted((root / "commitlog").iterdir()):
        with path.open("r+b") as file:
            begin = max(0, offset - int(path.name))
            size = path.stat().st_size
            if begin < size:
                file.seek(begin)
                file.write(bytes(size - begin))


def test_a_repeated_batch_after_a_complete_commit_writes_nothing(begun: Path) -> None:
    """Spark repeats a batch if it dies before it records it: nothing is written, whatever the rows."""
    assert commit_rows(options_for(begun), SINK, 1, SECOND) == Committed(45, 0)
    assert commit_rows(options_for(begun), SINK, 1, SECOND) == Committed(0, 45)
    assert commit_rows(options_for(begun), SINK, 1, SECOND[:30]) == Committed(0, 45)
    assert commit_rows(options_for(begun), SINK, 1, rows_of(60, start=20)) == Committed(0, 45)
    assert bodies(begun) == EXPECTED


def test_a_begun_commit_is_completed_before_a_later_batch(begun: Path) -> None:
    """The next batch of this sink, whatever its number, comes after it."""
    assert commit_until(begun, _DiesInTheMiddle()) is None
    assert len(FIRST) < len(bodies(begun)) < len(EXPECTED)
    third = rows_of(10, start=65)
    assert commit_rows(options_for(begun), SINK, 2, third) == Committed(10, 0)
    assert bodies(begun) == EXPECTED + [row["body"] for row in third]


def test_an_abandoned_commit_can_be_completed(begun: Path) -> None:
    """`finish_commits` completes it; a second call has nothing to do."""
    assert commit_until(begun, _DiesInTheMiddle()) is None
    assert finish_commits(options_for(begun)) == {SINK: Committed(30, 15)}
    assert finish_commits(options_for(begun)) == {}
    assert bodies(begun) == EXPECTED
    assert left_behind(begun) == []


class _DiesInTheMiddle(CountingDisk):
    """A disk that fails when the second part is to be appended."""

    def before(self, operation: str, path: str) -> None:
        if operation == "map" and "00001-" in path:
            raise DiskError(operation, path, 5, "dies here")


def test_other_sinks_write_between_crash_and_return(begun: Path) -> None:
    """Each sink finds its own messages."""
    assert commit_until(begun, _DiesInTheMiddle()) is None
    other = rows_of(12, start=1000)
    assert commit_rows(options_for(begun), "query-2", 1, other) == Committed(12, 0)
    assert commit_until(begun, FailingDisk(0)) == Committed(30, 15)
    found = bodies(begun)
    assert [body for body in found if body in EXPECTED] == EXPECTED
    assert [body for body in found if body not in EXPECTED] == [row["body"] for row in other]


@pytest.mark.parametrize("others_between", [False, True])
def test_old_files_are_deleted_between_crash_and_return(tmp_path: Path, others_between: bool) -> None:
    """Retention deleted the batch's first messages, or some between its halves: the rest is still found."""
    rows = [row | {"body": bytes(5000) + row["body"]} for row in rows_of(60)]
    options = options_for(tmp_path / "store")
    assert commit_until(tmp_path / "store", _DiesInTheMiddle(), rows) is None
    half = len(bodies(options.path))
    assert half == 20
    if others_between:  # a second try dies too, with its messages in a later file
        commit_rows(options, "query-2", 0, [row | {"body": bytes(3000)} for row in rows_of(30)])
        assert commit_until(tmp_path / "store", _DiesInTheLastPart(), rows) is None
    with MessageStore.open(options.path, "r+", options.config) as store:
        files = [file.start_offset for file in store.engine.log.queue.files]
        keep_from = files[2 if others_between else 1]
        store.delete_before(keep_from)
        assert store.engine.log.min_offset == keep_from
    assert commit_until(tmp_path / "store", FailingDisk(0), rows) is not None
    ours = [message for message in logged(options.path) if message.all_properties["UNIQ_KEY"].startswith(f"{SINK}:1:")]
    ordinals = [int(message.all_properties["UNIQ_KEY"].rpartition(":")[2]) for message in ours]
    assert ordinals == list(range(ordinals[0], len(rows)))
    assert ordinals[0] == 20 if others_between else 0 < ordinals[0] < 20
    assert [message.body for message in ours] == [row["body"] for row in rows[ordinals[0] :]]


class _DiesInTheLastPart(CountingDisk):
    def before(self, operation: str, path: str) -> None:
        if operation == "map" and "00002-" in path:
            raise DiskError(operation, path, 5, "dies here")


def test_a_new_batch_after_retention_deleted_old_files(tmp_path: Path) -> None:
    """The previous batch still exists, so no message needs a lookup of its own."""
    options = options_for(tmp_path / "store")
    big = [row | {"body": bytes(3000)} for row in rows_of(60)]
    commit_rows(options, SINK, 0, big)
    with MessageStore.open(options.path, "r+", options.config) as store:
        store.delete_before(store.engine.log.queue.files[1].start_offset)
        assert store.engine.log.min_offset > 0
    commit_rows(options, SINK, 1, SECOND)
    assert commit_rows(options, SINK, 1, SECOND) == Committed(0, 45)
    assert bodies(options.path)[-45:] == [row["body"] for row in SECOND]


def test_a_staged_part_that_is_damaged_or_missing(begun: Path) -> None:
    """The error names the part, and nothing of the batch is written."""
    options = options_for(begun)
    for damage, number in (("flip", 0), ("flip", 2), ("cut", 1), ("delete", 2)):
        parts: list[SinkPart] = stage_rows(options, SINK, SECOND)
        path = begun / "brokerstore" / "sink" / SINK / parts[number].name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        if damage == "delete":
            path.unlink()
        else:
            path.write_bytes(data if damage == "flip" else data[:-8])
        with pytest.raises(StoreError, match=parts[number].name):
            commit_batch(options, SINK, 1, parts)
        assert len(bodies(begun)) == len(FIRST)
        assert begun_commits(str(begun)) == {}
        shutil.rmtree(begun / "brokerstore" / "sink")


# Spark


def source_store(root: Path, count: int) -> list[bytes]:
    """Make a store to stream from; return its bodies."""
    rows = rows_of(count)
    commit_rows(options_for(root), "source", 0, rows)
    return [row["body"] for row in rows]


def start_stream(spark: SparkSession, source: Path, sink: Path, **more: str) -> StreamingQuery:
    """Stream the whole store in batches of 8 KiB, each in two tasks."""
    frame = spark.readStream.format("brokerstore").options(maxBytesPerTrigger="8k", splitBytes="4k").load(str(source))
    writer = frame.select("topic", "body", "keys").writeStream.format("brokerstore_killing").options(**SMALL, **more)
    return writer.option("checkpointLocation", f"{sink}-checkpoint").trigger(availableNow=True).start(str(sink))


@pytest.fixture
def killing(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the killing sinks and with Arrow batches of 20 rows."""
    from tests.sparkstore.killing_source import KillingSource

    spark.dataSource.register(KillingSource)
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    yield spark
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before or "10000")


@pytest.mark.spark
def test_a_killed_task_of_a_batch_is_repeated(killing: SparkSession, tmp_path: Path) -> None:
    """Two of three tasks are killed in their first attempt; the log is the same as without a kill."""
    frame = killing.range(0, 300, 1, 3).selectExpr("'t' topic", "cast(string(id) as binary) body")
    (tmp_path / "deaths").mkdir()
    writer = frame.write.format("brokerstore_killing").options(**SMALL, killTask="2", deaths=str(tmp_path / "deaths"))
    writer.mode("append").save(str(tmp_path / "sink"))
    assert len(list((tmp_path / "deaths").iterdir())) == 2, "nobody was killed"
    assert bodies(tmp_path / "sink") == [b"%d" % number for number in range(300)]
    assert left_behind(tmp_path / "sink") == []


@pytest.mark.spark
def test_a_killed_task_of_a_stream_is_repeated(killing: SparkSession, tmp_path: Path) -> None:
    """The second task of each batch is killed with half of its rows staged; no row is lost or repeated."""
    expected = source_store(tmp_path / "source", 120)
    (tmp_path / "deaths").mkdir()
    more = {"killTask": "0", "deaths": str(tmp_path / "deaths")}
    query = start_stream(killing, tmp_path / "source", tmp_path / "sink", **more)
    assert query.awaitTermination(120)
    assert len(query.recentProgress) >= 3
    assert len(list((tmp_path / "deaths").iterdir())) >= 2, "nobody was killed"
    assert bodies(tmp_path / "sink") == expected
    assert left_behind(tmp_path / "sink") == []


@pytest.mark.spark
@pytest.mark.parametrize(
    ("where", "in_log"),
    [("rename commit.json.new", 0), ("map 00001-", 1), ("delete commit.json", 2)],
    ids=["before it began", "in the middle", "when it was done"],
)
def test_a_stream_with_a_killed_commit_is_continued(killing: SparkSession, tmp_path: Path, where: str, in_log: int) -> None:
    """The query fails; a restart continues it with each message once and in order."""
    expected = source_store(tmp_path / "source", 120)
    more = {"killCommit": where, "once": str(tmp_path / "once")}
    for _ in range(TRIES):  # on a busy machine a query may fail for other reasons
        with contextlib.suppress(Exception):
            start_stream(killing, tmp_path / "source", tmp_path / "sink", **more).awaitTermination(120)
        if (tmp_path / "once").exists():
            break
    assert (tmp_path / "once").exists(), "no commit was killed"
    batches = [message.all_properties["UNIQ_KEY"].split(":")[1] for message in logged(tmp_path / "sink")]
    written, all_of_it = batches.count("1"), batches.count("0")
    assert [written == 0, 0 < written < all_of_it * 0.8, written > all_of_it * 0.8][in_log], (written, all_of_it)
    assert start_stream(killing, tmp_path / "source", tmp_path / "sink", **more).awaitTermination(120)
    assert bodies(tmp_path / "sink") == expected
    assert left_behind(tmp_path / "sink") == []


@pytest.mark.spark
@pytest.mark.parametrize("killed", FORMATS)
def test_a_stream_with_a_killed_driver_is_continued(spark: SparkSession, tmp_path: Path, killed: str) -> None:
    """Python, JVM and workers are killed together after the second batch; the Python source continues the checkpoint."""
    expected = source_store(tmp_path / "source", 400)
    script = [sys.executable, "-m", "tests.sparkstore.stream_driver", killed, str(tmp_path / "source"), str(tmp_path / "sink")]
    driver = subprocess.Popen(script, cwd=Path(__file__).parents[2], start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"two batches\n"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    before = bodies(tmp_path / "sink")
    assert 0 < len(before) < len(expected)
    assert before == expected[: len(before)]
    query = stream_driver.start(spark, "brokerstore", str(tmp_path / "source"), str(tmp_path / "sink"))
    query.processAllAvailable()
    query.stop()
    assert bodies(tmp_path / "sink") == expected
    assert left_behind(tmp_path / "sink") == []
