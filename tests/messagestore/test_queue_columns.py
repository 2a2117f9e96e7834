"""A queue as Arrow batches has the messages of `read`, column by column."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from messagestore import MessageStore
from messagestore.read import queue_columns
from storageio import StoreClosed, StoreCorrupt
from tests.messagestore.writers import LOG_SIZE, log_files, open_store, put_all


def rows_of(
    store: MessageStore, queue_id: int = 0, start: int = 0, stop: int | None = None, **how: Any
) -> list[dict[str, Any]]:
    return list(store.read_columns("t", queue_id, start, stop, **how).read_all().to_pylist())


def as_row(stored: Any) -> dict[str, Any]:
    """Return the fields of a message object that need no conversion."""
    names = (
        "topic", "queue_id", "queue_offset", "physical_offset", "size", "body_crc", "flag", "sys_flag", "born_timestamp_ms",
        "born_host", "store_timestamp_ms", "store_host", "reconsume_times", "prepared_transaction_offset", "message_id", "tags",
        "keys", "body",
    )  # fmt: skip
    return {name: getattr(stored, name) for name in names}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with open_store(tmp_path) as made:
        put_all(made, 0, 1500, tags="paid")
        yield made


@pytest.mark.parametrize(("start", "stop"), [(0, None), (0, 500), (100, 101), (99, 301), (7, 7), (500, None), (-3, 9999)])
def test_columns_are_what_read_gives(store: MessageStore, start: int, stop: int | None) -> None:
    """This holds for every range, across log files and queue files."""
    expected = [as_row(stored) for stored in store.read("t", 1, max(start, 0), stop)]
    found = rows_of(store, 1, start, stop)
    assert [{name: row[name] for name in row if name not in ("magic", "properties")} for row in found] == expected
    assert len({row["physical_offset"] // LOG_SIZE for row in rows_of(store, 1)}) > 3


def test_only_the_requested_columns_are_read(store: MessageStore) -> None:
    """They come in the requested order; an unknown one is refused."""
    reader = store.read_columns("t", 0, columns=["body", "queue_offset"])
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema.names == ["body", "queue_offset"]
    assert reader.read_all().column("queue_offset").to_pylist() == list(range(500))
    with pytest.raises(ValueError, match="colour"):
        store.read_columns("t", 0, columns=["colour"])


def test_an_unknown_queue_is_empty(store: MessageStore) -> None:
    """It has the schema of any other queue."""
    table = store.read_columns("t", 9).read_all()
    assert table.num_rows == 0
    assert "body" in table.schema.names


def test_a_fixture_of_the_real_store_gives_the_same_both_ways(fixture_store: Any) -> None:
    """Every queue of a real broker's folder is read."""
    fixture = fixture_store("plain")
    with MessageStore.open(fixture.store, "r") as store:
        seen = 0
        for topic in store.topics():
            for queue_id in store.queue_ids(topic):
                expected = [as_row(stored) for stored in store.read(topic, queue_id)]
                rows = store.read_columns(topic, queue_id).read_all().to_pylist()
                found = [{name: row[name] for name in row if name not in ("magic", "properties")} for row in rows]
                assert found == expected
                seen += len(found)
        assert seen > 100


