"""Sinks: conversion of columns, what is refused and where, and what a failed job leaves; without and with Spark."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from sparkstore.errors import BadOption, MissingColumn, UnknownColumn
from sparkstore.sink.columns import PROPERTIES_CAPACITY, Encoder, check_columns
from sparkstore.sink.commit import Committed, abort_batch, begun_commits, commit_batch, find_present, read_manifest
from sparkstore.sink.options import parse_sink_options
from sparkstore.sink.staging import STALE_MS, SinkPart, clear_stale
from storageio import REAL_DISK, DiskError, DiskFull, InvalidMessage, StoreCorrupt, StoreLocked, UnknownStore, UnsupportedFormat
from storageio.testing import WrappedDisk
from tests.faults.test_unknown_formats import snapshot
from tests.helpers import tree
from tests.sparkstore.sink_tools import (
    KINDS,
    SMALL,
    arrow,
    bodies,
    commit_rows,
    left_behind,
    logged,
    options_for,
    rows_of,
    stage_rows,
)  # fmt: skip

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyarrow")

# Columns


def test_every_column_reaches_the_message(tmp_path: Path) -> None:
    """Fields, keys, tags and properties are as given; null means the default."""
    full = {
        "topic": "orders", "body": b"\x00\xff", "queue_id": 2, "keys": ["a", "b"], "tags": "t", "flag": -7, "sys_flag": 1,
        "properties": {"x": "y", "z": "ü"}, "reconsume_times": 3, "born_timestamp_ms": 1234567890123,
        "born_host": "10.1.2.3:99",
    }  # fmt: skip
    empty = dict.fromkeys(full) | {"topic": "orders", "body": b""}
    commit_rows(options_for(tmp_path), "job", 0, [full, empty])
    first, second = logged(tmp_path)
    assert (first.topic, first.body, first.queue_id, first.flag, first.sys_flag) == ("orders", b"\x00\xff", 2, -7, 1)
    assert (first.keys, first.tags, first.reconsume_times) == (["a", "b"], "t", 3)
    assert (first.born_timestamp_ms, first.born_host) == (1234567890123, "10.1.2.3:99")
    assert {name: first.properties[name] for name in ("x", "z")} == {"x": "y", "z": "ü"}
    assert (second.body, second.flag, second.sys_flag, second.reconsume_times) == (b"", 0, 0, 0)
    assert (second.keys, second.tags, second.born_timestamp_ms) == ([], None, second.store_timestamp_ms)
    assert second.properties == {"UNIQ_KEY": "job:0:1", "SINK_ROWS": "2"}


def test_rows_of_the_source_can_be_written_by_the_sink(tmp_path: Path) -> None:
    """A message's own id becomes ORIGIN_MESSAGE_ID, and copied markers do not count as a complete batch."""
    commit_rows(options_for(tmp_path / "one"), "job", 0, rows_of(9))
    copied = [
        {"topic": m.topic, "body": m.body, "keys": m.keys, "tags": m.tags, "properties": m.all_properties}
        for m in logged(tmp_path / "one")
    ]
    copied.append(copied[0] | {"body": b"one more"})
    commit_rows(options_for(tmp_path / "two"), "job", 0, copied)
    for before, after in zip(logged(tmp_path / "one"), logged(tmp_path / "two"), strict=False):
        assert (before.topic, before.body, before.keys, before.tags) == (after.topic, after.body, after.keys, after.tags)
        assert after.properties["ORIGIN_MESSAGE_ID"] == before.properties["UNIQ_KEY"]
        assert "SINK_ROWS" not in after.properties
    assert bodies(tmp_path / "two")[-1] == b"one more"


def test_keys_and_tags_among_properties(tmp_path: Path) -> None:
    """They count if the column is null."""
    rows = [
        {"topic": "t", "body": b"1", "keys": None, "tags": None, "properties": {"KEYS": "k1 k2", "TAGS": "old"}},
        {"topic": "t", "body": b"2", "keys": ["k3"], "tags": "new", "properties": {"KEYS": "k1 k2", "TAGS": "old"}},
    ]
    commit_rows(options_for(tmp_path), "job", 0, rows)
    assert [(m.keys, m.tags) for m in logged(tmp_path)] == [(["k1", "k2"], "old"), (["k3"], "new")]


