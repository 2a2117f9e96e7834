"""The streaming source: durable ends, batch limits, gaps and rewound stores; without and with Spark."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commitlog import Message, cursor
from messagestore import MessageStore
from sparkstore.errors import BadOption, DataLost, UnknownColumn
from sparkstore.source.log_position import Anchor, LogEnds, Position
from storageio import StoreCorrupt, StoreRewound, UnknownStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from sparkstore.jar import JVM_FORMAT, PYTHON_FORMAT, jar_path
from sparkstore.schema import message_schema
from sparkstore.source.data_source import FORMAT
from sparkstore.source.several_stores import stream_reader
from tests.stores import small_config

SMALL = small_config(mapped_file_size_commit_log=16 << 10)
T0 = 1_700_000_000_000
FORMATS = [FORMAT] if jar_path() is None else [PYTHON_FORMAT, JVM_FORMAT]


class Clock:
    """A store's clock that the test sets."""

    def __init__(self) -> None:
        self.now_ms = T0

    def __call__(self) -> int:
        return self.now_ms


def fill(root: Path, count: int, start: int = 0, step_ms: int = 100, clock: Clock | None = None) -> list[Message]:
    """Put messages into a store and close it."""
    clock = clock or Clock()
    with MessageStore.open(root, "a", SMALL, clock=clock) as store:
        return put(store, clock, count, start, step_ms)


def put(store: MessageStore, clock: Clock, count: int, start: int = 0, step_ms: int = 100) -> list[Any]:
    made = []
    for number in range(start, start + count):
        made.append(store.put(Message(f"topic-{number % 2}", b"body %d " % number * 20, queue_id=0)))
        clock.now_ms += step_ms
    return made


def body(number: int) -> bytes:
    return b"body %d " % number * 20


def expected_of(count: int, start: int = 0) -> list[bytes]:
    return [body(number) for number in range(start, start + count)]


def ends_of(root: Path) -> LogEnds:
    return LogEnds(str(root), [str(root / "commitlog")])


# What is durable


def test_a_cleanly_closed_store_is_durable_to_its_last_record(tmp_path: Path) -> None:
    """Its preallocated files are longer."""
    last = fill(tmp_path, 50)[-1]
    found = ends_of(tmp_path).end()
    assert found.physical_offset == last.physical_offset + last.size_bytes
    assert found.anchor is not None
    assert found.anchor[:2] == (last.physical_offset, last.store_timestamp_ms)
    assert found.physical_offset < sum(path.stat().st_size for path in (tmp_path / "commitlog").iterdir())


def test_a_store_without_a_record(tmp_path: Path) -> None:
    """The end is 0, and after the first record it is that record's end."""
    fill(tmp_path, 0)
    ends = ends_of(tmp_path)
    assert ends.end() == Position(0)
    last = fill(tmp_path, 1)[-1]
    assert ends.end().physical_offset == last.size_bytes


@pytest.mark.parametrize("begin_ms", [0, 12_345])
def test_a_stream_reads_no_record_after_the_checkpoint_of_a_running_writer(tmp_path: Path, begin_ms: int) -> None:
    """Later records do not count, even if they are synced; after the writer closed, all count."""
    clock = Clock()
    clock.now_ms += begin_ms
    with MessageStore.open(tmp_path, "a", SMALL, clock=clock) as store:
        results = put(store, clock, 60)
        store.flush()
        store.engine.housekeeper.flush_derived(thorough=True)
        ends = ends_of(tmp_path)
        stamp = store.engine.checkpoint.physic_msg_timestamp_ms
        durable = [result for result in results if result.store_timestamp_ms <= stamp - 3000]
        assert 20 < len(durable) < 60
        for _ in range(2):  # the second search starts where the first ended
            end = ends.end()
            assert end.physical_offset == durable[-1].physical_offset + durable[-1].size_bytes
        more = put(store, clock, 60, 60)
        assert ends.end() == end
        store.flush()
        store.engine.housekeeper.flush_derived(thorough=True)
        assert ends.end().physical_offset > end.physical_offset
    assert ends.end().physical_offset == more[-1].physical_offset + more[-1].size_bytes


def test_a_writer_that_never_synced_has_nothing_durable(tmp_path: Path) -> None:
    """The checkpoint has zeros."""
    clock = Clock()
    with MessageStore.open(tmp_path, "a", SMALL, clock=clock) as store:
        put(store, clock, 5)
        assert ends_of(tmp_path).end() == Position(0)


