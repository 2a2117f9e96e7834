"""The policy "consumed": nothing pending is deleted, consumed files go soon, and without space puts are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from brokerstore.tool.target import _broker_settings
from commitlog import Message, PutStatus
from lab.rocketmq_lab import ROOT, abandon, lab_config, open_still
from messagestore import MessageStore, RetentionPolicy, StoreConfig
from messagestore.shared._packing_cy import pack_message
from messagestore.shared.answers import unpack_answer, unpack_result
from messagestore.shared.protocol import NO_CHECK, Operation, pack_frame, parse_frame
from messagestore.shared.service import Service
from messagestore.shared.store import connect
from messagestore.store_settings import FileSettings, read_settings
from storageio import REAL_DISK, DiskFull, PutRejected, StoreFull
from storageio.testing import ForgettingDisk
from tests.helpers import until
from tests.messagestore.test_retention import Plenty
from tests.messagestore.writers import LOG_SIZE, log_files, message, number_of, open_store, put_all

MANY = 1000  # more messages than two log files hold


class Setup:
    """A store with the policy, a disk and a clock that a test sets, and a housekeeper that does nothing by itself."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.root = root
        self.disk = Plenty()
        quiet = {"retention": "consumed", "flush_interval_consume_queue_ms": 600_000}
        self.store = open_store(root, disk=self.disk, clock=self.disk.now_ms, **(quiet | changes))
        self.store.engine.housekeeper.thread.stop()
        self.retention = self.store.engine.retention

    def fill(self, start: int = 0, **how: Any) -> int:
        """Put messages from a number on until they fill three log files; return the number after the last."""
        end = self.store.engine.log.written_offset + 3 * LOG_SIZE
        while self.store.engine.log.written_offset < end:
            self.store.put(message(start, **how))
            start += 1
        return start

    def check(self) -> int:
        """Run retention with everything dispatched and flushed; return the number of deleted files."""
        self.store.engine.settle()
        self.store.flush()
        return self.retention.check()

    def consume(self, topic: str = "t", group: str = "g", count: int = 1 << 30) -> list[Any]:
        """Acknowledge messages as a group, and return them."""
        taken: list[Any] = []
        with self.store.consumer(topic, group=group, timeout_s=0) as consumer:
            for stored in consumer:
                consumer.ack(stored)
                taken.append(stored)
                if len(taken) == count:
                    break
        return taken

    def deliver(self) -> None:
        """Deliver the delayed messages that are due."""
        self.store.engine.settle()
        with self.store.engine.housekeeper.guard:
            while not self.store.engine.deliver_due():
                self.store.engine.settle()
        self.store.engine.settle()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Setup]:
    found = Setup(tmp_path)
    yield found
    found.store.close()


# A full disk


def test_a_full_disk_deletes_no_job_and_refuses_puts_until_there_is_space(made: Setup) -> None:
    """8,000 jobs that nobody consumed survive a disk at 99 %, whatever their age."""
    put_all(made.store, 0, 8000)
    made.store.flush()
    made.disk.now += 1000 * 3_600_000
    made.disk.used = 99
    for _ in range(3):
        assert made.retention.run() == 0
    with pytest.raises(StoreFull, match="99 %") as caught:
        made.store.put(message(8000))
    assert isinstance(caught.value, PutRejected)
    assert caught.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert isinstance(caught.value.__cause__, DiskFull)
    made.disk.used = 50
    assert made.check() == 0
    assert made.store.put(message(8000)).status is PutStatus.PUT_OK
    assert sorted(number_of(stored) for stored in made.consume()) == list(range(8001))


