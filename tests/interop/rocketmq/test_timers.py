"""Timers of a killed broker: recovered with a cut of the log or with fillers, and delivered by the real broker afterwards.

The state of POP consumers is timers as well.

BROKERSTORE_TIMERS sets the number of timers that are pending when the broker is killed.
"""

from __future__ import annotations

import base64
import os
import shutil
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from commitlog import StoredMessage
from commitlog.walk import LogFiles
from messagestore import MessageStore, StoreConfig
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from messagestore.timers.layout import TIMER_TOPIC
from storageio import REAL_DISK
from tests.brokerstore.tool import run
from tests.faults.test_unknown_formats import records

from .folders import JAVA_NAMES, SIZES
from .jvm import prepare_or_skip, why_not
from .real_broker import RealBroker, until
from .test_broker_config import bodies

TIMERS = int(os.environ.get("BROKERSTORE_TIMERS", "300"))
SOON, LATE_S = 40, 8  # timers that are delivered before the kill; seconds over which the others are spread
TIMER_LOG_SIZE = 52_000
SENDS_S = 4 + TIMERS // 1000  # seconds for the requests of a client that has all timers in hand
START_S = 20 + TIMERS // 60  # seconds for the sends, two recoveries, and two starts on a busy machine
PATIENCE_S = 60 + TIMERS // 40
SETTINGS: dict[str, Any] = {
    **dict(zip(JAVA_NAMES, (1 << 20, 20_000, 5_000, 20_000), strict=True)),
    "mappedFileSizeTimerLog": TIMER_LOG_SIZE,
    "timerWheelEnable": True,
}
SIZES_HERE: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000, "max_hash_slot_num": 5_000,
    "max_index_num": 20_000, "mapped_file_size_timer_log": TIMER_LOG_SIZE,
}  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600 + 2 * PATIENCE_S),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]


def timer_records(store: Path) -> list[tuple[Path, int]]:
    """Return file and place of each record of the timers' topic."""
    positions = {int(path.name) + at: (path, at) for path, at in records(store)}
    messages = LogFiles(REAL_DISK, [str(store / "commitlog")]).messages()
    return [positions[one.physical_offset] for one in messages if isinstance(one, StoredMessage) and one.topic == TIMER_TOPIC]


def damage(record: tuple[Path, int]) -> None:
    """Overwrite the beginning of a record."""
    path, at = record
    with path.open("r+b") as file:
        file.seek(at + 4)
        file.write(b"\xee" * 32)


def text(body: str, queue_id: int, **more: Any) -> dict[str, Any]:
    return {"topic": "timed", "queue_id": queue_id, "body": base64.b64encode(body.encode()).decode()} | more


def timers(name: str, count: int, due_ms: int, spread_ms: int = 0) -> list[dict[str, Any]]:
    step = spread_ms / max(count, 1)
    return [text(f"{name} {number}", number % 2, deliver_ms=due_ms + int(number * step)) for number in range(count)]


def delivered(broker: RealBroker) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.invoke("read", topic="timed")
    return found


def came(broker: RealBroker) -> int:
    """Return how many were delivered, without asking for what is in them."""
    return len(broker.invoke("read", topic="timed", brief=True))


def kill_with_pending_timers(folder: Path, scratch: Path) -> None:
    """Have some timers delivered and the rest pending, the last record being an ordinary message, and kill the broker."""
    with RealBroker(folder, scratch, **SETTINGS) as broker:
        broker.invoke("topic", topic="timed", queues=2)
        now_ms = int(time.time() * 1000)
        broker.invoke("send", messages=timers("soon", SOON, now_ms + 1000 * SENDS_S))
        until(lambda: came(broker) == SOON, "the first timers are delivered")
        now_ms = int(time.time() * 1000)
        broker.invoke("send", messages=timers("late", TIMERS, now_ms + 1000 * START_S, 1000 * LATE_S))
        broker.invoke("send", messages=[text("ordinary", 0)])
        time.sleep(1.2)  # a flush of the timer files
        broker.kill()


