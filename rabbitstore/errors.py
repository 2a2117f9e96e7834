"""Errors of this engine; all are `StoreError`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storageio import StoreError

if TYPE_CHECKING:
    from .content import Content


class StoreBroken(StoreError):
    """A count that cannot be: the caller removed what it never wrote, or wrote or removed twice what is in flight."""


class UnknownQueue(StoreError, KeyError):
    """No queue has this name."""

    def __str__(self) -> str:
        """Without the quotes of `KeyError`."""
        return str(self.args[0])


class PartlyPublished(StoreError):
    """Some queues have the message and others could not take it; nothing of it is confirmed yet.

    `failed` maps each queue that lacks it to its error, `published` names those that have it.  `content` is the message:
    put it into the rest with `RabbitStore.publish_content`, and they share the one stored copy.
    """

    def __init__(self, content: Content, published: list[str], failed: dict[str, StoreError]) -> None:
        """At least one queue failed."""
        self.content = content
        self.published = published
        self.failed = failed
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        super().__init__(f"message {content.msg_id.hex()} is in {published or 'no queue'}, not in {reasons}")


class UnknownDelivery(StoreError, KeyError):
    """No unacknowledged delivery has this tag."""

    def __str__(self) -> str:
        """Without the quotes of `KeyError`."""
        return str(self.args[0])
