"""The operations on a RabbitMQ folder, through `rabbitstore`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import click

from storageio import StoreCorrupt

from ..escapes import quote
from ..filters import Filters
from ..hints import NoSuchMessage
from ..layout import TableColumn
from ..output import body_text, print_line, time_text
from . import PAGE_BYTES, Contents, ExportSource, MessageLookup, MessagePage, PageRequest
from .rabbitmq_folder import BLOCK_SIZE, RabbitmqFolder

if TYPE_CHECKING:
    from rabbitstore import RabbitMessage, VhostFolder

BODY_SHOWN = 60
BODY_SHOWN_ALONE = 1024
_COMPARED = ("persistent", "redelivered", "expiry_us", "exchange", "routing_keys", "properties", "body_base64")


class RabbitmqBackend(RabbitmqFolder):
    """The operations on a virtual host's folder, or on a node's that has one."""

    title = "a RabbitMQ folder"
    other = "a RocketMQ store"
    columns: ClassVar[Sequence[TableColumn]] = (
        TableColumn("queue", 24),
        TableColumn("number", 8, True),
        TableColumn("properties", 31),
    )
    rest: ClassVar[str] = "exchange/routing keys, body"
    details_of_many = True

    # Messages

    def dump(self, filters: Filters, limit: int | None) -> Iterator[RabbitMessage]:
        """Iterate over the messages in the order in which a broker would deliver them."""
        with self.open_folder() as folder:
            yield from islice(filter(filters.accepts_delivery, self.messages(folder, filters.queue)), limit)

    def dump_json(self, filters: Filters, limit: int | None) -> Iterator[memoryview]:
        """Yield the same messages as JSON lines, in blocks; without filters, most lines are written without their messages."""
        from rabbitstore.read.json_cy import LineWriter

        lines = LineWriter()
        if limit is not None or self.only is not None or filters != Filters(queue=filters.queue):
            yield from (block for block, _, _, _ in self.blocks(lines, self.dump(filters, limit), BLOCK_SIZE))
            return
        with self.open_folder() as folder:
            messages = folder.lines(lines, BLOCK_SIZE, filters.queue)
            if self.node is not None:
                messages = chain(messages, self.node.lines(lines, BLOCK_SIZE, filters.queue))
            yield from (block for block, _, _, _ in self.blocks(lines, messages, BLOCK_SIZE))

    def row(self, message: RabbitMessage) -> tuple[Sequence[str], str]:
        """Return queue, number and properties in words; then the route and the beginning of the body."""
        flags = {"persistent": message.persistent, "redelivered": message.redelivered, "embedded": message.embedded}
        words = " ".join(word for word, is_set in flags.items() if is_set)
        route = f"{message.exchange}/{','.join(message.routing_keys)}"
        return (message.queue, str(message.seq_id), words), f"{route}  {body_text(message.body, BODY_SHOWN)}"

    def details(self, message: RabbitMessage) -> dict[str, object] | None:
        """Return every field, with a readable expiry and the beginning of the body."""
        shown = self.to_json(message)
        if shown is None:
            return None
        del shown["body_base64"]
        if message.expiry_us:
            shown["expiry_us"] = f"{message.expiry_us} ({time_text(message.expiry_us // 1000)})"
        shown["routing_keys"] = " ".join(shown["routing_keys"])
        return shown | {"body": f"{len(message.body)} bytes: {body_text(message.body, BODY_SHOWN_ALONE)}"}

    def get(self, lookup: MessageLookup) -> Iterator[RabbitMessage]:
        """Return messages by message id, from every queue that has it, or of one queue from a sequence number on."""
        if lookup.message_id is None and (lookup.queue is None or lookup.offset is None):
            raise click.UsageError("in a RabbitMQ folder give --id, or --queue with --offset")
        return self._found(lookup)

    def _found(self, lookup: MessageLookup) -> Iterator[RabbitMessage]:
        count = 0
        with self.open_folder() as folder:
            if lookup.offset is None:
                msg_id = str(lookup.message_id).lower()
                found: Iterator[RabbitMessage] = (one for one in self.messages(folder) if one.msg_id.hex() == msg_id)
            else:
                offset = lookup.offset
                found = self.messages(folder, lookup.queue, offset)
            for message in found if lookup.offset is None else islice(found, lookup.max_count):
                count += 1
                yield message
        if not count and not self.problems:
            path = self.target.path
            step = f"run: brokerstore ls {quote(path)}  (lists the queues and their messages)"
            raise NoSuchMessage(f"no such message in {path}", step)

    def page(self, requested: PageRequest) -> MessagePage:
        """Return one page of a queue by sequence number."""
        with self.open_folder() as folder:
            found = self._page_from(folder, requested) if requested.before is None else self._page_before(folder, requested)
        start = requested.start or 0
        first = found[0].seq_id if found and (requested.before is not None or start > 0) else None
        return MessagePage(found, first, found[-1].seq_id + 1 if found else None)

    def _page_before(self, folder: VhostFolder, requested: PageRequest) -> list[RabbitMessage]:
        """Return the last messages before a number; acknowledged ones leave gaps, so the range grows until there are enough."""
        ends = [
            (max(one.segment_numbers(), default=0) + 1) * one.segment_entries
            for one in folder.queue_folders() if one.queue == requested.queue
        ]  # fmt: skip
        found: deque[RabbitMessage] = deque(maxlen=requested.max_count)
        end, width = min(requested.before or 0, max(ends, default=0)), requested.max_count
        while True:
            start = max(0, end - width)
            found.extend(self.messages(folder, requested.queue, start, requested.before))
            if len(found) == requested.max_count or not start:
                return list(found)
            found.clear()
            width *= 4

    def _page_from(self, folder: VhostFolder, requested: PageRequest) -> list[RabbitMessage]:
        found, size = [], 0
        for message in islice(self.messages(folder, requested.queue, requested.start or 0), requested.max_count):
            found.append(message)
            size += message.size
            if size > PAGE_BYTES:
                break
        return found

    def query(
        self, topic: str, key: str, _times: tuple[int | None, int | None], max_count: int, *, is_tag: bool = False
    ) -> Iterator[RabbitMessage]:  # fmt: skip
        """Search every message of a queue, because there is no index of keys; explain an empty answer on stderr."""
        assert not is_tag, "the command refuses it"
        count = 0
        with self.open_folder() as folder:
            for message in islice((one for one in self.messages(folder, topic) if self.has_key(one, key)), max_count):
                count += 1
                yield message
            is_known = count > 0 or any(queue == topic for queue in self.queue_names(folder))
        path = quote(self.target.path)
        if not is_known:
            print_line(f"brokerstore: there is no queue {topic!r}; run: brokerstore ls {path}")
        elif not count:
            print_line(f"brokerstore: no message of queue {topic!r} has the key {key!r}; run: brokerstore dump {path}")

    def has_key(self, message: RabbitMessage, key: str) -> bool:
        """Return whether a key is a routing key, the id in the store, or an id that the publisher gave."""
        if key in message.routing_keys or key.lower() == message.msg_id.hex():
            return True
        try:
            properties = message.properties
        except StoreCorrupt as error:
            self.add_bad_properties(message, error)
            return False
        return key in [properties.get(name) for name in ("message_id", "correlation_id")]

    def tail(self, filters: Filters, lines: int, _follow: bool) -> Iterator[RabbitMessage]:
        """Iterate over the last messages of each queue; between queues there is no order."""
        with self.open_folder() as folder:
            for _queue, messages in groupby(self.messages(folder, filters.queue), attrgetter("queue")):
                yield from deque(filter(filters.accepts_delivery, messages), maxlen=lines)

    def contents(self, stack: ExitStack) -> Contents:
        """Open the folder for a comparison by sequence number."""
        folder = stack.enter_context(self.open_folder())
        queues = folder.queues()
        others = [] if self.node is None else self.node.names()

        def messages(queue: tuple[Any, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
            is_other = self.node is not None and queue[0] in others
            for message in self.node.numbered(*queue) if is_other and self.node is not None else folder.messages(*queue):
                found = message.to_json()
                yield message.seq_id, {name: found[name] for name in _COMPARED}

        names = {(queue.queue,) for queue in queues} | {(name,) for name in others}
        total = sum(queue.messages for queue in queues) if self.node is None else 0
        return Contents(names, total, messages)

    def export(self, form: str, filters: Filters, limit: int | None) -> ExportSource:
        """Export the messages in the order of the queues; the position counts them."""
        from .rabbitmq_export import source

        return source(self, form, filters, limit)
