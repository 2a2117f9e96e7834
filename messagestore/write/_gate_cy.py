"""Flags that every put and every lookup checks first."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
if not cython.compiled:
    from storebytes._bytes_cy import I64, Bool, order_all

NOTHING = -1


class Gate:
    """State that several threads share: the running flags set `accepts_puts`, the engine sets `is_closed`.

    The dispatcher sets `dispatched`, the physical offset before which everything is in queues and index, and `is_idle` while
    it sleeps until a put wakes it.  Without a dispatcher, as in a reader beside a writer, `dispatched` stays -1.
    """

    __slots__ = ("accepts_puts", "dispatched", "is_closed", "is_idle")

    def __init__(self) -> None:
        """Create it with puts refused."""
        self.accepts_puts: Bool = False
        self.is_closed: Bool = False
        self.is_idle: Bool = False
        self.dispatched: I64 = NOTHING

    def set_idle(self, is_idle: bool) -> None:
        """Set `is_idle` before the caller looks for new records once more.

        A put stores its record, releases the lock, and then reads the flag.  So either it sees the flag, or the caller sees
        the record.
        """
        self.is_idle = is_idle
        order_all()
