"""Which topics and queues a program can put to: the broker's own, odd names, and queues that a topic does not have."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokerstore.file_import import import_file
from commitlog import Message, PutStatus
from messagestore import MessageStore, StoreConfig
from messagestore.shared.store import connect
from storageio import InvalidMessage, PutRejected
from tests.stores import encode_wire_batch

SMALL = StoreConfig.small()
# TopicValidator of RocketMQ 4.9.7 to 5.5.1, and the topics of timers and POP.
INTERNAL = (
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster",
)  # fmt: skip
UNSEEN = ("my jobs", "a\nb", "\t", "a\x00b", "a\x7f", "a\u00a0b", "a\u2028", "\u200bjobs", "jobs ", "\x85")
Put = Callable[[MessageStore, str, int], Any]


def put_one(store: MessageStore, topic: str, queue_id: int) -> Any:
    return store.put(topic, b"x", queue_id=queue_id)


PUTS: dict[str, Put] = {
    "put": put_one,
    "delayed": lambda store, topic, queue_id: store.put(topic, b"x", queue_id=queue_id, delay_level=3),
    "put_many": lambda store, topic, queue_id: store.put_many([Message("T", b"x"), Message(topic, b"x", queue_id=queue_id)]),
    "bodies": lambda store, topic, queue_id: store.put_many(topic, [b"x"], queue_id=queue_id),
    "put_async": lambda store, topic, queue_id: store.put_async(Message(topic, b"x", queue_id=queue_id)).result(),
    "put_batch": lambda store, topic, queue_id: store.put_batch(topic, queue_id, [Message(topic, b"x")]),
    "wire_batch": lambda store, topic, queue_id: store.put_wire_batch(
        topic, queue_id, encode_wire_batch([Message(topic, b"x")])
    ),
    "append_columns": lambda store, topic, queue_id: store.append_columns(topic, queue_id, [b"x"]),
    "transaction": lambda store, topic, queue_id: store.begin_transaction(Message(topic, b"x", queue_id=queue_id)),
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Open a store that has delayed and prepared messages, so that its own topics exist."""
    with MessageStore.open(tmp_path / "s", "a", SMALL) as opened:
        opened.create_topic("T", 8)
        opened.begin_transaction(Message("T", b"half"))
        opened.put("T", b"later", delay_level=5)
        yield opened


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
@pytest.mark.parametrize("topic", [*INTERNAL, *UNSEEN])
def test_put_to_a_system_topic_or_with_invisible_characters_is_rejected(store: MessageStore, put: Put, topic: str) -> None:
    """Each way to put refuses it before anything is written; also for a topic that the store's services use."""
    before = store.log_end
    with pytest.raises(PutRejected) as caught:
        put(store, topic, 0)
    assert caught.value.status is PutStatus.MESSAGE_ILLEGAL
    assert store.log_end == before
    assert store.engine.queues.get(topic, 0) is None or topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC")


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
@pytest.mark.parametrize("queue_id", [8, 999])
def test_a_queue_that_the_topic_lacks_takes_no_message(store: MessageStore, put: Put, queue_id: int) -> None:
    """No broker would send a consumer there; the last queue takes one."""
    put(store, "T", 7)
    put(store, "new", 7)
    before = store.log_end
    for topic in ("T", "new"):
        with pytest.raises(PutRejected, match=f"queue id {queue_id}: topic {topic} has 8 queues"):
            put(store, topic, queue_id)
    assert store.log_end == before


def test_put_to_a_batch_topic_rejects_a_queue_it_lacks(tmp_path: Path) -> None:
    """Its puts take another path."""
    with MessageStore.open(tmp_path / "s", "a", SMALL) as store:
        store.create_topic("B", 2, attributes={"queue.type": "BatchCQ"})
        put_one(store, "B", 1)
        for put in (PUTS["put"], PUTS["put_many"], PUTS["bodies"]):
            with pytest.raises(PutRejected, match="topic B has 2 queues"):
                put(store, "B", 2)


def test_a_queue_that_can_be_read_takes_messages(store: MessageStore) -> None:
    """A topic whose write queues were reduced, as a broker's: the larger of both numbers counts."""
    known = store.engine.topics.get("T")
    assert known is not None
    store.engine.topics.put(known.but(write_queues=2))
    store.engine.admission.admit("T")
    assert put_one(store, "T", 7).queue_id == 7
    assert {put_one(store, "T", -1).queue_id for _ in range(9)} == {0, 1}