def test_a_broker_delivers_every_timer_at_its_time_after_our_recovery(tmp_path: Path) -> None:
    """Cut in the middle of the timers, or with fillers for two of them, one the last of its queue.

    Each timer whose record is kept is delivered once, not before its time, and none that was delivered before.  New timers are
    delivered too.
    """
    prepare_or_skip()
    cut, filled = tmp_path / "cut", tmp_path / "filled"
    kill_with_pending_timers(cut, tmp_path / "first")
    shutil.copytree(cut, filled)
    kept = SOON + TIMERS * 3 // 4
    assert len(timer_records(cut)) == SOON + TIMERS
    damage(timer_records(cut)[kept])
    damage(timer_records(filled)[-1])
    damage(timer_records(filled)[kept])
    expected = {cut: range(kept - SOON), filled: [number for number in range(TIMERS - 1) if number != kept - SOON]}
    with ExitStack() as opened:
        brokers = {}
        for folder, choice in ((cut, Choice.TRUNCATE), (filled, Choice.SKIP)):
            plan = Recovery(str(folder), choice).apply()
            assert not plan.needs_force and "rebuild_timers" in {step.kind for step in plan.steps}
            assert not verify_store(str(folder)).problems
            brokers[folder] = opened.enter_context(RealBroker(folder, tmp_path / f"{folder.name}-broker", **SETTINGS))
        started_ms = int(time.time() * 1000)
        for folder, broker in brokers.items():
            broker.invoke("send", messages=timers("new", 3, started_ms + 1000 * SENDS_S))
            requested = len(expected[folder]) + SOON + 3
            until(lambda b=broker, w=requested: came(b) >= w, "all timers are delivered", PATIENCE_S)  # type: ignore[misc]
        time.sleep(2)  # for what must not come
        for folder, broker in brokers.items():
            check(delivered(broker), expected[folder], started_ms, has_ordinary=folder is filled)


def check(found: list[dict[str, Any]], expected: Any, started_ms: int, *, has_ordinary: bool) -> None:
    """Compare what was delivered with the timers that were kept, and print how late they were."""
    names = [*(f"soon {n}" for n in range(SOON)), *(f"late {n}" for n in expected), *(f"new {n}" for n in range(3))]
    requested = Counter(names) + Counter(["ordinary"] * has_ordinary)
    assert Counter(bodies(found)) == requested
    late = [one for one in found if one["store_timestamp_ms"] > started_ms and "TIMER_OUT_MS" in one["properties"]]
    waits = [one["store_timestamp_ms"] - int(one["properties"]["TIMER_OUT_MS"]) for one in late]
    print(f"{len(waits)} timers after the start, {min(waits)} to {max(waits)} ms after their time")
    assert min(waits) >= 0


def test_a_broker_and_our_store_deliver_each_others_timers(tmp_path: Path) -> None:
    """Ours, killed; ours again, stopped; the broker, killed; ours: each timer comes once, at its time, from whoever is open."""
    prepare_or_skip()
    first, folder = tmp_path / "first", tmp_path / "store"
    config = StoreConfig(**SIZES_HERE)
    began_ms = int(time.time() * 1000)
    due = {f"ours {number}": began_ms + 1000 + number * 250 for number in range(120)}  # up to 31 s
    with MessageStore.open(first, "x", config) as store:
        store.create_topic("timed", 2)
        for number, (body, due_ms) in enumerate(due.items()):
            store.put("timed", body.encode(), queue_id=number % 2, deliver_at=datetime.fromtimestamp(due_ms / 1000, UTC))
        until(lambda: count(store) >= 5, "the first timers are delivered by our store")
        shutil.copytree(first, folder)  # as a killed process leaves it
    with MessageStore.open(folder, "r+", config) as store:
        until(lambda: count(store) >= 15, "some more after the kill")
    assert not verify_store(str(folder)).problems
    with RealBroker(folder, tmp_path / "broker", **SETTINGS) as broker:
        before = len(delivered(broker))
        now_ms = int(time.time() * 1000)
        broker.invoke("send", messages=timers("brokers", 60, now_ms + 3000, 15_000))
        until(lambda: len(delivered(broker)) >= before + 20, "the broker delivers some")
        time.sleep(2.2)  # a flush of the timer files
        broker.kill()
    expected = Counter([*due, *(f"brokers {number}" for number in range(60))])
    with MessageStore.open(folder, "r+", config) as store:
        until(lambda: count(store) >= len(expected), "our store delivers the rest")
        time.sleep(2)  # for what must not come
        found = [one for queue_id in (0, 1) for one in store.read("timed", queue_id)]
        late = [one.store_timestamp_ms - int(one.properties["TIMER_DELIVER_MS"]) for one in found]
        print(f"{len(late)} timers, {min(late)} to {max(late)} ms after their time")
        assert Counter(one.body.decode() for one in found) == expected
        assert min(late) >= 0
    assert not verify_store(str(folder)).problems


