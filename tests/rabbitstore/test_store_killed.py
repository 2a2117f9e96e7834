"""A store that is killed at each call that changes its folder loses no confirmed, unacknowledged message."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from rabbitstore import IndexSettings, RabbitSettings, RabbitStore, StoreSettings, verify
from storageio import REAL_DISK, StoreError

from .conftest import ChangesFail

SETTINGS = RabbitSettings(
    background=False,
    store=StoreSettings(file_size_limit=20_000, file_garbage_fraction=0.2, write_buffer_bytes=3000),
    index=IndexSettings(segment_entries=16, journal_entries_max=40),
    memory_limit_bytes=100_000,
    io_batch_size=8,
)


class Run:
    """A random program on a store; `promised` has the message bodies that must survive, by queue."""

    def __init__(self, path: str, seed: int, disk: ChangesFail) -> None:
        self.rng = random.Random(seed)
        self.path, self.disk = path, disk
        self.promised = {"a": set(), "b": set()}
        self.acked = {"a": set(), "b": set()}
        self.published = {"a": set(), "b": set()}
        self.store = None

    def live(self) -> None:
        self.store = RabbitStore.open(self.path, settings=SETTINGS, disk=self.disk)
        self.store.declare_queue("a")
        self.store.declare_queue("b", mode="lazy")
        for number in range(150):
            self._step(number)
        self.store.close()

    def _step(self, number: int) -> None:
        rng, store = self.rng, self.store
        targets = rng.choice([["a"], ["b"], ["a", "b"]])
        body = b"%d:" % number + b"x" * rng.choice([10, 200, 4200, 9000])
        for name in targets:
            self.published[name].add(body)
        store.publish(targets, body)
        if rng.random() < 0.6:
            name = rng.choice("ab")
            delivery = store.get(name)
            if delivery is not None and rng.random() < 0.8:
                self.acked[name].add(delivery.body)
                self.promised[name].discard(delivery.body)
                store.ack(delivery)
        if rng.random() < 0.2:
            store.sync()
            self.promised = {name: self.published[name] - self.acked[name] for name in "ab"}
        if rng.random() < 0.05:
            store.collect()
        if rng.random() < 0.05:
            store.flush_journals()
        if rng.random() < 0.05:
            store.balance_memory()


def _survivors(path: str) -> dict[str, set[bytes]]:
    found = {}
    with RabbitStore.open(path, settings=SETTINGS) as store:
        for name in store.queue_names():
            bodies = [delivery.body for delivery in iter(lambda n=name: store.get(n), None)]
            assert len(bodies) == len(set(bodies))
            assert bodies == sorted(bodies, key=lambda body: int(body.split(b":")[0]))
            found[name] = set(bodies)
        store.collect()
        for store_part in (store.parts.persistent, store.parts.transient):
            store_part.process()
            store_part.check()
    return found


@pytest.mark.parametrize("step", [41, pytest.param(11, marks=pytest.mark.deep)])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_the_calls_that_change_something(tmp_path: Path, seed: int, step: int) -> None:
    """Every confirmed, unacknowledged message is there once and in order, and no other message."""
    fail_at, is_done = 0, False
    while not is_done:
        fail_at += step  # the lab tries every call of smaller lives, in every way (tests/lab/test_faults.py)
        path = str(tmp_path / str(fail_at))
        run = Run(path, seed, ChangesFail(fail_at, for_ever=True))
        try:
            run.live()
            is_done = True
        except StoreError:
            if run.store is not None:
                with contextlib.suppress(StoreError):
                    run.store.abandon()
        if REAL_DISK.stat(f"{path}/queues") is None:
            continue
        found = _survivors(path)
        for name in "ab":
            assert found.get(name, set()) >= run.promised[name]
            assert found.get(name, set()) <= run.published[name]
        assert verify(path).problems == []
    assert fail_at > 200
