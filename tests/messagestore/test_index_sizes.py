"""An index whose files are not as long as was asked for or found: no put may be acknowledged that nobody can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog import Message
from messagestore import MessageStore, StoreConfig
from messagestore.mending.recover import Choice, Recovery
from messagestore.mending.verification import verify_store

SMALL = StoreConfig(
    mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=2000, max_hash_slot_num=50, max_index_num=400
)
OTHER = StoreConfig(max_hash_slot_num=100, max_index_num=400)
COUNT = 30


def made(folder: Path, keys: list[str]) -> Path:
    """A store with such keys, cleanly closed; its index file."""
    with MessageStore.open(folder, config=SMALL) as store:
        for number in range(COUNT):
            store.put(Message("topic", b"%d" % number, queue_id=0, keys=keys))
    (index_file,) = (folder / "index").iterdir()
    return index_file


def put_and_read(folder: Path, config: StoreConfig | None) -> None:
    """One more is put, and found in its queue and by its key."""
    with MessageStore.open(folder, config=config) as store:
        store.put(Message("topic", b"next", queue_id=0, keys=["next"]))
        assert [message.body for message in store.read("topic", 0)][COUNT:] == [b"next"]
        assert [message.body for message in store.query("topic", "next")] == [b"next"]


@pytest.mark.parametrize("config", [None, OTHER], ids=["sizes-not-given", "other-sizes"])
def test_a_store_without_any_key_goes_on_when_it_is_opened_otherwise(tmp_path: Path, config: StoreConfig | None) -> None:
    """Its index file has no item that says where items lie: the first put was acknowledged, and dispatch ended there."""
    made(tmp_path / "store", [])
    put_and_read(tmp_path / "store", config)
    with MessageStore.open(tmp_path / "store", "r", config) as store:
        assert len(list(store.read("topic", 0))) == COUNT + 1


def _beside_header(path: Path) -> None:
    """The last record's place, by which the shape is found."""
    with path.open("r+b") as file:
        file.seek(16)
        file.write(b"\x55" * 16)


def _cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(0)


@pytest.mark.parametrize("hurt", [_beside_header, _cut])
def test_an_index_that_does_not_say_its_shape_is_made_anew(tmp_path: Path, hurt: Callable[[Path], None]) -> None:
    """From the log, whose keys are all found again."""
    hurt(made(tmp_path / "store", ["key"]))
    put_and_read(tmp_path / "store", OTHER)
    with MessageStore.open(tmp_path / "store", "r", OTHER) as store:
        assert len(store.query("topic", "key", max_count=2 * COUNT)) == COUNT


def test_an_index_without_items_is_sound_whatever_its_shape(tmp_path: Path) -> None:
    """Verification and recovery need not be told how many slots there are."""
    made(tmp_path / "store", [])
    assert verify_store(str(tmp_path / "store")).is_ok
    assert not Recovery(str(tmp_path / "store"), Choice.SKIP).plan().actions
