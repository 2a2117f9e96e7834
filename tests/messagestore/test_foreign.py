"""Folders with another configuration, and RocketMQ's other kinds of stores, are refused without a change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore, StoreConfig
from messagestore.differences import config_differences
from messagestore.engine import Engine
from messagestore.repair import store_queues
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from storageio import REAL_DISK, StoreCorrupt, UnknownStore
from tests.helpers import contents
from tests.stores import small_config

SLOTS, ITEMS = 500, 2000
SMALL = small_config(max_hash_slot_num=SLOTS, max_index_num=ITEMS)


def written(folder: Path, count: int = 300) -> Path:
    with MessageStore.open(folder, config=SMALL) as store:
        for number in range(count):
            store.put(Message("T", b"x" * 50, queue_id=0, keys=[f"key-{number}"]))
    return folder


def rocksdb_folder(folder: Path) -> Path:
    """Create what storeType=defaultRocksDB leaves: the log, and a RocksDB database in place of queue files."""
    written(folder)
    for path in sorted((folder / "consumequeue").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for name in ("CURRENT", "IDENTITY", "LOCK", "MANIFEST-000005", "000004.log"):
        (folder / "consumequeue" / name).write_bytes(b"MANIFEST-000005\n")
    return folder


def dledger_folder(folder: Path) -> Path:
    """Create what enableDLegerCommitLog leaves: no commit log, a Raft log, ordinary queue files."""
    written(folder)
    (folder / "dledger-n0" / "data").mkdir(parents=True)
    (folder / "commitlog" / ("0" * 20)).rename(folder / "dledger-n0" / "data" / ("0" * 20))
    (folder / "commitlog").rmdir()
    return folder


def rabbitmq_folder(folder: Path) -> Path:
    """Create a RabbitMQ virtual host in which somebody has opened one of our stores."""
    written(folder)
    for name in ("msg_store_persistent", "msg_store_transient", "queues"):
        (folder / name).mkdir()
    return folder


FOREIGN = [(rocksdb_folder, "RocksDB"), (dledger_folder, "DLedger"), (rabbitmq_folder, "RabbitMQ")]
WAYS: dict[str, Callable[[Path], Any]] = {
    "opened to write": lambda folder: MessageStore.open(folder),
    "opened to continue": lambda folder: MessageStore.open(folder, "r+"),
    "opened to read": lambda folder: MessageStore.open(folder, "r"),
    "rebuilt": lambda folder: rebuild_store(str(folder)),
    "recovered": lambda folder: Recovery(str(folder), Choice.SKIP).apply(),
}


@pytest.mark.parametrize(
    ("kind", "name", "way"),
    [(kind, name, way) for kind, name in FOREIGN for way in WAYS if (name, way) != ("DLedger", "opened to read")],
)
def test_queues_or_log_of_another_kind_are_named_and_left_alone(
    tmp_path: Path, kind: Callable[[Path], Path], name: str, way: str
) -> None:
    """A new log beside a DLedger log would empty its queues; queue files beside RocksDB would hide its queues.

    A log inside a virtual host of RabbitMQ would hide the host's queues.
    """
    folder = kind(tmp_path / "store")
    before = contents(folder)
    with pytest.raises(UnknownStore, match=name):
        WAYS[way](folder)
    assert contents(folder) == before


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize(
    "change",
    [
        {"mapped_file_size_commit_log": 1 << 20},
        {"mapped_file_size_consume_queue": 20_000},
        {"max_hash_slot_num": SLOTS + 100},
        {"max_index_num": ITEMS + 100},
        {"max_hash_slot_num": SLOTS + 100, "max_index_num": ITEMS - 20},  # a file of the same size
    ],
    ids=["log", "queue", "slots", "items", "shape of one size"],
)
def test_configured_size_that_differs_from_the_files_is_rejected(tmp_path: Path, change: dict[str, int], mode: str) -> None:
    """With other slots every query would find nothing, in files of the right size."""
    folder = written(tmp_path / "store")
    before = contents(folder)
    with pytest.raises(StoreCorrupt, match=r"size|shape") as caught:
        MessageStore.open(folder, mode, StoreConfig(**change))  # type: ignore[arg-type]
    assert caught.value.file and caught.value.expected and caught.value.found
    assert {path: data for path, data in contents(folder).items() if not path.endswith("lock")} == {
        path: data for path, data in before.items() if not path.endswith("lock")
    }


def test_recovery_delivers_no_delayed_message_that_is_long_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens the folder at its end, on a slow machine long enough to deliver; only a broker should do that."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL, clock=lambda: 1_700_000_000_000) as store:
        store.put(Message("T", b"x", queue_id=0, properties={"DELAY": "1"}))
    (folder / "abort").write_bytes(b"")
    opened: list[StoreConfig] = []

    def engine(root: str, config: StoreConfig, *arguments: Any, **named: Any) -> Engine:
        opened.append(config)
        return Engine(root, config, *arguments, **named)

    monkeypatch.setattr(store_queues, "Engine", engine)
    Recovery(str(folder), Choice.REFUSE, SMALL).apply()
    assert [config.deliver_delayed for config in opened] == [False]
    with MessageStore.open(folder, "r", SMALL) as store:
        assert list(store.read("T", 0)) == []


@pytest.mark.parametrize("count", [1, 2])
def test_slot_layout_of_an_index_with_one_item_is_not_rejected(tmp_path: Path, count: int) -> None:
    """The only item points at offset 0, as any position in a file of zeros does: every shape seems to agree."""
    config = SMALL.but(max_hash_slot_num=700, max_index_num=900)
    with MessageStore.open(tmp_path / "store", config=config) as store:
        for number in range(count):
            store.put(Message("T", b"x", queue_id=0, keys=[f"key-{number}"]))
    with MessageStore.open(tmp_path / "store", "r", config) as store:
        assert [len(store.query("T", f"key-{number}")) for number in range(count)] == [1] * count


def test_topic_named_like_a_rocksdb_file_does_not_prevent_opening(tmp_path: Path) -> None:
    """A message to it must not prevent opening, reading or recovery."""
    with MessageStore.open(tmp_path / "s", config=SMALL) as store:
        store.put(Message("CURRENT", b"x", queue_id=0))
    with MessageStore.open(tmp_path / "s", "r") as store:
        assert [message.body for message in store.read("CURRENT", 0)] == [b"x"]
    assert not Recovery(str(tmp_path / "s"), Choice.SKIP).plan().steps
    assert not config_differences(str(tmp_path / "s"), {"store_type": "default"}, REAL_DISK)
