"""Rare repairs: configuration from its backup, symlinks, unreadable queues, rebuilt LMQs."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from commitlog.walk import LogFiles, Piece
from consumequeue import ConsumeQueues
from messagestore import MessageStore
from messagestore.derive.cross_check import CrossCheck
from messagestore.derive.kinds.scheduled import DelayLevels
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_beside_log, verify_store
from storageio import REAL_DISK, Disk, DiskError, StoreCorrupt, StoreError, StoreReadOnly
from storageio.testing import FailingDisk
from tests.brokerstore.tool import run
from tests.helpers import contents
from tests.messagestore.kit import RECORD_BODY_AT, record_bytes
from tests.stores import problem_kinds, small_config

from .support import labels

CQ_UNIT = struct.Struct(">qiq")
SMALL = small_config(max_hash_slot_num=50)
COUNT = 300


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a cleanly closed store with three topics."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as opened:
        for number in range(COUNT):
            opened.put(Message(f"T{number % 3}", b"%d" % number * 100, queue_id=number % 2, keys=[f"k{number}"]))
    return folder


def verify(folder: Path, disk: Disk) -> object:
    return verify_store(str(folder), disk=disk)


def plan(folder: Path, disk: Disk) -> object:
    return Recovery(str(folder), disk=disk).plan()


def count(folder: Path) -> int:
    with MessageStore.open(folder, "r") as opened:
        return sum(len(list(opened.read(topic, queue_id))) for topic in opened.topics() for queue_id in opened.queue_ids(topic))


# Configuration


def test_a_torn_config_file_is_written_again_from_its_backup(store: Path) -> None:
    """Reading the backup works, but a second torn save would leave nothing."""
    good = b'{"offsetTable":{"T0@g":{0:3,1:2}}}'
    path, backup = store / "config" / "consumerOffset.json", store / "config" / "consumerOffset.json.bak"
    backup.write_bytes(good)
    path.write_bytes(good[:20])
    assert problem_kinds(store) == {"damaged_config"}
    plan = Recovery(str(store)).apply()
    assert "restore_config config/consumerOffset.json" in labels(plan)
    assert problem_kinds(store) == set() and Recovery(str(store)).plan().steps == []
    with MessageStore.open(store, "r") as opened:
        assert [opened.engine.consumer_offsets().get("T0", "g", queue_id) for queue_id in (0, 1)] == [3, 2]


def test_a_config_file_without_a_readable_backup_is_set_aside(store: Path) -> None:
    """A broker does not start on two damaged copies; the plan says what is lost, and both copies are kept."""
    groups, offsets = store / "config" / "subscriptionGroup.json", store / "config" / "consumerOffset.json"
    for path in (groups, store / "config" / "subscriptionGroup.json.bak", offsets):
        path.write_bytes(b'{"torn":')
    (store / "config" / "consumerOffset.json.bak").write_bytes(b'{"offsetTable":{"T0@g":{0:3}}}')
    named = {problem.file for problem in verify_store(str(store)).problems}
    assert named == {str(groups), str(offsets)}
    plan = Recovery(str(store)).apply()
    assert labels(plan)[1:3] == ["restore_config config/consumerOffset.json", "remove_config config/subscriptionGroup.json"]
    assert "groups get the defaults" in plan.steps[2].reason
    assert not groups.exists() and verify_store(str(store)).is_ok
    kept = [path.name for path in (store / "brokerstore").iterdir() if path.read_bytes() == b'{"torn":']
    assert sorted(kept) == [f"kept-config-{name}-0" for name in (offsets.name, groups.name, f"{groups.name}.bak")]


def test_verify_beside_log_reports_consumer_offsets_beyond_their_queues(store: Path) -> None:
    """This is for callers that compare log, queues and index in another way."""
    (store / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{"T0@g":{0:9999}}}')
    found = verify_beside_log(str(store))
    assert [problem.kind for problem in found] == ["offset_ahead"] and found[0].found == "9999"
    shutil.rmtree(store / "consumequeue")
    (store / "consumequeue").write_bytes(b"no folder")
    assert "offset_ahead" not in {problem.kind for problem in verify_beside_log(str(store))}


# Symlinks


@pytest.mark.parametrize("name", ["commitlog", "config"])
def test_recover_writes_through_an_outside_symlink_only_with_follow_links(store: Path, name: str) -> None:
    """Brokers may have their log on another disk behind a symlink; a folder from elsewhere may point anywhere."""
    outside = store.parent / "outside"
    shutil.move(store / name, outside)
    (store / name).symlink_to(outside)
    shutil.rmtree(store / "consumequeue")
    before = contents(outside)
    with pytest.raises(StoreReadOnly, match="is a link"):
        Recovery(str(store)).apply()
    assert contents(outside) == before and not (store / "consumequeue").exists()
    Recovery(str(store), follow_links=True).apply()
    assert problem_kinds(store) == set() and count(store) == COUNT


# Queues and index


@pytest.mark.parametrize("damage", ["a stray file", "a long file"])
def test_unreadable_queues_are_rebuilt(store: Path, damage: str) -> None:
    """They tell neither lost messages nor agreement, so the log alone decides."""
    queue = store / "consumequeue" / "T1" / "0"
    if damage == "a stray file":
        (queue / "notes").write_text("mine")
    else:
        with (queue / f"{0:020d}").open("ab") as file:
            file.write(bytes(20))
    assert problem_kinds(store)
    assert any(label.startswith("rebuild consumequeue") for label in labels(Recovery(str(store)).apply()))
    assert problem_kinds(store) == set() and count(store) == COUNT


@pytest.mark.deep
def test_a_call_that_fails_once_changes_no_plan(store: Path) -> None:
    """Index files must not count as damaged, or as of RocketMQ's size, because a disk failed for a moment."""
    counting = FailingDisk(1 << 30)
    plan(store, counting)
    assert len(counting.calls) > 100
    for number in range(1, len(counting.calls) + 1):
        with pytest.raises(DiskError):
            plan(store, FailingDisk(number))