def test_a_dead_writer_counts_as_a_running_one(tmp_path: Path) -> None:
    """The rule for writers applies until an opening determines the log's end."""
    last = fill(tmp_path, 60)[-1]
    (tmp_path / "abort").write_text("1")
    end = ends_of(tmp_path).end()
    assert 0 < end.physical_offset < last.physical_offset
    with MessageStore.open(tmp_path, "r+", SMALL):
        pass
    assert ends_of(tmp_path).end().physical_offset == last.physical_offset + last.size_bytes


def test_an_end_by_time(tmp_path: Path) -> None:
    """The end is that of the last record stored before the time."""
    results = fill(tmp_path, 120)
    ends = ends_of(tmp_path)
    for before_ms in range(T0 - 100, T0 + 12_200, 170):
        early = [result for result in results if result.store_timestamp_ms < before_ms]
        expected = early[-1].physical_offset + early[-1].size_bytes if early else 0
        found = ends.end(before_ms).physical_offset
        behind = [result.physical_offset for result in results[len(early) :][:1]]
        assert found == expected or (found > expected and [found] == behind)  # the rest of a file may be blank


def test_a_torn_tail_is_not_read(tmp_path: Path) -> None:
    """Half a record after the last one is a torn tail, also in a store without a writer."""
    results = fill(tmp_path, 5)
    last = results[-1]
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    end = last.physical_offset + last.size_bytes
    data[end : end + 100] = data[last.physical_offset : last.physical_offset + 100]
    path.write_bytes(data)
    assert ends_of(tmp_path).end().physical_offset == end


def test_damage_before_newer_records_is_not_the_end(tmp_path: Path) -> None:
    """The task that reads the damage reports it."""
    results = fill(tmp_path, 20)
    damage(tmp_path, results[10].physical_offset)
    last = results[-1]
    assert ends_of(tmp_path).end().physical_offset == last.physical_offset + last.size_bytes


def damage(root: Path, physical_offset: int) -> None:
    """Flip the bits of a byte of a record's magic."""
    path = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= physical_offset)
    data = bytearray(path.read_bytes())
    data[physical_offset - int(path.name) + 4] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("piece_bytes", [100, 700, 1000, 5001])
