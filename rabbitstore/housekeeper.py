"""The one thread of a RabbitStore: sync every 25 ms, collect garbage, flush journals when idle, balance memory."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from storageio import DiskError, StoreCorrupt, StoreError

from .live_queue import LiveQueue
from .rates_cy import INFINITY
from .variable_queue_cy import VariableQueue

if TYPE_CHECKING:
    from .store import RabbitStore

_IDLE_S = 1.0
_RETRY_S = 1.0
_LOG = logging.getLogger("brokerstore")


class Housekeeper:
    """Sleeps while nothing happens."""

    def __init__(self, store: RabbitStore) -> None:
        """Starts at once."""
        self._store = store
        self._collect_at = 0.0  # when to try again what the collector could not do
        self._is_flushed = True
        self._named = ""  # the error that was logged last: one that stays is said once
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rabbitstore-housekeeper", daemon=True)
        self._thread.start()

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
        if self._woken.wait(None if self._is_flushed and not self._collect_at else _IDLE_S):
            self._woken.clear()
            if not self._stopped.wait(self._store.settings.flush_interval_ms / 1000):
                self._is_flushed = False
                self._work()
        else:
            self._is_flushed = True  # what fails is tried again when something happens
            self._rest()

    def _name(self, error: StoreError) -> None:
        if str(error) != self._named:
            self._named = str(error)
            _LOG.error("%s: background work failed: %s", self._store.path, error)

    def _work(self) -> None:
        if self._store.has_work:
            self._store.sync()
        if time.monotonic() >= self._collect_at:
            self._collect()

    def _rest(self) -> None:
        try:
            self._store.flush_journals()
        finally:
            self._store.balance_memory()
        if self._collect_at:
            self._collect()

    def _collect(self) -> None:
        """What the collector cannot do now, on a full disk for one, it tries again in a while: only room is lost meanwhile."""
        try:
            self._store.collect()
            self._collect_at = 0.0
        except (DiskError, StoreCorrupt) as error:
            _LOG.error("%s: garbage stays for now: %s", self._store.path, error)
            self._collect_at = time.monotonic() + _RETRY_S


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
