"""Transactions: half messages, their decisions, and undecided ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storageio import DiskFull, InvalidMessage, PutRejected, StoreReadOnly
from tests.messagestore.kit import LOG_SIZE, Clock, SwitchDisk, crash_copy, open_small, read_all
from tests.messagestore.support import put_internally
from tests.messagestore.writers import Writer

HALF, OP, GROUP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "CID_RMQ_SYS_TRANS"
COMMIT, MASK = 0x8, 0xC


def half(world: Any, store: Any, number: int, topic: str = "T", **fields: Any) -> Any:
    message = world.commitlog.Message(topic, b"%d" % number, queue_id=1, keys=[f"k{number}"], tags="paid", **fields)
    return store.begin_transaction(message, producer_group="P")


def bodies(messages: Any) -> list[int]:
    return [int(message.body) for message in messages]


def undecided(store: Any) -> list[int]:
    return bodies(one.message for one in store.undecided_transactions())


def progress(store: Any) -> tuple[int, int]:
    """Return the offsets of the broker's own group in both topics."""
    store.flush()
    store.engine.persist_offsets()
    return store.committed_offsets(HALF, GROUP).get(0, 0), store.committed_offsets(OP, GROUP).get(0, 0)


def test_a_half_message_is_a_real_brokers(world: Any, tmp_path: Path) -> None:
    """Topic, queue, properties and cleared flags are those of fixture broker-ext; consumers and keys find nothing."""
    with open_small(world, tmp_path / "s") as store:
        begun = half(world, store, 1, properties={"a": "b"}, sys_flag=0x4)
        stored = store.message_at(begun.half.physical_offset)
        assert (stored.topic, stored.queue_id, stored.queue_offset, stored.sys_flag) == (HALF, 0, 0, 0)
        unique = begun.transaction_id
        assert len(unique) == 32
        assert stored.properties == {
            "KEYS": "k1", "TAGS": "paid", "a": "b", "UNIQ_KEY": unique, "__transactionId__": unique, "TRAN_MSG": "true",
            "PGROUP": "P", "REAL_TOPIC": "T", "REAL_QID": "1",
        }  # fmt: skip
        assert store.max_offset("T", 1) == 0
        assert store.query("T", "k1") == []
        assert undecided(store) == [1]


def test_a_commit_is_a_real_brokers(world: Any, tmp_path: Path) -> None:
    """It has the commit bits, the half record's offset and all properties; then comes the op record with offset and comma."""
    with open_small(world, tmp_path / "s") as store:
        half(world, store, 0).rollback()
        begun = half(world, store, 1, born_timestamp_ms=77)
        result = begun.commit()
        assert (result.queue_id, result.queue_offset) == (1, 0)
        prepared, committed = (store.message_at(one.physical_offset) for one in (begun.half, result))
        assert committed.topic == "T"
        assert committed.sys_flag & MASK == COMMIT
        assert committed.prepared_transaction_offset == begun.half.physical_offset > 0
        assert committed.properties == prepared.properties
        assert (committed.body, committed.born_timestamp_ms) == (b"1", 77)
        assert [message.body for message in store.read("T", 1)] == [b"1"]
        assert [message.body for message in store.query("T", "k1")] == [b"1"]
        ops = read_all(store, OP)
        marks = {"TAGS": "d", "WAIT": "true"}
        assert [(op.body, op.properties) for op in ops] == [
            (b"0,", marks),
            (b"1,", marks),
        ]
        assert undecided(store) == []


def test_with_a_transient_pool_a_transaction_is_decided_at_once(world: Any, tmp_path: Path) -> None:
    """The half message may still be in the pool's ring at its decision."""
    pool = {"transient_store_pool_enable": True, "commit_interval_commit_log_ms": 3_600_000}
    with open_small(world, tmp_path / "s", **pool) as store:
        half(world, store, 1).commit()
        half(world, store, 2)
        assert undecided(store) == [2]
        half(world, store, 3).rollback()
    with open_small(world, tmp_path / "s", **pool) as store:
        assert (bodies(store.read("T", 1)), undecided(store)) == ([1], [2])


