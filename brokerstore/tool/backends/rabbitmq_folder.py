"""A RabbitMQ folder: a virtual host's, or a node's, opened for reading, and the problems found so far."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rabbitstore import VhostFolder
from rabbitstore.folder import RabbitmqFacts
from storageio import StoreCorrupt
from storebytes.finding import UNSUPPORTED, Finding

from ..codes import CLEAN, NO_STORE, PROBLEM
from ..output import count_text, json_line, print_line, problem_text

if TYPE_CHECKING:
    from rabbitstore import QueueInfo, RabbitMessage
    from rabbitstore.node_folder import NodeFolder
    from rabbitstore.read.json_cy import LineWriter

    from ..target import Target

BLOCK_SIZE = 1 << 20  # of JSON lines
_DROPPED = ("transient_in_memory", "unwritten_message")  # notes of messages that a start drops


def report_running_server(facts: RabbitmqFacts) -> None:
    """Report on stderr that a server runs on the folder, because its files lack what it has in memory alone."""
    server = facts.server
    if server is not None:
        holder = f"{server.name}, process {server.process_id}"
        print_line(f"brokerstore: a server runs on this folder ({holder}): messages that it has only in memory are not shown")


def report_unread(queues: Collection[str]) -> None:
    """Report on stderr which quorum queues were not read; their problems name what is unknown."""
    if queues:
        print_line(
            f"brokerstore: not read: {count_text(len(queues), 'quorum queue')} of an unsupported format: {', '.join(queues)}"
        )


def unread_keys(queues: Collection[str]) -> dict[str, Any]:
    """Return the JSON keys for these queues."""
    return {"not_read": {"quorum_queues": list(queues), "streams": []}} if queues else {}


def open_node(facts: RabbitmqFacts, vhost: str, *, even_empty: bool = False) -> NodeFolder | None:
    """Open the quorum queues and streams of a node's folder; return None for a folder without any, unless `even_empty`."""
    node = facts.node
    if node is None or not (node.not_read() or even_empty):
        return None
    from rabbitstore.node_folder import NodeFolder  # 12 ms that a folder of classic queues saves

    return NodeFolder(facts.path, vhost)


def declared_text(counts: dict[str, int]) -> str:
    """Return the numbers of a node's declarations as text."""
    nouns = {name: "virtual host" if name == "vhosts" else name.removesuffix("s") for name in counts}
    texts = [count_text(count, nouns[name]) for name, count in counts.items() if name != "policies"]
    policies = counts.get("policies", 0)
    return ", ".join([*texts, f"{policies} {'policy' if policies == 1 else 'policies'}"])


def outcome(problems: list[Finding]) -> int:
    """Return the exit code for some problems: an unsupported format is no damage, but the answer is incomplete."""
    if any(problem.kind != UNSUPPORTED for problem in problems):
        return PROBLEM
    return NO_STORE if problems else CLEAN


class RabbitmqFolder:
    """What every operation on a RabbitMQ folder needs."""

    is_in_use = False  # a server is reported instead

    def __init__(self, target: Target) -> None:
        """Report a running server; nothing is opened yet."""
        assert isinstance(target.facts, RabbitmqFacts)
        self.target = target
        self.facts = target.facts
        self.node: NodeFolder | None = None
        self.problems: list[Finding] = []
        self.only: set[tuple[str, str]] | None = None  # types and names of the queues to read, if not all
        self._classic: list[QueueInfo] | None = None
        report_running_server(self.facts)

    @property
    def code(self) -> int:
        """Return the exit code for the problems found so far."""
        return outcome(self.problems)

    def add_problems(self, problems: Iterable[Finding]) -> None:
        """Add problems that are not known yet, and report them on stderr."""
        new = [problem for problem in dict.fromkeys(problems) if problem not in self.problems]
        self.problems += new
        for problem in new:
            print_line(f"brokerstore: {problem_text(problem)}")

    def declared(self) -> dict[str, int] | None:
        """Return the numbers of a node's declarations; None for a folder without its metadata."""
        if self.facts.node is None or not self.facts.node.metadata:
            return None
        from rabbitstore import read_definitions  # 20 ms

        found = read_definitions(self.facts.path)
        self.add_problems(found.problems)
        return found.counts()

    @property
    def path(self) -> str:
        """Return the virtual host's folder."""
        return self.facts.vhost(self.target.vhost)

    @contextlib.contextmanager
    def open_folder(self, *, with_node: bool = True) -> Iterator[VhostFolder]:
        """Open the virtual host's folder for reading, and the other queues of its node; at the end, report what was wrong."""
        folder = VhostFolder(self.path)
        self.node = open_node(self.facts, folder.vhost) if with_node else None
        if self.node is not None and self.only is not None:
            self.node.keep(self.only)
        try:
            yield folder
        finally:
            folder.close()
            self.problems += dict.fromkeys(folder.problems)
            if self.node is not None:
                self.node.close()
                self.problems += self.node.problems
            for problem in self.problems:
                print_line(f"brokerstore: {problem_text(problem)}")
            _report_notes(list(dict.fromkeys(folder.notes)))
            report_unread(() if self.node is None else self.node.unread)

    def classic_queues(self, folder: VhostFolder) -> list[QueueInfo]:
        """Return a row for each classic queue, which are counted once."""
        if self._classic is None:
            self._classic = folder.queues()
        return self._classic

    def messages(
        self, folder: VhostFolder, queue: str | None = None, start: int = 0, stop: int | None = None
    ) -> Iterator[RabbitMessage]:
        """Iterate over the messages of classic queues, then of quorum queues and streams, with numbers of a range."""
        for message in folder.messages(queue, start=start, stop=stop):
            if self.only is None or ("classic", message.queue) in self.only:
                yield message
        for message in () if self.node is None else self.node.messages(queue):
            if start <= message.seq_id and (stop is None or message.seq_id < stop):
                yield message

    def unread_keys(self) -> dict[str, Any]:
        """Return the JSON keys for the queues of a node's folder that were not read."""
        return {} if self.node is None else unread_keys(self.node.unread)

    def queue_names(self, folder: VhostFolder) -> list[str]:
        """Return the names of all queues, of every type."""
        names = list(dict.fromkeys(owner.queue for owner in folder.queue_folders()))
        if self.node is not None:
            names += [queue.queue for queue in self.node.quorum_queues] + [stream.queue for stream in self.node.streams]
        return names

    def blocks(
        self, lines: LineWriter, messages: Iterable[RabbitMessage | None], block_size: int
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

    def to_json(self, message: RabbitMessage) -> dict[str, Any] | None:
        """Return every field; None if the property block is damaged."""
        try:
            return message.to_json()
        except StoreCorrupt as error:
            self.add_bad_properties(message, error)
            return None

    def add_bad_properties(self, message: RabbitMessage, error: StoreCorrupt) -> None:
        """Report a message whose property block is damaged."""
        self.problems.append(message.problem(error, "bad_properties"))


def _report_notes(notes: list[Finding]) -> None:
    """Print the number of messages that a start drops, and every other note."""
    count = sum(note.kind in _DROPPED for note in notes)
    for note in notes:
        if note.kind not in _DROPPED:
            print_line(f"brokerstore: note: {problem_text(note)}")
    if count:
        were, them = ("message was", "it") if count == 1 else ("messages were", "them")
        print_line(f"brokerstore: note: {count} {were} only in the server's memory; it drops {them} at its next start")
