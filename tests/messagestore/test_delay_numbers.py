"""Waiting messages whose queue is no number, or one that only Java or only Python parses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.messagestore.kit import Clock, crash_copy, open_idle
from tests.messagestore.test_delays import SCHEDULE, deliver


def put_waiting(world: Any, store: Any, body: bytes, queue: str) -> None:
    """Put a message as it waits in a log, without the checks of a put."""
    properties = {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": queue}
    for topic in ("T", SCHEDULE):
        store.engine.admission.admit(topic)
    store.engine.log.appender.append(world.commitlog.Message(SCHEDULE, body, queue_id=0, properties=properties))
    store.engine.settle()


@pytest.mark.parametrize(("queue", "comes"), [("9" * 5000, 0), ("\u0663", 0), ("+0", 1), ("-1", 0), ("00", 1), ("", 0)])
def test_delayed_message_with_any_queue_id_is_delivered_once_after_a_crash(
    world: Any, tmp_path: Path, queue: str, comes: int
) -> None:
    """Even 5,000 digits do not prevent opening the store after a crash."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        put_waiting(world, store, b"1", queue) if queue else None
        put_waiting(world, store, b"2", "0")
        clock.now_ms += 2000
        deliver(store)
        store.flush()
        folder = crash_copy(tmp_path / "s", tmp_path / "killed")
        (folder / "config" / "delayOffset.json").unlink(missing_ok=True)
    for _ in range(2):
        clock.now_ms += 2000
        with open_idle(world, folder, clock) as store:
            deliver(store)
            store.engine.settle()
            assert sorted(message.body for message in store.read("T", 0)) == [b"1"] * comes + [b"2"]
            again = crash_copy(folder, tmp_path / f"killed-{clock.now_ms}")
        folder = again
