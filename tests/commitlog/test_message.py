"""`Message` as a Python object: text, equality, copies, signature, wrong types."""

from __future__ import annotations

import copy
import inspect
import pickle
from datetime import timedelta
from typing import Any

import pytest

from brokerstore import InvalidMessage, Message, OutOfRange
from tests.builds import World

FIELDS: dict[str, Any] = {
    "topic": "orders", "body": b"body", "tags": "paid", "keys": ["a", "b"], "properties": {"n": "v"}, "queue_id": 3, "flag": 4,
    "sys_flag": 8, "born_timestamp_ms": 1 << 40, "born_host": "1.2.3.4:5", "store_host": "5.6.7.8:9", "reconsume_times": 6,
    "prepared_transaction_offset": 1 << 41,
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "topic": "other", "body": b"", "tags": None, "keys": ["a"], "properties": None, "queue_id": -1, "flag": 0, "sys_flag": 0,
    "born_timestamp_ms": 0, "born_host": None, "store_host": None, "reconsume_times": 0, "prepared_transaction_offset": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "Message('orders', b'body')"),
        ({"keys": "k"}, "Message('orders', b'body', keys=['k'])"),
        ({"tags": "t", "queue_id": 0, "properties": {"a": "b"}},
         "Message('orders', b'body', tags='t', properties={'a': 'b'}, queue_id=0)"),
        ({"body": b"x" * 1000}, f"Message('orders', b'{'x' * 32}'... (1000 bytes))"),
    ],
)  # fmt: skip
def test_the_text_shows_what_is_set(world: World, fields: dict[str, Any], text: str) -> None:
    """Topic, body and what differs from the defaults."""
    assert repr(world.commitlog.Message(**{"topic": "orders", "body": b"body", **fields})) == text


def test_equal_fields_make_equal_messages(world: World) -> None:
    """One different field makes a difference; the form of a single key does not."""
    kind = world.commitlog.Message
    assert kind(**FIELDS) == kind(**FIELDS)
    for name, other in OTHERS.items():
        assert kind(**FIELDS) != kind(**{**FIELDS, name: other}), name
    assert kind("T", b"", keys="k") == kind("T", b"", keys=["k"])
    assert kind("T", b"", properties_raw=b"a\1b\2") != kind("T", b"")
    assert kind("T", b"") != "T"


def test_a_message_has_no_hash(world: World) -> None:
    """Its fields can change."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(world.commitlog.Message("T", b""))


def test_copies(world: World) -> None:
    """A deep copy shares nothing that can change."""
    message = world.commitlog.Message(**FIELDS)
    assert copy.copy(message) == message
    deep = copy.deepcopy(message)
    assert deep == message
    deep.properties["n"] = "w"
    assert message.properties == {"n": "v"}


@pytest.mark.parametrize("fields", [FIELDS, {"topic": "T", "body": b"", "properties_raw": b"a\1b\2"}])
def test_pickles(fields: dict[str, Any]) -> None:
    """Every protocol keeps every field."""
    message = Message(**fields)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(message, protocol)) == message


def test_the_signature(world: World) -> None:
    """Editors and `help` see names, annotations and defaults."""
    parameters = inspect.signature(world.commitlog.Message).parameters
    assert list(parameters)[:5] == ["topic", "body", "tags", "keys", "properties"]
    assert parameters["queue_id"].default == -1
    assert parameters["keys"].annotation == "str | list[str] | None"
    assert parameters["delay"].annotation == "timedelta | None"


@pytest.mark.parametrize("name", [*FIELDS, "properties_raw", "delay", "delay_level"])
@pytest.mark.parametrize("wrong", [1.5, object(), [5], {1: 2}, ("k",)])
def test_wrong_types_name_the_field(world: World, name: str, wrong: Any) -> None:
    """The same text in both builds."""
    with pytest.raises(TypeError, match=rf"^{name}: expected"):
        world.commitlog.Message(**{"topic": "T", "body": b"", name: wrong})


@pytest.mark.parametrize("name", ["queue_id", "flag", "sys_flag", "born_timestamp_ms", "delay_level"])
def test_numbers_out_of_range(world: World, name: str) -> None:
    """Such an error is a `ValueError`, as an `InvalidMessage` is."""
    with pytest.raises(OutOfRange) as caught:
        world.commitlog.Message("T", b"", **{name: 1 << 70})
    assert isinstance(caught.value, ValueError)


def test_delays(world: World) -> None:
    """Both forms set the property DELAY of a new dictionary; the store replaces a time by its level."""
    given = {"a": "b"}
    assert world.commitlog.Message("T", b"", properties=given, delay_level=3).properties == {"a": "b", "DELAY": "3"}
    assert given == {"a": "b"}
    assert world.commitlog.Message("T", b"", delay=timedelta(minutes=1)).properties == {"DELAY": "60000ms"}
    assert world.commitlog.Message("T", b"", delay=timedelta()).properties == {"DELAY": "0"}
    for fields in (
        {"delay": timedelta(seconds=-1)}, {"delay": timedelta(seconds=1), "delay_level": 1}, {"delay_level": -1},
        {"delay_level": 1, "properties": {"DELAY": "1"}},
    ):  # fmt: skip
        with pytest.raises(InvalidMessage):
            world.commitlog.Message("T", b"", **fields)
