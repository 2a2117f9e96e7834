"""What a broker service refuses, or a full disk interrupts: offsets never advance for messages not in the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storageio import DiskError, DiskFull, InvalidMessage, PutRejected, StoreCorrupt
from tests.helpers import until
from tests.messagestore.kit import LOG_SIZE, Clock, SwitchDisk, open_small, put_numbers, read_all, record_bytes

NAMES, DELAY = "INNER_MULTI_DISPATCH", "DELAY"


class NoNextFile(SwitchDisk):
    """A disk on which no second log file can be created while `is_full` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = True
        self.refuse = lambda operation, path: (
            DiskFull(operation, path, 28, "No space left on device")
            if self.is_full and operation in ("create", "allocate") and f"{LOG_SIZE:020d}" in path
            else None
        )


def filled(world: Any, folder: Path, disk: Any, **changes: Any) -> Any:
    """Return a store whose first log file has space for few more messages."""
    store = open_small(world, folder, disk=disk, clock=Clock(), **changes)
    while store.engine.log.written_offset < LOG_SIZE - 5000:
        store.put(world.commitlog.Message("fill", b"x" * 900, queue_id=0))
    return store


def test_partial_put_many_of_delayed_messages_reports_the_written_count(world: Any, tmp_path: Path) -> None:
    """The rest can be put again when there is space; each is delivered once."""
    disk = NoNextFile()
    messages = [world.commitlog.Message("T", b"%d" % number * 400, queue_id=0, properties={DELAY: "1"}) for number in range(9)]
    with filled(world, tmp_path / "s", disk, message_delay_level="1s", deliver_delayed=False) as store:
        result = store.put_many(messages, check=False)
        count = result.message_count
        assert result.status is world.commitlog.PutStatus.CREATE_MAPPED_FILE_FAILED and 0 < count < 9
        none = store.put_many(messages[count:], check=False)
        assert none.status is world.commitlog.PutStatus.CREATE_MAPPED_FILE_FAILED and none.message_count == 0
        disk.is_full = False
        assert store.put_many(messages[count:], check=False).message_count == 9 - count
        waiting = [message.body for message in store.read("SCHEDULE_TOPIC_XXXX", 0)]
        assert waiting == [message.body for message in messages]


def test_lmq_offsets_have_no_gap_after_a_full_disk(world: Any, tmp_path: Path) -> None:
    """A failed put takes no number and adds no new queue, and the next one follows."""
    disk = NoNextFile()

    def put(number: int) -> Any:
        properties = {NAMES: f"%LMQ%a,%LMQ%{number}"}
        body = b"%d" % number * 1800
        return store.put(world.commitlog.Message("T", body, queue_id=0, properties=properties), check=False).status.name

    with filled(world, tmp_path / "s", disk, enable_lmq=True) as store:
        found = [put(number) for number in range(5)]
        assert found[0] == "PUT_OK" and found[-1] == "CREATE_MAPPED_FILE_FAILED"
        written = found.count("PUT_OK")
        disk.is_full = False
        assert put(7) == "PUT_OK"
        bodies = [message.body[:1] for message in store.read("%LMQ%a", 0)]
        assert bodies == [b"%d" % number for number in range(written)] + [b"7"]
        numbers = [message.all_properties["INNER_MULTI_QUEUE_OFFSET"].split(",")[0] for message in store.read("%LMQ%a", 0)]
        assert numbers == [str(number) for number in range(written + 1)]


def test_message_too_long_with_its_lmq_offsets_is_rejected(world: Any, tmp_path: Path) -> None:
    """Its body alone would fit; nothing is written and no number is taken."""
    with open_small(world, tmp_path / "s", enable_lmq=True, max_message_size=2000) as store:
        message = world.commitlog.Message("T", bytes(1950), queue_id=0, properties={NAMES: "%LMQ%a"})
        end = store.engine.log.written_offset
        assert store.put(message, check=False).status is world.commitlog.PutStatus.MESSAGE_ILLEGAL
        assert store.engine.log.written_offset == end
        small = world.commitlog.Message("T", b"x", queue_id=0, properties={NAMES: "%LMQ%a"})
        offset = store.put(small).physical_offset
        assert store.message_at(offset).all_properties["INNER_MULTI_QUEUE_OFFSET"] == "0"


