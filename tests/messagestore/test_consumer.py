"""Consumers: what they deliver, what they wait for, and what an acknowledgement changes."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.broker.config.consumer_offsets import ConsumerOffsets
from messagestore.read.rebalance import QueueSharing, block
from storageio import InvalidMessage, StoreClosed, StoreError, StoreReadOnly, StoreRewound
from tests.helpers import bodies, until
from tests.messagestore.writers import Writer, message, number_of, open_store, put_all


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = open_store(tmp_path)
    yield made
    made.close()


def numbers(found: Any) -> list[int]:
    return [number_of(stored) for stored in found]


# Iterating


def test_it_hands_out_every_message_of_every_queue_in_order(store: MessageStore) -> None:
    """Each queue's messages come in order, none twice."""
    put_all(store, 0, 1000)
    with store.consumer("t", group="g", timeout_s=0.2) as consumer:
        found = numbers(consumer)
    assert sorted(found) == list(range(1000))
    for queue_id in range(3):
        assert [number for number in found if number % 3 == queue_id] == list(range(queue_id, 1000, 3))


def test_no_queue_waits_for_another(store: MessageStore) -> None:
    """A long queue does not delay a short one."""
    for number in range(500):
        store.put(message(number, queues=1))
    store.put(Message("t", b"1000", queue_id=1))
    with store.consumer("t", group="g") as consumer:
        until(lambda: len(consumer.queues) == 2)
        assert 1000 in numbers(consumer.poll(40, 5)) + numbers(consumer.poll(40, 5))


def test_consumer_waits_for_later_messages(store: MessageStore) -> None:
    """A message that is put later ends the wait, also in a new topic or queue."""
    with store.consumer("t", group="g") as consumer:
        assert consumer.poll() == []
        timer = threading.Timer(0.05, store.put, [message(7)])
        timer.start()
        assert number_of(next(consumer)) == 7
        timer.join()


def test_no_message_is_missed_while_others_put(store: MessageStore) -> None:
    """Four threads put while one consumes."""
    threads = [threading.Thread(target=put_all, args=(store, 500 * part, 500 * part + 500)) for part in range(4)]
    with store.consumer("t", group="g") as consumer:
        for thread in threads:
            thread.start()
        found = [next(consumer) for _ in range(2000)]
        for thread in threads:
            thread.join()
    assert sorted(numbers(found)) == list(range(2000))


def test_waiting_consumer_polls_only_a_few_times(store: MessageStore) -> None:
    """In the writing process a waiting consumer polls a few times a second, not in a loop."""
    put_all(store, 0, 1)
    with store.consumer("t", group="g") as consumer:
        assert consumer.poll()
        reads = []
        take = consumer._take
        consumer._take = lambda count: reads.append(1) or take(count)  # type: ignore[method-assign,func-returns-value]
        assert consumer.poll(1, 0.3) == []
    assert len(reads) < 10


def test_a_time_out_ends_the_iteration(store: MessageStore) -> None:
    """The iteration ends if no message comes within the timeout."""
    put_all(store, 0, 3)
    consumer = store.consumer("t", group="g", timeout_s=0.05)
    assert len(list(consumer)) == 3
    assert list(consumer) == []
    put_all(store, 3, 4)
    assert numbers(consumer) == [3]


def test_closing_it_ends_the_wait_of_another_thread(store: MessageStore) -> None:
    """A loop without a timeout can be ended."""
    consumer = store.consumer("t", group="g")
    thread = threading.Thread(target=lambda: list(consumer))
    thread.start()
    consumer.close()
    thread.join(20)
    assert not thread.is_alive()
    assert list(consumer) == []
    with pytest.raises(StoreClosed):
        consumer.commit()


