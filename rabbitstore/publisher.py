"""A publisher with confirms and credit-based flow control."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .store import RabbitStore


class Publisher:
    """Numbers its messages from 1; `confirmed` says up to which all are safe.

    It holds `credit` messages that the message store has not taken in yet.  Without credit left, `publish` first has the
    store work off what waits, as RabbitMQ blocks a connection; `has_credit` tells beforehand.
    """

    def __init__(self, store: RabbitStore, credit: int) -> None:
        """Made by `RabbitStore.publisher`."""
        self._store = store
        self.credit = credit
        self._left = credit
        self.published = 0
        self.confirmed = 0
        self.blocked_count = 0

    @property
    def has_credit(self) -> bool:
        """Whether the next publish goes through without waiting."""
        return self._left > 0

    def publish(self, queues: str | Iterable[str], body: bytes, **options: Any) -> int:
        """`RabbitStore.publish`; the message's number."""
        if self._left <= 0:
            self.blocked_count += 1
            self._store.process()
            self._left = self.credit
        self._store.publish(queues, body, **options)
        self._left -= 1
        self.published += 1
        return self.published

    def wait(self) -> int:
        """Return when every message so far is safe; the highest number."""
        number = self.published
        if self.confirmed < number:
            self._store.sync()
            self.confirmed = number
        self._left = self.credit
        return number
