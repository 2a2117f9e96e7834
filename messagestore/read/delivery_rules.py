"""How long a consumer may take for a message, and how often a message is delivered."""

from __future__ import annotations

import math
from typing import NamedTuple

from storageio import InvalidSetting

MS_MAX = 1 << 62  # the deadline of a delivery that no time ends
SECONDS_MAX = 1e9


class DeliveryRules(NamedTuple):
    """The rules of one consumer."""

    visibility_s: float | None = None
    max_deliveries: int | None = None

    @property
    def has_visibility(self) -> bool:
        """Whether a delivery ends after a time."""
        return self.visibility_s is not None

    def check(self) -> None:
        """Raise `InvalidSetting` for a time or a number that cannot be kept."""
        if self.visibility_s is not None:
            duration_ms("visibility_s", self.visibility_s)
        count = self.max_deliveries
        if count is not None and (type(count) is not int or not 1 <= count < 1 << 31):
            raise InvalidSetting(f"max_deliveries is {count!r}: an integer from 1 to 2,147,483,647, or None")

    def deadline_ms(self, now_ms: int) -> int:
        """Return when a delivery that begins now ends."""
        return MS_MAX if self.visibility_s is None else now_ms + duration_ms("visibility_s", self.visibility_s)


def duration_ms(name: str, seconds: float) -> int:
    """Return a time in milliseconds, at least 1. Raises `InvalidSetting` for one that is not positive, or no number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= SECONDS_MAX:
        raise InvalidSetting(f"{name} is {seconds!r}: seconds, more than 0 and at most {SECONDS_MAX:,.0f}")
    return math.ceil(1000 * seconds)


NO_RULES = DeliveryRules()
