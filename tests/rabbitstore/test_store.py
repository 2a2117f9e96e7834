"""RabbitStore: publish, get, acknowledge, requeue, fan-out, priorities, restarts, and folders of the server."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rabbitstore import PartlyPublished, RabbitSettings, RabbitStore, StoreSettings, UnknownDelivery, UnknownQueue, verify
from rabbitstore.engine import housekeeper  # fmt: skip
from rabbitstore.engine.credit import Credit
from rabbitstore.format.layout import SEGMENT_HEAD, SEGMENT_MARK
from rabbitstore.format.message import Content
from rabbitstore.format.names import vhost_folder_name
from storageio import (
    DiskError,
    DiskFull,
    InvalidMessage,
    StoreClosed,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    UnknownStore,
    UnsupportedFormat,
)
from storageio.testing import FailingDisk, WrappedDisk
from tests.helpers import until

from .conftest import WhenItWasWritten

QUIET = RabbitSettings(background=False, index_version=1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "vhost")


def drained(store: RabbitStore, queue: str) -> list[bytes]:
    found = []
    while (delivery := store.get(queue, auto_ack=True)) is not None:
        found.append(delivery.body)
    return found


def kill(store: RabbitStore) -> None:
    """Abandon the store, as SIGKILL does."""
    store.abandon()


def test_publish_get_ack(path: str) -> None:
    """A message has its properties and is gone after the acknowledgement and a reopening."""
    with RabbitStore.open(path) as store:
        store.declare_queue("orders")
        store.publish("orders", b"one", properties={"message_id": "m1", "headers": {"a": 1}}, exchange="ex", routing_keys=["k"])
        store.publish("orders", b"two" * 5000)
        first = store.get("orders")
        assert (first.body, first.exchange, first.routing_keys, first.redelivered) == (b"one", "ex", ("k",), False)
        assert first.properties == {"message_id": "m1", "headers": {"a": 1}, "delivery_mode": 2}
        store.ack(first)
        with pytest.raises(UnknownDelivery):
            store.ack(first)
    with RabbitStore.open(path) as store:
        assert drained(store, "orders") == [b"two" * 5000]
    with RabbitStore.open(path) as store:
        assert store.get("orders") is None


def test_a_message_to_three_queues_is_stored_once(path: str) -> None:
    """The last acknowledgement removes it from the store."""
    with RabbitStore.open(path, settings=QUIET) as store:
        for name in ("a", "b", "c"):
            store.declare_queue(name)
        store.publish(["a", "b", "c"], b"x" * 8000, exchange="ex.fan")
        store.sync()
        persistent = store.parts.persistent
        assert persistent.files.total_bytes < 9000 and len(persistent.locations) == 1
        for left, name in ((2, "a"), (1, "b")):
            assert drained(store, name) == [b"x" * 8000]
            persistent.process()
            assert next(iter(persistent.locations.values())).ref_count == left
    with RabbitStore.open(path) as store:
        assert drained(store, "c") == [b"x" * 8000] and store.lost == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_redelivered_flags_after_a_stop(path: str, is_clean: bool) -> None:
    """After a clean stop delivered messages have the flag, after a kill all; unacknowledged ones return in order."""
    store = RabbitStore.open(path, settings=QUIET)
    store.declare_queue("q")
    for number in range(6):
        store.publish("q", b"%d" % number)
    held = [store.get("q") for _ in range(3)]
    store.ack(held[1])
    store.sync()
    store.close() if is_clean else kill(store)
    reader = RabbitStore.open(path, "r")
    flags = [(message.body, message.redelivered) for message in reader.messages("q")]
    with RabbitStore.open(path, settings=QUIET) as store:
        found = [(delivery.body, delivery.redelivered) for delivery in iter(lambda: store.get("q"), None)]
    expected = [(b"0", True), (b"2", True), (b"3", not is_clean), (b"4", not is_clean), (b"5", not is_clean)]
    assert found == expected == flags


def test_a_foreign_change_invalidates_the_clean_mark(path: str) -> None:
    """If the index differs from the terms, all messages count as redelivered."""
    with RabbitStore.open(path, settings=QUIET) as store:
        store.declare_queue("q")
        store.publish("q", b"0")
        store.publish("q", b"1")
    index = next(p for p in Path(path).glob("queues/*/0.idx"))
    index.write_bytes(index.read_bytes() + SEGMENT_HEAD.pack(SEGMENT_MARK | 0))
    assert [problem.kind for problem in verify(path).problems] == ["bad_recovery_terms"]
    with RabbitStore.open(path, settings=QUIET) as store:
        assert (store.get("q").body, store.get("q")) == (b"1", None)
    with RabbitStore.open(path, settings=QUIET) as store:
        assert store.get("q").redelivered


def test_synced_messages_survive_a_kill_and_transient_ones_do_not(path: str) -> None:
    """Messages are small and large, embedded and stored."""
    store = RabbitStore.open(path, settings=QUIET)
    store.declare_queue("q")
    for number in range(50):
        store.publish("q", b"%d-" % number + b"z" * (number * 300), persistent=number % 3 != 0)
    store.sync()
    kill(store)
    with RabbitStore.open(path, settings=QUIET) as store:
        bodies = drained(store, "q")
    assert bodies == [b"%d-" % number + b"z" * (number * 300) for number in range(50) if number % 3]


def test_multiple_acknowledge_and_requeue(path: str) -> None:
    """They settle all up to a tag; requeued messages return in their old order, flagged."""
    with RabbitStore.open(path, settings=QUIET) as store:
        store.declare_queue("q")
        for number in range(10):
            store.publish("q", b"%d" % number)
        held = [store.get("q") for _ in range(8)]
        assert store.ack(held[2], multiple=True) == 3
        assert store.requeue(held[4]) == 1
        assert store.requeue(held[6], multiple=True) == 3
        again = [store.get("q") for _ in range(6)]
        assert [(delivery.body, delivery.redelivered) for delivery in again] == [
            (b"3", True), (b"4", True), (b"5", True), (b"6", True), (b"8", False), (b"9", False),
        ]  # fmt: skip


def test_priorities(path: str) -> None:
    """The highest priority comes first, each in order; each priority has RabbitMQ's folder."""
    with RabbitStore.open(path, settings=QUIET) as store:
        store.declare_queue("q", max_priority=3)
        for number in range(8):
            store.publish("q", b"%d" % number, properties={"priority": number % 4 + (number == 7) * 9})
    with RabbitStore.open(path, settings=QUIET) as store:
        assert drained(store, "q") == [b"3", b"7", b"2", b"6", b"1", b"5", b"0", b"4"]
    assert len(list((Path(path) / "queues").iterdir())) == 4


