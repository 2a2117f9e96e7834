"""The variable queue against a simple model, in both modes, with restarts; and its single rules."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rabbitstore.engine.msg_store_recovery import open_store
from rabbitstore.engine.queue_index_cy import QueueIndex
from rabbitstore.engine.variable_queue_cy import DEFAULT, LAZY, VariableQueue
from rabbitstore.settings import IndexSettings, RabbitSettings, StoreSettings
from storageio import REAL_DISK, StoreCorrupt, StoreError

SETTINGS = RabbitSettings(
    store=StoreSettings(file_size_limit=2000),
    index=IndexSettings(segment_entries=8, journal_entries_max=40),
    io_batch_size=2,
)
EMBED_BELOW = 30


class Opened:
    """A queue with its own folder and stores."""

    def __init__(self, folder: str | Path, mode: str = DEFAULT, next_deliver: Any = None, durable: bool = True) -> None:
        index = QueueIndex(REAL_DISK, f"{folder}/queue", SETTINGS.index)
        counts, entries, persistent = {}, [], [0, 0]
        for entry in index.load(lambda entry: entry.persistent):
            persistent = [persistent[0] + 1, persistent[1] + entry.size]
            if entry.term is None:
                counts[entry.msg_id] = counts.get(entry.msg_id, 0) + 1
                entries.append(entry)
        self.store, missing = open_store(REAL_DISK, f"{folder}/persistent", SETTINGS.store, counts)
        assert not missing
        shutil.rmtree(f"{folder}/transient", ignore_errors=True)
        self.transient, _ = open_store(REAL_DISK, f"{folder}/transient", SETTINGS.store, {}, is_synced=False)
        clients = self.store.client(), self.transient.client()
        self.queue = VariableQueue(
            index,
            *clients,
            SETTINGS,
            REAL_DISK.now_ms,
            mode=mode,
            durable=durable,
            next_deliver_seq_id=next_deliver,
            persistent=tuple(persistent),
        )
        self.count = 0

    def publish(self, body: bytes, persistent: bool = True, expiry_us: int = 0) -> int:
        self.count += 1
        embedded = len(body) < EMBED_BELOW
        ident = body[:8].ljust(8, b".") + id(self).to_bytes(8, "big")[2:] + self.count.to_bytes(2, "big")
        return self.queue.publish(ident, body, len(body), expiry_us=expiry_us, persistent=persistent, embedded=embedded)

    def close(self) -> None:
        self.queue.sync()
        self.queue.index.close()
        self.store.close()
        self.transient.close()

    def kill(self) -> None:
        self.queue.index.abandon()
        self.store.abandon()
        self.transient.abandon()


class QueueMachine(RuleBasedStateMachine):
    """All operations, memory targets, mode changes and restarts, checked after each step."""

    @initialize(mode=st.sampled_from([DEFAULT, LAZY]))
    def start(self, mode: Any) -> None:
        self.folder = tempfile.mkdtemp(prefix="brokerstore-vq-")
        self.mode = mode
        self.opened = Opened(self.folder, mode)
        self.waiting = {}  # sequence number: (body, persistent)
        self.pending = {}
        self.delivered = set()
        self.number = 0
        self.all_redelivered_below = 0

    @property
    def queue(self) -> Any:
        return self.opened.queue

    @rule(count=st.integers(1, 9), size=st.sampled_from([5, 29, 30, 120]), persistent=st.booleans())
    def publish(self, count: Any, size: Any, persistent: Any) -> None:
        for _ in range(count):
            self.number += 1
            body = b"%d" % self.number + b"x" * size
            self.waiting[self.opened.publish(body, persistent)] = body, persistent

    @rule(count=st.integers(1, 12), ack_required=st.booleans())
    def fetch(self, count: Any, ack_required: Any) -> None:
        for _ in range(count):
            found = self.queue.fetch(ack_required=ack_required)
            if not self.waiting:
                assert found is None
                return
            seq_id = min(self.waiting)
            body, persistent = self.waiting.pop(seq_id)
            message, term, redelivered = found
            assert (message.seq_id, term, message.persistent) == (seq_id, body, persistent)
            assert redelivered == (seq_id in self.delivered or seq_id < self.all_redelivered_below)
            self.delivered.add(seq_id)
            if ack_required:
                self.pending[seq_id] = body, persistent

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def acknowledge_one(self, data: Any) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.pending)))
        self.queue.acknowledge([seq_id])
        del self.pending[seq_id]

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def acknowledge_many(self, data: Any) -> None:
        bound = data.draw(st.sampled_from(sorted(self.pending)))
        self.queue.acknowledge([seq_id for seq_id in sorted(self.pending) if seq_id <= bound])
        self.pending = {seq_id: held for seq_id, held in self.pending.items() if seq_id > bound}

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def requeue(self, data: Any) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.pending)), min_size=1, unique=True))
        self.queue.requeue(chosen)
        for seq_id in chosen:
            self.waiting[seq_id] = self.pending.pop(seq_id)

    @rule(count=st.integers(4, 20), keep=st.integers(2, 4), limit=st.sampled_from([0, 2, None]))
    def requeue_with_holes(self, count: Any, keep: Any, limit: Any) -> None:
        """Unacknowledged messages lie between those that are paged out."""
        self.publish(count, 40, True)
        self.fetch(count, True)
        chosen = [seq_id for number, seq_id in enumerate(sorted(self.pending)) if number % keep]
        self.queue.requeue(chosen)
        for seq_id in chosen:
            self.waiting[seq_id] = self.pending.pop(seq_id)
        if limit is not None:
            self.queue.set_target_ram_count(limit)
            self.queue.reduce_memory_use()

    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == len(self.waiting)
        self.waiting.clear()

    @rule(limit=st.sampled_from([0, 1, 3, 10, float("inf")]))
    def memory(self, limit: Any) -> None:
        self.queue.set_target_ram_count(limit)

    @rule()
    def sync(self) -> None:
        self.queue.sync()

    @rule(mode=st.sampled_from([DEFAULT, LAZY]))
    def change_mode(self, mode: Any) -> None:
        self.mode = mode
        self.queue.set_mode(mode)

    @rule()
    def stop_and_start(self) -> None:
        bound = self.queue.next_deliver_seq_id
        self.opened.close()
        self._start_again(bound)

    @rule()
    def kill_and_start(self) -> None:
        self.queue.sync()
        self.opened.kill()
        self._start_again(None)

    def _start_again(self, next_deliver: Any) -> None:
        everything = {**self.waiting, **self.pending}
        self.waiting = {seq_id: held for seq_id, held in everything.items() if held[1]}
        self.pending = {}
        count = self.opened.count
        self.opened = Opened(self.folder, self.mode, next_deliver)
        self.opened.count = count
        self.delivered &= set(self.waiting)
        self.all_redelivered_below = self.queue.next_deliver_seq_id

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "opened"):
            return
        assert len(self.queue) == len(self.waiting)
        assert self.queue.pending_count == len(self.pending)
        self.queue.check()
        self._check_states()
        for store in (self.opened.store, self.opened.transient):
            store.process()
            store.check()

    def _check_states(self) -> None:
        """Assert that each message is in exactly one list and has the properties of its state."""
        queue, index = self.queue, self.queue.index
        found = [message for part in (queue.q4, queue.q3, queue.q2, queue.q1) for message in part]
        for message in found:
            self._check_held(message, *self.waiting[message.seq_id])
        for pending, is_in_memory in ((queue.ram_pending, True), (queue.disk_pending, False)):
            for seq_id, message in pending.items():
                assert (message.term is not None) == is_in_memory
                self._check_held(message, *self.pending[seq_id])
        assert sorted([*queue.ram_pending, *queue.disk_pending]) == sorted(self.pending)
        in_delta = self._read_delta()
        for message in in_delta:
            body, persistent = self.waiting[message.seq_id]
            assert message.persistent == persistent and message.embedded == (len(body) < EMBED_BELOW)
            assert (message.term if message.embedded else self._stored(message)) == body, "a delta is whole on the disk"
        assert len(in_delta) == queue.delta.count
        assert sorted(message.seq_id for message in (*found, *in_delta)) == sorted(self.waiting)
        on_disk = sum(held[1] for held in (*self.waiting.values(), *self.pending.values()))
        assert queue.persistent_count == on_disk <= index.unacked

    def _read_delta(self) -> Any:
        """Return the waiting messages of the range from the index."""
        delta, index, found = self.queue.delta, self.queue.index, []
        start = delta.start
        while delta.count and start < delta.stop:
            stop = min(index.segment_end(start), delta.stop)
            found += [message for message in index.read(start, stop) if message.seq_id in self.waiting]
            start = stop
        return found

    def _check_held(self, message: Any, body: Any, persistent: Any) -> None:
        """Assert that alphas have their term, betas are in a store, and gammas in the index."""
        assert message.persistent == persistent and message.embedded == (len(body) < EMBED_BELOW)
        if message.term is not None:
            assert message.term == body
        if message.in_store:
            assert self._stored(message) == body
        assert message.in_index or not persistent
        if message.in_index:
            read = self.queue.index.read(message.seq_id, message.seq_id + 1)
            assert [(entry.msg_id, entry.persistent, entry.size) for entry in read] == [(message.msg_id, persistent, len(body))]

    def _stored(self, message: Any) -> Any:
        store = self.opened.store if message.persistent else self.opened.transient
        return store.read(message.msg_id)

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            self.opened.kill()
            shutil.rmtree(self.folder)


QueueMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestQueueMachine = pytest.mark.deep(QueueMachine.TestCase)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    found = Opened(tmp_path)
    yield found
    found.kill()


def bodies(queue: VariableQueue) -> list[bytes]:
    found = []
    while (taken := queue.fetch(ack_required=False)) is not None:
        found.append(taken[1])
    return found


def test_a_fetch_needs_0_to_2_disk_reads_by_message_state(opened: Opened) -> None:
    """An alpha costs no read, a beta one, a delta two (the segment once)."""
    queue = opened.queue
    for number in range(40):
        opened.publish(b"%04d" % number + b"x" * 100)
    queue.sync()
    queue.fetch()
    assert (queue.disk_reads, queue.index.read_count) == (0, 0)
    queue.set_target_ram_count(0)
    queue.index.flush()
    assert queue.q3 and queue.delta.count and not queue.q1 and not queue.q4
    queue.fetch()
    assert (queue.disk_reads, queue.index.read_count) == (1, 0)
    for _ in range(len(queue.q3)):
        queue.fetch()
    assert queue.index.read_count == 1
    before = queue.disk_reads
    queue.fetch()
    assert (queue.disk_reads - before, queue.index.read_count) == (1, 1)


def test_a_failed_segment_read_loses_no_message(opened: Opened, tmp_path: Path) -> None:
    """The message before the failed read used to be lost until a restart."""
    queue = opened.queue
    for number in range(40):
        opened.publish(b"%04d" % number + b"x" * 100)
    queue.sync()
    queue.set_target_ram_count(0)
    queue.index.flush()
    while len(queue.q3) > 1:
        queue.fetch(ack_required=False)
    left, first = len(queue), queue.q3[0].seq_id
    segments = list(tmp_path.rglob("*.idx"))
    for path in segments:
        path.rename(path.with_suffix(".aside"))
        path.mkdir()
    with pytest.raises(StoreError):
        queue.fetch(ack_required=False)
    for path in segments:
        path.rmdir()
        path.with_suffix(".aside").rename(path)
    assert (len(queue), queue.q3[0].seq_id) == (left, first)
    assert [body[:4] for body in bodies(queue)] == [b"%04d" % number for number in range(40 - left, 40)]


def test_a_mode_that_cannot_be_changed_now_stays(tmp_path: Path) -> None:
    """After a failed read of a segment the new mode used to be set already, which changed the order."""
    found = Opened(tmp_path, mode=LAZY)
    for number in range(3):
        found.publish(b"%04d" % number + b"x" * 100)
    found.queue.sync()
    found.queue.index.flush()
    segments = list(tmp_path.rglob("*.idx"))
    for path in segments:
        path.rename(path.with_suffix(".aside"))
        path.mkdir()
    with pytest.raises(StoreError):
        found.queue.set_mode(DEFAULT)
    for path in segments:
        path.rmdir()
        path.with_suffix(".aside").rename(path)
    assert found.queue.mode == LAZY
    found.publish(b"0003" + b"x" * 100)
    assert [body[:4] for body in bodies(found.queue)] == [b"0000", b"0001", b"0002", b"0003"]
    found.kill()


def test_transient_messages_touch_the_disk_under_pressure_only(opened: Opened) -> None:
    """Transient alphas are in no store and index; only persistent messages are gammas."""
    queue = opened.queue
    for number in range(20):
        opened.publish(b"%d" % number + b"y" * 50, persistent=False)
    opened.transient.process()
    assert opened.transient.files.total_bytes == 0 and not queue.index.needs_sync
    queue.set_target_ram_count(5)
    assert all(not message.in_index for message in queue.q3)
    opened.transient.process()
    assert opened.transient.files.total_bytes > 0
    assert len(bodies(queue)) == 20


def test_persistent_messages_keep_a_copy_in_memory_until_pressure(opened: Opened) -> None:
    """They are written on arrival and read from memory, after memory pressure from disk."""
    queue = opened.queue
    opened.publish(b"p" * 100)
    opened.publish(b"q" * 100)
    queue.sync()
    assert opened.store.files.total_bytes == 250
    assert queue.fetch()[1] == b"p" * 100 and queue.disk_reads == 0
    queue.set_target_ram_count(0)
    assert queue.fetch()[1] == b"q" * 100 and queue.disk_reads == 1


def test_lazy_mode_holds_nothing_in_memory(tmp_path: Path) -> None:
    """Everything is in delta, including transient messages."""
    opened = Opened(tmp_path, LAZY)
    for number in range(30):
        opened.publish(b"%d" % number + b"z" * (number * 3), persistent=number % 2 == 0)
    queue = opened.queue
    assert (queue.delta.count, queue.ram_count, queue.ram_bytes) == (30, 0, 0)
    assert [body[:2].rstrip(b"z") for body in bodies(queue)] == [b"%d" % number for number in range(30)]
    opened.kill()


def test_expired_messages_are_dropped_from_the_head_only(opened: Opened) -> None:
    """An unexpired message holds back expired ones behind it."""
    queue = opened.queue
    for expiry_us in (5, 7, 0, 6):
        opened.publish(b"%d" % expiry_us, expiry_us=expiry_us)
    assert queue.drop_expired(6) == 1
    assert queue.drop_expired(7) == 1
    assert bodies(queue) == [b"0", b"6"]


def test_a_message_straight_to_a_waiting_consumer(opened: Opened) -> None:
    """It starts unacknowledged, is on disk if persistent, and the acknowledgement removes it."""
    queue = opened.queue
    seq_id = queue.publish_delivered(b"i" * 16, b"t" * 100, 100, persistent=True, embedded=False)
    queue.sync()
    assert (len(queue), queue.pending_count) == (0, 1)
    queue.acknowledge([seq_id])
    opened.store.process()
    assert opened.store.files.valid_bytes == 0 and queue.index.unacked == 0


def test_an_unknown_acknowledgement_changes_nothing(opened: Opened) -> None:
    """None of the given numbers is acknowledged."""
    opened.publish(b"a")
    opened.queue.fetch()
    with pytest.raises(KeyError):
        opened.queue.acknowledge([0, 17])
    assert opened.queue.pending_count == 1


def test_the_duration_target_follows_the_measured_rates(tmp_path: Path) -> None:
    """target_ram_count = seconds x (ingress + egress + acknowledge rates)."""
    opened = Opened(tmp_path)
    clock = [1_000_000]
    queue = opened.queue
    queue.now_ms = lambda: clock[0]
    queue.rates.__init__(clock[0])
    for _ in range(50):
        clock[0] += 1000
        for _ in range(100):
            opened.publish(b"m" * 40)
        queue.rates.update(clock[0])
    assert 90 < queue.rates.ingress < 101
    queue.set_duration_target(2.0)
    assert 170 < queue.target_ram_count < 203 and queue.ram_count <= queue.target_ram_count
    queue.set_duration_target(float("inf"))
    assert queue.target_ram_count == float("inf")
    queue.check()
    opened.kill()


def test_entries_deleted_under_an_open_queue_do_not_block_later_messages(opened: Opened, tmp_path: Path) -> None:
    """A deleted segment is reported once, and later messages are delivered; they used to be stuck."""
    queue = opened.queue
    for number in range(40):
        opened.publish(b"%04d" % number + b"x" * 100)
    queue.set_target_ram_count(0)
    queue.set_target_ram_count(float("inf"))
    for number in range(40, 48):
        opened.publish(b"%04d" % number + b"x" * 100)
    queue.set_target_ram_count(7)
    queue.set_target_ram_count(float("inf"))
    queue.index.flush()
    assert (len(queue.q3), queue.delta.count, len(queue.q2), len(queue.q1)) == (8, 32, 1, 7)
    (tmp_path / "queue" / "4.idx").unlink()
    found, errors = [], []
    while len(queue):
        queue.check()
        try:
            found.append(int(queue.fetch(ack_required=False)[1][:4]))
        except StoreCorrupt as error:
            errors.append(str(error))
    assert found == [*range(32), *range(40, 48)] and queue.fetch() is None
    assert len(errors) == 1 and "8 more entries" in errors[0]
    queue.check()


@pytest.mark.parametrize("gone", [8, 5, 0])
def test_missing_entries_of_a_segment_do_not_block_later_messages(tmp_path: Path, gone: int) -> None:
    """The segment is read when its messages are due: missing entries are reported, later ones delivered."""
    index = QueueIndex(REAL_DISK, f"{tmp_path}/queue", SETTINGS.index)
    for seq_id in range(16):
        index.publish(seq_id, seq_id.to_bytes(16, "big"), 0, 4, True, b"%04d" % seq_id)
    index.close()
    with (tmp_path / "queue" / "1.idx").open("ab") as file:
        file.write(b"".join(bytes((0x40, relative)) for relative in range(gone)))  # as another process acknowledges
    index = QueueIndex(REAL_DISK, f"{tmp_path}/queue", SETTINGS.index)
    assert index.resume({0: 8, 1: 8}, 16)
    store, _ = open_store(REAL_DISK, f"{tmp_path}/persistent", SETTINGS.store, {})
    queue = VariableQueue(
        index, store.client(), store.client(), SETTINGS, REAL_DISK.now_ms, next_deliver_seq_id=0, persistent=(16, 64)
    )
    for number in range(16, 20):
        queue.publish(number.to_bytes(16, "big"), b"%04d" % number, 4, persistent=True, embedded=True)
    assert queue.q1 and len(queue) == 20
    assert [int(body) for body in bodies(queue)] == [*range(8), *range(8 + gone, 20)]
    assert (len(queue), queue.persistent_count, index.unacked) == (0, 0, 0)
    assert [problem.kind for problem in index.problems] == ["bad_recovery_terms"] * (gone > 0)
    queue.check()
    index.close()
    store.close()
