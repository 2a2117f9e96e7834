"""Timers after a crash of the machine: none that was promised is lost, and none is delivered twice."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from messagestore.timers import check, live, new_files, timer_log
from messagestore.timers.layout import SLOT
from storageio.testing import ForgettingDisk, Image
from tests.amounts import amount

STEPS = 40
IMAGES_MAX = 150  # of one seed
SLOTS = 600  # of the wheel: the disk of the lab keeps every byte of a file


@pytest.fixture(autouse=True)
def small_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (check, live, new_files, timer_log):
        for name, value in (("WHEEL_SLOTS", SLOTS), ("WHEEL_SIZE", SLOTS * SLOT.size)):
            monkeypatch.setattr(module, name, value, raising=False)


def delivered(store: Any) -> Counter[int]:
    store.engine.settle()
    return Counter(int(one.body) for queue_id in store.queue_ids("T") for one in store.read("T", queue_id))


def deliver(store: Any) -> None:
    for _ in range(1000):
        store.engine.settle()
        if store.engine.deliver_due() > 0:
            return
    raise AssertionError("always something to do")


def judge(lab: Any, image: Image, now_ms: int, promised: set[int], tried: set[int]) -> None:
    """Open what a crash left, let the time of every timer pass, and compare."""
    disk = ForgettingDisk.of(image, now_ms)
    store = lab.open_still(disk, lab.lab_config(mapped_file_size_timer_log=200))
    deliver(store)
    disk.time_ms += 100_000
    deliver(store)
    found = delivered(store)
    assert promised <= found.keys() <= tried
    assert max(found.values(), default=1) == 1
    lab.abandon(store)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(amount(6, 20)))
def test_each_acknowledged_timer_is_delivered_once_after_any_crash(world: Any, lab: Any, seed: int) -> None:
    """Crashes at random moments of puts, deliveries, flushes and checkpoints of a store whose flush is asynchronous."""
    random = Random(seed)
    disk = ForgettingDisk()
    store = lab.open_still(disk, lab.lab_config(mapped_file_size_timer_log=200))
    tried: set[int] = set()
    promised: set[int] = set()
    images: list[tuple[Image, int, set[int], set[int]]] = []

    def catch(*_given: object) -> None:
        if len(images) < IMAGES_MAX and random.random() < 0.3:
            images.append((disk.any_image(random), disk.time_ms, set(promised), set(tried)))

    disk.watch = catch
    for _ in range(STEPS):
        action = random.choice(["put", "put", "time", "deliver", "persist", "flush"])
        if action == "put":
            for _ in range(3):
                number = len(tried)
                tried.add(number)
                due_ms = disk.time_ms + random.choice([1, 1500, 4000, 50_000])
                store.put(
                    world.commitlog.Message("T", b"%d" % number, queue_id=0, properties={"TIMER_DELIVER_MS": str(due_ms)})
                )
        elif action == "time":
            disk.time_ms += random.choice([700, 3000])
        elif action == "deliver":
            deliver(store)
        elif action == "persist":
            store.engine.timers.persist()
        else:
            store.flush()
            promised = set(tried)
        catch()
    disk.watch = None
    lab.abandon(store)
    assert len(images) > STEPS // 4
    for given in images:
        judge(lab, *given)
