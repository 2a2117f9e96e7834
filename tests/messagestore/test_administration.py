"""Deleting topics and groups, purging, setting offsets: while the store is in use, after a restart, and after a kill."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore, Role
from messagestore.deleted_topics import DeletedTopics
from messagestore.repair.rebuild_store import ALL, rebuild_store
from storageio import REAL_DISK, InvalidMessage, StoreReadOnly
from tests.helpers import bodies
from tests.stores import problem_kinds, small_config

CONFIG = small_config()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a store with 250 messages in T and one in U, each with a key."""
    with MessageStore.open(tmp_path / "s", config=CONFIG) as store:
        store.create_topic("T", 2)
        store.create_topic("U", 1)
        for number in range(250):
            store.put("T", b"%d" % number, keys=f"k{number}", queue_id=number % 2)
        store.put("U", b"u", keys="k1")
    return tmp_path / "s"


def test_deleted_topic_has_no_queues_keys_or_offsets(folder: Path) -> None:
    """Another topic keeps all of it; a reader beside the writer sees the same."""
    with MessageStore.open(folder, config=CONFIG) as store, MessageStore.open(folder, "r") as reader:
        with store.consumer("T", group="G") as consumer:
            consumer.ack(consumer.poll(1)[0])
        assert len(bodies(reader.read("T", 0))) == 125
        store.delete_topic("T")
        for one in (store, reader):
            assert one.topics() == ["U"]
            assert one.queue_ids("T") == []
            assert one.query("T", "k1") == []
            assert bodies(one.query("U", "k1")) == [b"u"]
            assert one.committed_offsets("T", "G") == {}
            with pytest.raises(InvalidMessage, match="no topic 'T'"):
                one.read("T", 0)
        assert not (folder / "consumequeue" / "T").exists()
        store.flush()
        assert problem_kinds(folder) == set()
    with MessageStore.open(folder, config=CONFIG) as store:
        assert (store.topics(), store.query("T", "k1")) == (["U"], [])


def test_topic_created_again_is_empty_and_continues_its_numbers(folder: Path) -> None:
    """In the same process and after a restart; new keys are found, and verify finds no problem."""
    with MessageStore.open(folder, config=CONFIG) as store:
        store.delete_topic("T")
        assert store.put("T", b"new", keys="k1", queue_id=0).queue_offset == 125
        assert bodies(store.read("T", 0)) == bodies(store.query("T", "k1")) == [b"new"]
        store.delete_topic("T")
    with MessageStore.open(folder, config=CONFIG) as store:
        assert store.put("T", b"newer", keys="k1", queue_id=0).queue_offset == 126
        assert bodies(store.read("T", 0)) == bodies(store.query("T", "k1")) == [b"newer"]
        with store.consumer("T", group="G") as consumer:
            assert bodies(consumer.poll()) == [b"newer"]
    assert problem_kinds(folder) == set()


@pytest.mark.parametrize("is_only_topic", [True, False])
def test_rebuild_does_not_bring_deleted_messages_back(tmp_path: Path, is_only_topic: bool) -> None:
    """Even where topics.json names no topic, which else lets every topic of the log count."""
    folder = tmp_path / "s"
    with MessageStore.open(folder, config=CONFIG) as store:
        if not is_only_topic:
            store.create_topic("U", 1)
        for number in range(10):
            store.put("T", b"%d" % number, queue_id=0)
        store.delete_topic("T")
    rebuild_store(str(folder), ALL, CONFIG)
    assert not (folder / "consumequeue" / "T").exists()
    with MessageStore.open(folder, config=CONFIG) as store:
        store.put("T", b"new", queue_id=0)
    rebuild_store(str(folder), ALL, CONFIG)
    with MessageStore.open(folder, "r") as store:
        assert [(one.body, one.queue_offset) for one in store.read("T", 0)] == [(b"new", 10)]
    assert problem_kinds(folder) == set()


def test_next_opening_finishes_an_interrupted_deletion(folder: Path) -> None:
    """A process was killed after the file that names the deleted messages, before their queues were deleted."""
    with MessageStore.open(folder, "r") as store:
        end = store.log_end
    DeletedTopics(REAL_DISK, str(folder)).delete("T", end, {0: 125, 1: 125}, 0)
    (folder / "abort").write_text("1")
    with MessageStore.open(folder, config=CONFIG) as store:
        assert list(store.read("T", 0)) == [] == store.query("T", "k1")
        assert store.put("T", b"new", queue_id=0).queue_offset == 125
    assert problem_kinds(folder) == set()


