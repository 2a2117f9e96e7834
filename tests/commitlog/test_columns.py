"""Columns read from the log, compared with the manifests, and columns appended to it."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storageio import InvalidMessage, StoreCorrupt
from tests.builds import World
from tests.commitlog.logs import FIXTURES, MemoryLog
from tests.commitlog.test_fixtures import fields


def as_row(expected: dict[str, Any]) -> dict[str, Any]:
    """Return the row of all columns for a manifest's message."""
    known = fields(expected)
    pairs = {name: value for name, value in expected["properties"].items() if name != "__CRC32#"}
    row = {name: known[name] for name in known if name not in ("all_properties", "properties_raw")}
    row |= {"magic": expected["magic"], "properties": sorted(pairs.items())}
    row |= {"tags": pairs.get("TAGS"), "keys": pairs.get("KEYS", "").split()}
    return row


@pytest.mark.parametrize("name", FIXTURES)
@pytest.mark.parametrize("rows", [8192, 7])
def test_arrow_columns_are_those_of_the_manifest(world: World, fixture_store: Any, name: str, rows: int) -> None:
    """This compares every column of every message, in one batch a file and in many."""
    arrow = world.module("commitlog.arrow_columns")
    fixture = fixture_store(name)
    log = world.commitlog.open_log(str(fixture.store / "commitlog"))
    reader = arrow.read_columns(log, batch_rows=rows)
    assert reader.schema.names == list(arrow.COLUMNS)
    found = []
    for batch in reader:
        batch.validate(full=True)
        assert 0 < batch.num_rows <= rows
        found += batch.to_pylist()
    for row in found:
        row["properties"] = sorted(row["properties"])
    assert found == [as_row(expected) for expected in fixture.expected()["messages"]]
    log.close()


@pytest.mark.parametrize("name", FIXTURES)
def test_fixed_columns_are_those_of_the_manifest(world: World, fixture_store: Any, name: str) -> None:
    """The NumPy arrays have the stored widths."""
    columns = world.module("commitlog.columns")
    fixture = fixture_store(name)
    log = world.commitlog.open_log(str(fixture.store / "commitlog"))
    parts = list(columns.read_fixed(log, batch_rows=50))
    manifests = [fields(expected) for expected in fixture.expected()["messages"]]
    long = {"queue_offset", "physical_offset", "born_timestamp_ms", "store_timestamp_ms", "prepared_transaction_offset"}
    short = {"size", "magic", "body_crc", "queue_id", "flag", "sys_flag", "reconsume_times"}
    assert set(parts[0]) == long | short
    for field in long | short:
        made = np.concatenate([part[field] for part in parts])
        assert made.dtype == ("i8" if field in long else "i4")
        assert made.tolist() == [expected[field] for expected in manifests], field
    log.close()


def test_only_requested_columns_are_read_and_an_unknown_one_is_rejected(world: World, fixture_store: Any) -> None:
    """The columns come in the requested order."""
    arrow = world.module("commitlog.arrow_columns")
    log = world.commitlog.open_log(str(fixture_store("plain").store / "commitlog"))
    assert arrow.read_columns(log, columns=["body", "topic"]).read_all().column_names == ["body", "topic"]
    with pytest.raises(ValueError, match="nothing"):
        arrow.read_columns(log, columns=["nothing"])
    log.close()


def test_a_range_of_the_log(world: World, fixture_store: Any) -> None:
    """It starts at a record's offset and has the records that end by another offset, over file boundaries."""
    columns = world.module("commitlog.columns")
    fixture = fixture_store("plain")
    manifests = fixture.expected()["messages"]
    log = world.commitlog.open_log(str(fixture.store / "commitlog"))
    for first, last, cut in ((0, 5, 0), (3, 700, 1), (500, 501, 8), (10, 10, 3)):
        start, stop = manifests[first]["physicalOffset"], manifests[last]["physicalOffset"] + cut
        found = [position for part in columns.read_fixed(log, start, stop) for position in part["physical_offset"].tolist()]
        assert found == [expected["physicalOffset"] for expected in manifests[first:last]]
    log.close()


