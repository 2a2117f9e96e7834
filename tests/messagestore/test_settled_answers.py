"""Every result includes what an earlier put returned for: calls about queues wait for the dispatcher."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.messagestore.kit import START_MS, Clock, hold_dispatch, message, number_of, open_small, put_numbers

QUESTIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "max_offset": (lambda store: store.max_offset("T", 3), 2),
    "min_offset": (lambda store: store.min_offset("T", 3), 0),
    "queue_ids": (lambda store: store.engine.lookup.queue_ids("T") if store.topics() else [], [3]),
    "topics": (lambda store: store.topics(), ["T"]),
    "store_time": (lambda store: store.store_time("T", 3, 1), START_MS),
    "get": (lambda store: len(store.get("T", 3, 0).messages), 2),
    "read": (lambda store: [number_of(found) for found in store.read("T", 3)], [0, 1]),
    "read_raw": (lambda store: sum(map(len, store.read_raw("T", 3))), 2),
    "batch_max_offset": (lambda store: store.max_offset("T", 3), 2),
    "batch_queue_ids": (lambda store: store.engine.lookup.queue_ids("T") if store.topics() else [], [3]),
    "batch_store_time": (
        lambda store: [store.store_time("T", 3, offset) for offset in (-1, 0, 1, 2)],
        [-1, START_MS, START_MS, -1],
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_reads_include_messages_put_before_the_call(world: Any, tmp_path: Path, question: str) -> None:
    """The dispatcher stands still during the call, and continues only then."""
    invoke, expected = QUESTIONS[question]
    with open_small(world, tmp_path, clock=Clock()) as store:
        if question.startswith("batch"):
            store.create_topic("T", 4, attributes={"queue.type": "BatchCQ"})
        dispatcher = store.engine.dispatcher
        allowed = threading.Event()
        dispatcher._limit = lambda: store.engine.dispatch_limit() if allowed.is_set() else 0
        put_numbers(world, store, range(2), queue_id=3)
        wait_for = dispatcher.wait_for

        def go_on_and_wait(offset: int, timeout_s: float | None = None) -> bool:
            allowed.set()
            return bool(wait_for(offset, timeout_s))

        dispatcher.wait_for = go_on_and_wait
        assert invoke(store) == expected


def test_uncommitted_max_offset_does_not_wait_for_the_dispatcher(world: Any, tmp_path: Path) -> None:
    """`committed=False` reads the counter from which puts take their offsets."""
    with open_small(world, tmp_path) as store:
        resume = hold_dispatch(store, 0)
        put_numbers(world, store, range(2))
        assert store.max_offset("T", 0, committed=False) == 2
        resume()
        store.put(message(world, 2))
        assert store.max_offset("T", 0) == 3