def test_expiry_of_message_and_queue(path: str) -> None:
    """The earlier expiry counts, and only at the head."""
    with RabbitStore.open(path, settings=QUIET) as store:
        queue = store.declare_queue("q", message_ttl_ms=1000)
        now = [10_000]
        queue.now_ms = lambda: now[0]
        store.publish("q", b"a", properties={"expiration": "100"})
        store.publish("q", b"b")
        store.publish("q", b"c", properties={"expiration": "5000"})
        now[0] += 100
        assert store.get("q", auto_ack=True).body == b"b"
        now[0] += 899
        assert store.get("q").body == b"c"
        with pytest.raises(InvalidMessage):
            store.publish("q", b"", properties={"expiration": "soon"})


def test_a_waiting_consumer_gets_the_message_at_once(path: str) -> None:
    """It bypasses the queue; the prefetch limit holds back the next one."""
    with RabbitStore.open(path) as store:
        queue = store.declare_queue("q")
        found = []
        with store.consumer("q", prefetch=1) as consumer:
            thread = threading.Thread(target=lambda: found.append(consumer.get(timeout_s=30)))
            thread.start()
            while not queue.waiting_consumers:
                pass
            store.publish("q", b"direct")
            thread.join()
            assert (found[0].body, len(queue), len(queue.unacked)) == (b"direct", 0, 1)
            store.publish("q", b"second")
            assert consumer.get() is None
            consumer.ack(found[0])
            assert consumer.get().body == b"second"
        assert [delivery.redelivered for delivery in store.consumer("q")] == [True]


