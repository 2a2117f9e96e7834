"""Every way to put many messages, through a ring that holds old records: the files are the mapped path's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from storageio import PutRejected, StoreClosed
from tests.messagestore.test_pool import STILL, commit, pooled, ring_of
from tests.messagestore.writers import log_files, open_store

TIMES: dict[str, Any] = {"clock": lambda: 1_700_000_000_000}


def wire_member(body: bytes, properties: bytes) -> bytes:
    """Return a member of a batch as clients send it (docs/formats/put-rules.md#wire-batch)."""
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(properties)
    head = size.to_bytes(4, "big") + bytes(8) + bytes(4) + len(body).to_bytes(4, "big")
    return head + body + len(properties).to_bytes(2, "big") + properties


def columns(store: MessageStore, dice: random.Random) -> None:
    bodies = [bytes((dice.randrange(1, 255),)) * dice.choice([5, 300, 4000]) for _ in range(12)]
    store.append_columns(
        "t", 1, bodies, keys=[f"k{len(body)}" for body in bodies], tags=["x" * (len(body) % 3) for body in bodies]
    )
    store.append_columns("t", 0, bodies[:3])


def many(store: MessageStore, dice: random.Random) -> None:
    store.put_many([Message("t", b"m" * dice.randrange(1, 3000), queue_id=1, born_timestamp_ms=7, tags="a") for _ in range(9)])


def wire(store: MessageStore, dice: random.Random) -> None:
    members = [wire_member(b"w" * dice.randrange(1, 900), b"KEYS\x01k\x02"[: dice.choice([0, 7])]) for _ in range(15)]
    store.put_wire_batch("t", 1, b"".join(members), born_timestamp_ms=7)


def encoded(store: MessageStore, dice: random.Random) -> None:
    for _ in range(5):
        store.engine.log.appender.append_encoded("t", 1, b"e" * dice.randrange(1, 3000), b"")


def asynchronous(store: MessageStore, dice: random.Random) -> None:
    for _ in range(5):
        store.put_async(Message("t", b"a" * dice.randrange(1, 3000), queue_id=1, born_timestamp_ms=7)).result(60)


WAYS = [columns, many, wire, encoded, asynchronous]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("with_crc", [False, True])
def test_bulk_append_writes_the_bytes_of_the_mapped_path(tmp_path: Path, way: Any, with_crc: bool) -> None:
    """The ring wraps many times: old bytes follow each record, and must never reach a file."""
    changes = {**TIMES, "enabled_append_prop_crc": with_crc}
    with open_store(tmp_path / "mapped", **STILL, **changes) as store:
        store.put(Message("t", b"first", queue_id=1, born_timestamp_ms=7))
        for number in range(60):
            way(store, random.Random(number))
    with pooled(tmp_path / "pool", **changes) as store:
        store.put(Message("t", b"first", queue_id=1, born_timestamp_ms=7))
        for number in range(60):
            way(store, random.Random(number))
            if number % 3 == 0:
                commit(store)
        assert store.engine.log.written_offset > 2 * ring_of(store).size_bytes
    mapped, buffered = log_files(tmp_path / "mapped"), log_files(tmp_path / "pool")
    assert [path.name for path in mapped] == [path.name for path in buffered]
    assert all(left.read_bytes() == right.read_bytes() for left, right in zip(mapped, buffered, strict=True))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_bulk_append_to_a_closed_store_is_rejected(tmp_path: Path, way: Any) -> None:
    """It is refused with and without a pool, and the log is unchanged."""
    for opened in (open_store, pooled):
        store = opened(tmp_path / opened.__name__, **TIMES)
        store.put(Message("t", b"first", queue_id=1, born_timestamp_ms=7))
        store.close()
        before = [path.read_bytes() for path in log_files(tmp_path / opened.__name__)]
        with pytest.raises((StoreClosed, PutRejected)):
            way(store, random.Random(1))
        assert [path.read_bytes() for path in log_files(tmp_path / opened.__name__)] == before
