"""The operations of the tool, once for each kind of folder.

A command gets a `Backend`, that is `RocketmqBackend` or `RabbitmqBackend`, and prints what it returns; `opening` chooses one.
Both have what several commands need: messages, in each order and form.  An operation of one command stands in a module of its
own, and the command chooses between the two kinds with `is_rabbitmq`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from storebytes.folder_kind import FolderKind

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from .rabbitmq_folder import RabbitmqFolder
    from .rocketmq_folder import RocketmqFolder

Folder: TypeAlias = "RocketmqFolder | RabbitmqFolder"

ExportItem = tuple[Any, int, int, int]  # a block or batch, the position after it, bytes of the folder, messages in it
QueueKey = tuple[Any, ...]
PAGE_BYTES = 8 << 20


class MessageLookup(NamedTuple):
    """Which message `get` asks for: a physical offset, a message id, or `max_count` messages of a queue from `offset` on."""

    at: int | None = None
    message_id: str | None = None
    topic: str | None = None
    queue: str | None = None
    offset: int | None = None
    max_count: int = 1


class PageRequest(NamedTuple):
    """Where a page of messages is: from `start` on, or before `before`.

    With a queue these are queue offsets or sequence numbers, without one physical offsets of a log.
    """

    topic: str | None = None
    queue: str | None = None
    start: int | None = None
    before: int | None = None
    max_count: int = 50


class MessagePage(NamedTuple):
    """Messages in order; `first` is the `before` of the page in front of them, `following` the `start` of the next one."""

    messages: list[Any]
    first: int | None
    following: int | None


class Repair(NamedTuple):
    """The options of `recover`; `choice` is a value of `messagestore`'s `Choice`."""

    apply: bool
    choice: str
    keep_backup: bool
    follow_links: bool
    force: bool


class Outgoing(NamedTuple):
    """The message that `put` was given; for a RabbitMQ folder `topic` is the queue and `keys` are routing keys."""

    topic: str
    body: str | None
    body_file: str | None
    keys: tuple[str, ...]
    tag: str | None
    properties: tuple[tuple[str, str], ...]
    queue_id: int | None

    def read_body(self) -> bytes:
        """Return the body byte for byte as it was given; without one, read stdin."""
        if self.body is not None:
            return self.body.encode("utf-8", "surrogateescape")
        if self.body_file in (None, "-"):
            return sys.stdin.buffer.read()
        try:
            with open(str(self.body_file), "rb") as file:
                return file.read()
        except OSError as error:
            raise click.BadParameter(f"{self.body_file}: {error.strerror}", param_hint="--body-file") from error


class Contents(NamedTuple):
    """One side of a comparison.

    `messages` yields the number and the compared fields of each message of a queue, in ascending order.  `undispatched` counts
    the messages of the log that no queue has yet; None means unknown. A `message_count` of 0 is unknown.
    """

    queues: set[QueueKey]
    message_count: int
    messages: Callable[[QueueKey], Iterator[tuple[int, dict[str, Any]]]]
    undispatched: int | None = 0


class ExportSource(NamedTuple):
    """What an export writes.  `items(position, rows)` continues where an earlier run stopped; `about` identifies the export.

    The items are Arrow batches for the forms that need them, else blocks of JSON lines with the given columns. `size_bytes` is
    the total of the items' bytes, or 0 if it is unknown.
    """

    items: Callable[[int, int], Iterator[ExportItem]]
    about: dict[str, Any]
    size_bytes: int
    columns: tuple[str, ...]


def is_rabbitmq(folder: Folder) -> TypeIs[RabbitmqFolder]:
    """Return whether a folder is RabbitMQ's, without an import of either engine."""
    return folder.target.kind is FolderKind.RABBITMQ