def test_batches_hold_few_bytes(world: World) -> None:
    """Batches are limited in bytes as well as in rows; one large record is a batch of its own."""
    log = MemoryLog(world, 1 << 20)
    for size in (100, 100, 200_000, 100, 100):
        log.appender.append_encoded("T", 0, b"x" * size, b"")
    batches = world.module("commitlog.columns").batches(log.files[0], batch_bytes=1000)
    assert [len(batch.positions) for batch in batches] == [2, 1, 2]


def test_column_reader_raises_at_damage_with_its_offset(world: World, fixture_store: Any) -> None:
    """The rows before it are returned first."""
    columns = world.module("commitlog.columns")
    fixture = fixture_store("plain", own=True)
    path = fixture.store / "commitlog" / f"{65536:020d}"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[size + 100] ^= 1
    path.write_bytes(data)
    log = world.commitlog.open_log(str(path.parent))
    rows = []
    with pytest.raises(StoreCorrupt, match="bad_body_crc") as caught:
        rows += [part for part in columns.read_fixed(log)]  # noqa: C416
    assert (caught.value.file, caught.value.offset) == (str(path), size)
    data[:4] = (1 << 30).to_bytes(4, "big")
    with pytest.raises(StoreCorrupt, match="torn"):
        list(columns.read_fixed(bytes(data), 65536, 65536 + 1000, base=65536))
    log.close()


def test_columns_of_unusual_properties_and_text_equal_the_message_objects(world: World) -> None:
    """Duplicate names, empty keys, a checksum property inside, invalid UTF-8 and many pairs are read as by message objects."""
    arrow, reader_of = world.module("commitlog.arrow_columns"), world.module("commitlog._scan_cy").Reader
    raws = [
        b"",
        b"a\x01b", b"a\x01b\x02a\x01c\x02", b"KEYS\x01 x  y \x02TAGS\x01t\x02", b"KEYS\x01\x02", b"\x01b\x02ab\x02a\x01\x02",
        b"TAGS\x01\xff\xfe\x02\xc3\x01v\x02", b"".join(b"n%d\x01v\x02" % n for n in range(3000)), b"UNIQ_KEY\x01u\x02",
    ]  # fmt: skip
    log = MemoryLog(world, 1 << 20)
    for raw in raws:
        log.appender.append(world.commitlog.Message("T", b"x", queue_id=0, properties_raw=raw))
    end = log.appender.position
    inside = b"a\x01b\x02__CRC32#\x011234567890\x02c\x01d\x02"
    log.appender.append_encoded("T", 0, b"x", inside)
    table = arrow.read_columns(log.files[0]).read_all()
    table.validate(full=True)
    messages, _, _ = reader_of(log.files[0]).decode_range(0, log.appender.position, 100)
    assert messages[-1].physical_offset == end
    for row, message in zip(table.to_pylist(), messages, strict=True):
        assert dict(row["properties"]) == message.properties
        assert len(row["properties"]) == len(message.properties)
        assert (row["tags"], row["keys"], row["message_id"]) == (message.tags, message.keys, message.message_id)


def test_columns_of_an_empty_log(world: World) -> None:
    """There are no batches, but there is a schema."""
    arrow = world.module("commitlog.arrow_columns")
    assert arrow.read_columns(b"").read_all().num_rows == 0
    assert arrow.read_columns(bytes(100)).read_all().schema == arrow.schema()


BODIES = [b"one", b"", b"three", b"x" * 50]


@pytest.mark.parametrize(
    "values",
    [
        BODIES,
        pa.array(BODIES, pa.binary()),
        pa.array(BODIES, pa.large_binary()),
        pa.chunked_array([BODIES[:1], BODIES[1:]], pa.binary()),
        pa.array([b"skipped", *BODIES, b"too"], pa.binary()).slice(1, 4),
        pa.array([body.decode() for body in BODIES], pa.string()),
        pa.array([body.decode() for body in BODIES], pa.large_string()),
        (np.array([0, 3, 3, 8, 58], np.int32), b"".join(BODIES)),
        (array("q", [0, 3, 3, 8, 58]), np.frombuffer(b"".join(BODIES), np.uint8)),
        [body.decode() for body in BODIES],
    ],
    ids=["list", "binary", "large", "chunked", "slice", "string", "large string", "int32", "int64", "text"],
)
def test_bodies_of_every_columnar_kind_are_appended(world: World, values: Any) -> None:
    """The kinds include offsets of 32 or 64 bits, slices and chunks."""
    make = world.module("commitlog.column_input").offsets_and_data
    log = MemoryLog(world)
    result = log.appender.append_columns("T", 0, *make(values))
    found, _, _ = world.module("commitlog._scan_cy").Reader(log.files[0]).decode_range(0, log.appender.position, 9)
    assert (result.message_count, [message.body for message in found]) == (4, BODIES)