def test_log_bytes_are_given_from_inside_the_log_alone(world: Any, tmp_path: Path) -> None:
    """An offset before or behind the log is the slave's mistake and raises an error."""
    with open_small(world, tmp_path / "m") as master:
        put_numbers(world, master, range(10))
        for offset in (-1, master.log_end + 1, 1 << 40):
            with pytest.raises(InvalidMessage, match="the log has 0 to"):
                master.read_log_bytes(offset, 1000)
        assert master.read_log_bytes(master.log_end, 1000) == b""


def test_log_bytes_end_before_damage_and_are_refused_from_it(world: Any, tmp_path: Path) -> None:
    """A slave gets only whole records."""
    with open_small(world, tmp_path / "m") as master:
        results = put_numbers(world, master, range(10), size=200)
    victim = results[6].physical_offset
    path = min((tmp_path / "m" / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[victim + 4] ^= 0xFF
    path.write_bytes(data)
    with open_small(world, tmp_path / "m", "r") as master:
        assert master.read_log_bytes(0, 1 << 20) == bytes(data[:victim])
        with pytest.raises(StoreCorrupt):
            master.read_log_bytes(victim, 1 << 20)


def test_members_on_the_wire_get_the_batchs_properties_behind_their_own(world: Any, tmp_path: Path) -> None:
    """This also holds if a client omits the end mark of its last property; each record has both."""
    own = b"KEYS\x01k7"
    body = b"body"
    size = 22 + len(body) + len(own)
    head = size.to_bytes(4, "big") + bytes(12) + len(body).to_bytes(4, "big")
    data = head + body + len(own).to_bytes(2, "big") + own
    with open_small(world, tmp_path / "s") as store:
        offset = store.put_wire_batch("T", 0, data, properties=b"a\x01b\x02").physical_offset
        found = store.message_at(offset)
        assert (found.body, found.all_properties["KEYS"], found.all_properties["a"]) == (body, "k7", "b")


def test_wire_batch_with_too_many_members_is_rejected(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members have 22 bytes: a few megabytes would become a hundred thousand objects."""
    wire = world.module("messagestore.broker.services.wire_batch")
    monkeypatch.setattr(wire, "MEMBERS_MAX", 5)
    member = (22).to_bytes(4, "big") + bytes(18)
    with open_small(world, tmp_path / "s") as store:
        with pytest.raises(InvalidMessage, match="more than 5"):
            store.put_wire_batch("T", 0, member * 6)
        with pytest.raises(InvalidMessage, match="no messages"):
            store.put_wire_batch("T", 0, b"")
        assert store.engine.log.written_offset == 0


@pytest.mark.parametrize("stretch", [50, 700])
def test_records_longer_than_a_dispatch_range_are_dispatched(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretch: int
) -> None:
    """A reader waits for one range at most; a record may be longer than that."""
    monkeypatch.setattr(world.module("messagestore.derive.walk"), "BATCH_SIZE_BYTES", stretch)
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(30), size=20)
        put_numbers(world, store, range(30, 60), size=3000, keys=["k"])
        assert [int(message.body[:8]) for message in read_all(store, "T")] == list(range(60))
        assert len(store.query("T", "k", max_count=64)) == 30


def test_a_master_takes_no_log_bytes_and_a_slave_that_cannot_write_none_either(world: Any, tmp_path: Path) -> None:
    """The error is specific, and nothing is written."""
    role = world.messagestore.Role.SLAVE
    with open_small(world, tmp_path / "m") as master, open_small(world, tmp_path / "s", broker_role=role) as slave:
        put_numbers(world, master, range(3))
        data = master.read_log_bytes(0, 1 << 20)
        with pytest.raises(PutRejected, match="only a slave"):
            master.append_data(master.log_end, data)
        flag = world.module("messagestore.write.running_flags").Flag
        slave.engine.flags.set(flag.NOT_WRITEABLE, "a test says so")
        with pytest.raises(PutRejected, match="a test says so"):
            slave.append_data(0, data)
        assert slave.log_end == 0


def test_batch_record_rejected_on_a_full_disk_consumes_no_queue_offsets(world: Any, tmp_path: Path) -> None:
    """The next one follows the last record in the log."""
    disk = NoNextFile()

    def put(size: int) -> Any:
        message = world.commitlog.Message("B", bytes(size), queue_id=0, sys_flag=0x80, properties={"INNER_NUM": "7"})
        return store.put(message, check=False)

    with filled(world, tmp_path / "s", disk) as store:
        store.create_topic("B", 1, attributes={"queue.type": "BatchCQ"})
        assert put(10).queue_offset == 0
        assert put(9000).status is world.commitlog.PutStatus.CREATE_MAPPED_FILE_FAILED
        disk.is_full = False
        assert put(9000).queue_offset == 7


@pytest.mark.parametrize("name", ["INNER_NUM", "INNER_MULTI_DISPATCH"])
def test_property_value_equal_to_a_broker_property_name_is_ignored(world: Any, tmp_path: Path, name: str) -> None:
    """The name is in the record's bytes but no property has it: the message is ordinary."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock, enable_lmq=True, deliver_delayed=False) as store:
        store.put(world.commitlog.Message("T", b"x", queue_id=0, properties={"said": name, DELAY: "1"}))
        store.engine.settle()
        clock.now_ms += 1000
        store.engine.delays.deliver_due()
        (found,) = read_all(store, "T")
        assert (found.body, found.all_properties["said"]) == (b"x", name)


def test_under_synchronous_flush_a_message_is_sent_back_when_it_is_on_the_disk(world: Any, tmp_path: Path) -> None:
    """A failed sync raises; otherwise the acknowledged message would be lost with the machine."""
    disk = SwitchDisk()
    mode = world.messagestore.FlushMode.SYNC
    store = open_small(world, tmp_path / "s", disk=disk, flush_disk_type=mode, deliver_delayed=False)
    put_numbers(world, store, range(2))
    with store.consumer("T", group="G") as consumer:
        late, dead = consumer.poll()
        assert consumer.nack(late) is not None
        disk.refuse = lambda operation, path: (
            DiskError(operation, path, 5, "Input/output error") if operation == "sync" and "commitlog" in path else None
        )
        with pytest.raises(DiskError):
            consumer.nack(dead, delay_level=-1)
        disk.refuse = lambda _operation, _path: None
    store.close()
    with open_small(world, tmp_path / "s", deliver_delayed=False) as store, store.consumer("T", group="G") as consumer:
        assert 1 in [int(message.body[:8]) for message in consumer.poll()]


def test_a_record_without_a_topic_is_not_sent_back(world: Any, tmp_path: Path) -> None:
    """No broker writes one; a retry of it would have no origin."""
    data = memoryview(record_bytes(0, b"x", topic=b""))
    (message,) = world.module("commitlog._scan_cy").Reader(data, 0).decode_range(0, len(data), 1, 0)[0]
    with open_small(world, tmp_path / "s") as store:
        with pytest.raises(InvalidMessage, match="without a topic"):
            store.engine.retries.send_back(message, "G")
        assert store.log_end == 0


def test_puts_are_refused_while_the_consumequeue_disk_is_full(world: Any, tmp_path: Path) -> None:
    """The dispatcher retries the same range and then clears the flag that refused puts; no open is needed."""
    disk = SwitchDisk()
    full = DiskFull("write", "consumequeue", 28, "No space left on device")
    disk.refuse = lambda operation, path: full if operation == "write" and "/consumequeue/" in path else None
    with open_small(world, tmp_path / "s", disk=disk, clock=Clock()) as store:
        put_numbers(world, store, range(1))
        until(lambda: not store.engine.flags.accepts_puts)
        with pytest.raises(PutRejected, match="LOGIC_DISK_FULL"):
            put_numbers(world, store, range(1, 2))
        disk.refuse = lambda _operation, _path: None
        until(lambda: store.engine.flags.accepts_puts)
        put_numbers(world, store, range(1, 2))
        assert len(read_all(store, "T")) == 2
