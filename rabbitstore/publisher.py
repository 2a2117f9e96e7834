"""A publisher with confirms and credit-based flow control."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .credit import Credit

if TYPE_CHECKING:
    from .store import RabbitStore


class Publisher:
    """Numbers its messages from 1; `confirmed` says up to which all are safe.  For one thread at a time.

    It holds credit {initial, more_after} towards its queues, and each queue towards the message stores (`credit`).  While a
    queue that it publishes to is blocked, nothing is given back; without credit left, `publish` first has the store work
    off what waits, as RabbitMQ blocks a connection.  `has_credit` tells beforehand.
    """

    def __init__(self, store: RabbitStore, credit: Credit) -> None:
        """Made by `RabbitStore.publisher`."""
        self._store = store
        self.credit = credit
        self.published = 0
        self.confirmed = 0
        self.blocked_count = 0

    @property
    def has_credit(self) -> bool:
        """Whether the next publish goes through without waiting."""
        return not self.credit.is_blocked

    def publish(self, queues: str | Iterable[str], body: bytes, **options: Any) -> int:
        """`RabbitStore.publish`; the message's number."""
        names = [queues] if isinstance(queues, str) else list(queues)
        if self.credit.is_blocked:
            self.blocked_count += 1
            self._store.process()
            self._give_back()
        self._store.publish(names, body, **options)
        self.credit.sent()
        if not any(self._store.queue(name).is_blocked for name in names):
            self._give_back()
        self.published += 1
        return self.published

    def _give_back(self) -> None:
        self.credit.handled(self.credit.unhandled)

    def wait(self) -> int:
        """Return when every message so far is safe; the highest number."""
        number = self.published
        if self.confirmed < number:
            self._store.sync()
            self.confirmed = number
        self._give_back()
        return number