def test_a_poll_during_which_another_thread_closes_the_consumer_returns_nothing(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer may be closed after the poll saw that it was open; only a closed store is an error."""
    consumer = store.consumer("t", group="g")
    lock = MagicMock()
    lock.__enter__.side_effect = consumer.close
    monkeypatch.setattr(consumer, "_lock", lock)
    assert consumer.poll(timeout_s=None) == [] and lock.__enter__.called


def test_closing_the_store_ends_the_wait_with_an_error(store: MessageStore) -> None:
    """A waiting consumer raises the error."""
    consumer = store.consumer("t", group="g")
    timer = threading.Timer(0.05, store.close)
    timer.start()
    with pytest.raises(StoreClosed):
        next(consumer)
    timer.join()


def test_consumer_receives_only_messages_of_its_tags(store: MessageStore) -> None:
    """Filtered messages count as acknowledged, and a tag with the same hash does not match."""
    for number, tag in enumerate(["Aa", "BB", None, "Aa", "x"] * 300):
        store.put(message(number, queues=1, tags=tag))
    with store.consumer("t", group="g", tags={"Aa"}, timeout_s=0.05) as consumer:
        found = list(consumer)
        assert numbers(found) == [number for number in range(1500) if number % 5 in (0, 3)]
        for stored in found:
            consumer.ack(stored)
        assert consumer.lag() == 0
    assert store.committed_offsets("t", "g") == {0: 1500}


# Acknowledging


def test_the_group_goes_on_where_its_acknowledgements_ended(store: MessageStore) -> None:
    """Delivered messages that are not acknowledged come again."""
    put_all(store, 0, 10, queues=1)
    with store.consumer("t", group="g") as consumer:
        found = consumer.poll(6)
        for stored in found[:4]:
            assert consumer.ack(stored)
        assert (consumer.position(0), consumer.lag(), consumer.lag(0)) == (6, 6, 6)
    assert store.committed_offsets("t", "g") == {0: 4}
    with store.consumer("t", group="g", timeout_s=0) as consumer:
        assert numbers(consumer) == list(range(4, 10))


def test_out_of_order_ack_does_not_commit_past_unacknowledged_messages(store: MessageStore) -> None:
    """The offset is that of the first unacknowledged message."""
    put_all(store, 0, 5, queues=1)
    with store.consumer("t", group="g") as consumer:
        found = consumer.poll(5)
        for index, expected in ((3, None), (1, None), (0, 2), (2, 4), (4, 5)):
            assert consumer.ack(found[index])
            committed = store.committed_offsets("t", "g").get(0, 0)
            assert committed == (expected or 0)
        assert not consumer.ack(found[2])


def test_commit_acknowledges_all_delivered_messages(store: MessageStore) -> None:
    """It acknowledges every delivered message, and no other."""
    put_all(store, 0, 9)
    with store.consumer("t", group="g") as consumer:
        consumer.poll(4)
        consumer.commit()
        done = store.committed_offsets("t", "g")
        assert sum(done.values()) == 4
        assert consumer.lag() == 5
    with store.consumer("t", group="g", timeout_s=0) as consumer:
        assert len(list(consumer)) == 5


def test_ack_of_a_message_not_delivered_by_the_consumer_changes_no_offset(store: MessageStore) -> None:
    """A message of another topic, or one never delivered, changes no offset."""
    put_all(store, 0, 3, queues=1)
    store.put(Message("other", b"0", queue_id=0))
    with store.consumer("t", group="g") as consumer:
        consumer.poll(1)
        assert not consumer.ack(store.get("other", 0, 0).messages[0])
        assert not consumer.ack(store.get("t", 0, 2).messages[0])
    assert store.committed_offsets("t", "g") == {}


def test_groups_do_not_see_each_other(store: MessageStore) -> None:
    """Each group has its own offsets."""
    put_all(store, 0, 3, queues=1)
    for group in ("g", "h"):
        with store.consumer("t", group=group, timeout_s=0) as consumer:
            assert len(list(consumer)) == 3
            consumer.commit()
    assert store.committed_offsets("t", "h") == {0: 3}


def test_offsets_are_on_the_disk_after_a_clean_stop(tmp_path: Path) -> None:
    """They are in RocketMQ's file and are read again."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 6)
        with store.consumer("t", group="g") as consumer:
            consumer.poll(6)
            consumer.commit()
    text = (tmp_path / "config" / "consumerOffset.json").read_text()
    assert '"t@g"' in text
    with open_store(tmp_path, "r") as reader:
        assert reader.committed_offsets("t", "g") == {0: 2, 1: 2, 2: 2}
    with open_store(tmp_path) as store, store.consumer("t", group="g", timeout_s=0) as consumer:
        assert list(consumer) == []


def test_the_housekeeper_writes_offsets_down(tmp_path: Path) -> None:
    """It writes them long before the stop."""
    quick = {"flush_consumer_offset_interval_ms": 1, "flush_interval_consume_queue_ms": 20}
    with open_store(tmp_path, **quick) as store:
        put_all(store, 0, 6)
        with store.consumer("t", group="g") as consumer:
            consumer.poll(6)
            consumer.commit()
            disk = store.engine.disk
            until(lambda: ConsumerOffsets(disk, str(tmp_path / "config")).offsets_of("t", "g") == {0: 2, 1: 2, 2: 2})


def test_an_offset_beyond_the_queue_goes_back_to_its_end(store: MessageStore) -> None:
    """Otherwise the next messages would be skipped."""
    put_all(store, 0, 3, queues=1)
    store.engine.consumer_offsets().commit("t", "g", 0, 1000)
    with store.consumer("t", group="g") as consumer:
        assert consumer.position(0) == 3
        put_all(store, 3, 4, queues=1)
        assert number_of(next(consumer)) == 3


def test_an_offset_before_the_queue_goes_on_at_its_begin(tmp_path: Path) -> None:
    """Its messages were deleted."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 1500, queues=1)
        store.flush()
        store.get("t", 0, 0)
        store.engine.consumer_offsets().commit("t", "g", 0, 10)
        assert store.delete_before(1 << 17) == 2
        low = store.min_offset("t", 0)
        with store.consumer("t", group="g", timeout_s=0) as consumer:
            assert numbers(consumer) == list(range(low, 1500))


# Seeking


def test_seek_goes_to_an_offset_and_stays_inside_the_queue(store: MessageStore) -> None:
    """Offsets in both directions and past both ends are accepted."""
    put_all(store, 0, 10, queues=1)
    with store.consumer("t", group="g", timeout_s=0) as consumer:
        for offset, expected in ((7, [7, 8, 9]), (0, list(range(10))), (-5, list(range(10))), (99, [])):
            consumer.seek(0, offset)
            assert numbers(consumer) == expected
        with pytest.raises(InvalidMessage, match="queue 5"):
            consumer.seek(5, 0)


def test_a_message_from_before_a_seek_cannot_be_acknowledged(store: MessageStore) -> None:
    """It will be delivered again."""
    put_all(store, 0, 10, queues=1)
    with store.consumer("t", group="g") as consumer:
        found = consumer.poll(5)
        consumer.seek(0, 0)
        assert not consumer.ack(found[0])
        assert consumer.ack(consumer.poll(1)[0])
        assert store.committed_offsets("t", "g") == {0: 1}


def test_seek_to_a_time(tmp_path: Path) -> None:
    """Every queue continues at its first message stored at or after the time."""
    now = [1_700_000_000_000]
    with open_store(tmp_path, clock=lambda: now[0]) as store:
        for number in range(30):
            now[0] += 1000
            store.put(message(number))
        with store.consumer("t", group="g", timeout_s=0) as consumer:
            until(lambda: consumer.lag() == 30)
            consumer.seek_to_time(1_700_000_000_000 + 21_000)
            assert sorted(numbers(consumer)) == list(range(20, 30))


def test_a_new_group_may_begin_behind_the_last_message(store: MessageStore) -> None:
    """Existing messages are skipped; queues created later are read from their start."""
    put_all(store, 0, 6)
    store.get("t", 0, 0)
    with store.consumer("t", group="g", timeout_s=0.2, start="last") as consumer:
        assert consumer.poll() == []
        put_all(store, 6, 9)
        store.put(Message("t", b"9", queue_id=7))
        assert sorted(numbers(consumer)) == [6, 7, 8, 9]
    with pytest.raises(ValueError, match="middle"):
        store.consumer("t", group="g", start="middle")


# Sharing


def test_queues_are_shared_in_even_blocks(store: MessageStore) -> None:
    """This is as in RocketMQ's clients; the third consumer of two queues has none."""
    assert [block(list(range(8)), number, 3) for number in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [block([4], number, 2) for number in range(2)] == [[4], []]


def test_two_consumers_of_a_group_share_what_comes(store: MessageStore) -> None:
    """Every message goes to one of them."""
    put_all(store, 0, 300)
    store.get("t", 0, 0)
    first, second = (store.consumer("t", group="g", timeout_s=0) for _ in range(2))
    assert (first.queues, second.queues) == ([0, 1], [2])
    got = [numbers(first), numbers(second)]
    assert sorted(got[0] + got[1]) == list(range(300))
    assert {number % 3 for number in got[1]} == {2}


def test_unacknowledged_messages_of_a_closed_consumer_are_redelivered(store: MessageStore) -> None:
    """The other consumer delivers them again."""
    put_all(store, 0, 30)
    store.get("t", 0, 0)
    first, second = (store.consumer("t", group="g", timeout_s=0) for _ in range(2))
    mine = list(second)
    for stored in mine[:3]:
        second.ack(stored)
    second.close()
    assert sorted(numbers(first)) == sorted([*numbers(mine)[3:], *(number for number in range(30) if number % 3 != 2)])


def test_ack_of_a_message_from_a_reassigned_queue_is_rejected(store: MessageStore) -> None:
    """The new consumer decides."""
    put_all(store, 0, 30)
    store.get("t", 0, 0)
    first = store.consumer("t", group="g", timeout_s=0)
    found = {stored.queue_id: stored for stored in first.poll(30)}
    with store.consumer("t", group="g"):
        assert first.queues == [0, 1]
        assert not first.ack(found[2])
        assert first.ack(found[0])
    with pytest.raises(InvalidMessage):
        first.position(9)


def test_queue_reassigned_and_returned_resumes_at_the_committed_offset(store: MessageStore) -> None:
    """New queues move queue 2 to another consumer and back while its first consumer sleeps.

    It continues at the committed offset: acknowledged messages do not come again, and the group's offset does not decrease.
    """
    for queue_id in (1, 1, 2, 2):
        store.put(Message("t", b"old", queue_id=queue_id))
    first, second = (store.consumer("t", group="g") for _ in range(2))
    assert (first.queues, second.queues) == ([1], [2])
    assert len(second.poll(1)) == 1
    store.put(Message("t", b"new", queue_id=3))
    assert first.queues == [1, 2]
    for stored in first.poll(100):
        assert first.ack(stored)
    store.put(Message("t", b"new", queue_id=0))
    assert first.queues == [0, 1]
    found = second.poll(100)
    assert bodies(found) == [b"new"]
    assert second.ack(found[0])
    assert store.committed_offsets("t", "g") == {1: 2, 2: 2, 3: 1}


def test_queue_kept_over_a_rebalance_is_not_redelivered(store: MessageStore) -> None:
    """A consumer joins and leaves in between: pending messages are not delivered again."""
    put_all(store, 0, 10, queues=1)
    with store.consumer("t", group="g") as consumer:
        found = consumer.poll(4)
        for _ in range(3):
            store.consumer("t", group="g").close()
        assert all(consumer.ack(stored) for stored in found)
        assert numbers(consumer.poll(10)) == [4, 5, 6, 7, 8, 9]


def test_consumers_of_a_reader_rebalance_over_the_same_queue_list() -> None:
    """The consumers beside a writer list queues at different times, but divide the same list.

    Otherwise two would take a queue from each other at every poll, and its messages would come again and again.
    """
    sharing = QueueSharing()
    a, b, closed = (MagicMock(is_away=False, keeps_held=False) for _ in range(3))
    for member in (a, b):
        sharing.join("t", "g", member)
    assert sharing.share("t", "g", a, [0, 1]) == {0: 0}
    assert sharing.share("t", "g", b, [0, 1]) == {1: 0}
    assert sharing.share("t", "g", a, [0, 1, 2, 3]) == {0: 0, 1: 1}
    assert sharing.share("t", "g", b, None) == {2: 0, 3: 0}
    assert sharing.share("t", "g", closed, [0, 1, 2, 3]) == {}, "who left is given nothing, and takes nothing"
    assert sharing.share("t", "g", a, None) == {0: 0, 1: 1}


def test_given_queues_are_not_shared(store: MessageStore) -> None:
    """A consumer that names its queues gets them, even if another one has them too."""
    put_all(store, 0, 30)
    with store.consumer("t", group="g", queues=[2, 1], timeout_s=0.2) as fixed, store.consumer("t", group="g") as other:
        assert fixed.queues == [1, 2]
        until(lambda: other.queues == [0, 1, 2])
        assert {number % 3 for number in numbers(fixed)} == {1, 2}


def test_threads_of_one_group_read_everything_once(store: MessageStore) -> None:
    """Consumers join while puts go on: nothing is lost, and nothing comes twice while none leaves."""
    store.create_topic("t", 8)
    for queue_id in range(8):
        store.put(Message("t", b"-1", queue_id=queue_id))
    store.get("t", 0, 0)
    consumers = [store.consumer("t", group="g", timeout_s=1.0) for _ in range(4)]
    got: list[list[int]] = [[] for _ in consumers]

    def run(number: int) -> None:
        for stored in consumers[number]:
            got[number].append(number_of(stored))
            consumers[number].ack(stored)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    put_all(store, 0, 2000, queues=8)
    for thread in threads:
        thread.join()
    found = [number for part in got for number in part if number >= 0]
    assert sorted(found) == list(range(2000))
    assert all(part for part in got)
    assert sum(store.committed_offsets("t", "g").values()) == 2008


# In other processes


def test_consumer_of_a_reader_reads_and_cannot_acknowledge(tmp_path: Path) -> None:
    """It starts at the group's offset, sees new messages, and commits nothing."""
    program = """
with open_store(root) as store:
    put_all(store, 0, 30)
    with store.consumer("t", group="g") as consumer:
        consumer.poll(9, 5)
        consumer.commit()
        store.engine.persist_offsets()
    said("ready")
    told()
    put_all(store, 30, 60, queues=5)
    told()
"""
    with Writer(tmp_path, program) as writer:
        assert writer.hear() == "ready"
        with open_store(tmp_path, "r") as reader, reader.consumer("t", group="g") as consumer:
            found = [next(consumer) for _ in range(21)]
            writer.tell()
            found += [next(consumer) for _ in range(30)]
            assert len(set(numbers(found))) == 51
            with pytest.raises(StoreReadOnly):
                consumer.ack(found[0])
            assert sum(reader.committed_offsets("t", "g").values()) == 9
            writer.tell()
            assert writer.wait() == 0


def test_consumer_of_a_reader_raises_if_the_writer_recovered_to_less(tmp_path: Path) -> None:
    """The message that it read last no longer exists."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 30, queues=1)
    with open_store(tmp_path, "r") as reader, reader.consumer("t", group="g") as consumer:
        assert len(consumer.poll(30)) == 30
        unit_file = tmp_path / "consumequeue" / "t" / "0" / ("0" * 20)
        data = unit_file.read_bytes()
        unit_file.write_bytes(data[:200] + bytes(len(data) - 200))
        with pytest.raises(StoreRewound):
            consumer.poll(1)


@pytest.mark.parametrize(("topic", "group"), [("", "g"), ("t", ""), ("t@x", "g"), ("t", "g@x")])
def test_names_that_the_file_could_not_hold_are_refused(store: MessageStore, topic: str, group: str) -> None:
    """The keys of the file are topic@group."""
    with pytest.raises(StoreError):
        store.consumer(topic, group=group)


def test_a_failed_dispatcher_ends_the_wait_with_its_error(store: MessageStore) -> None:
    """No further message would ever come."""
    put_all(store, 0, 1)
    with store.consumer("t", group="g") as consumer:
        assert next(consumer)
        store.engine.dispatcher.failure = StoreError("damage")
        with pytest.raises(StoreError, match="damage"):
            next(consumer)
        store.engine.dispatcher.failure = None
    time.sleep(0)


def test_a_reader_that_begins_behind_the_last_message_commits_nothing(tmp_path: Path) -> None:
    """Only the writer commits; beside it the group's first consumer gets the messages that come later."""
    with open_store(tmp_path) as writer:
        put_all(writer, 0, 9)
        writer.flush()
        writer.get("t", 0, 0)
        with open_store(tmp_path, "r") as reader, reader.consumer("t", group="g", queues=[0, 1, 2], start="last") as late:
            assert late.poll() == []
            put_all(writer, 9, 12)
            writer.get("t", 0, 0)
            assert sorted(number_of(stored) for stored in until(lambda: late.poll())) == [9, 10, 11]
            assert reader.committed_offsets("t", "g") == writer.committed_offsets("t", "g") == {}


def test_seek_to_time_does_not_move_an_empty_queue(tmp_path: Path) -> None:
    """One of the given queues may have no message yet; the others are moved."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 9)
        with store.consumer("t", group="g", queues=[0, 7]) as consumer:
            consumer.seek_to_time(1 << 60)
            assert (consumer.position(0), consumer.position(7)) == (3, 0)
            consumer.seek_to_time(0)
            assert [number_of(stored) for stored in consumer.poll()] == [0, 3, 6]


# A topic that does not exist


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_consumer_of_a_topic_that_does_not_exist_is_logged(tmp_path: Path, mode: str, caplog: Any) -> None:
    """Otherwise a misspelled topic would be waited for silently; the name is shown with escapes."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 3)
    with open_store(tmp_path, mode=mode) as store, caplog.at_level(logging.WARNING):
        for name in ("T", "t\x1b[2J"):
            with store.consumer(name, group="g", timeout_s=0) as consumer:
                assert list(consumer) == []
        assert [record.getMessage() for record in caplog.records] == [
            f"{tmp_path}: no topic 'T': the consumer of group 'g' waits for one",
            f"{tmp_path}: no topic 't\\x1b[2J': the consumer of group 'g' waits for one",
        ]


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("queues", [None, [0]])
def test_a_consumer_of_a_topic_that_does_not_exist_may_be_an_error(tmp_path: Path, mode: str, queues: list[int] | None) -> None:
    """The failed consumer does not take part in the group."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 3)
    with open_store(tmp_path, mode=mode) as store:
        with pytest.raises(InvalidMessage, match="no topic 'T'"):
            store.consumer("T", group="g", queues=queues, missing_topic="error")
        with pytest.raises(ValueError, match="missing_topic 'no'"):
            store.consumer("t", group="g", missing_topic="no")
        with store.consumer("t", group="g", timeout_s=0, missing_topic="error") as consumer:
            assert sorted(numbers(consumer)) == [0, 1, 2]


def test_a_topic_without_a_message_exists(store: MessageStore, caplog: Any) -> None:
    """It was created by `create_topic`, ordinary or with batch queues, or by a put just before."""
    store.create_topic("new", 2)
    store.create_topic("many", 2, attributes={"queue.type": "BatchCQ"})
    store.put(Message("put", b"x", queue_id=0))
    with caplog.at_level(logging.WARNING):
        for topic in ("new", "many", "put"):
            store.consumer(topic, group="g", missing_topic="error").close()
    assert caplog.records == []


def test_consumer_waiting_for_a_new_topic_receives_its_first_message(store: MessageStore) -> None:
    """The warning does not end the consumer."""
    with store.consumer("later", group="g", timeout_s=5) as consumer:
        store.put(Message("later", b"first", queue_id=1))
        assert next(consumer).body == b"first"


def test_second_ack_of_a_message_returns_false(store: MessageStore) -> None:
    """The first returns True, the second False, and the group's offset stays."""
    put_all(store, 0, 3)
    with store.consumer("t", group="g", timeout_s=0, queues=[0]) as consumer:
        stored = next(consumer)
        assert consumer.ack(stored) is True
        offsets = store.committed_offsets("t", "g")
        assert consumer.ack(stored) is False
        assert consumer.nack(stored) is None
        assert store.committed_offsets("t", "g") == offsets