def test_text_for_body_and_keys(tmp_path: Path) -> None:
    """A body is encoded as UTF-8, and keys are separated by spaces."""
    import pyarrow as pa

    batch = arrow([{"topic": "t", "body": "grün", "keys": " a  b "}], body=pa.string(), keys=pa.string())
    made = Encoder(None, 100, "partition 0").encode(batch).to_pylist()
    assert (made[0]["body"], made[0]["properties"]) == ("grün".encode(), b"KEYS\x01a b\x02")


def test_keyed_messages_go_to_the_queue_that_the_store_chooses(tmp_path: Path) -> None:
    """Messages without a key go to the queues in turn, the same at each repetition."""
    rows = rows_of(30)
    commit_rows(options_for(tmp_path / "sink"), "job", 0, rows)
    with MessageStore.open(tmp_path / "plain", "a", options_for(tmp_path).config) as store:
        for topic in ("topic-0", "topic-1"):
            store.create_topic(topic, 3)
        expected = {row["body"]: store.put(Message(row["topic"], row["body"], keys=row["keys"])).queue_id for row in rows}
    found = {message.body: message.queue_id for message in logged(tmp_path / "sink")}
    keyed = [row["body"] for row in rows if row["keys"]]
    assert {body: found[body] for body in keyed} == {body: expected[body] for body in keyed}
    assert {found[row["body"]] for row in rows if not row["keys"]} == {0}  # each third row, in turn over three queues
    assert len({found[row["body"]] for row in rows}) == 3


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no topic": ({"topic": None}, "topic is null"),
    "a topic that is no folder's name": ({"topic": "a/b"}, "cannot name a folder"),
    "a topic of the broker": ({"topic": "RMQ_SYS_TRANS_OP_HALF_TOPIC"}, "takes only the broker's own messages"),
    "a topic with white space": ({"topic": "my jobs"}, "white space or control characters"),
    "no body": ({"body": None}, "body is null"),
    "a long body": ({"body": bytes(1001)}, "body of 1001 bytes; at most 1000"),
    "a separator in a property": ({"properties": {"a": "\x01"}}, "holds"),
    "an empty property": ({"properties": {"a": ""}}, "empty name or value"),
    "a property without a value": ({"properties": {"a": None}}, "names and values of str"),
    "a space in a key": ({"keys": ["a b"]}, "holds a space"),
    "long properties": ({"properties": {"a": "b" * PROPERTIES_CAPACITY}}, "the sink has room for"),
    "a negative queue": ({"queue_id": -2}, "queue_id -2"),
    "a queue beyond all": ({"queue_id": 70000}, "queue_id 70000"),
    "a part of a transaction": ({"sys_flag": 4}, "part of a transaction"),
    "a host that is none": ({"born_host": "nowhere"}, "ip:port wanted"),
    "a delayed message": ({"properties": {"DELAY": "3"}}, "rejects delayed messages"),
    "numbers that RocketMQ cannot parse": ({"properties": {"INNER_BASE": "x", "INNER_NUM": "1"}}, "a number of 64 bits wanted"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_row_that_no_store_accepts_is_named(case: str) -> None:
    """The task's error has the row's number and partition."""
    change, text = REFUSED[case]
    good = {
        "topic": "t", "body": b"b", "queue_id": 0, "keys": ["k"], "tags": "t", "properties": {"a": "b"}, "sys_flag": 0,
        "born_host": "1.2.3.4:5",
    }  # fmt: skip
    encoder = Encoder(None, 1000, "partition 3")
    encoder.encode(arrow([good] * 5))
    with pytest.raises(InvalidMessage, match=text) as reported:
        encoder.encode(arrow([good, good | change, good]))
    assert "row 6 of partition 3" in str(reported.value)


@pytest.mark.parametrize(
    ("kinds", "topic", "error", "text"),
    [
        ({"body": "binary"}, None, MissingColumn, "'topic', or the option topic"),
        ({"topic": "string"}, None, MissingColumn, "'body'"),
        ({"topic": "string", "body": "int"}, None, UnknownColumn, "'body': expected binary or string, found int"),
        (
            {**KINDS, "key": "string"},
            None,
            UnknownColumn,
            "unknown column 'key' for the sink; the columns are topic, body.*is 'keys' here",
        ),
        ({**KINDS, "queue_id": "string"}, None, UnknownColumn, "'queue_id': expected int"),
        ({**KINDS, "queue_offset": "bigint"}, None, UnknownColumn, "'queue_offset'"),
    ],
)
def test_missing_and_unknown_columns(kinds: dict[str, str], topic: str | None, error: type[Exception], text: str) -> None:
    """The error names the column before any task runs."""
    with pytest.raises(error, match=text):
        check_columns(kinds, topic)


def test_the_topic_option_replaces_the_column() -> None:
    """The option topic replaces the column."""
    check_columns(KINDS, None)
    check_columns({"body": "string"}, "orders")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "no path"),
        ({"path": "/x", "sinkld": "a"}, "unknown option 'sinkld'"),
        ({"path": "/x", "sinkId": "a b"}, "option sinkId"),
        ({"path": "/x", "sinkId": "../a"}, "option sinkId"),
        ({"path": "/x", "sinkId": "a" * 65}, "option sinkId"),
        ({"path": "/x", "queues": "0"}, "option queues: expected 1 to"),
        ({"path": "/x", "batchId": "-1"}, "option batchId: expected a whole number"),
        ({"path": "/x", "newStore": "yes"}, "option newStore: expected true or false"),
        ({"path": "/x", "maxIndexNum": "many"}, "option maxIndexNum: expected 1 to 2147483647 bytes"),
        ({"path": "s3://bucket/x"}, "not through s3:"),
    ],
)
def test_invalid_options_are_named(given: dict[str, str], text: str) -> None:
    """The error names the option and the expected value."""
    with pytest.raises(BadOption, match=text):
        parse_sink_options(given)