def test_verify_with_a_failing_disk_call_raises_or_reports_the_file(store: Path) -> None:
    """`verify` raises the error, or names the file that it could not read and checks the others."""
    counting = FailingDisk(1 << 30)
    verify(store, counting)
    named = set()
    for number in range(1, len(counting.calls) + 1):
        try:
            problems = verify_store(str(store), disk=FailingDisk(number)).problems
        except DiskError:
            continue
        named |= {one.kind for one in problems}
        assert "unreadable" in {one.kind for one in problems}
    assert "unreadable" in named


def test_a_store_without_an_index_is_recovered_without_one(store: Path) -> None:
    """With `message_index_enable` off, none is missed and none is created."""
    shutil.rmtree(store / "index")
    shutil.rmtree(store / "consumequeue" / "T1")
    config = SMALL.but(message_index_enable=False)
    assert {problem.kind for problem in verify_store(str(store), config).problems} == {"missing_queue"}
    plan = Recovery(str(store), config=config).apply()
    assert labels(plan) == ["mark_unclean abort", "rebuild consumequeue", "clamp_offsets config", "close_store abort"]
    assert verify_store(str(store), config).problems == [] and not (store / "index").exists()


def test_damaged_checkpoint_is_rewritten(store: Path) -> None:
    """It has bytes in place of zeros; its times are set to what the log has."""
    (store / "checkpoint").write_bytes(b"\xff" * 4096)
    assert "damaged_checkpoint" in problem_kinds(store)
    assert "write_checkpoint checkpoint" in labels(Recovery(str(store)).apply())
    assert problem_kinds(store) == set() and count(store) == COUNT


def test_recover_without_backups_repairs_the_store(store: Path) -> None:
    """With `keep_backup` off a hole, a tail and a long file are repaired without copies."""
    first, last = sorted((store / "commitlog").iterdir())[:2]
    for path, at in ((first, 3000), (last, 500)):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"\x55" * 40)
    with last.open("ab") as file:
        file.write(b"over")
    reported: list[int] = []
    Recovery(str(store), Choice.SKIP, keep_backup=False, progress=reported.append).apply()
    assert problem_kinds(store) == set() and sum(reported) > 65536
    assert not list((store / "brokerstore").glob("cut-*"))


