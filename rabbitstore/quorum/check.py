"""Verify the quorum queues of a node (docs/formats/rabbitmq-quorum.md#damage)."""

from __future__ import annotations

from typing import NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat, read_head
from storebytes.finding import Finding, finding_of

from .folder import QuorumNode, QuorumQueue
from .message import QuorumMessage
from .tables import TABLE_SIZE_MAX, read_rows, registered


class CheckedQuorum(NamedTuple):
    """What a check found.  `notes` are states that a server completes, or loses, at its next start without damage."""

    queues: int
    entries: int
    messages: int
    problems: list[Finding]
    notes: list[Finding]


def check_node(node: QuorumNode) -> CheckedQuorum:
    """Read every log, segment, snapshot and message."""
    queues = node.queues()
    node.logged()
    entries = messages = 0
    for queue in queues:
        entries += len(queue.entries())
        messages += _check_queue(queue)
        node.check_end(queue)
    _check_tables(node, queues)
    return CheckedQuorum(len(queues), entries, messages, list(dict.fromkeys(node.problems)), list(dict.fromkeys(node.notes)))


def check_log(node: QuorumNode) -> tuple[list[Finding], list[Finding]]:
    """Check the logs and tables of the stream coordinator and the metadata store; return problems and notes."""
    queues = node.queues()
    node.logged()
    for queue in queues:
        queue.snapshots()  # where the log starts
        queue.check_start((queue.entries().last or 0) + 1)
        node.check_end(queue)
    _check_tables(node, queues)
    return list(dict.fromkeys(node.problems)), list(dict.fromkeys(node.notes))


def _check_queue(queue: QuorumQueue) -> int:
    count = 0
    try:
        for older in queue.snapshots()[1:]:  # the newest one is decoded for the messages
            older.split()
        for message in queue.messages():
            count += 1
            _check_properties(message, queue.node.problems)
        return count
    except (StoreCorrupt, UnsupportedFormat) as error:
        queue.node.problems.append(finding_of(error, "bad_snapshot"))
        return count


def _check_properties(message: QuorumMessage, problems: list[Finding]) -> None:
    try:
        _ = message.properties
    except StoreCorrupt as error:
        problems.append(message.problem(error, "bad_properties"))


def _check_tables(node: QuorumNode, queues: list[QuorumQueue]) -> None:
    node.problems += _unregistered(node, queues)
    _check_meta(node)


def _check_meta(node: QuorumNode) -> None:
    """Report a missing or damaged `meta.dets`: without it a server dead-letters again what the log has."""
    file = f"{node.relative}/meta.dets"
    data = read_head(node.disk, f"{node.path}/meta.dets", TABLE_SIZE_MAX)
    try:
        if data is None:
            node.problems.append(Finding(file, 0, "bad_meta_table", "a table", "no file"))
        else:
            read_rows(data, file)
    except StoreCorrupt as error:
        node.problems.append(finding_of(error, "bad_meta_table"))


def _unregistered(node: QuorumNode, queues: list[QuorumQueue]) -> list[Finding]:
    """Return the queues that a server would not find: `names.dets` is not synced when a queue is declared."""
    file = f"{node.relative}/names.dets"
    data = read_head(node.disk, f"{node.path}/names.dets", TABLE_SIZE_MAX)
    if data is None:
        node.problems.append(Finding(file, 0, "bad_names_table", "a table", "no file"))
        return []
    try:
        known = set(registered(read_rows(data, file)).values())
    except StoreCorrupt as error:
        node.problems.append(finding_of(error, "bad_names_table"))
        return []
    return [
        Finding(file, 0, "unregistered_queue", f"a row for {queue.uid}", f"none; a server loses queue {queue.queue!r}")
        for queue in queues
        if queue.uid not in known
    ]
