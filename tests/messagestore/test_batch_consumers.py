"""Consumers of topics with batch queues: a record is delivered whole and counts as all of its messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storageio import InvalidMessage, StoreCorrupt
from tests.helpers import until
from tests.messagestore.kit import Clock
from tests.messagestore.test_batch_topics import open_batch, put_inner


def bases(found: Any) -> list[int]:
    return [message.queue_offset for message in found]


def test_a_consumer_finds_batch_queues(world: Any, tmp_path: Path) -> None:
    """A consumer that names no queues gets the batch queues of its topic."""
    with open_batch(world, tmp_path / "s") as store:
        with store.consumer("B", group="g") as early:
            put_inner(world, store, 3)
            assert bases(early.poll(9, 5)) == [0]
        with store.consumer("B", group="g") as consumer:
            assert consumer.queues == [0]
            assert bases(consumer.poll(9)) == [0]


def test_a_group_goes_on_where_it_left_off_in_a_batch_queue(world: Any, tmp_path: Path) -> None:
    """A new consumer starts at the committed offset, and the lag is right.

    The offset is that of a record's first message; otherwise the previous record would be delivered again.
    """
    with open_batch(world, tmp_path / "s") as store:
        for count in (3, 4, 2):
            put_inner(world, store, count)
        for queues, left, expected in (([0], 9, [0, 3, 7]), (None, 6, [3, 7]), ([0], 2, [7])):
            with store.consumer("B", group="g", queues=queues) as consumer:
                assert consumer.lag() == left
                found = consumer.poll(9)
                assert bases(found) == expected
                assert consumer.ack(found[0])
        assert store.committed_offsets("B", "g") == {0: 9}


def test_ack_of_a_batch_record_commits_all_of_its_messages(world: Any, tmp_path: Path) -> None:
    """With more records fetched, the committed offset does not lie inside the acknowledged record."""
    with open_batch(world, tmp_path / "s") as store:
        for count in (3, 4, 2):
            put_inner(world, store, count)
        with store.consumer("B", group="g", queues=[0]) as consumer:
            assert consumer.ack(consumer.poll(1)[0])
            assert (consumer.position(0), consumer.lag()) == (3, 6)
        assert store.committed_offsets("B", "g") == {0: 3}
        with store.consumer("B", group="g", queues=[0]) as consumer:
            assert bases(consumer.poll(9)) == [3, 7]


def test_a_new_group_may_begin_behind_the_last_batch(world: Any, tmp_path: Path) -> None:
    """It starts behind the last record if it asks for that."""
    with open_batch(world, tmp_path / "s") as store:
        put_inner(world, store, 3)
        with store.consumer("B", group="g", queues=[0], start="last") as consumer:
            assert consumer.poll(9) == []
            put_inner(world, store, 4)
            assert bases(consumer.poll(9, 5)) == [3]


def test_seeking_in_a_batch_queue(world: Any, tmp_path: Path) -> None:
    """Seeking to an offset or a time finds the record that contains it."""
    clock = Clock()
    with open_batch(world, tmp_path / "s", clock=clock) as store:
        for count in (3, 4, 2):
            put_inner(world, store, count)
            clock.now_ms += 1000
        with store.consumer("B", group="g") as consumer:
            consumer.seek(0, 5)
            assert bases(consumer.poll(9)) == [3, 7]
            consumer.seek_to_time(clock.now_ms - 1000)
            assert bases(consumer.poll(9)) == [7]


def test_a_record_of_many_messages_is_not_sent_back(world: Any, tmp_path: Path) -> None:
    """A retry topic would refuse the record when it is due, and the messages would be lost."""
    with open_batch(world, tmp_path / "s") as store:
        put_inner(world, store, 3)
        with store.consumer("B", group="g") as consumer:
            (message,) = consumer.poll(9)
            for level in (1, -1):
                with pytest.raises(InvalidMessage, match="messages of B cannot come again"):
                    consumer.nack(message, delay_level=level)
            assert store.committed_offsets("B", "g") == {}
            assert consumer.ack(message)


def test_waiting_reader_finds_new_batch_queues(world: Any, tmp_path: Path) -> None:
    """A read-only consumer finds them while it waits."""
    with open_batch(world, tmp_path / "s") as store:
        store.flush()
        with open_batch(world, tmp_path / "s", "r") as reader, reader.consumer("B", group="g") as consumer:
            assert consumer.poll(9) == []
            put_inner(world, store, 3)
            put_inner(world, store, 4)
            store.flush()
            until(lambda: consumer.queues == [0])
            assert bases(consumer.poll(9, 5)) == [0, 3]
            put_inner(world, store, 2)
            assert bases(consumer.poll(9, 5)) == [7]


def test_reader_detects_the_batch_file_size_from_the_first_files(world: Any, tmp_path: Path) -> None:
    """A reader that was opened earlier, without a size, detects it from the first files."""
    with open_batch(world, tmp_path / "s") as store:
        store.put(world.commitlog.Message("T", b"x", queue_id=0))
        store.flush()
        with world.messagestore.MessageStore.open(tmp_path / "s", "r") as reader, reader.consumer("B", group="g") as consumer:
            for _ in range(50):
                put_inner(world, store, 3)
            store.flush()
            until(lambda: consumer.queues == [0])
            found: list[int] = []
            while len(found) < 50 and (messages := consumer.poll(99, 5)):
                found += bases(messages)
            assert found == list(range(0, 150, 3))


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_damaged_batch_is_an_error_and_not_left_out(world: Any, tmp_path: Path, mode: str) -> None:
    """A consumer raises an error instead of skipping the record."""
    with open_batch(world, tmp_path / "s") as store:
        positions = [put_inner(world, store, count).physical_offset for count in (3, 4, 2)]
    path = min((tmp_path / "s" / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[positions[1] + 88] ^= 0xFF  # a byte of its body
    path.write_bytes(data)
    with open_batch(world, tmp_path / "s", mode) as store:
        with pytest.raises(StoreCorrupt, match="unit 3 of B-0"):
            store.get("B", 0, 0)
        assert bases(store.get("B", 0, 0, max_count=1).messages) == [0]
        assert bases(store.get("B", 0, 7).messages) == [7]
        with pytest.raises(StoreCorrupt, match="unit 3 of"):
            list(store.read("B", 0))
        with store.consumer("B", group="g", queues=[0]) as consumer, pytest.raises(StoreCorrupt, match="unit 3 of"):
            consumer.poll(9)


def test_a_real_stores_batches_are_consumed_once(world: Any, fixture_store: Any) -> None:
    """The records' base offsets are read as those of our own."""
    fixture = fixture_store("batchcq", own=True)
    expected = {(queue["topic"], queue["queueId"]): queue for queue in fixture.expected()["queues"] if "batchCq" in queue}
    with world.messagestore.MessageStore.open(fixture.store, "r+") as store:
        for topic in {topic for topic, _ in expected}:
            with store.consumer(topic, group="g", timeout_s=0) as consumer:
                for message in consumer:
                    assert consumer.ack(message)
                assert consumer.lag() == 0
        for (topic, queue_id), queue in expected.items():
            assert store.committed_offsets(topic, "g")[queue_id] == queue["maxOffset"]
