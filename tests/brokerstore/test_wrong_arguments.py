"""Wrong arguments of public functions raise a `StoreError`, `TypeError` or `ValueError`, and leave a working store behind."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import brokerstore
from brokerstore import Message, MessageStore, RabbitStore, StoreConfig, StoreError, aio
from brokerstore.metrics import observe, prometheus_text
from brokerstore.migrate import export_to_rabbit, import_rabbit
from commitlog import decode_message_id

WRONG: tuple[Any, ...] = (None, 5, -1, 1 << 70, 1.5, "", "\ud800", "a\0b", b"x", [5], {1: 2}, object(), int)
IGNORED = ("close", "close_cleanly", "abandon", "forget", "poll", "open")  # of no arguments, or of a time to wait
TIMES = ("wait", "timeout")
RIGHT: dict[str, Any] = {
    "topic": "T", "queue_id": 0, "offset": 0, "message": Message("T", b"x"), "messages": [Message("T", b"x", queue_id=0)],
    "key": "k", "physical_offset": 0, "timestamp_ms": 0, "queue_offset": 0, "group": "g", "data": b"", "bodies": [b"x"],
    "topics": ["T"], "max_count": 1, "decide": lambda half: None, "max_bytes": 10, "queue": "q", "body": b"x", "name": "q",
}  # fmt: skip


def call(function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Call it and read what it returns; fail on an error of another kind."""
    try:
        found = function(**options)
        if inspect.isgenerator(found):
            next(iter(found), None)
        elif hasattr(found, "close"):
            found.close()
    except (StoreError, TypeError, ValueError):
        pass
    except Exception as error:
        pytest.fail(f"{function!r}({options}): {type(error).__name__}: {error}")


def methods_of(item: object) -> Iterator[Callable[..., Any]]:
    """Yield the public methods of an object."""
    for name in dir(item):
        if not name.startswith("_") and name not in IGNORED and inspect.isroutine(getattr(item, name)):
            yield getattr(item, name)


def walk(item: object, **right: Any) -> int:
    """Call each method with one wrong argument at a time; return the number of calls."""
    count = 0
    for method in methods_of(item):
        parameters = [one for one in inspect.signature(method).parameters.values() if one.kind is not one.VAR_KEYWORD]
        needed = {one.name: {**RIGHT, **right}.get(one.name) for one in parameters if one.default is one.empty}
        if any(one.name == "timeout_s" for one in parameters):
            needed["timeout_s"] = 0.0
        for one in parameters:
            for wrong in WRONG if not one.name.startswith(TIMES) else ():
                call(method, {**needed, one.name: wrong})
                count += 1
    return count


@pytest.mark.parametrize("opened", [MessageStore.open, brokerstore.connect])
def test_message_store_rejects_wrong_arguments(opened: Callable[..., Any], tmp_path: Path) -> None:
    """Each method of both kinds of stores, and of their consumers, with each argument wrong in turn."""
    with opened(tmp_path / "s", config=StoreConfig.small()) as store:
        store.put("T", b"first", keys="k", queue_id=0)
        assert walk(store) > 400
        with store.consumer("T", group="walked", timeout_s=0.0) as consumer:
            assert walk(consumer, message=store.message_at(0)) > 40
        assert store.put("T", b"last", queue_id=0).queue_offset > 0
        assert store.get("T", 0, 0).messages[0].body == b"first"


def test_rabbit_store_rejects_wrong_arguments(tmp_path: Path) -> None:
    """Each method of `RabbitStore`."""
    with RabbitStore.open(tmp_path / "s", "a") as store:
        store.declare_queue("q")
        store.publish("q", b"first")
        assert walk(store) > 100
        store.publish("q", b"last")


@pytest.mark.parametrize("opened", [brokerstore.open, brokerstore.connect, MessageStore.open, RabbitStore.open])
def test_open_rejects_wrong_arguments(opened: Callable[..., Any], tmp_path: Path) -> None:
    """Path, mode and settings."""
    for number, wrong in enumerate(WRONG):
        if wrong != "":  # the current folder
            call(opened, {"path": wrong})
        for name in ("mode", "config", "settings"):
            if name in inspect.signature(opened).parameters:
                call(opened, {"path": tmp_path / f"{number}{name}", name: wrong})


@pytest.mark.parametrize("function", [Message, prometheus_text, observe, import_rabbit, export_to_rabbit, decode_message_id])
def test_functions_reject_wrong_arguments(
    function: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constructors and functions beside the stores, with each argument wrong in turn."""
    monkeypatch.chdir(tmp_path)  # for paths such as "b'x'"
    needed = {"topic": "T", "body": b"x", "source": str(tmp_path), "store": str(tmp_path / "s"), "rabbit": str(tmp_path / "r")}
    parameters = inspect.signature(function).parameters
    given = {name: value for name, value in needed.items() if name in parameters}
    for one in parameters.values():
        for wrong in WRONG if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) else ():
            if one.kind is one.POSITIONAL_ONLY:
                call(functools.partial(function, wrong), {})
            else:
                call(function, {**given, one.name: wrong})


def test_asyncio_store_rejects_wrong_arguments(tmp_path: Path) -> None:
    """The awaited methods, with each argument wrong in turn; the loop goes on."""

    async def walked() -> None:
        async with aio.open(tmp_path / "s", StoreConfig.small()) as store:
            for method in (store.put, store.put_many, store.get, store.query, store.create_topic):
                parameters = inspect.signature(method).parameters.values()
                needed = {one.name: RIGHT.get(one.name) for one in parameters if one.default is one.empty}
                for one in parameters:
                    for wrong in WRONG if one.kind is not one.VAR_KEYWORD else ():
                        try:
                            await method(**{**needed, one.name: wrong})
                        except (StoreError, TypeError, ValueError):
                            continue
            assert (await store.put("T", b"last", queue_id=0)).queue_offset >= 0

    asyncio.run(walked())