def test_a_rolled_back_message_never_appears(world: Any, tmp_path: Path) -> None:
    """The topic has nothing, nothing is open, and that stays so."""
    with open_small(world, tmp_path / "s") as store:
        half(world, store, 1).rollback()
        assert (store.max_offset("T", 1), undecided(store)) == (0, [])
    with open_small(world, tmp_path / "s") as store:
        assert (store.max_offset("T", 1), undecided(store)) == (0, [])


def test_a_with_block_commits_and_an_error_in_it_rolls_back(world: Any, tmp_path: Path) -> None:
    """A decision inside the block stays."""
    with open_small(world, tmp_path / "s") as store:
        with half(world, store, 1):
            assert store.max_offset("T", 1) == 0
        with pytest.raises(ZeroDivisionError), half(world, store, 2):
            1 / 0  # noqa: B018
        with half(world, store, 3) as begun:
            begun.rollback()
        with half(world, store, 4) as begun:
            assert begun.commit().queue_offset == 1
        assert bodies(store.read("T", 1)) == [1, 4]
        assert undecided(store) == []


def test_deciding_twice_is_refused(world: Any, tmp_path: Path) -> None:
    """A message is committed once, whichever thread does it."""
    with open_small(world, tmp_path / "s") as store:
        begun = half(world, store, 1)
        begun.commit()
        for again in (begun.commit, begun.rollback):
            with pytest.raises(InvalidMessage):
                again()
        assert bodies(store.read("T", 1)) == [1]
        assert len(read_all(store, OP)) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_undecided_transactions_can_be_decided_after_a_restart(world: Any, tmp_path: Path, is_killed: bool) -> None:
    """The queues alone tell them, after a clean stop and a kill."""
    folder = tmp_path / "s"
    with open_small(world, folder) as store:
        begun = [half(world, store, number) for number in range(6)]
        begun[1].commit()
        begun[3].rollback()
        if is_killed:
            folder = crash_copy(folder, tmp_path / "killed")
    with open_small(world, folder) as store:
        assert undecided(store) == [0, 2, 4, 5]
        found = store.undecided_transactions()
        assert [(one.topic, one.queue_id, one.producer_group, one.check_times) for one in found] == [("T", 1, "P", 0)] * 4
        assert [one.transaction_id for one in found] == [begun[number].transaction_id for number in (0, 2, 4, 5)]
        store.commit_transaction(found[1])
        store.roll_back_transaction(found[2])
        with pytest.raises(InvalidMessage):
            store.commit_transaction(found[1])
        assert undecided(store) == [0, 5]
        assert bodies(store.read("T", 1)) == [1, 2]
    with open_small(world, folder) as store:
        assert undecided(store) == [0, 5]


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("has_batch_queues", [True, False])
def test_killed_between_a_commit_and_its_op_record(world: Any, tmp_path: Path, has_index: bool, has_batch_queues: bool) -> None:
    """The committed record itself shows it, in a batch queue too: it is not committed a second time."""
    put = world.module("messagestore.broker.services.transactions").Transactions._decide
    with open_small(world, tmp_path / "s", message_index_enable=has_index) as store:
        store.create_topic("T", 2, attributes={"queue.type": "BatchCQ"} if has_batch_queues else None)
        half(world, store, 1)
        begun = half(world, store, 2)
        copies = []

        def interrupted(_self: Any, half_offset: int) -> None:
            store.engine.settle()
            copies.append(crash_copy(tmp_path / "s", tmp_path / f"killed-{half_offset}"))

        kind = type(store.engine.transactions)
        kind._decide = interrupted
        try:
            begun.commit()
        finally:
            kind._decide = put
    with open_small(world, copies[0], message_index_enable=has_index) as store:
        assert undecided(store) == [1]
        assert bodies(store.read("T", 1)) == [2]


def test_group_offsets_advance_only_past_decided_half_messages(world: Any, tmp_path: Path) -> None:
    """CID_RMQ_SYS_TRANS stays at the first undecided half message, and at the first op record about a later one."""
    with open_small(world, tmp_path / "s") as store:
        begun = [half(world, store, number) for number in range(4)]
        assert progress(store) == (0, 0)
        begun[2].commit()
        assert progress(store) == (0, 0)
        begun[0].commit()
        assert progress(store) == (1, 0)
        begun[1].rollback()
        assert progress(store) == (3, 3)
        begun[3].commit()
        assert progress(store) == (4, 4)


