"""The one thread of a RabbitStore: sync, collect garbage, flush journals when idle, balance memory.

It syncs as RabbitMQ's message store does: at once when nothing else arrives, and at the latest 25 ms after the last sync while
messages keep arriving, so that one sync confirms many of them.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from storageio import DiskError, StoreCorrupt, StoreError

from .live_queue import LiveQueue
from .rates_cy import INFINITY
from .variable_queue_cy import VariableQueue

if TYPE_CHECKING:
    from .store import RabbitStore

_IDLE_S = 1.0
_QUIET_S = 0.001  # without a call for so long: nothing else arrives
_BALANCE_S = 2.5  # between two calculations of memory targets, as RabbitMQ's memory monitor has it
_RETRY_S = 1.0
_LOG = logging.getLogger("brokerstore")


class Housekeeper:
    """Sleeps while nothing happens."""

    def __init__(self, store: RabbitStore, clock: Callable[[], float] = time.monotonic) -> None:
        """Call `start` to run it on its thread."""
        self._store = store
        self._clock = clock
        self._worked_at = -math.inf
        self._balance_at = 0.0  # when to calculate memory targets again
        self._collect_at = 0.0  # when to try again what the collector could not do
        self._is_flushed = True
        self._named = ""  # the error that was logged last: one that stays is said once
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._pause: Callable[[float], bool] = (
            self._stopped.wait
        )  # for so many seconds; true when the store is closed meanwhile
        self._thread = threading.Thread(target=self._run, name="rabbitstore-housekeeper", daemon=True)

    def start(self) -> Housekeeper:
        """Start the thread."""
        self._thread.start()
        return self

    def wake(self) -> None:
        """Something was published, fetched or acknowledged."""
        if not self._woken.is_set():
            self._woken.set()

    def stop(self) -> None:
        """Return when the thread is gone."""
        self._stopped.set()
        self._woken.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._turn()
            except StoreError as error:  # of one queue or file; a sync has done the others all the same
                self._name(error)

    def _turn(self) -> None:
        is_busy = self._woken.is_set()
        if self._woken.wait(None if self._is_flushed and not self._collect_at else _IDLE_S):
            self._gather(is_busy=is_busy)
            if not self._stopped.is_set():
                self._is_flushed = False
                try:
                    self._work()
                finally:
                    self._worked_at = self._clock()
        else:
            self._is_flushed = True  # what fails is tried again when something happens
            self._rest()

    def _gather(self, *, is_busy: bool) -> None:
        """Return when nothing else arrives, and at the latest a whole interval after the last sync and what followed it.

        What arrives one by one is not waited for; `is_busy` says that more arrived since the last call.
        """
        deadline = self._worked_at + self._store.settings.flush_interval_ms / 1000
        left = deadline - self._clock()
        self._woken.clear()
        if left > 0 and not is_busy:
            is_busy = not self._pause(min(_QUIET_S, left)) and self._woken.is_set()
            left = deadline - self._clock()
        if left > 0 and is_busy:
            self._pause(left)

    def _name(self, error: StoreError) -> None:
        if str(error) != self._named:
            self._named = str(error)
            _LOG.error("%s: background work failed: %s", self._store.path, error)

    def _work(self) -> None:
        if self._store.has_work:
            self._store.sync()
        if self._clock() >= self._collect_at:
            self._collect()
        if self._clock() >= self._balance_at:
            self._balance()

    def _balance(self) -> None:
        self._balance_at = self._clock() + _BALANCE_S
        self._store.balance_memory()

    def _rest(self) -> None:
        try:
            self._store.flush_journals()
        finally:
            self._balance()
        if self._collect_at:
            self._collect()

    def _collect(self) -> None:
        """What the collector cannot do now, on a full disk for one, it tries again in a while: only room is lost meanwhile."""
        try:
            self._store.collect()
            self._collect_at = 0.0
        except (DiskError, StoreCorrupt) as error:
            _LOG.error("%s: garbage stays for now: %s", self._store.path, error)
            self._collect_at = self._clock() + _RETRY_S


def balance_memory(queues: list[LiveQueue], limit_bytes: int) -> None:
    """Give every queue a target so that all keep below the limit (the server's memory monitor).

    Below the limit nobody is limited.  Above it every moving queue gets the time that fits, a resting one its share.
    """
    used = {queue.name: queue.memory_bytes() for queue in queues}
    total = sum(used.values())
    share = 1.0 if total == 0 else min(1.0, limit_bytes * 0.75 / total)
    for queue in queues:
        with queue.lock:
            for part in queue.parts:
                if total <= limit_bytes * 0.75 and part.target_ram_count == INFINITY:
                    continue
                if total <= limit_bytes * 0.5:
                    part.set_target_ram_count(INFINITY)
                elif share < 1.0:
                    _limit(part, share)


def _limit(part: VariableQueue, share: float) -> None:
    held = part.ram_count + len(part.ram_pending)
    duration_s = part.duration_s()
    if duration_s == INFINITY:
        part.set_target_ram_count(int(held * share))
    else:
        part.set_duration_target(duration_s * share)
