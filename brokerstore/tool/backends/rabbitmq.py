"""The operations on a RabbitMQ folder, through `rabbitstore`."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import click

from rabbitstore.folder_lock import running_server
from rabbitstore.read.node import survey
from rabbitstore.read.vhost_folder import VhostFolder, find_vhost
from storageio import REAL_DISK, StoreCorrupt
from storebytes.finding import UNSUPPORTED, Finding

from ..codes import CLEAN, NO_STORE, PROBLEM
from ..escapes import quote
from ..filters import Filters
from ..hints import NoSuchMessage
from ..layout import Column
from ..output import Answer, body_text, count_text, json_line, problem_text, progress, say, time_text
from . import Contents, ExportSource, Lookup, Outgoing, Repair

if TYPE_CHECKING:
    from brokerstore.report import Facts
    from rabbitstore import StoredMessage
    from rabbitstore.node_folder import NodeFolder
    from rabbitstore.read.json_cy import LineWriter

    from ..target import Target

BODY_SHOWN = 60
BODY_SHOWN_ALONE = 1024
BLOCK_SIZE = 1 << 20  # of JSON lines
_ONLY_ROCKETMQ = ("topic", "begin_ms", "end_ms", "tag", "properties")
_DROPPED = ("transient_in_memory", "unwritten_message")  # notes of messages that a start drops
_COMPARED = ("persistent", "redelivered", "expiry_us", "exchange", "routing_keys", "properties", "body_base64")


def report_running_server(path: str) -> None:
    """Report on stderr that a server runs on the folder, because its files lack what it has in memory alone."""
    server = running_server(REAL_DISK, path)
    if server is not None:
        who = f"{server.name}, process {server.process_id}"
        say(f"brokerstore: a server runs on this folder ({who}): messages that it has only in memory are not shown")


def report_unread(queues: Collection[str]) -> None:
    """Report on stderr which quorum queues were not read; their problems name what is unknown."""
    if queues:
        say(f"brokerstore: not read: {count_text(len(queues), 'quorum queue')} of an unsupported format: {', '.join(queues)}")


def unread_keys(queues: Collection[str]) -> dict[str, Any]:
    """Return the JSON keys for these queues."""
    return {"not_read": {"quorum_queues": list(queues), "streams": []}} if queues else {}


def open_node(path: str, vhost: str, *, even_empty: bool = False) -> NodeFolder | None:
    """Open the quorum queues and streams of a node's folder; return None for a folder without any, unless `even_empty`."""
    node = survey(path)
    if node is None or not (node.not_read() or even_empty):
        return None
    from rabbitstore.node_folder import NodeFolder  # 12 ms that a folder of classic queues saves

    return NodeFolder(path, vhost)


def outcome(problems: list[Finding]) -> int:
    """Return the exit code for some problems: an unsupported format is no damage, but the answer is incomplete."""
    if any(problem.kind != UNSUPPORTED for problem in problems):
        return PROBLEM
    return NO_STORE if problems else CLEAN


class RabbitmqBackend:
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
    is_in_use = False  # a server is reported instead

    def __init__(self, target: Target) -> None:
        """Report a running server; nothing is opened yet."""
        self.target = target
        self.node: NodeFolder | None = None
        self.problems: list[Finding] = []
        report_running_server(target.path)

    @property
    def code(self) -> int:
        """Return the exit code for the problems found so far."""
        return outcome(self.problems)

    @property
    def path(self) -> str:
        """Return the virtual host's folder."""
        return find_vhost(self.target.path, self.target.vhost)

    @contextlib.contextmanager
    def open_folder(self, *, with_node: bool = True) -> Iterator[VhostFolder]:
        """Open the virtual host's folder for reading, and the other queues of its node; at the end, report what was wrong."""
        folder = VhostFolder(self.path)
        self.node = open_node(self.target.path, folder.vhost) if with_node else None
        try:
            yield folder
        finally:
            folder.close()
            self.problems += dict.fromkeys(folder.problems)
            if self.node is not None:
                self.node.close()
                self.problems += self.node.problems
            for problem in self.problems:
                say(f"brokerstore: {problem_text(problem)}")
            _report_notes(list(dict.fromkeys(folder.notes)))
            self._report_unread()

    def messages(self, folder: VhostFolder, queue: str | None = None) -> Iterator[StoredMessage]:
        """Iterate over the messages of classic queues, then of quorum queues and streams."""
        yield from folder.messages(queue)
        if self.node is not None:
            yield from self.node.messages(queue)

    def _report_unread(self) -> None:
        if self.node is not None:
            report_unread(self.node.unread)

    def unread_keys(self) -> dict[str, Any]:
        """Return the JSON keys for the queues of a node's folder that were not read."""
        return {} if self.node is None else unread_keys(self.node.unread)

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

    def json_blocks(self, messages: Iterable[StoredMessage], block_size: int) -> Iterator[tuple[memoryview, int, int, int]]:
        """Yield blocks of lines, each with the messages, bytes of bodies and lines in it; a block is valid until the next."""
        from rabbitstore.read.json_cy import LineWriter

        return self._blocks(LineWriter(), messages, block_size)

    def _blocks(
        self, lines: LineWriter, messages: Iterable[StoredMessage | None], block_size: int
    ) -> Iterator[tuple[memoryview, int, int, int]]:
        """Write lines, most of them by a kernel, and count; None in place of a message: others than these fill a block."""
        count = size = written = 0
        for message in messages:
            if message is not None:
                count += 1
                size += message.size
                if lines.add(message):
                    written += 1
                elif (found := self.to_json(message)) is not None:
                    lines.add_line(json_line(found).encode("ascii"))
                    written += 1
            if lines.size >= block_size:
                yield lines.take(), count, size, written
                count = size = written = 0
        if count or lines.size:
            yield lines.take(), count, size, written

    def row(self, message: StoredMessage) -> tuple[Sequence[str], str]:
        """Return queue, number and properties in words; then the route and the beginning of the body."""
        flags = {"persistent": message.persistent, "redelivered": message.redelivered, "embedded": message.embedded}
        words = " ".join(word for word, is_set in flags.items() if is_set)
        route = f"{message.exchange}/{','.join(message.routing_keys)}"
        return (message.queue, str(message.seq_id), words), f"{route}  {body_text(message.body, BODY_SHOWN)}"

    def to_json(self, message: StoredMessage) -> dict[str, Any] | None:
        """Return every field; None if the property block is damaged."""
        try:
            return message.to_json()
        except StoreCorrupt as error:
            self.add_bad_properties(message, error)
            return None

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

    def add_bad_properties(self, message: StoredMessage, error: StoreCorrupt) -> None:
        """Report a message whose property block is damaged."""
        self.problems.append(message.problem(error, "bad_properties"))

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

    def queue_names(self, folder: VhostFolder) -> list[str]:
        """Return the names of all queues, of every type."""
        names = list(dict.fromkeys(owner.queue for owner in folder.queue_folders()))
        if self.node is not None:
            names += [queue.queue for queue in self.node.quorum_queues] + [stream.queue for stream in self.node.streams]
        return names

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


def _report_notes(notes: list[Finding]) -> None:
    """Print the number of messages that a start drops, and every other note."""
    count = sum(note.kind in _DROPPED for note in notes)
    for note in notes:
        if note.kind not in _DROPPED:
            say(f"brokerstore: note: {problem_text(note)}")
    if count:
        were, them = ("message was", "it") if count == 1 else ("messages were", "them")
        say(f"brokerstore: note: {count} {were} only in the server's memory; it drops {them} at its next start")
