"""Delayed messages: how they wait, when they are delivered, and that each is delivered once after any kill."""

from __future__ import annotations

import shutil
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from storageio import DiskFull, InvalidMessage, PutRejected
from tests.helpers import until
from tests.messagestore.kit import LOG_SIZE, Clock, SwitchDisk, crash_copy, delivered_numbers, open_idle, open_small, read_all
from tests.messagestore.support import put_internally
from tests.messagestore.writers import Writer, log_files

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def put_delayed(world: Any, store: Any, number: int, level: int, **fields: Any) -> Any:
    message = world.commitlog.Message(
        "T", b"%d" % number, queue_id=number % 2, keys=[f"k{number}"], tags="paid", properties={"DELAY": str(level)}, **fields
    )
    return store.put(message)


def deliver(store: Any) -> None:
    """Deliver now, as the housekeeper does."""
    store.engine.settle()
    with store.engine.housekeeper.guard:
        store.engine.delays.deliver_due()
    store.engine.settle()


@pytest.mark.parametrize("level", [1, 2, 6, 18, 19, 1000])
def test_a_delayed_message_waits_as_a_real_broker_has_it(world: Any, tmp_path: Path, level: int) -> None:
    """Topic, queue, properties and due time are those of fixture broker-ext; a level above the last becomes the last."""
    clock = Clock()
    real = min(level, 18)
    with open_idle(world, tmp_path / "s", clock) as store:
        result = put_delayed(world, store, 7, level)
        store.engine.settle()
        stored = store.message_at(result.physical_offset)
        assert (stored.topic, stored.queue_id) == (SCHEDULE, real - 1)
        expected = {"DELAY": str(real), "REAL_TOPIC": "T", "REAL_QID": "1", "KEYS": "k7", "TAGS": "paid"}
        assert stored.properties == expected
        unit = store.engine.queues.get(SCHEDULE, real - 1).unit(0)
        assert unit.tags_code == clock.now_ms + 1000 * LEVELS_S[real - 1]
        assert delivered_numbers(store) == []
        assert store.engine.topics.get(SCHEDULE).write_queues == 18


def test_a_message_comes_when_it_is_due_and_not_before(world: Any, tmp_path: Path) -> None:
    """Nothing is delivered one millisecond early; on time everything is delivered once."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        for level in range(1, 19):
            put_delayed(world, store, level, level)
        for level, seconds in enumerate(LEVELS_S, 1):
            clock.now_ms = 1_700_000_000_000 + 1000 * seconds - 1
            deliver(store)
            assert delivered_numbers(store) == list(range(1, level))
            clock.now_ms += 1
            for _ in range(2):
                deliver(store)
                assert delivered_numbers(store) == list(range(1, level + 1))


def test_a_delivered_message_is_a_real_brokers(world: Any, tmp_path: Path) -> None:
    """Properties are kept, the tags code is that of its tags, born time and retries stay, and the store time is new."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        put_delayed(world, store, 7, 1, born_timestamp_ms=77, born_host="1.2.3.4:5", reconsume_times=2, flag=9)
        clock.now_ms += 1000
        deliver(store)
        (found,) = store.read("T", 1)
        assert found.properties == {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "1", "KEYS": "k7", "TAGS": "paid"}
        assert (found.born_timestamp_ms, found.born_host, found.reconsume_times, found.flag) == (77, "1.2.3.4:5", 2, 9)
        assert found.store_timestamp_ms == clock.now_ms
        assert store.engine.queues.get("T", 1).unit(0).tags_code == 3433164  # Java's hash of "paid"
        assert [message.body for message in store.query("T", "k7")] == [b"7"]
        assert [message.body for message in store.get("T", 1, 0, tags={"paid"}).messages] == [b"7"]


def test_the_housekeeper_delivers_by_itself(world: Any, tmp_path: Path) -> None:
    """A delay of one second takes a second of the real clock."""
    with open_small(world, tmp_path / "s") as store:
        began = time.monotonic()
        put_delayed(world, store, 0, 1)
        until(lambda: delivered_numbers(store) == [0])
        assert time.monotonic() - began >= 0.95