def test_decision_not_yet_on_the_disk_does_not_advance_the_group_offset(world: Any, tmp_path: Path) -> None:
    """A decision that the machine could still lose must not count: the half message would be forgotten."""
    with open_small(world, tmp_path / "s", flush_interval_commit_log_ms=3_600_000) as store:
        half(world, store, 1).rollback()
        store.engine.persist_offsets()
        assert store.committed_offsets(HALF, GROUP) == {0: 0} or store.committed_offsets(HALF, GROUP) == {}
        assert progress(store) == (1, 1)


def test_check_covers_old_half_messages_and_puts_undecided_ones_again(world: Any, tmp_path: Path) -> None:
    """As by the broker's service, the check count grows, born time and id stay, and the group's offset advances."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        begun = [half(world, store, number) for number in range(3)]
        assert store.check_transactions(lambda _half: True) == 0, "too young to be asked about"
        clock.now_ms += 6000
        answers = {0: True, 1: False, 2: None}
        assert store.check_transactions(lambda one: answers[int(one.message.body)]) == 3
        assert bodies(store.read("T", 1)) == [0]
        (left,) = store.undecided_transactions()
        assert (left.queue_offset, left.check_times, int(left.message.body)) == (3, 1, 2)
        assert left.message.born_timestamp_ms == clock.now_ms - 6000
        assert left.transaction_id == begun[2].transaction_id
        assert progress(store) == (3, 2)
        assert store.check_transactions(lambda _half: None) == 1
        assert [one.check_times for one in store.undecided_transactions()] == [2]
    with open_small(world, tmp_path / "s", clock=clock) as store:
        assert store.check_transactions(lambda _half: True) == 1
        assert bodies(store.read("T", 1)) == [0, 2]
        assert undecided(store) == []


@pytest.mark.parametrize(
    ("chosen", "checked_after_ms"), [("20", 20_000), ("1", 1000), ("0", 0), ("-1", 6000), ("x", 6000), ("", 6000)]
)
def test_producer_chooses_the_age_before_the_first_check(
    world: Any, tmp_path: Path, chosen: str, checked_after_ms: int
) -> None:
    """As with a broker, CHECK_IMMUNITY_TIME_IN_SECONDS replaces `transaction_timeout_ms`, unless it is -1 or no number."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        half(world, store, 1, properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": chosen} if chosen else None)
        if checked_after_ms:
            clock.now_ms += checked_after_ms - 1
            assert store.check_transactions(lambda _half: True) == 0
            clock.now_ms += 1
        assert store.check_transactions(lambda _half: True) == 1


def test_half_message_is_given_up_after_the_maximum_of_checks(world: Any, tmp_path: Path) -> None:
    """After 15 checks it goes to TRANS_CHECK_MAX_TIME_TOPIC, as in the broker."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock, transaction_check_max=2) as store:
        half(world, store, 1)
        clock.now_ms += 6000
        requested = []
        for _ in range(5):
            store.check_transactions(lambda one: requested.append(one.check_times))
        assert requested == [0, 1]
        assert undecided(store) == []
        assert bodies(read_all(store, "TRANS_CHECK_MAX_TIME_TOPIC")) == [1]
        assert progress(store) == (3, 0)


@pytest.mark.parametrize("stranger", ["a-fillers", "no-queues", "no-topics"])
def test_half_message_that_cannot_be_committed_does_not_stop_the_check(world: Any, tmp_path: Path, stranger: str) -> None:
    """A filler has no topic, another message names invalid LMQs or an invalid topic; the check continues."""
    pairs = {
        "a-fillers": {},
        "no-queues": {"REAL_TOPIC": "T", "REAL_QID": "1", "INNER_MULTI_DISPATCH": "none"},
        "no-topics": {"REAL_TOPIC": "a/b", "REAL_QID": "1"},
    }[stranger]
    with open_small(world, tmp_path / "s") as store:
        store.create_topic("T", 2)
        store.engine.log.appender.append(world.commitlog.Message(HALF, b"-1", properties=pairs), 0)
    with open_small(world, tmp_path / "s", enable_lmq=True) as store:
        half(world, store, 1)
        assert undecided(store) == [-1, 1]
        assert store.check_transactions(lambda _half: True, older_than_ms=0) == 2
        assert bodies(read_all(store, "T", 1)) == [1]
        assert undecided(store) == []
        assert bodies(read_all(store, "TRANS_CHECK_MAX_TIME_TOPIC")) == [-1]


def test_an_earlier_copys_decision_counts_for_the_later(world: Any, tmp_path: Path) -> None:
    """A check put a half message again, then the producer's late decision named the first copy: no second message comes."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        half(world, store, 1)
        half(world, store, 2)
        clock.now_ms += 6000
        store.check_transactions(lambda _half: None)
        for offset in (0, 1):  # a broker writes op records about the first copies for late decisions
            op = world.commitlog.Message(OP, b"%d," % offset, queue_id=0, properties={"TAGS": "d", "WAIT": "true"})
            put_internally(store, op)
    with open_small(world, tmp_path / "s", clock=clock) as store:
        assert undecided(store) == []


