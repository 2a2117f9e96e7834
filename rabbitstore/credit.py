"""Credit-based flow control, as the server has it between its processes.

    publisher -> queue -> message store

A sender starts with `initial` messages of credit; each that it sends costs one, and without credit it is blocked.  The
receiver gives `more_after` back whenever it has handled so many.  A queue that is blocked by the message store handles
nothing more of its publishers, so that the blocking travels up to them.
"""

from __future__ import annotations


class Credit:
    """Between one sender and one receiver.  Both hold the same lock when they call."""

    __slots__ = ("_handled", "initial", "left", "more_after")

    def __init__(self, initial: int, more_after: int) -> None:
        """Both are messages, and `more_after` is at most `initial`: else a sender would stay blocked for ever."""
        if not 1 <= more_after <= initial:
            raise ValueError(f"credit {{{initial}, {more_after}}}: more_after is 1 to initial")
        self.initial = initial
        self.more_after = more_after
        self.left = initial
        self._handled = 0  # not yet given back

    @property
    def is_blocked(self) -> bool:
        """Whether the sender has to wait."""
        return self.left <= 0

    @property
    def unhandled(self) -> int:
        """Messages sent that the receiver has not handled."""
        return self.initial - self.left - self._handled

    def sent(self, count: int = 1) -> None:
        """The sender has sent messages.  A batch that is larger than what is left leaves a debt."""
        self.left -= count

    def handled(self, count: int) -> None:
        """The receiver is done with messages; it grants whole portions."""
        portions, self._handled = divmod(self._handled + count, self.more_after)
        self.left += portions * self.more_after
