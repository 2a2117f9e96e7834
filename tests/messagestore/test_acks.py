"""Acknowledgements are as durable as puts: after a kill or a power failure only what was in hands comes again."""

from __future__ import annotations

import contextlib
import errno
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab.rocketmq_lab import abandon, lab_config
from messagestore import FlushMode, MessageStore, StoreConfig, engine, parts
from messagestore.broker.config import ack_file
from messagestore.broker.config.ack_file import AckFile, read_acks
from storageio import REAL_DISK, Disk, DiskError, DiskFull
from storageio.testing import ForgettingDisk, WrappedDisk
from tests.helpers import until

SMALL = StoreConfig.small()
COUNT = 40
KILLED = """
import os, signal, sys
from messagestore import MessageStore, StoreConfig
store = MessageStore.open(sys.argv[1], config=StoreConfig.small())
consumer = store.consumer("T", group="G")
taken = consumer.poll(30)
acknowledged = [int(one) for one in sys.argv[2].split()]
for message in taken:
    if int(message.body) in acknowledged:
        assert consumer.ack(message)
os.kill(os.getpid(), signal.SIGKILL)
"""


def filled(folder: Path, count: int = COUNT) -> Path:
    """Return a store with numbered messages in one queue."""
    with MessageStore.open(folder, config=SMALL) as store:
        store.create_topic("T", 1)
        for number in range(count):
            store.put("T", b"%d" % number)
    return folder


def killed(folder: Path, acknowledged: list[int]) -> None:
    """Take 30 messages in another process, acknowledge some, and kill it."""
    program = [sys.executable, "-c", KILLED, str(folder), " ".join(map(str, acknowledged))]
    assert subprocess.run(program, check=False, timeout=60).returncode == -signal.SIGKILL


def delivered(folder: Path | str, disk: Disk = REAL_DISK, config: StoreConfig = SMALL) -> list[int]:
    """Return the numbers of all messages that a new consumer of the group gets."""
    with MessageStore.open(folder, config=config, disk=disk) as store:
        consumer = store.consumer("T", group="G")
        return [int(message.body) for page in iter(partial(consumer.poll, 1000), []) for message in page]


@pytest.mark.parametrize(
    "acknowledged",
    [[], [0], [*range(30)], [*range(20)], [1], [*range(1, 30)], [0, 2, 4, 29], [*range(0, 30, 3)]],
    ids=["none", "first", "all", "in order", "second", "all but the first", "gaps", "every third"],
)
def test_a_killed_worker_repeats_only_what_it_had_not_acknowledged(tmp_path: Path, acknowledged: list[int]) -> None:
    """In order and out of order, although nothing was written to `consumerOffset.json`."""
    killed(filled(tmp_path / "s"), acknowledged)
    expected = [number for number in range(COUNT) if number not in acknowledged]
    assert delivered(tmp_path / "s") == expected
    assert delivered(tmp_path / "s") == expected  # a clean stop keeps it


def test_a_second_kill_repeats_nothing_more(tmp_path: Path) -> None:
    """Each writer takes over what the one before has left."""
    killed(filled(tmp_path / "s"), [0, 1, 5])
    killed(tmp_path / "s", [2, 7, 8])
    assert delivered(tmp_path / "s") == [number for number in range(COUNT) if number not in {0, 1, 2, 5, 7, 8}]


@pytest.mark.deep
@pytest.mark.parametrize("kills", [1, 2])
def test_kills_while_a_store_is_opened_repeat_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:  # fmt: skip
    """At each change of a file: the file of acknowledgements and the abort file never contradict each other."""
    acknowledged = [0, 1, 5]
    killed(filled(tmp_path / "s"), acknowledged)
    for number in range(1, 16):  # more than an opening has
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "s", folder)
        for process in range(1_000_000, 1_000_000 + kills):
            for module in ("parts", "engine"):
                monkeypatch.setattr(f"messagestore.{module}.process_id", lambda process=process: process)
            disk = DyingDisk(number)
            with contextlib.suppress(DiskError):
                store = MessageStore.open(folder, config=SMALL, disk=disk)
                disk.left = 0
                store.close()
        monkeypatch.undo()
        assert delivered(folder) == [one for one in range(COUNT) if one not in acknowledged], f"killed at change {number}"
        shutil.rmtree(folder)