def refuse_new_log_files(operation: str, path: str) -> Exception | None:
    """Return the error of a full disk."""
    return DiskFull(operation, path, 28, "No space left") if operation == "allocate" and "commitlog" in path else None


def leave_space(world: Any, store: Any, left_bytes: int) -> None:
    """Fill the log's first file except for `left_bytes`."""
    empty = store.put(world.commitlog.Message("F", b"", queue_id=0)).size_bytes
    while capacity := LOG_SIZE - left_bytes - store.log_end:
        size = 2000 if capacity >= 4000 else capacity
        store.put(world.commitlog.Message("F", bytes(size - empty), queue_id=0))


def commit_without_op_record(world: Any, store: Any, disk: SwitchDisk) -> Any:
    """Commit messages 1 and 2; the op record of the second does not fit the log.  Return the second."""
    size = half(world, store, 1).commit().size_bytes
    begun = half(world, store, 2)
    disk.refuse = refuse_new_log_files
    leave_space(world, store, size + 20)
    with pytest.raises(PutRejected):
        begun.commit()
    disk.refuse = lambda _operation, _path: None
    return begun


@pytest.mark.parametrize("then", ["commit", "rollback", "check", "reopen"])
def test_a_disk_full_between_a_commit_and_its_op_record(world: Any, tmp_path: Path, then: str) -> None:
    """The message is already in its topic: a retry adds no second one, and it cannot be rolled back."""
    disk = SwitchDisk()
    with open_small(world, tmp_path / "s", disk=disk) as store:
        begun = commit_without_op_record(world, store, disk)
        assert (bodies(store.read("T", 1)), undecided(store)) == ([1, 2], [])
        if then == "commit":
            assert begun.commit().queue_offset == 1
        elif then == "rollback":
            with pytest.raises(InvalidMessage):
                begun.rollback()
        elif then == "check":
            assert store.check_transactions(lambda _half: False, older_than_ms=0) == 0
        assert [op.body for op in read_all(store, OP)] == ([b"0,"] if then == "reopen" else [b"0,", b"1,"])
        assert progress(store)[0] == 2
    with open_small(world, tmp_path / "s") as store:
        assert (bodies(store.read("T", 1)), undecided(store)) == ([1, 2], [])


def test_producer_clock_ahead_of_the_store_does_not_undo_a_decision(world: Any, tmp_path: Path) -> None:
    """Op records older than a half message's born time count too: it cannot be decided again."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        half(world, store, 1, born_timestamp_ms=clock.now_ms + 60_000)
        begun = half(world, store, 2, born_timestamp_ms=clock.now_ms + 60_000)
        clock.now_ms += 1000
        begun.rollback()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        assert undecided(store) == [1]


def test_producer_can_decide_a_transaction_after_several_checks(world: Any, tmp_path: Path) -> None:
    """A check puts the half message again at another offset: the producer's own decision is accepted nevertheless."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        begun = [half(world, store, number) for number in range(3)]
        for _ in range(2):
            clock.now_ms += 6000
            assert store.check_transactions(lambda _half: None) == 3
        begun[0].commit()
        begun[1].rollback()
        for again in (begun[0].commit, begun[0].rollback, begun[1].commit):
            with pytest.raises(InvalidMessage):
                again()
        assert (bodies(store.read("T", 1)), undecided(store)) == ([0], [2])
    with open_small(world, tmp_path / "s", clock=clock) as store:
        assert (bodies(store.read("T", 1)), undecided(store)) == ([0], [2])