def test_options_by_any_case_and_paths_of_files() -> None:
    """Spark's options ignore case, and Spark puts a scheme before paths."""
    found = parse_sink_options({"PATH": "file:///data/x", "SINKID": "a.b-c_1", "maxmessagesize": "1m"})
    assert (found.path, found.sink_id, found.config.max_message_size) == ("/data/x", "a.b-c_1", 1 << 20)


# Batches


@pytest.mark.parametrize("seed", range(3))
def test_batches_one_after_another(tmp_path: Path, seed: int) -> None:
    """With any number of rows, parts and sinks, rows are in the order of parts, and each batch is found complete."""
    choose = random.Random(seed)
    options, expected = options_for(tmp_path), []
    for number in range(8):
        rows = rows_of(choose.choice([0, 1, 2, 30, 61]), start=1000 * number)
        sink, batch_id = f"query-{number % 2}", number // 2
        parts = stage_rows(options, sink, rows, partitions=choose.choice([1, 2, 5]))
        choose.shuffle(parts)
        assert commit_batch(options, sink, batch_id, parts) == Committed(len(rows), 0)
        assert commit_batch(options, sink, batch_id, stage_rows(options, sink, rows)) == Committed(0, len(rows))
        expected += [row["body"] for row in rows]
    assert bodies(tmp_path) == expected
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("has_topic", [False, True])
def test_a_queue_that_the_topic_lacks_ends_the_job_before_the_first_message(tmp_path: Path, has_topic: bool) -> None:
    """It may be in any partition; a row for the last queue is written, and the next batch of the same sink too."""
    root = tmp_path / "s"
    if has_topic:
        with MessageStore.open(root, "a", options_for(root).config) as store:
            store.create_topic("topic-1", 3)
    rows = [row | {"queue_id": -1} for row in rows_of(40)]
    for queue_id in (3, 999):
        with pytest.raises(InvalidMessage, match=f"queue id {queue_id}: topic topic-1 has 3 queues"):
            commit_rows(options_for(root), "sink", 0, [*rows[:35], rows[35] | {"queue_id": queue_id}, *rows[36:]])
    assert not root.exists() or not (root / "commitlog").exists() or logged(root) == []
    commit_rows(options_for(root), "sink", 0, [*rows[:35], rows[35] | {"queue_id": 2}, *rows[36:]])
    assert len(logged(root)) == 40