class DyingDisk(WrappedDisk):
    """A disk of a process that is killed at its N-th change of a file: it changes nothing from then on."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def before(self, operation: str, path: str) -> None:
        if operation in ("write", "truncate", "sync", "rename", "delete", "sync_folder"):
            self.left -= 1
            if self.left <= 0:
                raise DiskError(operation, path, errno.EIO, "killed")


def test_a_reader_has_the_lag_of_a_killed_writer(tmp_path: Path) -> None:
    """The offsets are those of the acknowledgements, not those of the last write of the JSON file."""
    killed(filled(tmp_path / "s"), [*range(20)])
    assert not (tmp_path / "s" / "config" / "consumerOffset.json").exists()
    with MessageStore.open(tmp_path / "s", "r") as store:
        assert store.committed_offsets("T", "G") == {0: 20}


def test_another_process_has_the_lag_of_a_running_writer(tmp_path: Path) -> None:
    """Immediately after an acknowledgement."""
    with MessageStore.open(filled(tmp_path / "s"), config=SMALL) as store, MessageStore.open(tmp_path / "s", "r") as reader:
        consumer = store.consumer("T", group="G")
        for number, message in enumerate(consumer.poll(30), 1):
            consumer.ack(message)
            assert reader.committed_offsets("T", "G") == {0: number}


def test_offsets_that_another_program_wrote_hold(tmp_path: Path) -> None:
    """A broker that consumed, or was told to begin again, leaves another offset in `consumerOffset.json`."""
    store = filled(tmp_path / "s")
    with MessageStore.open(store, config=SMALL) as opened:
        consumer = opened.consumer("T", group="G")
        for message in consumer.poll(5):
            consumer.ack(message)
    killed(store, [*range(5, 20)])
    path = store / "config" / "consumerOffset.json"
    assert "0:5" in path.read_text()
    path.write_text(path.read_text().replace("0:5", "0:3"))
    assert delivered(store) == [*range(3, COUNT)]


@pytest.mark.parametrize("abort", [b"1", b"", None], ids=["of another process", "without a number", "missing"])
def test_acknowledgements_do_not_count_after_another_program_opened_the_store(tmp_path: Path, abort: bytes | None) -> None:
    """It may have cut the log and put other messages under the same offsets."""
    killed(filled(tmp_path / "s"), [*range(20)])
    path = tmp_path / "s" / "abort"
    if abort is None:
        path.unlink()
    else:
        path.write_bytes(abort)
    assert delivered(tmp_path / "s") == [*range(COUNT)]


def empty(data: bytes) -> bytes:
    """Return an empty file."""
    return data[:0]


def zeros(data: bytes) -> bytes:
    """Return a file of zeros."""
    return bytes(len(data))


def torn(data: bytes) -> bytes:
    """Return a file that ends within its first row."""
    return data[: ack_file.HEAD.size + 20]


def flipped(data: bytes) -> bytes:
    """Return a file whose first key has another letter."""
    return data.replace(b"T@G", b"U@G")


@pytest.mark.parametrize("damage", [empty, zeros, torn, flipped])
def test_a_damaged_file_of_acknowledgements_skips_no_message(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """The offsets of `consumerOffset.json` hold; the store opens."""
    killed(filled(tmp_path / "s"), [*range(20)])
    path = tmp_path / "s" / "brokerstore" / "acks"
    path.write_bytes(damage(path.read_bytes()))
    assert delivered(tmp_path / "s") == [*range(COUNT)]


def test_offsets_behind_a_cut_log_do_not_count(tmp_path: Path) -> None:
    """New messages take the numbers of those that the log lost, and none of them is skipped."""
    store = filled(tmp_path / "s")
    killed(store, [*range(20), 25, 29])
    log = min((store / "commitlog").iterdir())
    with MessageStore.open(store, "r") as reader:
        cut = next(iter(reader.read("T", 0, 10, 11))).physical_offset
    data = bytearray(log.read_bytes())
    data[cut:] = bytes(len(data) - cut)
    log.write_bytes(data)
    with MessageStore.open(store, config=SMALL) as opened:
        for number in range(100, 130):
            opened.put("T", b"%d" % number)
        assert [int(one.body) for one in opened.consumer("T", group="G").poll(100)] == [*range(100, 130)]


def test_a_clean_stop_leaves_no_file_without_acknowledgements_out_of_order(tmp_path: Path) -> None:
    """RocketMQ's own file has everything then."""
    with MessageStore.open(filled(tmp_path / "s"), config=SMALL) as store:
        consumer = store.consumer("T", group="G")
        for message in consumer.poll(10):
            consumer.ack(message)
        assert (tmp_path / "s" / "brokerstore" / "acks").exists()
    assert not (tmp_path / "s" / "brokerstore" / "acks").exists()


