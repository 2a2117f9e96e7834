"""Methods of public classes can be overridden in a subclass and replaced by a mock: no instance has a method of its own."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import brokerstore
from brokerstore import Message, MessageStore, RabbitStore
from tests.builds import World
from tests.messagestore.kit import message, small

COMPILED = {
    "put": [
        "message",
        "body",
        "tags",
        "keys",
        "properties",
        "queue_id",
        "delay",
        "delay_level",
        "deliver_at",
        "priority",
        "dedup_id",
        "ttl",
        "check",
        "block_s",
    ],
    "message_at": ["physical_offset"],
    "query": ["topic", "key", "begin_ms", "end_ms", "max_count"],
    "offset_by_time": ["topic", "queue_id", "timestamp_ms", "boundary"],
}


def _message_store(path: Path, opened: ExitStack) -> Any:
    store = opened.enter_context(MessageStore.open(path))
    store.create_topic("T")
    return store


def _reader(path: Path, opened: ExitStack) -> Any:
    _message_store(path, opened)
    return opened.enter_context(MessageStore.open(path, "r"))


def _shared_store(path: Path, opened: ExitStack) -> Any:
    store = opened.enter_context(brokerstore.connect(path))
    store.create_topic("T")
    return store


def _rabbit_store(path: Path, opened: ExitStack) -> Any:
    store = opened.enter_context(RabbitStore.open(path))
    store.declare_queue("q")
    return store


OPENED: dict[str, Callable[[Path, ExitStack], Any]] = {
    "MessageStore": _message_store,
    "MessageStore for reading": _reader,
    "Consumer": lambda path, opened: opened.enter_context(_message_store(path, opened).consumer("T", group="g")),
    "Follower": lambda path, opened: opened.enter_context(_message_store(path, opened).follow()),
    "Follower of a writer": lambda path, opened: opened.enter_context(_reader(path, opened).follow()),
    "PutFuture": lambda path, opened: _message_store(path, opened).put_async(Message("T", b"x")),
    "Transaction": lambda path, opened: _message_store(path, opened).begin_transaction(Message("T", b"x")),
    "SharedStore": _shared_store,
    "SharedConsumer": lambda path, opened: opened.enter_context(_shared_store(path, opened).consumer("T", group="g")),
    "AsyncStore": lambda path, _: brokerstore.aio.AsyncStore(mock.Mock()),
    "RabbitStore": _rabbit_store,
    "Consumer of RabbitStore": lambda path, opened: opened.enter_context(_rabbit_store(path, opened).consumer("q")),
    "Publisher of RabbitStore": lambda path, opened: _rabbit_store(path, opened).publisher(),
}


@pytest.mark.parametrize("kind", OPENED)
def test_mock_replaces_each_method_of_an_open_object(kind: str, tmp_path: Path) -> None:
    """`mock.patch.object` on the class, as tests of an application use it, also changes objects that exist already."""
    with ExitStack() as opened:
        made = OPENED[kind](tmp_path / "s", opened)
        methods = [name for name, member in inspect.getmembers(type(made), callable) if not name.startswith("_")]
        assert methods
        for name in methods:
            with mock.patch.object(type(made), name, new=mock.Mock()) as replaced:
                getattr(made, name)(1, a=2)
            assert replaced.call_args == mock.call(1, a=2), name


@pytest.mark.both_builds
def test_subclass_overrides_compiled_methods(world: World, tmp_path: Path) -> None:
    """A subclass sees each call and reaches the original with `super()`."""
    called = []

    class Audited(world.messagestore.MessageStore):  # type: ignore[name-defined,misc]
        def put(self, *arguments: Any, **options: Any) -> Any:
            called.append("put")
            return super().put(*arguments, **options)

        def message_at(self, physical_offset: int) -> Any:
            called.append("message_at")
            return super().message_at(physical_offset)

        def query(self, *arguments: Any, **options: Any) -> Any:
            called.append("query")
            return super().query(*arguments, **options)

        def offset_by_time(self, *arguments: Any, **options: Any) -> int:
            called.append("offset_by_time")
            return int(super().offset_by_time(*arguments, **options)) + 1000

    with Audited.open(tmp_path / "s", "a", small(world)) as store:
        assert isinstance(store, Audited)
        result = store.put(message(world, 7, keys=["k"]))
        assert store.put("T", b"other", queue_id=0).queue_offset == 1
        assert store.message_at(result.physical_offset).body == message(world, 7).body
        assert [found.physical_offset for found in store.query("T", "k", max_count=5)] == [result.physical_offset]
        assert store.offset_by_time("T", 0, 0) == 1000
    assert called == ["put", "put", "message_at", "query", "offset_by_time"]


def test_subclass_overrides_methods_of_a_rabbit_store(tmp_path: Path) -> None:
    """A subclass of `RabbitStore` works as one of `MessageStore` does."""

    class Audited(RabbitStore):
        published = 0

        def publish(self, *arguments: Any, **options: Any) -> Any:
            self.published += 1
            return super().publish(*arguments, **options)

    with Audited.open(tmp_path / "v") as store:
        store.declare_queue("q")
        store.publish("q", b"a body")
        assert store.published == 1
        assert [found.body for found in store.messages("q")] == [b"a body"]


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_methods_have_signatures_and_docs(name: str) -> None:
    """`help()` shows what it shows for other methods."""
    method = getattr(MessageStore, name)
    assert list(inspect.signature(method).parameters) == ["self", *COMPILED[name]]
    assert (inspect.getdoc(method) or "").partition("\n")[0].endswith((".", "`."))


def test_open_store_is_not_pickled(tmp_path: Path) -> None:
    """A copy in another process would write beside the lock."""
    with MessageStore.open(tmp_path / "s") as store, pytest.raises(TypeError, match="pickle"):
        pickle.dumps(store)