def test_credit_flow_blocks_the_queue_and_then_its_publisher(path: str) -> None:
    """With credit (20, 8) of the queue and (10, 4) of the publisher it blocks, until the store handles its mailbox."""
    settings = RabbitSettings(background=False, store=StoreSettings(client_credit=(20, 8)))
    with RabbitStore.open(path, settings=settings) as store:
        queue = store.declare_queue("q")
        publisher = store.publisher(credit=(10, 4))
        for number in range(19):
            publisher.publish("q", b"%d" % number * 5000)
        assert not queue.is_blocked and publisher.has_credit and publisher.credit.unhandled == 0
        for number in range(19, 25):  # 19 were handled: 16 of them given back, in portions of 4
            publisher.publish("q", b"%d" % number * 5000)
        assert queue.is_blocked and publisher.has_credit and publisher.credit.unhandled == 6
        publisher.publish("q", b"25" * 5000)
        assert queue.is_blocked and not publisher.has_credit and publisher.blocked_count == 0
        publisher.publish("q", b"26" * 5000)
        assert not queue.is_blocked and publisher.has_credit and publisher.blocked_count == 1
        assert (publisher.confirmed, publisher.wait(), publisher.confirmed) == (0, 27, 27)
        kill(store)
        again = RabbitStore.open(path, settings=QUIET)
        assert drained(again, "q") == [b"%d" % number * 5000 for number in range(27)]
        again.close()


def test_small_messages_need_no_credit_of_the_message_store(path: str) -> None:
    """Embedded messages never block the queue, which grants its publisher credit immediately."""
    settings = RabbitSettings(background=False, store=StoreSettings(client_credit=(2, 1)))
    with RabbitStore.open(path, settings=settings) as store:
        store.declare_queue("q")
        publisher = store.publisher(credit=(3, 3))
        for number in range(50):
            publisher.publish("q", b"%d" % number)
        assert publisher.blocked_count == 0 and publisher.wait() == 50


@pytest.mark.parametrize("credit", [(0, 0), (5, 6), (5, 0)])
def test_a_credit_that_would_block_for_ever_is_refused(credit: tuple[int, int]) -> None:
    """Credit is at least one message, and the grant not larger than the credit."""
    with pytest.raises(ValueError, match="more_after"):
        Credit(*credit)


def test_a_fan_out_reaches_every_queue_except_the_failed_one(path: str) -> None:
    """The error lists both kinds of queues; published again, the message is stored once."""
    disk = FailingDisk(1 << 40)
    store = RabbitStore.open(path, settings=QUIET, disk=disk)
    for name in "abc":
        store.declare_queue(name)
    store.publish("b", b"makes the journal")
    store.sync()
    store.publish("b", b"lost")
    broken = store.queue("b").parts[0].index
    disk.fail_at = len(disk.calls) + 1
    with pytest.raises(DiskError):
        broken.sync()
    broken.settings = replace(broken.settings, journal_entries_max=0)
    broken._entries_max = 0
    with pytest.raises(PartlyPublished) as caught:
        store.publish(["a", "b", "c"], b"x" * 5000)
    assert (caught.value.published, list(caught.value.failed)) == (["a", "c"], ["b"])
    with pytest.raises(StoreReadOnly):
        store.sync()
    kill(store)
    with RabbitStore.open(path, settings=QUIET) as store:
        assert (drained(store, "a"), drained(store, "c")) == ([b"x" * 5000], [b"x" * 5000])
        assert drained(store, "b")[0] == b"makes the journal"


def test_a_retry_after_a_partial_fan_out_stores_no_second_copy(path: str) -> None:
    """`publish_content` with the error's content uses the same id and one record."""
    with RabbitStore.open(path, settings=QUIET) as store:
        queues = [store.declare_queue(name) for name in "ab"]
        gone = store.declare_queue("gone")
        gone.delete()
        with pytest.raises(PartlyPublished) as caught:
            store.publish_content([queues[0], gone], Content("/", "", ("k",), b"\x10\x00\x02", b"x" * 5000, b"i" * 16, True))
        store.publish_content([queues[1]], caught.value.content)
        store.sync()
        assert list(store.parts.persistent.locations) == [b"i" * 16]
        assert store.parts.persistent.locations[b"i" * 16].ref_count == 2
        assert drained(store, "a") == drained(store, "b") == [b"x" * 5000]