def test_an_empty_job_makes_no_store(tmp_path: Path) -> None:
    """It does not create the folder."""
    assert commit_rows(options_for(tmp_path / "store"), "job", 0, []) == Committed(0, 0)
    assert not (tmp_path / "store").exists()


def test_the_last_committed_ordinal_is_found(tmp_path: Path) -> None:
    """The search with doubling steps finds the last one."""
    options = options_for(tmp_path)
    for count in (1, 2, 3, 4, 7, 8, 9, 33):
        parts = stage_rows(options, f"job-{count}", rows_of(count))
        commit_batch(options, f"job-{count}", 0, parts)
        with MessageStore.open(tmp_path, "r") as store:
            from sparkstore.sink.commit import Manifest

            assert find_present(store, f"job-{count}", Manifest(0, tuple(parts))) == (count, True)


def test_two_sinks_with_similar_ids(tmp_path: Path) -> None:
    """The ids `a`, `a1` and `a.1` are not mixed up."""
    for sink in ("a", "a1", "a.1"):
        assert commit_rows(options_for(tmp_path), sink, 0, rows_of(3)) == Committed(3, 0)
    assert commit_rows(options_for(tmp_path), "a", 1, rows_of(3)) == Committed(3, 0)
    assert commit_rows(options_for(tmp_path), "a", 10, rows_of(3)) == Committed(3, 0)


@pytest.mark.parametrize("has_store", [False, True])
def test_an_aborted_job_leaves_nothing(tmp_path: Path, has_store: bool) -> None:
    """No byte and no new folder remains, also of parts that no message names."""
    root = tmp_path / "store"
    if has_store:
        commit_rows(options_for(root), "job-0", 0, rows_of(5))
    before = tree(tmp_path)
    parts = stage_rows(options_for(root), "job-1", rows_of(50))
    assert len(left_behind(root)) == 1 + len(parts)
    abort_batch(options_for(root), "job-1")
    assert tree(tmp_path) == before


def test_an_abort_after_the_commit_began_keeps_the_staged_parts(tmp_path: Path) -> None:
    """The log already has messages, so only a continued commit completes the batch."""

    class Dies(WrappedDisk):
        def before(self, operation: str, path: str) -> None:
            if operation == "map" and "00002-" in path:
                raise DiskFull(operation, path, 28, "no space")

    options, rows = options_for(tmp_path), rows_of(30)
    with pytest.raises(DiskFull):
        commit_rows(options, "job", 0, rows, disk=Dies())
    abort_batch(options, "job")
    begun = begun_commits(str(tmp_path))["job"]
    assert (begun.rows, begun.batch_id, begun.topics) == (30, 0, ("topic-0", "topic-1"))
    assert commit_rows(options, "job", 0, rows) == Committed(10, 20)
    assert bodies(tmp_path) == [row["body"] for row in rows]
    assert begun_commits(str(tmp_path)) == {}


def test_a_store_that_is_open_elsewhere(tmp_path: Path) -> None:
    """Nothing is written; after the store is closed the same parts can be committed."""
    options = options_for(tmp_path)
    commit_rows(options, "job", 0, rows_of(3))
    parts = stage_rows(options, "job", rows_of(5, start=3))
    with MessageStore.open(tmp_path, "r+"), pytest.raises(StoreLocked, match="open for writing"):
        commit_batch(options, "job", 1, parts)
    assert len(bodies(tmp_path)) == 3
    assert commit_batch(options, "job", 1, parts) == Committed(5, 0)


def test_a_full_disk_is_detected_before_the_first_message(tmp_path: Path) -> None:
    """A disk that is known to be too full gets no part of the batch."""

    class Full(WrappedDisk):
        def space(self, path: str) -> Any:
            return super().space(path)._replace(free_bytes=1000)

    options = options_for(tmp_path)
    commit_rows(options, "job", 0, rows_of(3))
    rows = [row | {"body": bytes(3000)} for row in rows_of(40)]
    with pytest.raises(DiskFull, match="bytes to append, 1000 bytes free"):
        commit_rows(options, "job", 1, rows, disk=Full())
    assert len(bodies(tmp_path)) == 3
    assert begun_commits(str(tmp_path)) == {}