@pytest.mark.parametrize("flush", [FlushMode.SYNC, FlushMode.ASYNC])
def test_a_power_failure_repeats_no_message_acknowledged_under_synchronous_flush(flush: FlushMode) -> None:
    """At any moment; and in both modes no message is skipped that was not acknowledged."""
    disk, chance = ForgettingDisk(), Random(7)
    config = lab_config(flush_disk_type=flush)
    acknowledged: set[int] = set()
    store = MessageStore.open("/s", config=config, disk=disk)
    store.create_topic("T", 1)
    for number in range(12):
        store.put("T", b"%d" % number)
    store.flush()
    consumer = store.consumer("T", group="G")
    taken = consumer.poll(12)
    engine = store.engine
    for thread in (engine.housekeeper.thread, engine.dispatcher.thread, *engine.flusher.threads):
        thread.stop()  # nothing changes while an image is made
    for message in chance.sample(taken, len(taken)):
        consumer.ack(message)
        acknowledged.add(int(message.body))
        for image in (disk.any_image(chance) for _ in range(4)):
            found = delivered("/s", ForgettingDisk.of(image), config)
            assert found == sorted(set(found))
            assert set(found) >= set(range(12)) - acknowledged
            if flush is FlushMode.SYNC:
                assert not set(found) & acknowledged
    abandon(store)


