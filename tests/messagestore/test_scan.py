"""A scan has the messages of `read` that pass the filters, and each table library takes it without a word of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.read import queue_columns
from messagestore.shared.store import connect
from storageio import StoreCorrupt
from tests.messagestore.writers import LOG_SIZE, config, log_files, open_store

TAGS = ("paid", "open", None, "Aa", "BB")  # the last two have the same Java hash
FIRST_MS = 1_700_000_000_000
COUNT = 400


def stored_at(number: int) -> int:
    return FIRST_MS + 10 * (number // 2)  # two messages a time


def message(number: int) -> Message:
    keys, properties = [f"k{number % 7}", f"n{number}"], {"UNIQ_KEY": f"U{number}"}
    return Message("t", b"%d" % number, queue_id=number % 3, tags=TAGS[number % 5], keys=keys, properties=properties)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scan") / "store"
    now = [FIRST_MS]
    with open_store(root, clock=lambda: now[0]) as store:
        for number in range(COUNT):
            now[0] = stored_at(number)
            store.put(message(number))
        store.put(Message("other", b"x", tags="paid", keys=["k1"]))
    return root


@pytest.fixture
def store(folder: Path) -> Iterator[MessageStore]:
    with open_store(folder, "r") as reader:
        yield reader


def numbers(store: Any, **filters: Any) -> list[int]:
    """Return the messages of a scan, by the number in their body."""
    return [int(body) for body in pa.table(store.scan("t", columns=["body"], **filters)).column(0).to_pylist()]


def expected(keep: Callable[[int], bool]) -> list[int]:
    """Return the numbers that pass, in the order of a scan: queue by queue."""
    return [number for queue_id in range(3) for number in range(queue_id, COUNT, 3) if keep(number)]


CASES: dict[str, tuple[dict[str, Any], Callable[[int], bool]]] = {
    "everything": ({}, lambda n: True),
    "a queue": ({"queues": [1]}, lambda n: n % 3 == 1),
    "queues, one of them unknown": ({"queues": [2, 0, 9]}, lambda n: n % 3 != 1),
    "from a time on": ({"begin": stored_at(101)}, lambda n: stored_at(n) >= stored_at(101)),
    "between times": ({"begin": stored_at(100) + 1, "end": stored_at(200)}, lambda n: 102 <= n < 200),
    "before every message": ({"end": FIRST_MS}, lambda n: False),
    "after every message": ({"begin": stored_at(COUNT) + 1}, lambda n: False),
    "a tag": ({"tags": "paid"}, lambda n: n % 5 == 0),
    "tags": ({"tags": {"paid", "open"}}, lambda n: n % 5 in (0, 1)),
    "a tag that shares its hash": ({"tags": ["Aa"]}, lambda n: n % 5 == 3),
    "no tag": ({"tags": []}, lambda n: False),
    "a key": ({"keys": "k3"}, lambda n: n % 7 == 3),
    "keys, one of them unique": ({"keys": ["n17", "U18", "k"]}, lambda n: n in (17, 18)),
    "offsets": ({"start": 5, "stop": 7}, lambda n: n // 3 in (5, 6)),
    "offsets of a queue": ({"start": {1: 130}, "stop": {0: 1}}, lambda n: (n < 3, n // 3 >= 130, True)[n % 3]),
    "all of them": (
        {"tags": "open", "keys": ["k1", "k2"], "begin": stored_at(20), "end": stored_at(300), "stop": 60},
        lambda n: n % 5 == 1 and n % 7 in (1, 2) and 20 <= n < 300 and n // 3 < 60,
    ),
}


@pytest.mark.parametrize("rows", [3, 8192])
@pytest.mark.parametrize("name", CASES)
def test_a_scan_returns_the_messages_that_match_the_filter(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, name: str, rows: int
) -> None:
    """The order is that of queues and offsets, whatever the size of a batch."""
    monkeypatch.setattr(queue_columns, "BATCH_ROWS", rows)
    filters, keep = CASES[name]
    assert numbers(store, **filters) == expected(keep)


def test_times_may_be_datetimes(store: MessageStore) -> None:
    """A part of a millisecond counts."""
    moment = datetime.fromtimestamp(stored_at(100) / 1000, UTC)
    assert numbers(store, begin=moment) == expected(lambda n: n >= 100)
    assert numbers(store, begin=moment + timedelta(microseconds=1)) == expected(lambda n: n >= 102)
    assert numbers(store, end=moment + timedelta(microseconds=1)) == expected(lambda n: n < 102)


def test_repeated_scan_includes_messages_put_since(tmp_path: Path) -> None:
    """Every stream is a new one."""
    with open_store(tmp_path) as store:
        store.put(message(0))
        scan = store.scan("t", columns=["queue_offset", "body"])
        assert pa.table(scan).num_rows == pa.table(scan).num_rows == 1
        store.put(message(1))
        assert pa.table(scan).num_rows == 2
        assert pa.schema(scan).names == ["queue_offset", "body"]
        with pytest.raises(pa.ArrowInvalid, match="no topic 'nobody'"):
            pa.table(store.scan("nobody"))


def test_a_shared_store_scans_in_its_owner(tmp_path: Path) -> None:
    """It is the same scan."""
    with connect(tmp_path, config()) as store:
        store.put(message(3))
        assert numbers(store, tags="Aa") == [3]


@pytest.mark.parametrize("filters", [{}, {"tags": "open"}, {"keys": "k1"}, {"begin": FIRST_MS}])
@pytest.mark.parametrize("position", [0, 1, 6, 29])
def test_damage_is_raised_whatever_the_filter(tmp_path: Path, filters: dict[str, Any], position: int) -> None:
    """A filter by key or time does not hide a damaged record, and the rows before it come first."""
    root = tmp_path / "store"
    with open_store(root) as store:
        for number in range(30):
            store.put(Message("t", b"%d" % number, queue_id=0, tags="open", keys=[f"k{number % 2}"]))
        target = next(iter(store.read("t", 0, position, position + 1))).physical_offset
    assert target < LOG_SIZE
    data = bytearray(log_files(root)[0].read_bytes())
    data[target + 88] ^= 1  # the body
    log_files(root)[0].write_bytes(data)
    found: list[int] = []
    with open_store(root, "r") as reader, pytest.raises(StoreCorrupt):
        for batch in reader.scan("t", columns=["queue_offset"], **filters).reader():
            found += batch.column(0).to_pylist()
    assert found == [number for number in range(position) if "keys" not in filters or number % 2 == 1]


def test_scan_does_not_read_records_of_other_tags(tmp_path: Path) -> None:
    """The queue's codes decide, so damage elsewhere does not matter."""
    root = tmp_path / "store"
    with open_store(root) as store:
        for number in range(30):
            store.put(Message("t", b"%d" % number, queue_id=0, tags="even" if number % 2 == 0 else "odd"))
        target = next(iter(store.read("t", 0, 7, 8))).physical_offset
    data = bytearray(log_files(root)[0].read_bytes())
    data[target + 88] ^= 1
    log_files(root)[0].write_bytes(data)
    with open_store(root, "r") as reader:
        assert numbers(reader, tags="even") == list(range(0, 30, 2))
        found: list[int] = []
        with pytest.raises(StoreCorrupt):
            for batch in reader.scan("t", tags="odd").reader():
                found += batch.column("queue_offset").to_pylist()
        assert found == [1, 3, 5]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"columns": ["colour"]}, ValueError),
        ({"tags": [1]}, TypeError),
        ({"keys": [b"a"]}, TypeError),
        ({"begin": "now"}, TypeError),
    ],
)
def test_wrong_arguments_are_refused_by_name(store: MessageStore, wrong: dict[str, Any], error: type[Exception]) -> None:
    """No scan is made."""
    with pytest.raises(error, match=next(iter(wrong)) if error is TypeError else "colour"):
        store.scan("t", **wrong)


def test_polars_takes_a_scan(store: MessageStore) -> None:
    """Every column has a type that polars knows, except maps, which it reads as lists."""
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.DataFrame(store.scan("t", tags="paid"))
    assert [int(body) for body in frame["body"]] == expected(lambda n: n % 5 == 0)
    assert frame["keys"].to_list()[0] == ["k0", "n0"]


def test_duckdb_takes_a_scan(store: MessageStore) -> None:
    """DuckDB reads the schema first, then the rows, and may do so again."""
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    scan = store.scan("t")
    for _ in range(2):
        found = duckdb.sql("select tags, count(*) from scan where tags is not null group by tags order by tags").fetchall()
        assert found == [("Aa", 80), ("BB", 80), ("open", 80), ("paid", 80)]
    assert scan.topic == "t"


def test_pandas_takes_a_scan(store: MessageStore) -> None:
    """With pandas 2 through `to_pandas`."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    scan = store.scan("t", columns=["tags", "body"], keys="n8")
    frame = pandas.DataFrame.from_arrow(scan) if hasattr(pandas.DataFrame, "from_arrow") else scan.to_pandas()
    assert frame.to_dict("records") == [{"tags": "Aa", "body": b"8"}]
