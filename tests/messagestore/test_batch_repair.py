"""Batch queues that disagree with the log are reported and rebuilt; invalid numbers only cost their own message."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.derive.kinds import batch as batch_agreement
from messagestore.recovery.named_messages import NamedUnit
from messagestore.repair.fillers import Lost, fill
from messagestore.repair.lost_messages import Gap, lost_messages
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from storageio import StoreError
from storageio.testing import FailingDisk
from tests.messagestore.test_lost_messages import Bytes

UNIT = struct.Struct(">qiqqqhii")  # docs/formats/consumequeue.md#batch-unit
FILE_SIZE = 20 * UNIT.size
TOPIC = "batchconsumequeue/BcqTopic"


@pytest.fixture
def fixture(fixture_store: Any) -> Any:
    """Return a copy of a real store's batch queues, to be damaged."""
    return fixture_store("batchcq", own=True)


def units(store: Path, topic: str, queue_id: int) -> list[list[int]]:
    """Return every unit in a queue's files."""
    files = sorted((store / "batchconsumequeue" / topic / str(queue_id)).iterdir())
    rows = [row for file in files for row in UNIT.iter_unpack(file.read_bytes())]
    return [list(row[:7]) for row in rows if row[1] > 0]


def expected_of(fixture: Any) -> dict[tuple[str, int], list[list[int]]]:
    """Return the units that the real store wrote."""
    queues = fixture.expected()["queues"]
    return {(queue["topic"], queue["queueId"]): queue["batchCq"] for queue in queues if queue.get("batchCq")}


def files_of(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted((store / "batchconsumequeue").rglob("0*"))
            if path.is_file()}  # fmt: skip


def file(store: Path, number: int) -> Path:
    return store / TOPIC / "0" / f"{number * FILE_SIZE:020d}"


def write(path: Path, at: int, data: bytes) -> None:
    found = bytearray(path.read_bytes())
    found[at : at + len(data)] = data
    path.write_bytes(found)


def a_wrong_size(store: Path) -> None:
    write(file(store, 1), 3 * UNIT.size + 8, b"\0\0\x7f\0")


def zeros_in_the_last_file(store: Path) -> None:
    file(store, 2).write_bytes(bytes(FILE_SIZE))


def a_unit_of_no_record(store: Path) -> None:
    write(file(store, 2), 5 * UNIT.size, UNIT.pack(1 << 30, 200, 0, 1, 264, 3, -1, 0))


def the_first_file_gone(store: Path) -> None:
    file(store, 0).unlink()


def the_queue_gone(store: Path) -> None:
    shutil.rmtree(store / TOPIC / "0")


def too_long(store: Path) -> None:
    with file(store, 1).open("ab") as opened:
        opened.write(bytes(UNIT.size))


def too_short(store: Path) -> None:
    file(store, 1).write_bytes(file(store, 1).read_bytes()[:500])


def a_stray_file(store: Path) -> None:
    (store / TOPIC / "0" / "notes").write_text("mine")


DAMAGE = [a_wrong_size, zeros_in_the_last_file, a_unit_of_no_record, the_first_file_gone, the_queue_gone, too_long, too_short,
          a_stray_file]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "crashed"])
def test_damaged_batch_queue_is_rebuilt(fixture: Any, damage: Callable[[Path], None], is_clean: bool) -> None:
    """`verify` reports it and `recover` rebuilds it."""
    store, expected = fixture.store, expected_of(fixture)
    others = {name: data for name, data in files_of(store).items() if not name.startswith(f"{TOPIC}/0")}
    damage(store)
    if not is_clean:
        (store / "abort").write_bytes(b"4711")
    assert verify_store(str(store)).problems
    names_more = is_clean and damage is a_unit_of_no_record  # nothing tells that its record never was there
    assert Recovery(str(store)).plan().needs_choice == names_more
    plan = Recovery(str(store), Choice.TRUNCATE if names_more else Choice.REFUSE).apply()
    assert any(step.text.startswith("rebuild batchconsumequeue") for step in plan.steps)
    assert {queue_key: units(store, *queue_key) for queue_key in expected} == expected
    assert others.items() <= files_of(store).items(), "queues that agree stay as they are"
    assert verify_store(str(store)).problems == [] and Recovery(str(store)).plan().steps == []
    with MessageStore.open(store, "r+") as opened:
        assert (opened.min_offset("BcqTopic", 0), opened.max_offset("BcqTopic", 0)) == (0, 264)


