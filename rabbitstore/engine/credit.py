"""Credit-based flow control, as between RabbitMQ's processes (credit_flow).

    publisher -> queue -> message store

A sender starts with `initial` credit.  Each message costs one; without credit the sender is blocked.  The receiver grants
`more_after` after each `more_after` messages that it has handled.  A queue that the message store blocks grants nothing to its
publishers, so they become blocked too.
"""

from __future__ import annotations


class Credit:
    """The credit of one sender with one receiver.  Both call it under the same lock."""

    __slots__ = ("_handled", "initial", "left", "more_after")

    def __init__(self, initial: int, more_after: int) -> None:
        """Require `more_after` of at most `initial`: otherwise a sender would stay blocked."""
        if not 1 <= more_after <= initial:
            raise ValueError(f"credit {{{initial}, {more_after}}}: more_after is 1 to initial")
        self.initial = initial
        self.more_after = more_after
        self.left = initial
        self._handled = 0  # not yet granted again

    @property
    def is_blocked(self) -> bool:
        """Whether the sender must wait."""
        return self.left <= 0

    @property
    def unhandled(self) -> int:
        """The number of messages that were sent and not handled."""
        return self.initial - self.left - self._handled

    def sent(self, count: int = 1) -> None:
        """Count sent messages.  A batch larger than the credit left makes it negative."""
        self.left -= count

    def handled(self, count: int) -> None:
        """Count handled messages and grant credit in whole portions."""
        portions, self._handled = divmod(self._handled + count, self.more_after)
        self.left += portions * self.more_after