def test_a_store_that_is_opened_on_a_full_disk_refuses_its_first_put(made: Setup) -> None:
    """A process that starts again and again would fill the disk otherwise. Where the oldest files are deleted, it puts."""
    made.store.put(message(0))
    made.store.close()
    made.disk.used = 99
    made.store = open_store(made.root, disk=made.disk, clock=made.disk.now_ms)
    with pytest.raises(StoreFull, match="99 %"):
        made.store.put(message(1))
    assert [number_of(stored) for stored in made.consume()] == [0]
    made.store.close()
    made.store = open_store(made.root, disk=made.disk, clock=made.disk.now_ms, retention="limits")
    assert made.store.put(message(1)).status is PutStatus.PUT_OK


def test_every_kind_of_put_raises_the_same_error_on_a_full_disk(made: Setup) -> None:
    """So do columns, batches, pipelined puts and transactions; `check=False` returns the refusal with its cause."""
    made.disk.used = 99
    made.retention.run()
    store = made.store
    calls: list[Any] = [
        lambda: store.put_many("t", [b"1"]),
        lambda: store.put_batch("t", 0, [message(0)]),
        lambda: store.append_columns("t", 0, [b"1"]),
        lambda: store.put_async(message(0)).result(),
        lambda: store.begin_transaction(message(0)),
    ]
    for call in calls:
        with pytest.raises(StoreFull):
            call()
    assert isinstance(store.put(message(0), check=False).cause, DiskFull)


@pytest.mark.parametrize("kind", ["messages", "bodies", "ids"])
def test_many_puts_wait_for_space_and_each_is_stored_once(tmp_path: Path, kind: str) -> None:
    """The log is full after some of them; those are not put again when there is space, nor counted twice."""
    fast = {"clean_resource_interval_ms": 100, "flush_interval_consume_queue_ms": 20}
    with open_store(tmp_path / "s", retention="consumed", max_size_bytes=2 * LOG_SIZE, **fast) as store:
        messages = [Message("t", b"%06d" % number + bytes(3000), queue_id=0) for number in range(100)]
        bodies = [one.body for one in messages]
        if kind == "ids":  # the second one is a duplicate, which needs no other put either
            messages[:1] = [Message("t", bodies[0], queue_id=0, dedup_id="x")] * 2
        given: Any = ("t", bodies) if kind == "bodies" else (messages,)
        fields = {"queue_id": 0} if kind == "bodies" else {}
        with pytest.raises(StoreFull) as caught:
            store.put_many(*given, **fields, block_s=0.1)
        done = caught.value.message_count
        assert 0 < done < len(messages)
        left: Any = ("t", bodies[done:]) if kind == "bodies" else (messages[done:],)

        def consume() -> None:
            with store.consumer("t", group="g", timeout_s=20) as consumer:
                for stored in consumer:
                    consumer.ack(stored)
                    taken.append(stored.body)
                    if len(taken) == len(bodies):
                        break

        taken: list[bytes] = []
        timer = threading.Timer(0.1, consume)
        timer.start()
        result = store.put_many(*left, **fields, block_s=20)
        timer.join()
        assert (result.status, result.message_count) == (PutStatus.PUT_OK, len(messages) - done)
        assert taken == bodies


def test_a_store_that_also_failed_to_sync_is_not_only_full(made: Setup) -> None:
    """Waiting for space would not help, so the error is the general one."""
    made.disk.used = 99
    made.retention.run()
    flags = made.store.engine.flags
    flags.set(type(next(iter(flags.reasons))).NOT_WRITEABLE, "a sync failed")
    with pytest.raises(PutRejected) as caught:
        made.store.put(message(0))
    assert not isinstance(caught.value, StoreFull)


def test_a_put_can_wait_for_space(made: Setup) -> None:
    """It waits for as many seconds as it is given, then raises; if there is space before, it is stored."""
    made.disk.used = 99
    made.retention.run()
    with pytest.raises(StoreFull):
        made.store.put(message(0), block_s=0.1)
    assert made.store.put(message(0), block_s=0.1, check=False).status is PutStatus.SERVICE_NOT_AVAILABLE

    def free() -> None:
        made.disk.used = 50
        made.retention.check()

    timer = threading.Timer(0.2, free)
    timer.start()
    assert made.store.put("t", b"1 ", block_s=20).status is PutStatus.PUT_OK
    timer.join()


