"""The last log file is ended before it is full when so much of it is acknowledged that it should be deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog.checks import BLANK
from messagestore import MessageStore, Role, StoreConfig
from messagestore.config import MIB
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Recovery
from messagestore.repair.verification import verify_store
from messagestore.write import retention
from tests.messagestore.test_retention_of_pending import Setup
from tests.messagestore.writers import LOG_SIZE, Writer, log_files, message, number_of, open_store, put_all

FREED = LOG_SIZE // 4
COUNT = LOG_SIZE * 7 // 10 // 161  # messages that one file has space for


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    monkeypatch.setattr(retention, "FREED_MIN", FREED)
    found = Setup(tmp_path)
    put_all(found.store, 0, COUNT)
    assert FREED < found.store.engine.log.written_offset < LOG_SIZE
    yield found
    found.store.close()


def empty(made: Setup) -> None:
    """Consume everything and let retention delete the only file with messages."""
    made.consume()
    made.check()  # ends the file
    assert made.check() + len(log_files(made.root)) - 1 <= 1
    assert made.store.engine.log.min_offset == LOG_SIZE


def read_numbers(store: MessageStore) -> list[int]:
    """Return the numbers of all messages that a reader finds, in order."""
    return sorted(number_of(found) for queue_id in store.queue_ids("t") for found in store.read("t", queue_id))


def test_acknowledged_messages_become_free_before_their_file_is_full(made: Setup) -> None:
    """The file that nobody needs is deleted; queue offsets, groups and keys go on."""
    before = [made.store.max_offset("t", queue_id) for queue_id in range(3)]
    empty(made)
    assert [made.store.max_offset("t", queue_id) for queue_id in range(3)] == before
    assert made.store.put(message(COUNT)).queue_offset == before[COUNT % 3]
    assert [number_of(stored) for stored in made.consume()] == [COUNT]
    assert made.store.query("t", "k7") == []
    assert [number_of(found) for found in made.store.query("t", f"k{COUNT}")] == [COUNT]


def test_one_pending_message_keeps_the_file(made: Setup) -> None:
    """It is ended only behind enough acknowledged bytes, and stays until what is pending in it is acknowledged."""
    made.consume(count=1)
    made.check()
    assert len(log_files(made.root)) == 1
    made.consume(count=COUNT - 2)
    made.check()
    assert made.check() == 0
    assert len(log_files(made.root)) == 2, "the file was ended"
    assert [number_of(stored) for stored in made.consume()] != []
    assert made.check() == 1


def test_little_is_not_worth_a_file(made: Setup) -> None:
    """A log that has fewer acknowledged bytes keeps its file, and so does one whose last file was ended a moment ago."""
    empty(made)
    for _ in range(3):
        assert made.check() == 0
    assert len(log_files(made.root)) == 1


def test_slaves_and_stores_with_limits_end_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave's files are those of its master; RocketMQ's rules delete by age."""
    monkeypatch.setattr(retention, "FREED_MIN", FREED)
    for name, changes in (("slave", {"broker_role": Role.SLAVE}), ("limits", {"retention": "limits"})):
        with open_store(tmp_path / name, retention="consumed") as store:
            put_all(store, 0, COUNT)
            with store.consumer("t", group="g", timeout_s=0) as consumer:
                for stored in consumer:
                    consumer.ack(stored)
        found = Setup(tmp_path / name, **changes)
        found.check()
        assert len(log_files(found.root)) == 1, name
        found.store.close()


@pytest.mark.parametrize("puts_more", [False, True])
def test_every_reader_and_repair_accepts_the_folder(made: Setup, puts_more: bool) -> None:
    """Also while no message is left: verify, recover, rebuild, readers, and a reopened store."""
    empty(made)
    expected = []
    if puts_more:
        put_all(made.store, COUNT, COUNT + 10)
        expected = [*range(COUNT, COUNT + 10)]
    made.store.close()
    assert verify_store(str(made.root)).problems == []
    assert Recovery(str(made.root)).plan().steps == []
    for _ in range(2):
        with MessageStore.open(made.root, "r") as reader:
            assert read_numbers(reader) == expected
            assert [number_of(found) for found in reader.follow(timeout_s=0) if not found.is_filler] == expected
        rebuild_store(str(made.root))
    assert verify_store(str(made.root)).problems == []
    with open_store(made.root) as store:
        store.put(message(1000))
        assert read_numbers(store) == [*expected, 1000]


def test_the_file_ends_in_a_blank_record_to_its_end(made: Setup) -> None:
    """As RocketMQ ends a file, with padding at the start of the next."""
    end = made.store.engine.log.written_offset
    made.consume()
    made.check()
    log = made.store.engine.log
    assert log.check(end) == BLANK
    assert log_files(made.root)[0].read_bytes()[end : end + 8] == (LOG_SIZE - end).to_bytes(4, "big") + bytes.fromhex(
        "cbd43194"
    )
    first = log.message_at(LOG_SIZE)
    assert first is not None
    assert first.is_filler


KILLED = f"""
from messagestore.write import retention
retention.FREED_MIN = {FREED}
store = open_store(root, retention="consumed")
number = 0
said("open")
while True:
    put_all(store, number, number + 20)
    number += 20
    with store.consumer("t", group="g", timeout_s=0) as consumer:
        for stored in consumer:
            consumer.ack(stored)
    with store.engine.housekeeper.guard:
        store.engine.flusher.flush_now()
        store.engine.retention.check()
    said(number)
"""


@pytest.mark.parametrize("rounds", [1, 7, 20])
def test_killed_writer_leaves_a_folder_that_opens(tmp_path: Path, rounds: int) -> None:
    """Wherever the kill comes, nothing that is pending is lost and the offsets go on."""
    with Writer(tmp_path, KILLED) as writer:
        assert writer.hear() == "open"
        for _ in range(rounds):
            done = int(writer.hear())
        writer.kill()
    with open_store(tmp_path) as store:
        ends = sum(store.max_offset("t", queue_id) for queue_id in range(3))
        assert ends >= done
        with store.consumer("t", group="g", timeout_s=0) as consumer:
            assert all(number_of(stored) >= done for stored in consumer)
    assert verify_store(str(tmp_path)).problems == []


# Files that fit the maximum size


@pytest.mark.parametrize(
    ("max_size", "expected"),
    [(None, 64 * MIB), (1 << 40, 64 * MIB), (100 * MIB, 25 * MIB), (9 * MIB, 2 * MIB), (1000, MIB)],
)
def test_small_files_fit_the_maximum_size(max_size: int | None, expected: int) -> None:
    """A quarter of the maximum, so that the last file, which stays, is no more than that; 1 MiB at least."""
    assert StoreConfig.small(max_size_bytes=max_size).mapped_file_size_commit_log == expected
    named = StoreConfig.small(max_size_bytes=max_size, mapped_file_size_commit_log=5 * MIB)
    assert named.mapped_file_size_commit_log == 5 * MIB


def test_a_new_store_with_a_maximum_size_gets_files_that_fit(tmp_path: Path) -> None:
    """An existing store keeps the size of its files."""
    config: Any = StoreConfig(max_size_bytes=16 * MIB)
    for changed in (config, config.but(max_size_bytes=1 << 30), StoreConfig()):
        with MessageStore.open(tmp_path, config=changed) as store:
            store.put("t", b"1")
        assert [path.stat().st_size for path in log_files(tmp_path)] == [4 * MIB]