def test_a_transaction_survives_another_programs_decision(store: MessageStore) -> None:
    """The op record that would roll it back is refused."""
    with pytest.raises(PutRejected, match="the broker's own"):
        store.put("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0,", tags="d", queue_id=0)
    assert [half.topic for half in store.undecided_transactions()] == ["T"]


@pytest.mark.parametrize("name", UNSEEN)
def test_no_topic_with_unseen_characters_is_created(store: MessageStore, name: str) -> None:
    """A folder with that name would look like another one."""
    with pytest.raises(InvalidMessage):
        store.create_topic(name)
    assert name not in store.topics()


def test_an_old_topic_with_white_space_goes_on(tmp_path: Path) -> None:
    """An earlier version made it: messages are read, put, delivered after a delay, and given to consumers."""
    with MessageStore.open(tmp_path / "s", "a", SMALL) as store:
        store.engine.admission.admit("my jobs")
        put_one(store, "my jobs", 0)
    with MessageStore.open(tmp_path / "s", "a", SMALL) as store:
        put_one(store, "my jobs", 0)
        assert [message.body for message in store.read("my jobs", 0)] == [b"x", b"x"]
        consumer = store.consumer("my jobs", group="g")
        assert len(consumer.poll(10, 5)) == 2
        consumer.close()


def test_a_name_that_no_client_can_use_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line for each name, whatever the number of puts."""
    with caplog.at_level(logging.WARNING), MessageStore.open(tmp_path / "s", "a", SMALL) as store:
        for name in ("straße", "a.b", "straße", "good-name_1%|", "a.b"):
            put_one(store, name, 0)
            store.put(name, b"later", delay_level=1)
    logged = [record.getMessage() for record in caplog.records if "client of RocketMQ" in record.getMessage()]
    assert [line.split("'")[1] for line in logged] == ["straße", "a.b"]


def test_a_shared_store_refuses_as_its_owner_does(tmp_path: Path) -> None:
    """Members send their puts to the owner."""
    with connect(tmp_path / "s", SMALL) as owner:
        for call in (owner.put, lambda topic, body, **fields: owner.put_many(topic, [body], **fields)):
            with pytest.raises(PutRejected):
                call("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0,")  # type: ignore[operator]
            with pytest.raises(PutRejected):
                call("my jobs", b"x")  # type: ignore[operator]


@pytest.mark.parametrize("topic", [*INTERNAL, *UNSEEN])
@pytest.mark.parametrize("properties", [{}, {"DELAY": "3", "REAL_TOPIC": None}])
def test_an_import_of_such_a_row_is_refused(tmp_path: Path, topic: str, properties: dict[str, str | None]) -> None:
    """By the row's number; also a row whose delay is over, which is put to its queue directly."""
    own = {name: topic if value is None else value for name, value in properties.items()}
    rows = [{"topic": "T", "body": "a"}, {"topic": topic, "body": "b", "properties": own}]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises((PutRejected, InvalidMessage), match="row 2 of"):
        import_file(str(tmp_path / "rows.jsonl"), str(tmp_path / "s"), config=SMALL)
    with MessageStore.open(tmp_path / "s", "r", SMALL) as store:
        assert store.topics() == ["T"]


@pytest.mark.parametrize("properties", [{}, {"DELAY": "3", "REAL_TOPIC": "T"}])
def test_an_import_keeps_the_queues_of_new_topics_and_adds_none_to_others(tmp_path: Path, properties: dict[str, str]) -> None:
    """A topic of the file gets as many queues as its rows name; one that the store has keeps its number."""
    rows = [{"topic": "T", "body": "a"}, {"topic": "T", "body": "b", "queue_id": 20, "properties": properties}]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    import_file(str(tmp_path / "rows.jsonl"), str(tmp_path / "new"), config=SMALL)
    with MessageStore.open(tmp_path / "new", "a", SMALL) as store:
        assert store.engine.topics.get("T").write_queues == 21  # type: ignore[union-attr]
        assert [message.body for message in store.read("T", 20)] == [b"b"]
    with MessageStore.open(tmp_path / "old", "a", SMALL) as store:
        store.create_topic("T", 8)
    with pytest.raises((PutRejected, InvalidMessage), match=r"queue id 20: topic T has 8 queues.*row 2 of"):
        import_file(str(tmp_path / "rows.jsonl"), str(tmp_path / "old"), config=SMALL)
