"""The batch source without a JVM: rows, splits, filters, damage; compared with `brokerstore dump`."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from commitlog import Message, cursor
from commitlog.row_filter import Condition
from messagestore import MessageStore
from sparkstore import BadOption, DataLost, UnknownColumn, message_schema
from sparkstore.source import batches as batches_module
from sparkstore.source import split_reader
from sparkstore.source import splits as splits_module
from sparkstore.source.data_source import BrokerStoreSource, PushdownReader
from storageio import StoreCorrupt, UnknownStore

from .local import batches, dumped, parsed, positions, rows
from .stores import SMALL, damage

FIXTURES = ("plain", "propcrc", "lmq", "batchcq", "cqext", "broker-live", "broker-ext")


@pytest.mark.parametrize("split_bytes", ["0", "4999", "65536"])
@pytest.mark.parametrize("name", FIXTURES)
def test_rows_equal_the_dump_of_real_stores(fixture_store: Any, name: str, split_bytes: str) -> None:
    """With any splits, every message comes once, in log order, with every field."""
    store = fixture_store(name).store
    assert rows(store, splitBytes=split_bytes) == dumped(store)


@pytest.mark.parametrize("split_bytes", [1009, 7919, 65537])
def test_uneven_splits_lose_and_repeat_nothing(made: Path, split_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk also starts in the middle of a file, because the maximum record size is smaller here."""
    monkeypatch.setattr(split_reader, "SEARCH_BACK", 6000)
    assert positions(made, splitBytes=split_bytes) == [row["physical_offset"] for row in dumped(made)]


@pytest.mark.parametrize("batch_rows", [1, 3, 8192])
def test_batches_of_any_size(made: Path, batch_rows: int) -> None:
    """The rows are the same, and no batch has more than the limit."""
    found = list(batches(made, batchRows=batch_rows, splitBytes="20000"))
    assert max(batch.num_rows for batch in found) <= batch_rows
    assert sum(batch.num_rows for batch in found) == 1500


