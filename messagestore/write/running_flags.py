"""Flags that allow or forbid puts and reads of a running store (`docs/formats/put-rules.md#running-flags`)."""

from __future__ import annotations

from enum import IntFlag

from ._gate_cy import Gate


class Flag(IntFlag):
    """The bits of RocketMQ's RunningFlags."""

    NOT_READABLE = 0x1
    NOT_WRITEABLE = 0x2
    WRITE_LOGICS_QUEUE_ERROR = 0x4
    WRITE_INDEX_FILE_ERROR = 0x8
    DISK_FULL = 0x10
    FENCED = 0x20
    LOGIC_DISK_FULL = 0x40
    LOG_FULL = 0x100  # not in RocketMQ: the log has its maximum size; what is in it already may still be delivered


_STOPS_PUTS = Flag(0x7E)
_NO_SPACE = Flag.DISK_FULL | Flag.LOGIC_DISK_FULL | Flag.LOG_FULL


class RunningFlags:
    """The flags of one store.  A component that fails sets a flag, and clears it when the cause is gone."""

    def __init__(self) -> None:
        """Create it with no flag set."""
        self.bits = Flag(0)
        self.reasons: dict[Flag, str] = {}
        self.is_writeable = True
        self.gate = Gate()
        self._is_open = False

    def open(self, is_open: bool) -> None:
        """Set whether the store accepts puts: False before it runs, as a slave, and after it is closed."""
        self._is_open = is_open
        self._weigh()

    def _weigh(self) -> None:
        self.is_writeable = not self.bits & _STOPS_PUTS
        self.gate.accepts_puts = self.accepts_puts and not self.bits & Flag.LOG_FULL

    @property
    def accepts_puts(self) -> bool:
        """Whether the store's services may put; the gate tells whether a program may."""
        return self.is_writeable and self._is_open

    @property
    def refuses_programs(self) -> bool:
        """Whether a flag refuses the puts of a program."""
        return bool(self.bits & (_STOPS_PUTS | Flag.LOG_FULL))

    @property
    def lacks_space(self) -> bool:
        """Whether puts are refused for lack of space alone, so that they may succeed later."""
        return self.refuses_programs and not self.bits & _STOPS_PUTS & ~_NO_SPACE

    def set(self, flag: Flag, reason: str) -> None:
        """Set a flag and its reason."""
        self.bits |= flag
        self.reasons[flag] = reason
        self._weigh()

    def clear(self, flag: Flag) -> None:
        """Clear a flag and its reason."""
        self.bits &= ~flag
        self.reasons.pop(flag, None)
        self._weigh()

    def has(self, flag: Flag) -> bool:
        """Return whether a flag is set."""
        return bool(self.bits & flag)

    @property
    def reason(self) -> str:
        """The reasons of all flags that are set."""
        return "; ".join(f"{flag.name}: {text}" for flag, text in self.reasons.items())
