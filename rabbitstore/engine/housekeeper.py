"""The only thread of an open store: sync, collect garbage, flush journals when idle, balance memory.

It syncs as RabbitMQ's message store does: immediately when nothing else arrives, and while messages arrive at the latest 25 ms
after the last sync, so that one sync confirms many of them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from storageio import DiskError, StoreCorrupt, StoreError
from storageio.background import BackgroundThread, Wakeup

from .vhost import Vhost

_IDLE_S = 1.0
_QUIET_S = 0.001  # without a call for this long, nothing else arrives
_BALANCE_S = 2.5  # between two calculations of memory targets, as in rabbit_memory_monitor
_RETRY_S = 1.0
_LOG = logging.getLogger(f"brokerstore.{__name__}")


class RabbitHousekeeper:
    """The background work of a virtual host; its thread sleeps while nothing happens."""

    def __init__(self, vhost: Vhost, work: Wakeup, clock: Callable[[], float] = time.monotonic) -> None:
        """Create it; `thread.start` starts the thread, which `work` wakes."""
        self._vhost = vhost
        self._clock = clock
        self._worked_at = -math.inf
        self._balance_at = 0.0  # when to calculate memory targets again
        self._collect_at = 0.0  # when to retry a failed collection
        self._is_flushed = True
        self._is_busy = False  # whether more arrived before the last step ended
        self._logged = ""  # the last error: a repeated one is logged once
        self.thread = BackgroundThread("rabbitstore-housekeeper", self.step, first_pause_s=None, wakeup=work)

    def step(self) -> float | None:
        """Do one round of work; return how long to sleep."""
        try:
            if not self.thread.was_woken:
                self._is_flushed = True  # a failed flush is retried after the next change
                self._idle()
            elif self._wait_for_quiet():
                self._is_flushed = False
                try:
                    self._work()
                finally:
                    self._worked_at = self._clock()
        except StoreError as error:  # of one queue or file; the sync has handled all others
            self._log(error)
        self._is_busy = self.thread.is_woken
        return None if self._is_flushed and not self._collect_at else _IDLE_S

    def _wait_for_quiet(self) -> bool:
        """Sleep until nothing else arrives, at most an interval after the last sync; return false when the thread is to stop.

        A lone message after a quiet time is not delayed.
        """
        deadline = self._worked_at + self._vhost.settings.flush_interval_ms / 1000
        left, is_busy = deadline - self._clock(), self._is_busy
        if left > 0 and not is_busy:
            is_busy = not self.thread.pause(min(_QUIET_S, left)) and self.thread.is_woken
            left = deadline - self._clock()
        if left > 0 and is_busy:
            self.thread.pause(left)
        return not self.thread.is_stopping

    def _log(self, error: StoreError) -> None:
        if str(error) != self._logged:
            self._logged = str(error)
            _LOG.error("%s: background work failed: %s", self._vhost.path, error)

    def _work(self) -> None:
        if self._vhost.has_work:
            self._vhost.sync()
        if self._clock() >= self._collect_at:
            self._collect()
        if self._clock() >= self._balance_at:
            self._balance()

    def _balance(self) -> None:
        self._balance_at = self._clock() + _BALANCE_S
        self._vhost.balance_memory()

    def _idle(self) -> None:
        try:
            self._vhost.flush_journals()
        finally:
            self._balance()
        if self._collect_at:
            self._collect()

    def _collect(self) -> None:
        """Collect garbage; after a failure, for example on a full disk, wait before the next attempt: only space is lost."""
        try:
            self._vhost.collect()
            self._collect_at = 0.0
        except (DiskError, StoreCorrupt) as error:
            _LOG.error("%s: garbage is not collected for now: %s", self._vhost.path, error)
            self._collect_at = self._clock() + _RETRY_S