# What is consumed


def test_consumed_files_go_and_pending_ones_stay(made: Setup) -> None:
    """A file goes when its last message is acknowledged, at any hour and whatever its age."""
    count = made.fill(queues=1)
    assert made.check() == 0, "no group has consumed the topic"
    per_file = len([one for one in made.store.read("t", 0) if one.physical_offset < LOG_SIZE])
    made.consume(count=per_file - 1)
    assert made.check() == 0
    made.consume(count=1)
    assert made.check() == 1
    assert made.check() == 0
    assert [number_of(stored) for stored in made.consume()] == list(range(per_file, count))
    assert made.check() == 2
    assert len(log_files(made.root)) == 1


def test_the_housekeeper_frees_consumed_files_of_a_store_with_usual_settings(tmp_path: Path) -> None:
    """Within seconds after the acknowledgement, not at the hour of `delete_when`."""
    sizes = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 100, "max_index_num": 400}
    with connect(tmp_path / "s", StoreConfig(**sizes)) as store:  # type: ignore[arg-type]
        store.put_many("jobs", [bytes(1000)] * 6000)
        assert len(log_files(tmp_path / "s")) > 5
        with store.consumer("jobs", group="workers", timeout_s=0) as consumer:
            for one in consumer:
                consumer.ack(one)
        until(lambda: len(log_files(tmp_path / "s")) <= 2)


def test_a_file_stays_until_the_slowest_group_has_acknowledged_it(made: Setup) -> None:
    """Another group that has begun needs the messages too."""
    made.fill()
    made.consume(group="slow", count=1)
    made.consume(group="fast")
    assert made.check() == 0
    made.consume(group="slow")
    assert made.check() == 3


def test_an_open_consumer_of_a_new_group_keeps_everything(made: Setup) -> None:
    """Its group has committed nothing yet."""
    made.fill()
    with made.store.consumer("t", group="new", timeout_s=0):
        made.consume()
        assert made.check() == 0
    assert made.check() == 3


def test_a_topic_that_no_group_has_consumed_keeps_its_files(made: Setup) -> None:
    """Files before its first message go."""
    made.fill()
    made.store.put(message(0, topic="unread"))
    made.fill()
    made.consume()
    assert made.check() == 3
    made.consume("unread")
    assert made.check() == 3


def test_a_deleted_topic_keeps_nothing(made: Setup) -> None:
    """A topic that left topics.json, but has queues, is nobody's."""
    made.store.put(message(0, topic="gone"))
    made.fill()
    made.consume()
    assert made.check() == 0
    made.store.engine.topics.delete("gone")
    assert made.check() == 3


def test_a_batch_queue_keeps_its_files(made: Setup) -> None:
    """Its units hold several messages each."""
    made.store.create_topic("b", 1, attributes={"queue.type": "BatchCQ"})
    for _ in range(2):
        made.store.put_batch("b", 0, [Message("b", bytes(100), queue_id=0)] * 2)
    made.fill()
    made.consume()
    assert made.check() == 0
    made.store.engine.consumer_offsets().commit("b", "g", 0, 2)
    assert made.check() == 0
    made.store.engine.consumer_offsets().commit("b", "g", 0, 4)
    assert made.check() == 3


# What waits


@pytest.mark.parametrize("delay", [{"delay_level": 3}, {"delay": timedelta(seconds=25)}], ids=["level", "timer"])
def test_a_delayed_message_keeps_its_file_until_it_is_delivered_and_consumed(made: Setup, delay: dict[str, Any]) -> None:
    """Delay levels and timers alike; the delivered copy then keeps the file that it is in."""
    made.store.put("t", b"0 later", **delay)
    made.fill(1)
    made.consume()
    made.deliver()
    assert made.check() == 0
    made.disk.now += 60_000
    made.deliver()
    assert made.check() == 3
    made.fill(1)
    assert made.check() == 0
    assert number_of(made.consume()[0]) == 0
    assert made.check() == 3