def test_entry_of_a_deleted_topic_goes_with_its_records(folder: Path) -> None:
    """The file does not grow with each topic that ever was."""
    with MessageStore.open(folder, config=CONFIG) as store:
        store.delete_topic("T")
        while store.engine.log.written_offset < 3 * (64 << 10):
            store.put("U", bytes(4096))
        store.flush()
        store.query("U", "k1")
        assert store.delete_before(2 * (64 << 10))
        store.delete_topic("U")
    assert list(DeletedTopics(REAL_DISK, str(folder)).entries) == ["U"]


def test_log_cut_before_a_deletion_hides_no_later_record(folder: Path) -> None:
    """After a power cut the log may end before the offset of the deletion."""
    with MessageStore.open(folder, "r") as store:
        end = store.log_end
    DeletedTopics(REAL_DISK, str(folder)).delete("T", end + 10_000, {0: 125, 1: 125}, 0)
    with MessageStore.open(folder, config=CONFIG) as store:
        store.put("T", b"new", keys="k1", queue_id=0)
        assert bodies(store.query("T", "k1")) == [b"new"]


def test_delayed_message_does_not_recreate_a_deleted_topic(tmp_path: Path) -> None:
    """It was put before the deletion and is due after it."""
    now = [1_700_000_000_000]
    with MessageStore.open(tmp_path / "s", config=CONFIG, clock=lambda: now[0]) as store:
        store.put("U", b"")
        store.put("T", b"late", delay_level=1)
        store.delete_topic("T")
        now[0] += 60_000
        store.engine.deliver_due()
        assert store.topics() == ["SCHEDULE_TOPIC_XXXX", "U"]


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("absent", "no topic 'absent'"),
        ("SCHEDULE_TOPIC_XXXX", "belongs to the store"),
        ("B", "batch queues; purge it for each of its groups, and add brokerstore.retention=limits to its attributes"),
        ("C", "compacted; purge it for each of its groups, and add .* or let a broker delete it"),
        ("%LMQ%l", "its messages are those of other topics; purge it for each of its groups"),
    ],
)
def test_topic_that_cannot_be_deleted_is_named(tmp_path: Path, topic: str, reason: str) -> None:
    """The store has the same topics after it."""
    with MessageStore.open(tmp_path / "s", config=CONFIG.but(enable_lmq=True)) as store:
        store.create_topic("B", attributes={"queue.type": "BatchCQ"})
        store.create_topic("C", 1, attributes={"cleanup.policy": "COMPACTION"})
        store.put(Message("T", b"", properties={"INNER_MULTI_DISPATCH": "%LMQ%l"}))
        store.put("T", b"", delay_level=1)
        store.engine.settle()
        before = store.topics()
        with pytest.raises(InvalidMessage, match=reason):
            store.delete_topic(topic)
        assert store.topics() == before


def test_purge_and_attribute_free_batch_compacted_and_lmq_topics(tmp_path: Path) -> None:
    """Groups get nothing of them, also after a restart, and no log file is kept for them."""
    config = CONFIG.but(enable_lmq=True, retention="consumed")
    with MessageStore.open(tmp_path / "s", config=config) as store:
        attributes = {"B": {"queue.type": "BatchCQ"}, "C": {"cleanup.policy": "COMPACTION"}}
        for topic, own in attributes.items():
            store.create_topic(topic, 1, attributes=own)
        store.put_batch("B", 0, [Message("B", b"1"), Message("B", b"2")])
        store.put(Message("T", b"4", properties={"INNER_MULTI_DISPATCH": "%LMQ%l"}))
        for topic, count in (("B", 2), ("C", 0), ("%LMQ%l", 1), ("T", 1)):
            assert store.purge(topic, "G") == count
            if topic in attributes:
                store.create_topic(topic, attributes=attributes[topic] | {"brokerstore.retention": "limits"})
    with MessageStore.open(tmp_path / "s", config=config) as store:
        assert store.engine.derived.is_batch_topic("B")
        for topic in ("B", "C", "%LMQ%l", "T"):
            with store.consumer(topic, group="G", timeout_s=0) as consumer:
                assert list(consumer) == []
        store.consumer("B", group="other").close()
        end = store.log_end
        with store.engine.housekeeper.guard:
            assert store.engine.retention._pending.first_offset(end) >= end