def test_queue_without_any_record_in_the_log_is_reported(store: Path) -> None:
    """A queue folder was copied from another store, or its messages are lost: nobody can know, so they are counted."""
    shutil.copytree(store / "consumequeue" / "T0", store / "consumequeue" / "Strange")
    assert problem_kinds(store) == {"dangling_queue"}
    with pytest.raises(StoreCorrupt, match="lacks messages"):
        rebuild_store(str(store))
    plan = Recovery(str(store)).apply()
    assert plan.needs_choice and problem_kinds(store) == {"dangling_queue"}
    lost = plan.choices["truncate"].lost_by_queue
    assert lost == {
        f"Strange/{path.name}": MessageStore.open(store, "r").max_offset("T0", int(path.name))
        for path in (store / "consumequeue" / "Strange").iterdir()
    }
    Recovery(str(store), Choice.TRUNCATE).apply()
    assert problem_kinds(store) == set() and not (store / "consumequeue" / "Strange").exists()


def test_lost_queues_are_rebuilt_if_a_foreign_file_has_the_rebuild_name(store: Path) -> None:
    """Any file at the place of the rebuild is moved aside."""
    (store / "brokerstore").mkdir(exist_ok=True)
    (store / "brokerstore" / "rebuild").write_bytes(b"a file")
    shutil.rmtree(store / "consumequeue")
    rebuild_store(str(store))
    assert problem_kinds(store) == set() and count(store) == COUNT


def test_an_empty_log_gets_empty_queues_and_index(tmp_path: Path) -> None:
    """There is nothing to dispatch, but the folders exist."""
    folder = tmp_path / "empty"
    MessageStore.open(folder, config=SMALL).close()
    shutil.rmtree(folder / "consumequeue", ignore_errors=True)
    rebuild_store(str(folder))
    assert list((folder / "consumequeue").iterdir()) == list((folder / "index").iterdir()) == []
    assert problem_kinds(folder) == set()


@pytest.mark.parametrize(
    ("numbers", "read"),
    [
        ([0, 1, 2, 3, 4, 3, 4, 5, 6], [0, 1, 2, 3, 4, 7, 8]),
        ([0, 1, 4, 5, 2, 3, 4, 6], [0, 1, 2, 3, 6, 7]),
        ([0, 0, 0], [0, 1, 2]),
        ([0, 1, 2, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 7, 8]),
        ([3, 4, 0, 5, 6], [0, 1, 2, 4]),
    ],
    ids=str,
)
def test_repeated_queue_offsets_of_the_log_need_no_rebuild(tmp_path: Path, numbers: list[int], read: list[int]) -> None:
    """docs/formats/consumequeue.md#how-a-unit-gets-its-place decides which records get a place; offset 0 is always accepted.

    A rebuild changes nothing, and recoveries must not ask for one again and again.
    """
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as opened:
        for at, number in enumerate(numbers):
            opened.engine.offsets.set_next_offset("T0", 0, number)
            opened.put(Message("T0", b"%d" % at, queue_id=0))
        opened.engine.settle()
        assert [int(message.body) for message in opened.read("T0", 0)] == read
    assert problem_kinds(folder) == {"queue_offset"}
    assert Recovery(str(folder)).plan().steps == []
    rebuild_store(str(folder))
    assert problem_kinds(folder) == {"queue_offset"}