def test_timers_are_kept_where_this_process_delivers_none(tmp_path: Path) -> None:
    """Their progress is not known there."""
    made = Setup(tmp_path, deliver_delayed=False)
    made.store.put("t", b"0", delay=timedelta(seconds=2))
    made.fill()
    made.consume()
    made.disk.now += 60_000
    assert made.check() == 0
    made.store.close()


@pytest.mark.parametrize("is_reopened", [False, True])
def test_an_undecided_transaction_keeps_its_file(tmp_path: Path, is_reopened: bool) -> None:
    """After the decision the file goes, also if another process decided and nobody has used transactions since."""
    made = Setup(tmp_path)
    transaction = made.store.begin_transaction(message(0))
    made.fill()
    made.consume()
    assert made.check() == 0
    transaction.rollback()
    made.fill()
    made.consume()
    if is_reopened:
        made.store.close()
        made = Setup(tmp_path)
    made.store.flush()
    assert made.check() > 3
    made.store.close()


def test_retries_and_dead_letters_keep_their_files(made: Setup) -> None:
    """A message that was sent back is pending until the group acknowledges it, a dead letter until some group does."""
    made.store.put(message(0))
    (stored,) = made.store.read("t", 0)
    retries = made.store.engine.retries
    retries.send_back(stored, "g")
    retries.send_back(stored, "g", -1)
    made.fill(1)
    made.consume()
    assert made.check() == 0
    made.disk.now += 60_000
    made.deliver()
    assert made.check() == 0, "the dead letter"
    assert len(made.consume("%DLQ%g", "undertaker")) == 1
    assert made.check() == 3
    made.fill(1)
    assert number_of(made.consume()[0]) == 0
    assert made.check() == 3


def test_a_power_failure_after_a_deletion_keeps_the_message_that_was_sent_back() -> None:
    """The retry is synced before the file of the original message is deleted."""
    disk = ForgettingDisk()
    store = open_still(disk, lab_config(retention="consumed"))
    engine = store.engine
    while len(engine.log.queue.files) < 3:
        store.put(Message("T", bytes(500), queue_id=0))
    store.flush()
    engine.dispatcher.catch_up()
    stored = next(iter(store.read("T", 0)))
    engine.retries.send_back(stored, "g")
    engine.consumer_offsets().commit("T", "g", 0, engine.offsets.next_offset("T", 0))
    assert engine.retention.check() == 2
    abandon(store)
    store = open_still(ForgettingDisk.of(disk.least(), disk.time_ms), lab_config())
    assert [one.reconsume_times for one in store.read("SCHEDULE_TOPIC_XXXX", 2)] == [1]
    assert store.config.retention is RetentionPolicy.CONSUMED
    assert store.committed_offsets("T", "g")[0] > 10
    assert store.path == ROOT
    abandon(store)


# Deleting by hand


def test_delete_expired_keeps_what_is_pending(made: Setup) -> None:
    """Age alone deletes nothing; `delete_before` does what it is told, with a warning."""
    made.fill()
    made.store.flush()
    made.consume(count=1)
    made.store.engine.settle()
    made.disk.now = REAL_DISK.now_ms() + 100 * 3_600_000
    assert made.store.delete_expired() == 0
    assert made.store.delete_before(LOG_SIZE) == 1


