"""Messages lost in holes of a log: each queue offset keeps its place, in the right hole, with any other damage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from commitlog import Message, StoredMessage
from commitlog.walk import LogFiles
from messagestore import MessageStore
from messagestore.property_names import INNER_COUNT, IS_BATCH
from messagestore.repair.damage import survey
from messagestore.repair.fillers import Lost, fill
from messagestore.repair.lost_messages import Gap, lost_messages
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK, StoreCorrupt
from tests.messagestore.kit import record_bytes
from tests.stores import log_records, small_config

FILE_SIZE = 65536
SMALL = small_config(mapped_file_size_commit_log=FILE_SIZE, max_hash_slot_num=50)
MANY = 3


def many(number: int) -> Message:
    """Return one record that holds several messages."""
    return Message("many", b"%d" % number, queue_id=0, sys_flag=IS_BATCH, properties={INNER_COUNT: str(MANY)})


def destroy(folder: Path, record: StoredMessage) -> None:
    """Overwrite a record completely."""
    name = f"{record.physical_offset // FILE_SIZE * FILE_SIZE:020d}"
    with (folder / "commitlog" / name).open("r+b") as file:
        file.seek(record.physical_offset % FILE_SIZE)
        file.write(b"\xee" * record.size)


def numbers(folder: Path, topic: str) -> dict[int, bytes]:
    """Return queue offset and body of all messages but fillers, at their places in the queue."""
    with MessageStore.open(folder, "r", SMALL) as store:
        queue = store.engine.queues.get(topic, 0)
        assert queue is not None
        units = [(position, store.message_at(unit.physical_offset)) for position, unit in queue.units()]
    return {position: message.body for position, message in units if message is not None and not message.is_filler}


@pytest.mark.parametrize("has_queues", [True, False], ids=["sound-queues", "no-queues"])
def test_two_holes_between_two_messages_of_a_queue_move_no_number(tmp_path: Path, has_queues: bool) -> None:
    """The second hole is too small for what the first one took: those messages get their places in the first."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as store:
        for number in range(6):
            store.put(Message("hurt", b"%d" % number + b"x" * 300, queue_id=0))
        for topic in ("whole", "small", "whole"):
            store.put(Message(topic, topic.encode(), queue_id=0))
        for number in range(6, 9):
            store.put(Message("hurt", b"%d" % number, queue_id=0))
        store.put(Message("small", b"last", queue_id=0))
    for record in [*log_records(folder)[2:6], log_records(folder)[7]]:
        destroy(folder, record)
    if not has_queues:
        shutil.rmtree(folder / "consumequeue")
    Recovery(str(folder), Choice.SKIP, SMALL).apply()
    assert sorted(numbers(folder, "hurt")) == [0, 1, 6, 7, 8]
    assert numbers(folder, "small")[1] == b"last"
    assert not verify_store(str(folder), SMALL).problems


def test_offsets_inside_batch_records_are_not_taken_for_lost_messages(tmp_path: Path) -> None:
    """Each such record counts three numbers: the hole between two of them took another topic's message."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as store:
        store.create_topic("many", 1, attributes={"queue.type": "BatchCQ"})
        for number in range(5):
            store.put(many(number))
            store.put(Message("plain", b"%d" % number, queue_id=0))
    destroy(folder, [record for record in log_records(folder) if record.topic == "plain"][2])
    shutil.rmtree(folder / "consumequeue")
    Recovery(str(folder), Choice.SKIP, SMALL).apply()
    assert numbers(folder, "plain") == {0: b"0", 1: b"1", 3: b"3", 4: b"4"}
    assert [record.queue_offset for record in log_records(folder) if record.topic == "many"] == [0, 3, 6, 9, 12]
    assert not verify_store(str(folder), SMALL).problems


def test_lost_message_of_several_lmqs_shifts_no_offset_in_them(tmp_path: Path) -> None:
    """One record was in all of them, and there is no space for a filler in each.  Another topic's precedes it."""
    folder, names = tmp_path / "store", [f"%LMQ%{name}" for name in "abc"]
    with MessageStore.open(folder, config=SMALL.but(enable_lmq=True)) as store:
        for topic in ("first", "first", "first", "second", "first", "second", "second"):
            store.put(Message(topic, b"x", queue_id=0, properties={"INNER_MULTI_DISPATCH": ",".join(names)}))
    for record in log_records(folder)[2:5]:  # queue offsets 2, 0 and 3
        destroy(folder, record)
    Recovery(str(folder), Choice.SKIP, SMALL).apply()
    assert [sorted(numbers(folder, name)) for name in names] == [[0, 1, 5, 6]] * 3
    assert (sorted(numbers(folder, "first")), sorted(numbers(folder, "second"))) == ([0, 1], [1, 2])
    assert not verify_store(str(folder), SMALL).problems