def test_due_time_beyond_its_level_is_treated_as_now(world: Any, tmp_path: Path) -> None:
    """If a clock was set back, a message that waits longer than its level is due now, as in the broker."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        put_delayed(world, store, 0, 3)
        clock.now_ms -= 3600_000
        deliver(store)
        assert delivered_numbers(store) == [0]


def test_delayed_message_is_delivered_after_a_restart(world: Any, tmp_path: Path) -> None:
    """The progress is in delayOffset.json, by level, as the broker writes it."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        for number in range(6):
            put_delayed(world, store, number, 1 if number < 4 else 2)
        clock.now_ms += 1000
        deliver(store)
        assert delivered_numbers(store) == [0, 1, 2, 3]
    text = (tmp_path / "s" / "config" / "delayOffset.json").read_text()
    assert '"offsetTable":{1:4' in text
    clock.now_ms += 4000
    with open_idle(world, tmp_path / "s", clock) as store:
        deliver(store)
        assert delivered_numbers(store) == list(range(6))


@pytest.mark.parametrize("persisted", [0, 3, 7])
def test_killed_after_a_delivery_and_before_the_offset_was_written(world: Any, tmp_path: Path, persisted: int) -> None:
    """The log shows the deliveries: none is repeated or skipped, even among equal messages."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        for number in range(10):
            put_delayed(world, store, number if number < 8 else 0, 1, born_timestamp_ms=5)  # the last ones equal the first
            clock.now_ms += 100
        for moment in range(10):
            clock.now_ms = 1_700_000_001_000 + 100 * moment
            deliver(store)
            if moment == persisted:
                store.engine.delays.persist()
            copy = crash_copy(tmp_path / "s", tmp_path / f"killed-{moment}")
            with open_idle(world, copy, clock) as again:
                before = delivered_numbers(again)
                deliver(again)
                assert delivered_numbers(again) == before, moment
                clock.now_ms += 5000
                deliver(again)
                assert delivered_numbers(again) == sorted([*range(8), 0, 0])
                clock.now_ms -= 5000
            shutil.rmtree(copy)


def test_outdated_delay_hint_causes_no_second_delivery(world: Any, tmp_path: Path) -> None:
    """A real broker worked on the folder and wrote delayOffset.json but not our hint, so the log decides."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        for number in range(6):
            put_delayed(world, store, number, 1)
        clock.now_ms += 1000
        deliver(store)
    note = tmp_path / "s" / "brokerstore" / "delays.json"
    for text in ('{"position": 0, "offsets": {}}', '{"position": 99999999, "offsets": {"1": 0}}', "{", '{"position": []}'):
        copy = crash_copy(tmp_path / "s", tmp_path / "other")
        (copy / "brokerstore" / note.name).write_text(text)
        (copy / "abort").touch()
        with open_idle(world, copy, clock) as store:
            deliver(store)
            assert delivered_numbers(store) == list(range(6)), text
        shutil.rmtree(copy)


KILLED = """
with open_store(root, enabled_append_prop_crc=True, flush_delay_offset_interval_ms=50) as store:
    said("open")
    number = int(told())
    while True:
        store.put(Message("T", b"%d" % number, queue_id=0, properties={"DELAY": "1", "n": str(number)}))
        number += 1
        if number % 20 == 0:
            said(number)
            time.sleep(0.01)
"""


