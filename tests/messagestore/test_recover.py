"""Damage to a store: what recovery plans and keeps, and that it can be killed and repeated."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message, StoredMessage
from messagestore import MessageStore
from messagestore.broker.config.topics import Topics
from messagestore.repair.recover import Choice, Plan, Recovery
from storageio import REAL_DISK, StoreCorrupt, StoreError, StoreLocked, UnsupportedFormat
from storageio.testing import FailingDisk
from tests.helpers import contents, overwrite
from tests.stores import log_records, small_config

FILE_SIZE = 65536
CLOCK_START = 1_700_000_000_000
SMALL = small_config(mapped_file_size_commit_log=FILE_SIZE, max_hash_slot_num=50)
COUNT = 700


class Clock:
    """A clock that advances a second per call."""

    def __init__(self) -> None:
        self.now = CLOCK_START

    def __call__(self) -> int:
        self.now += 1000
        return self.now


@pytest.fixture(scope="module", params=[True, False], ids=["whole-record-crc", "body-crc"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cleanly closed store of five log files, with and without the whole-record checksum."""
    folder = tmp_path_factory.mktemp("original") / "store"
    config = SMALL.but(enabled_append_prop_crc=request.param)
    with MessageStore.open(folder, config=config, clock=Clock()) as store:
        for number in range(COUNT):
            body = b"%06d " % number + b"x" * (number * 37 % 600)
            store.put(Message(f"topic-{number % 3}", body, queue_id=number % 2, tags="t", keys=[f"key-{number}"]))
    return folder


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    """Return a copy to be damaged."""
    copy = tmp_path / "store"
    shutil.copytree(original, copy)
    return copy


def log_file(folder: Path, number: int) -> Path:
    return folder / "commitlog" / f"{number * FILE_SIZE:020d}"


def flip(path: Path, at: int) -> None:
    with path.open("rb") as file:
        file.seek(at)
        byte = file.read(1)
    overwrite(path, at, bytes([byte[0] ^ 0x55]))


def bodies(folder: Path) -> list[bytes]:
    """Return the bodies that a reader of the store gets, queue by queue, without fillers."""
    with MessageStore.open(folder, "r") as opened:
        return [
            message.body
            for topic in opened.topics()
            for queue_id in opened.queue_ids(topic)
            for message in opened.read(topic, queue_id)
            if "BROKERSTORE" not in message.properties
        ]


def expected_bodies(messages: list[StoredMessage]) -> list[bytes]:
    queue_keys = sorted({(message.topic, message.queue_id) for message in messages})
    return [message.body for queue_key in queue_keys for message in messages if (message.topic, message.queue_id) == queue_key]


def recover(folder: Path, choice: Choice = Choice.SKIP) -> Plan:
    return Recovery(str(folder), choice).apply()


def is_clean(folder: Path) -> bool:
    plan = Recovery(str(folder)).plan()
    return not plan.steps and not plan.findings


