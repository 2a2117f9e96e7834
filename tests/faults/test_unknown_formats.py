"""Every way to write, on each store of a real broker with one unknown thing in it: refused, and nothing changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog._record_cy import is_protected
from commitlog.walk import LogFiles, Piece
from messagestore import MessageStore, Role, StoreConfig
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from storageio import REAL_DISK, UnsupportedFormat
from storebytes._crc_cy import checksum
from tests.brokerstore.tool import run

STORES = (
    "plain", "propcrc", "lmq", "batchcq", "cqext", "broker-live", "broker-ext", "crash-torn", "crash-lost-cq", "broker-timer",
    "broker-pop",
)  # fmt: skip
NEXT_MAGIC = 0xDAA320AF  # V2 is V1 + 4, so V3 may be this
EXPORTED = '{"topic":"T","queue_id":0,"queue_offset":0,"body_base64":"eA=="}\n'


def snapshot(folder: Path) -> dict[str, Any]:
    """Return every name with its content; holes of files are not read."""
    return {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*"))}


def _content(path: Path) -> Any:
    if path.is_dir():
        return "a folder"
    with path.open("rb") as file:
        size, at, pieces = os.fstat(file.fileno()).st_size, 0, []
        while at < size:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            data = os.pread(file.fileno(), at - start, start)
            if data.strip(b"\0"):
                pieces.append((start, data))
        return size, pieces


def records(store: Path) -> list[tuple[Path, int]]:
    """Return the file and the position of every whole record."""
    steps = LogFiles(REAL_DISK, [str(store / "commitlog")]).walk()
    return [(Path(step.file), at) for step in steps if isinstance(step, Piece) for at in step.positions]


def with_magic(data: bytes, at: int, magic: int = NEXT_MAGIC) -> bytes:
    """Change the magic of a record, and its whole-record checksum if it has one."""
    size = int.from_bytes(data[at : at + 4], "big")
    record = bytearray(data[at : at + size])
    has_checksum = is_protected(bytes(record), 0, size)
    record[4:8] = magic.to_bytes(4, "big")
    if has_checksum:
        crc = checksum(bytes(record[:-20])) & 0x7FFFFFFF
        record[-11:-1] = f"{crc:010d}"[::-1].encode()
    return data[:at] + bytes(record) + data[at + size :]


def set_magic(number: int) -> Callable[[Path], Iterator[None]]:
    """Return a change of the magic of one record, by its number in the log."""

    def change(store: Path) -> Iterator[None]:
        path, at = records(store)[number]
        before = path.read_bytes()
        path.write_bytes(with_magic(before, at))
        yield
        path.write_bytes(before)

    return change


def add_file(name: str, data: bytes = b"x") -> Callable[[Path], Iterator[None]]:
    """Return a change that adds or replaces a file."""

    def change(store: Path) -> Iterator[None]:
        path = store / name
        made = [folder for folder in reversed(path.parents) if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(data)
        yield
        path.write_bytes(before) if before is not None else path.unlink()
        for folder in reversed(made):
            folder.rmdir()

    return change


def set_queue_type(store: Path) -> Iterator[None]:
    """Set a queue type that RocketMQ 5.3.3 does not have."""
    table = b'{"topicConfigTable":{"T":{"attributes":{"queue.type":"StreamCQ"},"topicName":"T"}}}'
    yield from add_file("config/topics.json", table)(store)


CHANGES: dict[str, Callable[[Path], Iterator[None]]] = {
    "first record": set_magic(0),
    "last record": set_magic(-1),
    "queue type": set_queue_type,
    "RocksDB queues": add_file("consumequeue/CURRENT"),
    "RocksDB queues beside": add_file("consumequeue_r/CURRENT"),
    "RocksDB index": add_file("index/CURRENT"),
    "RocksDB topics": add_file("config/topics/CURRENT"),
    "RocksDB configuration of version 2": add_file("config/rdb/CURRENT"),
    "RocksDB of a newer broker": add_file("somethingnew/CURRENT"),
    "DLedger": add_file("dledger-n0/data/00000000000000000000"),
    "controller mode": add_file("epochFileCheckpoint", b"1\n"),
    "tiered storage": add_file("tieredstore/metadata"),
    "timer wheel": add_file("timerwheel", b"x" * 4096),
    "timer unit size": add_file("timerlog/00000000000000000000", (60).to_bytes(4, "big") + bytes(100)),
    "timer unit magic": add_file(
        "timerlog/00000000000000000000", (52).to_bytes(4, "big") + bytes(8) + (17).to_bytes(4, "big") + bytes(100)
    ),
}
SLAVE = StoreConfig(broker_role=Role.SLAVE)
LIBRARY: dict[str, Callable[[str], Any]] = {
    "open": lambda store: MessageStore.open(store),
    "open r+": lambda store: MessageStore.open(store, "r+"),
    "slave": lambda store: MessageStore.open(store, "r+", SLAVE),
    "recover": lambda store: Recovery(store, Choice.SKIP).apply(),
    "rebuild": lambda store: rebuild_store(store),
}
TOOL = (
    "put STORE T body",
    "recover STORE",
    "recover STORE --apply",
    "recover STORE --apply --skip-bad",
    "recover STORE --apply --truncate",
    "rebuild STORE --apply",
    "offsets reset STORE --apply --group G --topic T --to earliest",
    "copy OTHER --to STORE --topic HotTopic",
    "import EXPORT --to STORE",
)  # fmt: skip


def refused_by_all(store: Path, words: dict[str, Path], what: str, *, but: tuple[str, ...] = ()) -> None:
    """Assert that every way to write, `but` those whose name begins so, refuses the store by name and leaves it unchanged."""
    before = snapshot(store)
    for name, action in LIBRARY.items():
        if not name.startswith(but):
            with pytest.raises(UnsupportedFormat):
                action(str(store))
    for line in TOOL:
        if line.startswith(but):
            continue
        ran = run(*(words.get(word, word) for word in line.split()))
        is_named = "unsupported" in ran.talk or line.startswith("copy")  # a copy refuses every folder that has a store
        assert ran.code == 3 and is_named, (what, line, ran)
    after = snapshot(store)
    if "lock" not in before:  # it is created, empty, before the log is walked
        assert after.pop("lock", None) in (None, (0, []))
    assert after == before, what


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", STORES)
def test_every_writer_refuses_a_store_with_an_unknown_format(name: str, fixture_store: Any, tmp_path: Path) -> None:
    """The library raises `UnsupportedFormat`, the tool exits with 3, and no byte or name changes."""
    store = fixture_store(name, own=True).store
    words = {"STORE": store, "OTHER": fixture_store("plain").store, "EXPORT": tmp_path / "export.jsonl"}
    (tmp_path / "export.jsonl").write_text(EXPORTED)
    for what, change in CHANGES.items():
        steps = change(store)
        next(steps)
        refused_by_all(store, words, what, but=("recover", "rebuild") if what == "DLedger" else ())
        next(steps, None)


@pytest.mark.usefixtures("quiet")
def test_every_writer_refuses_a_store_with_rocksdb_queues(fixture_store: Any, tmp_path: Path) -> None:
    """The folder is one that a real broker left. `recover` and `rebuild` accept it (`tests/messagestore/test_*_rocksdb.py`)."""
    store = fixture_store("broker-rocksdb", own=True).store
    (tmp_path / "export.jsonl").write_text(EXPORTED)
    words = {"STORE": store, "OTHER": fixture_store("plain").store, "EXPORT": tmp_path / "export.jsonl"}
    refused_by_all(store, words, "as it is", but=("recover", "rebuild"))
