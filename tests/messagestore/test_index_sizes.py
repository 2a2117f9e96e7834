"""An index whose files have other sizes than given or detected: no put may be acknowledged that cannot be read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog import Message
from indexfile import IndexFiles
from messagestore import MessageStore, StoreConfig
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK, InvalidMessage
from tests.helpers import contents
from tests.stores import small_config

SMALL = small_config(max_hash_slot_num=50)
OTHER = StoreConfig(max_hash_slot_num=100, max_index_num=400)
COUNT = 30


def made(folder: Path, keys: list[str]) -> Path:
    """Return the index file of a cleanly closed store with these keys."""
    with MessageStore.open(folder, config=SMALL) as store:
        for number in range(COUNT):
            store.put(Message("topic", b"%d" % number, queue_id=0, keys=keys))
    (index_file,) = (folder / "index").iterdir()
    return index_file


def put_and_read(folder: Path, config: StoreConfig | None) -> None:
    """Put another message, and find it in its queue and by its key."""
    with MessageStore.open(folder, config=config) as store:
        store.put(Message("topic", b"next", queue_id=0, keys=["next"]))
        assert [message.body for message in store.read("topic", 0)][COUNT:] == [b"next"]
        assert [message.body for message in store.query("topic", "next")] == [b"next"]


@pytest.mark.parametrize("config", [None, OTHER], ids=["sizes-not-given", "other-sizes"])
def test_store_without_keys_accepts_puts_with_another_index_configuration(tmp_path: Path, config: StoreConfig | None) -> None:
    """Its index file has no item that shows the positions of items; dispatch continues nevertheless."""
    made(tmp_path / "store", [])
    put_and_read(tmp_path / "store", config)
    with MessageStore.open(tmp_path / "store", "r", config) as store:
        assert len(list(store.read("topic", 0))) == COUNT + 1


def _beside_header(path: Path) -> None:
    """Overwrite the last record's offset, by which the shape is found."""
    with path.open("r+b") as file:
        file.seek(16)
        file.write(b"\x55" * 16)


def _cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(0)


@pytest.mark.parametrize("damage", [_beside_header, _cut])
def test_index_without_a_detectable_slot_layout_is_rebuilt(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """It is rebuilt from the log, and all keys are found."""
    damage(made(tmp_path / "store", ["key"]))
    put_and_read(tmp_path / "store", OTHER)
    with MessageStore.open(tmp_path / "store", "r", OTHER) as store:
        assert len(store.query("topic", "key", max_count=2 * COUNT)) == COUNT


def test_index_without_items_verifies_for_any_slot_layout(tmp_path: Path) -> None:
    """Verification and recovery do not need the number of slots."""
    made(tmp_path / "store", [])
    assert verify_store(str(tmp_path / "store")).is_ok
    assert not Recovery(str(tmp_path / "store"), Choice.SKIP).plan().steps


UNUSUAL = SMALL.but(max_hash_slot_num=100, max_index_num=1000)  # 240 slots and 972 items are as long


def without_key(folder: Path, *, has_settings: bool) -> Path:
    """Return a store of that shape without a key; without settings as RocketMQ leaves it."""
    with MessageStore.open(folder, config=UNUSUAL) as store:
        store.put(Message("topic", b"0", queue_id=0))
    if not has_settings:
        shutil.rmtree(folder / "brokerstore")
    return folder


def found_with(folder: Path, slots: int, items: int) -> list[int]:
    """Return the hits for the key in an index of that shape, as a real store reads it."""
    index = IndexFiles(REAL_DISK, str(folder / "index"), writable=False, slots=slots, items=items)
    try:
        return index.select("topic", "next")
    finally:
        index.close()


@pytest.mark.parametrize("config", [None, UNUSUAL], ids=["sizes-not-given", "sizes-given"])
def test_index_without_keys_keeps_its_slot_layout(tmp_path: Path, config: StoreConfig | None) -> None:
    """The first key is placed by the shape with which the index was created, so that a real store finds it."""
    folder = without_key(tmp_path / "store", has_settings=config is None)
    put_next(folder, config)
    assert len(found_with(folder, 100, 1000)) == 1
    assert found_with(folder, 240, 972) == []
    with MessageStore.open(folder, "r") as store:
        assert [message.body for message in store.query("topic", "next")] == [b"next"]


def put_next(folder: Path, config: StoreConfig | None = None) -> None:
    """Put one message with a key."""
    with MessageStore.open(folder, config=config) as store:
        store.put(Message("topic", b"next", queue_id=0, keys=["next"]))


@pytest.mark.parametrize(
    "write",
    [put_next, lambda folder: rebuild_store(str(folder)), lambda folder: Recovery(str(folder), Choice.SKIP).apply()],
    ids=["put", "rebuild", "recover"],
)
def test_index_of_unknown_slot_layout_is_not_written(tmp_path: Path, write: Callable[[Path], object]) -> None:
    """Without a key and without settings its slots are unknown: a writer must give them, and nothing changes."""
    folder = without_key(tmp_path / "store", has_settings=False)
    (folder / "abort").touch()
    before = contents(folder)
    with pytest.raises(InvalidMessage, match="--index-slots"):
        write(folder)
    assert contents(folder) == before
    assert verify_store(str(folder)).is_ok
    with MessageStore.open(folder, "r") as store:
        assert [message.body for message in store.read("topic", 0)] == [b"0"]


def test_lost_index_is_rebuilt_with_its_recorded_slot_layout(tmp_path: Path) -> None:
    """The kept settings define the shape, not RocketMQ's defaults."""
    folder = without_key(tmp_path / "store", has_settings=True)
    put_next(folder)
    shutil.rmtree(folder / "index")
    put_next(folder)
    assert len(found_with(folder, 100, 1000)) == 2


def test_unreadable_recorded_settings_are_ignored(tmp_path: Path) -> None:
    """Settings for files of another length are ignored as well."""
    folder = without_key(tmp_path / "store", has_settings=True)
    for text in (
        "",
        "[]",
        '{"index_slots": "many"}',
        '{"index_slots": -1, "index_items": 5}',
        '{"index_slots": 7, "index_items": 5}',
    ):
        (folder / "brokerstore" / "settings.json").write_text(text)
        with pytest.raises(InvalidMessage, match="--index-slots"):
            put_next(folder)