def second_record(messages: list[StoredMessage], file: int) -> StoredMessage:
    return [message for message in messages if message.physical_offset // FILE_SIZE == file][1]


FIELDS = {
    "size": 0, "magic": 4, "body_crc": 8, "queue_id": 12, "flag": 16, "queue_offset": 20, "physical_offset": 28, "sys_flag": 36,
    "born_timestamp": 40, "born_host": 48, "store_timestamp": 56, "store_host": 64, "reconsume": 72, "prepared": 76,
    "body_size": 84, "body": 90,
}  # fmt: skip
ONLY_WHOLE_RECORD_CRC = {
    "queue_id", "flag", "queue_offset", "sys_flag", "born_timestamp", "born_host", "store_timestamp", "store_host", "reconsume",
    "prepared",
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_a_flipped_bit_in_any_field_costs_that_record_alone(store: Path, field: str) -> None:
    """The whole-record checksum guards every field; without it, only lengths and the body checksum guard."""
    before = log_records(store)
    victim = second_record(before, 1)
    with MessageStore.open(store, "r") as opened:
        is_guarded = opened.message_at(0) is not None and "__CRC32#" in opened.message_at(0).all_properties  # type: ignore[union-attr]
    if field in ONLY_WHOLE_RECORD_CRC and not is_guarded:
        pytest.skip("nothing in the record covers this field")
    flip(log_file(store, 1), victim.physical_offset % FILE_SIZE + FIELDS[field])
    force = field == "magic" and not is_guarded
    if force:  # nothing shows whether it is damaged or of another version
        with pytest.raises(UnsupportedFormat, match="record magic"):
            recover(store)
    assert Recovery(str(store), force=force).plan().needs_choice
    plan = Recovery(str(store), Choice.SKIP, force=force).apply()
    assert (plan.messages_kept, plan.messages_lost) == (COUNT - 1, 1)
    assert bodies(store) == expected_bodies([message for message in before if message is not victim])
    assert is_clean(store)


@pytest.mark.parametrize("field", ["queue_id", "queue_offset"])
def test_record_with_a_negative_queue_offset_is_the_only_one_lost(store: Path, field: str) -> None:
    """No queue can have the record; every recovery would otherwise end in that error and change nothing."""
    before = log_records(store)
    victim = second_record(before, 4)
    overwrite(log_file(store, 4), victim.physical_offset % FILE_SIZE + FIELDS[field], b"\x80")
    (store / "abort").write_bytes(b"1")
    with pytest.raises(StoreCorrupt, match="brokerstore recover"):
        MessageStore.open(store, config=SMALL)
    plan = recover(store)
    assert (plan.messages_kept, plan.messages_lost) == (COUNT - 1, 1)
    assert bodies(store) == expected_bodies([message for message in before if message is not victim])
    assert is_clean(store)


@pytest.mark.parametrize("position", [0, 1])
def test_zeros_in_a_cleanly_stopped_log_are_not_taken_for_its_end(store: Path, position: int) -> None:
    """A broker leaves no `clean.json`, so the end is searched for, even in a file that begins with a hole.

    Otherwise records behind the hole would be in no queue, and the next puts would overwrite them.
    """
    (store / "brokerstore" / "clean.json").unlink()
    before = log_records(store)
    victim = [message for message in before if message.physical_offset >= 4 * FILE_SIZE][position]
    overwrite(log_file(store, 4), victim.physical_offset % FILE_SIZE, bytes(victim.size))
    files = [contents(store / name) for name in ("commitlog", "consumequeue", "index")]
    with pytest.raises(StoreCorrupt, match="brokerstore recover"):
        MessageStore.open(store, config=SMALL)
    assert [contents(store / name) for name in ("commitlog", "consumequeue", "index")] == files
    plan = recover(store)
    assert (plan.messages_kept, plan.messages_lost) == (COUNT - 1, 1)
    assert bodies(store) == expected_bodies([message for message in before if message is not victim])


def test_queue_offsets_after_a_skipped_record_are_unchanged(store: Path) -> None:
    """A filler takes the place of the lost message, so no consumer's offset shifts."""
    before = log_records(store)
    victim = second_record(before, 1)
    flip(log_file(store, 1), victim.physical_offset % FILE_SIZE + 90)
    recover(store)
    with MessageStore.open(store, "r") as opened:
        for message in before:
            if message is not victim:
                page = opened.get(message.topic, message.queue_id, message.queue_offset, 1)
                assert page.messages[0].body == message.body
        page = opened.get(victim.topic, victim.queue_id, victim.queue_offset, 1)
        assert [one.queue_offset for one in page.messages] == [victim.queue_offset + 1]
        filler = opened.message_at(victim.physical_offset)
        assert filler is not None and filler.is_filler and filler.properties.get("BROKERSTORE") == "filler"


def test_truncating_drops_everything_behind_the_first_bad_record(store: Path) -> None:
    """RocketMQ does the same."""
    before = log_records(store)
    victim = second_record(before, 2)
    flip(log_file(store, 2), victim.physical_offset % FILE_SIZE + 90)
    plan = recover(store, Choice.TRUNCATE)
    kept = [message for message in before if message.physical_offset < victim.physical_offset]
    assert (plan.valid_end, plan.messages_kept, plan.messages_lost) == (
        victim.physical_offset,
        len(kept),
        COUNT - len(kept),
    )
    assert bodies(store) == expected_bodies(kept) and is_clean(store)


def damage_torn_last_record(folder: Path, messages: list[StoredMessage]) -> set[int]:
    last = messages[-1]
    overwrite(
        log_file(folder, last.physical_offset // FILE_SIZE),
        last.physical_offset % FILE_SIZE + last.size // 2,
        bytes(last.size - last.size // 2),
    )
    return {last.physical_offset}


def damage_half_header(folder: Path, messages: list[StoredMessage]) -> set[int]:
    last = messages[-1]
    overwrite(log_file(folder, last.physical_offset // FILE_SIZE), last.physical_offset % FILE_SIZE + 40, bytes(last.size - 40))
    return {last.physical_offset}


def damage_zeros_to_the_end(folder: Path, messages: list[StoredMessage]) -> set[int]:
    last_file = messages[-1].physical_offset // FILE_SIZE
    victims = [message for message in messages if message.physical_offset // FILE_SIZE == last_file][3:]
    start = victims[0].physical_offset % FILE_SIZE
    overwrite(log_file(folder, last_file), start, bytes(FILE_SIZE - start))
    return {message.physical_offset for message in victims}


def damage_blank_at_a_wrong_position(folder: Path, messages: list[StoredMessage]) -> set[int]:
    victim = second_record(messages, 1)
    at = victim.physical_offset % FILE_SIZE
    overwrite(log_file(folder, 1), at, (FILE_SIZE - at - 40).to_bytes(4, "big") + bytes.fromhex("cbd43194"))
    return {victim.physical_offset}


def damage_blank_record(folder: Path, messages: list[StoredMessage]) -> set[int]:
    last = [message for message in messages if message.physical_offset // FILE_SIZE == 1][-1]
    overwrite(log_file(folder, 1), (last.physical_offset + last.size) % FILE_SIZE, b"\x00\x00\x00\x09")
    return set()


def damage_truncated_middle_file(folder: Path, messages: list[StoredMessage]) -> set[int]:
    with log_file(folder, 1).open("r+b") as file:
        file.truncate(30000)
    return {m.physical_offset for m in messages if FILE_SIZE + 30000 < m.physical_offset + m.size <= 2 * FILE_SIZE}


def damage_over_long_file(folder: Path, messages: list[StoredMessage]) -> set[int]:
    with log_file(folder, 1).open("ab") as file:
        file.write(b"strange bytes")
    return set()


def damage_missing_middle_file(folder: Path, messages: list[StoredMessage]) -> set[int]:
    log_file(folder, 1).unlink()
    return {message.physical_offset for message in messages if message.physical_offset // FILE_SIZE == 1}


def damage_missing_first_file(folder: Path, messages: list[StoredMessage]) -> set[int]:
    log_file(folder, 0).unlink()
    return {message.physical_offset for message in messages if message.physical_offset // FILE_SIZE == 0}


def damage_missing_last_file(folder: Path, messages: list[StoredMessage]) -> set[int]:
    last_file = messages[-1].physical_offset // FILE_SIZE
    log_file(folder, last_file).unlink()
    return {message.physical_offset for message in messages if message.physical_offset // FILE_SIZE == last_file}


def damage_empty_last_log_file(folder: Path, messages: list[StoredMessage]) -> set[int]:
    log_file(folder, messages[-1].physical_offset // FILE_SIZE + 1).write_bytes(b"")
    return set()


def damage_stray_file(folder: Path, messages: list[StoredMessage]) -> set[int]:
    (folder / "commitlog" / "notes.txt").write_text("mine")
    return set()


def damage_all_queues_gone(folder: Path, messages: list[StoredMessage]) -> set[int]:
    shutil.rmtree(folder / "consumequeue")
    return set()


def damage_one_queue_gone(folder: Path, messages: list[StoredMessage]) -> set[int]:
    shutil.rmtree(folder / "consumequeue" / "topic-1" / "1")
    return set()


def damage_queue_behind_the_log(folder: Path, messages: list[StoredMessage]) -> set[int]:
    overwrite(sorted((folder / "consumequeue" / "topic-0" / "0").iterdir())[-1], 40, bytes(1960))
    return set()


def damage_queue_ahead_of_the_log(folder: Path, messages: list[StoredMessage]) -> set[int]:
    path = sorted((folder / "consumequeue" / "topic-0" / "0").iterdir())[-1]
    data = path.read_bytes()
    end = len(data.rstrip(b"\0")) // 20 * 20 + 20
    overwrite(path, end, (1 << 40).to_bytes(8, "big") + (200).to_bytes(4, "big") + bytes(8))
    return set()


def damage_damaged_unit(folder: Path, messages: list[StoredMessage]) -> set[int]:
    overwrite(sorted((folder / "consumequeue" / "topic-2" / "0").iterdir())[0], 200, b"\x00\x00\x00\x00\x00\x00\x07\x77")
    return set()


def damage_empty_last_queue_file(folder: Path, messages: list[StoredMessage]) -> set[int]:
    sorted((folder / "consumequeue" / "topic-0" / "0").iterdir())[-1].write_bytes(b"")
    return set()


def damage_index_gone(folder: Path, messages: list[StoredMessage]) -> set[int]:
    shutil.rmtree(folder / "index")
    return set()


def damage_index_item(folder: Path, messages: list[StoredMessage]) -> set[int]:
    overwrite(sorted((folder / "index").iterdir())[0], 40 + 4 * 50 + 20 * 7, b"\x11" * 12)
    return set()


def damage_index_of_zeros(folder: Path, messages: list[StoredMessage]) -> set[int]:
    path = sorted((folder / "index").iterdir())[-1]
    path.write_bytes(bytes(path.stat().st_size))
    return set()


def damage_checkpoint_of_zeros(folder: Path, messages: list[StoredMessage]) -> set[int]:
    (folder / "checkpoint").write_bytes(bytes(4096))
    return set()


def damage_checkpoint_gone(folder: Path, messages: list[StoredMessage]) -> set[int]:
    (folder / "checkpoint").unlink()
    return set()


def damage_checkpoint_of_the_future(folder: Path, messages: list[StoredMessage]) -> set[int]:
    (folder / "checkpoint").write_bytes((CLOCK_START * 2).to_bytes(8, "big") * 3 + bytes(4072))
    return set()


def damage_nothing(folder: Path, messages: list[StoredMessage]) -> set[int]:
    return set()


DAMAGE: list[Callable[[Path, list[StoredMessage]], set[int]]] = [
    value for name, value in sorted(globals().items()) if name.startswith("hurt_")
]


@pytest.mark.deep
@pytest.mark.parametrize("abort", ["clean", "abort", "abort-empty", "abort-zeros"])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__.removeprefix("hurt_"))
def test_recover_keeps_every_undamaged_record(store: Path, damage: Callable[..., set[int]], abort: str) -> None:
    """Only damaged records are lost, with and without the abort file; the second plan is empty."""
    before = log_records(store)
    if abort != "clean":
        (store / "abort").write_bytes({"abort": b"4711", "abort-empty": b"", "abort-zeros": bytes(10)}[abort])
        (store / "brokerstore" / "clean.json").unlink()
    lost = damage(store, before)
    kept = [message for message in before if message.physical_offset not in lost]
    recover(store)
    assert bodies(store) == expected_bodies(kept)
    assert is_clean(store) and not (store / "abort").exists()
    with MessageStore.open(store, "r+") as opened:
        for message in kept[:: len(kept) // 20]:
            assert [found.body for found in opened.query(message.topic, message.keys[0])] == [message.body]
        result = opened.put(Message("topic-0", b"goes on", queue_id=0))
        assert opened.message_at(result.physical_offset).body == b"goes on"  # type: ignore[union-attr]


def test_damage_before_the_safe_time_is_never_truncated_without_a_choice(store: Path) -> None:
    """Opening for writing refuses and changes nothing; neither do a dry run and a missing choice."""
    messages = log_records(store)
    number = messages[-1].physical_offset // FILE_SIZE
    victim = second_record(messages, number)
    (store / "abort").touch()
    (store / "brokerstore" / "clean.json").unlink()
    flip(log_file(store, number), victim.physical_offset % FILE_SIZE + 90)
    before = contents(store)
    with pytest.raises(StoreCorrupt):
        MessageStore.open(store, "r+")
    assert Recovery(str(store)).plan().needs_choice
    assert recover(store, Choice.REFUSE).needs_choice
    assert before.items() <= contents(store).items()


def test_recover_is_refused_while_a_writer_is_open(store: Path) -> None:
    """A store with a writer is refused and unchanged."""
    with MessageStore.open(store, "r+"), pytest.raises(StoreLocked):
        recover(store)


def test_cut_bytes_are_kept_beside_the_store(store: Path) -> None:
    """Zeroed bytes can be inspected later."""
    messages = log_records(store)
    last = messages[-1]
    whole = log_file(store, last.physical_offset // FILE_SIZE).read_bytes()
    damage_half_header(store, messages)
    recover(store, Choice.TRUNCATE)
    kept = next((store / "brokerstore").glob("cut-*")).read_bytes()
    assert whole.find(kept) == last.physical_offset % FILE_SIZE


def test_recover_clamps_consumer_offsets_beyond_the_log(store: Path) -> None:
    """An offset beyond its queue's end would silently skip the next messages."""
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"topic-0@group":{0:5,1:999999}}}')
    (store / "abort").touch()
    plan = recover(store)
    assert (
        any("back to" in text for text in (*(step.reason for step in plan.steps), *plan.outcomes))
        or "1:999999" not in (store / "config" / "consumerOffset.json").read_text()
    )
    with MessageStore.open(store, "r") as opened:
        end = opened.max_offset("topic-0", 1)
    assert f"1:{end}" in (store / "config" / "consumerOffset.json").read_text()
    assert "0:5" in (store / "config" / "consumerOffset.json").read_text()


@pytest.mark.deep
def test_recovery_killed_at_any_call_reaches_the_same_bytes_when_run_again(original: Path, tmp_path: Path) -> None:
    """Every call of the disk fails once; a complete run afterwards gives what an undisturbed one gives."""

    def prepare(name: str) -> Path:
        copy = tmp_path / name
        shutil.copytree(original, copy)
        messages = log_records(copy)
        flip(log_file(copy, 1), second_record(messages, 1).physical_offset % FILE_SIZE + 90)
        damage_half_header(copy, messages)
        shutil.rmtree(copy / "consumequeue" / "topic-1")
        return copy

    def content(folder: Path) -> dict[str, Any]:
        parts = [
            path for part in ("commitlog", "consumequeue") for path in sorted((folder / part).rglob("*")) if path.is_file()
        ]
        return {str(path.relative_to(folder)): path.read_bytes() for path in parts}

    undisturbed = prepare("undisturbed")
    recover(undisturbed)
    expected = content(undisturbed)
    counting = FailingDisk(1 << 30)
    Recovery(str(prepare("counted")), Choice.SKIP, disk=counting).apply()
    calls = len(counting.calls)
    assert calls > 100
    for number in range(1, calls, max(1, calls // 60)):
        folder = prepare(f"killed-{number}")
        disk = FailingDisk(number, for_ever=True)
        with pytest.raises(StoreError):
            Recovery(str(folder), Choice.SKIP, disk=disk).apply()
        recover(folder)
        assert content(folder) == expected, f"killed at {disk.calls[number - 1]}"
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["crash-torn", "crash-lost-cq"])
def test_recover_of_a_crashed_real_store_restores_every_message(fixture_store: Any, name: str) -> None:
    """The messages are at least those that the real store recovers, with every unit and key of them."""
    fixture = fixture_store(name, own=True)
    expected = fixture.expected("before.json" if name == "crash-lost-cq" else "recovered.json")
    recover(fixture.store)
    assert [message.physical_offset for message in log_records(fixture.store)] == [
        one["physicalOffset"] for one in expected["messages"]
    ]
    with MessageStore.open(fixture.store, "r") as opened:
        for queue in expected["queues"]:
            found = opened.engine.queues.get(queue["topic"], queue["queueId"])
            assert found is not None
            assert [list(unit) for _, unit in found.units()] == queue["cq"]
        whole = {one["physicalOffset"] for one in expected["messages"]}
        for query in fixture.expected("before.json")["queries"]:
            if query["begin"] == 0 and query["end"] > 1 << 60:
                requested = sorted(offset for offset in query["phyOffsets"] if offset in whole)
                answer = opened.query(query["topic"], query["key"], max_count=query["maxNum"])
                assert [message.physical_offset for message in answer] == requested


@pytest.mark.parametrize("way", ["open", "recover"])
def test_a_topic_that_only_its_queues_name_is_not_taken_for_a_deleted_one(store: Path, way: str) -> None:
    """A store without a broker writes queues and no table; a broker that deletes a topic deletes its queues too."""
    (store / "config" / "topics.json").unlink()
    with MessageStore.open(store, "r+", SMALL.but(message_index_enable=False)) as opened:
        opened.create_topic("named")
    topics = Topics(REAL_DISK, str(store / "config"))
    for name in ("topic-0", "topic-1", "topic-2"):
        topics.delete(name)
    topics.persist()
    shutil.rmtree(store / "consumequeue" / "topic-1")
    before = log_records(store)
    (store / "abort").touch()
    (store / "brokerstore" / "clean.json").unlink(missing_ok=True)
    damage_queue_behind_the_log(store, before)
    if way == "recover":
        recover(store)
    else:
        MessageStore.open(store, "r+").close()
    assert bodies(store) == expected_bodies([message for message in before if message.topic != "topic-1"])
    assert is_clean(store)


@pytest.mark.parametrize("size", [0, None], ids=["empty", "zeros"])
@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/BatchTopic/0"])
def test_every_file_that_a_recovery_deletes_is_in_a_step(fixture_store: Any, folder: str, size: int | None) -> None:
    """The step names the file, or the kind of files that it makes anew."""
    store = fixture_store("crash-torn", own=True).store
    last = max((store / folder).iterdir())
    file_size = last.stat().st_size
    last.with_name(f"{int(last.name) + file_size:020d}").write_bytes(bytes(file_size if size is None else size))
    before = {path for path in store.rglob("*") if path.is_file()}
    plan = Recovery(str(store)).plan()
    Recovery(str(store)).apply()
    deleted = [path for path in before if not path.exists() and path.name != "abort"]
    assert last.with_name(f"{int(last.name) + file_size:020d}") in deleted
    assert all(any(path.name in step.reason for step in plan.steps) for path in deleted)
