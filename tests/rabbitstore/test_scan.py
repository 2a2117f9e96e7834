"""A scan has the messages of `messages` that pass the filters, and each table library takes it without a word of Arrow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rabbitstore import IndexSettings, RabbitSettings, RabbitStore, StoreSettings
from rabbitstore.format.layout import PERSISTENT_FOLDER
from rabbitstore.read import columns
from rabbitstore.read.vhost_folder import VhostFolder
from storageio import StoreCorrupt

COUNT = 60
BIG = 5000  # bytes of a body that is stored beside the index
SETTINGS = RabbitSettings(background=False, index=IndexSettings(segment_entries=16))


def body(number: int) -> bytes:
    return (b"%d " % number).ljust(BIG if number % 2 else 10, b".")


def number_of(text: bytes) -> int:
    return int(text.split()[0])


def queue_of(number: int) -> str:
    return "ab"[number % 2]


def key_of(number: int) -> str:
    return f"k{number % 3}"


def filled(path: Path) -> RabbitStore:
    """Publish to two queues by turns; seven messages of each were acknowledged."""
    store = RabbitStore.open(path, settings=SETTINGS)
    for queue in "ab":
        store.declare_queue(queue)
    for number in range(COUNT):
        properties = {"message_id": f"m{number}", "headers": {"n": number}}
        store.publish(queue_of(number), body(number), exchange="x", routing_keys=[key_of(number)], properties=properties)
    for queue in "ab":
        for _ in range(7):
            delivery = store.get(queue)
            assert delivery is not None
            store.ack(delivery)
    store.flush_journals()
    return store


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scan") / "vhost"
    filled(path).close()
    return path


@pytest.fixture
def store(folder: Path) -> Iterator[RabbitStore]:
    with RabbitStore.open(folder, "r") as reader:
        yield reader


def numbers(store: RabbitStore, *queues: Any, **filters: Any) -> list[int]:
    """Return the messages of a scan, by the number in their body."""
    table = pa.table(store.scan(*queues, columns=["body"], **filters))
    return [number_of(text) for text in table.column(0).to_pylist()]


def expected(keep: Callable[[int], bool]) -> list[int]:
    """Return the numbers that pass, queue by queue: the even ones, then the odd ones."""
    return [number for first in (0, 1) for number in range(first, COUNT, 2) if number >= 14 and keep(number)]


CASES: dict[str, tuple[dict[str, Any], Callable[[int], bool]]] = {
    "everything": ({}, lambda n: True),
    "a queue": ({"queues": "b"}, lambda n: n % 2 == 1),
    "queues, one of them unknown": ({"queues": ["b", "nobody"]}, lambda n: n % 2 == 1),
    "sequence numbers": ({"start": 9, "stop": 20}, lambda n: 9 <= n // 2 < 20),
    "sequence numbers of a queue": ({"start": {"a": 20}, "stop": {"b": 10}}, lambda n: (n // 2 >= 20, n // 2 < 10)[n % 2]),
    "a routing key": ({"routing_keys": "k1"}, lambda n: n % 3 == 1),
    "routing keys": ({"routing_keys": {"k1", "k2", "none"}}, lambda n: n % 3 in (1, 2)),
    "no routing key": ({"routing_keys": []}, lambda n: False),
    "all of them": ({"queues": "a", "routing_keys": "k0", "start": 8, "stop": 25}, lambda n: n % 6 == 0 and 8 <= n // 2 < 25),
}


@pytest.mark.parametrize("rows", [3, 4096])
@pytest.mark.parametrize("name", CASES)
def test_a_scan_returns_the_messages_that_match_the_filter(
    store: RabbitStore, monkeypatch: pytest.MonkeyPatch, name: str, rows: int
) -> None:
    """The order is that of queues and sequence numbers, whatever the size of a batch."""
    monkeypatch.setattr(columns.record_batches, "__defaults__", (rows, None))
    filters, keep = CASES[name]
    assert numbers(store, **filters) == expected(keep)


def test_every_column_is_that_of_the_message(store: RabbitStore) -> None:
    """The columns are the keys of the tool's JSON; properties are JSON text and bodies are bytes."""
    found = pa.table(store.scan("b", start=12, stop=13)).to_pylist()
    assert len(found) == 1
    file, offset, msg_id, size = (found[0].pop(name) for name in ("file", "offset", "msg_id", "size"))
    properties = json.loads(found[0].pop("properties"))
    assert properties == {"message_id": "m25", "headers": {"n": 25}, "delivery_mode": 2}
    assert found[0] == {
        "queue": "b", "vhost": "/", "seq_id": 12, "persistent": True, "acked": False, "redelivered": False,
        "expiry_us": 0, "embedded": False, "exchange": "x", "routing_keys": ["k1"], "body": body(25),
    }  # fmt: skip
    assert file.startswith(PERSISTENT_FOLDER) and size == BIG
    stored = Path(store.path, file).read_bytes()
    assert stored[offset + 8 : offset + 24].hex() == msg_id  # behind the record's size


