"""The facts of a RabbitMQ virtual host for a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import chain
from typing import Any

from rabbitstore import RabbitStore, VhostFolder, verify
from rabbitstore.folder import RabbitmqFacts
from rabbitstore.node_folder import CheckedNode, NodeFolder
from storebytes.finding import UNSUPPORTED

from .facts import Facts, FileMap, Times, Words, size_class, size_counts


def rabbit_facts(
    path: str, vhost: str | None = None, progress: Callable[[int], None] | None = None
) -> tuple[Facts, list[str]]:  # fmt: skip
    """Return queues, messages, the garbage in each store file, and every problem that `verify` finds.

    The list names the quorum queues of an unsupported format, which are not read.
    """
    with RabbitStore.open(path, "r", vhost=vhost) as store, ExitStack() as stack:
        folder = stack.enter_context(closing(store.folder()))
        is_node = RabbitmqFacts(path).node is not None
        node = stack.enter_context(closing(NodeFolder(path, folder.vhost))) if is_node else None
        facts = _facts(folder, node, store.path)
        found = verify(store.path, progress=progress)
        unread = [] if node is None else list(node.unread)
        others = CheckedNode(0, 0, 0, 0, [], []) if node is None else node.check()
    facts.problems = [problem.as_dict() for problem in found.problems + others.problems]
    facts.unread = sum(note.kind == UNSUPPORTED for note in found.notes + others.notes)
    if unread:
        facts.cards.append(("Not read", f"{len(unread)} quorum queue{'' if len(unread) == 1 else 's'}"))
    if facts.unread:
        facts.cards.append(("Unsupported format", f"{facts.unread:,} not read"))
    return facts, unread


def _facts(folder: VhostFolder, node: NodeFolder | None, path: str) -> Facts:
    times, keys, sizes = Times(), Words(), Counter[int]()
    queues: dict[str, list[int]] = {queue.queue: [0, 0] for queue in folder.queues()}
    queues |= {name: [0, 0] for name in ([] if node is None else node.names())}
    live: dict[str, set[bytes]] = {name: set() for name in folder.stores}
    for message in chain(folder.messages(), () if node is None else node.messages()):
        row = queues.setdefault(message.queue, [0, 0])
        row[0] += 1
        row[1] += message.size
        sizes[size_class(message.size)] += 1
        keys.add(message.routing_keys)
        if not message.embedded:
            for name, store in folder.stores.items():
                if message.msg_id in store.locations:
                    live[name].add(message.msg_id)
    cards = [
        ("Messages", f"{sum(row[0] for row in queues.values()):,}"), ("Queues", str(len(queues))),
        ("Virtual host", folder.vhost), ("Stopped cleanly", "yes" if folder.is_clean else "no: running or crashed"),
    ]  # fmt: skip
    ordered = sorted(queues.items(), key=lambda item: -item[1][1])
    rows: list[dict[str, Any]] = [{"queue": name, "messages": row[0], "bytes": row[1]} for name, row in ordered]
    files = [one for name in folder.stores for one in _file_maps(folder, name, live[name])]
    return Facts(
        "rabbitmq", path, cards, files, times.rows(), times.bucket_ms, rows, size_counts(sizes), keys.most()
    )  # fmt: skip


def _file_maps(folder: VhostFolder, name: str, live: set[bytes]) -> list[FileMap]:
    """Return the files of one message store: referenced records, unreferenced ones, and damage."""
    store = folder.stores[name]
    maps = {number: FileMap(f"{name} {number}", store.size_of(number) or 0) for number in store.file_numbers()}
    for msg_id in live:
        number, record = store.locations[msg_id]
        if number in maps:
            maps[number].live += record.total_size
    for number, found in maps.items():
        good = {record.offset: record.total_size for record in store.scan(number, []).records}
        good |= {record.offset: record.total_size for record in store.found_past_damage.get(number, ())}
        whole = min(sum(good.values()), found.size_bytes)
        found.damaged = found.size_bytes - whole
        found.garbage = max(0, whole - found.live)
    return list(maps.values())