@pytest.mark.deep
def test_repeated_kills_during_delivery_lose_no_message(tmp_path: Path) -> None:
    """After SIGKILL at any time and another open, every acknowledged message is delivered once."""
    from messagestore import MessageStore

    number = 0
    for _ in range(3):
        with Writer(tmp_path / "s", KILLED) as writer:
            assert writer.hear() == "open"
            writer.tell(str(number))
            began = time.monotonic()
            while time.monotonic() - began < 1.3:
                number = int(writer.hear())
            number += 1000  # so that unacknowledged messages keep their own numbers
    with MessageStore.open(tmp_path / "s", "r+") as store:
        waiting = sorted(int(message.body) for message in read_all(store, SCHEDULE, 0))
        assert len(waiting) > 100
        assert len(set(waiting)) == len(waiting)
        until(lambda: store.max_offset("T", 0) >= len(waiting))
        assert sorted(int(message.body) for message in store.read("T", 0)) == waiting
    assert log_files(tmp_path / "s")


def test_what_is_no_level_is_refused(world: Any, tmp_path: Path) -> None:
    """Text in place of a number would stop a broker; 0 and less is no delay; a batch takes none."""
    with open_idle(world, tmp_path / "s") as store:
        for text in ("soon", "1.5", " 1", "99999999999"):
            with pytest.raises(InvalidMessage):
                store.put(world.commitlog.Message("T", b"x", properties={"DELAY": text}))
        for text in ("0", "-1"):
            result = store.put(world.commitlog.Message("T", b"x", queue_id=0, properties={"DELAY": text}))
            assert store.message_at(result.physical_offset).topic == "T"
        delayed = world.commitlog.Message("T", b"x", properties={"DELAY": "1"})
        with pytest.raises(PutRejected) as error:
            store.put_batch("T", 0, [delayed])
        assert error.value.status == world.commitlog.PutStatus.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    "fields",
    [
        {"sys_flag": 0x80},
        {"properties": {"INNER_NUM": "3"}},
        {"sys_flag": 0x80, "properties": {"INNER_NUM": "3"}},
        {"queue_id": 65536},
        {"properties": {"INNER_MULTI_DISPATCH": "no light queue"}},
    ],
)
def test_undeliverable_delayed_message_is_rejected_by_put(world: Any, tmp_path: Path, fields: dict[str, Any]) -> None:
    """Otherwise it would be acknowledged and then skipped when it is due."""
    fields = {"queue_id": 0, **fields, "properties": {"DELAY": "1", **fields.get("properties", {})}}
    with open_idle(world, tmp_path / "s", enable_lmq=True) as store:
        with pytest.raises((PutRejected, InvalidMessage)):
            store.put(world.commitlog.Message("T", b"x", **fields))
        with pytest.raises((PutRejected, InvalidMessage)):
            store.put_many([world.commitlog.Message("T", b"y", queue_id=0), world.commitlog.Message("T", b"x", **fields)])
        assert SCHEDULE not in store.topics()
        assert store.log_end == 0


def test_many_at_once_delayed_and_not(world: Any, tmp_path: Path) -> None:
    """`put_many` and `put_async` put each message to its right place."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        messages = [
            world.commitlog.Message("T", b"%d" % number, queue_id=0, properties={"DELAY": "1"} if number % 2 else {"a": "b"})
            for number in range(10)
        ]
        assert store.put_many(messages).message_count == 10
        store.put_async(world.commitlog.Message("T", b"11", queue_id=0, properties={"DELAY": "1"})).result(10)
        assert delivered_numbers(store) == [0, 2, 4, 6, 8]
        clock.now_ms += 1000
        deliver(store)
        assert delivered_numbers(store) == [*range(10), 11]


def test_prepared_and_rolled_back_records_of_old_logs_are_not_delayed(world: Any, tmp_path: Path) -> None:
    """Only records without a transaction, or committed ones, are delayed."""
    with open_idle(world, tmp_path / "s") as store:
        for flag, topic in ((0x4, "T"), (0xC, "T"), (0x8, SCHEDULE), (0, SCHEDULE)):
            result = store.put(world.commitlog.Message("T", b"x", queue_id=0, sys_flag=flag, properties={"DELAY": "1"}))
            assert store.message_at(result.physical_offset).topic == topic


def test_damaged_progress_file_causes_no_second_delivery(world: Any, tmp_path: Path) -> None:
    """Without a backup the log shows the deliveries; with a broken backup nothing is delivered, and nothing is lost."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        put_delayed(world, store, 0, 1)
        clock.now_ms += 1000
        deliver(store)
        put_delayed(world, store, 1, 1)
    path = tmp_path / "s" / "config" / "delayOffset.json"
    path.write_text("{")
    clock.now_ms += 1000
    backup = path.with_name(path.name + ".bak")
    backup.write_text("{")
    with open_idle(world, tmp_path / "s", clock) as store:
        deliver(store)
        assert delivered_numbers(store) == [0]
    backup.unlink()
    with open_idle(world, tmp_path / "s", clock) as store:
        deliver(store)
        assert delivered_numbers(store) == [0, 1]