def test_killed_after_a_check_no_earlier_copy_is_decided_again(world: Any, tmp_path: Path) -> None:
    """The group's offset is not written yet, so both copies are read, but only one is committed."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock, flush_interval_commit_log_ms=3_600_000) as store:
        half(world, store, 1)
        clock.now_ms += 6000
        for _ in range(2):
            store.check_transactions(lambda _half: None)
        copy = crash_copy(tmp_path / "s", tmp_path / "killed")
    with open_small(world, copy, clock=clock) as store:
        assert [(one.queue_offset, one.check_times) for one in store.undecided_transactions()] == [(2, 2)]
        assert store.check_transactions(lambda _half: True) == 1
        assert bodies(store.read("T", 1)) == [1]
        assert progress(store) == (3, 1)


@pytest.mark.parametrize("has_older_open", [False, True])
@pytest.mark.parametrize("has_index", [False, True])
def test_two_transactions_with_one_unique_key_are_separate(
    world: Any, tmp_path: Path, has_index: bool, has_older_open: bool
) -> None:
    """A producer gave both the same UNIQ_KEY: the first one's commit does not count for the second."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock, message_index_enable=has_index) as store:
        for number in (1, 2):
            if has_older_open:
                half(world, store, 0)
            begun = half(world, store, number, properties={"UNIQ_KEY": "K"}, born_timestamp_ms=clock.now_ms)
            if number == 1:
                begun.commit()
    with open_small(world, tmp_path / "s", clock=clock, message_index_enable=has_index) as store:
        assert undecided(store) == ([0, 0, 2] if has_older_open else [2])


@pytest.mark.parametrize("name", ["broker-live", "broker-ext"])
def test_a_real_brokers_undecided_transactions(world: Any, fixture_store: Any, name: str) -> None:
    """Those without a listener's decision (every fourth, case 2) appear once, however often they were checked."""
    fixture = fixture_store(name, own=True)
    expected = fixture.expected()["messages"]
    requested = {
        message["properties"]["KEYS"]
        for message in expected
        if message["topic"] == HALF and message["properties"]["case"] == "2"
    }
    times = max(int(message["properties"].get("TRANSACTION_CHECK_TIMES", "0")) for message in expected)
    for is_killed in (False, True):
        if is_killed:
            (fixture.store / "abort").touch()
        with open_small(world, fixture.store, "r+", deliver_delayed=False) as store:
            found = store.undecided_transactions()
            assert sorted(one.message.keys[0] for one in found) == sorted(requested)
            assert {one.check_times for one in found} == {times}
            assert {one.producer_group for one in found} == {"P_tran"}
    with open_small(world, fixture.store, "r+", deliver_delayed=False) as store:
        before = len(read_all(store, "LiveTran", found[0].queue_id))
        result = store.commit_transaction(store.undecided_transactions()[0])
        assert result.queue_offset == before
        assert store.message_at(result.physical_offset).sys_flag & MASK == COMMIT


KILLED = """
import random
with open_store(root, enabled_append_prop_crc=True, flush_consumer_offset_interval_ms=20) as store:
    said("open")
    number = int(told())
    draw = random.Random(number)
    open_ = []
    while True:
        open_.append((number, store.begin_transaction(Message("T", b"%d" % number, queue_id=0))))
        number += 1
        if draw.random() < 0.9:
            which, transaction = open_.pop(draw.randrange(len(open_)))
            if which % 3:
                transaction.commit()
            else:
                transaction.rollback()
            said(number, which)
        if number % 50 == 0:
            time.sleep(0.03)
"""