def test_memory_limit_and_collector_under_load(path: str) -> None:
    """With little memory and small files everything is delivered in order while garbage is collected."""
    settings = RabbitSettings(
        store=StoreSettings(file_size_limit=50_000, file_garbage_fraction=0.3), memory_limit_bytes=200_000, io_batch_size=64
    )
    with RabbitStore.open(path, settings=settings) as store:
        store.declare_queue("q")
        for number in range(600):
            store.publish("q", b"%d-" % number + b"m" * (5000 if number % 2 else 50))
        store.balance_memory()
        assert store.queue("q").memory_bytes() < 400_000
        kept = []
        for number in range(600):
            delivery = store.get("q")
            assert delivery.body.startswith(b"%d-" % number)
            if number % 5:
                store.ack(delivery)
            else:
                kept.append(number)
        store.sync()
        store.collect()
        files = store.parts.persistent.files
        assert files.total_bytes < 2 * files.valid_bytes + 100_000
        kill(store)
    with RabbitStore.open(path, settings=settings) as store:
        assert [int(body.split(b"-")[0]) for body in drained(store, "q")] == kept


@pytest.mark.parametrize("mode", ["default", "lazy"])
def test_a_long_queue_stays_under_its_memory_target(path: str, mode: str) -> None:
    """Memory stays limited while the queue grows, is reopened and is consumed (full size: `bench.rabbitmq.ten_million`)."""
    limit, count = 2 << 20, 16_000
    settings = RabbitSettings(background=False, memory_limit_bytes=limit, io_batch_size=512, index_version=1)
    body = b"x" * 100
    with RabbitStore.open(path, settings=settings) as store:
        store.declare_queue("q", mode=mode)
        for number in range(count):
            store.publish("q", b"%d-" % number + body)
            if number % 1000 == 999:
                store.sync()
                assert store.queue("q").memory_bytes() <= limit
    with RabbitStore.open(path, "r+", settings=settings) as store:
        for number in range(count):
            held = store.get("q")
            assert held.body.startswith(b"%d-" % number)
            store.ack(held)
            if number % 1000 == 999:
                assert store.queue("q").memory_bytes() <= limit
        assert store.get("q") is None
    files = sum(file.stat().st_size for file in Path(path).rglob("*.idx"))
    assert files == 0, "all of it went through the disk, and is gone"


def test_purge_and_delete(path: str) -> None:
    """A purged queue keeps unacknowledged messages; a deleted queue leaves no file and no reference."""
    with RabbitStore.open(path, settings=QUIET) as store:
        store.declare_queue("q")
        for _ in range(5):
            store.publish("q", b"p" * 5000)
        held = store.get("q")
        assert store.purge("q") == 4
        store.requeue(held)
        assert store.delete_queue("q") == 1
        store.process()
        assert store.parts.persistent.files.valid_bytes == 0
        with pytest.raises(UnknownQueue):
            store.publish("q", b"")
    with RabbitStore.open(path) as store:
        assert store.queue_names() == []


def test_wrong_use_has_named_errors(path: str) -> None:
    """Read-only, closed, locked, missing and existing stores raise their own errors."""
    with pytest.raises(UnknownStore):
        RabbitStore.open(path, "r")
    with pytest.raises(UnknownStore):
        RabbitStore.open(path, "r+")
    store = RabbitStore.open(path, "x")
    with pytest.raises(UnknownStore):
        RabbitStore.open(path, "x")
    with pytest.raises(StoreLocked):
        RabbitStore.open(path)
    with pytest.raises(StoreReadOnly):
        RabbitStore.open(path, "r").declare_queue("q")
    store.declare_queue("q")
    with pytest.raises(StoreError):
        store.declare_queue("q", mode="lazy")
    with pytest.raises(InvalidMessage):
        store.publish("q", b"", properties={"colour": "red"})
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.publish("q", b"")


def test_reading_changes_nothing(path: str, clean: Any) -> None:
    """No byte, name or time of the folder changes."""
    target = shutil.copytree(clean.vhost, path)
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in Path(target).rglob("*")}
    store = RabbitStore.open(path, "r")
    assert len(list(store.messages())) == 3068 and len(store.queues()) == 12
    store.close()
    assert before == {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in Path(target).rglob("*")}