def test_acknowledged_messages_are_left_out_unless_requested(tmp_path: Path) -> None:
    """Their entries are in an index of version 1 until their segment is deleted."""
    with RabbitStore.open(tmp_path, settings=replace(SETTINGS, index_version=1)) as store:
        store.declare_queue("q")
        for number in range(9):
            store.publish("q", body(2 * number))
        store.flush_journals()
        for _ in range(7):
            store.get("q", auto_ack=True)
        store.flush_journals()
        found = pa.table(store.scan("q", columns=["seq_id", "acked"], include_acked=True)).to_pylist()
        assert [row["seq_id"] for row in found if row["acked"]] == list(range(7))
        assert len(found) == 9 and len(numbers(store)) == 2


def test_a_range_reads_no_message_outside(folder: Path, tmp_path: Path) -> None:
    """So damage elsewhere does not matter."""
    path = damaged_copy(folder, tmp_path, 41)
    with RabbitStore.open(path, "r") as reader:
        assert numbers(reader, stop=20) == expected(lambda n: n // 2 < 20)
        assert numbers(reader, start=21) == expected(lambda n: n // 2 >= 21)
        assert numbers(reader, "a") == expected(lambda n: n % 2 == 0)


def damaged_copy(folder: Path, tmp_path: Path, number: int) -> Path:
    """Copy the store, and damage the stored message of an odd number."""
    path = Path(shutil.copytree(folder, tmp_path / "vhost"))
    with RabbitStore.open(path, "r") as reader:
        (message,) = (one for one in reader.messages("b") if number_of(one.body) == number)
    data = bytearray((path / message.file).read_bytes())
    data[message.offset + 25] = 0xFF  # the tag of its term
    (path / message.file).write_bytes(data)
    return path


def test_messages_raise_at_damage_after_the_messages_before_it(folder: Path, tmp_path: Path) -> None:
    """The folder's reader goes on behind it, and lists the damage."""
    with RabbitStore.open(damaged_copy(folder, tmp_path, 41), "r") as reader:
        assert [number_of(one.body) for one in reader.messages("a")] == expected(lambda n: n % 2 == 0)
        before = expected(lambda n: n % 2 == 1 and n < 41)
        for queue, requested in (("b", before), (None, expected(lambda n: n % 2 == 0) + before)):
            found: list[int] = []
            with pytest.raises(StoreCorrupt, match="bad term"):
                found += (number_of(one.body) for one in reader.messages(queue))
            assert found == requested
        with closing(reader.folder()) as past:
            assert [number_of(one.body) for one in past.messages("b")] == expected(lambda n: n % 2 == 1 and n != 41)
            assert [problem.kind for problem in past.problems] == ["bad_term"]


@pytest.mark.parametrize("filters", [{}, {"routing_keys": "k0"}])
def test_damage_ends_a_scan_after_the_rows_before_it(folder: Path, tmp_path: Path, filters: dict[str, Any]) -> None:
    """Whatever the filter, and in every read."""
    with RabbitStore.open(damaged_copy(folder, tmp_path, 41), "r") as reader:
        scan = reader.scan("b", columns=["body"], **filters)
        for _ in range(2):
            found: list[int] = []
            with pytest.raises(StoreCorrupt, match="bad term"):
                for batch in scan.reader():
                    found += [number_of(text) for text in batch.column(0).to_pylist()]
            assert found == expected(lambda n: n % 2 == 1 and n < 41 and ("routing_keys" not in filters or n % 3 == 0))


def test_bad_properties_end_a_scan_that_builds_them(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are decoded for their column alone."""
    import rabbitstore.format.content as content

    def refuse(_data: bytes) -> dict[str, Any]:
        raise StoreCorrupt("bad property", file="", offset=0, expected="a type", found=7)

    monkeypatch.setattr(content.blocks, "decode", refuse)
    columns._block_json.cache_clear()
    with RabbitStore.open(folder, "r") as reader:
        with pytest.raises(StoreCorrupt, match="bad property"):
            reader.scan("a", columns=["properties"]).reader().read_all()
        assert len(numbers(reader)) == COUNT - 14


def test_messages_that_are_acknowledged_during_a_scan_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files are deleted while the scan has their entries in memory; the others come once each."""
    small = RabbitSettings(background=False, store=StoreSettings(file_size_limit=20_000, file_garbage_fraction=0.0))
    with RabbitStore.open(tmp_path, settings=small) as store:
        store.declare_queue("q")
        for number in range(160):
            store.publish("q", (b"%d " % number).ljust(BIG, b"."))
        store.flush_journals()
        monkeypatch.setattr(columns.record_batches, "__defaults__", (10, None))
        batches = store.scan("q", columns=["body"]).reader()
        found: list[int] = []
        found += [number_of(text) for text in next(batches).column(0).to_pylist()]
        for number in range(160):
            delivery = store.get("q")
            assert delivery is not None
            if number % 3 != 1:
                store.ack(delivery)
        store.sync()
        store.collect()
        for batch in batches:
            found += [number_of(text) for text in batch.column(0).to_pylist()]
    assert len(found) == len(set(found))
    assert [number for number in found if number % 3 == 1] == list(range(1, 160, 3))


def test_a_scan_can_be_read_again_and_then_has_what_was_published_since(tmp_path: Path) -> None:
    """Every stream is a new one."""
    with RabbitStore.open(tmp_path, settings=SETTINGS) as store:
        store.declare_queue("q")
        store.publish("q", b"0 ")
        scan = store.scan(columns=["seq_id"])
        assert pa.table(scan).num_rows == pa.table(scan).num_rows == 1
        store.publish("q", b"1 ")
        assert pa.table(scan).column(0).to_pylist() == [0, 1]
        assert pa.schema(scan).names == ["seq_id"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [({"columns": ["colour"]}, ValueError), ({"queues": [1]}, TypeError), ({"routing_keys": [b"a"]}, TypeError)],
)
def test_wrong_arguments_are_refused_by_name(store: RabbitStore, wrong: dict[str, Any], error: type[Exception]) -> None:
    """No scan is made."""
    with pytest.raises(error, match=next(iter(wrong)) if error is TypeError else "colour"):
        store.scan(**wrong)


def test_polars_takes_a_scan(store: RabbitStore) -> None:
    """Every column has a type that polars knows."""
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.DataFrame(store.scan())
    assert [number_of(text) for text in frame["body"]] == expected(lambda n: True)
    assert frame["routing_keys"].to_list()[0] == [key_of(14)]


def test_duckdb_takes_a_scan(store: RabbitStore) -> None:
    """DuckDB reads the schema first, then the rows, and may do so again."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    scan = store.scan()
    for _ in range(2):
        found = duckdb.sql("select queue, count(*), min(seq_id) from scan group by queue order by queue").fetchall()
        assert found == [("a", 23, 7), ("b", 23, 7)]
    assert "all queues" in repr(scan)


def test_pandas_takes_a_scan(store: RabbitStore) -> None:
    """With pandas 2 through `to_pandas`."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    scan = store.scan("a", columns=["queue", "seq_id"], stop=9)
    frame = pandas.DataFrame.from_arrow(scan) if hasattr(pandas.DataFrame, "from_arrow") else scan.to_pandas()
    assert frame.to_dict("records") == [{"queue": "a", "seq_id": 7}, {"queue": "a", "seq_id": 8}]


def damage(path: Path, position: bytes, changed: bytes) -> None:
    """Change some bytes that one file of the queues has."""
    for file in path.rglob("*"):
        if file.is_file() and position in (data := file.read_bytes()):
            file.write_bytes(data.replace(position, changed, 1))
            return
    raise AssertionError("no file has them")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("case", ["intact", "unclean", "bad properties", "damaged message"])
def test_batches_of_a_folder_have_the_messages(
    tmp_path: Path, version: int, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that a kernel builds are equal to those from message objects, and both find the same problems."""
    settings = replace(SETTINGS, index_version=version)
    with RabbitStore.open(tmp_path, settings=settings) as store:
        for queue in ("a", "b", "c"):
            store.declare_queue(queue)
            for number in range(40):
                properties = {"message_id": f"m{number % 3}", "headers": {"n": number}} if number % 4 else {}
                keys = ["k", "\u00e9"] if number % 5 else [queue]
                size = 0 if number == 7 else BIG if (queue, number) == ("b", 9) else number
                route = {"exchange": "x" * (number // 20), "routing_keys": keys}
                store.publish(queue, b"." * size, properties=properties, **route)
        for _ in range(5):
            delivery = store.get("a")
            assert delivery is not None
            store.ack(delivery)
        store.get("b")
    if case == "unclean":
        (tmp_path / "recovery.dets").unlink()
    elif case == "bad properties":
        damage(tmp_path / "queues", b"\x02m1", b"\xf2m1")
    elif case == "damaged message":
        damage(tmp_path / "queues", b"." * 30, b"." * 29 + b"!")
    monkeypatch.setattr(columns, "BATCH_BYTES", 1000)
    schema = columns.schema()
    found = []
    for build in (columns.folder_batches, lambda folder, *more: columns.record_batches(folder.messages(), *more[1:])):
        bad: list[Any] = []
        with closing(VhostFolder(str(tmp_path))) as folder:
            builts = list(build(folder, None, schema, lambda message, error, bad=bad: bad.append((message, str(error)))))
            assert sum(built.messages for built in builts) == sum(len(built.batch) for built in builts) + len(bad)
            table = pa.Table.from_batches([built.batch for built in builts], schema)
            found.append((table, bad, sorted(map(str, folder.problems)), sorted(map(str, folder.notes))))
    assert found[0] == found[1]
    assert found[0][0].num_rows >= 80