def count(store: MessageStore) -> int:
    return sum(store.max_offset("timed", queue_id) for queue_id in (0, 1))


def test_a_broker_revives_what_we_count_as_unacknowledged(fixture_store: Any, tmp_path: Path) -> None:
    """The folder of a killed broker with POP consumers: the retry topic gets as many messages as `ls` counts, no more."""
    prepare_or_skip()
    store = fixture_store("broker-pop", own=True).store
    retry = "%RETRY%G_pop_PopTopic"
    listed = run("ls", "--json", store).json
    before = next(row["messages"] for row in listed["queues"] if row["topic"] == retry)
    expected = before + sum(row["unacknowledged"] for row in listed["pop"])
    assert expected > before
    settings = SIZES | {"mappedFileSizeTimerLog": TIMER_LOG_SIZE, "brokerName": "peer-a", "brokerClusterName": "peer"}
    with RealBroker(store, tmp_path, **settings) as broker:
        until(lambda: len(broker.invoke("read", topic=retry)) >= expected, "all are revived")
        time.sleep(3)  # for what must not come
        assert len(broker.invoke("read", topic=retry)) == expected


def logged(folder: Path) -> list[StoredMessage]:
    return [one for one in LogFiles(REAL_DISK, [str(folder / "commitlog")]).messages() if isinstance(one, StoredMessage)]


def test_a_broker_rolls_a_timer_of_ours_and_our_store_delivers_it(tmp_path: Path) -> None:
    """The wait is longer than the wheel: our unit is due in some seconds, and the broker, with a window of 4 s, rolls it on.

    Each roll is a new record of the same timer with the same time. Our store takes over, and delivers it once, at its time.
    """
    prepare_or_skip()
    folder, config = tmp_path / "store", StoreConfig(**SIZES_HERE)
    began_ms = int(time.time() * 1000) - 86_400_000 + 10_000  # a timer of 200,000 s is rolled by us after 86,400 s
    due_ms = (began_ms + 200_000_000) // 1000 * 1000 + 500  # a broker rounds down to whole seconds
    with MessageStore.open(folder, "x", config, clock=lambda: began_ms) as store:
        store.create_topic("timed", 1)
        store.put("timed", b"far", queue_id=0, deliver_at=datetime.fromtimestamp(due_ms / 1000, UTC))
        until(lambda: store.engine.timers.progress().queue_offset == 1, "the timer is in the wheel")
    with MessageStore.open(folder, "r+", config):  # the time of the wheel is now
        time.sleep(1.5)
    with RealBroker(folder, tmp_path / "broker", timerRollWindowSlot=4, **SETTINGS) as broker:
        until(lambda: len(logged(folder)) >= 3, "the broker rolls it twice")
        assert not delivered(broker)
        broker.stop()
    assert not verify_store(str(folder)).problems
    timers_of = logged(folder)
    assert [one.properties.get("TIMER_ROLL_TIMES") for one in timers_of[:3]] == [None, "1", "2"]
    assert {one.properties["TIMER_OUT_MS"] for one in timers_of} == {str(due_ms - 500)}
    assert {one.body for one in timers_of} == {b"far"}
    ahead_ms = due_ms - int(time.time() * 1000) - 3000
    with MessageStore.open(folder, "r+", config, clock=lambda: int(time.time() * 1000) + ahead_ms) as store:
        until(lambda: store.max_offset("timed", 0) == 1, "our store delivers it")
        time.sleep(1)
        found = list(store.read("timed", 0))
        assert [one.body for one in found] == [b"far"] and found[0].store_timestamp_ms >= due_ms
