"""Read quorum queues and streams of one virtual host in a node's data folder, beside its classic queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from storageio import REAL_DISK, Disk, StoreCorrupt, UnsupportedFormat
from storebytes.finding import UNSUPPORTED, Finding, finding_of

from .declared import declaration_problems, unreported
from .quorum.check import check_log, check_node
from .quorum.coordinator import stream_names, unregistered_streams
from .quorum.folder import QuorumQueue, quorum_nodes
from .quorum.location import path_notes
from .read.json_cy import LineWriter
from .read.stored_message import RabbitMessage
from .stream.check import check_stream
from .stream.folder import StreamFolder, folder_prefix, stream_folders

QUORUM, STREAM = "quorum", "stream"
_Message = TypeVar("_Message")


class NodeQueue(NamedTuple):
    """One queue as `ls` shows it.  `unacked` counts messages that a consumer held; `segments` counts files."""

    queue: str
    vhost: str
    type: str
    messages: int
    unacked: int | None
    persistent: int
    segments: int


class CheckedNode(NamedTuple):
    """What a check of all queues found; problems of an unsupported format are in `notes`."""

    queues: int
    messages: int
    records: int
    files: int
    problems: list[Finding]
    notes: list[Finding]


class NodeFolder:
    """The queues of one virtual host that are not classic.

    `unread` has the quorum queues whose format is not known here, each with its problem.  `close` unmaps the files.
    """

    def __init__(self, path: str, vhost: str, disk: Disk = REAL_DISK) -> None:
        """Read the names of the queues."""
        self.path = path
        self._disk = disk
        self.vhost = vhost
        self.nodes = quorum_nodes(path, disk)
        self.quorum_queues = [queue for node in self.nodes for queue in node.queues() if queue.vhost in (vhost, "")]
        names = stream_names(path, disk)
        self.streams = [
            _named(stream, names) for stream in stream_folders(path, disk, vhost=vhost) if _is_in(stream, names, vhost)
        ]
        self._unknown = unregistered_streams(path, names, disk)
        self.unread: dict[str, Finding] = {}
        self._errors: list[Finding] = []

    def keep(self, queues: set[tuple[str, str]]) -> None:
        """Read only the queues of these types and names."""
        self.quorum_queues = [one for one in self.quorum_queues if (QUORUM, one.queue) in queues]
        self.streams = [one for one in self.streams if (STREAM, one.queue) in queues]

    def close(self) -> None:
        """Unmap every file of every node."""
        for node in self.nodes:
            node.close()

    @property
    def problems(self) -> list[Finding]:
        """The damage and the unknown formats that were met so far, each once."""
        found = [*self.unread.values(), *self._errors]
        for node in self.nodes:
            found += node.problems
        for stream in self.streams:
            found += stream.problems
        return list(dict.fromkeys(found))

    def messages(self, queue: str | None = None) -> Iterator[RabbitMessage]:
        """Yield the messages of one queue or of all: quorum queues by name, then streams."""
        for quorum in self.quorum_queues:
            if queue in (None, quorum.queue):
                yield from self._quorum_messages(quorum)
        for stream in self.streams:
            if queue is None or stream.queue == queue:
                yield from self._stream_messages(stream)

    def lines(self, lines: LineWriter, capacity: int, queue: str | None = None) -> Iterator[RabbitMessage | None]:
        """Write the JSON of most messages of quorum queues, and yield all others, in the order of `messages`.

        The caller adds those, and takes the lines whenever None is yielded: `capacity` bytes are full.
        """
        for quorum in self.quorum_queues:
            if queue in (None, quorum.queue):
                yield from self._guarded(quorum, quorum.lines(lines, capacity))
        for stream in self.streams:
            if queue is None or stream.queue == queue:
                yield from self._guarded_stream(stream.lines(lines, capacity))

    def _quorum_messages(self, queue: QuorumQueue, *, by_number: bool = False) -> Iterator[RabbitMessage]:
        return self._guarded(queue, queue.messages(by_number=by_number))

    def _guarded(self, queue: QuorumQueue, messages: Iterator[_Message]) -> Iterator[_Message]:
        """Yield messages, and note why a queue cannot be read."""
        try:
            yield from messages
        except UnsupportedFormat as error:
            self.unread.setdefault(queue.queue, finding_of(error, ""))
        except StoreCorrupt as error:
            self._errors.append(finding_of(error, "bad_snapshot"))

    def _stream_messages(self, stream: StreamFolder) -> Iterator[RabbitMessage]:
        return self._guarded_stream(stream.messages())

    def _guarded_stream(self, messages: Iterator[_Message]) -> Iterator[_Message]:
        try:
            yield from messages
        except UnsupportedFormat as error:
            self._errors.append(finding_of(error, ""))

    def names(self) -> list[str]:
        """Return the names of the queues that can be read; `unread` has the others afterwards."""
        for quorum in self.quorum_queues:
            try:
                quorum.machine()
            except UnsupportedFormat as error:
                self.unread.setdefault(quorum.queue, finding_of(error, ""))
            except StoreCorrupt:  # reported when its messages are read
                continue
        return [one.queue for one in self.quorum_queues if one.queue not in self.unread] + [one.queue for one in self.streams]

    def numbered(self, queue: str) -> Iterator[RabbitMessage]:
        """Yield the messages of one queue in ascending order of their numbers."""
        for quorum in self.quorum_queues:
            if quorum.queue == queue:
                yield from self._quorum_messages(quorum, by_number=True)
        for stream in self.streams:
            if stream.queue == queue:
                yield from self._stream_messages(stream)

    def queues(self) -> list[NodeQueue]:
        """Return a row for each queue that can be read; every message is read for it."""
        rows = []
        for queue in self.quorum_queues:
            row = self._row(queue.queue, QUORUM, self._quorum_messages(queue), queue.segment_count())
            if queue.queue not in self.unread:
                rows.append(row)
        for stream in self.streams:
            rows.append(self._row(stream.queue, STREAM, self._stream_messages(stream), len(stream.segments())))
        return rows

    def _row(self, queue: str, kind: str, messages: Iterator[RabbitMessage], segments: int) -> NodeQueue:
        count = unacked = persistent = 0
        for message in messages:
            count += 1
            persistent += message.persistent
            unacked += getattr(message, "state", "") == "checked_out"
        return NodeQueue(queue, self.vhost, kind, count, unacked, persistent, segments)

    def check(self) -> CheckedNode:
        """Check every file; the quorum queues of other virtual hosts share the write-ahead log and are checked too."""
        problems: list[Finding] = []
        notes: list[Finding] = []
        queues = messages = records = files = 0
        for node in self.nodes:
            quorum = check_node(node)
            queues, messages, records = queues + quorum.queues, messages + quorum.messages, records + quorum.entries
            files += sum(queue.segment_count() + 1 for queue in node.queues())
            problems += quorum.problems
            notes += quorum.notes
        for stream in self.streams:
            found = check_stream(stream)
            queues, messages, records = queues + 1, messages + found.messages, records + found.chunks
            files += len(stream.numbers("segment")) + len(stream.numbers("index"))
            problems += found.problems
            notes += found.notes
        for node in quorum_nodes(self.path, self._disk, folder="coordination"):
            with node:
                found_problems, found_notes = check_log(node)
                problems += found_problems
                notes += found_notes
        problems += self._unknown
        problems += unreported(declaration_problems(self.path, self._disk), problems)
        notes += path_notes(self.path, self._disk)
        notes += [*(problem for problem in problems if problem.kind == UNSUPPORTED)]
        return CheckedNode(queues, messages, records, files, [one for one in problems if one.kind != UNSUPPORTED], notes)


def _is_in(stream: StreamFolder, names: dict[str, tuple[str, str]], vhost: str) -> bool:
    known = names.get(stream.folder)
    return known[0] == vhost if known is not None else stream.folder.startswith(folder_prefix(vhost, ""))


def _named(stream: StreamFolder, names: dict[str, tuple[str, str]]) -> StreamFolder:
    """Return the stream with its name from the coordinator, when it has one there."""
    known = names.get(stream.folder)
    return stream if known is None else StreamFolder(stream.path, stream.disk, vhost=known[0], queue=known[1])
