"""Units of delayed messages, and how long messages of a delay level wait, by ranges of physical offsets in the log.

A unit of SCHEDULE_TOPIC_XXXX holds the due time of its message, which depends on the record's store time and on the levels that
the writer had then. RocketMQ has the levels only in the broker's configuration. A store opened for writing here keeps them
(`store_settings`; `docs/formats/broker-topics.md#delay-levels-of-a-store`). The levels of older records are unknown unless the
caller gives the broker's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from commitlog import StoredMessage, is_java_number
from commitlog.topic_names import SCHEDULE_TOPIC
from consumequeue import ConsumeQueue
from consumequeue.layout import TAGS_CODE_AT, UNIT, UNIT_SIZE

from ...config import DELAY_LEVELS, delay_times_ms
from ...property_names import DELAY

LOG = logging.getLogger(f"brokerstore.{__name__}")
NO_LEVELS_MS = 1000  # delay of every message if there are no levels
ENTRIES_MAX = 100
MessageAt = Callable[[int], object]


class ScheduledEntry(NamedTuple):
    """The levels of records from a physical offset on; None if they are not known."""

    start: int
    levels: str | None


class DelayLevels:
    """The delay levels of one store."""

    def __init__(self, entries: list[ScheduledEntry], given: str | None = None) -> None:
        """Create it from the kept entries, in log order.

        `given` are the caller's levels, for records whose levels were not kept.
        """
        self._given = given
        self.entries = entries or [ScheduledEntry(0, None)]
        texts = [text for _, text in self.entries if text is not None]
        self.current = given if given is not None else texts[-1] if texts else DELAY_LEVELS
        self._is_warned = False

    def longest_ms(self, level: int) -> int:
        """Return the longest delay of a level in milliseconds, by any known levels."""
        return max(_delay_ms(level, text) for text in {self.current, *(text for _, text in self.entries if text is not None)})

    @property
    def current_ms(self) -> list[int]:
        """Return the current delays in milliseconds, level 1 first."""
        return delay_times_ms(self.current)

    def opened_at(self, log_end: int, *, is_empty: bool) -> DelayLevels:
        """Return the levels of a store that is opened for writing with the current ones and whose log ends at `log_end`."""
        kept = [] if is_empty else [entry for entry in self.entries if entry.start < log_end]
        if not kept or not _are_same(kept[-1].levels, self.current):
            kept.append(ScheduledEntry(log_end, self.current))
        if len(kept) > ENTRIES_MAX:
            kept = [ScheduledEntry(kept[0].start, None), *kept[1 - ENTRIES_MAX :]]
        return DelayLevels(kept)

    def at(self, physical_offset: int) -> str | None:
        """Return the levels of the record at an offset; None if they are not known."""
        text = next((levels for start, levels in reversed(self.entries) if start <= physical_offset), None)
        return self._given if text is None else text

    def due_ms(self, message: StoredMessage) -> int | None:
        """Return when a waiting message is due; None if its levels are not known or it has no level."""
        text, level = self.at(message.physical_offset), waiting_level(message)
        return message.store_timestamp_ms + _delay_ms(level, text) if text is not None and level > 0 else None

    def may_be_due(self, message: StoredMessage, due_ms: int) -> bool:
        """Return whether a unit may have this due time, by any known levels.

        If the record's levels are not known, any time from its store time on is accepted.
        """
        level, delay_ms = waiting_level(message), due_ms - message.store_timestamp_ms
        if level <= 0:
            return False
        texts = {text for _, text in self.entries if text is not None} | ({self._given} if self._given is not None else set())
        return any(_delay_ms(level, text) == delay_ms for text in texts) or (
            self.at(message.physical_offset) is None and delay_ms >= 0
        )

    def accepts(self, found: bytes, expected: bytes, message_at: MessageAt) -> bool:
        """Return whether a found unit of a waiting message is equivalent to the one computed with the current levels."""
        physical_offset, _, due_ms = UNIT.unpack(found)
        if found[:TAGS_CODE_AT] != expected[:TAGS_CODE_AT]:
            return False
        message = message_at(physical_offset)
        return isinstance(message, StoredMessage) and self.may_be_due(message, due_ms)

    def warn_of_unknown(self, queue: ConsumeQueue, units: bytes | memoryview) -> None:
        """Log once that new units get due times by levels that may not have been in force when their messages were put."""
        first = UNIT.unpack_from(units)[0]
        if self.at(first) is None and first > queue.max_physical_offset and not self._is_warned:
            self._is_warned = True
            LOG.warning(
                "%s: delivery times from offset %d on are made by the current delay levels: those of the time are not known",
                queue.folder, first,
            )  # fmt: skip

    def corrected(self, units: bytes | memoryview, message_at: MessageAt) -> bytes | memoryview:
        """Return units of the schedule topic with due times by the levels of their records.

        `units` have due times by the current levels. A unit whose record's levels are not known stays as it is.
        """
        if len(self.entries) == 1 or UNIT.unpack_from(units)[0] >= self.entries[-1].start:
            return units
        made = bytearray(units)
        for position, (physical_offset, size, _) in enumerate(UNIT.iter_unpack(units)):
            message = message_at(physical_offset)
            due_ms = self.due_ms(message) if isinstance(message, StoredMessage) else None
            if due_ms is not None:
                UNIT.pack_into(made, position * UNIT_SIZE, physical_offset, size, due_ms)
        return bytes(made)


def _are_same(levels: str | None, others: str) -> bool:
    return levels is not None and delay_times_ms(levels) == delay_times_ms(others)


def waiting_level(message: StoredMessage) -> int:
    """Return the level of a waiting message, 0 for any other."""
    text = message.all_properties.get(DELAY, "0") if message.topic == SCHEDULE_TOPIC else "0"
    return int(text) if is_java_number(text, 32) else 0


def _delay_ms(level: int, levels: str) -> int:
    times = delay_times_ms(levels) or [NO_LEVELS_MS]
    return times[min(level, len(times)) - 1]