def test_topic_and_group_in_use_are_not_deleted(folder: Path) -> None:
    """The error names topic and group; after the consumer closed both are deleted."""
    with MessageStore.open(folder, config=CONFIG) as store:
        consumer = store.consumer("T", group="G", queues=[0])
        consumer.ack(consumer.poll(1)[0])
        for delete, name in ((store.delete_topic, "T"), (store.delete_group, "G")):
            with pytest.raises(InvalidMessage, match="in use by open consumers: group 'G' on topic 'T'"):
                delete(name)
        consumer.close()
        store.delete_group("G")
        store.delete_topic("T")


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.delete_topic("T"), lambda store: store.delete_group("G"), lambda store: store.purge("T"),
        lambda store: store.reset_offsets("T", "G", "first"),
    ],
)  # fmt: skip
def test_reader_and_slave_change_no_topic_or_group(folder: Path, call: Callable[[MessageStore], Any]) -> None:
    """A slave has those of its master."""
    with MessageStore.open(folder, "r") as store, pytest.raises(StoreReadOnly):
        call(store)
    with MessageStore.open(folder, config=CONFIG.but(broker_role=Role.SLAVE)) as store, pytest.raises(StoreReadOnly):
        call(store)


def test_deleted_group_has_no_offsets_settings_or_retries(folder: Path) -> None:
    """Dead letters stay; the group begins at the first message again."""
    with MessageStore.open(folder, config=CONFIG) as store:
        with store.consumer("U", group="G") as consumer:
            (message,) = consumer.poll()
            consumer.nack(message, delay_level=-1)
            store.put("U", b"again")
            consumer.nack(consumer.poll()[0], delay_level=1)
        store.engine.delays.deliver_due()
        store.delete_group("G")
        assert store.committed_offsets("U", "G") == {}
        assert "G" not in store.engine.retries.groups
        assert "%RETRY%G" not in store.topics()
        assert bodies(store.read("%DLQ%G", 0)) == [b"u"]
        with store.consumer("U", group="G") as consumer:
            assert len(consumer.poll()) == 2
        with pytest.raises(InvalidMessage, match="no group 'absent'"):
            store.delete_group("absent")


def test_purge_skips_what_a_group_did_not_acknowledge(folder: Path) -> None:
    """Messages in hand too; what is put later is delivered, and other groups keep theirs."""
    with MessageStore.open(folder, config=CONFIG) as store:
        for fixed in (None, [0, 1]):
            with store.consumer("T", group=f"G{fixed}", queues=fixed) as consumer, store.consumer("T", group="H") as other:
                first, second = consumer.poll(2)
                assert consumer.ack(first)
                left = sum(store.max_offset("T", queue_id) for queue_id in (0, 1)) - 1
                assert store.purge("T", f"G{fixed}") == left
                assert not consumer.ack(second)
                assert consumer.poll() == []
                store.put("T", b"new", queue_id=1)
                assert bodies(consumer.poll()) == [b"new"]
                assert len(other.poll(10)) == 10
                assert consumer.lag() == 1


def test_purge_without_a_group_skips_for_all(folder: Path) -> None:
    """The number is the sum; a topic without any group is refused, and a purged group survives a restart."""
    with MessageStore.open(folder, config=CONFIG) as store:
        with pytest.raises(InvalidMessage, match="no group"):
            store.purge("T")
        with pytest.raises(InvalidMessage, match="no topic"):
            store.purge("absent", "G")
        with store.consumer("T", group="G") as consumer, store.consumer("T", group="H"):
            consumer.ack(consumer.poll(1)[0])
            assert store.purge("T") == 249 + 250
    with MessageStore.open(folder, config=CONFIG) as store, store.consumer("T", group="H") as consumer:
        assert consumer.poll() == []