@pytest.mark.parametrize("has_store", [False, True])
def test_a_record_longer_than_a_log_file(tmp_path: Path, has_store: bool) -> None:
    """The refused batch leaves no messages, no new topic, and no new store."""
    options = options_for(tmp_path / "store")
    if has_store:
        commit_rows(options, "before", 0, rows_of(3))
    before = unsettled(tree(tmp_path))
    rows = [*rows_of(10), rows_of(1)[0] | {"topic": "new", "body": bytes(65_400)}]
    with pytest.raises(InvalidMessage, match="the log's files have only 65536"):
        commit_rows(options, "job", 0, rows)
    abort_batch(options, "job")
    assert unsettled(tree(tmp_path)) == before
    fits = [*rows_of(10), rows_of(1)[0] | {"body": bytes(65_000)}]
    assert commit_rows(options, "job", 0, fits) == Committed(11, 0)


def unsettled(found: dict[str, bytes | None]) -> dict[str, bytes | None]:
    """Remove the files that every opening rewrites."""
    return {name: data for name, data in found.items() if Path(name).name not in ("checkpoint", "lock", "clean.json")}


def test_a_damaged_part_makes_no_topic(tmp_path: Path) -> None:
    """Topics of a batch that failed used to remain."""
    options = options_for(tmp_path)
    commit_rows(options, "before", 0, [{"topic": "old", "body": b"b"}])
    parts = stage_rows(options, "job", rows_of(9))
    (tmp_path / "brokerstore" / "sink" / "job" / parts[2].name).unlink()
    with pytest.raises(DiskError, match=parts[2].name):
        commit_batch(options, "job", 0, parts)
    assert list(json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]) == ["old"]


def test_a_failed_first_commit_does_not_delete_the_store_of_another_job(tmp_path: Path) -> None:
    """Another job created the store while this commit was opening; its messages used to be deleted."""

    class Overtaken(WrappedDisk):
        done = False

        def before(self, operation: str, path: str) -> None:
            if operation == "lock" and not self.done:
                self.done = True
                commit_rows(options_for(tmp_path), "other", 0, rows_of(4))
            elif operation == "space":
                raise DiskFull(operation, path, 28, "no space")

    with pytest.raises(DiskFull):
        commit_rows(options_for(tmp_path), "job", 0, rows_of(9), disk=Overtaken())
    assert bodies(tmp_path) == [row["body"] for row in rows_of(4)]


def test_new_store_refuses_an_existing_one(tmp_path: Path) -> None:
    """An existing store is refused before any task, and again at the commit."""
    pytest.importorskip("pyspark")
    from sparkstore.sink.writers import check_target

    options = options_for(tmp_path / "store", newStore="true")
    check_target(options.path, is_new_store=True)
    parts = stage_rows(options, "job", rows_of(3))
    check_target(options.path, is_new_store=True)
    commit_rows(options_for(tmp_path / "store"), "other", 0, rows_of(2))
    with pytest.raises(UnknownStore, match="the folder is not empty"):
        commit_batch(options, "job", 0, parts)
    with pytest.raises(UnknownStore, match="the folder is not empty"):
        check_target(options.path, is_new_store=True)
    assert len(bodies(tmp_path / "store")) == 2
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnknownStore, match="the folder is not empty"):
        check_target(str(tmp_path / "file"), is_new_store=True)


def test_a_store_with_something_unknown_in_it_is_not_written_to(fixture_store: Any) -> None:
    """Sink and reindex refuse it before any task, and change nothing."""
    pytest.importorskip("pyspark")
    from sparkstore.jobs.reindex_source import ReindexSource
    from sparkstore.sink.writers import check_target

    store = fixture_store("crash-lost-cq", own=True).store
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text('{"topicConfigTable":{"T":{"attributes":{"queue.type":"StreamCQ"}}}}')
    before = snapshot(store)
    source = ReindexSource({"path": str(store)})
    for action in (lambda: check_target(str(store)), lambda: source.writer(source.schema(), False)):  # type: ignore[arg-type]
        with pytest.raises(UnsupportedFormat, match="StreamCQ"):
            action()
    assert snapshot(store) == before


