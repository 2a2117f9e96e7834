"""`put_many` of a topic's bodies stores what it stores of as many messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerstore import InvalidMessage, Message, MessageStore, PutStatus, RefusedMessage, StoreConfig
from storebytes.java_hash import java_hash_code
from tests.builds import World
from tests.commitlog.logs import MemoryLog

TEXTS = st.one_of(st.none(), st.text(st.characters(exclude_characters="\1\2 ", exclude_categories=["Cs"]), max_size=9))
ROWS = st.lists(st.tuples(st.binary(max_size=300), TEXTS, TEXTS), min_size=1, max_size=120)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, queue_id=st.integers(0, 5), queues=st.sampled_from([0, 1, 4]), columns=st.sampled_from(["", "t", "k", "tk"]))
def test_the_log_is_that_of_message_objects(world: World, rows: list[Any], queue_id: int, queues: int, columns: str) -> None:
    """Byte for byte, over the ends of files: with a number of queues one for each key, else in turn."""
    bodies = [body for body, _, _ in rows]
    tags = [tag or None for _, tag, _ in rows] if "t" in columns else [None] * len(rows)
    keys = [key or None for _, _, key in rows] if "k" in columns else [None] * len(rows)
    chosen = [queue_id] * len(rows)
    if queues:
        chosen = [((java_hash_code(key) & 0x7FFFFFFF) if key else queue_id + row) % queues for row, key in enumerate(keys)]
    make = world.module("commitlog.column_input").offsets_and_data
    one, other = MemoryLog(world, 1 << 13, with_crc=True), MemoryLog(world, 1 << 13, with_crc=True)
    for _ in range(2):  # so that queues go on
        result = one.appender.append_columns(
            "T", queue_id, *make(bodies), make(keys, name="keys", null_is_empty=True) if "k" in columns else None,
            make(tags, name="tags", null_is_empty=True) if "t" in columns else None, b"", queues,
        )  # fmt: skip
        messages = [world.commitlog.Message("T", *row) for row in zip(bodies, tags, keys, strict=True)]
        expected = other.appender.append_many(messages, chosen)
        for field in ("status", "message_count", "queue_id", "queue_offset", "physical_offset", "size_bytes"):
            assert getattr(result, field) == getattr(expected, field), field
    assert one.bytes == other.bytes
    assert list(one.offsets.topic("T").queues()) == list(other.offsets.topic("T").queues())


def test_a_store_puts_bodies_as_messages(world: World, tmp_path: Path) -> None:
    """The queue of a key is that of a message with this key."""
    keys = [f"order-{number % 7}" for number in range(50)]
    with world.messagestore.MessageStore.open(tmp_path / "s", config=world.messagestore.StoreConfig.small()) as store:
        store.create_topic("T", 4)
        assert store.put_many("T", [b"%d" % number for number in range(50)], keys=keys, tags=["t"] * 50).message_count == 50
        for key in keys[:7]:
            queue_id = store.put("T", b"", keys=key).queue_id
            bodies = [message.body for message in store.read("T", queue_id) if message.keys == [key]]
            assert bodies == [b"%d" % number for number in range(50) if keys[number] == key] + [b""]
        assert store.put_many("T", [b"x"], queue_id=3).queue_id == 3


def test_rows_without_a_key_take_the_queues_in_turn(world: World, tmp_path: Path) -> None:
    """Over several calls each queue has as many, within one; a key always has the same queue."""
    with world.messagestore.MessageStore.open(tmp_path / "s", config=world.messagestore.StoreConfig.small()) as store:
        store.create_topic("T", 4)
        for _ in range(3):
            store.put_many("T", [b"x"] * 8)
        assert [store.get("T", queue, 0, 100).next_offset for queue in range(4)] == [6, 6, 6, 6]
        for _ in range(9):
            store.put_many("T", [b"x", b"y"], keys=["order-17", None])
        queues = {number for number in range(4) for message in store.get("T", number, 0, 100).messages if message.keys}
        assert len(queues) == 1


@pytest.mark.parametrize(
    ("bodies", "fields", "error", "text"),
    [
        (None, {}, TypeError, "bodies: expected a list, got NoneType"), (b"one", {}, TypeError, "bodies: expected a list"),
        (["text"], {}, TypeError, "bodies: expected bytes, got str"), ([b"x"], {"keys": [5]}, TypeError, "keys: expected str"),
        ([b"x"], {"tags": "t"}, TypeError, "tags: expected a list"), ([b"x"], {"keys": []}, InvalidMessage, "keys: 0 rows"),
        ([b"x", b"y"], {"keys": ["k", "a\1"]}, InvalidMessage, "keys: a value holds"), ([], {}, InvalidMessage, "no messages"),
        ([b"x"], {"keys": ["\ud800"]}, InvalidMessage, "keys: row 0 cannot be encoded"),
        ([b"x"], {"queue_id": 1 << 20}, InvalidMessage, "queue id"), ([b"x", bytes(5 << 20)], {}, RefusedMessage, "body of"),
    ],
)  # fmt: skip
def test_wrong_arguments(tmp_path: Path, bodies: Any, fields: dict[str, Any], error: type[Exception], text: str) -> None:
    """The error names the argument, and nothing is stored."""
    with MessageStore.open(tmp_path / "s", config=StoreConfig.small()) as store:
        with pytest.raises(error, match=text):
            store.put_many("T", bodies, **fields)
        assert store.log_end == 0


def test_fields_beside_messages_are_refused(tmp_path: Path) -> None:
    """Messages have their tags, keys and queue themselves."""
    with MessageStore.open(tmp_path / "s", config=StoreConfig.small()) as store:
        for fields in ({"tags": ["t"]}, {"keys": ["k"]}, {"queue_id": 0}, {"bodies": [b"x"]}):
            with pytest.raises(TypeError, match="has its fields itself"):
                store.put_many([Message("T", b"x")], **fields)
        assert store.put_many("T" * 300, [b"x"], check=False).status is PutStatus.MESSAGE_ILLEGAL
        assert store.log_end == 0
