"""Wrong arguments of public functions raise a `StoreError`, `TypeError` or `ValueError`, and leave a working store behind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerstore import Message, MessageStore, StoreConfig, StoreError

WRONG: tuple[Any, ...] = (
    None,
    5,
    -1,
    1 << 70,
    1.5,
    "",
    "T",
    "\ud800",
    "a\0b",
    b"",
    b"x",
    [],
    [5],
    {},
    {1: 2},
    object(),
    int,
    True,
)
CONTROL = {"__enter__", "__exit__", "close", "close_cleanly"}  # take no arguments that a program passes


def calls_of(thing: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods of an object."""
    for name in dir(thing):
        if not name.startswith("_") and name not in CONTROL and callable(getattr(thing, name)):
            yield name, getattr(thing, name)


def call(name: str, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> None:
    """Call it and read what it returns; fail on an error of another kind."""
    try:
        found = function(*arguments, **options)
        if inspect.isgenerator(found) or hasattr(found, "read_next_batch"):
            next(iter(found), None)
    except (StoreError, TypeError, ValueError):
        pass
    except Exception as error:
        given = ", ".join([*map(repr, arguments), *(f"{key}={value!r}" for key, value in options.items())])
        pytest.fail(f"{name}({given}): {type(error).__name__}: {error}")


RIGHT: dict[str, Any] = {
    "topic": "T", "queue_id": 0, "offset": 0, "message": Message("T", b"x"), "messages": [Message("T", b"x", queue_id=0)],
    "key": "k", "physical_offset": 0, "timestamp_ms": 0, "queue_offset": 0, "group": "g", "data": b"", "bodies": [b"x"],
    "topics": ["T"], "half": None, "max_count": 1, "timeout_s": 0.0, "decide": lambda half: None, "max_bytes": 10,
    "queue": "q", "body": b"x", "vhost": "/",
}  # fmt: skip


def walk(thing: object) -> int:
    """Call each method with one wrong argument at a time; return the number of calls."""
    count = 0
    for name, function in calls_of(thing):
        parameters = [
            p for p in inspect.signature(function).parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        needed = {p.name: RIGHT.get(p.name) for p in parameters if p.default is p.empty}
        if name in ("consumer", "follow"):
            needed["timeout_s"] = 0.0
        for parameter in parameters:
            for wrong in WRONG:
                call(name, function, **{**needed, parameter.name: wrong})
                count += 1
    return count


def test_a_store_of_messages(tmp_path: Path) -> None:
    """Each method of `MessageStore`, with each argument wrong in turn."""
    with MessageStore.open(tmp_path / "s", config=StoreConfig.small()) as store:
        store.put("T", b"first", keys="k", queue_id=0)
        assert walk(store) > 500
        assert store.put("T", b"last", queue_id=0).queue_offset > 0
        assert store.get("T", 0, 0).messages[0].body == b"first"