def test_purged_retries_are_not_delivered(folder: Path) -> None:
    """The progress of a retry topic is set like an offset."""
    with MessageStore.open(folder, config=CONFIG) as store, store.consumer("U", group="G") as consumer:
        consumer.nack(consumer.poll()[0], delay_level=1)
        while not store.max_offset("%RETRY%G", 0):
            store.engine.progress.wait(store.engine.progress.count, 0.1)
        assert store.purge("%RETRY%G", "G") == 1
        assert consumer.poll() == []


def test_reset_offsets_moves_a_group_and_its_open_consumer(folder: Path) -> None:
    """To the first or last message, an offset, or a time."""
    with MessageStore.open(folder, config=CONFIG) as store, store.consumer("T", group="G") as consumer:
        while found := consumer.poll(64):
            for message in found:
                consumer.ack(message)
        assert store.reset_offsets("T", "G", 120, queues=[1]) == {1: 120}
        assert [(one.queue_id, one.queue_offset) for one in consumer.poll()] == [(1, offset) for offset in range(120, 125)]
        assert store.reset_offsets("T", "G", "first") == {0: 0, 1: 0}
        assert {one.queue_offset for one in consumer.poll(2)} == {0, 1}
        assert store.reset_offsets("T", "G", "last") == {0: 125, 1: 125}
        assert store.reset_offsets("T", "G", datetime.now(UTC) - timedelta(hours=1)) == {0: 0, 1: 0}
        assert store.committed_offsets("T", "G") == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("to", "queues", "error", "text"),
    [
        (126, None, InvalidMessage, "offsets 0 to 125, not 126"), ("first", [7], InvalidMessage, r"not in \[7\]"),
        ("earliest", None, ValueError, "'first', 'last'"),
    ],
)  # fmt: skip
def test_reset_to_an_impossible_offset_changes_nothing(
    folder: Path, to: Any, queues: list[int] | None, error: type[Exception], text: str
) -> None:
    """The error names what is possible."""
    with MessageStore.open(folder, config=CONFIG) as store:
        with pytest.raises(error, match=text):
            store.reset_offsets("T", "G", to, queues=queues)
        assert store.committed_offsets("T", "G") == {}


def test_another_number_of_queues_is_reported(folder: Path) -> None:
    """An existing topic keeps its number; the same number, and none, are no error."""
    with MessageStore.open(folder, config=CONFIG) as store:
        with pytest.raises(InvalidMessage, match="topic 'T' has 2 queues, not 4"):
            store.create_topic("T", 4)
        store.create_topic("T", 2)
        store.create_topic("T")


def test_queue_ids_are_known_before_the_first_message(tmp_path: Path) -> None:
    """To the writer and to a reader that was open before."""
    with MessageStore.open(tmp_path / "s", config=CONFIG) as store, MessageStore.open(tmp_path / "s", "r") as reader:
        store.create_topic("T", 3)
        assert store.queue_ids("T") == reader.queue_ids("T") == [0, 1, 2]
        assert reader.topics() == ["T"]


@pytest.mark.parametrize(
    "read",
    [
        lambda store, topic: store.read(topic, 0), lambda store, topic: store.read_raw(topic, 0),
        lambda store, topic: store.read_columns(topic, 0), lambda store, topic: store.scan(topic).reader().read_all(),
    ],
    ids=["read", "read_raw", "read_columns", "scan"],
)  # fmt: skip
def test_reading_an_unknown_topic_is_an_error(folder: Path, read: Callable[[MessageStore, str], Any]) -> None:
    """A topic without messages has none, as have the dead letters of a group before the first."""
    pytest.importorskip("pyarrow")
    with MessageStore.open(folder, config=CONFIG) as store:
        store.create_topic("empty", 1)
        for known in ("empty", "%DLQ%G"):
            read(store, known)
        with pytest.raises(InvalidMessage, match="no topic 'mistyped'"):
            read(store, "mistyped")


def test_put_after_a_deletion_is_stored(folder: Path) -> None:
    """Messages that were put and not dispatched when the topic was deleted are gone; later ones are not."""
    with MessageStore.open(folder, config=CONFIG) as store:
        for number in range(50):
            store.put_many([Message("T", b"old")] * 20)
            store.delete_topic("T")
            result = store.put("T", b"%d" % number, queue_id=0)
            assert bodies(store.read("T", 0)) == [b"%d" % number]
            assert store.get("T", 0, result.queue_offset).messages[0].body == b"%d" % number