def test_chunks_of_a_part_are_limited_by_bytes(tmp_path: Path) -> None:
    """A piece of a part is limited by bytes too."""
    import pyarrow as pa

    from sparkstore.sink.staging import PIECE_BYTES, PartWriter, read_part

    options = options_for(tmp_path, maxMessageSize="8m")
    writer = PartWriter(REAL_DISK, str(tmp_path), "job", 0)
    rows = [{"topic": "t", "body": bytes(3 << 20)} for _ in range(7)]
    writer.add(Encoder(None, options.config.max_message_size, "partition 0").encode(arrow(rows)))
    part = writer.finish()
    pieces = list(read_part(REAL_DISK, str(tmp_path), "job", part))
    assert [piece.num_rows for piece in pieces] == [2, 2, 2, 1]
    assert all(pa.compute.sum(pa.compute.binary_length(piece.column("body"))).as_py() <= PIECE_BYTES for piece in pieces)


def test_leftovers_of_killed_jobs_are_deleted_after_a_week(tmp_path: Path) -> None:
    """Younger files and those of a begun commit stay."""
    options = options_for(tmp_path)
    stage_rows(options, "killed", rows_of(5))
    now_ms = REAL_DISK.now_ms()
    assert clear_stale(REAL_DISK, str(tmp_path), now_ms + STALE_MS - 60_000) == []
    assert len(left_behind(tmp_path)) == 4
    (tmp_path / "brokerstore" / "sink" / "begun").mkdir()
    (tmp_path / "brokerstore" / "sink" / "begun" / "commit.json").write_text("{}")
    assert clear_stale(REAL_DISK, str(tmp_path), now_ms + STALE_MS + 60_000) == ["killed"]
    assert left_behind(tmp_path) == ["begun", "begun/commit.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"batch_id": 0, "parts": [{"name": "../../checkpoint"}]}', "\xff"])
def test_an_invalid_commit_manifest_is_an_error(tmp_path: Path, text: str) -> None:
    """The error names the invalid `commit.json`."""
    folder = tmp_path / "brokerstore" / "sink" / "job"
    folder.mkdir(parents=True)
    (folder / "commit.json").write_text(text)
    with pytest.raises(StoreCorrupt, match=r"commit\.json"):
        read_manifest(REAL_DISK, str(tmp_path), "job")


def test_a_part_outside_of_its_folder_is_not_opened(tmp_path: Path) -> None:
    """`commit.json` may name only files in its folder."""
    folder = tmp_path / "brokerstore" / "sink" / "job"
    folder.mkdir(parents=True)
    part = SinkPart(0, "../../checkpoint", 1, 1, 0, ("t",), 1)._asdict() | {"topics": ["t"]}
    (folder / "commit.json").write_text(json.dumps({"batch_id": 0, "parts": [part]}))
    with pytest.raises(StoreCorrupt, match="name"):
        read_manifest(REAL_DISK, str(tmp_path), "job")


def test_another_query_under_the_same_sink_id(tmp_path: Path) -> None:
    """With a new checkpoint its batches count from 0 again: its rows used to count as written, and were dropped."""
    pytest.importorskip("pyspark")
    from sparkstore.sink.writers import StagedPart, StoreStreamWriter

    options = options_for(tmp_path, sinkId="mine")

    def commit(query_id: str | None, batch_id: int, start: int) -> None:
        parts = stage_rows(options, "mine", rows_of(6, start))
        StoreStreamWriter(options).commit([StagedPart("mine", part, query_id) for part in parts], batch_id)

    commit("query-a", 0, 0)
    commit("query-a", 1, 6)
    with pytest.raises(BadOption, match=r"'mine' belongs to query query-a, and this is query query-b"):
        commit("query-b", 0, 100)
    commit("query-a", 2, 12)
    assert bodies(tmp_path) == [row["body"] for row in rows_of(18)]


# Spark


def frame(spark: SparkSession, count: int, start: int = 0, partitions: int = 3) -> DataFrame:
    """Return rows in the order of their numbers, in this many partitions."""
    return spark.range(start, start + count, 1, partitions).selectExpr(
        "concat('topic-', id % 2) topic", "cast(concat('body ', id) as binary) body", "array(concat('key-', id)) keys",
        "concat('tag', id % 3) tags", "map('number', string(id)) properties",
    )  # fmt: skip


def expected_bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"body %d" % number for number in range(start, start + count)]