def test_undeliverable_delayed_message_does_not_block_later_ones(world: Any, tmp_path: Path) -> None:
    """Messages without a topic or queue, or with an impossible topic, are logged and skipped."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        for topic, queue in (
            (None, "0"),
            ("a/b", "0"),
            ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "0"),
            ("x" * 300, "0"),
            ("T", "-1"),
            ("T", "9999999"),
            ("T", "many"),
            ("T", None),
        ):
            pairs = {"DELAY": "1", "REAL_TOPIC": topic, "REAL_QID": queue}
            properties = {name: value for name, value in pairs.items() if value is not None}
            put_internally(store, world.commitlog.Message(SCHEDULE, b"x", queue_id=0, properties=properties))
        put_delayed(world, store, 7, 1)
        clock.now_ms += 1000
        deliver(store)
        assert delivered_numbers(store) == [7]
        assert store.engine.dispatcher.failure is None


def test_a_full_disk_holds_deliveries_back_and_loses_none(world: Any, tmp_path: Path) -> None:
    """While puts are refused nothing is delivered or counted as delivered."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        for number in range(4):
            put_delayed(world, store, number, 1)
        clock.now_ms += 1000
        flag = world.module("messagestore.write.running_flags").Flag.DISK_FULL
        store.engine.settle()
        store.engine.flags.set(flag, "the test says so")
        store.engine.delays.deliver_due()
        store.engine.flags.clear(flag)
        assert delivered_numbers(store) == []
        deliver(store)
        assert delivered_numbers(store) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["broker-live", "broker-ext"])
def test_a_real_brokers_pending_messages_are_delivered_by_us(world: Any, fixture_store: Any, name: str) -> None:
    """Levels 6, 12 and 18 were pending when the broker stopped; levels 1 to 3 were delivered and are not repeated."""
    fixture = fixture_store(name, own=True)
    pending = [
        message
        for message in fixture.expected()["messages"]
        if message["topic"] == SCHEDULE and message["properties"]["DELAY"] in ("6", "12", "18")
    ]
    before = [message for message in fixture.expected()["messages"] if message["topic"] == "LiveDelay"]
    with open_idle(world, fixture.store, Clock(2_000_000_000_000)) as store:
        deliver(store)
        found = list(store.read("LiveDelay", 0))
        assert len(found) == len(before) + len(pending)
        assert sorted(message.all_properties["UNIQ_KEY"] for message in found[len(before) :]) == sorted(
            message["properties"]["UNIQ_KEY"] for message in pending
        )
    (fixture.store / "abort").touch()
    with open_idle(world, fixture.store, Clock(2_000_000_000_000)) as store:
        deliver(store)
        assert len(list(store.read("LiveDelay", 0))) == len(found)


