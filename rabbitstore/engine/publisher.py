"""A publisher with confirms and credit-based flow control."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .credit import Credit
from .live_queue import LiveQueue


class _Store(Protocol):
    @property
    def publish(self) -> Callable[..., bytes]: ...
    def queue(self, name: str) -> LiveQueue: ...
    def process(self) -> None: ...
    def sync(self) -> None: ...


class Publisher:
    """Numbers its messages from 1; `confirmed` is the highest number up to which all are durable.  Not thread-safe.

    It has credit with its queues, and each queue with the message stores (`credit`).  A blocked queue grants nothing.  Without
    credit, `publish` first handles the mailboxes of the stores, where RabbitMQ blocks the connection; see `has_credit`.
    """

    def __init__(self, store: _Store, credit: Credit) -> None:
        """Create it with `RabbitStore.publisher`."""
        self._store = store
        self.credit = credit
        self.published = 0
        self.confirmed = 0
        self.blocked_count = 0

    @property
    def has_credit(self) -> bool:
        """Whether the next publish does not block."""
        return not self.credit.is_blocked

    def publish(self, queues: str | Iterable[str], body: bytes, **options: Any) -> int:
        """Call `RabbitStore.publish`; return the message's number."""
        names = [queues] if isinstance(queues, str) else list(queues)
        if self.credit.is_blocked:
            self.blocked_count += 1
            self._store.process()
            self._grant()
        self._store.publish(names, body, **options)
        self.credit.sent()
        if not any(self._store.queue(name).is_blocked for name in names):
            self._grant()
        self.published += 1
        return self.published

    def _grant(self) -> None:
        self.credit.handled(self.credit.unhandled)

    def wait(self) -> int:
        """Make every message so far durable; return the highest number."""
        number = self.published
        if self.confirmed < number:
            self._store.sync()
            self.confirmed = number
        self._grant()
        return number