def test_a_servers_folder_is_taken_over(path: str, clean: Any) -> None:
    """Persistent messages have the broker's order and flags, also after a clean stop of brokerstore."""
    shutil.copytree(clean.vhost, path)
    expected = {
        name: [(row["message_id"], row["redelivered"]) for row in queue["after_recovery"]]
        for name, queue in clean.manifest["queues"].items()
        if queue.get("after_recovery")
    }
    for _ in range(2):
        with RabbitStore.open(path, "r+", settings=QUIET, disk=WhenItWasWritten()) as store:
            assert store.lost == []
            reader = {}
            for message in store.messages():
                reader.setdefault(message.queue, []).append(message.properties["message_id"])
            assert reader == {name: [row[0] for row in rows] for name, rows in expected.items()}
    with RabbitStore.open(path, "r+", settings=QUIET, disk=WhenItWasWritten()) as store:
        for name, rows in expected.items():
            found = [(d.properties["message_id"], d.redelivered) for d in iter(lambda n=name: store.get(n), None)]
            assert found == rows
    assert verify(path).ok


def test_a_version_2_folder_is_refused_for_writing(path: str, fixtures: dict[str, Any]) -> None:
    """The error names the version, and the folder is unchanged."""
    shutil.copytree(fixtures["v2"].vhost, path)
    with pytest.raises(UnsupportedFormat, match="index version 2"):
        RabbitStore.open(path, "r+")


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_after_a_failed_journal_the_queue_only_reads(path: str, operation: str) -> None:
    """The publisher gets the error, no later sync confirms anything, and confirmed messages survive."""
    store = RabbitStore.open(path, settings=QUIET)
    store.declare_queue("q")
    store.publish("q", b"safe")
    store.sync()
    store.close()
    disk = FailingDisk(1 << 40, only=operation)
    store = RabbitStore.open(path, settings=QUIET, disk=disk)
    store.publish("q", b"lost")
    disk.fail_at = len(disk.calls) + 1
    with pytest.raises(DiskError):
        store.sync()
    with pytest.raises(StoreReadOnly):
        store.sync()
    store.abandon()
    assert [message.body for message in RabbitStore.open(path, "r").messages()][:1] == [b"safe"]


