"""Queues whose records all left the log: only their units tell the next offset, where a consumer stands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.paths import StorePaths
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK
from tests.stores import small_config

LOG_SIZE = 65536
SMALL = small_config(mapped_file_size_commit_log=LOG_SIZE, max_hash_slot_num=50)
OLD, GROUP, COUNT = "old", "readers", 130
WITH_LMQ = "%LMQ%old"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a store whose group has read all of a topic, and whose records of that topic were deleted by retention."""
    with MessageStore.open(tmp_path / "store", config=SMALL.but(enable_lmq=True)) as store:
        for number in range(COUNT):
            store.put(Message(OLD, b"%d" % number, queue_id=0, properties={"INNER_MULTI_DISPATCH": WITH_LMQ}))
        for number in range(600):
            store.put(Message("new", b"%d" % number + b"x" * 300, queue_id=0, keys=["key"]))
        read_all(store)
        store.flush()
        assert store.delete_before(2 * LOG_SIZE) == 2
        assert (store.min_offset(OLD, 0), store.max_offset(OLD, 0)) == (COUNT, COUNT)
    return tmp_path / "store"


def read_all(store: MessageStore) -> list[bytes]:
    """Read and acknowledge everything that the group has not read yet."""
    with store.consumer(OLD, group=GROUP, queues=[0]) as consumer:
        messages = consumer.poll(1000)
        for message in messages:
            consumer.ack(message)
        consumer.commit()
    return [message.body for message in messages]


def put_and_read(folder: Path) -> tuple[int, list[bytes]]:
    """Return the offset of the next message, and what the group reads of it."""
    with MessageStore.open(folder, config=SMALL) as store:
        number = store.put(Message(OLD, b"next", queue_id=0)).queue_offset
        return number, read_all(store)


def test_rebuilt_queues_continue_at_the_end_of_the_expired_ones(folder: Path) -> None:
    """Starting at 0, the group at the old end would skip as many messages."""
    rebuild_store(str(folder), config=SMALL)
    assert not verify_store(str(folder), SMALL).problems
    with MessageStore.open(folder, "r", SMALL) as store:
        assert (store.min_offset(OLD, 0), store.max_offset(OLD, 0)) == (COUNT, COUNT)
        assert (store.min_offset(WITH_LMQ, 0), store.max_offset(WITH_LMQ, 0)) == (COUNT, COUNT)
    assert put_and_read(folder) == (COUNT, [b"next"])


def test_queues_rebuilt_by_recovery_continue_at_the_end_of_expired_ones(folder: Path) -> None:
    """Another queue is damaged, so all are rebuilt."""
    with max((folder / "consumequeue" / "new" / "0").iterdir()).open("r+b") as file:
        file.write(b"\xee" * 20)
    assert any(step.kind.startswith("rebuild") for step in Recovery(str(folder), Choice.SKIP, SMALL).apply().steps)
    assert put_and_read(folder) == (COUNT, [b"next"])


def test_queues_committed_by_a_reindex_continue_at_the_end_of_expired_ones(folder: Path) -> None:
    """No task of Spark knows of a queue without records."""
    commit = pytest.importorskip("sparkstore.jobs.reindex_commit")
    work = folder / "brokerstore" / "rebuild-spark-1"
    commit.swap_in(REAL_DISK, StorePaths(str(folder)), str(work), [], ["consumequeue"])
    with MessageStore.open(folder, "r", SMALL) as store:
        assert (store.min_offset(OLD, 0), store.max_offset(OLD, 0)) == (COUNT, COUNT)


def test_group_offset_is_clamped_if_all_queues_are_missing(folder: Path) -> None:
    """Nothing tells the old end any more: the queue begins at 0, and so does its group."""
    shutil.rmtree(folder / "consumequeue")
    assert put_and_read(folder) == (0, [b"next"])


def test_group_offset_is_clamped_if_one_queue_is_missing(folder: Path) -> None:
    """The list of queues shows that the queue is missing."""
    shutil.rmtree(folder / "consumequeue" / OLD)
    assert put_and_read(folder) == (0, [b"next"])


def test_group_offsets_of_a_copy_are_at_the_end_of_expired_queues(folder: Path, tmp_path: Path) -> None:
    """An expired topic begins at 0 in a copy; offsets committed just before are copied too."""
    copy = tmp_path / "copy"
    with MessageStore.open(folder, config=SMALL) as store:
        with store.consumer("new", group=GROUP, queues=[0]) as consumer:
            consumer.ack(consumer.poll(1)[0])
            consumer.commit()
            position = consumer.position(0)
        assert store.copy_topics(copy, [OLD, "new"]).groups == [GROUP]
    assert put_and_read(copy) == (0, [b"next"])
    with MessageStore.open(copy, "r", SMALL) as store:
        assert store.committed_offsets("new", GROUP) == {0: position}