def test_rows_equal_those_of_a_plain_model_after_any_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random commits forward and backward, acknowledgements out of order, messages in hand and deletions, each with a kill."""
    monkeypatch.setattr(ack_file, "SIZE_MIN", 256)  # the file is written again often
    for seed in range(30):
        chance, disk = Random(seed), ForgettingDisk()
        acks = AckFile(disk, "/own", 7)
        offsets: dict[tuple[str, int], int] = {}
        done: dict[tuple[str, int], set[int]] = {}
        handed: dict[tuple[str, int], set[int]] = {}
        taken: dict[tuple[str, int], dict[int, bytes]] = {}
        for _ in range(80):
            key = chance.choice(["T@G", "T@H", "Ünicode@G"]), chance.randrange(2)
            step = chance.random()
            if step < 0.2:
                given = {chance.randrange(30): chance.randbytes(chance.randrange(40)) for _ in range(2)}
                acks.add_taken(key, given)
                offsets.setdefault(key, 0)
                taken[key] = taken.get(key, {}) | given
            elif step < 0.4:
                offset = chance.randrange(30)
                backward = offset < offsets.get(key, 0)
                acks.record(key, offset)
                offsets[key] = offset
                done[key] = set() if backward else {one for one in done.get(key, set()) if one >= offset}
                handed[key] = set() if backward else {one for one in handed.get(key, set()) if one >= offset}
                taken[key] = {} if backward else taken.get(key, {})
            elif step < 0.65:
                offset = chance.randrange(30)
                acks.add_done(key, offset)
                offsets.setdefault(key, 0)
                done[key] = done.get(key, set()) | ({offset} if offset >= offsets[key] else set())
                handed[key] = handed.get(key, set()) - {offset}
                taken.get(key, {}).pop(offset, None)
            elif step < 0.85:
                more = {chance.randrange(30), chance.randrange(30)}
                acks.add_handed(key, more)
                offsets.setdefault(key, 0)
                handed[key] = handed.get(key, set()) | {one for one in more if one >= offsets[key]}
            elif step < 0.95:
                offset = chance.randrange(30)
                acks.give_back(key, [offset])
                handed[key] = handed.get(key, set()) - {offset}
                taken.get(key, {}).pop(offset, None)
            else:
                acks.drop([key[0]])
                offsets = {known: value for known, value in offsets.items() if known[0] != key[0]}
                done = {known: value for known, value in done.items() if known[0] != key[0]}
                handed = {known: value for known, value in handed.items() if known[0] != key[0]}
                taken = {known: value for known, value in taken.items() if known[0] != key[0]}
            found = read_acks(ForgettingDisk.of(disk.after_kill()), "/own", 7)
            assert {(one.key, one.queue_id): one.next_offset for one in found} == offsets
            assert {(one.key, one.queue_id): one.done for one in found if one.done} == {k: v for k, v in done.items() if v}
            for one in found:
                assert one.handed == handed.get((one.key, one.queue_id), set()) - one.done
                kept = taken.get((one.key, one.queue_id), {})
                assert one.taken == {offset: text for offset, text in kept.items() if offset >= one.next_offset}


def test_messages_behind_offsets_that_were_reset_come_again(tmp_path: Path) -> None:
    """Also those that were acknowledged before an earlier one, and also if the offset itself did not change."""
    with MessageStore.open(filled(tmp_path / "s"), config=SMALL) as store:
        consumer = store.consumer("T", group="G")
        for message in consumer.poll(10)[2::2]:
            consumer.ack(message)
        assert store.reset_offsets("T", "G", 0) == {0: 0}
        assert [int(message.body) for message in consumer.poll(10)] == [*range(10)]
    assert delivered(tmp_path / "s") == [*range(COUNT)]


@pytest.mark.parametrize("committed", [1, 3, 6, 8, 1000, (1 << 63) - 1])
def test_any_offset_can_be_committed_over_acknowledged_messages(tmp_path: Path, committed: int) -> None:
    """A client may commit any of 64 bits: what it takes to forget earlier acknowledgements does not grow with the offset."""
    with MessageStore.open(filled(tmp_path / "s"), config=SMALL) as store:
        offsets, acknowledged = store.engine.consumer_offsets(), {2, 3, 5, 7}
        offsets.commit("T", "G", 0, 0)
        for offset in acknowledged:
            offsets.add_done("T", "G", 0, offset)
        offsets.commit("T", "G", 0, committed)
        assert offsets.done("T", "G", 0) == {offset for offset in acknowledged if offset >= committed}
        assert offsets.get("T", "G", 0) == committed


def refuse_space(operation: str, path: str) -> None:
    """Leave no space for the file of acknowledgements."""
    if operation == "allocate" and "acks" in path:
        raise DiskFull(operation, path, errno.ENOSPC, "no space")


def test_acknowledging_goes_on_without_space_for_the_file(caplog: pytest.LogCaptureFixture) -> None:
    """The offsets are in the JSON file, as before; the error is logged once."""
    disk = ForgettingDisk()
    disk.refuse = refuse_space
    acks = AckFile(disk, "/own", 7)
    for offset in range(5):
        acks.record(("T@G", 0), offset)
        acks.add_done(("T@G", 0), offset + 2)
    acks.sync()
    acks.close(is_clean=True)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


WORKER = """
import os, random, sys
from messagestore import MessageStore, StoreConfig
report = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
store = MessageStore.open(sys.argv[1], config=StoreConfig.small(flush_consumer_offset_interval_ms=1000))
consumer, chance, hand = store.consumer("T", group="G"), random.Random(int(sys.argv[3])), []
while True:
    for message in consumer.poll(20 - len(hand), 0.01):
        os.write(report, b"+%d " % int(message.body))
        hand.append(message)
    if not hand:
        break
    message = hand.pop(chance.randrange(len(hand)))
    if chance.random() < 0.05:
        consumer.nack(message, delay_level=1)
    else:
        consumer.ack(message)
    os.write(report, b"-%d " % int(message.body))
