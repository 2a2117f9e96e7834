"""The errors of the RabbitMQ engine; each is a `StoreError`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storageio import StoreError

if TYPE_CHECKING:
    from .format.message import Content


class StoreBroken(StoreError):
    """A reference count that cannot be: a remove without a write, or two writes or removes of one message in flight."""


class _UnknownKey(StoreError, KeyError):
    """A `KeyError` that shows its message without quotes."""

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownQueue(_UnknownKey):
    """No queue has this name."""


class PartlyPublished(StoreError):
    """Some queues have the message and others failed; no queue has confirmed it yet.

    `published` names the queues that have it, `failed` maps each other queue to its error.  Publish `content` to those with
    `RabbitStore.publish_content`: all queues then share one stored copy.
    """

    def __init__(self, content: Content, published: list[str], failed: dict[str, StoreError]) -> None:
        """Create the error for at least one failed queue."""
        self.content = content
        self.published = published
        self.failed = failed
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        super().__init__(f"message {content.msg_id.hex()} is in {published or 'no queue'}, not in {reasons}")


class UnknownDelivery(_UnknownKey):
    """No unacknowledged delivery has this tag."""
