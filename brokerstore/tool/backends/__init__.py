"""The operations of the tool, once for each kind of folder.

A command gets a `Backend` and prints what it returns; `rocketmq` and `rabbitmq` implement it, and `opening` chooses one.  It
has what several commands need: messages, in each order and form.  An operation of one command stands in a module of its own,
and the command chooses between the two kinds with `is_rabbitmq`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import click

from storebytes.folder_kind import FolderKind

from ..output import MessageForms

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from ..filters import Filters
    from ..target import Target
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


class Backend(MessageForms, Protocol):
    """One folder, opened for one command.

    Damage that an operation skips is reported on stderr and added to `problems`; `code` is the exit code that follows from it.
    """

    title: str  # "a RocketMQ store"
    other: str  # what the refused options work on
    details_of_many: bool  # whether `get --count N` prints every field of each message
    target: Target
    problems: list[Any]

    @property
    def code(self) -> int:
        """Return the exit code for the problems found so far."""

    @property
    def is_in_use(self) -> bool:
        """Return whether another process holds the store's lock."""

    def dump(self, filters: Filters, limit: int | None) -> Iterator[Any]:
        """Iterate over the messages that pass the filters."""

    def dump_json(self, filters: Filters, limit: int | None) -> Iterator[memoryview]:
        """Yield the same messages as blocks of JSON lines; a block is valid until the next one."""

    def get(self, lookup: MessageLookup) -> Iterator[Any]:
        """Iterate over the messages that a lookup names; raise `NoSuchMessage` if there is none."""

    def page(self, requested: PageRequest) -> MessagePage:
        """Return one page of a queue or log, of at most `PAGE_BYTES` of bodies, without counting the messages before it."""

    def query(
        self, topic: str, key: str, times: tuple[int | None, int | None], max_count: int, *, is_tag: bool = False
    ) -> Iterator[Any]:  # fmt: skip
        """Iterate over the messages of a topic or queue that have a key, or with `is_tag` these tags."""

    def tail(self, filters: Filters, lines: int, follow: bool) -> Iterator[Any]:
        """Iterate over the last messages that pass the filters, and with `follow` over those that arrive."""

    def export(self, form: str, filters: Filters, limit: int | None) -> ExportSource:
        """Return the source of an export in this form."""

    def contents(self, stack: ExitStack) -> Contents:
        """Open the folder for a comparison; `stack` closes it."""

    def unread_keys(self) -> dict[str, Any]:
        """Return the JSON keys for queues that the backend cannot read."""


def is_rabbitmq(folder: Folder) -> TypeIs[RabbitmqFolder]:
    """Return whether a folder is RabbitMQ's, without an import of either engine."""
    return folder.target.kind is FolderKind.RABBITMQ