@pytest.fixture
def stopped_queries(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.mark.spark
def test_a_batch_is_written_in_the_order_of_its_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """Two jobs write into one store, and nothing stays staged."""
    for start in (0, 500):
        frame(spark, 500, start).write.format("brokerstore").options(**SMALL).mode("append").save(str(tmp_path / "store"))
    messages = logged(tmp_path / "store")
    assert [message.body for message in messages] == expected_bodies(1000)
    assert (messages[7].topic, messages[7].keys, messages[7].tags, messages[7].properties["number"]) == (
        "topic-1", ["key-7"], "tag1", "7",
    )  # fmt: skip
    assert left_behind(tmp_path / "store") == []


@pytest.mark.spark
def test_a_job_with_an_id_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    """A repeated batch is not written again; another batch is."""
    for batch_id in ("0", "0", "1"):
        writer = frame(spark, 100, 100 * int(batch_id)).write.format("brokerstore").mode("append")
        writer.options(**SMALL, sinkId="nightly", batchId=batch_id).save(str(tmp_path / "store"))
    assert bodies(tmp_path / "store") == expected_bodies(200)


TAKEN = "length(topic) < 128 and properties['DELAY'] is null"  # what a broker accepts and stores unchanged


@pytest.mark.spark
def test_a_store_copied_through_spark(spark: SparkSession, tmp_path: Path, fixture_store: Any) -> None:
    """A real broker's messages go from source to sink unchanged and into the same queues."""
    source = fixture_store("plain").store
    columns = ["topic", "queue_id", "body", "keys", "tags", "properties", "flag", "born_timestamp_ms", "born_host"]
    frame = spark.read.format("brokerstore").load(str(source)).where(TAKEN).select(*columns)
    frame.write.format("brokerstore").options(**SMALL | {"mappedFileSizeCommitLog": "1m", "queues": "8"}).mode("append").save(
        str(tmp_path / "copy")
    )

    def facts(root: Path) -> list[tuple[Any, ...]]:
        taken = [m for m in logged(root) if len(m.topic) < 128 and "DELAY" not in m.properties]
        return [(m.topic, m.queue_id, m.body, m.keys, m.tags, m.flag, m.born_timestamp_ms, m.born_host) for m in taken]

    assert len(facts(source)) == 1083
    assert facts(tmp_path / "copy") == facts(source)


def failure_of(run: Any) -> str:
    with pytest.raises(Exception) as reported:
        run()
    return str(reported.value)


@pytest.mark.spark
def test_a_job_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Spark tries the partition with the invalid row three times; no store remains."""
    bad = frame(spark, 300).selectExpr("if(properties['number'] = '299', null, topic) topic", "body")
    reported = failure_of(lambda: bad.write.format("brokerstore").options(**SMALL).mode("append").save(str(tmp_path / "store")))
    assert "row 99 of partition 2: topic is null" in reported
    assert not (tmp_path / "store").exists()


@pytest.mark.spark
def test_a_wrong_sink_is_named_before_any_task(spark: SparkSession, tmp_path: Path) -> None:
    """A wrong column, mode or folder, and an open store are errors."""
    write = frame(spark, 10).write.format("brokerstore")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    commit_rows(options_for(tmp_path / "open"), "job", 0, rows_of(3))
    rabbit = tmp_path / "rabbit"
    (rabbit / "msg_store_persistent").mkdir(parents=True)
    before = tree(tmp_path)
    other = spark.range(3).selectExpr("'t' topic", "cast('b' as binary) body", "id").write.format("brokerstore")
    assert "unknown column 'id'" in failure_of(lambda: other.mode("append").save(str(tmp_path / "new")))
    assert "cannot be overwritten" in failure_of(lambda: write.mode("overwrite").save(str(tmp_path / "new")))
    assert "no store found" in failure_of(lambda: write.mode("append").save(str(tmp_path / "other")))
    assert "RocketMQ stores" in failure_of(lambda: write.mode("append").save(str(rabbit)))
    with MessageStore.open(tmp_path / "open", "r+"):
        assert "open for writing" in failure_of(lambda: write.mode("append").save(str(tmp_path / "open")))
    shutil.rmtree(tmp_path / "open")
    assert {name for name in tree(tmp_path) if not name.startswith("open")} == {
        name for name in before if not name.startswith("open")
    }
