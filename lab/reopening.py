"""A process dies, or a sync fails, during a step; another process opens the folder; then the power fails.

What the first process wrote is only in the page cache, where every reader sees all of it.  The second process must sync it
before it removes anything that vouches for it, and before it promises it.
"""

from __future__ import annotations

import contextlib
import errno
from random import Random
from typing import Any

from storageio import DiskError, StoreError
from storageio.testing import ForgettingDisk

from . import rabbitmq_lab, rocketmq_lab
from .rabbitmq_check import check_rabbit
from .rabbitmq_lab import RabbitRun
from .rocketmq_check import check_store

BEFORE_MAX, AFTER, CALLS_MAX, IMAGES = 50, 40, 12, 6
EXCLUDED = ("crash", "delete")


class Killed(BaseException):
    """The process died before this call."""


class PlannedStop:
    """Stops a disk at a call: raises `Killed` before it, or with `fails` an error at a sync."""

    def __init__(self, number: int, *, fails: bool) -> None:
        """Stop at the call with this number, counted from 0 among the calls of the kind."""
        self._left = number
        self._fails = fails
        self.has_struck = False

    def __call__(self, operation: str, path: str) -> None:
        """Count a call, and stop at the chosen one."""
        if self.has_struck or (self._fails and not operation.startswith("sync")):
            return
        self._left -= 1
        if self._left < 0:
            self.has_struck = True
            raise DiskError(operation, path, errno.EIO, "an error, once") if self._fails else Killed

    def on(self, disk: ForgettingDisk) -> None:
        """Watch a disk from now on."""
        if self._fails:
            disk.refuse = self
        else:
            disk.watch = self


def rabbit_reopened(seed: int, *, fails: bool) -> int:
    """Stop a program of this seed, reopen the folder, and check images of a power failure; return how many."""
    random = Random(seed)
    run = RabbitRun(seed, tries=False)
    run.do(("declare", "a", "default"))
    run.do(("declare", "b", "lazy"))
    for _ in range(random.randrange(8, BEFORE_MAX)):
        _step(run, rabbitmq_lab.any_operation(random))
    stop = PlannedStop(random.randrange(CALLS_MAX), fails=fails)
    stop.on(run.disk)
    _until_it_strikes(run, random, stop)
    run.disk.watch = run.disk.refuse = None
    run.store.abandon()
    run.disk._held.clear()  # a dead process holds no lock
    floor = run.ledger.floor()
    store = run.open(run.disk)
    found = check_rabbit(store, run.ledger, floor)
    images = _judge(run, floor)
    store.sync()
    run.ledger.cut(found)
    run.ledger.sync()
    images += _judge(run, run.ledger.floor())
    store.abandon()
    return images


def _step(run: RabbitRun, operation: tuple[Any, ...]) -> None:
    if operation[0] not in EXCLUDED:
        run.do(operation)


def _until_it_strikes(run: RabbitRun | rocketmq_lab.RocketmqRun, random: Random, stop: PlannedStop) -> None:
    any_operation = rabbitmq_lab.any_operation if isinstance(run, RabbitRun) else rocketmq_lab.any_operation
    for _ in range(AFTER):
        operation = any_operation(random)
        if operation[0] in (*EXCLUDED, "declare", "close"):
            continue
        try:
            with contextlib.suppress(StoreError):
                run.do(operation)
        except Killed:
            return
        if stop.has_struck and random.random() < 0.3:
            return


def rocket_reopened(seed: int, *, fails: bool) -> int:
    """Do the same for RocketMQ: the log is intact after opening, and on the disk when `flush` returned."""
    random = Random(seed)
    config = rocketmq_lab.any_config(random)
    run = rocketmq_lab.RocketmqRun(
        seed, config=rocketmq_lab.through_ring(config) if random.random() < 0.3 else config, tries=False
    )
    for _ in range(random.randrange(4, BEFORE_MAX // 2)):
        run.do(_harmless(random))
    stop = PlannedStop(random.randrange(CALLS_MAX), fails=fails)
    stop.on(run.disk)
    _until_it_strikes(run, random, stop)
    run.disk.watch = run.disk.refuse = None
    run.ledger.learn(run.store)
    rocketmq_lab.abandon(run.store)
    run.disk._held.clear()
    flushed = run.ledger.flushed
    store = run.open()
    run.ledger.cut(check_store(store, run.disk, run.ledger, flushed))
    images = _judge(run, flushed)
    store.flush()
    store.engine.settle()
    store.engine.housekeeper.flush_derived(thorough=True)
    images += _judge(run, len(run.ledger.entries))
    rocketmq_lab.abandon(store)
    return images


def _harmless(random: Random) -> tuple[Any, ...]:
    while (operation := rocketmq_lab.any_operation(random))[0] in ("crash", "close"):
        continue
    return operation


def _judge(run: RabbitRun | rocketmq_lab.RocketmqRun, promise: Any) -> int:
    random = Random(1)
    images = [run.disk.after_kill(), run.disk.least(), *(run.disk.any_image(random) for _ in range(IMAGES))]
    for image in images:
        run.recover(ForgettingDisk.of(image, run.disk.time_ms), promise)
    return len(images)