def test_a_foreign_folder_is_not_turned_into_a_store(tmp_path: Path) -> None:
    """The error names it, and it is unchanged."""
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(UnknownStore, match="not empty"):
        RabbitStore.open(str(tmp_path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["commitlog"]


def test_a_nodes_data_folder_is_found(path: str, tmp_path: Path) -> None:
    """It opens the only virtual host, or the one that is named."""
    for vhost in ("/", "other"):
        position = tmp_path / "node" / "msg_stores" / "vhosts" / vhost_folder_name(vhost)
        with RabbitStore.open(str(position), vhost=vhost, settings=QUIET) as store:
            store.declare_queue("q")
            store.publish("q", vhost.encode())
    with pytest.raises(UnknownStore, match="several"):
        RabbitStore.open(str(tmp_path / "node"), "r")
    found = RabbitStore.open(str(tmp_path / "node"), "r", vhost="other")
    assert [message.body for message in found.messages()] == [b"other"] and found.vhost == "other"


def test_an_open_store_is_stopped_cleanly_at_exit(path: str) -> None:
    """A process that just ends stops the store cleanly: nothing counts as redelivered."""
    script = f"from rabbitstore import RabbitStore\ns = RabbitStore.open({path!r})\ns.declare_queue('q')\ns.publish('q', b'x')"
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=True)
    with RabbitStore.open(path, settings=QUIET) as store:
        delivery = store.get("q")
        assert (delivery.body, delivery.redelivered) == (b"x", False)


def test_a_forked_child_does_not_touch_the_parents_store(path: str) -> None:
    """Calls in the child raise StoreClosed; the parent continues."""
    with RabbitStore.open(path) as store:
        store.declare_queue("q")
        child = os.fork()
        if child == 0:
            try:
                store.publish("q", b"child")
            except StoreClosed:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        store.publish("q", b"parent")
    with RabbitStore.open(path, settings=QUIET) as store:
        assert drained(store, "q") == [b"parent"]


def test_a_queue_named_twice_gets_a_message_once(path: str) -> None:
    """A large body used to be stored twice and counted once, which broke the store and its clean stop."""
    with RabbitStore.open(path, settings=QUIET) as store:
        store.declare_queue("q")
        store.publish(["q", "q"], b"x" * 10_000)
        store.sync()
        assert drained(store, "q") == [b"x" * 10_000]


class FullForTheCollector(WrappedDisk):
    """A disk without space for the collector's copies while `is_full`."""

    is_full = True
    tries = 0

    def before(self, operation: str, path: str) -> None:
        if path.endswith(".rdt") and operation == "create" and self.is_full:
            self.tries += 1
            raise DiskFull(operation, path, errno.ENOSPC, "no space")


def test_a_full_disk_stops_the_collector_but_no_sync(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk used to end the housekeeper's thread: no sync and no collection followed."""
    for name in ("_RETRY_S", "_IDLE_S"):
        monkeypatch.setattr(housekeeper, name, 0.01)
    disk = FullForTheCollector()
    settings = RabbitSettings(store=StoreSettings(file_size_limit=20_000, file_garbage_fraction=0.2))
    with RabbitStore.open(path, disk=disk, settings=settings) as store:
        store.declare_queue("q")
        for number in range(40):
            store.publish("q", b"%04d" % number + bytes(5000))
        store.sync()
        got = [store.get("q") for _ in range(30)]
        for number, message in enumerate(got):
            if number % 3:
                store.ack(message)
        until(lambda: disk.tries > 2)
        store.publish("q", b"later")
        until(lambda: not store.has_work)
        before = len(list(store.parts.persistent.files))
        disk.is_full = False
        until(lambda: len(list(store.parts.persistent.files)) < before)


def test_many_threads_publish_and_consume(path: str) -> None:
    """With concurrent publishers, consumers and collector every message comes once, each publisher's in order."""
    settings = RabbitSettings(
        store=StoreSettings(file_size_limit=100_000, file_garbage_fraction=0.2), memory_limit_bytes=500_000, io_batch_size=64
    )
    found, errors = [], []
    with RabbitStore.open(path, settings=settings) as store:
        store.declare_queue("q")
        is_over = threading.Event()

        def publish(number: Any) -> None:
            try:
                publisher = store.publisher(credit=(50, 20))
                for count in range(400):
                    publisher.publish("q", b"%d:%d:" % (number, count) + b"x" * (count % 7 * 1000))
                publisher.wait()
            except Exception as error:
                errors.append(error)

        def consume() -> None:
            try:
                with store.consumer("q", prefetch=20) as consumer:
                    while not (is_over.is_set() and len(store.queue("q")) == 0):
                        delivery = consumer.get(timeout_s=0.05)
                        if delivery is not None:
                            found.append(delivery.body)
                            consumer.ack(delivery)
            except Exception as error:
                errors.append(error)

        publishers = [threading.Thread(target=publish, args=(number,)) for number in range(3)]
        consumer = threading.Thread(target=consume)
        for thread in (*publishers, consumer):
            thread.start()
        for thread in publishers:
            thread.join()
        is_over.set()
        consumer.join()
        assert errors == [] and len(store.queue("q").unacked) == 0
        persistent = store.parts.persistent
        until(
            lambda: store.process() or persistent.files.valid_bytes == 0
        )  # a file that is being collected gives them up later
    assert len(found) == len(set(found)) == 1200
    for number in range(3):
        mine = [int(body.split(b":")[1]) for body in found if body.startswith(b"%d:" % number)]
        assert mine == list(range(400))


@pytest.mark.parametrize("text", [b"", bytes(5), b"another", None])
def test_a_damaged_vhost_name_is_read_from_the_folders(text: bytes | None, tmp_path: Path) -> None:
    """The names of the folder and of its queues show the virtual host; a server writes `.vhost` again when it starts."""
    position = tmp_path / vhost_folder_name("orders")
    with RabbitStore.open(str(position), vhost="orders", settings=QUIET) as store:
        store.declare_queue("q")
        store.publish("q", b"body")
    name = position / ".vhost"
    name.unlink() if text is None else name.write_bytes(text)
    assert RabbitStore.open(str(position), "r").vhost == "orders"
    assert [problem.kind for problem in verify(str(position)).problems] == ([] if text is None else ["bad_vhost_name"])
