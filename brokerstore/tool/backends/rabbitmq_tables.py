"""`info`, `ls`, `stats` and `report` of a RabbitMQ folder."""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING, Any

from rabbitstore.folder import Node
from rabbitstore.format.index_versions import VERSIONS
from rabbitstore.read.intact_segment_cy import IntactSegment

from ..output import Answer, Table, count_text, problem_json, progress, size_text
from .rabbitmq_folder import RabbitmqFolder, declared_text, report_unread, unread_keys

if TYPE_CHECKING:
    from brokerstore.report import Facts
    from rabbitstore import QueueInfo, RabbitMessage, VhostFolder
    from rabbitstore.read.queue_folder import QueueFolder

KEYS = ("queue", "vhost", "messages", "unacked", "persistent", "segments")
NODE_KEYS = ("queue", "vhost", "type", "messages", "unacked", "persistent", "segments")
STATS_KEYS = ("queue", "messages", "size_bytes", "persistent", "embedded", "redelivered", "expiring")
STATS_HEADERS = ("queue", "messages", "bytes", *STATS_KEYS[3:])
READS = [
    "classic queues of index version 1 (read and written)",
    "classic queues of index version 2 (read and written)",
    "quorum queues, machine versions 0 to 8 (read, recovered)",
    "streams (read, recovered)",
]
NOT_CHECKED = "not checked; run verify"


def info(backend: RabbitmqFolder) -> Answer:
    """Describe a virtual host, and the node around it, whose other queues are only counted."""
    with backend.open_folder(with_node=False) as folder:
        queues = backend.classic_queues(folder)
        facts: dict[str, Any] = {
            "kind": backend.target.kind.value,
            "path": folder.path,
            "vhost": folder.vhost,
            "clean_stop": folder.is_clean,
            "segment_entries": folder.segment_entries,
            "index_versions": sorted({queue.version for queue in queues}),
            "queues": len(queues),
            "messages": sum(queue.messages for queue in queues),
            "persistent": sum(queue.persistent for queue in queues),
            "stores": _store_rows(folder),
            "classic_queues": _by_version(queues),
        }
    node = backend.facts.node
    if node is not None:
        facts |= node.to_json() | {"reads": READS} | _declared(backend)
    facts["problems"] = [problem_json(problem) for problem in backend.problems]
    return Answer(facts, [_fields(facts, node)], backend.code)


def _fields(facts: dict[str, Any], node: Node | None) -> dict[str, object]:
    """Return the same for people; the message stores come last."""
    stores = [f"{row['store']}: {count_text(row['files'], 'file')}, {size_text(row['size_bytes'])}" for row in facts["stores"]]
    versions = [f"{count} of {name.replace('_', ' ')}" for name, count in facts["classic_queues"].items() if count]
    texts = {"classic_queues": ", ".join(versions) or "none", "problems": len(facts["problems"]) or NOT_CHECKED}
    if "declared" in facts:
        texts["declared"] = declared_text(facts["declared"])
    kept = {name: value for name, value in facts.items() if name != "stores"}
    return {**kept, **texts, "stores": "; ".join(stores), **({} if node is None else _node_texts(node))}


def _by_version(queues: list[QueueInfo]) -> dict[str, int]:
    """Count the queues of each index version."""
    versions = [queue.version for queue in queues]
    return {f"index_version_{version}": versions.count(version) for version in VERSIONS}


def _node_texts(node: Node) -> dict[str, object]:
    return {
        "quorum_queues": str(len(node.quorum_queues)) if node.quorum_queues else "none",
        "streams": str(len(node.streams)) if node.streams else "none",
        "metadata": ", ".join(node.metadata) or "none",
        "server_version": f"{node.server_version} ({node.version_from})",
        "version_from": node.version_from,
        "reads": "; ".join(READS),
    }


def _store_rows(folder: VhostFolder) -> list[dict[str, Any]]:
    """Return files and bytes of each message store."""
    rows = []
    for name, store in folder.stores.items():
        sizes = [store.size_of(number) or 0 for number in store.file_numbers()]
        rows.append({"store": name, "files": len(sizes), "size_bytes": sum(sizes)})
    return rows


