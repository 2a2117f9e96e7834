"""What a running store may do at the moment (format page, section 7.2)."""

from __future__ import annotations

from enum import IntFlag


class Flag(IntFlag):
    """RocketMQ's bits."""

    NOT_READABLE = 0x1
    NOT_WRITEABLE = 0x2
    WRITE_LOGICS_QUEUE_ERROR = 0x4
    WRITE_INDEX_FILE_ERROR = 0x8
    DISK_FULL = 0x10
    FENCED = 0x20
    LOGIC_DISK_FULL = 0x40


_STOPS_PUTS = Flag(0x7E)


class RunningFlags:
    """Set by whoever meets the trouble, cleared by whoever sees it gone.  One attribute is read on every put."""

    def __init__(self) -> None:
        """All is well."""
        self.bits = Flag(0)
        self.reasons: dict[Flag, str] = {}
        self.is_writeable = True

    def set(self, flag: Flag, reason: str) -> None:
        """Stop puts (or reads), saying why."""
        self.bits |= flag
        self.reasons[flag] = reason
        self.is_writeable = not self.bits & _STOPS_PUTS

    def clear(self, flag: Flag) -> None:
        """The trouble is over."""
        self.bits &= ~flag
        self.reasons.pop(flag, None)
        self.is_writeable = not self.bits & _STOPS_PUTS

    def has(self, flag: Flag) -> bool:
        """Whether the trouble is there."""
        return bool(self.bits & flag)

    @property
    def reason(self) -> str:
        """Every reason there is."""
        return "; ".join(f"{flag.name}: {text}" for flag, text in self.reasons.items())
