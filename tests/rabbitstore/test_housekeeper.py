"""When the store's own thread syncs and calculates memory targets: on a clock that only its pauses move."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rabbitstore import RabbitSettings, RabbitStore
from rabbitstore.housekeeper import Housekeeper

INTERVAL_S = 0.025


class StoreOnPaper:
    """Counts what the thread asks of a store."""

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


class Woken(threading.Event):
    """An event that comes when it is waited for, if it has not come before."""

    def __init__(self, keeper: Housekeeper) -> None:
        super().__init__()
        if keeper._woken.is_set():
            self.set()

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return super().wait(timeout)


class Turns:
    """A housekeeper without a thread; `during` is called in each of its pauses."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.during: Callable[[], None] = lambda: None
        self.store = StoreOnPaper()
        self.keeper = Housekeeper(cast(Any, self.store), clock=lambda: self.now)
        self.keeper._pause = self.pause

    def pause(self, seconds: float = 0.0) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        self.during()
        return False

    def turn(self) -> None:
        """Something happens while the thread waits, or has happened."""
        self.keeper._woken = Woken(self.keeper)
        self.keeper._turn()


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_a_lone_publish_is_synced_without_a_wait(turns: Turns) -> None:
    """RabbitMQ syncs when nothing else waits; each lone publish waited 25 ms."""
    for _ in range(3):
        turns.turn()
        turns.now += 2 * INTERVAL_S
    assert (turns.store.syncs, turns.pauses) == (3, [])


def test_a_publish_right_after_a_sync_waits_for_quiet_alone(turns: Turns) -> None:
    """One pause, in which nothing arrives."""
    turns.turn()
    turns.now += 0.002
    turns.turn()
    assert turns.store.syncs == 2
    assert len(turns.pauses) == 1
    assert sum(turns.pauses) < INTERVAL_S / 5


def test_while_messages_keep_arriving_a_sync_takes_them_together(turns: Turns) -> None:
    """One each 25 ms, as before: a bulk of publishes is not slowed down by a sync for each."""
    turns.turn()
    turns.during = turns.keeper.wake
    turns.store.during_sync = turns.keeper.wake
    for _ in range(4):
        turns.turn()
    assert turns.store.syncs == 5
    assert sum(turns.pauses) == pytest.approx(4 * INTERVAL_S)
    assert len(turns.pauses) == 5, "the interval is one pause: a thread that runs each millisecond takes time from publishers"


def test_a_store_that_closes_ends_the_wait(turns: Turns) -> None:
    """Nothing is synced then: the stop does that itself."""
    turns.turn()
    turns.during = lambda: turns.keeper._stopped.set()
    turns.turn()
    assert turns.store.syncs == 1


def test_memory_targets_are_calculated_on_a_timer(turns: Turns) -> None:
    """While a store was busy without many bytes nobody did: RabbitMQ's monitor does each 2.5 s."""
    for _ in range(100):
        turns.turn()
        turns.now += 0.1
    assert turns.store.balances == 4
    assert turns.store.syncs == 100


def test_the_interval_is_the_longest_wait_and_not_the_usual_one(tmp_path: Path) -> None:
    """With an interval of an hour: three messages reach the disk, the second and third right after a sync."""
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