def test_delay_of_a_message_with_an_extended_unit_counts_from_its_store_time(world: Any, tmp_path: Path) -> None:
    """Its queue unit has an address in place of the time; like a broker, the store counts from the store time."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock, enable_consume_queue_ext=True) as store:
        put_delayed(world, store, 7, 2)
        store.engine.settle()
        unit = store.engine.queues.get(SCHEDULE, 1).unit(0)
        assert world.consumequeue.is_ext_address(unit.tags_code)
        clock.now_ms += 4999
        deliver(store)
        assert delivered_numbers(store) == []
        clock.now_ms += 1
        deliver(store)
        assert delivered_numbers(store) == [7]


def test_delivery_on_a_full_disk_is_repeated_after_space_is_freed(world: Any, tmp_path: Path) -> None:
    """The disk became full during the delivery: the message is delivered once, after there is space."""
    clock, disk = Clock(), SwitchDisk()
    with open_idle(world, tmp_path / "s", clock, disk=disk) as store:
        for number in range(3):
            put_delayed(world, store, number, 1)
        while store.log_end < LOG_SIZE - 1200:
            store.put(world.commitlog.Message("fill", bytes(900), queue_id=0))
        store.put(world.commitlog.Message("fill", bytes(LOG_SIZE - store.log_end - 300), queue_id=0))
        clock.now_ms += 1000
        disk.refuse = lambda operation, path: (
            DiskFull(operation, path, 28, "No space left") if operation == "allocate" and "commitlog" in path else None
        )
        with pytest.raises(PutRejected):
            deliver(store)
        assert delivered_numbers(store) == [0]
        disk.refuse = lambda _operation, _path: None
        deliver(store)
        assert delivered_numbers(store) == [0, 1, 2]


def test_deliveries_that_are_not_on_the_disk_are_not_counted(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the file would skip messages whose deliveries the log lost in a crash of the machine."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        put_delayed(world, store, 7, 1)
        clock.now_ms += 1000
        deliver(store)
        path, delays = tmp_path / "s" / "config" / "delayOffset.json", store.engine.delays
        with monkeypatch.context() as patched:
            patched.setattr(store.engine.flusher, "flush_now", lambda: store.log_end - 1)
            delays.persist()
        assert not path.exists() and not (tmp_path / "s" / "brokerstore" / "delays.json").exists()
        delays.persist()
        assert '"offsetTable":{1:1' in path.read_text()


RAW = b"DELAY\x011\x02a\x01b\x02"


@pytest.mark.parametrize("way", ["put", "put_many", "put_async", "first"])
def test_a_delay_in_raw_properties_is_obeyed(world: Any, tmp_path: Path, way: str) -> None:
    """`properties_raw` has the same meaning as `properties`; also for the first message of a topic."""
    clock = Clock()
    raw = world.commitlog.Message("T", b"7", queue_id=0, properties_raw=RAW)
    with open_idle(world, tmp_path / "s", clock) as store:
        if way != "first":
            store.create_topic("T")
        {"put_many": lambda: store.put_many([raw]), "put_async": lambda: store.put_async(raw).result()}.get(
            way, lambda: store.put(raw)
        )()
        deliver(store)
        assert delivered_numbers(store) == []
        clock.now_ms += 1000
        deliver(store)
        assert delivered_numbers(store) == [7]
        assert next(store.read("T", 0)).properties == {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "0", "a": "b"}


def test_raw_properties_of_a_batch_or_of_columns_have_no_delay(world: Any, tmp_path: Path) -> None:
    """They are refused, as a delay in `properties` is; nothing is written."""
    with open_idle(world, tmp_path / "s") as store:
        batch = [world.commitlog.Message("T", b"7", queue_id=0, properties_raw=RAW)]
        assert store.put_batch("T", 0, batch, check=False).status.name == "MESSAGE_ILLEGAL"
        member = (b"x", RAW)
        data = struct.pack(f">iiiii{len(member[0])}sh{len(RAW)}s", 23 + len(RAW), 0, 0, 0, 1, member[0], len(RAW), RAW)
        assert store.put_wire_batch("T", 0, data, check=False).status.name == "MESSAGE_ILLEGAL"
        with pytest.raises(InvalidMessage, match="no delay"):
            store.append_columns("T", 0, [b"7"], properties=RAW)
        assert store.log_end == 0
