"""A queue whose folder is missing after a clean stop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commitlog import Message
from messagestore import MessageStore
from tests.stores import small_config

SMALL = small_config(max_hash_slot_num=50)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a cleanly closed store with two queues of thirty messages each."""
    with MessageStore.open(tmp_path / "store", config=SMALL) as store:
        for number in range(60):
            store.put(Message("orders", b"%d" % number, queue_id=number % 2, keys=[f"k{number}"]))
    return tmp_path / "store"


def test_a_lost_queue_is_built_again_when_the_store_is_opened_for_writing(folder: Path) -> None:
    """If it began again at 0, a reader would get two messages of one offset."""
    shutil.rmtree(folder / "consumequeue" / "orders" / "1")
    with MessageStore.open(folder) as store:
        assert store.put(Message("orders", b"next", queue_id=1)).queue_offset == 30
        expected = [b"%d" % number for number in range(1, 60, 2)] + [b"next"]
        assert [message.body for message in store.read("orders", 1)] == expected


def test_damaged_queue_list_does_not_prevent_opening(folder: Path) -> None:
    """No queue is known to be missing then."""
    (folder / "brokerstore" / "queues.json").write_bytes(b"\0\0[")
    with MessageStore.open(folder) as store:
        assert store.max_offset("orders", 0) == 30