@pytest.mark.parametrize(
    "values", [[], pa.array([], pa.binary()), pa.array([], pa.large_string()), pa.array(BODIES, pa.binary()).slice(4)],
    ids=["list", "binary", "text", "slice"],
)  # fmt: skip
def test_a_column_without_rows_appends_nothing(world: World, values: Any) -> None:
    """An empty batch of a stream adds no record and no queue offset; the next one is appended."""
    make = world.module("commitlog.column_input").offsets_and_data
    log = MemoryLog(world)
    result = log.appender.append_columns("T", 0, *make(values))
    assert (result.status.name, result.message_count, result.size_bytes, log.appender.end_offset) == ("PUT_OK", 0, 0, 0)
    assert log.appender.append_columns("T", 0, *make(BODIES)).queue_offset == 0


def test_rows_of_equal_length(world: World) -> None:
    """They come as a two-dimensional array of uint8 or as Arrow's fixed-size binary, sliced or not."""
    make = world.module("commitlog.column_input").offsets_and_data
    rows = np.arange(40, dtype=np.uint8).reshape(5, 8)
    fixed = pa.array([bytes(row) for row in rows], pa.binary(8))
    for values, expected in ((rows, rows), (rows[::2], rows[::2]), (fixed, rows), (fixed.slice(2), rows[2:])):
        log = MemoryLog(world)
        log.appender.append_columns("T", 0, *make(values))
        found, _, _ = world.module("commitlog._scan_cy").Reader(log.files[0]).decode_range(0, log.appender.position, 9)
        assert [message.body for message in found] == [bytes(row) for row in expected]


@pytest.mark.parametrize(
    "values",
    [5, "text",
     b"bytes", [1, 2], pa.array([1, 2]), pa.array([b"a", None]), np.zeros(5), np.zeros((2, 2)), (np.zeros(0, int), b""),
     (np.zeros((2, 2), int), b""), (np.zeros(2), b"")],
)  # fmt: skip
def test_value_that_is_not_a_column_of_bytes_is_rejected(world: World, values: Any) -> None:
    """The error names the type."""
    with pytest.raises(InvalidMessage, match="bodies"):
        world.module("commitlog.column_input").offsets_and_data(values)


def test_nulls_are_empty_keys_and_tags(world: World) -> None:
    """A missing key adds no KEYS property."""
    make = world.module("commitlog.column_input").offsets_and_data
    log = MemoryLog(world, with_crc=True)
    log.appender.append_columns(
        "T", 3, *make([b"x", b"y", b"z"]), keys=make(pa.array(["k", None, "m n"]), null_is_empty=True),
        tags=make(["a", None, None], null_is_empty=True), properties=b"p\x01q\x02",
    )  # fmt: skip
    table = (
        world.module("commitlog.arrow_columns").read_columns(log.files[0], columns=["keys", "tags", "properties"]).read_all()
    )
    assert table["keys"].to_pylist() == [["k"], [], ["m", "n"]]
    assert table["tags"].to_pylist() == ["a", None, None]
    assert table["properties"].to_pylist()[1] == [("p", "q")]


def test_reading_keeps_no_copy_of_the_log(tmp_path: Path) -> None:
    """Peak memory beyond the maps stays under 64 MiB over 192 MiB of records: walked, as objects, as columns."""
    script = Path(__file__).with_name("peak_memory.py")
    found = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    peaks = json.loads(found.stdout)
    assert set(peaks) == {"walk", "objects", "fixed", "arrow"}
    assert max(peaks.values()) < 64 << 20, peaks
