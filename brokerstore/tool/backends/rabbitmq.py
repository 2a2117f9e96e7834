"""The operations on a RabbitMQ folder, through `rabbitstore`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import click

from storageio import StoreCorrupt

from ..escapes import quote
from ..filters import Filters
from ..hints import NoSuchMessage
from ..layout import Column
from ..output import Answer, body_text, progress, say, time_text
from . import Contents, ExportSource, Lookup, Outgoing, Repair
from .rabbitmq_folder import BLOCK_SIZE, RabbitmqFolder, report_unread, unread_keys

if TYPE_CHECKING:
    from brokerstore.report import Facts
    from rabbitstore import StoredMessage

BODY_SHOWN = 60
BODY_SHOWN_ALONE = 1024
_ONLY_ROCKETMQ = ("topic", "begin_ms", "end_ms", "tag", "properties")
_COMPARED = ("persistent", "redelivered", "expiry_us", "exchange", "routing_keys", "properties", "body_base64")


class RabbitmqBackend(RabbitmqFolder):
    """The operations on a virtual host's folder, or on a node's that has one."""

    title = "a RabbitMQ folder"
    other = "a RocketMQ store"
    refused: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "dump": _ONLY_ROCKETMQ,
        "tail": (*_ONLY_ROCKETMQ, "follow"),
        "export": _ONLY_ROCKETMQ,
        "get": ("at", "topic"),
        "query": ("begin_ms", "end_ms"),
        "stats": ("by",),
        "verify": ("log_only",),
        "recover": ("skip_bad", "truncate", "follow_links", "force"),
        "rebuild": ("what",),
        "put": ("tag", "queue_id"),
        "top": (),
        "offsets show": (),
        "offsets reset": (),
        "copy": (),
        "promote": (),
    }
    columns: ClassVar[Sequence[Column]] = (Column("queue", 24), Column("number", 8, True), Column("properties", 31))
    rest: ClassVar[str] = "exchange/routing keys, body"
    details_of_many = True

    # Messages

    def dump(self, filters: Filters, limit: int | None) -> Iterator[StoredMessage]:
        """Iterate over the messages in the order in which a broker would deliver them."""
        with self.open_folder() as folder:
            yield from islice(filter(filters.accepts_delivery, self.messages(folder, filters.queue)), limit)

    def dump_json(self, filters: Filters, limit: int | None) -> Iterator[memoryview]:
        """Yield the same messages as JSON lines, in blocks; without filters, most lines are written without their messages."""
        from rabbitstore.read.json_cy import LineWriter

        lines = LineWriter()
        if limit is not None or filters != Filters(queue=filters.queue):
            yield from (block for block, _, _, _ in self._blocks(lines, self.dump(filters, limit), BLOCK_SIZE))
            return
        with self.open_folder() as folder:
            messages = folder.lines(lines, BLOCK_SIZE, filters.queue)
            if self.node is not None:
                messages = chain(messages, self.node.lines(lines, BLOCK_SIZE, filters.queue))
            yield from (block for block, _, _, _ in self._blocks(lines, messages, BLOCK_SIZE))

    def row(self, message: StoredMessage) -> tuple[Sequence[str], str]:
        """Return queue, number and properties in words; then the route and the beginning of the body."""
        flags = {"persistent": message.persistent, "redelivered": message.redelivered, "embedded": message.embedded}
        words = " ".join(word for word, is_set in flags.items() if is_set)
        route = f"{message.exchange}/{','.join(message.routing_keys)}"
        return (message.queue, str(message.seq_id), words), f"{route}  {body_text(message.body, BODY_SHOWN)}"

    def details(self, message: StoredMessage) -> dict[str, object] | None:
        """Return every field, with a readable expiry and the beginning of the body."""
        shown = self.to_json(message)
        if shown is None:
            return None
        del shown["body_base64"]
        if message.expiry_us:
            shown["expiry_us"] = f"{message.expiry_us} ({time_text(message.expiry_us // 1000)})"
        shown["routing_keys"] = " ".join(shown["routing_keys"])
        return shown | {"body": f"{len(message.body)} bytes: {body_text(message.body, BODY_SHOWN_ALONE)}"}

    def get(self, lookup: Lookup) -> Iterator[StoredMessage]:
        """Return messages by message id, from every queue that has it, or of one queue from a sequence number on."""
        if lookup.message_id is None and (lookup.queue is None or lookup.offset is None):
            raise click.UsageError("in a RabbitMQ folder give --id, or --queue with --offset")
        return self._found(lookup)

    def _found(self, lookup: Lookup) -> Iterator[StoredMessage]:
        count = 0
        with self.open_folder() as folder:
            if lookup.offset is None:
                msg_id = str(lookup.message_id).lower()
                found = (message for message in self.messages(folder) if message.msg_id.hex() == msg_id)
            else:
                offset = lookup.offset
                found = (message for message in self.messages(folder, lookup.queue) if message.seq_id >= offset)
            for message in found if lookup.offset is None else islice(found, lookup.max_count):
                count += 1
                yield message
        if not count and not self.problems:
            path = self.target.path
            step = f"run: brokerstore ls {quote(path)}  (lists the queues and their messages)"
            raise NoSuchMessage(f"no such message in {path}", step)

    def query(self, topic: str, key: str, _times: tuple[int | None, int | None], max_count: int) -> Iterator[StoredMessage]:
        """Search every message of a queue, because there is no index of keys; explain an empty answer on stderr."""
        count = 0
        with self.open_folder() as folder:
            for message in islice((one for one in self.messages(folder, topic) if self._has_key(one, key)), max_count):
                count += 1
                yield message
            is_known = count > 0 or any(queue == topic for queue in self.queue_names(folder))
        path = quote(self.target.path)
        if not is_known:
            say(f"brokerstore: there is no queue {topic!r}; run: brokerstore ls {path}")
        elif not count:
            say(f"brokerstore: no message of queue {topic!r} has the key {key!r}; run: brokerstore dump {path}")

    def _has_key(self, message: StoredMessage, key: str) -> bool:
        """Return whether a key is a routing key, the id in the store, or an id that the publisher gave."""
        if key in message.routing_keys or key.lower() == message.msg_id.hex():
            return True
        try:
            properties = message.properties
        except StoreCorrupt as error:
            self.add_bad_properties(message, error)
            return False
        return key in [properties.get(name) for name in ("message_id", "correlation_id")]

    def tail(self, filters: Filters, lines: int, _follow: bool) -> Iterator[StoredMessage]:
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

    # Other operations

    def info(self) -> Answer:
        """Describe the folder from names, sizes and indexes."""
        from .rabbitmq_tables import info

        return info(self)

    def ls(self, _topic: str | None = None) -> Answer:
        """List the queues with their counts."""
        from .rabbitmq_tables import ls

        return ls(self)

    def stats(self, _by: str, quiet: bool) -> Answer:
        """Count messages, bytes of bodies and flags of every queue."""
        from .rabbitmq_tables import stats

        return stats(self, quiet)

    def verify(self, quiet: bool, _log_only: bool) -> Answer:
        """Check every file and entry."""
        from .rabbitmq_check import check

        return check(self, quiet)

    def recover(self, repair: Repair, quiet: bool) -> Answer:
        """Plan or execute a recovery."""
        from .rabbitmq_check import recover

        return recover(self, repair, quiet)

    def rebuild(self, _what: str, drop_transient: bool, _quiet: bool, apply: bool) -> Answer:
        """Write the files of a clean stop, or only show which."""
        from .rabbitmq_write import rebuild

        return rebuild(self, drop_transient, apply)

    def put(self, outgoing: Outgoing, drop_transient: bool) -> Answer:
        """Publish a message to an existing queue and stop cleanly."""
        from .rabbitmq_write import put

        return put(self, outgoing, drop_transient)

    def export(self, form: str, filters: Filters, limit: int | None) -> ExportSource:
        """Export the messages in the order of the queues; the position counts them."""
        from .rabbitmq_export import source

        return source(self, form, filters, limit)

    def report(self, quiet: bool) -> tuple[Facts, dict[str, Any]]:
        """Gather the facts of the virtual host."""
        from brokerstore.report import rabbit_facts
        from rabbitstore.repair.check import size_bytes

        with progress("read", size_bytes(self.path), quiet=quiet) as advance:
            facts, unread = rabbit_facts(self.target.path, self.target.vhost, advance)
        report_unread(unread)
        return facts, unread_keys(unread)
