"""The rates of a queue, as moving averages with a half life of five seconds."""

from __future__ import annotations

import math

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
if not cython.compiled:
    from storebytes._bytes_cy import I64, Bool

HALF_LIFE_S = 5.0
OPERATIONS_PER_UPDATE = 100
INFINITY = math.inf


class Rates:
    """Messages per second: published (ingress), delivered (egress), made unacknowledged (fetched), and acknowledged."""

    __slots__ = ("_acked", "_at_ms", "_fetched", "_pending", "_published", "acked", "egress", "fetched", "ingress")

    def __init__(self, now_ms: int) -> None:
        """Start with all rates 0."""
        self._at_ms = now_ms
        self._published = self._fetched = self._pending = self._acked = 0
        self.ingress = self.egress = self.fetched = self.acked = 0.0

    def count(self, published: I64, fetched: I64, pending: I64, acked: I64) -> Bool:
        """Count operations; return whether it is time for `update`."""
        self._published += published
        self._fetched += fetched
        self._pending += pending
        self._acked += acked
        return self._published + self._fetched + self._pending + self._acked >= OPERATIONS_PER_UPDATE

    def update(self, now_ms: int) -> None:
        """Update the averages with the counts."""
        seconds = max(0.001, (now_ms - self._at_ms) / 1000)
        old = math.exp(seconds * math.log(0.5) / HALF_LIFE_S)
        counts = (self._published, self._fetched, self._pending, self._acked)
        now = [count / seconds for count in counts]
        known = (self.ingress, self.egress, self.fetched, self.acked)
        averages = [old * before + (1 - old) * rate for before, rate in zip(known, now, strict=True)]
        self.ingress, self.egress, self.fetched, self.acked = averages
        self._at_ms = now_ms
        self._published = self._fetched = self._pending = self._acked = 0

    @property
    def total(self) -> float:
        """The sum of all four rates."""
        return self.ingress + self.egress + self.fetched + self.acked