def test_bodies_bound_a_batch(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of rows does not matter; one record may be larger than the limit."""
    monkeypatch.setattr(queue_columns, "BATCH_BYTES", 1000)
    sizes = [sum(batch.column("size").to_pylist()) for batch in store.read_columns("t", 0, columns=["size"])]
    assert max(sizes) <= 1000
    monkeypatch.setattr(queue_columns, "BATCH_BYTES", 1)
    assert [batch.num_rows for batch in store.read_columns("t", 0, 0, 5, columns=["size"])] == [1] * 5


def test_expired_records_are_skipped(store: MessageStore) -> None:
    """Records may leave before the call, and while the batches are read."""
    store.flush()
    batches = iter(store.read_columns("t", 0, columns=["queue_offset"]))
    first = next(batches).column(0).to_pylist()
    assert store.delete_before(3 * LOG_SIZE) == 3
    rest = [number for batch in batches for number in batch.column(0).to_pylist()]
    low = store.min_offset("t", 0)
    assert first[0] == 0
    assert [number for number in rest if number >= low] == list(range(low, 500))
    assert [row["queue_offset"] for row in rows_of(store)] == list(range(low, 500))


@pytest.mark.parametrize("damage", ["body", "unit offset", "unit size"])
def test_damaged_record_or_unit_raises(tmp_path: Path, damage: str) -> None:
    """An invalid record, or a unit that points elsewhere, raises an error."""
    root = tmp_path / "store"
    with open_store(root) as store:
        put_all(store, 0, 30)
        target = next(iter(store.read("t", 0, 4)))
    if damage == "body":
        path, at = log_files(root)[0], target.physical_offset + 90
    else:
        path = root / "consumequeue" / "t" / "0" / ("0" * 20)
        at = 4 * 20 + (7 if damage == "unit offset" else 11)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with open_store(root, "r") as reader, pytest.raises(StoreCorrupt):
        rows_of(reader)


@pytest.mark.parametrize("rows", [4, 5, 6, 29, 30])
def test_damage_in_either_of_two_batches_ends_the_rows_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Two batches are filled in parallel; the second is dropped if the first ends early."""
    monkeypatch.setattr(queue_columns, "BATCH_ROWS", rows)
    root = tmp_path / "store"
    with open_store(root) as store:
        put_all(store, 0, 90)
        positions = [message.physical_offset for message in store.read("t", 0)]
    assert positions[-1] < LOG_SIZE
    whole = log_files(root)[0].read_bytes()
    for number, position in enumerate(positions):
        data = bytearray(whole)
        data[position + 90] ^= 1
        log_files(root)[0].write_bytes(data)
        found: list[int] = []
        with open_store(root, "r") as reader, pytest.raises(StoreCorrupt):
            for batch in reader.read_columns("t", 0, columns=["queue_offset", "body"]):
                found += batch.column(0).to_pylist()
        assert found == list(range(number))


def test_no_thread_remains_after_an_early_stop(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that stops in the middle leaves no thread behind."""
    monkeypatch.setattr(queue_columns, "BATCH_ROWS", 50)
    made_by: list[str] = []
    made = queue_columns.checked_batch

    def watching(*given: Any) -> Any:
        made_by.append(threading.current_thread().name)
        return made(*given)

    monkeypatch.setattr(queue_columns, "checked_batch", watching)
    for batch in store.read_columns("t", 0, columns=["size"]):
        assert batch.num_rows
        assert not [thread for thread in threading.enumerate() if thread.name == "brokerstore-columns"]
    assert 4 < made_by.count("brokerstore-columns") <= len(made_by) // 2


def test_batch_that_cannot_be_read_ahead_is_read_afterwards(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no memory for two batches."""
    monkeypatch.setattr(queue_columns, "BATCH_ROWS", 50)
    made = queue_columns.checked_batch

    def failing(*given: Any) -> Any:
        if threading.current_thread().name == "brokerstore-columns":
            raise MemoryError
        return made(*given)

    monkeypatch.setattr(queue_columns, "checked_batch", failing)
    assert [row["queue_offset"] for row in rows_of(store)] == list(range(500))


def test_a_reader_beside_a_writer_sees_what_came(tmp_path: Path) -> None:
    """A closed store raises an error."""
    with open_store(tmp_path) as writer, open_store(tmp_path, "r") as reader:
        put_all(writer, 0, 30)
        writer.get("t", 0, 0)
        assert len(rows_of(reader)) == 10
        put_all(writer, 30, 900)
        writer.get("t", 0, 0)
        assert [int(row["body"].split()[0]) for row in rows_of(reader, 2)] == list(range(2, 900, 3))
    with pytest.raises(StoreClosed):
        reader.read_columns("t", 0)


def test_columns_outlive_the_store(tmp_path: Path) -> None:
    """A batch owns its bytes."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 30)
        table = store.read_columns("t", 0).read_all()
        thread = threading.Thread(target=put_all, args=(store, 30, 60))
        thread.start()
        thread.join()
    shutil.rmtree(tmp_path)
    assert [int(body.as_py().split()[0]) for body in table.column("body")] == list(range(0, 30, 3))