@pytest.mark.deep
def test_killed_again_and_again_each_message_is_decided_once(tmp_path: Path) -> None:
    """With SIGKILL at any time every half message is committed once, rolled back, or undecided; none is both."""
    from messagestore import MessageStore

    number, decided = 0, set()
    for _ in range(3):
        with Writer(tmp_path / "s", KILLED) as writer:
            assert writer.hear() == "open"
            writer.tell(str(number))
            for _ in range(300):
                number, which = map(int, writer.hear().split())
                decided.add(which)
        number = (number // 1000 + 1) * 1000
    with MessageStore.open(tmp_path / "s", "r+") as store:
        halves = {int(message.body) for message in read_all(store, HALF, 0)}
        committed = [int(message.body) for message in store.read("T", 0)]
        left = {int(one.message.body) for one in store.undecided_transactions()}
        assert len(committed) == len(set(committed))
        assert not left & set(committed)
        assert not left & decided
        assert {which for which in decided if which % 3} <= set(committed)
        rolled_back = halves - set(committed) - left
        assert all(which % 3 == 0 for which in rolled_back)
        store.check_transactions(lambda one: int(one.message.body) % 3 != 0, older_than_ms=0)
        assert store.undecided_transactions() == []
        assert {int(message.body) for message in store.read("T", 0)} == {which for which in halves if which % 3}


def test_invalid_transaction_message_is_rejected(world: Any, tmp_path: Path) -> None:
    """A delay, an impossible topic, and a read-only store are refused."""
    with open_small(world, tmp_path / "s") as store:
        with pytest.raises(InvalidMessage):
            half(world, store, 1, properties={"DELAY": "1"})
        with pytest.raises(PutRejected):
            half(world, store, 1, topic="a/b")
        assert undecided(store) == []
        store.put(world.commitlog.Message("T", b"x"))
    with open_small(world, tmp_path / "s", "r") as store:
        for call in (
            lambda: half(world, store, 1),
            lambda: store.check_transactions(lambda _half: True),
        ):
            with pytest.raises(StoreReadOnly):
                call()


@pytest.mark.parametrize("is_sync", [False, True])
def test_threads_decide_at_the_same_time(world: Any, tmp_path: Path, is_sync: bool) -> None:
    """Each commit of eight producers is one message, and nothing stays open."""
    import threading

    changes = {"flush_disk_type": world.messagestore.FlushMode.SYNC} if is_sync else {}
    with open_small(world, tmp_path / "s", **changes) as store:

        def produce(first: int) -> None:
            for number in range(first, first + 25):
                half(world, store, number).commit() if number % 5 else half(world, store, number).rollback()

        threads = [threading.Thread(target=produce, args=(100 * part,)) for part in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(bodies(store.read("T", 1))) == len(set(bodies(store.read("T", 1)))) == 8 * 20
        assert undecided(store) == []
        assert progress(store) == (200, 200)


def test_prepared_and_rolled_back_records_of_old_logs(world: Any, tmp_path: Path) -> None:
    """Their flags are put directly: queue offset 0, no unit; the keys of prepared ones are found."""
    with open_small(world, tmp_path / "s") as store:
        for flag, key in ((0x4, "prepared"), (0xC, "rolled"), (0x8, "committed"), (0, "plain")):
            store.put(world.commitlog.Message("T", b"0", queue_id=0, sys_flag=flag, keys=[key]))
        assert [message.keys for message in store.read("T", 0)] == [["committed"], ["plain"]]
        found = {key: len(store.query("T", key)) for key in ("prepared", "rolled", "committed", "plain")}
        assert found == {"prepared": 1, "rolled": 0, "committed": 1, "plain": 1}


def test_expired_half_message_does_not_block_the_group_offset(world: Any, tmp_path: Path) -> None:
    """It stayed undecided for days; the group's offset passes it without a restart, as in a broker."""
    with open_small(world, tmp_path / "s") as store:
        lost, decided = half(world, store, 0), half(world, store, 1)
        decided.rollback()
        for _ in range(3):
            store.put_many([world.commitlog.Message("fill", bytes(900), queue_id=0)] * 64)
        late = half(world, store, 2)
        store.flush()
        assert store.delete_before(store.engine.log.written_offset) > 0
        assert undecided(store) == [2]
        with pytest.raises(InvalidMessage, match="is decided, or never was"):
            lost.commit()
        assert progress(store) == (2, 1)
        late.commit()
        assert progress(store) == (3, 2)


@pytest.mark.parametrize("has_index", [True, False])
def test_damaged_transaction_record_loses_no_decision_known_elsewhere(world: Any, tmp_path: Path, has_index: bool) -> None:
    """A flipped bit in a half message, op record or committed message: no decision that is still known is lost."""
    with open_small(world, tmp_path / "s", message_index_enable=has_index) as store:
        begun = [half(world, store, number) for number in range(6)]
        begun[1].rollback()
        sent = {number: begun[number].commit().physical_offset for number in (2, 3, 4)}
        ops = {int(op.body.rstrip(b",")): op.physical_offset for op in store.read(OP, 0)}
        halves = [one.half.physical_offset for one in begun]
    path = min((tmp_path / "s" / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    for offset in (halves[0], halves[4], ops[1], ops[2], ops[3], sent[3]):
        data[offset + 88] ^= 1  # the body's first byte
    path.write_bytes(data)
    with open_small(world, tmp_path / "s", message_index_enable=has_index) as store:
        assert undecided(store) == [1, 3, 5], "0 is gone, 2 lies in its topic, and an op record names 4"
        assert store.check_transactions(lambda _half: False, older_than_ms=0) == 3
        assert undecided(store) == []


@pytest.mark.parametrize("group", ["", "a\x01b", "a\x02b"])
def test_a_producers_group_that_no_property_can_hold_is_refused(world: Any, tmp_path: Path, group: str) -> None:
    """Otherwise the rest of the name would be another property."""
    with open_small(world, tmp_path / "s") as store:
        with pytest.raises(InvalidMessage, match="PGROUP"):
            store.begin_transaction(world.commitlog.Message("T", b"1", queue_id=1), producer_group=group)
        assert undecided(store) == [] and read_all(store, HALF) == []


def test_raw_properties_without_a_trailing_separator_are_kept_apart(world: Any, tmp_path: Path) -> None:
    """Some clients send them so: the last value and our first name would become one."""
    with open_small(world, tmp_path / "s") as store:
        message = world.commitlog.Message("T", b"1", queue_id=1, properties_raw=b"KEYS\x01k1")
        begun = store.begin_transaction(message, producer_group="P")
        (open_,) = store.undecided_transactions()
        assert (open_.message.all_properties["KEYS"], open_.producer_group, open_.topic) == ("k1", "P", "T")
        begun.commit()
        assert [one.body for one in store.query("T", "k1")] == [b"1"]


def test_a_store_that_takes_no_puts_decides_nothing(world: Any, tmp_path: Path) -> None:
    """Its disk is full: beginning and deciding raise, and work again once there is space."""
    flag = world.module("messagestore.write.running_flags").Flag.DISK_FULL
    with open_small(world, tmp_path / "s") as store:
        begun = half(world, store, 1)
        store.engine.flags.set(flag, "the test says so")
        for call in (begun.commit, begun.rollback, lambda: half(world, store, 2)):
            with pytest.raises(PutRejected, match="the test says so"):
                call()
        store.engine.flags.clear(flag)
        assert undecided(store) == [1]
        begun.commit()
        assert (bodies(store.read("T", 1)), undecided(store)) == ([1], [])


def test_half_message_without_a_topic_is_decided_only_by_a_check(world: Any, tmp_path: Path) -> None:
    """It is a recovery's filler: a commit would go to a topic without a name."""
    with open_small(world, tmp_path / "s") as store:
        store.engine.log.appender.append(world.commitlog.Message(HALF, b"1"), 0)
        (filler,) = store.undecided_transactions()
        for decide in (store.commit_transaction, store.roll_back_transaction):
            with pytest.raises(InvalidMessage, match="does not say where"):
                decide(filler)
        assert store.check_transactions(lambda _half: True, older_than_ms=0) == 1
        assert undecided(store) == [] and bodies(read_all(store, "TRANS_CHECK_MAX_TIME_TOPIC")) == [1]


@pytest.mark.parametrize("late", [True, False, None])
def test_transaction_decided_during_a_check_is_not_decided_again(world: Any, tmp_path: Path, late: bool | None) -> None:
    """The producer's own decision came first; the check's is ignored, whatever it is."""
    with open_small(world, tmp_path / "s") as store:
        begun = [half(world, store, number) for number in range(2)]

        def decide(one: Any) -> bool | None:
            begun[int(one.message.body)].commit()
            return late

        assert store.check_transactions(decide, older_than_ms=0) == 2
        assert (bodies(store.read("T", 1)), undecided(store)) == ([0, 1], [])
        assert [op.body for op in read_all(store, OP)] == [b"0,", b"1,"]


def test_commit_by_a_check_on_a_full_disk_is_retried(world: Any, tmp_path: Path) -> None:
    """A temporary failure is no reason to give a message up: the check ends, and the next one commits it."""
    disk = SwitchDisk()
    with open_small(world, tmp_path / "s", disk=disk) as store:
        half(world, store, 1)
        disk.refuse = refuse_new_log_files
        leave_space(world, store, 100)
        with pytest.raises(PutRejected):
            store.check_transactions(lambda _half: True, older_than_ms=0)
        disk.refuse = lambda _operation, _path: None
        assert undecided(store) == [1]
        assert store.check_transactions(lambda _half: True, older_than_ms=0) == 1
        assert (bodies(store.read("T", 1)), undecided(store)) == ([1], [])


def test_an_op_record_that_comes_behind_the_groups_offset_changes_nothing(world: Any, tmp_path: Path) -> None:
    """A full disk delayed it; the committed message was on the disk, so the group's offset passed it."""
    disk = SwitchDisk()
    with open_small(world, tmp_path / "s", disk=disk) as store:
        commit_without_op_record(world, store, disk)
        assert progress(store) == (2, 1)
        assert store.check_transactions(lambda _half: False, older_than_ms=0) == 0
        assert [op.body for op in read_all(store, OP)] == [b"0,", b"1,"]
        assert (bodies(store.read("T", 1)), undecided(store), progress(store)) == ([1, 2], [], (2, 2))


@pytest.mark.parametrize("has_index", [True, False])
def test_ordinary_message_of_the_same_key_does_not_commit_the_transaction(world: Any, tmp_path: Path, has_index: bool) -> None:
    """A producer sends the same message without a transaction too: the transaction is still undecided after a restart."""
    with open_small(world, tmp_path / "s", message_index_enable=has_index) as store:
        begun = half(world, store, 1)
        pairs = {"UNIQ_KEY": begun.transaction_id}
        store.put(world.commitlog.Message("T", b"1", queue_id=1, properties=pairs))
    with open_small(world, tmp_path / "s", message_index_enable=has_index) as store:
        assert undecided(store) == [1]


def test_decided_half_message_and_its_copy_stay_decided_without_group_offsets(world: Any, tmp_path: Path) -> None:
    """Op records name the first, and a check had put it again: both are decided."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        half(world, store, 1)
        half(world, store, 2)
        clock.now_ms += 6000
        store.check_transactions(lambda _half: None)
        put_internally(store, world.commitlog.Message(OP, b"0,", queue_id=0, properties={"TAGS": "d", "WAIT": "true"}))
    (tmp_path / "s" / "config" / "consumerOffset.json").unlink()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        assert undecided(store) == [2]
        assert [one.check_times for one in store.undecided_transactions()] == [1]


def test_undecided_transactions_are_listed_beside_a_writer_and_at_rest(world: Any, tmp_path: Path) -> None:
    """A reader sees each decision and the number of checks; an age selects the older ones."""
    clock, folder = Clock(), tmp_path / "s"
    with open_small(world, folder, clock=clock) as store, open_small(world, folder, "r", clock=clock) as reader:
        assert undecided(reader) == []
        begun = [half(world, store, number, born_timestamp_ms=clock.now_ms) for number in range(3)]
        store.engine.settle()
        assert undecided(reader) == [0, 1, 2]
        begun[1].commit()
        begun[0].rollback()
        store.check_transactions(lambda _half: None, older_than_ms=0)
        store.engine.settle()
        (left,) = reader.undecided_transactions()
        assert (int(left.message.body), left.check_times, left.producer_group, left.topic) == (2, 1, "P", "T")
        clock.now_ms += 500
        assert reader.undecided_transactions(older_than_ms=501) == []
        assert len(reader.undecided_transactions(older_than_ms=500)) == 1
    with open_small(world, folder, "r", clock=clock) as reader:
        assert undecided(reader) == [2]