def test_a_body_that_holds_copies_of_records(forged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body has records with matching physical offsets; none of them is read at any split."""
    expected = [row["physical_offset"] for row in dumped(forged)]
    assert len(expected) == 3
    monkeypatch.setattr(split_reader, "SEARCH_BACK", 6000)
    for split_bytes in (50, 333, 1000):
        assert positions(forged, splitBytes=split_bytes) == expected


def test_stale_records_after_the_end_are_not_read(made: Path) -> None:
    """A truncation left older records after a blank and after zeros."""
    expected = dumped(made)
    file = sorted((made / "commitlog").iterdir())[1]
    data = bytearray(file.read_bytes())
    inside = [row for row in expected if row["physical_offset"] // 65536 == 1]
    cut = inside[5]["physical_offset"] - 65536
    data[cut : cut + 8] = (65536 - cut).to_bytes(4, "big") + bytes.fromhex("cbd43194")  # a blank record ends the file here
    old = 1_000_000_000_000
    for row in inside[6:]:
        at = row["physical_offset"] - 65536
        data[at + 56 : at + 64] = old.to_bytes(8, "big")
    file.write_bytes(data)
    left = [row["physical_offset"] for row in expected if row not in inside[5:]]
    assert [row["physical_offset"] for row in dumped(made)] == left
    for split_bytes in (3000, 65536):
        assert positions(made, splitBytes=split_bytes) == left


@pytest.mark.parametrize("split_bytes", [4999, 30000, 0])
def test_a_damaged_record_in_the_middle(made: Path, split_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fail` gives an error with file and offset, `skip` all others, `report` also the position once."""
    monkeypatch.setattr(split_reader, "SEARCH_BACK", 6000)
    expected = dumped(made)
    victim = next(row for row in expected[700:] if len(row["body"]) == 300)
    file, at = damage(made, victim)
    with pytest.raises(StoreCorrupt) as caught:
        rows(made, splitBytes=split_bytes)
    assert (caught.value.file, caught.value.offset) == (file, at)
    others = [row for row in expected if row != victim]
    assert rows(made, splitBytes=split_bytes, badRecords="skip") == others
    reported = rows(made, splitBytes=split_bytes, badRecords="report")
    bad = [row for row in reported if row["problem"] is not None]
    assert [(row["problem"]["file"], row["problem"]["offset"], row["problem"]["kind"]) for row in bad] == [
        (file, at, "bad_body_crc")
    ]
    assert bad[0]["physical_offset"] == victim["physical_offset"] and bad[0]["topic"] is None
    assert [row["physical_offset"] for row in reported if row["problem"] is None] == [row["physical_offset"] for row in others]


def test_checksums_are_checked_if_bodies_are_read(made: Path) -> None:
    """Without bodies they are checked only if checkCrc is set."""
    damage(made, next(row for row in dumped(made) if len(row["body"]) == 300))
    assert len(positions(made)) == 1500
    assert len(rows(made, checkCrc="false")) == 1500
    with pytest.raises(StoreCorrupt):
        positions(made, checkCrc="true")


def test_a_torn_tail_is_one_error_with_file_and_offset(fixture_store: Any) -> None:
    """The error comes from planning, before any row."""
    store = fixture_store("crash-torn").store
    file = str(store / "commitlog" / f"{196608:020d}")
    with pytest.raises(StoreCorrupt) as caught:
        next(batches(store, splitBytes="10000"))
    assert (caught.value.file, caught.value.offset) == (file, 40988)
    assert rows(store, badRecords="skip") == dumped(store)


def test_a_partially_written_record_of_a_running_writer_is_not_damage(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torn end is examined twice: by then the writer has completed it."""
    expected = dumped(made)
    last = expected[-1]
    file = sorted((made / "commitlog").iterdir())[-1]
    data = bytearray(file.read_bytes())
    end = last["physical_offset"] % 65536 + last["size"]
    torn = bytes(data[:end]) + (500).to_bytes(4, "big") + bytes.fromhex("daa320a7") + bytes(20)
    file.write_bytes(torn + bytes(65536 - len(torn)))

    def writes_on(_seconds: float) -> None:
        with open(file, "r+b") as opened:  # like a writer, never make the file shorter
            opened.write(data)

    monkeypatch.setattr(splits_module.time, "sleep", writes_on)
    assert rows(made) == expected


def test_a_file_deleted_by_retention_during_a_read(made: Path) -> None:
    """The error names the file; with failOnDataLoss=false it is skipped."""
    source = BrokerStoreSource({"path": str(made)})
    reader = source.reader(message_schema(["physical_offset"]))
    partitions = reader.partitions()
    gone = sorted((made / "commitlog").iterdir())[0]
    expected = [row["physical_offset"] for row in dumped(made) if row["physical_offset"] >= 65536]
    gone.unlink()
    with pytest.raises(DataLost, match="retention") as caught:
        list(reader.read(partitions[0]))
    assert caught.value.file == str(gone)
    reader = BrokerStoreSource({"path": str(made), "failOnDataLoss": "false"}).reader(message_schema(["physical_offset"]))
    found = [row["physical_offset"] for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == expected


def test_a_deleted_start_is_data_loss(made: Path) -> None:
    """As in Kafka's source; without failOnDataLoss the read begins at the log's first record."""
    sorted((made / "commitlog").iterdir())[0].unlink()
    with pytest.raises(DataLost):
        positions(made, startingOffsets="1000")
    assert positions(made, startingOffsets="1000", failOnDataLoss="false")[0] == 65536


@pytest.mark.parametrize("is_log_alone", [False, True])
def test_a_deleted_queue_offset_is_data_loss(made: Path, is_log_alone: bool) -> None:
    """The read used to return fewer messages without an error."""
    with MessageStore.open(made, "r+", SMALL) as store:
        store.delete_before(131072)
    left = [row for row in dumped(made) if (row["topic"], row["queue_id"]) == ("topic-1", 2)]
    first, path = left[0]["queue_offset"], made / "commitlog" if is_log_alone else made
    lost = json.dumps({"topic-1": {"2": first - 1}})
    with pytest.raises(DataLost, match=f"from queue offset {first - 1} on, found the first is {first}"):
        rows(path, startingOffsets=lost)
    expected = dumped(made)
    assert rows(path, startingOffsets=lost, failOnDataLoss="false") == expected
    assert rows(path, startingOffsets=json.dumps({"topic-1": {"2": first}})) == expected


FILTERS: list[tuple[dict[str, str], Any]] = [
    ({"topic": "topic-1"}, lambda row: row["topic"] == "topic-1"),
    ({"topic": "topic-1, topic-2"}, lambda row: row["topic"] in ("topic-1", "topic-2")),
    ({"queueId": "0,2"}, lambda row: row["queue_id"] in (0, 2)),
    ({"startingOffsets": "70000", "endingOffsets": "200000"}, lambda row: 70000 <= row["physical_offset"] < 200000),
    ({"startingOffsets": "earliest", "endingOffsets": "latest"}, lambda row: True),
    ({"key": "k3"}, lambda row: "k3" in row["keys"]),
    ({"topic": "topic-0", "key": "only-29"}, lambda row: row["topic"] == "topic-0" and "only-29" in row["keys"]),
]


@pytest.mark.parametrize(("options", "expected"), FILTERS, ids=[str(options) for options, _ in FILTERS])
def test_filters_give_what_filtering_the_dump_gives(made: Path, options: dict[str, str], expected: Any) -> None:
    """Each option keeps exactly the rows that its rule keeps."""
    assert rows(made, splitBytes="30000", **options) == [row for row in dumped(made) if expected(row)]


def test_queue_offsets_in_the_form_of_kafka(made: Path) -> None:
    """Queues that are not named keep all messages; the end is exclusive."""
    start = json.dumps({"topic-0": {"0": 20, "1": -2}})
    stop = json.dumps({"topic-0": {"0": 30, "1": -1}})

    def expected(row: dict[str, Any]) -> bool:
        return (row["topic"], row["queue_id"]) != ("topic-0", 0) or 20 <= row["queue_offset"] < 30

    assert rows(made, startingOffsets=start, endingOffsets=stop) == [row for row in dumped(made) if expected(row)]


def test_a_time_range(fixture_store: Any) -> None:
    """The range is of store times with an exclusive end; files outside of it are not opened."""
    store = fixture_store("plain").store
    expected = dumped(store)
    times = [row["store_timestamp_ms"] for row in expected]
    begin, end = times[300], times[800]
    requested = [row for row in expected if begin <= row["store_timestamp_ms"] < end]
    assert rows(store, startingTimestamp=begin, endingTimestamp=end, splitBytes="10000") == requested
    reader = BrokerStoreSource({"path": str(store), "startingTimestamp": str(times[-1] + 10**9)}).reader(message_schema())
    assert len(reader.partitions()) <= 1


def test_exact_conditions_are_pushed_down(made: Path) -> None:
    """Conditions on numbers and topic are pushed down; the others go back to Spark."""
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, IsNotNull, StringStartsWith

    reader = BrokerStoreSource({"path": str(made), "pushFilters": "true"}).reader(message_schema())
    assert isinstance(reader, PushdownReader)
    requested = [EqualTo(("topic",), "topic-1"), IsNotNull(("topic",)), GreaterThanOrEqual(("queue_offset",), 7)]
    requested += [In(("queue_id",), (0, 1)), StringStartsWith(("topic",), "t"), EqualTo(("tags",), "paid")]
    assert list(reader.pushFilters(requested)) == [requested[1], requested[4], requested[5]]
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    expected = [r for r in dumped(made) if r["topic"] == "topic-1" and r["queue_offset"] >= 7 and r["queue_id"] in (0, 1)]
    assert [row["physical_offset"] for row in found] == [row["physical_offset"] for row in expected]


def test_inexact_conditions_are_not_pushed_down() -> None:
    """They go back to Spark."""
    assert not Condition("topic", "lt", "a").is_known
    assert not Condition("queue_id", "eq", True).is_known
    assert not Condition("queue_offset", "eq", 1 << 70).is_known
    assert Condition("store_timestamp_ms", "lt", 5).is_known


def test_only_the_columns_of_the_schema_are_built(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel builds these columns and no others."""
    seen: list[list[str]] = []
    real = batches_module.record_batch

    def recorded(batch: Any, columns: Any) -> Any:
        seen.append(list(columns))
        return real(batch, columns)

    monkeypatch.setattr(batches_module, "record_batch", recorded)
    assert len(rows(made, message_schema(["queue_id", "topic"]))) == 1500
    assert seen and all(columns == ["queue_id", "topic"] for columns in seen)


def test_compressed_bodies_are_decompressed(tmp_path: Path) -> None:
    """Bodies come as stored, decompressed, or as text; one that cannot be decompressed is a bad record."""
    path = tmp_path / "packed"
    with MessageStore.open(path, config=SMALL) as store:
        store.put(Message("t", zlib.compress("größer".encode()), sys_flag=0x301))
        store.put(Message("t", b"\xff\xfe plain"))
    text = rows(path, bodyDecoding="plain")
    assert [row["body"] for row in text] == ["größer".encode(), b"\xff\xfe plain"]
    assert rows(path)[0]["body"] == zlib.compress("größer".encode())
    kinds = message_schema(["body"])
    from pyspark.sql.types import StringType, StructType

    as_text = StructType([*kinds.fields[:0], kinds.fields[0].__class__("body", StringType())])
    assert [row["body"] for row in rows(path, as_text, bodyDecoding="plain")] == ["größer", "\ufffd\ufffd plain"]
    with MessageStore.open(path, config=SMALL) as store:
        position = store.put(Message("t", b"no zlib at all", sys_flag=0x301)).physical_offset
    with pytest.raises(StoreCorrupt, match=f"at byte {position}"):
        rows(path, bodyDecoding="plain")
    assert len(rows(path, bodyDecoding="plain", badRecords="skip")) == 2


def test_several_stores_in_one_load(fixture_store: Any, made: Path) -> None:
    """Stores are given by a list or a pattern; each row has its store."""
    other = fixture_store("propcrc").store
    found = rows([made, other])
    assert [row["physical_offset"] for row in found if row["store"] == str(made)] == [
        r["physical_offset"] for r in dumped(made)
    ]
    assert {row["store"] for row in found} == {str(made), str(other)}
    by_pattern = rows(f"{made.parent}/ma*")
    assert {row.pop("store") for row in by_pattern} == {str(made)} and by_pattern == dumped(made)
    with pytest.raises(UnknownStore, match="no folder matches"):
        rows(f"{made.parent}/zz*")


def test_the_folder_of_a_log_alone(made: Path) -> None:
    """The log folder without its store gives the same rows."""
    assert rows(made / "commitlog") == dumped(made)


@pytest.mark.parametrize("split_bytes", ["0", "30000"])
def test_through_fsspec(made: Path, split_bytes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without local paths gives the same rows; the task finds the end."""
    pytest.importorskip("fsspec")
    monkeypatch.setattr(split_reader, "SEARCH_BACK", 6000)
    monkeypatch.setattr(split_reader, "PIECE_BYTES", 10_000)
    assert rows(f"local://{made}", splitBytes=split_bytes) == dumped(made)


@pytest.fixture
def in_memory(made: Path) -> Iterator[str]:
    """Two stores in fsspec's memory file system that a pattern matches, and a third one."""
    system = pytest.importorskip("fsspec").filesystem("memory")
    for name in ("store-1", "store-2", "other"):
        for path in (made / "commitlog").iterdir():
            system.pipe(f"/lab/{name}/commitlog/{path.name}", path.read_bytes())
    yield "memory://lab"
    system.rm("/lab", recursive=True)


def test_a_pattern_through_fsspec(in_memory: str, made: Path) -> None:
    """All rows of the matching stores come, each with the address of its store."""
    expected = [row["physical_offset"] for row in dumped(made)]
    schema = message_schema(["physical_offset"], store=True)
    found = rows(f"{in_memory}/store-*", schema)
    stores = sorted({row["store"] for row in found})
    assert [store.rpartition("/")[2] for store in stores] == ["store-1", "store-2"]
    assert all(store.startswith("memory://") for store in stores)
    for store in stores:
        assert [row["physical_offset"] for row in found if row["store"] == store] == expected
    with pytest.raises(UnknownStore, match="no folder matches"):
        rows(f"{in_memory}/shop-*", schema)


def test_a_file_that_vanishes_from_an_object_store(in_memory: str, made: Path) -> None:
    """A file deleted after planning gives an error that names it, or the other files' rows."""
    import fsspec

    options = {"path": f"{in_memory}/store-1"}
    reader = BrokerStoreSource(options).reader(message_schema(["physical_offset"]))
    partitions = reader.partitions()
    gone = partitions[1].value.file
    fsspec.filesystem("memory").rm(gone.removeprefix("memory://"))
    with pytest.raises(DataLost) as caught:
        [list(reader.read(part)) for part in partitions]
    assert caught.value.file == gone
    reader = BrokerStoreSource({**options, "failOnDataLoss": "false"}).reader(message_schema(["physical_offset"]))
    found = [row["physical_offset"] for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    assert found == [row["physical_offset"] for row in dumped(made) if row["physical_offset"] // 65536 != 1]


def test_a_damaged_record_through_fsspec(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offset is relative to the file, however little of it was fetched."""
    pytest.importorskip("fsspec")
    monkeypatch.setattr(split_reader, "SEARCH_BACK", 6000)
    monkeypatch.setattr(split_reader, "PIECE_BYTES", 10_000)
    _, at = damage(made, next(row for row in dumped(made)[900:] if len(row["body"]) == 300))
    with pytest.raises(StoreCorrupt) as caught:
        rows(f"local://{made}", splitBytes="20000")
    assert caught.value.offset == at


def test_an_empty_store_has_no_rows(tmp_path: Path) -> None:
    """It is not an error either."""
    MessageStore.open(tmp_path / "empty", config=SMALL).close()
    assert rows(tmp_path / "empty") == []


@pytest.mark.parametrize("name", ["rabbitmq-clean", "rabbitmq-v2"])
def test_rabbitmq_folders_equal_their_dump(fixture_store: Any, name: str) -> None:
    """Each queue is one task, and rows are in delivery order."""
    from rabbitstore import RabbitStore

    folder = fixture_store(name).folder.parent / "vhost"
    with RabbitStore.open(str(folder), "r") as store:
        expected = [message.to_json() for message in store.folder().messages()]
    found = rows(folder)
    assert len(found) == len(expected) > 100
    for row, manifest in zip(found, expected, strict=True):
        body = manifest.pop("body_base64")
        assert row["type"] == "classic"
        found_of_dump = {name: row[name] for name in manifest} | {"properties": json.loads(row["properties"])}
        assert found_of_dump == manifest
        import base64

        assert base64.b64encode(row["body"]).decode() == body


def test_a_killed_rabbitmq_servers_folder_is_read(fixture_store: Any, tmp_path: Path) -> None:
    """Transient messages that only the server's memory had used to count as bad records."""
    folder = tmp_path / "vhost"
    shutil.copytree(fixture_store("rabbitmq-clean").folder.parent / "vhost", folder)
    whole = rows(folder)
    for path in (*folder.glob("*/*.ets"), *folder.glob("*/clean.dot"), folder / "recovery.dets"):
        path.unlink()
    (folder / "msg_store_transient" / "0.rdq").write_bytes(b"")
    in_memory = [row for row in whole if not row["persistent"] and not row["embedded"]]
    assert len(in_memory) == 15
    assert {row["msg_id"] for row in rows(folder)} == {row["msg_id"] for row in whole} - {row["msg_id"] for row in in_memory}
    assert len(rows(folder)) == len(whole) - 15


def test_rabbitmq_takes_its_own_options(fixture_store: Any) -> None:
    """Queue and virtual host select messages."""
    folder = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    expected = rows(folder)
    one, vhost = sorted({row["queue"] for row in expected})[0], expected[0]["vhost"]
    mine = [row for row in expected if row["queue"] == one]
    assert 0 < len(mine) < len(expected)
    assert rows(folder, queue=one) == rows(folder, queue=one, vhost=vhost) == mine
    assert rows(folder, queue="nobody's") == []
    with pytest.raises(UnknownStore, match="no virtual host"):
        rows(folder, vhost="elsewhere")


@pytest.mark.parametrize(
    "name",
    [
        "topic",
        "queueId",
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "key",
        "bodyDecoding",
        "checkCrc",
        "failOnDataLoss",
        "splitBytes",
        "fileBytes",
        "pushFilters",
    ],
)
def test_an_option_of_rocketmq_on_a_rabbitmq_folder(fixture_store: Any, name: str) -> None:
    """It used to be accepted without an effect."""
    folder = fixture_store("rabbitmq-clean").folder.parent / "vhost"
    value = {"bodyDecoding": "plain"}.get(name, "true" if name in ("checkCrc", "failOnDataLoss", "pushFilters") else "7")
    with pytest.raises(BadOption, match=f"option {name}: applies to RocketMQ stores"):
        rows(folder, **{name: value})


@pytest.mark.parametrize("name", ["vhost", "queue"])
def test_an_option_of_rabbitmq_on_a_rocketmq_store(made: Path, name: str) -> None:
    """It used to be ignored, so all messages came instead of those of one queue."""
    from sparkstore.source.several_stores import stream_reader

    with pytest.raises(BadOption, match=f"option {name}: applies to RabbitMQ stores"):
        rows(made, **{name: "x"})
    with pytest.raises(BadOption, match=f"option {name}: applies to RabbitMQ stores"):
        stream_reader({"path": str(made), name: "x"}, message_schema())


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_path_as_spark_writes_it(made: Path, scheme: str) -> None:
    """The sink accepted such a path, but the source did not find the folder."""
    assert rows(f"{scheme}{made}") == dumped(made)
    assert len(rows(f"{scheme}{made}*")) == 1500


def test_bad_records_as_rows_beside_conditions(made: Path) -> None:
    """Rows of problems must satisfy pushed conditions, because Spark does not filter again."""
    from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual

    victim = next(row for row in dumped(made) if len(row["body"]) == 300)
    damage(made, victim)
    source = BrokerStoreSource({"path": str(made), "pushFilters": "true", "badRecords": "report"})
    reader = source.reader(source.schema())
    requested = [GreaterThanOrEqual(("physical_offset",), victim["physical_offset"] + 1), EqualTo(("topic",), "topic-1")]
    assert list(reader.pushFilters(list(requested))) == requested
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert {row["topic"] for row in found if row["problem"] is None} == {"topic-1"}, "decided here too: fewer rows cross"


BAD: list[tuple[dict[str, str], str]] = [
    ({"topics": "a"}, "unknown option 'topics'"),
    ({"queueId": "x"}, "queueId"),
    ({"startingOffsets": "soon"}, "startingOffsets"),
    ({"startingOffsets": '{"t": 3}'}, "startingOffsets"),
    ({"endingOffsets": '{"t": {"0": -7}}'}, "endingOffsets"),
    ({"startingTimestamp": "-1"}, "startingTimestamp"),
    ({"checkCrc": "maybe"}, "checkCrc"),
    ({"badRecords": "ignore"}, "badRecords"),
    ({"splitBytes": "12x"}, "splitBytes"),
    ({"batchRows": "0"}, "batchRows"),
    ({"bodyDecoding": "avro"}, "bodyDecoding"),
    ({"topic": " , "}, "topic"),
]


@pytest.mark.parametrize(("options", "text"), BAD, ids=[str(options) for options, _ in BAD])
def test_a_bad_option_is_named(options: dict[str, str], text: str) -> None:
    """The error comes before anything is read."""
    with pytest.raises(BadOption, match=text):
        parsed(**options)


def test_an_unknown_column_is_named(made: Path) -> None:
    """A column of a wrong type, and a report without its column, are errors too."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    with pytest.raises(UnknownColumn, match="nonsense"):
        rows(made, StructType([StructField("nonsense", StringType())]))
    with pytest.raises(UnknownColumn, match=r"queue_id.*expected int, found bigint"):
        rows(made, StructType([StructField("queue_id", LongType())]))
    with pytest.raises(UnknownColumn, match="body_base64"):
        message_schema(["body_base64"])
    with pytest.raises(BadOption, match="problem"):
        rows(made, message_schema(["topic"]), badRecords="report")


def test_what_is_not_a_store_is_named(tmp_path: Path, fixture_store: Any) -> None:
    """A missing folder, a folder of something else, and two kinds of stores together are errors."""
    with pytest.raises(UnknownStore, match="no such folder"):
        rows(tmp_path / "nothing")
    with pytest.raises(UnknownStore, match="no store found"):
        rows(tmp_path)
    with pytest.raises(UnknownStore, match="load them separately"):
        rows([fixture_store("plain").store, fixture_store("rabbitmq-clean").folder.parent / "vhost"])


def test_a_missing_file_in_the_middle_is_named(made: Path) -> None:
    """With badRecords=skip the rest is read."""
    sorted((made / "commitlog").iterdir())[2].unlink()
    with pytest.raises(StoreCorrupt, match="missing file"):
        rows(made)
    assert rows(made, badRecords="skip") == dumped(made)


def test_the_end_of_the_log_is_found_by_chunked_reads(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records extend over several pieces, and some pieces are smaller than a record."""
    expected = [row["physical_offset"] for row in dumped(made)]
    for piece in (100, 1000, 7001):
        monkeypatch.setattr(cursor, "PIECE_BYTES", piece)
        assert positions(made) == expected


def examined_from(store: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the offset in the last file at which planning starts the search for the log's end."""
    positions_seen: list[int] = []

    def recorded(mapped: Any, at: int, **options: Any) -> Any:
        positions_seen.append(at)
        return cursor.FileCursor(mapped, at, **options)

    with monkeypatch.context() as patched:
        patched.setattr(splits_module, "FileCursor", recorded)
        assert rows(store) == dumped(store)
    return positions_seen[0]


def test_the_end_of_a_closed_log_is_in_its_hint(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `clean.json` the headers of the last file are not walked; without it the result is the same."""
    last = dumped(made)[-1]["physical_offset"] % 65536
    assert examined_from(made, monkeypatch) == last > 0
    (made / "brokerstore" / "clean.json").unlink()
    assert examined_from(made, monkeypatch) == 0


def test_a_clean_stop_hint_is_ignored_after_later_writes(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another checkpoint time or without the noted record, the log may have been cut and rewritten."""
    checkpoint, last = made / "checkpoint", dumped(made)[-1]
    before = checkpoint.read_bytes()
    checkpoint.write_bytes((last["store_timestamp_ms"] + 1).to_bytes(8, "big") + before[8:])
    assert examined_from(made, monkeypatch) == 0
    checkpoint.write_bytes(before)
    file = sorted((made / "commitlog").iterdir())[-1]
    data = bytearray(file.read_bytes())
    at = last["physical_offset"] % 65536
    data[at : at + last["size"]] = bytes(last["size"])
    file.write_bytes(data)
    assert examined_from(made, monkeypatch) == 0
    assert len(rows(made)) == 1499


def test_an_invalid_clean_stop_hint_is_ignored(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset after the end of the file is ignored too."""
    note = made / "brokerstore" / "clean.json"
    whole = json.loads(note.read_text())
    for text in ("", "[]", json.dumps(whole | {"last_offset": 1 << 62}), json.dumps(whole | {"last_offset": -1})):
        note.write_text(text)
        assert examined_from(made, monkeypatch) == 0


def test_reading_columns_does_not_import_pandas(made: Path) -> None:
    """The import would cost a worker half a second and 40 MB."""
    import subprocess
    import sys

    script = f"""
import sys
from sparkstore.source.data_source import BrokerStoreSource
source = BrokerStoreSource({{"path": {str(made)!r}}})
reader = source.reader(source.schema())
assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 1500
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