"""


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(3))
def test_workers_killed_at_any_moment_repeat_only_what_they_had_in_hand(tmp_path: Path, seed: int) -> None:
    """Acknowledged in random order, some sent to the retry topic; each message is delivered in the end."""
    store, report, chance = filled(tmp_path / "s", 20_000), tmp_path / "report", Random(seed)
    delivered_once: set[int] = set()
    for life in range(30):
        program = [sys.executable, "-c", WORKER, str(store), str(report), str(1000 * seed + life)]
        worker = subprocess.Popen(program)
        until(report.exists, 60)
        time.sleep(chance.random() * 0.3)
        worker.kill()
        worker.wait()
        words = report.read_text().split() if report.exists() else []
        report.unlink(missing_ok=True)
        taken = {int(word) for word in words if word[0] == "+"}
        done = {int(word[1:]) for word in words if word[0] == "-"}
        assert not taken & delivered_once, "an acknowledged message came again"
        in_hand = taken - done
        assert len(in_hand) <= 20
        delivered_once |= done
    assert len(delivered_once) > 100


def test_acknowledging_is_durable_again_when_there_is_space(caplog: pytest.LogCaptureFixture) -> None:
    """The file is written at the next save of the offsets, with everything that is acknowledged."""
    disk = ForgettingDisk()
    disk.refuse = refuse_space
    acks = AckFile(disk, "/own", 7)
    acks.record(("T@G", 0), 3)
    acks.add_done(("T@G", 0), 5)
    acks.end_save()
    disk.refuse = None
    acks.end_save()
    acks.add_done(("T@G", 0), 7)
    (found,) = read_acks(ForgettingDisk.of(disk.after_kill()), "/own", 7)
    assert (found.next_offset, found.done) == (3, {5, 7})
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


@pytest.mark.deep
def test_processes_killed_one_after_the_other_while_they_open_the_store_repeat_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each call of an opening, and each call of the next one: the file counts for the process that follows."""
    disk, chance, config = ForgettingDisk(), Random(3), lab_config()
    identity = [101]
    monkeypatch.setattr(parts, "process_id", lambda: identity[0])
    monkeypatch.setattr(engine, "process_id", lambda: identity[0])
    with MessageStore.open("/s", config=config, disk=disk) as store:
        store.create_topic("T", 1)
        for number in range(12):
            store.put("T", b"%d" % number)
        consumer = store.consumer("T", group="G")
        while found := consumer.poll(12):  # a page ends with a log file
            for message in found:
                if int(message.body) not in (1, 4):
                    consumer.ack(message)
        killed_image = disk.after_kill()

    def images_of_opening(image: Any, process: int) -> list[Any]:
        """Return what a kill at each call that changes or syncs something leaves."""
        found: list[Any] = []
        opened = ForgettingDisk.of(image)
        identity[0] = process

        def record(operation: str, _path: str) -> None:
            if operation in ("write", "truncate", "rename", "delete", "sync", "create"):
                found.append(opened.after_kill())

        opened.refuse = record
        store = MessageStore.open("/s", config=config, disk=opened)
        opened.refuse = None
        abandon(store)
        return [*found, opened.after_kill()]

    for first in images_of_opening(killed_image, 202):
        second = images_of_opening(first, 3003)
        for image in (*chance.sample(second, min(6, len(second))), second[-1]):
            identity[0] = 404
            assert delivered("/s", ForgettingDisk.of(image), config) == [1, 4]