@pytest.mark.deep
def test_a_recovery_of_a_batch_queue_killed_at_any_call_is_run_again(fixture: Any, tmp_path: Path) -> None:
    """A queue has its old files, its new ones, or none; the next run repairs all of it."""
    expected = expected_of(fixture)
    a_wrong_size(fixture.store)
    number, is_done = 0, False
    while not is_done:
        number += 7
        copy = Path(shutil.copytree(fixture.store, tmp_path / f"killed-{number}"))
        try:
            Recovery(str(copy), disk=FailingDisk(number, for_ever=True)).apply()
            is_done = True
        except StoreError:
            Recovery(str(copy)).apply()
        assert {queue_key: units(copy, *queue_key) for queue_key in expected} == expected, number
        assert verify_store(str(copy)).problems == []
        shutil.rmtree(copy)
    assert number > 100


def test_bytes_truncated_from_a_batch_queue_are_backed_up(fixture: Any) -> None:
    """Where the log is cut, units behind its end go, also of queues of which nothing is left, and their files are copied."""
    before = {data.rstrip(b"\0") for data in files_of(fixture.store).values()}
    write(fixture.store / "commitlog" / f"{0:020d}", 0, bytes(65536))
    Recovery(str(fixture.store), Choice.TRUNCATE).apply()
    assert not any(units(fixture.store, topic, queue_id) for topic, queue_id in expected_of(fixture))
    kept = {path.read_bytes().rstrip(b"\0") for path in (fixture.store / "brokerstore").rglob("*") if path.is_file()}
    assert before <= kept
    assert not verify_store(str(fixture.store)).problems