def test_a_deletion_of_unacknowledged_messages_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Under "limits" it has topic, group and number, for each file."""
    made = Setup(tmp_path, retention=None)
    made.fill(queues=1)
    first = len([one for one in made.store.read("t", 0) if one.physical_offset < LOG_SIZE])
    made.consume(count=10)
    made.consume(group="done")
    made.store.flush()
    assert made.store.delete_before(2 * LOG_SIZE) == 2
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(": ")[2] for line in lines] == [
        f"{count} messages of topic 't' deleted that group 'g' had not acknowledged"
        for count in (first - 10, made.store.min_offset("t", 0) - first)
    ]
    made.store.close()


# A maximum size


def test_puts_are_refused_at_the_maximum_size_until_files_are_consumed(tmp_path: Path) -> None:
    """The log never exceeds it, and nothing is deleted for a put."""
    made = Setup(tmp_path, max_size_bytes=4 * LOG_SIZE)
    count = 0
    with pytest.raises(StoreFull, match="maximum size") as caught:
        while count < 10 * MANY:
            made.store.put(message(count))
            count += 1
    assert isinstance(caught.value.__cause__, DiskFull)
    made.store.engine.housekeeper.prepare_next()
    assert made.check() == 0
    assert len(log_files(tmp_path)) == 4
    with pytest.raises(StoreFull):
        made.store.put(message(count, size=1000))
    assert sorted(number_of(stored) for stored in made.consume()) == list(range(count))
    assert made.check() == 3
    assert made.store.put(message(count, size=1000)).status is PutStatus.PUT_OK
    made.store.close()


def test_a_maximum_size_below_two_log_files_is_two_files(tmp_path: Path) -> None:
    """The last file is never deleted, so a log of one file would stay full."""
    made = Setup(tmp_path, max_size_bytes=100)
    for _ in range(3):
        for number in range(MANY):
            made.store.put(message(number), check=False)
        assert len(log_files(tmp_path)) == 2
        made.consume()
        assert made.check() == 1
    made.store.close()


def test_limits_delete_the_oldest_files_at_the_maximum_size(tmp_path: Path) -> None:
    """One more file must fit, so that no put is refused."""
    made = Setup(tmp_path, retention="limits", max_size_bytes=4 * LOG_SIZE)
    for _ in range(3):
        made.fill()
        made.check()
        assert len(log_files(tmp_path)) == 3
    made.store.close()


def test_delayed_messages_are_delivered_although_the_log_has_its_maximum_size(tmp_path: Path) -> None:
    """Else it would stay full. Programs are refused until the log is below its size again."""
    made = Setup(tmp_path, max_size_bytes=3 * LOG_SIZE)
    count = 0
    while made.store.put("t", b"%d " % count, queue_id=0, delay_level=1, check=False).status is PutStatus.PUT_OK:
        count += 1
    assert len(log_files(tmp_path)) == 3
    made.disk.now += 60_000
    made.deliver()
    assert len(log_files(tmp_path)) > 3
    with pytest.raises(StoreFull, match="LOG_FULL"):
        made.store.put("t", b"1")
    assert [number_of(stored) for stored in made.consume()] == list(range(count))
    assert made.check() > 0
    made.store.put("t", b"1")
    made.store.close()
    assert not (tmp_path / "abort").exists()


# Which policy a store has


def policy_of(root: Path, config: StoreConfig | None = None) -> str | None:
    with MessageStore.open(root, config=config) as store:
        policy = store.config.retention
    assert policy is not None
    assert read_settings(REAL_DISK, str(root / "brokerstore")).retention == policy.value
    return policy.value


SMALL = StoreConfig.small()


def test_the_policy_is_kept_with_the_store(tmp_path: Path) -> None:
    """Every later opening has it, whatever would be the default; an explicit value changes it."""
    assert policy_of(tmp_path / "small", SMALL) == "consumed"
    assert policy_of(tmp_path / "small") == "consumed"
    with MessageStore.open(tmp_path / "small", "r") as store:
        assert store.config.retention is RetentionPolicy.CONSUMED
    assert policy_of(tmp_path / "plain") == "limits"
    assert policy_of(tmp_path / "plain", StoreConfig(retention="consumed")) == "consumed"  # type: ignore[arg-type]
    assert policy_of(tmp_path / "plain") == "consumed"
    assert policy_of(tmp_path / "plain", SMALL.but(retention="limits", max_hash_slot_num=None, max_index_num=None)) == "limits"


def test_stores_that_connect_creates_keep_pending_messages(tmp_path: Path) -> None:
    """Also with a configuration that says nothing about it; one that does is followed."""
    with connect(tmp_path / "s") as store:
        assert store.config.retention is RetentionPolicy.CONSUMED
    assert policy_of(tmp_path / "s") == "consumed"
    with connect(tmp_path / "l", StoreConfig(retention=RetentionPolicy.LIMITS)) as store:
        assert store.config.retention is RetentionPolicy.LIMITS


def test_a_folder_that_a_broker_wrote_keeps_the_brokers_rules(tmp_path: Path) -> None:
    """It has no settings of this library; `connect` and small settings do not change it."""
    with open_store(tmp_path) as store:
        store.put(message(0))
    (tmp_path / "brokerstore" / "settings.json").unlink()
    with open_store(tmp_path, retention_of_new_store="consumed") as store:
        assert store.config.retention is RetentionPolicy.LIMITS
    with connect(tmp_path) as shared:
        assert shared.config.retention is RetentionPolicy.LIMITS


def test_a_policy_of_a_later_version_deletes_nothing_pending(tmp_path: Path) -> None:
    """Its meaning is not known."""
    policy_of(tmp_path)
    path = tmp_path / "brokerstore" / "settings.json"
    path.write_text(path.read_text().replace('"limits"', '"interest"'))
    assert policy_of(tmp_path) == "consumed"
    assert read_settings(REAL_DISK, str(tmp_path)) == FileSettings()


def test_ratios_of_a_brokers_own_file_are_clamped() -> None:
    """The broker does the same; in a configuration they are errors."""
    settings = _broker_settings({"disk_max_used_space_ratio": 99, "delete_when": "05"})
    assert (settings["disk_max_used_space_ratio"], settings["delete_when"]) == (95, "05")
    StoreConfig(**settings)


# Other processes


def test_the_error_of_a_full_store_reaches_other_processes(made: Setup) -> None:
    """As a `StoreFull` with its cause, and with `check=False` as a refusal with its cause."""
    made.disk.used = 99
    made.retention.run()
    service = Service(made.store)
    packed = pack_message(message(0), "key")
    with pytest.raises(StoreFull, match="99 %") as caught:
        unpack_answer(parse_frame(service.answer(parse_frame(pack_frame(Operation.PUT, packed)))))
    assert isinstance(caught.value.__cause__, DiskFull)
    answer = parse_frame(service.answer(parse_frame(pack_frame(Operation.PUT, packed, NO_CHECK))))
    result = unpack_result(answer.payload)
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert isinstance(result.cause, DiskFull)


def test_a_put_of_another_process_waits_for_space(tmp_path: Path) -> None:
    """The owner answers meanwhile."""
    with connect(tmp_path / "s") as owner, connect(tmp_path / "s") as other:
        assert (owner.is_owner, other.is_owner) == (True, False)
        local = owner._member.local
        assert local is not None
        retention = local.engine.retention
        retention.used_percent = lambda: 99  # type: ignore[method-assign]
        with local.engine.housekeeper.guard:
            retention.run()
        with pytest.raises(StoreFull):
            other.put("t", b"1", block_s=0.1)
        with pytest.raises(StoreFull):
            other.put_many("t", [b"1"], block_s=0.1)
        assert other.put("t", b"1", block_s=0.1, check=False).status is PutStatus.SERVICE_NOT_AVAILABLE
        retention.used_percent = lambda: 10  # type: ignore[method-assign]
        assert other.put_many("t", [b"1"], block_s=20).message_count == 1  # the housekeeper finds the space
        assert other.put("t", b"1", block_s=20).status is PutStatus.PUT_OK