def ls(backend: RabbitmqFolder) -> Answer:
    """List one row a queue."""
    with backend.open_folder() as folder:
        rows = [{key: getattr(queue, key) for key in KEYS} for queue in backend.classic_queues(folder)]
        keys: tuple[str, ...] = KEYS
        if backend.node is not None:
            keys = NODE_KEYS
            rows = [{**row, "type": "classic"} for row in rows] + [queue._asdict() for queue in backend.node.queues()]
    cells = [["unknown" if row[key] is None else row[key] for key in keys] for row in rows]
    declared = _declared(backend)
    lines = [f"declared: {declared_text(counts)}" for counts in declared.values()]
    return Answer({"queues": rows, **declared, **backend.unread_keys()}, [Table(keys, cells), *lines], backend.code)


def _declared(backend: RabbitmqFolder) -> dict[str, dict[str, int]]:
    """Return the JSON key for the numbers of a node's declarations."""
    counts = backend.declared()
    return {} if counts is None else {"declared": counts}


def stats(backend: RabbitmqFolder, quiet: bool) -> Answer:
    """Count messages, bytes of bodies and flags of each queue."""
    with backend.open_folder() as folder:
        rows = _stats_rows(backend, folder, quiet)
        stores = _store_rows(folder)
    found = [dict(zip(STATS_KEYS, (queue, *row), strict=True)) for queue, row in sorted(rows.items())]
    total = {"messages": sum(row[0] for row in rows.values()), "size_bytes": sum(row[1] for row in rows.values())}
    facts = {"queues": found, "total": total, "stores": stores, **backend.unread_keys()}
    return Answer(facts, [Table(STATS_HEADERS, [list(row.values()) for row in found])], backend.code)


def _stats_rows(backend: RabbitmqFolder, folder: VhostFolder, quiet: bool) -> dict[str, list[int]]:
    """Return the counts by queue name, with queues that have no message."""
    owners = folder.queue_folders()
    rows = {queue: [0] * (len(STATS_KEYS) - 1) for queue in backend.queue_names(folder)}
    with progress("stats", sum(owner.size_bytes() for owner in owners), quiet=quiet) as advance:
        for owner in owners:
            _count_queue(folder, owner, rows[owner.queue])
            advance(owner.size_bytes())
        for message in () if backend.node is None else backend.node.messages():
            _count(message, rows[message.queue])
    for queue in [] if backend.node is None else backend.node.unread:
        del rows[queue]
    return rows


def _count_queue(folder: VhostFolder, owner: QueueFolder, row: list[int]) -> None:
    """Count the messages of a classic queue's folder."""
    bound = folder.redelivered_before(owner)
    for part in owner.counted(folder.problems):
        if isinstance(part, IntactSegment) and bound is not None and not part.lowest < bound <= part.highest:
            redelivered = part.messages if part.highest < bound else 0
            counts = (part.messages, part.size_bytes, part.persistent, part.messages, redelivered, part.expiring)
            row[:] = map(add, row, counts)
            continue
        for message in folder.messages_of(owner, part.entries() if isinstance(part, IntactSegment) else part):
            _count(message, row)


def _count(message: RabbitMessage, row: list[int]) -> None:
    row[0] += 1
    row[1] += message.size
    row[2] += message.persistent
    row[3] += message.embedded
    row[4] += message.redelivered
    row[5] += message.expiry_us > 0


def report(folder: RabbitmqFolder, quiet: bool) -> tuple[Facts, dict[str, Any]]:
    """Gather the facts of the virtual host."""
    from brokerstore.report import rabbit_facts
    from rabbitstore.repair.check import size_bytes

    with progress("read", size_bytes(folder.path), quiet=quiet) as advance:
        facts, unread = rabbit_facts(folder.target.path, folder.target.vhost, advance)
    report_unread(unread)
    return facts, unread_keys(unread)