def test_the_durable_end_is_found_by_chunked_reads(tmp_path: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record across two pieces used to count as the torn end of the log."""
    results = fill(tmp_path, 60)
    expected = ends_of(tmp_path).end()
    monkeypatch.setattr(cursor, "PIECE_BYTES", piece_bytes)
    assert ends_of(tmp_path).end() == expected
    assert expected.physical_offset == results[-1].physical_offset + results[-1].size_bytes
    early = ends_of(tmp_path).end(T0 + 3000)
    assert early.physical_offset == results[30].physical_offset
    damage(tmp_path, results[40].physical_offset)
    assert ends_of(tmp_path).end() == expected


# Where a batch is cut


def test_a_batch_ends_at_the_first_record_beyond_its_byte_limit(tmp_path: Path) -> None:
    """This holds for any start and size, also across files."""
    results = fill(tmp_path, 120)
    starts = [result.physical_offset for result in results]
    ends = ends_of(tmp_path)
    end = ends.end()
    assert len(ends.files()) > 1
    for start in range(0, end.physical_offset, 777):
        for size in (1, 100, 1000, 5000, 20_000):
            position = ends.cut(start, size, end)
            behind = [location for location in starts if location >= start + size]
            blank = [file.start_offset + file.size_bytes for file in ends.files()[:-1]]
            expected = {*behind[:1], *(location for location in blank if start + size <= location <= (behind or [0])[0])}
            assert position.physical_offset in expected if behind else position == end
            assert start < position.physical_offset <= end.physical_offset


# Recognising a store


def test_a_store_that_was_rewound_or_replaced(tmp_path: Path) -> None:
    """The record at the stream's anchor is another one or missing."""
    clock = Clock()
    fill(tmp_path / "one", 50, clock=clock)
    shutil.copytree(tmp_path / "one", tmp_path / "shorter")
    fill(tmp_path / "one", 10, 50, clock=clock)
    position = ends_of(tmp_path / "one").end()
    ends_of(tmp_path / "one").check(position)
    with pytest.raises(StoreRewound, match="found none"):
        ends_of(tmp_path / "shorter").check(position)
    clock.now_ms += 1
    fill(tmp_path / "shorter", 20, 50, clock=clock)
    with pytest.raises(StoreRewound, match="found one stored at"):
        ends_of(tmp_path / "shorter").check(position)


def test_positions_as_json() -> None:
    """Positions survive a round trip; another source's offset is refused."""
    for position in (Position(0), Position(17, Anchor(5, T0, -3))):
        assert Position.of_json(json.loads(json.dumps(position.to_json()))) == position
    for found in ({}, {"index": 3}, {"physical_offset": "x"}, {"physical_offset": 1, "stand": {"a": 1}}):
        with pytest.raises(BadOption, match="expected an offset with 'physical_offset'"):
            Position.of_json(found)


# The reader as Spark calls it


class Stream:
    """A loop like Spark's: offsets as JSON, partitions read one after the other."""

    def __init__(self, root: Path, **options: str) -> None:
        self.root = root
        self.options = options
        self.start: Any = None
        self.batches: list[list[bytes]] = []

    def reader(self) -> Any:
        schema = message_schema(["physical_offset", "body"])
        return stream_reader({"path": str(self.root), **self.options}, schema)

    def run(self, available_now: bool = True, while_running: Callable[[], object] = lambda: None) -> list[bytes]:
        """Run until no data is left; return the bodies of this run."""
        reader = self.reader()
        if available_now:
            reader.prepareForTriggerAvailableNow()
        limit = reader.getDefaultReadLimit()
        if self.start is None:
            self.start = json.loads(json.dumps(reader.initialOffset()))
        got: list[list[bytes]] = []
        while (end := json.loads(json.dumps(reader.latestOffset(self.start, limit)))) != self.start:
            got.append(self.read(reader, self.start, end))
            self.start = end
            while_running()
            assert len(got) < 1000
        self.batches += got
        return [found for batch in got for found in batch]

    def read(self, reader: Any, start: Any, end: Any) -> list[bytes]:
        found: list[bytes] = []
        for partition in reader.partitions(start, end):
            for batch in reader.read(partition):
                found += batch.column("body").to_pylist()
        return found


@pytest.mark.parametrize("max_bytes", ["1", "300", "1k", "5k", "17k", "1m", None])
@pytest.mark.parametrize("split_bytes", ["100", "3k", "128m"])
def test_batches_by_bytes_are_all_records_once(tmp_path: Path, max_bytes: str | None, split_bytes: str) -> None:
    """The sizes of batches and splits do not matter."""
    count = 40 if max_bytes == "1" or split_bytes == "100" else 150
    fill(tmp_path, count)
    more = {} if max_bytes is None else {"maxBytesPerTrigger": max_bytes}
    stream = Stream(tmp_path, splitBytes=split_bytes, **more)
    assert stream.run() == expected_of(count)
    assert stream.run() == []
    bytes_each = {"1": 1, "300": 300, "1k": 1 << 10, "5k": 5 << 10, "17k": 17 << 10}.get(max_bytes or "", 1 << 20)
    record_bytes = 350
    assert all(len(b"".join(batch)) <= bytes_each + record_bytes for batch in stream.batches)
    assert (len(stream.batches) == 1) == (bytes_each >= stream.start["physical_offset"])


@pytest.mark.parametrize("messages", [1, 2, 7, 50, 150, 151])
def test_batches_by_messages_are_all_records_once(tmp_path: Path, messages: int) -> None:
    """Each batch has exactly so many, across files; the last one has the rest."""
    fill(tmp_path, 150)
    stream = Stream(tmp_path, maxMessagesPerTrigger=str(messages))
    assert stream.run() == expected_of(150)
    assert {len(batch) for batch in stream.batches[:-1]} <= {messages}
    assert 1 <= len(stream.batches[-1]) <= messages
    assert stream.run() == []


def test_both_limits_of_a_batch(tmp_path: Path) -> None:
    """The smaller one counts."""
    fill(tmp_path, 150)
    for more in ({"maxMessagesPerTrigger": "3"}, {"maxMessagesPerTrigger": "100"}):
        stream = Stream(tmp_path, maxBytesPerTrigger="2k", **more)
        assert stream.run() == expected_of(150)
        assert max(map(len, stream.batches)) <= int(more["maxMessagesPerTrigger"])
        assert max(len(b"".join(batch)) for batch in stream.batches) <= (2 << 10) + 350


@pytest.mark.parametrize("wrong", ["0", "-1", "1k", "", "9" * 20])
def test_a_wrong_number_of_messages(tmp_path: Path, wrong: str) -> None:
    """The error names the option."""
    fill(tmp_path, 1)
    with pytest.raises(BadOption, match="option maxMessagesPerTrigger"):
        Stream(tmp_path, maxMessagesPerTrigger=wrong).reader()


def test_the_backlog_is_the_durable_bytes_after_the_last_planned_batch(tmp_path: Path) -> None:
    """Bytes between the end of the batch planned last and the durable end, and the time of the last record."""
    clock = Clock()
    last = fill(tmp_path, 60, clock=clock)[-1]
    reader = Stream(tmp_path, maxBytesPerTrigger="4k").reader()
    start = reader.initialOffset()
    assert "backlog_bytes" not in reader.reportLatestOffset(), "no batch was planned yet"
    end = last.physical_offset + last.size_bytes
    while (made := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        reported = reader.reportLatestOffset()
        assert reported["backlog_bytes"] == end - made["physical_offset"]
        assert reported["store_timestamp_ms"] == clock.now_ms - 100
        start = json.loads(json.dumps(made))
    assert Position.of_json(reader.reportLatestOffset()).physical_offset == end, "Spark may use it as an offset"


def test_the_backlog_of_each_queue_is_counted(tmp_path: Path) -> None:
    """The messages that a query has yet to read, of the queues that it reads."""
    with MessageStore.open(tmp_path, config=small_config()) as store:
        for number in range(60):
            store.put("ab"[number % 2], b"x" * 50, queue_id=number % 3)
    for options, expected in (({}, None), ({"topic": "a"}, {"a"}), ({"assign": '{"b": [1]}'}, {"b"})):
        reader = Stream(tmp_path, maxMessagesPerTrigger="7", **options).reader()
        start, left = reader.initialOffset(), 60
        while (made := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            left -= min(left, 7)
            rest = [("ab"[number % 2], number % 3) for number in range(60 - left, 60)]
            if expected is not None:
                rest = [key for key in rest if key[0] in expected and (key[0] == "a" or key[1] == 1)]
            counted = {topic: {str(key[1]): rest.count(key) for key in rest if key[0] == topic} for topic, _ in rest}
            assert reader.reportLatestOffset()["backlog_messages"] == counted
            start = made
        assert left == 0


def test_a_run_ends_where_the_log_ended_when_it_began(tmp_path: Path) -> None:
    """With AvailableNow, later messages belong to the next run."""
    clock = Clock()
    fill(tmp_path, 40, clock=clock)
    stream = Stream(tmp_path, maxBytesPerTrigger="3k")
    came: list[int] = []

    def more() -> None:
        fill(tmp_path, 1, 40 + len(came), clock=clock)
        came.append(1)

    assert stream.run(while_running=more) == expected_of(40)
    assert stream.run() == expected_of(len(came), 40)


def test_a_batch_is_read_again_as_it_was_planned(tmp_path: Path) -> None:
    """After a crash Spark asks for the same two offsets, although the log has grown."""
    clock = Clock()
    fill(tmp_path, 40, clock=clock)
    stream = Stream(tmp_path)
    start = stream.reader().initialOffset()
    end = stream.reader().latestOffset(start, ReadMaxBytes(4000))
    first = stream.read(stream.reader(), start, end)
    fill(tmp_path, 40, 40, clock=clock)
    assert stream.read(stream.reader(), start, end) == first
    assert stream.read(stream.reader(), end, end) == []


def test_where_a_new_query_begins(tmp_path: Path) -> None:
    """It starts at the earliest or latest record, a physical offset, a time, or queue offsets."""
    clock = Clock()
    results = fill(tmp_path, 100, clock=clock)
    latest = Stream(tmp_path, startingOffsets="latest")
    assert latest.run() == []
    fill(tmp_path, 3, 100, clock=clock)
    assert latest.run() == expected_of(3, 100)
    assert Stream(tmp_path, startingOffsets="earliest").run() == expected_of(103)
    assert Stream(tmp_path, startingOffsets=str(results[60].physical_offset)).run() == expected_of(43, 60)
    assert Stream(tmp_path, startingOffsets=str(results[60].physical_offset - 1)).run() == expected_of(43, 60)
    assert Stream(tmp_path, startingTimestamp=str(T0 + 6000)).run() == expected_of(43, 60)
    of_queue = Stream(tmp_path, startingOffsets='{"topic-0": {"0": 45}, "topic-1": {"0": 50}}').run()
    assert of_queue == [body(number) for number in range(90, 103) if number % 2 == 0 or number >= 101]


@pytest.mark.parametrize(
    "changed", [{"startingOffsets": '{"topic-0": {"0": 9999}}'}, {"startingTimestamp": str(T0 + 10**9)}, {}], ids=str
)
@pytest.mark.parametrize(
    ("began", "first"),
    [
        ({}, 0),
        ({"startingTimestamp": str(T0 + 2050)}, 21),
        ({"startingOffsets": '{"topic-0": {"0": 12}, "topic-1": {"0": 12}}'}, 24),
    ],
)
def test_options_of_a_new_query_changed_on_resume(
    tmp_path: Path, began: dict[str, str], first: int, changed: dict[str, str]
) -> None:
    """A changed start option used to lose messages silently, and a removed one gave too many."""
    clock = Clock()
    fill(tmp_path, 30, clock=clock)
    stream = Stream(tmp_path, maxBytesPerTrigger="1k", **began)
    stream.start = json.loads(json.dumps(stream.reader().initialOffset()))
    one = stream.reader().latestOffset(stream.start, ReadMaxBytes(1000))
    got = stream.read(stream.reader(), stream.start, one)
    stream.start, stream.options = json.loads(json.dumps(one)), {"maxBytesPerTrigger": "1k", **changed}
    got += stream.run()
    fill(tmp_path, 10, 30, clock=clock)
    assert got + stream.run() == expected_of(40 - first, first)


def test_where_a_stream_ends(tmp_path: Path) -> None:
    """It ends at an offset or before a time, also when more records follow."""
    clock = Clock()
    results = fill(tmp_path, 100, clock=clock)
    by_time = Stream(tmp_path, endingTimestamp=str(T0 + 4000), maxBytesPerTrigger="2k")
    by_offset = Stream(tmp_path, endingOffsets=str(results[40].physical_offset))
    assert by_time.run() == by_offset.run() == expected_of(40)
    fill(tmp_path, 5, 100, clock=clock)
    assert by_time.run() == by_offset.run() == []


def test_topics_and_queues_of_a_stream(tmp_path: Path) -> None:
    """Tasks filter, and offsets advance over other messages."""
    fill(tmp_path, 60)
    stream = Stream(tmp_path, topic="topic-1", maxBytesPerTrigger="2k")
    assert stream.run() == [body(number) for number in range(60) if number % 2]
    with pytest.raises(BadOption, match="no topic 'none'"):
        Stream(tmp_path, topic="none").run()


def delete_first_files(root: Path, count: int) -> int:
    """Delete log files like retention; return the log's new first offset."""
    with MessageStore.open(root, "r+", SMALL) as store:
        low = store.engine.log.queue.files[count].start_offset
        store.delete_before(low)
        return low


def test_retention_deleted_unread_records(tmp_path: Path) -> None:
    """The error has both offsets; with failOnDataLoss=false a log line does, and the rest is read."""
    results = fill(tmp_path, 150)
    strict = Stream(tmp_path, maxBytesPerTrigger="4k")
    strict.start = strict.reader().initialOffset()
    low = delete_first_files(tmp_path, 2)
    with pytest.raises(DataLost, match=f"expected records from physical offset 0 on, found the first is at {low}"):
        strict.run()
    loose = Stream(tmp_path, maxBytesPerTrigger="4k", failOnDataLoss="false")
    loose.start = strict.start
    kept = [number for number, result in enumerate(results) if result.physical_offset >= low]
    assert loose.run() == [body(number) for number in kept]
    assert 0 < len(kept) < 150
    assert Stream(tmp_path).run() == [body(number) for number in kept]


def test_retention_deleted_the_start_of_a_queue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new query by queue offsets used to start later without an error."""
    results = fill(tmp_path, 150)
    low = delete_first_files(tmp_path, 2)
    kept = [number for number, result in enumerate(results) if result.physical_offset >= low]
    first = -(-kept[0] // 2)  # queue offset in topic-0
    start = json.dumps({"topic-0": {"0": first - 1}, "topic-1": {"0": 10**6}})
    with pytest.raises(DataLost, match=f"topic-0 queue 0 from queue offset {first - 1} on, found the first is {first}"):
        Stream(tmp_path, startingOffsets=start).run()
    assert Stream(tmp_path, startingOffsets=start, failOnDataLoss="false").run() == [body(n) for n in kept if n % 2 == 0]
    assert f"found the first is {first}" in caplog.text
    start = json.dumps({"topic-0": {"0": first}, "topic-1": {"0": 10**6}})
    assert Stream(tmp_path, startingOffsets=start).run() == [body(n) for n in kept if n % 2 == 0]


UNKNOWN = {
    '{"topic-9": {"0": 3}}': "no topic 'topic-9'",
    '{"topic-0": {"0": 0}, "topic-1": {"8": 3}}': "topic 'topic-1' has no queue 8",
}


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("text", UNKNOWN)
def test_an_unknown_topic_or_queue_of_an_option_is_named(tmp_path: Path, option: str, text: str) -> None:
    """A typo used to read everything again. Where only a log is left, nothing can be checked."""
    fill(tmp_path / "s", 30)
    with pytest.raises(BadOption, match=f"option {option}: .*{UNKNOWN[text]}"):
        Stream(tmp_path / "s", **{option: text}).run()
    known = '{"topic-0": {"0": 14}, "topic-1": {"0": 15, "7": 3}}'
    assert Stream(tmp_path / "s", startingOffsets=known).run() == [body(28)]
    for folder in ("consumequeue", "config"):
        shutil.rmtree(tmp_path / "s" / folder)
    Stream(tmp_path / "s", **{option: text}).run()


@pytest.mark.parametrize("start", ["0", "1", '{"topic-0": {"0": 0}}', '{"topic-0": {"0": 1}}'])
def test_retention_deleted_what_an_explicit_start_names(tmp_path: Path, start: str) -> None:
    """Offset 0 is as explicit as 1; `earliest` and -2 are the oldest that exist."""
    results = fill(tmp_path, 150)
    low = delete_first_files(tmp_path, 2)
    kept = [body(number) for number, result in enumerate(results) if result.physical_offset >= low]
    with pytest.raises(DataLost, match="on, found the first is"):
        Stream(tmp_path, startingOffsets=start).run()
    assert Stream(tmp_path, startingOffsets=start, failOnDataLoss="false").run() == kept
    for earliest in ("earliest", '{"topic-0": {"0": -2}}'):
        assert Stream(tmp_path, startingOffsets=earliest).run() == kept


def test_retention_deleted_the_anchor_of_a_stream(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its loss alone is no data loss; unread bytes are, and the log line has their number."""
    clock = Clock()
    fill(tmp_path, 100, clock=clock)
    stream = Stream(tmp_path, failOnDataLoss="false")
    stream.run()
    stood = stream.start["physical_offset"]
    fill(tmp_path, 200, 100, clock=clock)
    low = delete_first_files(tmp_path, 3)
    assert low > stood
    found = stream.run()
    assert 0 < len(found) < 200
    assert found == expected_of(len(found), 300 - len(found))
    assert f"{low - stood} bytes of the log were deleted before they were read" in caplog.text


def test_retention_deletes_a_file_before_its_task(tmp_path: Path) -> None:
    """A file is deleted between plan and read."""
    fill(tmp_path, 250)
    for is_error in (True, False):
        stream = Stream(tmp_path, failOnDataLoss=str(is_error).lower())
        reader = stream.reader()
        start = reader.initialOffset()
        partitions = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        assert len(partitions) > 2
        if is_error:
            delete_first_files(tmp_path, 1)
            with pytest.raises(DataLost, match="retention deleted it"):
                list(reader.read(partitions[0]))
        else:
            (tmp_path / "commitlog" / f"{partitions[0].value.file_start:020d}").unlink()
            assert list(reader.read(partitions[0])) == []


def test_a_stream_over_a_rewound_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is an error; with failOnDataLoss=false a log line, and the stream continues with what follows."""
    clock = Clock()
    fill(tmp_path / "store", 50, clock=clock)
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    fill(tmp_path / "store", 30, 50, clock=clock)
    strict, loose = Stream(tmp_path / "store"), Stream(tmp_path / "store", failOnDataLoss="false")
    assert strict.run() == loose.run() == expected_of(80)
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "backup").rename(tmp_path / "store")
    with pytest.raises(StoreRewound, match="truncated by a recovery, or replaced"):
        strict.run()
    assert loose.run() == []
    assert "continuing with the records that exist" in caplog.text
    clock.now_ms += 1
    fill(tmp_path / "store", 10, 90, clock=clock)
    assert loose.run() == expected_of(10, 90)
    with pytest.raises(StoreRewound):
        strict.run()


def test_damage_in_the_middle(tmp_path: Path) -> None:
    """The error has file and offset; with badRecords=skip the record is skipped."""
    results = fill(tmp_path, 60)
    damage(tmp_path, results[30].physical_offset)
    with pytest.raises(StoreCorrupt, match=f"at byte {results[30].physical_offset % SMALL.mapped_file_size_commit_log}"):
        Stream(tmp_path).run()
    for size in ("1k", "100m"):
        stream = Stream(tmp_path, badRecords="skip", maxBytesPerTrigger=size, splitBytes="2k")
        assert stream.run() == expected_of(30) + expected_of(29, 31)


def test_a_stream_follows_a_writer_that_appends_continuously(tmp_path: Path) -> None:
    """Between puts, messages come in order, once, and only if durable; after the close all are there."""
    clock = Clock()
    stream = Stream(tmp_path, maxBytesPerTrigger="5k")
    got: list[bytes] = []
    with MessageStore.open(tmp_path, "a", SMALL, clock=clock) as store:
        for turn in range(30):
            put(store, clock, 10, 10 * turn, step_ms=150)
            if turn % 3 == 0:
                store.flush()
                store.engine.housekeeper.flush_derived(thorough=True)
            got += stream.run(available_now=turn % 2 == 0)
            stamp = store.engine.checkpoint.physic_msg_timestamp_ms
            assert len(got) <= max(0, (stamp - 3000 - T0) // 150 + 1)
            assert got == expected_of(len(got))
        assert 200 < len(got) < 300
    assert got + stream.run() == expected_of(300)


def test_a_stream_follows_a_thread_that_appends(tmp_path: Path) -> None:
    """The store uses the system's clock and its own threads."""
    with MessageStore.open(tmp_path, "a", SMALL) as store:
        store.put(Message("topic-0", body(0), queue_id=0))
        is_done = threading.Event()

        def work() -> None:
            for number in range(1, 400):
                store.put(Message(f"topic-{number % 2}", body(number), queue_id=0))
                time.sleep(0.002)
            is_done.set()

        writer = threading.Thread(target=work)
        writer.start()
        stream, got = Stream(tmp_path, maxBytesPerTrigger="9k"), []
        while not is_done.is_set():
            got += stream.run(available_now=False)
        writer.join()
        assert got == expected_of(len(got))
    assert got + stream.run() == expected_of(400)


def test_unsupported_stores_and_options_of_a_stream_are_errors(tmp_path: Path) -> None:
    """A missing store, RabbitMQ, another scheme, a place in one of several stores, unknown options and columns are errors."""
    fill(tmp_path / "a", 3)
    fill(tmp_path / "b", 3)
    (tmp_path / "rabbit" / "msg_store_persistent").mkdir(parents=True)
    with pytest.raises(UnknownStore):
        Stream(tmp_path / "none").reader()
    with pytest.raises(UnknownStore, match="no log to follow"):
        Stream(tmp_path / "rabbit").reader()
    for options in ({"startingOffsets": "17"}, {"endingOffsets": "17"}, {"startingGroup": "g"}, {"assign": '{"t": [0]}'}):
        with pytest.raises(BadOption, match=f"option {next(iter(options))}: it means a place in one store"):
            Stream(tmp_path / "[ab]", **options).reader()
    with pytest.raises(BadOption, match="mounted folder"):
        stream_reader({"path": "memory://x"}, message_schema())
    for name, value in (("maxBytesPerTrigger", "0"), ("maxBytesPerTrigger", "x"), ("maxFilesPerTrigger", "3")):
        with pytest.raises(BadOption, match=f"(?i){name}"):
            Stream(tmp_path / "a", **{name: value}).reader()
    from pyspark.sql.types import StructType

    with pytest.raises(UnknownColumn, match="'nothing'"):
        stream_reader({"path": str(tmp_path / "a")}, StructType().add("nothing", "string"))


def test_stores_of_a_real_broker_are_streamed_in_log_order(fixture_store: Any) -> None:
    """Everything durable comes in log order."""
    for name in ("plain", "broker-live", "propcrc"):
        root = fixture_store(name).store
        with MessageStore.open(root, "r") as store:
            messages = [message.body for message in store.follow(timeout_s=0, end="durable")]
        assert Stream(root, maxBytesPerTrigger="20k").run() == messages
        assert messages or name == "broker-live"


# Spark


@pytest.fixture(params=FORMATS)
def stream_format(request: pytest.FixtureRequest) -> str:
    """Return the name of each source."""
    return str(request.param)


@pytest.fixture
def collected(spark: SparkSession, tmp_path: Path, stream_format: str) -> Iterator[Callable[..., list[int]]]:
    """Return a function that streams a store into Parquet until the end, and returns the numbers of batches with rows."""

    def run(root: Path, checkpoint: str = "checkpoint", **options: str) -> list[int]:
        frame = spark.readStream.format(stream_format).options(**options).load(str(root)).select("body")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / checkpoint))
        query = writer.trigger(availableNow=True).start(str(tmp_path / f"out-{checkpoint}"))
        assert query.awaitTermination(120)
        return [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]]

    yield run
    for query in spark.streams.active:
        query.stop()


