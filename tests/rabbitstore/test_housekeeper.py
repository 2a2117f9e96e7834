"""When the housekeeper syncs and calculates memory targets, on a clock that only its pauses move."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rabbitstore import RabbitSettings, RabbitStore
from rabbitstore.engine.housekeeper import RabbitHousekeeper
from storageio.background import Wakeup

INTERVAL_S = 0.025


class CountingVhost:
    """Counts the calls of the housekeeper."""

    def __init__(self) -> None:
        self.settings = RabbitSettings()
        self.has_work = True
        self.syncs = self.collections = self.balances = 0
        self.during_sync: Callable[[], None] = lambda: None

    def sync(self) -> None:
        self.syncs += 1
        self.during_sync()

    def collect(self) -> None:
        self.collections += 1

    def balance_memory(self) -> None:
        self.balances += 1


class FakeThread:
    """A thread that was woken; only its pauses move the clock, and each calls `during`."""

    was_woken = True

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.during: Callable[[], None] = lambda: None
        self.is_woken = self.is_stopping = False

    def wake(self) -> None:
        self.is_woken = True

    def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        self.during()
        return self.is_stopping


class Turns:
    """A housekeeper without a real thread."""

    def __init__(self) -> None:
        self.thread = FakeThread()
        self.store = CountingVhost()
        self.keeper = RabbitHousekeeper(cast(Any, self.store), Wakeup(), clock=lambda: self.thread.now)
        self.keeper.thread = cast(Any, self.thread)

    def turn(self) -> None:
        """Do one step after a `wake`."""
        self.thread.is_woken = False
        self.keeper.step()


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_a_lone_publish_is_synced_without_a_wait(turns: Turns) -> None:
    """RabbitMQ syncs when nothing else waits; here each lone publish used to wait 25 ms."""
    for _ in range(3):
        turns.turn()
        turns.thread.now += 2 * INTERVAL_S
    assert (turns.store.syncs, turns.thread.pauses) == (3, [])


def test_a_publish_right_after_a_sync_waits_only_for_a_short_pause(turns: Turns) -> None:
    """There is one short pause, in which nothing arrives."""
    turns.turn()
    turns.thread.now += 0.002
    turns.turn()
    assert turns.store.syncs == 2
    assert len(turns.thread.pauses) == 1
    assert sum(turns.thread.pauses) < INTERVAL_S / 5


def test_one_sync_covers_all_messages_that_arrive_within_an_interval(turns: Turns) -> None:
    """There is one sync each 25 ms, so a bulk of publishes does not wait for a sync each."""
    turns.turn()
    turns.thread.during = turns.thread.wake
    turns.store.during_sync = turns.thread.wake
    for _ in range(4):
        turns.turn()
    assert turns.store.syncs == 5
    assert sum(turns.thread.pauses) == pytest.approx(4 * INTERVAL_S)
    assert len(turns.thread.pauses) == 5, "one pause: a thread that runs each millisecond slows down publishers"


def test_a_store_that_closes_ends_the_wait(turns: Turns) -> None:
    """The stop syncs itself, so the housekeeper does not."""
    turns.turn()
    turns.thread.during = lambda: setattr(turns.thread, "is_stopping", True)
    turns.turn()
    assert turns.store.syncs == 1


def test_memory_targets_are_calculated_on_a_timer(turns: Turns) -> None:
    """A busy store with few bytes used to have none; RabbitMQ's monitor calculates them each 2.5 s."""
    for _ in range(100):
        turns.turn()
        turns.thread.now += 0.1
    assert turns.store.balances == 4
    assert turns.store.syncs == 100


def test_the_sync_interval_is_an_upper_bound(tmp_path: Path) -> None:
    """With an interval of an hour three messages reach the disk, two of them right after a sync."""
    path = str(tmp_path / "vhost")
    with RabbitStore.open(path, settings=RabbitSettings(flush_interval_ms=3_600_000)) as store:
        store.declare_queue("q")
        for number in range(3):
            store.publish("q", b"%d" % number)
            stop = time.monotonic() + 30
            while store.has_work:
                assert time.monotonic() < stop
                time.sleep(0.001)
        with RabbitStore.open(path, "r") as seen:
            assert [message.body for message in seen.messages("q")] == [b"0", b"1", b"2"]