def test_rebuild_adds_fillers_with_an_lmq_topic_to_that_lmq(tmp_path: Path) -> None:
    """No property names the queue: nothing else is known of a record whose bytes are lost."""
    folder, name = tmp_path / "store", "%LMQ%a"
    with MessageStore.open(folder, config=SMALL) as store:
        store.put(Message("topic", bytes(500), queue_id=0))
    path = folder / "commitlog" / f"{0:020d}"
    size, stored_ms = log_records(folder)[0].size, log_records(folder)[0].store_timestamp_ms
    data, left_out = fill(0, size, [Lost(name, 0, number) for number in range(2)], stored_ms, to_file_end=False)
    path.write_bytes(data + bytes(path.stat().st_size - size))
    shutil.rmtree(folder / "consumequeue")
    rebuild_store(str(folder), config=SMALL)
    with MessageStore.open(folder, "r", SMALL) as store:
        queue = store.engine.queues.get(name, 0)
        assert not left_out and queue is not None and [position for position, _ in queue.units()] == [0, 1]


def test_the_fillers_of_small_messages_side_by_side_have_their_checksums(tmp_path: Path) -> None:
    """Space is not reserved for padding that is not needed, so no filler lacks its checksum."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as store:
        for number in range(6):
            store.put(Message("small", b"%d" % number, queue_id=0))
    for record in log_records(folder)[2:4]:
        destroy(folder, record)
    Recovery(str(folder), Choice.SKIP, SMALL).apply()
    assert sorted(numbers(folder, "small")) == [0, 1, 4, 5]
    assert not verify_store(str(folder), SMALL).problems


def test_a_file_named_far_behind_the_log_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Half a billion files would be missing before it."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as store:
        store.put(Message("topic", b"body", queue_id=0))
    shutil.copy(folder / "commitlog" / f"{0:020d}", folder / "commitlog" / f"{1 << 45:020d}")
    with pytest.raises(StoreCorrupt, match="files missing"):
        Recovery(str(folder), Choice.SKIP, SMALL).plan()


def test_fillers_of_a_hole_up_to_the_end_of_its_file_end_with_a_blank() -> None:
    """The last message leaves fewer bytes than a blank needs: it is dropped, and nothing reaches into the next file."""
    lost = [Lost("topic", 0, number) for number in range(3)]
    least = 91 + len("topic")
    data, left_out = fill(0, 3 * least, lost, 1, to_file_end=True)
    assert (len(data), left_out) == (3 * least, lost[2:])
    assert data[2 * least :] == least.to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(least - 8)


class Bytes(NamedTuple):
    """The bounds of a hole."""

    start: int
    stop: int
    file_end: int


def test_lost_offsets_that_fit_in_no_hole_are_dropped() -> None:
    """Each hole takes as many minimum records as fit, in order; the rest is dropped, however large the jump."""
    holes = [Bytes(1000, 1300, FILE_SIZE), Bytes(2000, 2010, FILE_SIZE), Bytes(3000, 3199, FILE_SIZE)]
    least = len(record_bytes(0, b""))
    found = lost_messages(holes, [Gap("T", 2, 5, 1 << 60, 0, 2)], None)
    first, last = 300 // least, 199 // least
    assert {start: [lost.queue_offset for lost in there] for start, there in found.items()} == {
        1000: list(range(5, 5 + first)), 3000: list(range(5 + first, 5 + first + last)),
    }  # fmt: skip
    assert {(lost.topic, lost.queue_id) for there in found.values() for lost in there} == {("T", 2)}


def test_hole_in_two_copies_of_a_log_file_is_counted_once(tmp_path: Path) -> None:
    """A log file copied to a second folder of the log, damaged at its start in both, is reported and counted once."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as store:
        for number in range(3):
            store.put(Message("T", b"%d" % number * 100, queue_id=0))
    path = min((folder / "commitlog").iterdir())
    destroy(folder, log_records(folder)[0])
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(path, other / path.name)
    found = survey(LogFiles(REAL_DISK, [str(folder / "commitlog"), str(other)]), 1 << 62, None)
    assert [finding.kind for finding in found.findings] == ["double_file"]
    assert len(found.holes) >= 1 and found.holes[0].start == 0
