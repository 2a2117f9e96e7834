"""Details of a recovery: backups of holes, exact sizes of fillers, choice of a hole, findings of each kind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from commitlog import Message, StoredMessage
from commitlog.walk import LogFiles
from messagestore import MessageStore, StoreConfig
from messagestore.repair.fillers import Lost, fill, least_size
from messagestore.repair.lost_messages import Gap, lost_messages
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK
from tests.messagestore.kit import record_bytes
from tests.messagestore.test_lost_messages import FILE_SIZE, SMALL, Bytes, destroy
from tests.stores import log_records

LONG_TOPICS = (1, 126, 127, 128, 200)


def filled(folder: Path, config: StoreConfig = SMALL) -> Path:
    """Create messages of one topic in three log files."""
    with MessageStore.open(folder, config=config) as store:
        for number in range(300):
            store.put(Message("T0", b"%d" % number * 150, queue_id=0, keys=[f"k{number}"]))
    assert len(list((folder / "commitlog").iterdir())) > 2
    return folder


@pytest.mark.parametrize("keep_backup", [True, False])
def test_the_bytes_of_a_closed_hole_are_kept(tmp_path: Path, keep_backup: bool) -> None:
    """They are in `brokerstore/cut-...` before a filler overwrites them, unless the operator wants no backup."""
    folder = filled(tmp_path / "store")
    record = log_records(folder)[3]
    destroy(folder, record)
    Recovery(str(folder), Choice.SKIP, SMALL, keep_backup=keep_backup).apply()
    kept = [path.read_bytes() for path in (folder / "brokerstore").glob(f"cut-{record.physical_offset:020d}-*")]
    assert kept == ([b"\xee" * record.size] if keep_backup else [])


@pytest.mark.parametrize("length", LONG_TOPICS)
def test_hole_of_exactly_one_minimum_record_is_filled(tmp_path: Path, length: int) -> None:
    """Topics of up to 127 bytes have a one-byte length, longer ones two bytes; the record fits to the byte."""
    topic = "t" * length
    size = least_size(topic)
    data, left_out = fill(0, size, [Lost(topic, 3, 7)], 1_700_000_000_000, to_file_end=False)
    assert (len(data), left_out) == (size, [])
    (tmp_path / f"{0:020d}").write_bytes(data.ljust(FILE_SIZE, b"\0"))
    found = [each for each in LogFiles(REAL_DISK, [str(tmp_path)]).messages() if isinstance(each, StoredMessage)]
    assert [(each.topic, each.queue_id, each.queue_offset, each.size) for each in found] == [(topic, 3, 7, size)]


def test_a_queue_in_a_folder_that_is_no_text_gets_no_filler(tmp_path: Path) -> None:
    """No record can have such a topic; the queue claims the lost messages, beside the one that it was copied from."""
    folder = filled(tmp_path / "store")
    records = log_records(folder)
    for record in records[3:6]:
        destroy(folder, record)
    queues = folder / "consumequeue"
    shutil.copytree(queues / "T0", queues / os.fsdecode(b"caf\xe9"))
    Recovery(str(folder), Choice.SKIP, SMALL).apply()
    assert verify_store(str(folder)).problems == []
    with MessageStore.open(folder, "r", SMALL) as store:
        assert [store.get("T0", 0, at, 1).next_offset for at in (2, 6)] == [3, 7]
        assert store.max_offset("T0", 0) == len(records)


def test_lost_message_is_assigned_to_the_first_hole_large_enough() -> None:
    """Holes without space are skipped one by one."""
    least = len(record_bytes(0, b""))
    sizes = (10, least, 10, 10, least)
    holes = [Bytes(1000 * number, 1000 * number + size, FILE_SIZE) for number, size in enumerate(sizes)]
    found = lost_messages(holes, [Gap("T", 2, 5, 7, 0, 4)], None)
    assert {start: [lost.queue_offset for lost in there] for start, there in found.items()} == {1000: [5], 4000: [6]}


def test_a_missing_queue_is_one_problem(tmp_path: Path) -> None:
    """The number of log files does not matter."""
    folder = filled(tmp_path / "store")
    shutil.rmtree(folder / "consumequeue" / "T0")
    assert [problem.kind for problem in verify_store(str(folder)).problems] == ["missing_queue"]


def test_repeated_queue_offsets_of_the_log_hide_no_index_damage(tmp_path: Path) -> None:
    """Repeated numbers of the log are in every comparison; the index that lacks its items is rebuilt nevertheless."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as store:
        for at, number in enumerate([0, 1, 2, 1, 2, 3]):
            store.engine.offsets.set_next_offset("T0", 0, number)
            store.put(Message("T0", b"%d" % at, queue_id=0, keys=[f"k{at}"]))
    assert {problem.kind for problem in verify_store(str(folder)).problems} == {"queue_offset"}
    (path,) = (folder / "index").iterdir()
    data = bytearray(path.read_bytes())
    data[40 + 4 * 50 + 20 : 40 + 4 * 50 + 24] = b"\x01\x02\x03\x04"  # the hash of the first item
    path.write_bytes(data)
    assert any("index" in step.text for step in Recovery(str(folder), Choice.REFUSE, SMALL).plan().steps)


def test_a_filler_is_no_older_than_the_record_before_it(tmp_path: Path) -> None:
    """It has that record's store time, because searches by time, retention and the checkpoint use the log's times."""
    folder = filled(tmp_path / "store")
    every = log_records(folder)
    destroy(folder, every[3])
    Recovery(str(folder), Choice.SKIP, SMALL).apply()
    filler = log_records(folder)[3]
    assert filler.physical_offset == every[3].physical_offset
    assert filler.store_timestamp_ms == every[2].store_timestamp_ms


def test_a_rebuilt_index_has_the_names_of_the_old_one(tmp_path: Path) -> None:
    """RocketMQ names each file by the time of its creation; the rebuilt files hold the same bytes."""
    folder = filled(tmp_path / "store", SMALL.but(max_index_num=100))
    names = sorted(path.name for path in (folder / "index").iterdir())
    assert len(names) > 2
    rebuild_store(str(folder), frozenset({"index"}))
    assert sorted(path.name for path in (folder / "index").iterdir()) == names
