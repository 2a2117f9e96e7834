"""Bugs that these tests found; each docstring states what went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog import CHECK_ALL
from commitlog._record_cy import check
from commitlog.offset_files import FILE_SIZE_MAX, OffsetFile, common_file_size
from consumequeue.consume_queues import find_file_size
from messagestore import MessageStore
from messagestore.derive.kinds.lmq import listed_queues
from messagestore.repair.recover import Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK
from tests.faults.golden import fast_folder, unpacked
from tests.faults.store_damage import messages_of
from tests.faults.test_hostile_folders import crafted

pytestmark = pytest.mark.default


def files(*sizes: int, step: int = 65536) -> list[OffsetFile]:
    return [OffsetFile(number * step, f"{number * step:020d}", size, 0) for number, size in enumerate(sizes)]


def test_the_file_size_is_the_difference_between_file_names() -> None:
    """With two sizes of files, either one used to be taken; with a cut last file, the whole one counted as damaged."""
    assert common_file_size(files(65536, 1000)) == common_file_size(files(1000, 65536)) == 65536
    assert common_file_size(files(1000, 1000, 65536)) == 65536
    assert common_file_size(files(1 << 42)) is None and common_file_size(files(FILE_SIZE_MAX)) == FILE_SIZE_MAX


def test_a_truncated_queue_file_does_not_set_the_file_size_of_all_queues(tmp_path: Path) -> None:
    """The first queue's file used to give the size for all; cut to 7 bytes, it made every queue unreadable."""
    for topic, size in (("A", 7), ("B", 2000), ("C", 2000)):
        folder = tmp_path / topic / "0"
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(bytes(size))
    assert find_file_size(REAL_DISK, str(tmp_path)) == 2000


def test_a_record_without_its_last_page_is_not_a_record() -> None:
    """The lost page had the checksum property, so the record used to pass as unprotected, with zeros as properties."""
    record = crafted(b"T", properties=b"KEYS\1" + b"k" * 200 + b"\2__CRC32#\x010000000000\2")
    for lost in (1, 8, 100, 210):
        torn = record[: len(record) - lost] + bytes(lost)
        assert check(torn, 0, len(torn), 0, CHECK_ALL) < 0


def test_lmq_offsets_may_have_any_number_of_digits() -> None:
    """A number of 5,000 digits in a property used to end a rebuild with Python's own ValueError."""
    with fast_folder() as folder:
        message = next(one for one in messages_of(unpacked("lmq", folder)) if listed_queues(one))
    fields = {"all_properties": dict(message.all_properties), "properties_raw": message.properties_raw, "topic": message.topic}
    message = type("Fake", (), fields)()
    message.all_properties["INNER_MULTI_DISPATCH"] = "%LMQ%a,%LMQ%b,%LMQ%c"
    message.all_properties["INNER_MULTI_QUEUE_OFFSET"] = "9" * 5000 + ",7,-1"
    assert listed_queues(message) == [("%LMQ%b", 7)]


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\xff" * 4096, b""], ids=["first time", "all", "empty"])
def test_a_damaged_checkpoint_is_repaired(data: bytes) -> None:
    """`verify` reported it, but `recover` used to find nothing to do."""
    with fast_folder() as folder:
        store = unpacked("lmq", folder)
        path = store / "checkpoint"
        path.write_bytes(data + path.read_bytes()[len(data) :] if data else b"")
        assert "damaged_checkpoint" in {problem.kind for problem in verify_store(str(store)).problems}
        Recovery(str(store)).apply()
        assert verify_store(str(store)).problems == []


@pytest.mark.parametrize("size", [4066, 56, 48, 17, 8])
def test_a_shortened_checkpoint_is_repaired(size: int) -> None:
    """Found by fuzzing: its values were whole, so `recover` used to plan a rewrite again and again without doing it."""
    with fast_folder() as folder:
        store = unpacked("lmq", folder)
        path = store / "checkpoint"
        path.write_bytes(path.read_bytes()[:size])
        assert Recovery(str(store)).apply().steps
        assert path.stat().st_size == 4096 and not Recovery(str(store)).plan().steps


def test_a_config_file_is_repaired_from_its_backup() -> None:
    """The backup used to be read, but the damaged file stayed."""
    with fast_folder() as folder:
        store = unpacked("broker-ext", folder)
        path = store / "config" / "topics.json"
        topics = MessageStore.open(store, "r").topics()
        path.write_bytes(path.read_bytes().replace(b":", b";", 3))
        Recovery(str(store)).apply()
        assert "damaged_config" not in {problem.kind for problem in verify_store(str(store)).problems}
        assert set(MessageStore.open(store, "r").topics()) <= set(topics)