@pytest.mark.parametrize("has_table", [True, False], ids=["a-brokers", "no-topics"])
@pytest.mark.parametrize("topic", [b"my/topic", b"x\0y", b"..", b"", b"\xff" * 100], ids=repr)
def test_topic_that_is_not_a_folder_name_does_not_prevent_opening(tmp_path: Path, topic: bytes, has_table: bool) -> None:
    """A flipped bit makes "my/topic" of "my-topic", in a record without a checksum over its topic."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as opened:
        if has_table:
            opened.create_topic("T0", 1)
    log = record_bytes(0, b"strange", topic=topic)
    log += record_bytes(len(log), b"first", topic=b"T0")
    (folder / "commitlog").mkdir(exist_ok=True)
    (folder / "commitlog" / f"{0:020d}").write_bytes(log.ljust(65536, b"\0"))
    shutil.rmtree(folder / "brokerstore", ignore_errors=True)
    (folder / "abort").write_text("1")
    with MessageStore.open(folder, config=SMALL) as opened:
        opened.put(Message("T0", b"last", queue_id=0))
        assert [message.body for message in opened.read("T0", 0)] == [b"first", b"last"]
    (problem,) = verify_store(str(folder)).problems
    plan = Recovery(str(folder)).plan()
    assert (problem.kind, plan.steps) == ("topic_name", [])
    assert [found.kind for found in plan.findings] == ["topic_name"] and len(plan.unrepaired) == 1
    answer = run("recover", folder, "--apply")
    assert answer.code == 1 and "a person has to decide: " in answer.talk
    rebuild_store(str(folder))
    assert problem_kinds(folder) == {"topic_name"} and (folder / "consumequeue" / "T0").is_dir()


# Holes

LATE_MS = 4_000_000_000_000


def test_damaged_message_containing_a_valid_record_is_replaced_by_a_filler(tmp_path: Path) -> None:
    """A producer sent a part of the log itself, so a whole record lies inside the damaged one.

    The hole before the inner record is too short for a filler, and the records behind, older than it claims, must not be cut.
    """
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=SMALL) as opened:
        position = opened.put(Message("T0", b"first", queue_id=0)).size_bytes
        inner = record_bytes(position + RECORD_BODY_AT, bytes(100), at_ms=LATE_MS)
        result = opened.put(Message("T0", inner + bytes(50), queue_id=0))
        assert result.physical_offset == position
        opened.put(Message("T0", b"behind", queue_id=0))
    path = min((folder / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    assert data[position + RECORD_BODY_AT :].startswith(inner)
    data[position] ^= 0x40  # its size
    path.write_bytes(data)
    plan = Recovery(str(folder), Choice.SKIP).apply()
    assert (plan.messages_kept, plan.messages_lost, plan.bytes_cut) == (2, 1, 0)
    assert problem_kinds(folder) == set()
    with MessageStore.open(folder, "r") as opened:
        first, behind = list(opened.read("T0", 0))
        assert [(one.body, one.queue_offset) for one in (first, behind)] == [(b"first", 0), (b"behind", 2)]
        filler = opened.message_at(position)
        assert filler is not None and filler.is_filler


# LMQs


def lmq_units(store: Path) -> dict[str, list[tuple[int, int, int]]]:
    """Return the units of every LMQ, read as the format page describes."""
    found = {}
    for folder in sorted((store / "consumequeue").glob("%LMQ%*/0")):
        data = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
        found[folder.parent.name] = [unit for unit in CQ_UNIT.iter_unpack(data) if unit[1] > 0]
    return found


@pytest.mark.parametrize("how", ["rebuild", "recover"])
def test_lmqs_of_a_real_store_are_rebuilt(fixture_store: Any, how: str) -> None:
    """They hold records of other topics; the units are those that the real store wrote."""
    fixture = fixture_store("lmq", own=True)
    expected = lmq_units(fixture.store)
    manifest = {queue["topic"]: [row[0] for row in queue["cq"]] for queue in fixture.expected()["queues"]}
    assert expected and {name: [unit[0] for unit in units] for name, units in expected.items()}.items() <= manifest.items()
    victim = next(iter(expected))
    shutil.rmtree(fixture.store / "consumequeue" / victim)
    if how == "rebuild":
        rebuild_store(str(fixture.store))
    else:
        assert "missing_queue" in problem_kinds(fixture.store)
        Recovery(str(fixture.store)).apply()
    assert lmq_units(fixture.store) == expected and problem_kinds(fixture.store) == set()


def test_wrong_unit_of_an_lmq_is_reported_and_repaired(fixture_store: Any) -> None:
    """Each record is compared, because no queue of their topic holds them."""
    fixture = fixture_store("lmq", own=True)
    expected = lmq_units(fixture.store)
    victim = sorted(name for name, units in expected.items() if len(units) > 1)[0]
    path = min((fixture.store / "consumequeue" / victim / "0").iterdir())
    data = bytearray(path.read_bytes())
    data[27] ^= 1
    path.write_bytes(data)
    assert problem_kinds(fixture.store) & {"wrong_unit"}
    Recovery(str(fixture.store)).apply()
    assert lmq_units(fixture.store) == expected and problem_kinds(fixture.store) == set()


def test_ends_of_lmqs_are_those_of_their_units(fixture_store: Any) -> None:
    """This is for callers that compare a log in parts, in several processes: they need the end of each queue."""
    fixture = fixture_store("lmq")
    folders = [str(fixture.store / name) for name in ("consumequeue", "commitlog")]
    queues = ConsumeQueues(REAL_DISK, folders[0], writable=False, file_size_bytes=2000)
    queues.load()
    comparison = CrossCheck(queues, None, DelayLevels([]), 0)
    for step in LogFiles(REAL_DISK, folders[1:]).walk():
        if isinstance(step, Piece):
            comparison.take(step)
    comparison.finish()
    assert comparison.virtual_ends() == {(name, 0): len(units) for name, units in lmq_units(fixture.store).items() if units}
    assert comparison.problems == [] and comparison.items == 0
    queues.close()


WITH_LMQ = SMALL.but(enable_lmq=True)
LOCATIONS, NUMBERS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"


@pytest.mark.parametrize("how", ["rebuild", "recover"])
def test_repeated_lmq_offsets_lose_no_message_in_a_rebuild(tmp_path: Path, how: str) -> None:
    """A name listed twice moves the numbers ahead of the positions, and after a restart they are given again, as in a broker.

    The first records are deleted: a rebuild by the numbers alone would have no place for those behind.
    """
    folder = tmp_path / "store"

    def put(opened: Any, number: int, names: str) -> int:
        message = Message("T0", b"%d" % number * 300, queue_id=0, properties={LOCATIONS: names})
        return int(opened.put(message).physical_offset)

    with MessageStore.open(folder, config=WITH_LMQ) as opened:
        for number in range(5):
            put(opened, number, "%LMQ%a,%LMQ%a,%LMQ%b")
        while opened.log_end < 65536:
            opened.put(Message("fill", bytes(3000), queue_id=0))
        put(opened, 5, "%LMQ%a,%LMQ%a,%LMQ%b")
    with MessageStore.open(folder, config=WITH_LMQ) as opened:
        for number in range(6, 9):
            put(opened, number, "%LMQ%a,%LMQ%b")
        opened.flush()
        opened.engine.settle()
        assert opened.delete_before(65536) == 1
    assert verify_store(str(folder), WITH_LMQ).problems == []
    shutil.rmtree(folder / "consumequeue" / "%LMQ%a")
    if how == "rebuild":
        rebuild_store(str(folder), config=WITH_LMQ)
    else:
        assert "missing_queue" in {problem.kind for problem in verify_store(str(folder), WITH_LMQ).problems}
        Recovery(str(folder), config=WITH_LMQ).apply()
    assert verify_store(str(folder), WITH_LMQ).problems == []
    with MessageStore.open(folder, "r", WITH_LMQ) as opened:
        assert [message.body[:1] for message in opened.read("%LMQ%a", 0)] == [b"5", b"6", b"7", b"8"]


def test_message_lost_from_all_but_lmqs_keeps_their_offsets(tmp_path: Path) -> None:
    """The topic's own queue is missing too, and it was its last message: the filler is in the LMQ itself."""
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=WITH_LMQ) as opened:
        positions = []
        for number in range(4):
            topic = "T0" if number < 3 else "T1"
            message = Message(topic, b"%d" % number * 300, queue_id=0, properties={LOCATIONS: "%LMQ%a,%LMQ%b"})
            positions.append(opened.put(message).physical_offset)
        opened.engine.settle()
    path = min((folder / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[positions[2]] ^= 0x40
    path.write_bytes(data)
    shutil.rmtree(folder / "consumequeue" / "T0")
    Recovery(str(folder), Choice.SKIP, WITH_LMQ).apply()
    assert verify_store(str(folder), WITH_LMQ).problems == []
    with MessageStore.open(folder, "r", WITH_LMQ) as opened:
        for name in ("%LMQ%a", "%LMQ%b"):
            assert opened.max_offset(name, 0) == 4
            assert [message.body[:1] for message in opened.read(name, 0)] == [b"0", b"1", b"3"]


def test_rebuild_reports_damage_with_file_and_offset(store: Path) -> None:
    """The error has file and byte of the first damage."""
    path = min((store / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[4] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt) as caught:
        rebuild_store(str(store))
    assert os.path.basename(str(caught.value.file)) == path.name and caught.value.offset == 0


def test_rebuild_on_a_full_disk_deletes_its_new_files(store: Path) -> None:
    """The new files are deleted; the old folders are unchanged."""
    before = {path: path.read_bytes() for path in (store / "consumequeue").rglob("0*") if path.is_file()}
    disk = FailingDisk(1, only="allocate")
    with pytest.raises(StoreError):
        rebuild_store(str(store), disk=disk)
    assert not (store / "brokerstore" / "rebuild").exists()
    assert all(path.read_bytes() == data for path, data in before.items())
    rebuild_store(str(store), disk=REAL_DISK)
    assert problem_kinds(store) == set()
