"""Puts by topic and body, delays by time, and the cause of a refused put."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from brokerstore import DiskFull, Message, MessageStore, PutRejected, StoreConfig
from storageio.testing import WrappedDisk
from tests.builds import World

LEVELS = {1000: 1, 5000: 2, 60_000: 5, 7_200_000: 18}  # milliseconds and number of some of RocketMQ's levels


def test_the_short_form_stores_the_same(world: World, tmp_path: Path) -> None:
    """A topic, a body and fields are what a `Message` of them is."""
    fields: dict[str, Any] = {"tags": "paid", "keys": ["a", "b"], "properties": {"n": "v"}, "queue_id": 2}
    with world.messagestore.MessageStore.open(tmp_path / "s", config=world.messagestore.StoreConfig.small()) as store:
        store.put("orders", b"body", **fields)
        store.put(world.commitlog.Message("orders", b"body", **fields))
        one, other = store.get("orders", 2, 0).messages
        assert (one.body, one.properties) == (other.body, other.properties) and one.keys == ["a", "b"]
        assert store.put("orders", b"x").status.name == "PUT_OK"


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("T",), {}, "body"), (("T", "text"), {}, "body"), ((b"T", b""), {}, "message"), ((None,), {}, "message"),
        (("T", b""), {"keys": [5]}, "keys"), (("T", b""), {"queue_id": "0"}, "queue_id"),
        (("T", b""), {"delay": 5}, "delay"), ((), {}, "argument"), ((Message("T", b""), b"body"), {}, "has its fields itself"),
        ((Message("T", b""),), {"tags": "t"}, "has its fields itself"),
        ((Message("T", b""),), {"queue_id": 0}, "has its fields itself"),
    ],
)  # fmt: skip
def test_wrong_arguments(tmp_path: Path, arguments: tuple[Any, ...], options: dict[str, Any], text: str) -> None:
    """The error names the argument, and nothing is stored."""
    with MessageStore.open(tmp_path / "s", config=StoreConfig.small()) as store:
        with pytest.raises(TypeError, match=text):
            store.put(*arguments, **options)
        assert store.log_end == 0


def test_the_signature_of_put(tmp_path: Path) -> None:
    """An open store's method has the parameters of the class."""
    expected = inspect.signature(MessageStore.put)
    with MessageStore.open(tmp_path / "s", config=StoreConfig.small()) as store:
        found = inspect.signature(store.put)
    assert list(found.parameters) == list(expected.parameters)[1:]
    assert [p.default for p in found.parameters.values()] == [p.default for p in list(expected.parameters.values())[1:]]


@pytest.mark.parametrize(("time_ms", "level"), LEVELS.items())
def test_delay_equal_to_a_level_is_stored_as_that_level(world: World, tmp_path: Path, time_ms: int, level: int) -> None:
    """The waiting message is the one that the level makes, by each way to put it."""
    delay = timedelta(milliseconds=time_ms)
    message = world.commitlog.Message("T", b"x", queue_id=0, delay=delay)
    with world.messagestore.MessageStore.open(tmp_path / "s", config=world.messagestore.StoreConfig.small()) as store:
        store.put("T", b"x", queue_id=0, delay=delay)
        store.put("T", b"x", queue_id=0, delay_level=level)
        store.put(message)
        store.put_many([message])
        store.put_async(message).result(10)
        waiting = store.get("SCHEDULE_TOPIC_XXXX", level - 1, 0).messages
        assert [found.properties for found in waiting] == [{"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "0"}] * 5


def test_other_delays_are_timers(tmp_path: Path) -> None:
    """A time between two levels, and a level that the store's own levels do not have."""
    config = StoreConfig.small(message_delay_level="2s 7s")
    with MessageStore.open(tmp_path / "s", config=config) as store:
        assert store.put("T", b"", delay=timedelta(seconds=7)).queue_id == 1
        for delay in (timedelta(seconds=1), timedelta(seconds=2.5), timedelta(days=1)):
            stored = store.message_at(store.put("T", b"", delay=delay).physical_offset)
            assert stored is not None
            assert stored.topic == "rmq_sys_wheel_timer"


class FullDisk(WrappedDisk):
    """A disk without space for further log files, from a moment on."""

    is_full = False

    def before(self, operation: str, path: str) -> None:
        if self.is_full and operation == "allocate" and "commitlog" in path:
            raise DiskFull(operation, path, errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_the_cause_of_a_refused_put(tmp_path: Path) -> None:
    """The cause of a put, of several, of an asynchronous one, and of columns is the full disk."""
    disk = FullDisk()
    config = StoreConfig.small(mapped_file_size_commit_log=1 << 16)
    body = bytes(20_000)
    with MessageStore.open(tmp_path / "s", config=config, disk=disk) as store:
        disk.is_full = True
        calls: list[Callable[[], object]] = [
            lambda: store.put("T", body), lambda: store.put_many([Message("T", body)] * 9),
            lambda: store.put_async(Message("T", body)).result(10), lambda: store.append_columns("T", 0, [body]),
            lambda: store.put("T", body, delay_level=1),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(PutRejected) as caught:
                for _ in range(20):
                    call()
            assert isinstance(caught.value.__cause__, DiskFull), call
        assert isinstance(store.put("T", body, check=False).cause, DiskFull)