def bodies_of(spark: SparkSession, folder: Path) -> list[bytes]:
    return sorted(
        (bytes(row.body) for row in spark.read.parquet(str(folder)).collect()), key=lambda found: int(found.split()[1])
    )


@pytest.mark.spark
def test_available_now_with_a_byte_limit_reads_only_new_messages_next_time(
    spark: SparkSession, tmp_path: Path, collected: Any
) -> None:
    """The next run reads only new messages, and one without new messages reads nothing."""
    clock = Clock()
    last = fill(tmp_path / "store", 100, clock=clock)[-1]
    batches = collected(tmp_path / "store", maxBytesPerTrigger="8k")
    assert batches == list(range(-(-(last.physical_offset + last.size_bytes) // (8 << 10))))
    assert bodies_of(spark, tmp_path / "out-checkpoint") == expected_of(100)
    fill(tmp_path / "store", 20, 100, clock=clock)
    assert len(collected(tmp_path / "store", maxBytesPerTrigger="8k")) == 1
    assert collected(tmp_path / "store", maxBytesPerTrigger="8k") == []
    assert bodies_of(spark, tmp_path / "out-checkpoint") == expected_of(120)


@pytest.mark.spark
def test_a_gap_and_a_rewound_store_fail_the_query(spark: SparkSession, tmp_path: Path, collected: Any) -> None:
    """The exception has our message; with failOnDataLoss=false the gap is skipped."""
    clock = Clock()
    fill(tmp_path / "store", 60, clock=clock)
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    collected(tmp_path / "store")
    results = fill(tmp_path / "store", 150, 60, clock=clock)
    low = delete_first_files(tmp_path / "store", 2)
    with pytest.raises(Exception, match=rf"DataLost: .*the first is at {low}"):
        collected(tmp_path / "store")
    collected(tmp_path / "store", failOnDataLoss="false")
    kept = [number for number, result in enumerate(results, 60) if result.physical_offset >= low]
    assert bodies_of(spark, tmp_path / "out-checkpoint") == expected_of(60) + [body(number) for number in kept]
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "backup").rename(tmp_path / "store")
    with pytest.raises(Exception, match=r"StoreRewound: .*truncated by a recovery, or replaced"):
        collected(tmp_path / "store")


@pytest.mark.spark
def test_a_live_store_followed_while_a_writer_appends(spark: SparkSession, tmp_path: Path, stream_format: str) -> None:
    """A query runs beside an open writer; after the close every message is there once and in order."""
    got: list[bytes] = []
    clock = Clock()
    with MessageStore.open(tmp_path / "store", "a", SMALL, clock=clock) as store:
        put(store, clock, 40)
        frame = spark.readStream.format(stream_format).option("maxBytesPerTrigger", "6k").load(str(tmp_path / "store"))
        writer = frame.select("physical_offset", "body").writeStream.format("memory").queryName("live_store")
        query = writer.trigger(processingTime="0 seconds").start()
        for turn in range(1, 6):
            put(store, clock, 20, 20 + 20 * turn)
            store.flush()
            store.engine.housekeeper.flush_derived(thorough=True)
            query.processAllAvailable()
            rows = spark.table("live_store").orderBy("physical_offset").collect()
            got = [bytes(row.body) for row in rows]
            stamp = store.engine.checkpoint.physic_msg_timestamp_ms
            assert got == expected_of((stamp - 3000 - T0) // 100 + 1)
    query.processAllAvailable()
    reported = json.loads(query.recentProgress[-1]["sources"][0]["latestOffset"])
    assert reported["backlog_bytes"] == 0 and reported["physical_offset"] > 0
    rows = spark.table("live_store").orderBy("physical_offset").collect()
    query.stop()
    assert [bytes(row.body) for row in rows] == expected_of(140)


def error_of(run: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        run()
    return str(caught.value)


@pytest.mark.spark
def test_starting_offsets_of_a_stream_that_infers_its_schema(spark: SparkSession, tmp_path: Path, collected: Any) -> None:
    """`latest` begins behind the last record; an unknown topic and a deleted start end the query."""
    clock = Clock()
    fill(tmp_path / "store", 150, clock=clock)
    assert collected(tmp_path / "store", startingOffsets="latest") == []
    fill(tmp_path / "store", 10, 150, clock=clock)
    assert len(collected(tmp_path / "store", startingOffsets="latest")) == 1
    assert bodies_of(spark, tmp_path / "out-checkpoint") == expected_of(10, 150)
    for name, (text, problem) in enumerate(UNKNOWN.items()):
        assert problem in error_of(lambda name=name, text=text: collected(tmp_path / "store", f"c{name}", startingOffsets=text))  # type: ignore[misc]
    delete_first_files(tmp_path / "store", 1)
    for name, text in enumerate(("0", '{"topic-0": {"0": 0}}')):
        assert "data lost" in error_of(
            lambda name=name, text=text: collected(tmp_path / "store", f"d{name}", startingOffsets=text)
        )  # type: ignore[misc]
        frame = spark.read.format("brokerstore").option("startingOffsets", text)
        assert "data lost" in error_of(lambda frame=frame: frame.load(str(tmp_path / "store")).count())  # type: ignore[misc]
    latest = spark.read.format("brokerstore").option("startingOffsets", "latest")
    assert "startingOffsets" in error_of(lambda: latest.load(str(tmp_path / "store")).count())