def test_many_wrong_units_of_one_queue_do_not_hide_another(fixture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on reported problems is per queue."""
    monkeypatch.setattr(batch_agreement, "PROBLEMS_MAX", 3)
    for queue_id in (0, 1):
        (fixture.store / TOPIC / str(queue_id) / f"{0:020d}").write_bytes(bytes(FILE_SIZE))
    found = [problem.file.rpartition("/")[2] for problem in verify_store(str(fixture.store)).problems]
    assert sorted(found) == ["0"] * 3 + ["1"] * 3
    Recovery(str(fixture.store)).apply()
    assert verify_store(str(fixture.store)).problems == []


@pytest.mark.parametrize("text", [b"x0", b"\xb20", b"-1"])
def test_damaged_message_count_of_a_record_does_not_prevent_opening(fixture: Any, text: bytes) -> None:
    """RocketMQ writes no checksum over it; a flipped bit must not prevent opening the store."""
    log = fixture.store / "commitlog" / f"{65536:020d}"
    data = log.read_bytes()
    at = data.index(b"INNER_NUM\x0110\x02") + len(b"INNER_NUM\x01")
    log.write_bytes(data[:at] + text + data[at + 2 :])
    (fixture.store / "abort").touch()
    victim = max(row["physicalOffset"] for row in fixture.expected()["messages"] if row["physicalOffset"] < 65536 + at)
    assert [problem.offset for problem in verify_store(str(fixture.store)).problems] == [victim]
    Recovery(str(fixture.store)).apply()
    plan = Recovery(str(fixture.store)).plan()
    assert plan.steps == [] and len(plan.unrepaired) == 1
    assert [(found.kind, found.offset) for found in plan.findings] == [("batch_numbers", victim)]
    assert {queue_key: units(fixture.store, *queue_key) for queue_key in expected_of(fixture)} == expected_of(fixture), (
        "the queue knows what the record lost"
    )


@pytest.mark.deep
def test_what_was_prepared_or_rolled_back_is_in_no_batch_queue(tmp_path: Path) -> None:
    """Such records are neither missed nor added; old logs have some in the topic itself."""
    folder = tmp_path / "store"
    with MessageStore.open(folder) as store:
        store.create_topic("B", 1, attributes={"queue.type": "BatchCQ"})
        for flag in (0x80, 0x84, 0x8C, 0x88):
            pairs = {"INNER_NUM": "2", "INNER_BASE": "0" if flag == 0x80 else "2"}
            store.engine.log.appender.append(Message("B", b"x", sys_flag=flag, properties=pairs), 0)
        store.engine.settle()
        assert store.max_offset("B", 0) == 4
    assert verify_store(str(folder)).problems == []
    shutil.rmtree(folder / "batchconsumequeue" / "B")
    Recovery(str(folder), Choice.SKIP).apply()
    assert verify_store(str(folder)).problems == []
    assert [(row[4], row[5]) for row in units(folder, "B", 0)] == [(0, 2), (2, 2)]


@pytest.mark.parametrize("lost", [{20}, {10, 11, 30}, {-1}], ids=["one", "three", "last"])
@pytest.mark.parametrize("has_units", [True, False], ids=["sound-queue", "zeroed-queue"])
def test_filler_of_a_batch_has_all_its_queue_offsets(fixture: Any, lost: set[int], has_units: bool) -> None:
    """RocketMQ's consumers get the batch below a gap again and again, so the numbers must continue."""
    store, expected = fixture.store, expected_of(fixture)["BcqTopic", 0]
    rows = [expected[number] for number in sorted(lost)]
    (first, *_) = sorted((store / "commitlog").iterdir())
    for offset, size, *_ in rows:
        path = store / "commitlog" / f"{offset // first.stat().st_size * first.stat().st_size:020d}"
        write(path, offset % first.stat().st_size, b"\xee" * size)
    for path in files_of(store) if not has_units else ():
        (store / path).write_bytes(bytes(FILE_SIZE))
    plan = Recovery(str(store), Choice.SKIP).apply()
    is_named = has_units or -1 not in lost  # without its unit, nothing names the last record of a queue
    assert plan.messages_lost >= (sum(row[5] for row in rows) if is_named else 1)
    found = [(row[4], row[5]) for row in units(store, "BcqTopic", 0)]
    bases = [base for base, _ in found]
    assert bases[1:] == [base + count for base, count in found][:-1], "no gap"
    assert {row[4] for row in expected} - {row[4] for row in rows} <= set(bases), "every other batch keeps its numbers"
    assert verify_store(str(store)).problems == []
    with MessageStore.open(store, "r") as opened:
        bodies = [message.body for message in opened.read("BcqTopic", 0)]
    assert len(bodies) == len(expected) - len(rows), "no reader takes a filler for a message"


def test_filler_of_a_batch_in_an_lmq_has_the_numbers_of_both_queues() -> None:
    """Units of a batch queue and of an LMQ name the same lost record; another batch without a unit lies before it."""
    units = [NamedUnit(1500, "%LMQ%a", 0, 7), NamedUnit(1500, "batches", 2, 40, 9)]
    gap = Gap("batches", 2, 30, 49, 0, 0, is_batch=True)
    found = lost_messages([Bytes(1000, 2000, 4000)], [gap], Named(units))
    assert found == {1000: [Lost("batches", 2, 30, (), 10), Lost("batches", 2, 40, (("%LMQ%a", 7),), 9)]}
    data, left_out = fill(1000, 1000, found[1000], 1, to_file_end=False)
    for pair in (b"INNER_BASE\x0140\x02", b"INNER_NUM\x019\x02", b"INNER_MULTI_QUEUE_OFFSET\x017\x02"):
        assert pair.rstrip(b"\x02") in data
    assert left_out == []


def test_no_filler_has_more_messages_than_a_batch_can_have() -> None:
    """INNER_NUM is a signed 16-bit number (docs/formats/put-rules.md#batch-topics)."""
    found = lost_messages([Bytes(1000, 2000, 4000)], [Gap("batches", 0, 1, 40_001, 0, 0, is_batch=True)], None)
    assert [(lost.queue_offset, lost.messages) for lost in found[1000]] == [(1, 32767), (32768, 7233)]


def test_batch_queue_of_a_topic_without_records_is_reported_and_put_aside(fixture: Any) -> None:
    """RocketMQ's load() refuses a store with batch queues of a topic that is no batch topic."""
    store = fixture.store
    shutil.copytree(store / TOPIC, store / "batchconsumequeue" / "BcqTöpic")
    before = files_of(store)
    found = {problem.file for problem in verify_store(str(store)).problems}
    assert found == {str(store / "batchconsumequeue" / "BcqTöpic" / queue_id) for queue_id in "01"}
    Recovery(str(store)).apply()
    assert verify_store(str(store)).problems == []
    assert files_of(store) == {path: data for path, data in before.items() if "BcqT\u00f6pic" not in path}
    assert not (store / "batchconsumequeue" / "BcqTöpic").exists()
    kept = [path.read_bytes() for path in (store / "brokerstore").glob("kept-batchconsumequeue-BcqT*/0*")]
    assert sorted(kept) == sorted(data for path, data in before.items() if "BcqT\u00f6pic" in path)


def test_empty_batch_queue_of_a_topic_that_the_table_lacks_is_put_aside(tmp_path: Path) -> None:
    """RocketMQ refuses such a folder too; one of a topic that the table has is as good as none."""
    store = tmp_path / "store"
    with MessageStore.open(store, "a") as made:
        made.create_topic("B", 2, attributes={"queue.type": "BatchCQ"})
        made.put(Message("B", b"one", queue_id=0))
    (store / "batchconsumequeue" / "B" / "1").mkdir()
    assert verify_store(str(store)).problems == []
    strange = store / "batchconsumequeue" / "Ü"
    (strange / "0").mkdir(parents=True)
    assert [(one.kind, one.file) for one in verify_store(str(store)).problems] == [("dangling_batch_queue", str(strange / "0"))]
    Recovery(str(store)).apply()
    assert verify_store(str(store)).problems == [] and not strange.exists()


def test_lost_batch_queues_without_a_topic_table_are_made_again_from_the_batches(fixture: Any) -> None:
    """Nothing but the log tells that these topics have batch queues."""
    store, expected = fixture.store, expected_of(fixture)
    assert not (store / "config" / "topics.json").exists()
    shutil.rmtree(store / "batchconsumequeue")
    assert {problem.kind for problem in verify_store(str(store)).problems} == {"batch_unit"}
    Recovery(str(store)).apply()
    assert verify_store(str(store)).problems == []
    for (topic, queue_id), rows in expected.items():
        assert [row[:6] for row in units(store, topic, queue_id)] == [row[:6] for row in rows]


class Named:
    """Units of queues, without an index."""

    def __init__(self, units: list[NamedUnit]) -> None:
        self.units = units

    def between(self, start: int, stop: int) -> Iterator[NamedUnit]:
        """Yield the units in the range."""
        return (unit for unit in self.units if start <= unit.physical_offset < stop)

    def indexed(self, start: int, stop: int) -> set[int]:
        """Return no index items."""
        return set()

    def reach(self, last_offset: int) -> int:
        """Return that no unit is behind the log."""
        return -1

    def ends_at(self, offset: int) -> dict[tuple[str, int], tuple[int, int]]:
        """Return no queue ends."""
        return {}
