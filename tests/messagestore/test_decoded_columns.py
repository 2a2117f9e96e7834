"""Compressed bodies in columns: as real clients sent them, with a limit for each, in batches of bounded size."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog import Message, open_log
from commitlog.arrow_columns import read_columns
from commitlog.columns import BATCH_BYTES
from messagestore import MessageStore
from messagestore.shared.store import connect
from storageio import StoreCorrupt
from tests.messagestore.support import BROKERS
from tests.messagestore.writers import config, open_store

TEXT = b"the same words again and again, " * 400
ZLIB = 0x301


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a store with a compressed message, a plain one, and one whose body is not what its flag says."""
    root = tmp_path / "store"
    with open_store(root) as store:
        for number, (body, sys_flag) in enumerate([(zlib.compress(TEXT), ZLIB), (b"plain", 0), (b"no frame", ZLIB)]):
            store.put(Message("t", body, queue_id=0, sys_flag=sys_flag, tags=f"tag-{number}"))
    return root


def bodies(table: Any) -> list[bytes]:
    found: list[bytes] = pa.table(table).column("body").to_pylist()
    return found


@pytest.mark.parametrize("broker", BROKERS)
def test_bodies_of_real_clients_are_those_of_the_producer(fixture_store: Any, broker: str) -> None:
    """Length and CRC are those that the producer noted before it compressed."""
    fixture = fixture_store(broker)
    acks = {ack["offsetMsgId"]: ack for ack in fixture.expected()["acks"] if ack.get("compression")}
    expected = {
        (row["topic"], row["queueId"], row["queueOffset"]): acks[row["msgId"]]
        for row in fixture.expected()["messages"]
        if row["sysFlag"] & 1 and row["msgId"] in acks
    }
    assert {ack["compression"] for ack in expected.values()} == {"LZ4", "ZSTD", "ZLIB"}
    with MessageStore.open(fixture.store, "r") as store:
        for topic in {topic for topic, _, _ in expected}:
            scan = store.scan(topic, columns=["body", "queue_offset", "queue_id"], decode_limit_bytes=1 << 20)
            table = pa.table(scan)
            assert table.schema.equals(pa.schema(scan.schema)) and table.column_names == ["body", "queue_offset", "queue_id"]
            for body, queue_offset, queue_id in zip(*(column.to_pylist() for column in table.columns), strict=True):
                ack = expected.pop((topic, queue_id, queue_offset), None)
                assert ack is None or (len(body), zlib.crc32(body)) == (ack["bodyLength"], ack["bodyCrc32"])
    assert expected == {}


def test_every_reader_of_columns_decompresses_with_the_limit(folder: Path) -> None:
    """A store, a shared one and a log; without the limit bodies are as stored."""
    with open_store(folder, "r") as store, connect(folder, config()) as shared:
        for reader in (store, shared):
            assert bodies(reader.read_columns("t", 0, 0, 2)) == [zlib.compress(TEXT), b"plain"]
            assert bodies(reader.read_columns("t", 0, 0, 2, decode_limit_bytes=len(TEXT))) == [TEXT, b"plain"]
            assert bodies(reader.scan("t", stop=2, decode_limit_bytes=len(TEXT))) == [TEXT, b"plain"]
            assert bodies(reader.scan("t", tags="tag-0", decode_limit_bytes=len(TEXT))) == [TEXT]
    log = open_log(str(folder / "commitlog"))
    stop = 0
    with MessageStore.open(folder, "r") as store:
        *_, last = store.read("t", 0)
        stop = last.physical_offset
    assert bodies(read_columns(log, stop=stop, decode_limit_bytes=len(TEXT))) == [TEXT, b"plain"]
    log.close()


@pytest.mark.parametrize(("stop", "limit", "bad"), [(3, len(TEXT), 2), (1, len(TEXT) - 1, 0), (1, 0, 0)])
def test_a_body_that_cannot_be_decompressed_ends_the_read(folder: Path, stop: int, limit: int, bad: int) -> None:
    """The error has the offset of its record; no other value stands for the body."""
    with open_store(folder, "r") as store:
        offset = list(store.read("t", 0))[bad].physical_offset
        with pytest.raises(StoreCorrupt) as caught:
            store.read_columns("t", 0, 0, stop, decode_limit_bytes=limit).read_all()
        assert caught.value.offset == offset
        names = ["tags", "sys_flag"]
        found = store.read_columns("t", 0, columns=names, decode_limit_bytes=0).read_all()
        assert found.column_names == names and found.num_rows == 3, "no body is read"


@pytest.mark.parametrize("limit", [-1, True, "1"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(folder: Path, limit: Any) -> None:
    """Before anything is read."""
    with open_store(folder, "r") as store, pytest.raises(ValueError, match="decode_limit_bytes"):
        store.read_columns("t", 0, decode_limit_bytes=limit)


def test_batches_of_bodies_that_grow_stay_small(tmp_path: Path) -> None:
    """A batch has 16 MiB of bodies or one of them, whatever they were compressed from."""
    sizes = [7 << 20] * 5 + [BATCH_BYTES + 1, 1]
    with open_store(tmp_path / "store") as store:
        for size in sizes:
            store.put(Message("t", zlib.compress(bytes(size)), queue_id=0, sys_flag=ZLIB))
        made = list(store.read_columns("t", 0, columns=["body", "queue_offset"], decode_limit_bytes=BATCH_BYTES + 1))
    assert [[len(body) for body in batch.column(0).to_pylist()] for batch in made] == [
        [7 << 20] * 2, [7 << 20] * 2, [7 << 20], [BATCH_BYTES + 1], [1],
    ]  # fmt: skip
    assert [offset for batch in made for offset in batch.column(1).to_pylist()] == list(range(len(sizes)))
