"""What a running store may do at the moment (format page, section 7.2)."""

from __future__ import annotations

from enum import IntFlag

from ._gate_cy import Gate


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
    """Set by whoever meets the trouble, cleared by whoever sees it gone.  Every put looks at `gate`."""

    def __init__(self) -> None:
        """All is well."""
        self.bits = Flag(0)
        self.reasons: dict[Flag, str] = {}
        self.is_writeable = True
        self.gate = Gate()
        self._is_open = False

    def open(self, is_open: bool) -> None:
        """Whether the store takes puts at all: not before it runs, not as a slave, not once it is closed."""
        self._is_open = is_open
        self._weigh()

    def _weigh(self) -> None:
        self.is_writeable = not self.bits & _STOPS_PUTS
        self.gate.accepts_puts = self.is_writeable and self._is_open

    @property
    def accepts_puts(self) -> bool:
        """Whether a put may go on."""
        return bool(self.gate.accepts_puts)

    def set(self, flag: Flag, reason: str) -> None:
        """Stop puts (or reads), saying why."""
        self.bits |= flag
        self.reasons[flag] = reason
        self._weigh()

    def clear(self, flag: Flag) -> None:
        """The trouble is over."""
        self.bits &= ~flag
        self.reasons.pop(flag, None)
        self._weigh()

    def has(self, flag: Flag) -> bool:
        """Whether the trouble is there."""
        return bool(self.bits & flag)

    @property
    def reason(self) -> str:
        """Every reason there is."""
        return "; ".join(f"{flag.name}: {text}" for flag, text in self.reasons.items())
